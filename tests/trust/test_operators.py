"""Operators of a node: enrolment, sign-in sessions, and the address of the page."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from joserfc.jwk import ECKey, OKPKey

from interlock.core.config import Config
from interlock.core.config.trust import ApprovalsConfig
from interlock.errors import PROOF_INVALID, UNAUTHENTICATED, InterlockError
from interlock.trust.approvals.proofs import PASSKEY, PREFIX, Anchors, Proofs
from interlock.trust.operators.operators import (
    CHALLENGE_SECONDS,
    SESSION_SECONDS,
    Operators,
    enrol_key,
    page_base,
    page_origins,
)
from interlock.trust.operators.store import Invitation, OperatorStore
from tests.support.clock import ManualClock
from tests.trust.approvals.authenticator import ORIGIN, SoftKey
from tests.trust.approvals_web.office import signed

NODE = "node-1"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def operators(tmp_path: Path, clock: ManualClock) -> Operators:
    store = OperatorStore(tmp_path / "operators.db")
    one = Operators(store, origins=lambda: (ORIGIN,), audience=lambda: NODE, clock=clock)
    anchors = Anchors(ApprovalsConfig(), environ={}, base_dir=tmp_path, enrolled=one.anchors)
    one.watch.anchors = anchors
    one.proofs = Proofs(anchors)
    one.proofs.refresh = one.watch.refresh
    one.proofs.register(PASSKEY, one.passkeys)
    return one


def enrol(operators: Operators, **more: Any) -> dict[str, str]:
    code = operators.store.invite(Invitation("chief", more.pop("tools", ())))
    return asyncio.run(operators.enrol(json.dumps({"code": code, **more}).encode()))


def key_and_jwk() -> tuple[Ed25519PrivateKey, dict[str, Any]]:
    key = Ed25519PrivateKey.generate()
    return key, OKPKey.import_key(key.public_key()).as_dict(private=False)


def sign_challenge(key: Ed25519PrivateKey, question: dict[str, str], **changes: Any) -> str:
    now = int(time.time())
    claims = {
        "aud": question["aud"],
        "jti": "inbox",
        "args_sha256": question["nonce"],
        "iat": now,
        "exp": now + 60,
        "decision": "approve",
        **changes,
    }
    return signed(key, claims)


def assert_sign_in_rejected(operators: Operators, nonce: str, proof: str) -> None:
    with pytest.raises(InterlockError) as error:
        asyncio.run(operators.sign_in(nonce, proof))
    assert error.value.failure is PROOF_INVALID


def test_enrols_browser_key(operators: Operators) -> None:
    key, jwk = key_and_jwk()
    assert enrol(operators, key=jwk) == {"name": "chief"}
    other = ECKey.import_key(generate_private_key(SECP256R1()).public_key())
    response = enrol(operators, key=other.as_dict(private=False))
    assert [operator.algorithm for operator in operators.store.all()] == ["EdDSA"]
    (pending,) = asyncio.run(operators.enrolments())["pending"]
    assert (pending["id"], pending["name"]) == (response["pending"], "chief")
    claims = {name: pending[name] for name in ("aud", "jti", "args_sha256")}
    proof = signed(key, {**claims, "decision": "approve"})
    assert asyncio.run(operators.admit_enrolment(pending["id"], pending["entry"], proof)) == "chief"
    assert [(operator.kind, operator.algorithm) for operator in operators.store.all()] == [
        ("key", "EdDSA"),
        ("key", "ES256"),
    ]
    assert [anchor.algorithms for anchor in operators.anchors()] == [
        ("EdDSA", "Ed25519"),
        ("ES256",),
    ]


@pytest.mark.parametrize(
    "key",
    [
        {},
        {"kty": "oct", "k": "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0"},
        {"kty": "RSA", "n": "AQAB", "e": "AQAB"},
        {"kty": "OKP", "crv": "X25519", "x": "A" * 43},
        {"kty": "OKP", "crv": "Ed25519", "x": "AAAA"},
        {"kty": "OKP", "crv": "Ed25519", "x": 1},
        {"kty": ["OKP"]},
    ],
)
def test_rejects_invalid_key(operators: Operators, key: dict[str, Any]) -> None:
    code = operators.store.invite(Invitation("chief"))
    with pytest.raises(InterlockError):
        asyncio.run(operators.enrol(json.dumps({"code": code, "key": key}).encode()))
    assert operators.store.all() == []
    # And the code is as good as before.
    assert operators.store.find_invitation(code) is not None


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"code":1}', b"[" * 5000, b'{"x":"\xff"}'])
def test_rejects_malformed_enrolment(operators: Operators, body: bytes) -> None:
    with pytest.raises(InterlockError):
        asyncio.run(operators.enrol(body))


def test_enrols_passkey_with_limits(operators: Operators) -> None:
    code = operators.store.invite(Invitation("bea", ("shop.*",), "bot"))
    soft = SoftKey()
    made = soft.created(code)
    sent = {"code": code, "passkey": {name: getattr(made, name) for name in made.__struct_fields__}}
    assert asyncio.run(operators.enrol(json.dumps({"code": code}).encode())) == {"name": "bea"}
    assert asyncio.run(operators.enrol(json.dumps(sent).encode())) == {"name": "bea"}
    (anchor,) = operators.anchors()
    assert (anchor.name, anchor.kind, anchor.tools, anchor.caller) == (
        "bea",
        PASSKEY,
        ("shop.*",),
        "bot",
    )
    # It signs nothing in the way of a key.
    assert anchor.algorithms == ()


def test_passkey_confirms_enrolment_once_on_its_page(operators: Operators) -> None:
    soft = SoftKey(counter=1)
    code = operators.store.invite(Invitation("bea"))
    made = soft.created(code)
    sent = {name: getattr(made, name) for name in made.__struct_fields__}
    asyncio.run(operators.enrol(json.dumps({"code": code, "passkey": sent}).encode()))
    response = enrol(operators, key=key_and_jwk()[1])
    (pending,) = asyncio.run(operators.enrolments())["pending"]

    def admit(proof: str) -> str:
        return asyncio.run(operators.admit_enrolment(response["pending"], pending["entry"], proof))

    soft.origin = "https://evil.example"
    soft_elsewhere = soft.proof(pending["aud"], pending["jti"], pending["args_sha256"])
    soft.origin = ORIGIN
    for proof in (soft_elsewhere, soft.proof(NODE, pending["jti"], pending["args_sha256"])):
        with pytest.raises(InterlockError) as error:
            admit(proof)
        assert error.value.failure is PROOF_INVALID
    assert admit(soft.proof(pending["aud"], pending["jti"], pending["args_sha256"])) == "chief"
    assert [operator.name for operator in operators.watch.enrolled] == ["bea", "chief"]
    assert operators.watch.enrolled[0].counter == soft.counter


def test_recovery_is_announced_and_takes_effect_after_delay(
    operators: Operators, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    enrol(operators, key=key_and_jwk()[1])
    (tmp_path / "seal.key").write_bytes(b"s" * 32)
    watch = operators.watch
    now = [5_000.0]
    operators.store._clock = watch._now = lambda: now[0]
    recorded: list[tuple[str, ...]] = []
    watch.on_change = lambda *words: recorded.append(words)
    watch._is_started = True
    watch.recovery_delay = 100.0
    one = enrol_key(key_and_jwk()[1], Invitation("dora"))
    rejected = operators.store.add_pending(
        enrol_key(key_and_jwk()[1], Invitation("eve")), recovery=True
    )
    pending = operators.store.add_pending(one, recovery=True)
    asyncio.run(operators.refresh())
    asyncio.run(operators.reject_enrolment(rejected.id))
    assert ("dora (key)", "recovery requested", f"enrolment:{pending.id}") in recorded
    assert "recovery requested" in caplog.text
    (notice,) = watch.notices()
    assert pending.id in notice
    (shown,) = asyncio.run(operators.enrolments())["pending"]
    assert (shown["recovery"], shown["ends"]) == (True, 5_100.0)
    now[0] += 99.0
    asyncio.run(operators.refresh())
    assert [operator.name for operator in watch.enrolled] == ["chief"]
    now[0] += 1.0
    asyncio.run(operators.refresh())
    assert [operator.name for operator in watch.enrolled] == ["chief", "dora"]
    assert (watch.pending, watch.notices(), watch.warning) == ((), [], "")
    assert ("dora (key)", "enrolled") in [words[:2] for words in recorded]


def test_sign_in_session_expires(operators: Operators, clock: ManualClock) -> None:
    key, jwk = key_and_jwk()
    enrol(operators, key=jwk)
    question = operators.new_challenge()
    session = asyncio.run(operators.sign_in(question["nonce"], sign_challenge(key, question)))
    assert operators.session_operator(session) == "chief"
    clock.now += SESSION_SECONDS
    with pytest.raises(InterlockError) as error:
        operators.session_operator(session)
    assert error.value.failure is UNAUTHENTICATED


def test_challenge_is_single_use_and_expires(operators: Operators, clock: ManualClock) -> None:
    key, jwk = key_and_jwk()
    enrol(operators, key=jwk)
    question = operators.new_challenge()
    proof = sign_challenge(key, question)
    assert_sign_in_rejected(operators, "another", proof)
    asyncio.run(operators.sign_in(question["nonce"], proof))
    assert_sign_in_rejected(operators, question["nonce"], proof)
    for changes in (
        {"aud": "node-2"},
        {"jti": "an-approval"},
        {"args_sha256": "0"},
        {"decision": "refuse"},
    ):
        question = operators.new_challenge()
        assert_sign_in_rejected(
            operators, question["nonce"], sign_challenge(key, question, **changes)
        )
    question = operators.new_challenge()
    assert_sign_in_rejected(
        operators, question["nonce"], sign_challenge(Ed25519PrivateKey.generate(), question)
    )
    question = operators.new_challenge()
    clock.now += CHALLENGE_SECONDS
    assert_sign_in_rejected(operators, question["nonce"], sign_challenge(key, question))


def test_passkey_signs_in(operators: Operators) -> None:
    soft = SoftKey()
    code = operators.store.invite(Invitation("bea"))
    made = soft.created(code)
    sent = {name: getattr(made, name) for name in made.__struct_fields__}
    asyncio.run(operators.enrol(json.dumps({"code": code, "passkey": sent}).encode()))
    question = operators.new_challenge()
    proof = soft.proof(NODE, "inbox", question["nonce"])
    assert proof.startswith(PREFIX)
    assert (
        operators.session_operator(asyncio.run(operators.sign_in(question["nonce"], proof)))
        == "bea"
    )


def test_limited_operator_cannot_list_all_approvals(operators: Operators) -> None:
    key, jwk = key_and_jwk()
    enrol(operators, key=jwk, tools=("shop.*",))
    question = operators.new_challenge()
    assert_sign_in_rejected(operators, question["nonce"], sign_challenge(key, question))


@pytest.mark.parametrize(
    ("configured", "listens", "base", "origins"),
    [
        (None, None, None, ()),
        (None, "http://127.0.0.1:8420/mcp", "http://localhost:8420/approvals",
         ("http://localhost:8420",)),
        (None, "http://[::1]:8420/mcp", "http://localhost:8420/approvals",
         ("http://localhost:8420",)),
        (None, "https://node.example:8420/mcp", "https://node.example:8420/approvals",
         ("https://node.example:8420",)),
        (None, "http://0.0.0.0:8420/mcp", None, ("http://localhost:8420",)),
        (None, "https://[::]:8420/mcp", None, ("https://localhost:8420",)),
        ("https://a.example", "http://127.0.0.1:1/mcp", "https://a.example/approvals",
         ("https://a.example", "http://localhost:1")),
        ("https://A.example:8/x/", "http://10.0.0.1:1/mcp", "https://A.example:8/x/approvals",
         ("https://a.example:8",)),
        ("https://a.example/approvals/", None, "https://a.example/approvals",
         ("https://a.example",)),
    ],
)  # fmt: skip
def test_page_base_and_origins_follow_config(
    configured: str | None, listens: str | None, base: str | None, origins: tuple[str, ...]
) -> None:
    config = Config(approvals=ApprovalsConfig(url=configured))
    assert page_base(config, listens) == base
    assert page_origins(config, listens) == origins
