"""The outcome of an approved call goes only to the client that made the call."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from interlock.core.journal.reader import JournalQuery, JournalReader
from interlock.protocol.mcpax import APPROVAL, EXECUTED_AT
from tests.support.http_client import SESSION
from tests.support.node import HttpSession
from tests.trust.approvals_web.office import Office

TABLE = {"table": "orders"}
TOKENS = {"agent": "a-token-that-two-clients-share"}
Header = tuple[str, str]


@pytest.fixture(params=["no token", "one token"])
def office(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Office]:
    """Two clients of this node are one caller: they have no token, or the same one."""
    office = Office(tmp_path, tokens=TOKENS if request.param == "one token" else None)
    try:
        yield office
    finally:
        office.stop()


def headers(office: Office) -> list[Header]:
    return [("Authorization", f"Bearer {token}") for token in office.tokens.values()]


def pending_id(result: dict[str, Any]) -> str:
    assert result["structuredContent"]["status"] == "confirmation_required"
    return str(result["structuredContent"]["confirmation_id"])


def call_stateless(
    office: Office, approval: str | None = None, arguments: dict[str, Any] = TABLE
) -> dict[str, Any]:
    meta = None if approval is None else {APPROVAL: approval}
    call = office.call("drop_table", arguments, 1, *headers(office), more_meta=meta)
    result: dict[str, Any] = office.once(call).result
    return result


def open_session(office: Office) -> HttpSession:
    return office.session(SESSION, *headers(office))


def call_in_session(office: Office, session: HttpSession) -> dict[str, Any]:
    result: dict[str, Any] = office.once(session.call("drop_table", TABLE)).result
    return result


def approve(office: Office, held: dict[str, Any]) -> str:
    """Approve a call; the text that its server answered."""
    about = held["structuredContent"]
    answer = office.decide(about, office.proof(about))
    assert answer.json["state"] == "done", answer.json
    return str(json.loads(answer.json["result_text"])["content"][0]["text"])


def assert_collected(result: dict[str, Any], id: str, text: str) -> None:
    assert [result["content"][0]["text"], len(result["content"])] == [text, 2]
    # A model reads texts only.
    executed_at = result["_meta"][EXECUTED_AT]
    assert result["_meta"][APPROVAL] == id
    assert executed_at in result["content"][1]["text"]
    assert id in result["content"][1]["text"]


def test_other_stateless_client_does_not_get_outcome(office: Office) -> None:
    held = call_stateless(office)
    first = pending_id(held)
    # Still pending: a client that repeats its call makes no second approval.
    assert pending_id(call_stateless(office)) == first
    text = approve(office, held)
    held = call_stateless(office)
    second = pending_id(held)
    assert second != first
    assert len(office.dropped()) == 1
    # By its handle the outcome is picked up, once.
    assert_collected(call_stateless(office, first), first, text)
    assert pending_id(call_stateless(office, first)) == second
    assert pending_id(call_stateless(office, "x" * 33)) == second
    approve(office, held)
    assert len(office.dropped()) == 2


def test_outcome_is_bound_to_its_session(office: Office) -> None:
    one, other = open_session(office), open_session(office)
    held = call_in_session(office, one)
    first = pending_id(held)
    assert pending_id(call_in_session(office, one)) == first
    second = pending_id(call_in_session(office, other))
    third = pending_id(call_stateless(office))
    assert len({first, second, third}) == 3
    text = approve(office, held)
    assert pending_id(call_in_session(office, other)) == second
    assert pending_id(call_stateless(office)) == third
    assert_collected(call_in_session(office, one), first, text)
    # It was told: what comes now is a new call.
    assert pending_id(call_in_session(office, one)) not in (first, second, third)
    assert len(office.dropped()) == 1


def test_handle_is_valid_for_same_call_only(office: Office) -> None:
    held = call_stateless(office)
    approve(office, held)
    other = call_stateless(office, pending_id(held), {"table": "others"})
    assert pending_id(other) != pending_id(held)
    assert office.dropped() == [TABLE]


def test_journal_has_digest_of_approved_call(tmp_path: Path) -> None:
    for arguments in ("digest", "none"):
        folder = tmp_path / arguments
        folder.mkdir()
        office = Office(folder, journal={"arguments": arguments})
        try:
            held = call_stateless(office)["structuredContent"]
            office.decide(held, office.proof(held))
        finally:
            office.stop()
        reader = JournalReader(office.folder / "journal.db")
        about = JournalQuery(detail_word=f"approval:{held['confirmation_id']}")
        digests = {(row.verb, row.outcome): row.digests for row in reader.newest(about, 10)}
        wanted = {"args_sha256": held["args_sha256"]} if arguments == "digest" else {}
        assert digests["approval", "held"] == wanted
        assert digests["tools/call", "dispatching"] == digests["tools/call", "ok"] == wanted


def test_handle_of_other_caller_is_invalid(tmp_path: Path) -> None:
    office = Office(tmp_path, tokens={"agent": "token-of-agent", "other": "token-of-other"})
    try:
        ids: dict[str, Any] = {}
        for name in ("agent", "other"):
            authorization = ("Authorization", f"Bearer token-of-{name}")
            meta = {APPROVAL: ids["agent"]} if ids else None
            held = office.once(
                office.call("drop_table", TABLE, 1, authorization, more_meta=meta)
            ).result
            ids[name] = pending_id(held)
            if name == "agent":
                approve(office, held)
        assert ids["agent"] != ids["other"]
        assert len(office.dropped()) == 1
    finally:
        office.stop()
