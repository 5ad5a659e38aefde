"""Valid proofs, and everything that is rejected."""

from __future__ import annotations

import hmac
import json
from base64 import urlsafe_b64encode
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st
from joserfc.jwk import ECKey, OKPKey

from interlock.core.call import Caller, Client
from interlock.core.config.trust import AnchorConfig, ApprovalsConfig, RuleConfig
from interlock.errors import CONFIG, FORBIDDEN, PROOF_INVALID, InterlockError
from interlock.protocol.mcp import Era
from interlock.trust.approvals.proofs import (
    PASSKEY,
    Anchor,
    Anchors,
    Proofs,
    ProofVerdict,
    check_has_anchors,
    read_public_key,
)
from interlock.trust.approvals.record import Approval
from tests.trust.approvals.gated import NODE, NOW, SECRET, Gated, Keys, claims_for, sign, wipe


def approval(**changes: Any) -> Approval:
    arguments: dict[str, Any] = {
        "id": "an-approval-of-a-test",
        "audience": NODE,
        "nonce": "a nonce",
        "caller": Caller("model"),
        "client": Client(Era.SESSION, "2025-11-25"),
        "face": "http",
        "name": "s.wipe",
        "tool": "s.wipe",
        "upstream": "s",
        "route": ("s", "wipe"),
        "arguments": b"{}",
        "shown": b"{}",
        "capability": b"{}",
        "effect": "irreversible",
        "description": "",
        "digest": "d" * 64,
        "contract": "c" * 64,
        "policy": "p",
        "rule": "default:safe",
        "action": "confirm",
        "reason": "",
        "created": NOW,
        "expires": NOW + 300,
        **changes,
    }
    return Approval(**arguments)


class ProofHarness:
    """A node's proofs, with all kinds of anchors."""

    def __init__(self, folder: Path) -> None:
        self.keys = Keys(folder)
        config = ApprovalsConfig(anchors=self.keys.anchors())
        self.anchors = Anchors(config, environ={"DESK": SECRET}, base_dir=folder)
        self.proofs = Proofs(self.anchors)

    def check(self, proof: str, about: Approval | None = None) -> ProofVerdict:
        return self.proofs.check(about or approval(), proof, NOW)

    def refused(self, proof: Any, about: Approval | None = None) -> InterlockError:
        with pytest.raises(InterlockError) as error:
            self.check(proof, about)
        return error.value


def claims(**changes: Any) -> dict[str, Any]:
    return claims_for(approval(), NOW, **changes)


def _part(value: Any) -> str:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return urlsafe_b64encode(raw).decode().rstrip("=")


@pytest.mark.spec("AX-11.3-5", "AX-11.3-6")
def test_accepts_all_proof_kinds(tmp_path: Path) -> None:
    harness = ProofHarness(tmp_path)
    keys = harness.keys
    by_operator = harness.check(sign(keys.operator, claims(reason="fine")))
    assert by_operator == ProofVerdict("clerk", "operator", "approve", "fine")
    by_engine = harness.check(sign(keys.engine, claims(nonce="a nonce"), "ES256"))
    assert by_engine == ProofVerdict("engine", "policy_engine", "approve")
    by_service = harness.check(sign(keys.service, claims(token_id="t-1"), "HS256"))
    assert by_service == ProofVerdict("desk", "service", "approve", "", "t-1")
    assert harness.check(sign(keys.operator, claims(), "Ed25519")).anchor == "clerk"
    assert harness.check(sign(keys.operator, claims(decision="refuse"))).decision == "refuse"
    assert harness.check(sign(keys.operator, claims(aud=[NODE]), kid="clerk")).anchor == "clerk"
    assert harness.check(sign(keys.operator, claims(), kid="engine")).anchor == "clerk"


@pytest.mark.spec("AX-11.3-6", "AX-11.3-13")
@pytest.mark.parametrize(
    "changes",
    [
        {"aud": "another-node"},
        {"aud": ...},
        {"aud": [NODE, "another-node"]},
        {"jti": "another-approval"},
        {"jti": ...},
        {"args_sha256": "e" * 64},
        {"args_sha256": ...},
        {"exp": ...},
        {"exp": NOW},
        {"exp": NOW - 1},
        {"exp": NOW + 3600},
        {"exp": "tomorrow"},
        {"exp": True},
        {"iat": ...},
        {"iat": NOW + 3600},
        {"iat": NOW - 3600},
        {"nbf": NOW + 3600},
        {"nbf": "soon"},
        {"decision": ...},
        {"decision": "yes"},
        {"decision": True},
        {"decision": ["approve"]},
    ],
    ids=str,
)
def test_rejects_wrong_claims(tmp_path: Path, changes: dict[str, Any]) -> None:
    harness = ProofHarness(tmp_path)
    assert harness.refused(sign(harness.keys.operator, claims(**changes))).failure is PROOF_INVALID


