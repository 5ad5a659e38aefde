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
    AskingRig,
    ScriptedSession,
    call_of,
)

QUESTION = {"q": (ELICITATION, FORM)}
TWO = {"a": (ELICITATION, FORM), "b": (ROOTS, None)}


def begin(rig: AskingRig, session: ScriptedSession, name: str = "s.t", **fields: Any) -> Call:
    return rig.begin(call_of(session.client, name, session=session, **fields))


def as_json(value: Any) -> bytes:
    return json.dumps(value).encode()


# --- the way it is meant ---


def test_sends_client_request_and_repeats_call() -> None:
    rig, session = AskingRig(), ScriptedSession()
    begin(rig, session, arguments={"n": 1})
    rig.s.last.need(QUESTION, state="theirs")
    assert (rig.done, rig.under_way) == ([], 1)
    assert session.last.method == ELICITATION
    session.last.respond(as_json(YES))
    assert rig.s.last_sent == {"inputResponses": {"q": YES}, "requestState": "theirs"}
    assert bytes(rig.s.last.call.arguments) == b'{"n": 1}'
    rig.s.last.answer(content=[])
    assert rig.last_result == {"content": []}
    assert rig.journalled() == [(ELICITATION, "answered"), ("tools/call", "ok")]


@pytest.mark.parametrize(
    ("verb", "name", "kept"),
    [(PROMPTS_GET, "s.p", {"name": "p"}), (RESOURCES_READ, "test://r", {"uri": "test://r"})],
)
def test_prompts_and_resources_may_require_input(verb: str, name: str, kept: Any) -> None:
    rig, session = AskingRig(), ScriptedSession()
    begin(rig, session, name, verb=verb)
    rig.s.last.need(QUESTION, state="theirs")
    session.last.respond(as_json(YES))
    assert rig.s.last_sent == {"inputResponses": {"q": YES}, "requestState": "theirs", **kept}


def test_omits_state_when_server_has_no_state() -> None:
    rig, session = AskingRig(), ScriptedSession()
    begin(rig, session)
    rig.s.last.need(QUESTION)
    session.last.respond(as_json(YES))
    assert rig.s.last_sent == {"inputResponses": {"q": YES}}


def test_sends_only_responses_of_last_round() -> None:
    rig, session = AskingRig(), ScriptedSession()
    begin(rig, session)
    rig.s.last.need({"one": (ELICITATION, FORM)}, state="first")
    session.last.respond(as_json(YES))
    rig.s.last.need({"two": (ROOTS, None)})
    session.last.respond(b'{"roots":[]}')
    assert rig.s.last_sent == {"inputResponses": {"two": {"roots": []}}}


def test_sends_requests_together_and_accepts_any_response_order() -> None:
    rig, session = AskingRig(), ScriptedSession()
    begin(rig, session)
    rig.s.last.need(TWO)
    assert [ask.method for ask in session.asked] == [ELICITATION, ROOTS]
    session.asked[1].respond(b'{"roots":[]}')
    assert len(rig.s.started) == 1
    session.asked[0].respond(as_json(YES))
    assert rig.s.last_sent["inputResponses"] == {"a": YES, "b": {"roots": []}}


def test_keeps_state_byte_for_byte() -> None:
    rig, session = AskingRig(), ScriptedSession()
    begin(rig, session)
    state = 'v1."\\/é\u2028 \t'
    rig.s.last.need(QUESTION, state=state)
    session.last.respond(as_json(YES))
    assert rig.s.last_sent["requestState"] == state


# --- up to a limit ---


def test_limits_input_rounds() -> None:
    rig, session = AskingRig(), ScriptedSession()
    begin(rig, session)
    for number in range(MAX_INPUT_ROUNDS):
        rig.s.last.need(QUESTION)
        assert len(session.asked) == number + 1
        session.last.respond(as_json(YES))
    assert len(rig.s.started) == MAX_INPUT_ROUNDS + 1
    rig.s.last.need(QUESTION)
    assert len(session.asked) == MAX_INPUT_ROUNDS
    assert rig.last_error.failure is UPSTREAM_PROTOCOL
    assert rig.under_way == 0


def test_accepts_result_of_last_round() -> None:
    rig, session = AskingRig(), ScriptedSession()
    begin(rig, session)
    for _ in range(MAX_INPUT_ROUNDS):
        rig.s.last.need(QUESTION)
        session.last.respond(as_json(YES))
    rig.s.last.answer(content=[])
    assert rig.last_result == {"content": []}


def test_repeats_call_with_state_after_delay() -> None:
    rig, session = AskingRig(), ScriptedSession()
    begin(rig, session)
    waits = []
    for number in range(MAX_INPUT_ROUNDS):
        rig.s.last.need(state=f"state {number}")
        began = rig.clock.now
        while len(rig.s.started) == number + 1:
            rig.clock.advance(0.001)
        waits.append(rig.clock.now - began)
        assert rig.s.last_sent == {"requestState": f"state {number}"}
    assert waits == pytest.approx([0.05, 0.1, 0.2, *[0.25] * 7], abs=0.005)
    assert session.asked == []
    rig.s.last.need(state="once more")
    assert rig.last_error.failure is UPSTREAM_PROTOCOL


