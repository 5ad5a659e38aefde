"""Client requests of a session server for a session client."""

from __future__ import annotations

import json
from typing import Any

import pytest

from interlock.core.call import Call, ClientRequest
from interlock.core.journal.audit import MAX_CLIENT_REQUEST_ENTRIES
from interlock.core.pipeline import client_requests as relay
from interlock.errors import CANCELLED, DEADLINE_EXCEEDED
from interlock.protocol.mcp import (
    ELICITATION,
    META_PROGRESS_TOKEN,
    META_TIMEOUT,
    PROGRESS,
    ROOTS,
    SAMPLING,
)
from tests.core.pipeline.client_request_harness import (
    FORM,
    OPERATOR,
    YES,
    AskingRig,
    Question,
    ScriptedSession,
    call_of,
)


def as_json(value: Any) -> bytes:
    return json.dumps(value).encode()


def begin(rig: AskingRig, session: ScriptedSession, **fields: Any) -> Call:
    return rig.begin(call_of(session.client, session=session, **fields))


def test_relays_client_request_and_response() -> None:
    rig, session = AskingRig(), ScriptedSession()
    begin(rig, session)
    question = rig.s.last.ask()
    assert session.last_params == FORM
    session.last.respond(as_json(YES))
    assert question.answer == YES
    rig.s.last.answer(content=[])
    assert rig.last_result == {"content": []}
    assert rig.journalled() == [(ELICITATION, "answered"), ("tools/call", "ok")]


def test_records_client_request() -> None:
    rig, session = AskingRig(), ScriptedSession(owner="operator")
    begin(rig, session, credentials=OPERATOR)
    rig.s.last.ask()
    rig.clock.advance(2.5)
    session.last.respond(as_json(YES))
    [entry] = rig.journal.entries
    assert entry["caller"] == "operator"
    assert (entry["verb"], entry["name"], entry["upstream"]) == (ELICITATION, "s.t", "s")
    assert (entry["outcome"], entry["detail"], entry["face"]) == ("answered", "accept", "test")
    assert entry["duration_us"] == 2_500_000


def test_omits_response_content_from_journal() -> None:
    rig, session = AskingRig(), ScriptedSession()
    begin(rig, session)
    rig.s.last.ask()
    session.last.respond(b'{"action":"accept","content":{"secret":"hunter2"}}')
    rig.s.last.ask(SAMPLING)
    session.last.respond(b'{"role":"assistant","content":{"type":"text","text":"hunter2"}}')
    assert "hunter2" not in repr(rig.journal.entries)


def test_relays_rejection_and_continues_call() -> None:
    rig, session = AskingRig(), ScriptedSession()
    begin(rig, session)
    question = rig.s.last.ask()
    session.last.reject(-1, "The user said no.")
    assert question.refusal == (-1, "The user said no.")
    assert rig.under_way == 1
    assert rig.journal.entries[-1]["detail"] == "The user said no."


def test_sends_request_without_call_to_session() -> None:
    rig, session = AskingRig(), ScriptedSession(owner="operator")
    begin(rig, session)
    exchange = rig.s.last
    exchange.answer(content=[])
    answers: list[Any] = []
    question = Question(_ask(ROOTS, answers), answers)
    rig.pipeline.on_request(question.ask, None, session)  # type: ignore[arg-type]
    session.last.respond(b'{"roots":[]}')
    assert question.answer == {"roots": []}
    entry = rig.journal.entries[-1]
    assert (entry["caller"], entry["upstream"], entry["name"]) == ("operator", "s", "")


def _ask(method: str, answers: list[Any]) -> ClientRequest:
    return ClientRequest(method, b"", answers.append, "s")


def test_rejects_request_without_call_and_session() -> None:
    answers: list[Any] = []
    AskingRig().pipeline.on_request(_ask(ROOTS, answers), None, None)
    assert answers[0].code == -32601


def test_rejects_request_for_unreachable_client() -> None:
    rig, session = AskingRig(), ScriptedSession()
    session.reachable = False
    begin(rig, session)
    assert rig.s.last.ask().refusal[0] == -32603
    rig.s.last.answer(content=[])
    assert rig.last_result == {"content": []}
    assert rig.journal.outcomes == ["refused", "ok"]


def test_rejects_unsupported_request_and_continues_call() -> None:
    rig, session = AskingRig(), ScriptedSession({})
    begin(rig, session)
    code, message = rig.s.last.ask(SAMPLING).refusal
    assert code == -32601
    assert "sampling" in message
    assert session.asked == []
    rig.s.last.answer(content=[])
    assert rig.last_result == {"content": []}


def test_failing_journal_does_not_block_response(monkeypatch: pytest.MonkeyPatch) -> None:
    rig, session = AskingRig(), ScriptedSession()

    def full(*_: Any, **__: Any) -> None:
        raise OSError("disk full")

    begin(rig, session)
    question = rig.s.last.ask()
    monkeypatch.setattr(rig.audit, "record_client_request", full)
    session.last.respond(as_json(YES))
    assert question.answer == YES


