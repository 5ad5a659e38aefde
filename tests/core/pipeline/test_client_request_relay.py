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
    ClientRequestHarness,
    Question,
    ScriptedSession,
    call_of,
)


def as_json(value: Any) -> bytes:
    return json.dumps(value).encode()


def begin(harness: ClientRequestHarness, session: ScriptedSession, **fields: Any) -> Call:
    return harness.begin(call_of(session.client, session=session, **fields))


def test_relays_client_request_and_response() -> None:
    harness, session = ClientRequestHarness(), ScriptedSession()
    begin(harness, session)
    client_request = harness.s.last.ask()
    assert session.last_params == FORM
    session.last.respond(as_json(YES))
    assert client_request.result == YES
    harness.s.last.answer(content=[])
    assert harness.last_result == {"content": []}
    assert harness.list_outcomes() == [(ELICITATION, "answered"), ("tools/call", "ok")]


def test_records_client_request() -> None:
    harness, session = ClientRequestHarness(), ScriptedSession(owner="operator")
    begin(harness, session, credentials=OPERATOR)
    harness.s.last.ask()
    harness.clock.advance(2.5)
    session.last.respond(as_json(YES))
    [entry] = harness.journal.entries
    assert entry["caller"] == "operator"
    assert (entry["verb"], entry["name"], entry["upstream"]) == (ELICITATION, "s.t", "s")
    assert (entry["outcome"], entry["detail"], entry["face"]) == ("answered", "accept", "test")
    assert entry["duration_us"] == 2_500_000


def test_omits_response_content_from_journal() -> None:
    harness, session = ClientRequestHarness(), ScriptedSession()
    begin(harness, session)
    harness.s.last.ask()
    session.last.respond(b'{"action":"accept","content":{"secret":"hunter2"}}')
    harness.s.last.ask(SAMPLING)
    session.last.respond(b'{"role":"assistant","content":{"type":"text","text":"hunter2"}}')
    assert "hunter2" not in repr(harness.journal.entries)


def test_relays_rejection_and_continues_call() -> None:
    harness, session = ClientRequestHarness(), ScriptedSession()
    begin(harness, session)
    client_request = harness.s.last.ask()
    session.last.reject(-1, "The user said no.")
    assert client_request.rejection == (-1, "The user said no.")
    assert harness.under_way == 1
    assert harness.journal.entries[-1]["detail"] == "The user said no."


def test_sends_request_without_call_to_session() -> None:
    harness, session = ClientRequestHarness(), ScriptedSession(owner="operator")
    begin(harness, session)
    exchange = harness.s.last
    exchange.answer(content=[])
    responses: list[Any] = []
    client_request = Question(make_client_request(ROOTS, responses), responses)
    harness.pipeline.on_request(client_request.ask, None, session)  # type: ignore[arg-type]
    session.last.respond(b'{"roots":[]}')
    assert client_request.result == {"roots": []}
    entry = harness.journal.entries[-1]
    assert (entry["caller"], entry["upstream"], entry["name"]) == ("operator", "s", "")


def make_client_request(method: str, answers: list[Any]) -> ClientRequest:
    return ClientRequest(method, b"", answers.append, "s")


def test_rejects_request_without_call_and_session() -> None:
    responses: list[Any] = []
    ClientRequestHarness().pipeline.on_request(make_client_request(ROOTS, responses), None, None)
    assert responses[0].code == -32601


def test_rejects_request_for_unreachable_client() -> None:
    harness, session = ClientRequestHarness(), ScriptedSession()
    session.reachable = False
    begin(harness, session)
    assert harness.s.last.ask().rejection[0] == -32603
    harness.s.last.answer(content=[])
    assert harness.last_result == {"content": []}
    assert harness.journal.outcomes == ["refused", "ok"]


def test_rejects_unsupported_request_and_continues_call() -> None:
    harness, session = ClientRequestHarness(), ScriptedSession({})
    begin(harness, session)
    code, message = harness.s.last.ask(SAMPLING).rejection
    assert code == -32601
    assert "sampling" in message
    assert session.client_requests == []
    harness.s.last.answer(content=[])
    assert harness.last_result == {"content": []}


def test_failing_journal_does_not_block_response(monkeypatch: pytest.MonkeyPatch) -> None:
    harness, session = ClientRequestHarness(), ScriptedSession()

    def full(*_: Any, **__: Any) -> None:
        raise OSError("disk full")

    begin(harness, session)
    client_request = harness.s.last.ask()
    monkeypatch.setattr(harness.audit, "record_client_request", full)
    session.last.respond(as_json(YES))
    assert client_request.result == YES


def test_limits_journal_entries_of_client_requests() -> None:
    harness, session = ClientRequestHarness(), ScriptedSession({})
    begin(harness, session)
    for _ in range(MAX_CLIENT_REQUEST_ENTRIES + 50):
        harness.s.last.ask(ROOTS)
    assert len(harness.journal.entries) == MAX_CLIENT_REQUEST_ENTRIES


