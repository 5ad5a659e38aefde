"""`interlock check` and trust: problems are found before a node starts."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from joserfc.jwk import OKPKey

from tests.support.command_line import DEMO, CommandLine

ISSUER = "https://login.example.com"


def problems(world: CommandLine, **config: Any) -> list[tuple[str, str]]:
    world.config({"demo": DEMO}, **config)
    result = world.run_here("check", "--json")
    data = json.loads(result.stdout)
    assert data["ok"] is (result.returncode == 0)
    return [(problem["path"], problem["message"]) for problem in data["problems"]]


def test_reports_missing_trust_files_and_secrets(world: CommandLine) -> None:
    anchors = [
        {"name": "chief", "key": "no/such.pem"},
        {"name": "desk", "kind": "service", "secret": "${env:NO_SUCH_SECRET}"},
    ]
    issuers = [{"issuer": ISSUER, "jwks_file": "no-keys.json"}]
    result = problems(world, approvals={"anchors": anchors}, identity={"issuers": issuers})
    assert sorted(result) == [
        ("approvals.anchors[0].key", "the file no/such.pem does not exist"),
        ("approvals.anchors[1].secret", "the environment variable NO_SUCH_SECRET is not set"),
        ("identity.issuers[0].jwks_file", "the file no-keys.json does not exist"),
    ]


def test_reports_two_callers_with_same_token(world: CommandLine) -> None:
    world.environ |= {"ONE": "s3cret-0123456789abcdef", "OTHER": "s3cret-0123456789abcdef"}
    tokens = [
        {"name": "agent", "token": "${env:ONE}"},
        {"name": "nobody", "token": "${env:NO_SUCH_SECRET}"},
        {"name": "chief", "token": "${env:OTHER}"},
    ]
    same = "it is the same token as that of agent: these callers cannot be distinguished"
    result = problems(world, tokens=tokens)
    assert sorted(result) == [
        ("tokens[1].token", "the environment variable NO_SUCH_SECRET is not set"),
        ("tokens[2].token", same),
    ]
    assert "s3cret" not in str(result)


def test_reports_invalid_keys(world: CommandLine) -> None:
    (world.cwd / "x.pem").write_text("no key", encoding="utf-8")
    (world.cwd / "keys.json").write_text("{}", encoding="utf-8")
    anchors = [{"name": "chief", "key": "x.pem"}, {"name": "chief", "key": "x.pem"}]
    issuers = [{"issuer": ISSUER, "jwks_file": "keys.json"}]
    result = problems(world, approvals={"anchors": anchors}, identity={"issuers": issuers})
    assert [path for path, _ in result] == [
        "approvals.anchors[0]",
        "approvals.anchors[1].name",
        "approvals.anchors[1]",
        "identity.issuers[0].jwks_file",
    ]
    assert result[0][1] == (
        "The trust anchor 'chief' needs an Ed25519 or P-256 public key, as PEM or JWK"
    )
    assert result[3][1].startswith("not a valid JWKS: ")


@pytest.mark.parametrize("kind", ["pem", "jwk", "pub"])
def test_warns_about_private_key_of_anchor(world: CommandLine, kind: str) -> None:
    key = Ed25519PrivateKey.generate()
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    texts = {
        "pem": key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        "jwk": json.dumps(OKPKey.import_key(key).as_dict(private=True)).encode(),
        "pub": public,
    }
    file = world.cwd / f"chief.{kind}"
    file.write_bytes(texts[kind])
    world.config({"demo": DEMO}, approvals={"anchors": [{"name": "chief", "key": file.name}]})
    result = world.run_here("check", "--json")
    assert result.returncode == 0, result.stderr
    warned = [warning["path"] for warning in json.loads(result.stdout)["warnings"]]
    assert warned == ([] if kind == "pub" else ["approvals.anchors[0].key"])


CONFIRMS = {"name": "a", "then": "confirm"}
FREES = {"name": "a", "then": "allow"}
FREES_SOME = {"name": "a", "then": "allow", "tools": ["demo.*"]}


@pytest.mark.parametrize(
    ("policy", "code"),
    [
        (None, 3),
        ({"default": "safe"}, 3),
        ({"default": "allow", "rules": [CONFIRMS]}, 3),
        ({"default": "deny", "rules": [{**CONFIRMS, "then": "verify"}]}, 3),
        ({"rules": [FREES_SOME]}, 3),
        ({"rules": [FREES]}, 0),
        ({"default": "allow"}, 0),
        ({"default": "deny"}, 0),
    ],
)
def test_reports_confirmation_without_trust_anchor(
    world: CommandLine, policy: Any, code: int
) -> None:
    more = {} if policy is None else {"policy": policy}
    world.config({"demo": DEMO}, approvals={"enrolled": False}, **more)
    result = world.run_here("check")
    assert result.returncode == code
    message = "no proof is accepted; add an anchor under approvals.anchors"
    assert (message in result.stderr) is (code == 3)


def test_one_trust_anchor_is_enough(world: CommandLine) -> None:
    world.run_here("keys", "new", "chief", "--no-passphrase", "--no-enrol")
    public = str(world.home / ".config" / "interlock" / "keys" / "chief.pub")
    anchors = [{"name": "chief", "key": public}]
    assert problems(world, approvals={"enrolled": False, "anchors": anchors}) == []


@pytest.mark.parametrize(
    ("tools", "extra", "message"),
    [
        (["dmeo.notes_delete"], {}, 'no server has the segment dmeo; did you mean "demo"?'),
        (["demo.*", "demos.*"], {}, 'no server has the segment demos; did you mean "demo"?'),
        (["bank.pay"], {"subservers": {"enabled": False}}, "no server has the segment bank; "),
        (["root.dmeo.x"], {"root_segment": "root"}, 'did you mean "demo"?'),
        # Whoever registers may have it, or a wildcard covers it.
        (["bank.pay"], {}, ""),
        (["dem.x"], {"subservers": {"links": {"dem": {}}}}, ""),
        (["*.delete_*", "d?mo.x", "*", "dem*.x", "notes"], {}, ""),
        (["root.demo.x", "*.dmeo.x"], {"root_segment": "root"}, ""),
    ],
)
@pytest.mark.feature("tree")
def test_warns_about_rules_that_match_no_tool(
    world: CommandLine, tools: list[str], extra: dict[str, Any], message: str
) -> None:
    world.config({"demo": DEMO}, policy={"rules": [{**CONFIRMS, "tools": tools}]}, **extra)
    result = world.run_here("check")
    assert result.returncode == 0, result.stderr
    if message:
        (line,) = result.stderr.splitlines()
        assert line.startswith("Warning: interlock.yaml:")
        assert message in line
    else:
        assert result.stderr == ""
    data = json.loads(world.run_here("check", "--json").stdout)
    assert (data["ok"], len(data["warnings"])) == (True, 1 if message else 0)


@pytest.mark.parametrize(
    ("key", "extra", "message"),
    [
        ("demoo", {}, 'unknown server demoo; did you mean "demo"?'),
        ("bank", {"subservers": {"enabled": False}}, "unknown server bank; correct or remove it"),
        ("demo", {"subservers": {"enabled": False}}, ""),
        # It may register later.
        ("bank", {}, ""),
    ],
)
@pytest.mark.feature("aql")
@pytest.mark.feature("tree")
def test_warns_about_trust_in_unknown_server(
    world: CommandLine, key: str, extra: dict[str, Any], message: str
) -> None:
    world.config({"demo": DEMO}, aql={"trust": {key: "certified"}}, **extra)
    result = world.run_here("check")
    assert result.returncode == 0, result.stderr
    assert message in result.stderr
    assert bool(message) == bool(result.stderr)


# -- tokens


def test_reports_empty_token_before_start(world: CommandLine) -> None:
    tokens = [{"name": name, "token": f"${{env:{name.upper()}_TOKEN}}"} for name in ("a", "b")]
    world.environ |= {"A_TOKEN": "", "B_TOKEN": ""}
    empty = "the token is empty"
    result = problems(world, tokens=tokens)
    assert result == [("tokens[0].token", empty), ("tokens[1].token", empty)]
    assert world.run_here("check").returncode == 1


@pytest.mark.parametrize(
    ("secret", "message"),
    [
        ("a1", "the token has less than 16 characters and can be guessed"),
        ("a b", "the token has a space, or a character that some clients cannot send"),
        ("é" * 20, "the token has a space, or a character that some clients cannot send"),
        ("0123456789abcdef", ""),
    ],
)
def test_warns_about_weak_token(world: CommandLine, secret: str, message: str) -> None:
    world.config({"demo": DEMO}, tokens=[{"name": "a", "token": "${env:A_TOKEN}"}])
    result = world.run_here("check", "--json", A_TOKEN=secret)
    assert result.returncode == 0
    actual = [
        (warning["path"], warning["message"]) for warning in json.loads(result.stdout)["warnings"]
    ]
    assert actual == ([("tokens[0].token", message)] if message else [])
    assert f'"{secret}"' not in result.stdout


def test_missing_token_hint_suggests_no_default(world: CommandLine) -> None:
    world.config({"demo": DEMO}, tokens=[{"name": "a", "token": "${env:A_TOKEN}"}])
    result = world.run_here("check")
    assert result.returncode == 1
    assert "A_TOKEN is not set; set it before the node starts\n" in result.stderr
    assert "default" not in result.stderr