def test_rejects_wrong_claims_of_engines_and_services(tmp_path: Path) -> None:
    harness = ProofHarness(tmp_path)
    engine, service = harness.keys.engine, harness.keys.service
    wrong: dict[str, Any]
    for wrong in ({}, {"nonce": "another"}, {"nonce": None}):
        assert harness.refused(sign(engine, claims(**wrong), "ES256")).failure is PROOF_INVALID
    for wrong in ({}, {"token_id": ""}, {"token_id": 1}, {"token_id": "x" * 201}):
        assert harness.refused(sign(service, claims(**wrong), "HS256")).failure is PROOF_INVALID


def hs_with(secret: Callable[[Keys], bytes]) -> Callable[[Keys], str]:
    def forge(keys: Keys) -> str:
        body = f"{_part({'alg': 'HS256'})}.{_part(claims(token_id='t'))}"
        mac = hmac.new(secret(keys), body.encode(), sha256).digest()
        return f"{body}.{_part(mac)}"

    return forge


def _raw_public(keys: Keys) -> bytes:
    return bytes(keys.operator.public_key.public_bytes(Encoding.Raw, PublicFormat.Raw))


FORGERIES: dict[str, Callable[[Keys], Any]] = {
    "nothing": lambda _: "",
    "no text": lambda _: None,
    "the id": lambda _: approval().id,
    "the nonce": lambda _: approval().nonce,
    "the digest": lambda _: approval().digest,
    "what was answered": lambda _: json.dumps(claims()),
    "a stranger's key": lambda keys: sign(keys.stranger, claims()),
    "a stranger who says who he is": lambda keys: sign(keys.stranger, claims(), kid="clerk"),
    "none": lambda _: f"{_part({'alg': 'none'})}.{_part(claims())}.",
    "none with a signature": lambda _: f"{_part({'alg': 'none'})}.{_part(claims())}.{_part(b'x')}",
    "None": lambda _: f"{_part({'alg': 'None'})}.{_part(claims())}.{_part(b'x')}",
    "no alg": lambda _: f"{_part({})}.{_part(claims())}.{_part(b'x')}",
    "alg is a list": lambda _: f"{_part({'alg': ['EdDSA']})}.{_part(claims())}.{_part(b'x')}",
    "HS256 with the public PEM": hs_with(lambda keys: bytes(keys.operator.as_pem(private=False))),
    "HS256 with the raw public key": hs_with(_raw_public),
    "HS256 with nothing": hs_with(lambda _: b""),
    "ES256 said of an Ed25519 key": lambda keys: (
        f"{_part({'alg': 'ES256'})}.{sign(keys.operator, claims()).split('.', 1)[1]}"
    ),
    "crit": lambda keys: (
        f"{_part({'alg': 'EdDSA', 'crit': ['exp'], 'exp': 1})}"
        f".{sign(keys.operator, claims()).split('.', 1)[1]}"
    ),
    "a key of its own in the header": lambda keys: sign(
        keys.stranger, claims(), jwk=keys.stranger.as_dict(private=False)
    ),
    "another payload": lambda keys: ".".join(
        [
            (parts := sign(keys.operator, claims(decision="refuse")).split("."))[0],
            _part(claims()),
            parts[2],
        ]
    ),
    "another header": lambda keys: (
        f"{_part({'alg': 'EdDSA', 'kid': 'x'})}.{sign(keys.operator, claims()).split('.', 1)[1]}"
    ),
    "a signature cut short": lambda keys: sign(keys.operator, claims())[:-4],
    "something behind it": lambda keys: sign(keys.operator, claims()) + ".x",
    "claims are a list": lambda keys: sign(keys.operator, [claims()]),  # type: ignore[arg-type]
    "a kind that nobody knows": lambda _: "passkey:whatever",
    "too long": lambda keys: sign(keys.operator, claims(reason="x" * 20_000)),
}


@pytest.mark.spec("AX-11.3-4", "AX-11.3-6", "AX-11.3-7")
@pytest.mark.parametrize("forgery", FORGERIES)
def test_rejects_forged_proofs(tmp_path: Path, forgery: str) -> None:
    harness = ProofHarness(tmp_path)
    assert harness.refused(FORGERIES[forgery](harness.keys)).failure is PROOF_INVALID


@given(st.text(max_size=300))
def test_rejects_arbitrary_text_as_proof(text: str) -> None:
    operator = OKPKey.generate_key("Ed25519")
    proofs = Proofs(_with(Anchor("clerk", key=operator, algorithms=("EdDSA",))))
    with pytest.raises(InterlockError) as error:
        proofs.check(approval(), text, NOW)
    assert error.value.failure is PROOF_INVALID