def test_cancellation_during_delay_ends_call() -> None:
    rig, session = AskingRig(), ScriptedSession()
    call = begin(rig, session)
    rig.s.last.need(state="later")
    rig.pipeline.cancel(call)
    rig.clock.advance(1)
    assert len(rig.s.started) == 1
    assert rig.journal.outcomes == ["cancelled"]


# --- the client does not answer ---


def test_rejection_ends_call_and_withdraws_other_requests() -> None:
    rig, session = AskingRig(), ScriptedSession()
    begin(rig, session)
    rig.s.last.need(TWO)
    session.asked[0].reject(-1, "no", b'{"why":1}')
    error = rig.last_error
    assert isinstance(error, UpstreamResponseError)
    assert (error.code, error.message, error.raw_data) == (-1, "no", b'{"why":1}')
    assert [ask for ask, _ in session.withdrawn] == [session.asked[1]]
    session.asked[1].respond(b'{"roots":[]}')
    assert len(rig.s.started) == 1
    assert len(rig.done) == 1
    assert rig.journalled() == [
        (ELICITATION, "refused"),
        (ROOTS, "withdrawn"),
        ("tools/call", "upstream_error"),
    ]


def test_error_code_zero_is_rejection() -> None:
    rig, session = AskingRig(), ScriptedSession()
    begin(rig, session)
    rig.s.last.need(QUESTION)
    session.last.reject(0, "no")
    assert rig.last_error.message == "no"
    assert len(rig.s.started) == 1


def test_declined_form_is_response() -> None:
    rig, session = AskingRig(), ScriptedSession()
    begin(rig, session)
    rig.s.last.need(QUESTION)
    session.last.respond(b'{"action":"decline"}')
    assert rig.s.last_sent["inputResponses"] == {"q": {"action": "decline"}}
    assert rig.journal.entries[0]["detail"] == "decline"


def test_invalid_response_ends_call() -> None:
    rig, session = AskingRig(), ScriptedSession()
    begin(rig, session)
    rig.s.last.need(TWO)
    session.asked[0].respond(b"[]")
    assert "not an object" in rig.last_error.message
    assert len(session.withdrawn) == 1
    assert len(rig.s.started) == 1


@pytest.mark.parametrize("reached", [0, 1], ids=["at all", "for the second question"])
def test_unreachable_client_ends_call(reached: int) -> None:
    rig, session = AskingRig(), ScriptedSession()
    begin(rig, session)
    put = session.send_request

    def ask(ask: Any, call: Any) -> bool:
        session.reachable = len(session.asked) < reached
        return put(ask, call)

    session.send_request = ask  # type: ignore[method-assign]
    rig.s.last.need(TWO)
    assert rig.last_error.failure is UPSTREAM_PROTOCOL
    assert len(session.withdrawn) == reached
    assert (rig.under_way, len(rig.s.started)) == (0, 1)


def test_call_without_session_fails() -> None:
    rig = AskingRig()
    rig.begin(call_of(ScriptedSession().client))
    rig.s.last.need(QUESTION)
    assert rig.last_error.failure is UPSTREAM_PROTOCOL


def test_client_timeout_is_longer_than_call_timeout() -> None:
    rig, session = AskingRig(timeout=10, seconds=600), ScriptedSession()
    begin(rig, session)
    rig.s.last.need(QUESTION)
    rig.clock.advance(599)
    assert rig.under_way == 1
    session.last.respond(as_json(YES))
    rig.clock.advance(9)
    assert rig.under_way == 1
    rig.clock.advance(1.2)
    assert rig.last_error.failure is DEADLINE_EXCEEDED
    assert rig.s.last.expired


def test_expires_unanswered_client_request() -> None:
    rig, session = AskingRig(timeout=10, seconds=600, failures=1), ScriptedSession()
    begin(rig, session)
    rig.s.last.need(QUESTION)
    rig.clock.advance(601)
    assert rig.last_error.failure is DEADLINE_EXCEEDED
    assert len(session.withdrawn) == 1
    session.last.respond(as_json(YES))
    assert (len(rig.s.started), len(rig.done)) == (1, 1)
    assert rig.breakers.failing == {}, "a server is not to blame for people who do not answer"


def test_caller_timeout_includes_client_requests() -> None:
    rig, session = AskingRig(), ScriptedSession()
    begin(rig, session, meta={META_TIMEOUT: 5000})
    rig.s.last.need(QUESTION)
    rig.clock.advance(3)
    session.last.respond(as_json(YES))
    rig.s.last.need(QUESTION)
    rig.clock.advance(1)
    session.last.respond(as_json(YES))
    assert rig.under_way == 1
    rig.clock.advance(1.2)
    assert rig.last_error.failure is DEADLINE_EXCEEDED


def test_cancellation_withdraws_client_requests() -> None:
    rig, session = AskingRig(), ScriptedSession()
    call = begin(rig, session)
    rig.s.last.need(TWO)
    rig.pipeline.cancel(call)
    assert rig.last_error.failure is CANCELLED
    assert len(session.withdrawn) == 2
    session.asked[0].respond(as_json(YES))
    session.asked[1].respond(b"{}")
    assert len(rig.s.started) == 1
    assert rig.journal.outcomes == ["withdrawn", "withdrawn", "cancelled"]


