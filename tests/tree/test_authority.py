"""Tests of authority proofs: tokens, certificates and required proofs."""

from __future__ import annotations

import hmac
import json
import sys
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet, OKPKey, RSAKey

from interlock.tree.authority import find_mutable_tool
from tests.support.clock import WALL_CLOCK_OFFSET
from tests.tree.registrar_hub import (
    OTHER_PARENT,
    PARENT,
    RegistrarHub,
    ScriptedChild,
    open_hub,
    run_pending_tasks,
    tool,
)
from tests.tree.test_ownership import REJECTED, A, B
from tests.tree.test_registration import read_error

pytestmark = pytest.mark.usefixtures("no_leaks")

EDWARDS = OKPKey.generate_key("Ed25519")
KINDS: dict[str, tuple[str, Any]] = {
    "EdDSA": ("EdDSA", EDWARDS),
    "Ed25519": ("Ed25519", EDWARDS),
    "Ed448": ("Ed448", OKPKey.generate_key("Ed448")),
    "ES256": ("ES256", ECKey.generate_key("P-256")),
    "ES384": ("ES384", ECKey.generate_key("P-384")),
    "ES512": ("ES512", ECKey.generate_key("P-521")),
    "RS256": ("RS256", RSAKey.generate_key(2048)),
}
ANYWHERE = "198.51.100.7"


def proof(key: Any = EDWARDS, alg: str = "Ed25519", **claims: Any) -> dict[str, str]:
    said = {"sub": "a.example.com", "aud": PARENT, "exp": int(WALL_CLOCK_OFFSET) + 600, **claims}
    said = {name: value for name, value in said.items() if value is not None}
    return {"type": "jwt", "token": jwt.encode({"alg": alg}, said, key, algorithms=[alg])}


def encode_pem(key: Any) -> str:
    return str(key.as_pem(private=False).decode())


@pytest.fixture
def trust(tmp_path: Path) -> str:
    """Return the file with the public key of the signer."""
    path = tmp_path / "trusted.pem"
    path.write_text(encode_pem(EDWARDS))
    return str(path)


# -- tokens


@pytest.mark.spec("AX-4.2-8", "AX-4.2-11")
@pytest.mark.filterwarnings("ignore:EdDSA is deprecated")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ["pem", "jwk", "jwks", "several"])
async def test_valid_token_proves_authority(tmp_path: Path, kind: str, form: str) -> None:
    alg, key = KINDS[kind]
    path = tmp_path / "keys"
    others = [one for _, one in KINDS.values()]
    path.write_text(
        {
            "pem": encode_pem(key),
            "jwk": json.dumps(key.as_dict(private=False)),
            "jwks": json.dumps(KeySet(others).as_dict(private=False)),
            "several": "# trusted\n" + "".join(map(encode_pem, others)),
        }[form]
    )

    # Relative to the folder of the config.
    async with open_hub(tmp_path, trust=["keys"], base_dir=tmp_path) as hub:
        child = hub.child(peer=ANYWHERE)
        child.tools = [tool("write", mutable=True)]
        child.registered(authority=A, authority_proof=proof(key, alg))
        assert hub.info().verified
        await run_pending_tasks()
        assert hub.listed == {"ax:edge": ["write"]}
        assert [one.verified for one in hub.store.list_claims()] == [True]