@given(st.data())
def test_rejects_proof_with_any_changed_byte(data: st.DataObject) -> None:
    operator = OKPKey.generate_key("Ed25519")
    proofs = Proofs(_with(Anchor("clerk", key=operator, algorithms=("EdDSA",))))
    proof = sign(operator, claims())
    at = data.draw(st.integers(0, len(proof) - 1))
    letter = data.draw(st.sampled_from("ABCxyz019-_.=+/ \n"))
    changed = proof[:at] + letter + proof[at + 1 :]
    if changed == proof or at == len(proof) - 1:
        # The last letter of base64 has bits that mean nothing.
        return
    with pytest.raises(InterlockError) as error:
        proofs.check(approval(), changed, NOW)
    assert error.value.failure is PROOF_INVALID


def _with(*anchors: Anchor) -> Anchors:
    return Anchors(ApprovalsConfig(), environ={}, base_dir=Path(), enrolled=lambda: anchors)


@pytest.mark.spec("AQ-8.7.3-5", "AX-11.3-7")
def test_caller_cannot_approve_its_own_call(tmp_path: Path) -> None:
    harness = ProofHarness(tmp_path)
    by_clerk = sign(harness.keys.operator, claims())
    for caller in (Caller("clerk"), Caller("parent", kind="parent", parent_caller="clerk")):
        assert harness.refused(by_clerk, approval(caller=caller)).failure is FORBIDDEN
    assert harness.check(by_clerk, approval(caller=Caller("bot"))).anchor == "clerk"


@pytest.mark.spec("AQ-8.7.3-5")
def test_anchor_bound_to_caller_cannot_approve_its_calls(tmp_path: Path) -> None:
    bot = OKPKey.generate_key("Ed25519")
    proofs = Proofs(_with(Anchor("bot's key", key=bot, algorithms=("EdDSA",), caller="bot")))
    proof = sign(bot, claims())
    assert proofs.check(approval(), proof, NOW).anchor == "bot's key"
    with pytest.raises(InterlockError) as error:
        proofs.check(approval(caller=Caller("bot")), proof, NOW)
    assert error.value.failure is FORBIDDEN


def test_verify_requires_proof_of_human(tmp_path: Path) -> None:
    harness = ProofHarness(tmp_path)
    keys, verify = harness.keys, approval(action="verify")
    assert harness.check(sign(keys.operator, claims()), verify).kind == "operator"
    engine = sign(keys.engine, claims(nonce="a nonce"), "ES256")
    service = sign(keys.service, claims(token_id="t"), "HS256")
    assert harness.refused(engine, verify).failure is PROOF_INVALID
    assert harness.refused(service, verify).failure is PROOF_INVALID
    harness.proofs.register(PASSKEY, lambda *_: ProofVerdict("phone", PASSKEY, "approve"))
    assert harness.check("passkey:x", verify).anchor == "phone"


def test_passkey_proofs_follow_same_rules(tmp_path: Path) -> None:
    harness = ProofHarness(tmp_path)
    messages = []

    def check(about: Approval, rest: str, now: float) -> ProofVerdict:
        messages.append((about.id, rest, now))
        return ProofVerdict("model", PASSKEY, "approve")

    harness.proofs.register(PASSKEY, check)
    assert harness.refused("passkey:a:b").failure is FORBIDDEN
    assert messages == [(approval().id, "a:b", NOW)]
    harness.proofs.register(PASSKEY, lambda *_: ProofVerdict("phone", PASSKEY, "perhaps"))
    assert harness.refused("passkey:x").failure is PROOF_INVALID


def test_anchor_approves_only_its_tools(tmp_path: Path) -> None:
    key = OKPKey.generate_key("Ed25519")
    some = Anchor("clerk", key=key, algorithms=("EdDSA",), tools=("s.*", "x.y"))
    proofs = Proofs(_with(some, Anchor("clerk", key=key, algorithms=("EdDSA",))))
    assert proofs.check(approval(), sign(key, claims()), NOW).anchor == "clerk"
    with pytest.raises(InterlockError) as error:
        proofs.check(approval(tool="t.wipe"), sign(key, claims()), NOW)
    assert error.value.failure is PROOF_INVALID


