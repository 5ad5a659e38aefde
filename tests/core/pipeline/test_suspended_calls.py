"""Suspended calls: client requests of a session server for a stateless client."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec import Raw

from interlock.core.call import Call
from interlock.core.pipeline.client_requests import ClientRequestPolicy
from interlock.errors import CANCELLED, DEADLINE_EXCEEDED, UPSTREAM_LOST, InterlockError
from interlock.protocol.mcp import (
    COMPLETE_ARGUMENT,
    ELICITATION,
    LOG_MESSAGE,
    META_LOG_LEVEL,
    PROMPTS_GET,
    RESOURCES_READ,
    ROOTS,
    SAMPLING,
)
from tests.core.pipeline.client_request_harness import (
    FORM,
    GROUPING_SECONDS,
    SAMPLE,
    YES,
    ClientRequestHarness,
    call_of,
    stateless,
)

CLIENT = stateless()


def retry_call(harness: ClientRequestHarness, answers: Any = None, **fields: Any) -> Call:
    """Retry a call with the state of its last result."""
    state = harness.last_result["requestState"]
    fields.setdefault("client", CLIENT)
    return harness.begin(call_of(answers=answers, state=state, **fields))


def retry_and_fail(harness: ClientRequestHarness, **fields: Any) -> InterlockError:
    retry_call(harness, **fields)
    return harness.last_error


# --- the question becomes the answer, and the answer continues the call ---


def test_client_request_becomes_input_required_result() -> None:
    harness = ClientRequestHarness()
    client_request = harness.hold(call_of(CLIENT))
    input_result = harness.last_result
    assert input_result["resultType"] == "input_required"
    assert input_result["inputRequests"] == {"input-1": {"method": ELICITATION, "params": FORM}}
    assert set(input_result) == {"resultType", "inputRequests", "requestState"}
    assert client_request.is_pending
    assert harness.s.last.is_open
    assert (harness.held, harness.under_way) == (1, 0)


def test_retry_continues_suspended_call() -> None:
    harness = ClientRequestHarness()
    client_request = harness.hold(call_of(CLIENT))
    call = retry_call(harness, {"input-1": YES})
    assert client_request.result == YES
    assert (harness.held, harness.under_way) == (0, 1)
    harness.s.last.answer(content=[])
    assert harness.done[-1] == (call, {"content": []})
    assert len(harness.s.started) == 1, "it is the same call, and was not made again"
    assert harness.list_outcomes() == [
        ("tools/call", "input_required"),
        (ELICITATION, "answered"),
        ("tools/call", "ok"),
    ]


@pytest.mark.parametrize(("verb", "name"), [(PROMPTS_GET, "s.p"), (RESOURCES_READ, "test://r")])
def test_prompts_and_resources_may_require_input(verb: str, name: str) -> None:
    harness = ClientRequestHarness()
    client_request = harness.hold(call_of(CLIENT, name, verb=verb))
    retry_call(harness, {"input-1": YES}, name=name, verb=verb)
    harness.s.last.answer(contents=[], messages=[])
    assert client_request.result == YES
    assert harness.last_result == {"contents": [], "messages": []}


def test_rejects_client_request_for_other_methods() -> None:
    harness = ClientRequestHarness()
    call = call_of(CLIENT, "", verb=COMPLETE_ARGUMENT)
    call.extra_params = {"ref": Raw(b'{"type":"ref/prompt","name":"s.p"}')}
    harness.begin(call)
    client_request = harness.s.last.ask()
    assert client_request.rejection[0] == -32602
    harness.s.last.answer(completion={"values": []})
    assert harness.last_result == {"completion": {"values": []}}


def test_omits_session_members_from_input_requests() -> None:
    harness = ClientRequestHarness()
    harness.begin(call_of(CLIENT))
    harness.s.last.ask(ELICITATION, {**FORM, "_meta": {"progressToken": 1}, "task": {}})
    harness.s.last.ask(
        ELICITATION, {"mode": "url", "url": "x:y", "message": "m", "elicitationId": "e"}
    )
    harness.s.last.ask(ROOTS, {"_meta": {}})
    harness.clock.advance(GROUPING_SECONDS)
    assert harness.last_result["inputRequests"] == {
        "input-1": {"method": ELICITATION, "params": FORM},
        "input-2": {
            "method": ELICITATION,
            "params": {"mode": "url", "url": "x:y", "message": "m"},
        },
        "input-3": {"method": ROOTS},
    }


# --- several questions ---


def test_groups_client_requests_of_one_interval() -> None:
    harness = ClientRequestHarness()
    harness.begin(call_of(CLIENT))
    client_requests = [harness.s.last.ask(method) for method in (ELICITATION, SAMPLING, ROOTS)]
    harness.clock.advance(GROUPING_SECONDS)
    assert list(harness.last_result["inputRequests"]) == ["input-1", "input-2", "input-3"]
    responses = {"input-1": YES, "input-2": {"role": "assistant"}, "input-3": {"roots": []}}
    retry_call(harness, responses)
    assert [client_request.result for client_request in client_requests] == list(responses.values())


def test_repeats_unanswered_input_request() -> None:
    harness = ClientRequestHarness()
    harness.begin(call_of(CLIENT))
    first, second = harness.s.last.ask(), harness.s.last.ask(ROOTS)
    harness.clock.advance(GROUPING_SECONDS)
    retry_call(harness, {"input-1": YES, "of-nobody": {}})
    assert first.result == YES
    assert harness.last_result["inputRequests"] == {"input-2": {"method": ROOTS}}
    retry_call(harness, {"input-2": {"roots": []}})
    assert second.result == {"roots": []}
    harness.s.last.answer(content=[])
    assert harness.last_result == {"content": []}
    assert harness.journal.outcomes.count("input_required") == 2


def test_request_during_suspension_waits_for_next_round() -> None:
    harness = ClientRequestHarness()
    first = harness.hold(call_of(CLIENT))
    second = harness.s.last.ask(ROOTS)
    retry_call(harness, {"input-1": YES})
    assert first.result == YES
    assert harness.last_result["inputRequests"] == {"input-2": {"method": ROOTS}}
    retry_call(harness, {"input-2": {"roots": []}})
    assert second.result == {"roots": []}
    assert harness.held == 0


def test_request_after_retry_suspends_call_again() -> None:
    harness = ClientRequestHarness()
    harness.hold(call_of(CLIENT))
    retry_call(harness, {"input-1": YES})
    second = harness.s.last.ask(ROOTS)
    harness.clock.advance(GROUPING_SECONDS)
    assert harness.held == 1
    retry_call(harness, {"input-1": {"roots": []}})
    assert second.result == {"roots": []}
    harness.s.last.answer(content=[])
    assert harness.last_result == {"content": []}


def test_withdrawn_request_is_not_sent_to_client() -> None:
    harness = ClientRequestHarness()
    harness.begin(call_of(CLIENT))
    client_request = harness.s.last.ask()
    client_request.ask.withdraw("never mind")
    harness.clock.advance(GROUPING_SECONDS)
    assert (harness.held, harness.under_way, harness.done) == (0, 1, [])
    harness.s.last.answer(content=[])
    assert harness.last_result == {"content": []}
    assert harness.list_outcomes() == [(ELICITATION, "withdrawn"), ("tools/call", "ok")]


def test_request_withdrawn_during_suspension_needs_no_response() -> None:
    harness = ClientRequestHarness()
    client_request = harness.hold(call_of(CLIENT))
    client_request.ask.withdraw("never mind")
    retry_call(harness, {"input-1": YES})
    assert client_request.is_pending
    assert (harness.held, harness.under_way) == (0, 1)
    harness.s.last.answer(content=[])
    assert harness.last_result == {"content": []}


@pytest.mark.parametrize("is_suspended", [False, True], ids=["before suspension", "suspended"])
def test_checks_further_requests(is_suspended: bool) -> None:
    harness = ClientRequestHarness(policy=ClientRequestPolicy(max_tokens=10))
    harness.begin(call_of(stateless({"elicitation": {}, "sampling": {}})))
    harness.s.last.ask()
    if is_suspended:
        harness.clock.advance(GROUPING_SECONDS)
    assert harness.s.last.ask(ROOTS).rejection[0] == -32601
    harness.s.last.ask(SAMPLING)
    if is_suspended:
        retry_call(harness, {"input-1": YES}, client=stateless({"elicitation": {}, "sampling": {}}))
    else:
        harness.clock.advance(GROUPING_SECONDS)
    [input_result] = [
        item for item in harness.last_result["inputRequests"].values() if item["method"] == SAMPLING
    ]
    assert input_result["params"] == {**SAMPLE, "maxTokens": 10}


def test_rejects_requests_beyond_capabilities_of_retry() -> None:
    """What a client can do is said anew with every request."""
    harness = ClientRequestHarness()
    harness.begin(call_of(CLIENT))
    form, roots = harness.s.last.ask(), harness.s.last.ask(ROOTS)
    harness.clock.advance(GROUPING_SECONDS)
    retry_call(harness, {"input-1": YES}, client=stateless({"elicitation": {}}))
    assert form.result == YES
    assert roots.rejection[0] == -32601
    assert (harness.held, harness.under_way) == (0, 1)


# --- the server does something else meanwhile ---


def test_returns_result_of_same_interval() -> None:
    harness = ClientRequestHarness()
    harness.begin(call_of(CLIENT))
    harness.s.last.ask()
    harness.s.last.answer(content=[])
    assert harness.last_result == {"content": []}
    harness.clock.advance(GROUPING_SECONDS)
    assert (harness.held, harness.under_way, len(harness.done)) == (0, 0, 1)
    assert harness.list_outcomes() == [(ELICITATION, "withdrawn"), ("tools/call", "ok")]


def test_delivers_notifications_until_suspension() -> None:
    harness = ClientRequestHarness()
    received: list[str] = []
    call = call_of(CLIENT, meta={META_LOG_LEVEL: "debug"})
    call.on_notification = lambda call, method, params: received.append(method)
    harness.begin(call)
    harness.s.last.ask()
    harness.s.last.say(LOG_MESSAGE, b'{"level":"info","data":1}')
    harness.clock.advance(GROUPING_SECONDS)
    harness.s.last.say(LOG_MESSAGE, b'{"level":"info","data":2}')
    assert received == [LOG_MESSAGE], "nobody listens any more after the breath"


@pytest.mark.parametrize("tool", ["s.t", "s.look"])
def test_keeps_result_for_retry(tool: str) -> None:
    harness = ClientRequestHarness()
    client_request = harness.hold(call_of(CLIENT, tool))
    harness.s.last.answer(content=[])
    assert harness.held == 1
    retry_call(harness, {"input-1": YES}, name=tool)
    assert harness.last_result == {"content": []}
    assert client_request.is_pending
    assert (harness.held, harness.under_way, len(harness.s.started)) == (0, 0, 1)
    assert harness.list_outcomes() == [
        ("tools/call", "input_required"),
        (ELICITATION, "withdrawn"),
        ("tools/call", "ok"),
    ]


def test_keeps_error_for_retry() -> None:
    harness = ClientRequestHarness()
    harness.hold(call_of(CLIENT))
    harness.s.last.answer_error(-32000, "out of paper")
    assert retry_and_fail(harness, answers={"input-1": YES}).message == "out of paper"


def test_lost_upstream_is_not_called_again() -> None:
    harness = ClientRequestHarness()
    harness.hold(call_of(CLIENT))
    harness.s.last.lose(sent=True)
    assert retry_and_fail(harness, answers={"input-1": YES}).failure is UPSTREAM_LOST
    assert len(harness.s.started) == 1
    assert (harness.held, harness.under_way) == (0, 0)


def test_reports_upstream_lost_before_suspension() -> None:
    harness = ClientRequestHarness()
    harness.begin(call_of(CLIENT))
    harness.s.last.ask()
    harness.s.last.lose(sent=True)
    harness.clock.advance(GROUPING_SECONDS)
    assert harness.last_error.failure is UPSTREAM_LOST
    assert (harness.held, len(harness.done), len(harness.s.started)) == (0, 1, 1)


async def test_repeats_lost_call_of_repeatable_tool() -> None:
    harness = ClientRequestHarness()
    harness.hold(call_of(CLIENT, "s.look"))
    harness.s.last.lose(sent=True)
    retry_call(harness, {"input-1": YES}, name="s.look")
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(harness.s.started) == 2
    assert harness.s.last_sent == {}, "the answers belonged to the call that is lost"
    harness.s.last.answer(content=[])
    assert harness.last_result == {"content": []}


# --- the client does something else ---


def test_cancellation_before_suspension_abandons_call() -> None:
    harness = ClientRequestHarness()
    call = harness.begin(call_of(CLIENT))
    exchange = harness.s.last
    exchange.ask()
    harness.pipeline.cancel(call)
    harness.clock.advance(GROUPING_SECONDS)
    assert harness.last_error.failure is CANCELLED
    assert exchange.abandoned
    assert (harness.held, harness.under_way, len(harness.done)) == (0, 0, 1)


def test_disconnect_after_suspension_keeps_call() -> None:
    harness = ClientRequestHarness()
    call = call_of(CLIENT)
    client_request = harness.hold(call)
    harness.pipeline.cancel(call)
    assert harness.s.last.is_open
    retry_call(harness, {"input-1": YES})
    assert client_request.result == YES


def test_cancellation_of_retry_cancels_call() -> None:
    harness = ClientRequestHarness()
    harness.hold(call_of(CLIENT))
    call = retry_call(harness, {"input-1": YES})
    harness.pipeline.cancel(call)
    assert harness.s.last.abandoned
    assert (harness.held, harness.under_way) == (0, 0)
    assert harness.journal.outcomes[-1] == "cancelled"


def test_expires_before_suspension() -> None:
    harness = ClientRequestHarness(timeout=0.045)
    harness.begin(call_of(CLIENT))
    harness.clock.advance(0.04)
    harness.s.last.ask()
    harness.clock.advance(1)
    assert [error.failure for _, error in harness.done] == [DEADLINE_EXCEEDED]
    assert (harness.held, harness.under_way) == (0, 0)


def test_retry_has_new_deadline() -> None:
    harness = ClientRequestHarness(timeout=10)
    harness.hold(call_of(CLIENT))
    harness.clock.advance(300)
    assert harness.s.last.is_open, "while it is held it is the client's time"
    retry_call(harness, {"input-1": YES})
    harness.clock.advance(9)
    assert harness.under_way == 1
    harness.clock.advance(1.2)
    assert harness.last_error.failure is DEADLINE_EXCEEDED
    assert harness.s.last.expired