async def test_drain_withdraws_client_requests() -> None:
    rig, session = AskingRig(), ScriptedSession()
    begin(rig, session)
    rig.s.last.need(QUESTION)
    await rig.pipeline.drain(0)
    assert rig.last_error.failure is SHUTTING_DOWN
    assert len(session.withdrawn) == 1
    assert rig.under_way == 0


# --- never twice what may have been done ---


def test_lost_call_of_later_round_is_not_repeated() -> None:
    rig, session = AskingRig(), ScriptedSession()
    begin(rig, session)
    rig.s.last.need(QUESTION)
    session.last.respond(as_json(YES))
    rig.s.last.lose(sent=True)
    assert rig.last_error.failure is UPSTREAM_LOST
    assert len(rig.s.started) == 2


def test_unavailable_upstream_ends_call() -> None:
    rig, session = AskingRig(), ScriptedSession()
    begin(rig, session)
    rig.s.last.need(QUESTION)
    rig.s.refuse_with = InterlockError(UPSTREAM_PROTOCOL, "It is gone.")
    session.last.respond(as_json(YES))
    assert rig.last_error.message == "It is gone."
    assert rig.under_way == 0


def test_internal_fault_ends_call() -> None:
    rig, session = AskingRig(), ScriptedSession()
    begin(rig, session)
    rig.s.last.need(QUESTION)
    rig.s.refuse_with = RuntimeError("a bug")
    session.last.respond(as_json(YES))
    assert rig.last_error.failure.name == "internal_error"
    assert rig.under_way == 0


def test_only_first_response_counts() -> None:
    rig, session = AskingRig(), ScriptedSession()
    begin(rig, session)
    rig.s.last.need(QUESTION)
    session.last.respond(as_json(YES))
    session.last.respond(b'{"action":"cancel"}')
    session.last.reject(-1, "no")
    assert len(rig.s.started) == 2
    assert rig.s.last_sent["inputResponses"] == {"q": YES}


# --- in the client's own words ---


def test_adds_elicitation_id_for_session_client() -> None:
    rig, session = AskingRig(), ScriptedSession()
    begin(rig, session)
    rig.s.last.need({"a": (ELICITATION, URL), "b": (ELICITATION, URL)})
    asked = [json.loads(ask.params) for ask in session.asked]
    ids = {one.pop("elicitationId") for one in asked}
    assert len(ids) == 2
    assert all(isinstance(id, str) and len(id) >= 12 for id in ids)
    assert asked == [URL, URL]


def test_omits_mode_for_older_client() -> None:
    rig, session = AskingRig(), ScriptedSession({"elicitation": {}}, "2025-06-18")
    begin(rig, session)
    rig.s.last.need({"q": (ELICITATION, {"mode": "form", **FORM})})
    assert session.last_params == FORM


def test_keeps_mode_for_newer_client() -> None:
    rig, session = AskingRig(), ScriptedSession()
    begin(rig, session)
    rig.s.last.need({"q": (ELICITATION, {"mode": "form", **FORM})})
    assert session.last_params == {"mode": "form", **FORM}


def test_limits_sampling_tokens() -> None:
    rig, session = AskingRig(policy=ClientRequestPolicy(max_tokens=10)), ScriptedSession()
    begin(rig, session)
    rig.s.last.need({"q": (SAMPLING, SAMPLE)})
    assert session.last_params == {**SAMPLE, "maxTokens": 10}


@pytest.mark.parametrize(
    ("able", "policy", "question"),
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
    able: Any, policy: ClientRequestPolicy, question: Any
) -> None:
    rig, session = AskingRig(policy=policy), ScriptedSession(able)
    begin(rig, session)
    rig.s.last.need({"q": question})
    assert isinstance(rig.last_error, UpstreamResponseError)
    assert session.asked == []
    assert (rig.under_way, len(rig.s.started)) == (0, 1)
    assert rig.journal.outcomes == ["refused", "upstream_error"]


def test_one_forbidden_request_stops_all_requests() -> None:
    rig, session = AskingRig(), ScriptedSession({"elicitation": {}})
    begin(rig, session)
    rig.s.last.need(TWO)
    assert session.asked == []
    assert rig.under_way == 0


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
    rig, session = AskingRig(), ScriptedSession()
    begin(rig, session)
    rig.s.last.need(**result)
    assert rig.last_error.failure is UPSTREAM_PROTOCOL
    assert session.asked == []
    assert rig.under_way == 0


def test_rejects_input_required_for_other_methods() -> None:
    rig, session = AskingRig(), ScriptedSession()
    call = call_of(session.client, "", verb=COMPLETE_ARGUMENT, session=session)
    call.extra_params = {"ref": Raw(b'{"type":"ref/prompt","name":"s.p"}')}
    rig.begin(call)
    rig.s.last.need(QUESTION)
    assert rig.last_error.failure is UPSTREAM_PROTOCOL