# --- people have longer than servers ---


def test_pauses_timeout_during_client_request() -> None:
    harness, session = ClientRequestHarness(timeout=10, seconds=600), ScriptedSession()
    begin(harness, session)
    harness.s.last.ask()
    harness.clock.advance(599)
    session.last.respond(as_json(YES))
    harness.clock.advance(9)
    assert harness.under_way == 1
    harness.clock.advance(1.2)
    assert harness.last_error.failure is DEADLINE_EXCEEDED
    assert harness.s.last.expired


def test_pauses_timeout_until_every_request_is_answered() -> None:
    harness, session = ClientRequestHarness(timeout=10, seconds=600), ScriptedSession()
    begin(harness, session)
    harness.s.last.ask()
    harness.s.last.ask(ROOTS)
    session.client_requests[0].respond(as_json(YES))
    harness.clock.advance(100)
    assert harness.under_way == 1
    session.client_requests[1].respond(b'{"roots":[]}')
    harness.clock.advance(10.2)
    assert harness.last_error.failure is DEADLINE_EXCEEDED


def test_progress_does_not_shorten_pause() -> None:
    harness, session = ClientRequestHarness(timeout=10, seconds=600), ScriptedSession()
    begin(harness, session, meta={META_PROGRESS_TOKEN: 1})
    harness.s.last.ask()
    harness.s.last.say(PROGRESS, b'{"progressToken":1,"progress":1}')
    harness.clock.advance(300)
    assert harness.under_way == 1


def test_withdrawn_request_resumes_timeout() -> None:
    harness, session = ClientRequestHarness(timeout=10, seconds=600), ScriptedSession()
    begin(harness, session)
    harness.s.last.ask().ask.withdraw("never mind")
    harness.clock.advance(10.2)
    assert harness.last_error.failure is DEADLINE_EXCEEDED
    assert harness.s.last.expired


def test_expires_unanswered_client_request() -> None:
    harness, session = ClientRequestHarness(timeout=10, seconds=600, failures=1), ScriptedSession()
    begin(harness, session)
    harness.s.last.ask()
    harness.clock.advance(601)
    assert harness.last_error.failure is DEADLINE_EXCEEDED
    assert "did not respond" in harness.last_error.message
    assert harness.s.last.abandoned
    assert len(session.withdrawn) == 1
    assert harness.breakers.failing == {}, "a server is not to blame for people who do not answer"
    assert harness.journal.outcomes == ["withdrawn", "deadline_exceeded"]


def test_caller_timeout_includes_client_requests() -> None:
    harness, session = ClientRequestHarness(), ScriptedSession()
    begin(harness, session, meta={META_TIMEOUT: 5000})
    harness.s.last.ask()
    harness.clock.advance(3)
    session.last.respond(as_json(YES))
    harness.clock.advance(1.9)
    assert harness.under_way == 1
    harness.clock.advance(0.3)
    assert harness.last_error.failure is DEADLINE_EXCEEDED


def test_cancellation_withdraws_client_request() -> None:
    harness, session = ClientRequestHarness(), ScriptedSession()
    call = begin(harness, session)
    client_request = harness.s.last.ask()
    harness.pipeline.cancel(call)
    assert harness.last_error.failure is CANCELLED
    assert harness.s.last.abandoned
    assert len(session.withdrawn) == 1
    session.last.respond(as_json(YES))
    assert client_request.is_pending
    assert harness.journal.outcomes == ["withdrawn", "cancelled"]


def test_relays_response_after_end_of_call() -> None:
    """A server may ask about no call in particular; whose it was is only guessed."""
    harness, session = ClientRequestHarness(), ScriptedSession()
    begin(harness, session)
    exchange = harness.s.last
    client_request = exchange.ask(ROOTS)
    exchange.questions.clear()
    exchange.answer(content=[])
    session.last.respond(b'{"roots":[]}')
    assert client_request.result == {"roots": []}
    assert len(harness.done) == 1


def test_answered_requests_leave_no_timers() -> None:
    harness, session = ClientRequestHarness(), ScriptedSession()
    begin(harness, session)
    before = harness.clock.timers
    for _ in range(50):
        harness.s.last.ask()
        session.last.respond(as_json(YES))
    assert harness.clock.timers == before


def test_limits_client_requests_of_call() -> None:
    harness, session = ClientRequestHarness(), ScriptedSession()
    begin(harness, session)
    for _ in range(relay.MAX_CLIENT_REQUESTS):
        harness.s.last.ask()
        session.last.respond(as_json(YES))
    client_request = harness.s.last.ask()
    assert client_request.rejection is not None
    assert "client requests in one call" in client_request.rejection[1]
    assert harness.under_way == 1
