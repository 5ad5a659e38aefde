"""Input requests of a stateless server for a session client, in rounds."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Raw

from interlock.core.call import Call, UpstreamResponseError
from interlock.core.pipeline.client_requests import MAX_INPUT_ROUNDS, ClientRequestPolicy
from interlock.errors import (
    CANCELLED,
    DEADLINE_EXCEEDED,
    SHUTTING_DOWN,
    UPSTREAM_LOST,
    UPSTREAM_PROTOCOL,
    InterlockError,
)
from interlock.protocol.mcp import (
    COMPLETE_ARGUMENT,
    ELICITATION,
    META_TIMEOUT,
    PROMPTS_GET,
    RESOURCES_READ,
    ROOTS,
    SAMPLING,
)
from tests.core.pipeline.client_request_harness import (
    FORM,
    SAMPLE,
    URL,
    YES,
    ClientRequestHarness,
    ScriptedSession,
    call_of,
)

QUESTION = {"q": (ELICITATION, FORM)}
TWO = {"a": (ELICITATION, FORM), "b": (ROOTS, None)}


def begin(
    harness: ClientRequestHarness, session: ScriptedSession, name: str = "s.t", **fields: Any
) -> Call:
    return harness.begin(call_of(session.client, name, session=session, **fields))


def as_json(value: Any) -> bytes:
    return json.dumps(value).encode()


# --- the way it is meant ---


def test_sends_client_request_and_repeats_call() -> None:
    harness, session = ClientRequestHarness(), ScriptedSession()
    begin(harness, session, arguments={"n": 1})
    harness.s.last.require_input(QUESTION, state="theirs")
    assert (harness.done, harness.under_way) == ([], 1)
    assert session.last.method == ELICITATION
    session.last.respond(as_json(YES))
    assert harness.s.last_sent == {"inputResponses": {"q": YES}, "requestState": "theirs"}
    assert bytes(harness.s.last.call.arguments) == b'{"n": 1}'
    harness.s.last.answer(content=[])
    assert harness.last_result == {"content": []}
    assert harness.list_outcomes() == [(ELICITATION, "answered"), ("tools/call", "ok")]


@pytest.mark.parametrize(
    ("verb", "name", "kept"),
    [(PROMPTS_GET, "s.p", {"name": "p"}), (RESOURCES_READ, "test://r", {"uri": "test://r"})],
)
def test_prompts_and_resources_may_require_input(verb: str, name: str, kept: Any) -> None:
    harness, session = ClientRequestHarness(), ScriptedSession()
    begin(harness, session, name, verb=verb)
    harness.s.last.require_input(QUESTION, state="theirs")
    session.last.respond(as_json(YES))
    assert harness.s.last_sent == {"inputResponses": {"q": YES}, "requestState": "theirs", **kept}


def test_omits_state_when_server_has_no_state() -> None:
    harness, session = ClientRequestHarness(), ScriptedSession()
    begin(harness, session)
    harness.s.last.require_input(QUESTION)
    session.last.respond(as_json(YES))
    assert harness.s.last_sent == {"inputResponses": {"q": YES}}


def test_sends_only_responses_of_last_round() -> None:
    harness, session = ClientRequestHarness(), ScriptedSession()
    begin(harness, session)
    harness.s.last.require_input({"one": (ELICITATION, FORM)}, state="first")
    session.last.respond(as_json(YES))
    harness.s.last.require_input({"two": (ROOTS, None)})
    session.last.respond(b'{"roots":[]}')
    assert harness.s.last_sent == {"inputResponses": {"two": {"roots": []}}}


def test_sends_requests_together_and_accepts_any_response_order() -> None:
    harness, session = ClientRequestHarness(), ScriptedSession()
    begin(harness, session)
    harness.s.last.require_input(TWO)
    assert [client_request.method for client_request in session.client_requests] == [
        ELICITATION,
        ROOTS,
    ]
    session.client_requests[1].respond(b'{"roots":[]}')
    assert len(harness.s.started) == 1
    session.client_requests[0].respond(as_json(YES))
    assert harness.s.last_sent["inputResponses"] == {"a": YES, "b": {"roots": []}}


def test_keeps_state_byte_for_byte() -> None:
    harness, session = ClientRequestHarness(), ScriptedSession()
    begin(harness, session)
    state = 'v1."\\/é\u2028 \t'
    harness.s.last.require_input(QUESTION, state=state)
    session.last.respond(as_json(YES))
    assert harness.s.last_sent["requestState"] == state


# --- up to a limit ---


def test_limits_input_rounds() -> None:
    harness, session = ClientRequestHarness(), ScriptedSession()
    begin(harness, session)
    for number in range(MAX_INPUT_ROUNDS):
        harness.s.last.require_input(QUESTION)
        assert len(session.client_requests) == number + 1
        session.last.respond(as_json(YES))
    assert len(harness.s.started) == MAX_INPUT_ROUNDS + 1
    harness.s.last.require_input(QUESTION)
    assert len(session.client_requests) == MAX_INPUT_ROUNDS
    assert harness.last_error.failure is UPSTREAM_PROTOCOL
    assert harness.under_way == 0


def test_accepts_result_of_last_round() -> None:
    harness, session = ClientRequestHarness(), ScriptedSession()
    begin(harness, session)
    for _ in range(MAX_INPUT_ROUNDS):
        harness.s.last.require_input(QUESTION)
        session.last.respond(as_json(YES))
    harness.s.last.answer(content=[])
    assert harness.last_result == {"content": []}


def test_repeats_call_with_state_after_delay() -> None:
    harness, session = ClientRequestHarness(), ScriptedSession()
    begin(harness, session)
    waits = []
    for number in range(MAX_INPUT_ROUNDS):
        harness.s.last.require_input(state=f"state {number}")
        began = harness.clock.now
        while len(harness.s.started) == number + 1:
            harness.clock.advance(0.001)
        waits.append(harness.clock.now - began)
        assert harness.s.last_sent == {"requestState": f"state {number}"}
    assert waits == pytest.approx([0.05, 0.1, 0.2, *[0.25] * 7], abs=0.005)
    assert session.client_requests == []
    harness.s.last.require_input(state="once more")
    assert harness.last_error.failure is UPSTREAM_PROTOCOL


def test_cancellation_during_delay_ends_call() -> None:
    harness, session = ClientRequestHarness(), ScriptedSession()
    call = begin(harness, session)
    harness.s.last.require_input(state="later")
    harness.pipeline.cancel(call)
    harness.clock.advance(1)
    assert len(harness.s.started) == 1
    assert harness.journal.outcomes == ["cancelled"]


# --- the client does not answer ---


def test_rejection_ends_call_and_withdraws_other_requests() -> None:
    harness, session = ClientRequestHarness(), ScriptedSession()
    begin(harness, session)
    harness.s.last.require_input(TWO)
    session.client_requests[0].reject(-1, "no", b'{"why":1}')
    error = harness.last_error
    assert isinstance(error, UpstreamResponseError)
    assert (error.code, error.message, error.raw_data) == (-1, "no", b'{"why":1}')
    assert [client_request for client_request, _ in session.withdrawn] == [
        session.client_requests[1]
    ]
    session.client_requests[1].respond(b'{"roots":[]}')
    assert len(harness.s.started) == 1
    assert len(harness.done) == 1
    assert harness.list_outcomes() == [
        (ELICITATION, "refused"),
        (ROOTS, "withdrawn"),
        ("tools/call", "upstream_error"),
    ]


def test_error_code_zero_is_rejection() -> None:
    harness, session = ClientRequestHarness(), ScriptedSession()
    begin(harness, session)
    harness.s.last.require_input(QUESTION)
    session.last.reject(0, "no")
    assert harness.last_error.message == "no"
    assert len(harness.s.started) == 1


def test_declined_form_is_response() -> None:
    harness, session = ClientRequestHarness(), ScriptedSession()
    begin(harness, session)
    harness.s.last.require_input(QUESTION)
    session.last.respond(b'{"action":"decline"}')
    assert harness.s.last_sent["inputResponses"] == {"q": {"action": "decline"}}
    assert harness.journal.entries[0]["detail"] == "decline"


def test_invalid_response_ends_call() -> None:
    harness, session = ClientRequestHarness(), ScriptedSession()
    begin(harness, session)
    harness.s.last.require_input(TWO)
    session.client_requests[0].respond(b"[]")
    assert "not an object" in harness.last_error.message
    assert len(session.withdrawn) == 1
    assert len(harness.s.started) == 1


@pytest.mark.parametrize("reached", [0, 1], ids=["first request", "second request"])
def test_unreachable_client_ends_call(reached: int) -> None:
    harness, session = ClientRequestHarness(), ScriptedSession()
    begin(harness, session)
    put = session.send_request

    def send_or_fail(ask: Any, call: Any) -> bool:
        session.reachable = len(session.client_requests) < reached
        return put(ask, call)

    session.send_request = send_or_fail  # type: ignore[method-assign]
    harness.s.last.require_input(TWO)
    assert harness.last_error.failure is UPSTREAM_PROTOCOL
    assert len(session.withdrawn) == reached
    assert (harness.under_way, len(harness.s.started)) == (0, 1)


def test_call_without_session_fails() -> None:
    harness = ClientRequestHarness()
    harness.begin(call_of(ScriptedSession().client))
    harness.s.last.require_input(QUESTION)
    assert harness.last_error.failure is UPSTREAM_PROTOCOL


def test_client_timeout_is_longer_than_call_timeout() -> None:
    harness, session = ClientRequestHarness(timeout=10, seconds=600), ScriptedSession()
    begin(harness, session)
    harness.s.last.require_input(QUESTION)
    harness.clock.advance(599)
    assert harness.under_way == 1
    session.last.respond(as_json(YES))
    harness.clock.advance(9)
    assert harness.under_way == 1
    harness.clock.advance(1.2)
    assert harness.last_error.failure is DEADLINE_EXCEEDED
    assert harness.s.last.expired


def test_expires_unanswered_client_request() -> None:
    harness, session = ClientRequestHarness(timeout=10, seconds=600, failures=1), ScriptedSession()
    begin(harness, session)
    harness.s.last.require_input(QUESTION)
    harness.clock.advance(601)
    assert harness.last_error.failure is DEADLINE_EXCEEDED
    assert len(session.withdrawn) == 1
    session.last.respond(as_json(YES))
    assert (len(harness.s.started), len(harness.done)) == (1, 1)
    assert harness.breakers.failing == {}, "a server is not to blame for people who do not answer"


def test_caller_timeout_includes_client_requests() -> None:
    harness, session = ClientRequestHarness(), ScriptedSession()
    begin(harness, session, meta={META_TIMEOUT: 5000})
    harness.s.last.require_input(QUESTION)
    harness.clock.advance(3)
    session.last.respond(as_json(YES))
    harness.s.last.require_input(QUESTION)
    harness.clock.advance(1)
    session.last.respond(as_json(YES))
    assert harness.under_way == 1
    harness.clock.advance(1.2)
    assert harness.last_error.failure is DEADLINE_EXCEEDED


def test_cancellation_withdraws_client_requests() -> None:
    harness, session = ClientRequestHarness(), ScriptedSession()
    call = begin(harness, session)
    harness.s.last.require_input(TWO)
    harness.pipeline.cancel(call)
    assert harness.last_error.failure is CANCELLED
    assert len(session.withdrawn) == 2
    session.client_requests[0].respond(as_json(YES))
    session.client_requests[1].respond(b"{}")
    assert len(harness.s.started) == 1
    assert harness.journal.outcomes == ["withdrawn", "withdrawn", "cancelled"]


async def test_drain_withdraws_client_requests() -> None:
    harness, session = ClientRequestHarness(), ScriptedSession()
    begin(harness, session)
    harness.s.last.require_input(QUESTION)
    await harness.pipeline.drain(0)
    assert harness.last_error.failure is SHUTTING_DOWN
    assert len(session.withdrawn) == 1
    assert harness.under_way == 0


# --- never twice what may have been done ---


def test_lost_call_of_later_round_is_not_repeated() -> None:
    harness, session = ClientRequestHarness(), ScriptedSession()
    begin(harness, session)
    harness.s.last.require_input(QUESTION)
    session.last.respond(as_json(YES))
    harness.s.last.lose(sent=True)
    assert harness.last_error.failure is UPSTREAM_LOST
    assert len(harness.s.started) == 2


def test_unavailable_upstream_ends_call() -> None:
    harness, session = ClientRequestHarness(), ScriptedSession()
    begin(harness, session)
    harness.s.last.require_input(QUESTION)
    harness.s.refuse_with = InterlockError(UPSTREAM_PROTOCOL, "It is gone.")
    session.last.respond(as_json(YES))
    assert harness.last_error.message == "It is gone."
    assert harness.under_way == 0


def test_internal_fault_ends_call() -> None:
    harness, session = ClientRequestHarness(), ScriptedSession()
    begin(harness, session)
    harness.s.last.require_input(QUESTION)
    harness.s.refuse_with = RuntimeError("a bug")
    session.last.respond(as_json(YES))
    assert harness.last_error.failure.name == "internal_error"
    assert harness.under_way == 0


def test_only_first_response_counts() -> None:
    harness, session = ClientRequestHarness(), ScriptedSession()
    begin(harness, session)
    harness.s.last.require_input(QUESTION)
    session.last.respond(as_json(YES))
    session.last.respond(b'{"action":"cancel"}')
    session.last.reject(-1, "no")
    assert len(harness.s.started) == 2
    assert harness.s.last_sent["inputResponses"] == {"q": YES}


# --- in the client's own words ---


def test_adds_elicitation_id_for_session_client() -> None:
    harness, session = ClientRequestHarness(), ScriptedSession()
    begin(harness, session)
    harness.s.last.require_input({"a": (ELICITATION, URL), "b": (ELICITATION, URL)})
    asked = [json.loads(client_request.params) for client_request in session.client_requests]
    ids = {request.pop("elicitationId") for request in asked}
    assert len(ids) == 2
    assert all(isinstance(id, str) and len(id) >= 12 for id in ids)
    assert asked == [URL, URL]


def test_omits_mode_for_older_client() -> None:
    harness, session = ClientRequestHarness(), ScriptedSession({"elicitation": {}}, "2025-06-18")
    begin(harness, session)
    harness.s.last.require_input({"q": (ELICITATION, {"mode": "form", **FORM})})
    assert session.last_params == FORM


def test_keeps_mode_for_newer_client() -> None:
    harness, session = ClientRequestHarness(), ScriptedSession()
    begin(harness, session)
    harness.s.last.require_input({"q": (ELICITATION, {"mode": "form", **FORM})})
    assert session.last_params == {"mode": "form", **FORM}


def test_limits_sampling_tokens() -> None:
    harness, session = (
        ClientRequestHarness(policy=ClientRequestPolicy(max_tokens=10)),
        ScriptedSession(),
    )
    begin(harness, session)
    harness.s.last.require_input({"q": (SAMPLING, SAMPLE)})
    assert session.last_params == {**SAMPLE, "maxTokens": 10}


@pytest.mark.parametrize(
    ("able", "policy", "client_request"),
    [
        ({}, ClientRequestPolicy(), (ROOTS, None)),
        ({"elicitation": {}}, ClientRequestPolicy(), (ELICITATION, URL)),
        ({"elicitation": {"url": {}}}, ClientRequestPolicy(), (ELICITATION, FORM)),
        ({"sampling": {}}, ClientRequestPolicy(), (SAMPLING, {**SAMPLE, "tools": []})),
        ({"elicitation": {}}, ClientRequestPolicy(elicitation=False), (ELICITATION, FORM)),
        ({}, ClientRequestPolicy(), ("tools/call", {})),
    ],
)
def test_forbidden_client_request_ends_call(
    able: Any, policy: ClientRequestPolicy, client_request: Any
) -> None:
    harness, session = ClientRequestHarness(policy=policy), ScriptedSession(able)
    begin(harness, session)
    harness.s.last.require_input({"q": client_request})
    assert isinstance(harness.last_error, UpstreamResponseError)
    assert session.client_requests == []
    assert (harness.under_way, len(harness.s.started)) == (0, 1)
    assert harness.journal.outcomes == ["refused", "upstream_error"]


def test_one_forbidden_request_stops_all_requests() -> None:
    harness, session = ClientRequestHarness(), ScriptedSession({"elicitation": {}})
    begin(harness, session)
    harness.s.last.require_input(TWO)
    assert session.client_requests == []
    assert harness.under_way == 0


# --- servers that speak nonsense ---


@pytest.mark.parametrize(
    "result",
    [
        {},
        {"inputRequests": {}},
        {"inputRequests": []},
        {"inputRequests": {"q": {}}},
        {"inputRequests": {"q": {"method": 5}}},
        {"inputRequests": {"q": {"method": ELICITATION, "params": []}}},
        {"inputRequests": {"q": {"method": ELICITATION, "params": None}}},
        {"requestState": 5},
        {"requestState": None},
    ],
)
def test_rejects_invalid_input_required_result(result: Any) -> None:
    harness, session = ClientRequestHarness(), ScriptedSession()
    begin(harness, session)
    harness.s.last.require_input(**result)
    assert harness.last_error.failure is UPSTREAM_PROTOCOL
    assert session.client_requests == []
    assert harness.under_way == 0


def test_rejects_input_required_for_other_methods() -> None:
    harness, session = ClientRequestHarness(), ScriptedSession()
    call = call_of(session.client, "", verb=COMPLETE_ARGUMENT, session=session)
    call.extra_params = {"ref": Raw(b'{"type":"ref/prompt","name":"s.p"}')}
    harness.begin(call)
    harness.s.last.require_input(QUESTION)
    assert harness.last_error.failure is UPSTREAM_PROTOCOL
