"""Approvals over HTTP: who may view and decide, and which headers protect the page."""

from __future__ import annotations

import json
from urllib.parse import unquote

import pytest

from tests.trust.approvals_web.office import Office


@pytest.mark.spec("AX-11.3-5", "ST-4.8.4-6")
def test_proof_approves_exactly_this_call(office: Office) -> None:
    pending = office.held(table="orders", rows=9007199254740992)
    assert office.dropped() == []
    response = office.ask("GET", f"/approvals/{pending['confirmation_id']}").json
    assert (response["state"], response["tool"], response["effect"]) == (
        "pending",
        "shop.drop_table",
        "irreversible",
    )
    assert "9007199254740992" in response["arguments_text"]
    answer = office.decide(pending, office.proof(pending))
    assert (answer.status, answer.json["state"], answer.json["by"]) == (200, "done", "chief")
    assert office.dropped() == [{"table": "orders", "rows": 9007199254740992}]
    # The one who asked gets the same by asking again, and nothing is called twice.
    again = office.once(
        office.call(
            "drop_table",
            {"table": "orders", "rows": 9007199254740992},
            more_meta={"x-mcpax-approval": pending["confirmation_id"]},
        )
    )
    text = again.result["content"][0]["text"]
    assert json.loads(answer.json["result_text"])["content"][0]["text"] == text
    assert len(office.dropped()) == 1


@pytest.mark.parametrize("number", [9007199254740993, -9007199254740993, 10**500])
def test_rejects_integers_over_safe_range(office: Office, number: int) -> None:
    answer = office.once(office.call("drop_table", {"rows": number}))
    assert "2^53" in str(answer.json)
    assert office.approving.approvals.pending() == []
    assert office.dropped() == []


def test_proof_can_reject_call(office: Office) -> None:
    pending = office.held()
    answer = office.decide(pending, office.proof(pending, "refuse", reason="not on a Friday"))
    assert (answer.status, answer.json["state"], answer.json["by"]) == (200, "refused", "chief")
    assert answer.json["note"] == "not on a Friday"
    assert "result" not in answer.json
    late = office.decide(pending, office.proof(pending))
    assert (late.status, late.json["error"]) == (409, "already_decided")
    assert office.dropped() == []


def test_accepts_only_proof_of_operator(office: Office) -> None:
    pending = office.held()
    path = f"/approvals/{pending['confirmation_id']}"
    for body in (
        {"proof": "x"},
        {"proof": office.proof({**pending, "args_sha256": "0" * 64})},
        {"proof": office.proof({**pending, "aud": "another node"})},
        {"proof": "passkey:e30"},
        {"refuse": True},
    ):
        answer = office.ask("POST", path, body)
        assert answer.status == 403, answer.json
    assert office.ask("POST", path, {}).status == 400
    assert office.ask("POST", path, {"approve": True}).status == 400
    assert office.ask("GET", path).json["state"] == "pending"
    assert office.dropped() == []


@pytest.mark.spec("AQ-8.8.2-5")
def test_limits_wrong_proofs(office: Office) -> None:
    told, other = office.held(), office.held(table="others")
    for _ in range(10):
        assert office.decide(told, "guess.guess.guess").status == 403
    answer = office.decide(told, "guess.guess.guess")
    assert answer.status == 429
    assert 0 < int(answer.headers["retry-after"]) <= 60
    # Another one is not touched by that, and nobody is locked out who has a proof.
    assert office.decide(other, "guess.guess.guess").status == 403
    assert office.decide(told, office.proof(told)).json["state"] == "done"


def test_listing_approvals_requires_sign_in(office: Office) -> None:
    office.held()
    answer = office.ask("GET", "/approvals/")
    assert (answer.status, answer.json["error"]) == (403, "forbidden")
    assert office.ask("GET", "/approvals/events").status == 403
    forged = office.ask("GET", "/approvals/", None, ("Interlock-Session", "guess"))
    assert forged.status == 401


def test_signed_in_operator_sees_pending_calls(office: Office) -> None:
    pending = office.held()
    question = office.ask("GET", "/approvals/session").json
    about = {
        "aud": question["aud"],
        "confirmation_id": "inbox",
        "args_sha256": question["nonce"],
    }
    answered = {"nonce": question["nonce"], "proof": office.proof(about)}
    session = office.ask("POST", "/approvals/session", answered).json["session"]
    response = office.ask("GET", "/approvals/", None, ("Interlock-Session", session)).json
    assert [approval["id"] for approval in response["approvals"]] == [pending["confirmation_id"]]
    # An answer is good once, and what opens the inbox confirms nothing.
    assert office.ask("POST", "/approvals/session", answered).status == 403
    assert office.decide(pending, answered["proof"]).status == 403
    # Whoever is no longer enrolled sees nothing more.
    office.remove("chief")
    office.wait(office.approving.operators.refresh())
    assert office.ask("GET", "/approvals/", None, ("Interlock-Session", session)).status == 401