def test_limits_journal_entries_of_client_requests() -> None:
    rig, session = AskingRig(), ScriptedSession({})
    begin(rig, session)
    for _ in range(MAX_CLIENT_REQUEST_ENTRIES + 50):
        rig.s.last.ask(ROOTS)
    assert len(rig.journal.entries) == MAX_CLIENT_REQUEST_ENTRIES


# --- people have longer than servers ---


def test_pauses_timeout_during_client_request() -> None:
    rig, session = AskingRig(timeout=10, seconds=600), ScriptedSession()
    begin(rig, session)
    rig.s.last.ask()
    rig.clock.advance(599)
    session.last.respond(as_json(YES))
    rig.clock.advance(9)
    assert rig.under_way == 1
    rig.clock.advance(1.2)
    assert rig.last_error.failure is DEADLINE_EXCEEDED
    assert rig.s.last.expired


def test_pauses_timeout_until_every_request_is_answered() -> None:
    rig, session = AskingRig(timeout=10, seconds=600), ScriptedSession()
    begin(rig, session)
    rig.s.last.ask()
    rig.s.last.ask(ROOTS)
    session.asked[0].respond(as_json(YES))
    rig.clock.advance(100)
    assert rig.under_way == 1
    session.asked[1].respond(b'{"roots":[]}')
    rig.clock.advance(10.2)
    assert rig.last_error.failure is DEADLINE_EXCEEDED


def test_progress_does_not_shorten_pause() -> None:
    rig, session = AskingRig(timeout=10, seconds=600), ScriptedSession()
    begin(rig, session, meta={META_PROGRESS_TOKEN: 1})
    rig.s.last.ask()
    rig.s.last.say(PROGRESS, b'{"progressToken":1,"progress":1}')
    rig.clock.advance(300)
    assert rig.under_way == 1


def test_withdrawn_request_resumes_timeout() -> None:
    rig, session = AskingRig(timeout=10, seconds=600), ScriptedSession()
    begin(rig, session)
    rig.s.last.ask().ask.withdraw("never mind")
    rig.clock.advance(10.2)
    assert rig.last_error.failure is DEADLINE_EXCEEDED
    assert rig.s.last.expired


def test_expires_unanswered_client_request() -> None:
    rig, session = AskingRig(timeout=10, seconds=600, failures=1), ScriptedSession()
    begin(rig, session)
    rig.s.last.ask()
    rig.clock.advance(601)
    assert rig.last_error.failure is DEADLINE_EXCEEDED
    assert "did not respond" in rig.last_error.message
    assert rig.s.last.abandoned
    assert len(session.withdrawn) == 1
    assert rig.breakers.failing == {}, "a server is not to blame for people who do not answer"
    assert rig.journal.outcomes == ["withdrawn", "deadline_exceeded"]


def test_caller_timeout_includes_client_requests() -> None:
    rig, session = AskingRig(), ScriptedSession()
    begin(rig, session, meta={META_TIMEOUT: 5000})
    rig.s.last.ask()
    rig.clock.advance(3)
    session.last.respond(as_json(YES))
    rig.clock.advance(1.9)
    assert rig.under_way == 1
    rig.clock.advance(0.3)
    assert rig.last_error.failure is DEADLINE_EXCEEDED


def test_cancellation_withdraws_client_request() -> None:
    rig, session = AskingRig(), ScriptedSession()
    call = begin(rig, session)
    question = rig.s.last.ask()
    rig.pipeline.cancel(call)
    assert rig.last_error.failure is CANCELLED
    assert rig.s.last.abandoned
    assert len(session.withdrawn) == 1
    session.last.respond(as_json(YES))
    assert question.unanswered
    assert rig.journal.outcomes == ["withdrawn", "cancelled"]


def test_relays_response_after_end_of_call() -> None:
    """A server may ask about no call in particular; whose it was is only guessed."""
    rig, session = AskingRig(), ScriptedSession()
    begin(rig, session)
    exchange = rig.s.last
    question = exchange.ask(ROOTS)
    exchange.questions.clear()
    exchange.answer(content=[])
    session.last.respond(b'{"roots":[]}')
    assert question.answer == {"roots": []}
    assert len(rig.done) == 1


def test_answered_requests_leave_no_timers() -> None:
    rig, session = AskingRig(), ScriptedSession()
    begin(rig, session)
    before = rig.clock.timers
    for _ in range(50):
        rig.s.last.ask()
        session.last.respond(as_json(YES))
    assert rig.clock.timers == before


def test_limits_client_requests_of_call() -> None:
    rig, session = AskingRig(), ScriptedSession()
    begin(rig, session)
    for _ in range(relay.MAX_CLIENT_REQUESTS):
        rig.s.last.ask()
        session.last.respond(as_json(YES))
    question = rig.s.last.ask()
    assert question.refusal is not None
    assert "client requests in one call" in question.refusal[1]
    assert rig.under_way == 1
