"""`interlock check` and trust: what a node would refuse is found before it starts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.command_line import DEMO, CommandLine

ISSUER = "https://login.example.com"


def problems(world: CommandLine, **config: Any) -> list[tuple[str, str]]:
    world.config({"demo": DEMO}, **config)
    done = world.run_here("check", "--json")
    told = json.loads(done.stdout)
    assert told["ok"] is (done.returncode == 0)
    return [(one["path"], one["message"]) for one in told["problems"]]


def test_keys_that_are_not_there(world: CommandLine) -> None:
    anchors = [
        {"name": "chief", "key": "no/such.pem"},
        {"name": "desk", "kind": "service", "secret": "${env:NO_SUCH_SECRET}"},
    ]
    issuers = [{"issuer": ISSUER, "jwks_file": "no-keys.json"}]
    found = problems(world, approvals={"anchors": anchors}, identity={"issuers": issuers})
    assert sorted(found) == [
        ("approvals.anchors[0].key", "the file no/such.pem does not exist"),
        ("approvals.anchors[1].secret", "the environment variable NO_SUCH_SECRET is not set"),
        ("identity.issuers[0].jwks_file", "the file no-keys.json does not exist"),
    ]


def test_two_callers_with_one_token(world: CommandLine) -> None:
    world.environ |= {"ONE": "s3cret-0123456789abcdef", "OTHER": "s3cret-0123456789abcdef"}
    tokens = [
        {"name": "agent", "token": "${env:ONE}"},
        {"name": "nobody", "token": "${env:NO_SUCH_SECRET}"},
        {"name": "chief", "token": "${env:OTHER}"},
    ]
    same = "it is the same token as that of agent: these callers cannot be distinguished"
    found = problems(world, tokens=tokens)
    assert sorted(found) == [
        ("tokens[1].token", "the environment variable NO_SUCH_SECRET is not set"),
        ("tokens[2].token", same),
    ]
    assert "s3cret" not in str(found)


def test_keys_that_are_none(world: CommandLine) -> None:
    (world.cwd / "x.pem").write_text("no key", encoding="utf-8")
    (world.cwd / "keys.json").write_text("{}", encoding="utf-8")
    anchors = [{"name": "chief", "key": "x.pem"}, {"name": "chief", "key": "x.pem"}]
    issuers = [{"issuer": ISSUER, "jwks_file": "keys.json"}]
    found = problems(world, approvals={"anchors": anchors}, identity={"issuers": issuers})
    assert [path for path, _ in found] == [
        "approvals.anchors[0]",
        "approvals.anchors[1].name",
        "approvals.anchors[1]",
        "identity.issuers[0].jwks_file",
    ]
    assert found[0][1] == (
        "The trust anchor 'chief' needs an Ed25519 or P-256 public key, as PEM or JWK"
    )
    assert found[3][1].startswith("not a valid JWKS: ")


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
def test_calls_do_not_wait_for_nobody(world: CommandLine, policy: Any, code: int) -> None:
    more = {} if policy is None else {"policy": policy}
    world.config({"demo": DEMO}, approvals={"enrolled": False}, **more)
    done = world.run_here("check")
    assert done.returncode == code
    message = "no proof is accepted; add an anchor under approvals.anchors"
    assert (message in done.stderr) is (code == 3)


def test_somebody_who_counts_is_enough(world: CommandLine) -> None:
    world.run_here("keys", "new", "chief", "--no-passphrase", "--no-enrol")
    public = str(world.home / ".config" / "interlock" / "keys" / "chief.pub")
    anchors = [{"name": "chief", "key": public}]
    assert problems(world, approvals={"enrolled": False, "anchors": anchors}) == []


@pytest.mark.parametrize(
    ("tools", "more", "said"),
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
def test_rules_about_nobody_are_doubted(
    world: CommandLine, tools: list[str], more: dict[str, Any], said: str
) -> None:
    world.config({"demo": DEMO}, policy={"rules": [{**CONFIRMS, "tools": tools}]}, **more)
    done = world.run_here("check")
    assert done.returncode == 0, done.stderr
    if said:
        (line,) = done.stderr.splitlines()
        assert line.startswith("Warning: interlock.yaml:")
        assert said in line
    else:
        assert done.stderr == ""
    told = json.loads(world.run_here("check", "--json").stdout)
    assert (told["ok"], len(told["warnings"])) == (True, 1 if said else 0)


@pytest.mark.parametrize(
    ("key", "more", "said"),
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
def test_trust_in_nobody_is_doubted(
    world: CommandLine, key: str, more: dict[str, Any], said: str
) -> None:
    world.config({"demo": DEMO}, aql={"trust": {key: "certified"}}, **more)
    done = world.run_here("check")
    assert done.returncode == 0, done.stderr
    assert said in done.stderr
    assert bool(said) == bool(done.stderr)


# -- tokens


def test_an_empty_token_is_found_before_a_node_starts(world: CommandLine) -> None:
    tokens = [{"name": name, "token": f"${{env:{name.upper()}_TOKEN}}"} for name in ("a", "b")]
    world.environ |= {"A_TOKEN": "", "B_TOKEN": ""}
    empty = "the token is empty"
    found = problems(world, tokens=tokens)
    assert found == [("tokens[0].token", empty), ("tokens[1].token", empty)]
    assert world.run_here("check").returncode == 1


@pytest.mark.parametrize(
    ("secret", "said"),
    [
        ("a1", "the token has less than 16 characters and can be guessed"),
        ("a b", "the token has a space, or a character that some clients cannot send"),
        ("é" * 20, "the token has a space, or a character that some clients cannot send"),
        ("0123456789abcdef", ""),
    ],
)
def test_a_token_that_is_none_to_speak_of(world: CommandLine, secret: str, said: str) -> None:
    world.config({"demo": DEMO}, tokens=[{"name": "a", "token": "${env:A_TOKEN}"}])
    done = world.run_here("check", "--json", A_TOKEN=secret)
    assert done.returncode == 0
    told = [(one["path"], one["message"]) for one in json.loads(done.stdout)["warnings"]]
    assert told == ([("tokens[0].token", said)] if said else [])
    assert f'"{secret}"' not in done.stdout


def test_nobody_is_told_to_write_a_secret_down(world: CommandLine) -> None:
    world.config({"demo": DEMO}, tokens=[{"name": "a", "token": "${env:A_TOKEN}"}])
    done = world.run_here("check")
    assert done.returncode == 1
    assert "A_TOKEN is not set; set it before the node starts\n" in done.stderr
    assert "default" not in done.stderr
