"""Operators of a node: how they enrol, for how long they may look, and where their page is."""

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


def answer(key: Ed25519PrivateKey, question: dict[str, str], **changes: Any) -> str:
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


def refused(operators: Operators, nonce: str, proof: str) -> None:
    with pytest.raises(InterlockError) as caught:
        asyncio.run(operators.sign_in(nonce, proof))
    assert caught.value.failure is PROOF_INVALID


def test_a_key_of_a_browser(operators: Operators) -> None:
    key, jwk = key_and_jwk()
    assert enrol(operators, key=jwk) == {"name": "chief"}
    other = ECKey.import_key(generate_private_key(SECP256R1()).public_key())
    told = enrol(operators, key=other.as_dict(private=False))
    assert [one.algorithm for one in operators.store.all()] == ["EdDSA"]
    (pending,) = asyncio.run(operators.enrolments())["pending"]
    assert (pending["id"], pending["name"]) == (told["pending"], "chief")
    claims = {name: pending[name] for name in ("aud", "jti", "args_sha256")}
    proof = signed(key, {**claims, "decision": "approve"})
    assert asyncio.run(operators.admit_enrolment(pending["id"], pending["entry"], proof)) == "chief"
    assert [(one.kind, one.algorithm) for one in operators.store.all()] == [
        ("key", "EdDSA"),
        ("key", "ES256"),
    ]
    assert [one.algorithms for one in operators.anchors()] == [("EdDSA", "Ed25519"), ("ES256",)]


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
def test_what_is_no_key_is_not_enrolled(operators: Operators, key: dict[str, Any]) -> None:
    code = operators.store.invite(Invitation("chief"))
    with pytest.raises(InterlockError):
        asyncio.run(operators.enrol(json.dumps({"code": code, "key": key}).encode()))
    assert operators.store.all() == []
    # And the code is as good as before.
    assert operators.store.find_invitation(code) is not None


@pytest.mark.parametrize("asked", [b"", b"[]", b"{}", b'{"code":1}', b"[" * 5000, b'{"x":"\xff"}'])
def test_what_cannot_be_read(operators: Operators, asked: bytes) -> None:
    with pytest.raises(InterlockError):
        asyncio.run(operators.enrol(asked))


def test_a_passkey_and_its_limits(operators: Operators) -> None:
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


def test_a_passkey_confirms_an_enrolment_once_and_on_its_own_page(operators: Operators) -> None:
    soft = SoftKey(counter=1)
    code = operators.store.invite(Invitation("bea"))
    made = soft.created(code)
    sent = {name: getattr(made, name) for name in made.__struct_fields__}
    asyncio.run(operators.enrol(json.dumps({"code": code, "passkey": sent}).encode()))
    told = enrol(operators, key=key_and_jwk()[1])
    (pending,) = asyncio.run(operators.enrolments())["pending"]

    def admit(proof: str) -> str:
        return asyncio.run(operators.admit_enrolment(told["pending"], pending["entry"], proof))

    soft.origin = "https://evil.example"
    soft_elsewhere = soft.proof(pending["aud"], pending["jti"], pending["args_sha256"])
    soft.origin = ORIGIN
    for proof in (soft_elsewhere, soft.proof(NODE, pending["jti"], pending["args_sha256"])):
        with pytest.raises(InterlockError) as caught:
            admit(proof)
        assert caught.value.failure is PROOF_INVALID
    assert admit(soft.proof(pending["aud"], pending["jti"], pending["args_sha256"])) == "chief"
    assert [one.name for one in operators.watch.enrolled] == ["bea", "chief"]
    assert operators.watch.enrolled[0].counter == soft.counter


def test_a_recovery_is_told_to_all_and_counts_after_its_delay(
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
    refused = operators.store.add_pending(
        enrol_key(key_and_jwk()[1], Invitation("eve")), recovery=True
    )
    asked = operators.store.add_pending(one, recovery=True)
    asyncio.run(operators.refresh())
    asyncio.run(operators.reject_enrolment(refused.id))
    assert ("dora (key)", "recovery requested", f"enrolment:{asked.id}") in recorded
    assert "recovery requested" in caplog.text
    (notice,) = watch.notices()
    assert asked.id in notice
    (shown,) = asyncio.run(operators.enrolments())["pending"]
    assert (shown["recovery"], shown["ends"]) == (True, 5_100.0)
    now[0] += 99.0
    asyncio.run(operators.refresh())
    assert [one.name for one in watch.enrolled] == ["chief"]
    now[0] += 1.0
    asyncio.run(operators.refresh())
    assert [one.name for one in watch.enrolled] == ["chief", "dora"]
    assert (watch.pending, watch.notices(), watch.warning) == ((), [], "")
    assert ("dora (key)", "enrolled") in [words[:2] for words in recorded]


def test_looking_takes_an_answer_and_lasts_a_while(
    operators: Operators, clock: ManualClock
) -> None:
    key, jwk = key_and_jwk()
    enrol(operators, key=jwk)
    question = operators.new_challenge()
    session = asyncio.run(operators.sign_in(question["nonce"], answer(key, question)))
    assert operators.session_operator(session) == "chief"
    clock.now += SESSION_SECONDS
    with pytest.raises(InterlockError) as caught:
        operators.session_operator(session)
    assert caught.value.failure is UNAUTHENTICATED


def test_an_answer_is_good_once_soon_and_for_this_node(
    operators: Operators, clock: ManualClock
) -> None:
    key, jwk = key_and_jwk()
    enrol(operators, key=jwk)
    question = operators.new_challenge()
    proof = answer(key, question)
    refused(operators, "another", proof)
    asyncio.run(operators.sign_in(question["nonce"], proof))
    refused(operators, question["nonce"], proof)
    for changes in (
        {"aud": "node-2"},
        {"jti": "an-approval"},
        {"args_sha256": "0"},
        {"decision": "refuse"},
    ):
        question = operators.new_challenge()
        refused(operators, question["nonce"], answer(key, question, **changes))
    question = operators.new_challenge()
    refused(operators, question["nonce"], answer(Ed25519PrivateKey.generate(), question))
    question = operators.new_challenge()
    clock.now += CHALLENGE_SECONDS
    refused(operators, question["nonce"], answer(key, question))


def test_a_passkey_looks_too(operators: Operators) -> None:
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


def test_who_may_confirm_some_tools_only_does_not_see_all(operators: Operators) -> None:
    key, jwk = key_and_jwk()
    enrol(operators, key=jwk, tools=("shop.*",))
    question = operators.new_challenge()
    refused(operators, question["nonce"], answer(key, question))


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
def test_where_the_page_is(
    configured: str | None, listens: str | None, base: str | None, origins: tuple[str, ...]
) -> None:
    config = Config(approvals=ApprovalsConfig(url=configured))
    assert page_base(config, listens) == base
    assert page_origins(config, listens) == origins