async def test_one_time_token_is_single_use_across_restart(tmp_path: Path) -> None:
    gated = Gated(tmp_path)

    def token(about: Approval, id: str, **more: Any) -> str:
        return sign(gated.keys.service, claims_for(about, gated.wall, token_id=id, **more), "HS256")

    first = await gated.hold()
    await gated.confirm(first, token(first, "t-1"))
    second = await gated.hold(wipe({"disk": "b"}))
    with pytest.raises(InterlockError) as error:
        await gated.approvals.confirm(second.id, token(second, "t-1"))
    assert error.value.failure is PROOF_INVALID
    with pytest.raises(InterlockError) as error:
        await gated.approvals.reject(second.id, proof=token(second, "t-1", decision="refuse"))
    assert error.value.failure is PROOF_INVALID
    gated.close()
    # Also after a restart.
    again = Gated(tmp_path, keys=gated.keys)
    record = again.approvals.find(second.id)
    assert record is not None
    with pytest.raises(InterlockError) as error:
        await again.approvals.confirm(second.id, token(record, "t-1"))
    assert error.value.failure is PROOF_INVALID
    await again.confirm(record, token(record, "t-2"))
    again.close()


async def test_verify_rule_requires_human_proof(tmp_path: Path) -> None:
    rule = RuleConfig("two eyes", "verify", tools=["s.wipe"], reason="it is production")
    gated = Gated(tmp_path, rules=[rule])
    answer = await gated.ask()
    assert "it is production" in answer["content"][0]["text"]
    approval = gated.approvals.pending()[0]
    assert (approval.action, approval.rule) == ("verify", "two eyes")
    service = sign(gated.keys.service, claims_for(approval, gated.wall, token_id="t"), "HS256")
    with pytest.raises(InterlockError):
        await gated.approvals.confirm(approval.id, service)
    await gated.confirm(approval)
    gated.close()


# -- anchors


@pytest.mark.spec("AX-11.3-6")
def test_rejects_config_without_trust_anchors() -> None:
    nobody = ApprovalsConfig(enrolled=False)
    with pytest.raises(InterlockError) as error:
        check_has_anchors(nobody, gates=True)
    assert error.value.failure is CONFIG
    check_has_anchors(nobody, gates=False)
    check_has_anchors(ApprovalsConfig(), gates=True)


@pytest.mark.parametrize(
    ("anchor", "reason"),
    [
        (AnchorConfig("x"), "needs a `key`"),
        (AnchorConfig("x", key="nowhere.pem"), "cannot be read"),
        (AnchorConfig("x", key="p384.pem"), "Ed25519 or P-256"),
        (AnchorConfig("x", key="noise.pem"), "Ed25519 or P-256"),
        (AnchorConfig("x", key="noise.json"), "JWK"),
        (AnchorConfig("x", secret="${env:S}"), "only a service"),
        (AnchorConfig("x", kind="service", secret="short"), "fewer than 32"),
        (AnchorConfig("x", kind="service", secret="${env:S}", key="p384.pem"), "not both"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_rejects_bad_anchor_config(tmp_path: Path, anchor: AnchorConfig, reason: str) -> None:
    (tmp_path / "p384.pem").write_bytes(ECKey.generate_key("P-384").as_pem(private=False))
    (tmp_path / "noise.pem").write_bytes(b"-----BEGIN PUBLIC KEY-----\nAAAA\n")
    (tmp_path / "noise.json").write_bytes(b"{")
    with pytest.raises(InterlockError) as error:
        Anchors(ApprovalsConfig(anchors=[anchor]), environ={"S": SECRET}, base_dir=tmp_path)
    assert error.value.failure is CONFIG
    assert reason in error.value.message
    assert SECRET not in error.value.message


def test_loads_only_public_part_of_keys() -> None:
    privates: list[Any] = [OKPKey.generate_key("Ed25519"), ECKey.generate_key("P-256")]
    for private in privates:
        for form in (
            private.as_pem(private=False),
            json.dumps(private.as_dict(private=False)),
            private.as_dict(private=True),
        ):
            key, _ = read_public_key(form, "x")
            assert key.is_private is False


def test_anchors_reload_while_running(tmp_path: Path) -> None:
    keys = Keys(tmp_path)
    enrolled: list[Anchor] = []
    anchors = Anchors(
        ApprovalsConfig(anchors=keys.anchors()),
        environ={"DESK": SECRET},
        base_dir=tmp_path,
        enrolled=lambda: enrolled,
    )
    assert len(anchors) == 3
    enrolled.append(Anchor("bea"))
    anchors.reload()
    assert [anchor.name for anchor in anchors] == ["clerk", "engine", "desk", "bea"]
    with pytest.raises(InterlockError):
        anchors.configure(ApprovalsConfig(anchors=[AnchorConfig("x", key="nowhere")]))
    with pytest.raises(InterlockError):
        anchors.configure(ApprovalsConfig(anchors=keys.anchors() * 2))
    assert len(anchors) == 4
    anchors.configure(ApprovalsConfig(enrolled=False))
    assert list(anchors) == []