def test_rejects_removed_key(office: Office) -> None:
    pending = office.held()
    office.remove("chief")
    answer = office.decide(pending, office.proof(pending))
    assert (answer.status, answer.json["error"]) == (403, "proof_invalid")


@pytest.mark.parametrize(
    "headers",
    [
        [("Origin", "https://evil.example")],
        [("Origin", "null")],
        [("Origin", "http://localhost:1")],
        [("Sec-Fetch-Site", "cross-site"), ("Sec-Fetch-Mode", "cors")],
        [("Sec-Fetch-Site", "same-site"), ("Sec-Fetch-Mode", "no-cors")],
    ],
)
def test_rejects_requests_of_other_origins(office: Office, headers: list[tuple[str, str]]) -> None:
    pending = office.held()
    path = f"/approvals/{pending['confirmation_id']}"
    assert office.ask("GET", path, None, *headers).status == 403
    answer = office.ask("POST", path, {"proof": office.proof(pending)}, *headers)
    assert (answer.status, answer.json["error"]) == (403, "foreign_origin")
    assert office.dropped() == []


def test_rejects_forms_of_other_origins(office: Office) -> None:
    pending = office.held()
    path = f"/approvals/{pending['confirmation_id']}"
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        answer = office.ask("POST", path, {"proof": office.proof(pending)}, ("Content-Type", kind))
        assert answer.status == 400
    assert office.ask("POST", path, {"proof": "x" * 100_000}).status == 413
    assert office.ask("PUT", path, {}).status == 405
    assert office.ask("GET", path).json["state"] == "pending"


def test_every_response_has_security_headers(office: Office) -> None:
    pending = office.held()
    names = (pending["confirmation_id"], "", "enrol", "page/page.js", "x")
    for path in (f"/approvals/{name}" for name in names):
        for accept in ("application/json", "text/html"):
            headers = office.ask("GET", path, accept=accept).headers
            policy = headers["content-security-policy"]
            assert "default-src 'self'" in policy
            assert "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy
            assert headers["cache-control"] == "no-store"
            assert headers["referrer-policy"] == "no-referrer"
            assert headers["x-content-type-options"] == "nosniff"
            assert "set-cookie" not in headers
            assert "access-control-allow-origin" not in headers


def test_page_has_one_address(office: Office) -> None:
    host = ("Host", f"127.0.0.1:{office.port}")
    answer = office.ask("GET", "/approvals/enrol", None, host, accept="text/html")
    assert answer.status == 307
    assert answer.headers["location"] == f"{office.page}/enrol"
    assert office.ask("GET", "/approvals", accept="text/html").headers["location"] == "approvals/"
    rebound = ("Host", f"evil.example:{office.port}")
    assert office.ask("GET", "/approvals/enrol", None, rebound, accept="text/html").status == 403


@pytest.mark.parametrize(
    "name", ["%0d%0aX:%20y", "%E2%98%83", "a%20b%22", "%25", "x%23y", "x%3Fy=1"]
)
def test_redirect_quotes_the_path(
    office: Office, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    host = ("Host", f"127.0.0.1:{office.port}")
    answer = office.ask("GET", f"/approvals/{name}", None, host, accept="text/html")
    assert answer.status == 307
    assert "x" not in answer.headers
    where = answer.headers["location"]
    assert where.startswith(f"{office.page}/")
    assert where.isascii()
    assert where.isprintable()
    assert unquote(where.removeprefix(f"{office.page}/")) == unquote(name)
    assert not {"?", "#", " ", '"'} & set(where)
    assert [record for record in caplog.records if record.exc_info] == []
    # Where it leads to is answered as well.
    assert office.ask("GET", f"/approvals/{name}", accept="text/html").status in (200, 404)
    assert office.ask("GET", f"/approvals/{name}").status == 404


def test_unknown_ids_and_paths_are_not_found(office: Office) -> None:
    assert office.ask("GET", "/approvals/unknown").json["error"] == "unknown_approval"
    assert office.ask("GET", "/approvals/unknown/events").status == 404
    assert office.ask("GET", "/approvals/unknown/more").status == 404
    assert office.ask("GET", "/approvals/page/../page.html").status == 404
    assert office.ask("GET", "/approvalsx").status == 404
    assert office.ask("GET", "/healthz").json == {"status": "ok"}


def test_page_files_are_small_and_have_no_inline_code(office: Office) -> None:
    from interlock.trust.approvals.page import page_files

    # As browsers fetch it.
    assert sum(len(file.packed) for file in page_files().values()) < 30_000
    page = office.ask("GET", "/approvals/enrol", accept="text/html")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert b"<script>" not in page.body
    assert b"style=" not in page.body