@pytest.mark.spec("AX-4.2-11", "AX-4.2-12")
@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"sub": "dns:a.example.com"}, ""),
        ({"sub": "A.Example.com."}, ""),
        ({"aud": [OTHER_PARENT, PARENT]}, ""),
        ({"iat": int(WALL_CLOCK_OFFSET) + 20, "nbf": int(WALL_CLOCK_OFFSET) - 5}, ""),
        ({"sub": "b.example.com"}, "`sub`"),
        ({"sub": "example.com"}, "`sub`"),
        ({"sub": None}, "`sub`"),
        ({"sub": 5}, "`sub`"),
        ({"aud": OTHER_PARENT}, "`aud`"),
        ({"aud": [OTHER_PARENT]}, "`aud`"),
        ({"aud": None}, "`aud`"),
        ({"aud": {"x": PARENT}}, "`aud`"),
        ({"exp": None}, "`exp`"),
        ({"exp": "soon"}, "`exp`"),
        ({"exp": True}, "`exp`"),
        ({"exp": int(WALL_CLOCK_OFFSET)}, "expired"),
        ({"exp": int(WALL_CLOCK_OFFSET) + 2 * 86_400}, "24 hours"),
        ({"nbf": int(WALL_CLOCK_OFFSET) + 100}, "`nbf`"),
        ({"iat": int(WALL_CLOCK_OFFSET) + 100}, "`iat`"),
        ({"nbf": "now"}, "`nbf`"),
    ],
    ids=str,
)
async def test_token_needs_required_claims(
    tmp_path: Path, trust: str, claims: dict[str, Any], why: str
) -> None:
    async with open_hub(tmp_path, trust=[trust]) as hub:
        child = hub.child()
        answer = child.register(authority=A, authority_proof=proof(**claims))
        if why:
            assert read_error(answer) == REJECTED
            assert why in answer["error"]["data"]["detail"]
            # It may try again on the same channel.
            child.registered(authority=A, authority_proof=proof())
        assert hub.info().verified


@pytest.mark.spec("AX-4.2-8")
async def test_rejects_invalid_proofs(tmp_path: Path, trust: str) -> None:
    good = proof()["token"]
    head, payload, signature = good.split(".")
    told = f"eyJhbGciOiJIUzI1NiJ9.{payload}"
    mac = hmac.digest(encode_pem(EDWARDS).encode(), told.encode(), "sha256")
    tokens = {
        "by somebody else": proof(OKPKey.generate_key("Ed25519"))["token"],
        "by a key of another kind": proof(KINDS["ES256"][1], "ES256")["token"],
        "with the public key as a secret": f"{told}.{urlsafe_b64encode(mac).decode().rstrip('=')}",
        "unsigned": f"eyJhbGciOiJub25lIn0.{payload}.",
        "without its signature": f"{head}.{payload}.",
        "changed": f"{head}.{payload[:-4]}AAAA.{signature}",
        "empty": "",
        "no token": "x",
        "no head": f"!!.{payload}.{signature}",
        "far too long": "x" * 20_000,
    }

    async with open_hub(tmp_path, trust=[trust]) as hub:
        child = hub.child()
        for what, token in tokens.items():
            given = {"type": "jwt", "token": token}
            assert read_error(child.register(authority=A, authority_proof=given)) == REJECTED, what
        other = {"type": "handshake", "token": good}
        assert read_error(child.register(authority=A, authority_proof=other)) == REJECTED
        assert read_error(child.register(authority_proof=proof())) == REJECTED
        # Nothing of the token is repeated.
        assert good not in json.dumps(child.heard)
        child.registered(authority=A, authority_proof=proof())


