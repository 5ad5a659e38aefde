"""Changes of operators apply at once to every kind of proof, and a slow disk does not block the
node."""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from interlock.core.config.trust import AnchorConfig, ApprovalsConfig
from interlock.trust.operators.operators import enrol_key
from interlock.trust.operators.store import Invitation, OperatorStore
from tests.support.http_client import HttpResponse
from tests.support.timeouts import HANG_TIMEOUT
from tests.trust.approvals_web.office import Office, session_of, signed


def public(key: Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def over_mcp(office: Office, told: dict[str, Any], proof: str) -> HttpResponse:
    params = {"confirmation_id": told["confirmation_id"], "proof": proof}
    return office.once(office.stateless("mcpax/confirm", params))


@pytest.mark.spec("ST-4.8.4-6")
def test_rejects_removed_key_over_mcp(office: Office) -> None:
    first, told = office.held(table="a"), office.held(table="b")
    assert office.decide(first, office.proof(first)).json["state"] == "done"
    # Another process, as `interlock keys remove` is.
    office.remove("chief")
    answer = over_mcp(office, told, office.proof(told))
    assert answer.status == 403
    assert json.loads(answer.body)["error"]["data"]["error"] == "proof_invalid"
    assert office.dropped() == [{"table": "a"}]


def test_accepts_new_key_at_once_over_mcp(office: Office) -> None:
    pending = office.held()
    bea = Ed25519PrivateKey.generate()
    chief, office.chief = office.chief, bea
    assert over_mcp(office, pending, office.proof(pending)).status == 403
    OperatorStore(office.approving.operators.store.path).add(
        enrol_key(public(bea), Invitation("bea")), lambda draft: signed(chief, draft.claims)
    )
    assert over_mcp(office, pending, office.proof(pending)).status == 200
    assert office.dropped() == [{"table": "orders"}]


def test_notices_operator_changes_without_decision(office: Office) -> None:
    anchors = office.approving.anchors
    office.until(lambda: anchors.find("chief"), "chief is known")
    office.remove("chief")
    office.until(lambda: not anchors.find("chief"), "chief is removed")


def test_locked_operator_file_does_not_block_decisions(
    office: Office, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pending = office.held()
    watch = office.approving.operators.watch
    office.until(lambda: watch.enrolled, "chief is known")
    looked = threading.Event()
    read = watch._read

    def slow() -> Any:
        looked.set()
        return read()

    monkeypatch.setattr(watch, "_read", slow)
    holder = sqlite3.connect(office.approving.operators.store.path, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    got: list[HttpResponse] = []
    with caplog.at_level(logging.ERROR, "interlock.node"):
        deciding = threading.Thread(
            target=lambda: got.append(office.decide(pending, office.proof(pending)))
        )
        deciding.start()
        assert looked.wait(HANG_TIMEOUT)
        # While the file is waited for, the node answers everybody else.
        assert office.alive()
        deciding.join(HANG_TIMEOUT)
    holder.execute("ROLLBACK")
    holder.close()
    assert got[0].json["state"] == "done"
    assert "The operators that were read before count until then" in caplog.text
    office.until(lambda: watch.problem is None, "it can be read again")


def test_reads_operators_outside_event_loop(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop_thread = office.do(threading.get_ident)
    threads: set[int] = set()
    opened = OperatorStore._open

    def noted(self: OperatorStore, **more: Any) -> Any:
        threads.add(threading.get_ident())
        return opened(self, **more)

    monkeypatch.setattr(OperatorStore, "_open", noted)
    code = office.approving.operators.store.invite(Invitation("bea"))
    threads.clear()
    assert office.ask("POST", "/approvals/enrol", {"code": code}).json == {"name": "bea"}
    from joserfc.jwk import OKPKey

    jwk = OKPKey.import_key(Ed25519PrivateKey.generate().public_key()).as_dict(private=False)
    answer = office.ask("POST", "/approvals/enrol", {"code": code, "key": jwk}).json
    assert not office.approving.anchors.find("bea")
    (one,) = office.ask("GET", "/approvals/operators", None, session_of(office)).json["pending"]
    assert (one["id"], one["name"], one["recovery"]) == (answer["pending"], "bea", False)
    about = {"aud": one["aud"], "jti": one["jti"], "args_sha256": one["args_sha256"]}
    sent = {"id": one["id"], "entry": one["entry"]}
    stranger = signed(Ed25519PrivateKey.generate(), {**about, "decision": "approve"})
    assert office.ask("POST", "/approvals/operators", {**sent, "proof": stranger}).status == 403
    proof = signed(office.chief, {**about, "decision": "approve"})
    admitted = office.ask("POST", "/approvals/operators", {**sent, "proof": proof}).json
    assert (admitted["state"], admitted["name"]) == ("enrolled", "bea")
    assert office.approving.anchors.find("bea")
    pending = office.held()
    assert office.decide(pending, office.proof(pending)).status == 200
    assert threads
    assert loop_thread not in threads


def test_reloads_changed_key_file_of_config(tmp_path: Path) -> None:
    old, new = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    file = tmp_path / "duty.pub"
    file.write_bytes(public(old))
    anchors = [AnchorConfig("duty", key="duty.pub")]
    office = Office(tmp_path, root=old, approvals=ApprovalsConfig(anchors=anchors))
    try:
        chief, office.chief = office.chief, old
        pending = office.held(table="a")
        replaced = tmp_path / "new.pub"
        replaced.write_bytes(public(new))
        replaced.rename(file)
        assert over_mcp(office, pending, office.proof(pending)).status == 403
        office.chief = new
        assert over_mcp(office, pending, office.proof(pending)).status == 200
        # One that cannot be read changes nothing, and keeps nobody from being removed.
        pending = office.held(table="b")
        file.write_bytes(b"no key")
        assert over_mcp(office, pending, office.proof(pending)).status == 200
        assert office.approving.operators.watch.problem is not None
        office.chief = chief
        office.remove("chief")
        office.wait(office.approving.operators.refresh())
        assert not office.approving.anchors.find("chief")
    finally:
        office.stop()


def test_unused_challenges_do_not_block_sign_in(office: Office) -> None:
    question = office.ask("GET", "/approvals/session").json
    for _ in range(2000):
        office.approving.operators.new_challenge()
    about = {
        "aud": question["aud"],
        "confirmation_id": "inbox",
        "args_sha256": question["nonce"],
    }
    answered = {"nonce": question["nonce"], "proof": office.proof(about)}
    assert office.ask("POST", "/approvals/session", answered).status == 200
    assert office.ask("POST", "/approvals/session", answered).status == 403
    # A question that somebody made up is none of ours.
    forged = {**about, "args_sha256": "A" * 54}
    sent = {"nonce": "A" * 54, "proof": signed(office.chief, _claims(forged))}
    assert office.ask("POST", "/approvals/session", sent).status == 403


def _claims(about: dict[str, Any]) -> dict[str, Any]:
    import time

    now = int(time.time())
    return {
        "aud": about["aud"],
        "jti": "inbox",
        "args_sha256": about["args_sha256"],
        "iat": now,
        "exp": now + 60,
        "decision": "approve",
    }


def test_forwarded_for_header_does_not_reset_rate_limit(office: Office) -> None:
    actual = [
        office.ask(
            "POST",
            "/approvals/enrol",
            {"code": "AAAAA"},
            ("X-Forwarded-For", f"203.0.113.{n}"),
        ).status
        for n in range(12)
    ]
    assert actual == [403] * 10 + [429] * 2
