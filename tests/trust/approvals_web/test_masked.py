"""Masked arguments in a live node: who sees them, and how they are approved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.trust.approvals_web.office import Office

PIN = "4711-4711"


def sign_in(office: Office) -> tuple[str, str]:
    """The header of chief's session on the page."""
    question = office.ask("GET", "/approvals/session").json
    about = {
        "aud": question["aud"],
        "confirmation_id": "inbox",
        "args_sha256": question["nonce"],
    }
    proof = office.proof(about)
    answer = office.ask("POST", "/approvals/session", {"nonce": question["nonce"], "proof": proof})
    return "Interlock-Session", answer.json["session"]


@pytest.mark.parametrize(
    "arguments",
    [
        {"table": "prod", "key": "invoices/2026.pdf"},
        {"issueKey": "PAY-1042"},
        {"apiKey": {"sql": "DROP TABLE users"}},
        {"cmd": "rm -rf sk-production-database-2026 ."},
        {"cmd": "curl -s http://build:$(touch${IFS}PWNED)@127.0.0.1/status"},
        {"password": "hunter2", "token": 17, "session": "all"},
    ],
)
def test_operator_sees_all_arguments(office: Office, arguments: dict[str, Any]) -> None:
    pending = office.held(**arguments)
    assert pending["arguments"] == arguments
    response = office.ask("GET", f"/approvals/{pending['confirmation_id']}").json
    assert response["arguments"] == arguments
    assert response["masked"] == []
    assert "***" not in response["arguments_text"]
    assert office.decide(pending, office.proof(pending)).json["state"] == "done"
    assert office.dropped() == [arguments]


def test_only_operator_reveals_masked_argument(office: Office) -> None:
    pending = office.held(table="orders", pin=PIN)
    path = f"/approvals/{pending['confirmation_id']}"
    response = office.ask("GET", path).json
    assert (response["masked"], response["revealed"]) == (["/arguments/pin"], False)
    assert response["arguments"] == pending["arguments"]
    assert PIN not in str(response) + str(pending)
    details = office.ask("GET", f"{path}/revealed")
    assert details.status == 403
    assert PIN not in str(details.json)
    session = sign_in(office)
    revealed = office.ask("GET", f"{path}/revealed", None, session).json
    assert (revealed["masked"], revealed["revealed"]) == (["/arguments/pin"], True)
    assert revealed["arguments"] == {"table": "orders", "pin": PIN}
    assert PIN in revealed["arguments_text"]
    # It is shown once, where it was asked for.
    assert PIN not in str(office.ask("GET", path).json)
    assert PIN not in str(office.ask("GET", "/approvals/", None, session).json)
    assert office.ask("GET", "/approvals/unknown/revealed", None, session).status == 404
    office.decide(pending, office.proof(pending, "refuse"))
    late = office.ask("GET", f"{path}/revealed", None, session)
    assert (late.status, late.json["error"]) == (409, "already_decided")


def test_approving_masked_arguments_requires_acknowledgement(office: Office) -> None:
    pending = office.held(pin=PIN)
    path, proof = f"/approvals/{pending['confirmation_id']}", office.proof(pending)
    answer = office.ask("POST", path, {"proof": proof})
    assert (answer.status, answer.json["error"]) == (400, "masked_arguments")
    assert office.ask("GET", path).json["state"] == "pending"
    answer = office.ask("POST", path, {"proof": proof, "accept_masked": True})
    assert answer.json["state"] == "done"
    assert office.dropped() == [{"pin": PIN}]
    # To refuse takes nothing of the kind.
    pending = office.held(pin=PIN, table="others")
    assert office.decide(pending, office.proof(pending, "refuse")).json["state"] == "refused"


def test_masks_config_secret(tmp_path: Path) -> None:
    secret = "only-the-bot-knows-this-one"
    office = Office(tmp_path, tokens={"bot": secret})
    try:
        arguments = {"table": secret, "cmd": f"echo {secret}"}
        header = ("Authorization", f"Bearer {secret}")
        response = office.once(office.call("drop_table", arguments, 1, header)).result
        assert response["structuredContent"]["masked"] == ["/arguments/table"]
        assert response["structuredContent"]["arguments"]["cmd"] == f"echo {secret}"
    finally:
        office.stop()