@pytest.mark.parametrize("content", [None, "", "{", "-----BEGIN PUBLIC KEY-----\nx", '{"kty":"?"}'])
async def test_rejects_unusable_key_file(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "keys"
    if content is not None:
        path.write_text(content)

    async with open_hub(tmp_path, trust=[str(path)]) as hub:
        answer = hub.child().register(authority=A, authority_proof=proof())
        assert read_error(answer) == REJECTED
        assert str(tmp_path) not in json.dumps(answer)


async def test_rejects_token_without_trusted_keys(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        answer = hub.child().register(authority=A, authority_proof=proof())
        assert read_error(answer) == REJECTED
        assert "subservers.trust" in answer["error"]["data"]["detail"]


async def test_names_missing_library(
    tmp_path: Path, trust: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = proof()
    monkeypatch.setitem(sys.modules, "joserfc", None)

    async with open_hub(tmp_path, trust=[trust]) as hub:
        answer = hub.child().register(authority=A, authority_proof=given)
        assert read_error(answer) == REJECTED
        assert "interlock[oauth]" in answer["error"]["data"]["detail"]
        # Who proves nothing needs no library.
        hub.child().registered(authority=A)


# -- certificates


@pytest.mark.spec("AX-4.2-8", "AX-4.2-11")
@pytest.mark.parametrize(
    ("names", "authority", "proven"),
    [
        (("a.example.com",), A, True),
        (("x.example.com", "A.EXAMPLE.COM"), A, True),
        (("a.example.com",), "dns:A.example.com.", True),
        (("*.example.com",), A, True),
        (("*.example.com",), "dns:b.a.example.com", False),
        (("*.example.com",), "dns:example.com", False),
        (("*.com",), "dns:example.com", False),
        (("*",), "dns:com", False),
        (("a*.example.com",), A, False),
        (("b.example.com",), A, False),
        (("a.example.com",), None, False),
        ((), A, False),
    ],
)
async def test_certificate_names_prove_authority(
    tmp_path: Path, names: tuple[str, ...], authority: str | None, proven: bool
) -> None:
    async with open_hub(tmp_path) as hub:
        hub.child(peer=ANYWHERE, names=names).registered(authority=authority)
        assert hub.info().verified is proven


# -- proven and unproven claims


@pytest.mark.spec("AX-4.2-10")
async def test_unproven_claim_does_not_replace_proven_claim(tmp_path: Path, trust: str) -> None:
    async with open_hub(tmp_path, trust=[trust]) as hub:
        child = hub.child().registered(1, "x", authority=A, authority_proof=proof())
        await run_pending_tasks()
        child.ask("mcpax/deregister", {"session_id": child.session_id})
        for authority in (A, B, None):
            assert read_error(hub.child().register(2, "x", authority=authority)) == REJECTED
        other = proof(sub="b.example.com")
        assert (
            read_error(hub.child().register(2, "x", authority=B, authority_proof=other)) == REJECTED
        )
        hub.child().registered(2, "x", authority=A, authority_proof=proof())


async def test_proven_claim_replaces_unproven_claim(tmp_path: Path, trust: str) -> None:
    async with open_hub(tmp_path, trust=[trust]) as hub:
        squatter = hub.child().registered(1, "x", authority=B)
        await run_pending_tasks()
        # Not while it is there: the first has it.
        given = {"authority": A, "authority_proof": proof()}
        assert read_error(hub.child().register(2, "x", **given))[0] == -31001
        squatter.ask("mcpax/deregister", {"session_id": squatter.session_id})
        hub.child().registered(2, "x", **given)
        await run_pending_tasks()
        assert [tuple(one)[:3] for one in hub.store.list_claims()] == [("x", A, True)]


async def test_proven_authority_takes_over_lost_segment(tmp_path: Path, trust: str) -> None:
    given = {"authority": A, "authority_proof": proof()}

    async with open_hub(tmp_path, trust=[trust]) as hub:
        old = hub.child().registered(1, "x", **given)
        await run_pending_tasks()
        assert read_error(hub.child().register(2, "x", **given))[0] == -31001
        old.end.close()
        assert read_error(hub.child().register(2, "x", authority=A))[0] == -31004
        heir = hub.child()
        heir.tools = [tool("new")]
        heir.registered(2, "x", **given)
        await run_pending_tasks()
        assert hub.listed == {"ax:x": ["new"]}


# -- what must be proven


def is_rejected(hub: RegistrarHub, child: ScriptedChild) -> bool:
    if child.open:
        return False
    assert child.session_end()["message"] == "authority_rejected"
    assert child.ours.closed_with == (4000, "authority_rejected")
    assert hub.listed == {}
    assert hub.supervisors == {}
    assert hub.registrar.subservers() == []
    return True


@pytest.mark.spec("AX-4.2-8", "AX-4.2-9", "AX-4.2-11")
@pytest.mark.parametrize(
    ("policy", "peer", "mutable", "accepted"),
    [
        ("remote", ANYWHERE, True, False),
        ("remote", ANYWHERE, None, False),
        ("remote", ANYWHERE, False, True),
        ("remote", "local", True, True),
        ("remote", "loopback", True, True),
        ("always", "local", True, False),
        ("always", "local", False, True),
        ("never", ANYWHERE, True, True),
    ],
)
async def test_mutable_tools_need_proof(
    tmp_path: Path, policy: str, peer: str, mutable: bool | None, accepted: bool
) -> None:
    async with open_hub(tmp_path, proof=policy) as hub:
        child = hub.child(peer=peer)
        child.tools = [tool("read"), tool("other", mutable=mutable)]
        child.registered(authority=A)
        await run_pending_tasks()
        assert is_rejected(hub, child) is not accepted
        if accepted:
            assert hub.listed == {"ax:edge": ["read", "other"]}
        else:
            assert "other" in child.session_end()["detail"]
            assert hub.store.list_claims() == []


@pytest.mark.spec("AX-4.2-11")
async def test_mutable_tools_added_later_need_proof(tmp_path: Path) -> None:
    async with open_hub(tmp_path) as hub:
        child = hub.child(peer=ANYWHERE).registered()
        await run_pending_tasks()
        assert hub.listed == {"ax:edge": ["read"]}
        child.tools = [tool("read"), tool("write", mutable=True)]
        child.say("notifications/tools/list_changed")
        await run_pending_tasks()
        assert is_rejected(hub, child)
        assert ("ax:edge", "degraded") not in hub.states


@pytest.mark.parametrize(
    ("said", "mutable"),
    [
        ({"annotations": {"readOnlyHint": True}}, False),
        ({"_meta": {"x-mcpax-capability": {"mutable": False}}}, False),
        ({"_meta": {"x-mcpax-capability": {"mutable": True}}}, True),
        ({"_meta": {"x-mcpax-capability": {}}}, True),
        ({"_meta": {"x-mcpax-capability": "no"}}, True),
        ({"_meta": {}}, True),
        ({}, True),
        ({"annotations": {"readOnlyHint": False}}, True),
        ({"annotations": {"readOnlyHint": "yes"}}, True),
        # Who contradicts itself is not believed.
        (
            {
                "annotations": {"readOnlyHint": True, "destructiveHint": True},
                "_meta": {"x-mcpax-capability": {"mutable": False}},
            },
            True,
        ),
        (
            {
                "annotations": {"readOnlyHint": True},
                "_meta": {"x-mcpax-capability": {"mutable": True}},
            },
            True,
        ),
    ],
    ids=str,
)
def test_find_mutable_tool(said: dict[str, Any], mutable: bool) -> None:
    raw = json.dumps({"name": "one", **said}).encode()
    assert (find_mutable_tool([raw]) is not None) is mutable  # type: ignore[list-item]


@pytest.mark.parametrize("sticky", [True, False])
@pytest.mark.parametrize("away", [True, False])
@pytest.mark.parametrize("segment", ["x", "y"])
async def test_segment_takeover_needs_proof(
    tmp_path: Path, trust: str, sticky: bool, away: bool, segment: str
) -> None:
    async with open_hub(tmp_path, trust=[trust], sticky=sticky) as hub:
        owner = hub.child().registered(1, "x", authority=A, authority_proof=proof())
        await run_pending_tasks()
        if away:
            owner.end.close()
        for authority in (A, None):
            answer = hub.child().register(1, segment, authority=authority)
            assert read_error(answer) == REJECTED
        assert owner.open is not away
        assert hub.info("x").verified
        hub.child().registered(1, segment, authority=A, authority_proof=proof())
