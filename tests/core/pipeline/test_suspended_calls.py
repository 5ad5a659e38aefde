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
    BREATH,
    FORM,
    SAMPLE,
    YES,
    AskingRig,
    call_of,
    stateless,
)

CLIENT = stateless()


def again(rig: AskingRig, answers: Any = None, **fields: Any) -> Call:
    """The client comes back with what the last answer gave it."""
    state = rig.last_result["requestState"]
    fields.setdefault("client", CLIENT)
    return rig.begin(call_of(answers=answers, state=state, **fields))


def refused_again(rig: AskingRig, **fields: Any) -> InterlockError:
    again(rig, **fields)
    return rig.last_error


# --- the question becomes the answer, and the answer continues the call ---


def test_client_request_becomes_input_required_result() -> None:
    rig = AskingRig()
    question = rig.hold(call_of(CLIENT))
    asked = rig.last_result
    assert asked["resultType"] == "input_required"
    assert asked["inputRequests"] == {"input-1": {"method": ELICITATION, "params": FORM}}
    assert set(asked) == {"resultType", "inputRequests", "requestState"}
    assert question.unanswered
    assert rig.s.last.is_open
    assert (rig.held, rig.under_way) == (1, 0)


def test_retry_continues_suspended_call() -> None:
    rig = AskingRig()
    question = rig.hold(call_of(CLIENT))
    call = again(rig, {"input-1": YES})
    assert question.answer == YES
    assert (rig.held, rig.under_way) == (0, 1)
    rig.s.last.answer(content=[])
    assert rig.done[-1] == (call, {"content": []})
    assert len(rig.s.started) == 1, "it is the same call, and was not made again"
    assert rig.journalled() == [
        ("tools/call", "input_required"),
        (ELICITATION, "answered"),
        ("tools/call", "ok"),
    ]


@pytest.mark.parametrize(("verb", "name"), [(PROMPTS_GET, "s.p"), (RESOURCES_READ, "test://r")])
def test_prompts_and_resources_may_require_input(verb: str, name: str) -> None:
    rig = AskingRig()
    question = rig.hold(call_of(CLIENT, name, verb=verb))
    again(rig, {"input-1": YES}, name=name, verb=verb)
    rig.s.last.answer(contents=[], messages=[])
    assert question.answer == YES
    assert rig.last_result == {"contents": [], "messages": []}


def test_rejects_client_request_for_other_methods() -> None:
    rig = AskingRig()
    call = call_of(CLIENT, "", verb=COMPLETE_ARGUMENT)
    call.extra_params = {"ref": Raw(b'{"type":"ref/prompt","name":"s.p"}')}
    rig.begin(call)
    question = rig.s.last.ask()
    assert question.refusal[0] == -32602
    rig.s.last.answer(completion={"values": []})
    assert rig.last_result == {"completion": {"values": []}}


def test_omits_session_members_from_input_requests() -> None:
    rig = AskingRig()
    rig.begin(call_of(CLIENT))
    rig.s.last.ask(ELICITATION, {**FORM, "_meta": {"progressToken": 1}, "task": {}})
    rig.s.last.ask(ELICITATION, {"mode": "url", "url": "x:y", "message": "m", "elicitationId": "e"})
    rig.s.last.ask(ROOTS, {"_meta": {}})
    rig.clock.advance(BREATH)
    assert rig.last_result["inputRequests"] == {
        "input-1": {"method": ELICITATION, "params": FORM},
        "input-2": {
            "method": ELICITATION,
            "params": {"mode": "url", "url": "x:y", "message": "m"},
        },
        "input-3": {"method": ROOTS},
    }


# --- several questions ---


def test_groups_client_requests_of_one_interval() -> None:
    rig = AskingRig()
    rig.begin(call_of(CLIENT))
    questions = [rig.s.last.ask(method) for method in (ELICITATION, SAMPLING, ROOTS)]
    rig.clock.advance(BREATH)
    assert list(rig.last_result["inputRequests"]) == ["input-1", "input-2", "input-3"]
    answers = {"input-1": YES, "input-2": {"role": "assistant"}, "input-3": {"roots": []}}
    again(rig, answers)
    assert [one.answer for one in questions] == list(answers.values())


def test_repeats_unanswered_input_request() -> None:
    rig = AskingRig()
    rig.begin(call_of(CLIENT))
    first, second = rig.s.last.ask(), rig.s.last.ask(ROOTS)
    rig.clock.advance(BREATH)
    again(rig, {"input-1": YES, "of-nobody": {}})
    assert first.answer == YES
    assert rig.last_result["inputRequests"] == {"input-2": {"method": ROOTS}}
    again(rig, {"input-2": {"roots": []}})
    assert second.answer == {"roots": []}
    rig.s.last.answer(content=[])
    assert rig.last_result == {"content": []}
    assert rig.journal.outcomes.count("input_required") == 2


def test_request_during_suspension_waits_for_next_round() -> None:
    rig = AskingRig()
    first = rig.hold(call_of(CLIENT))
    second = rig.s.last.ask(ROOTS)
    again(rig, {"input-1": YES})
    assert first.answer == YES
    assert rig.last_result["inputRequests"] == {"input-2": {"method": ROOTS}}
    again(rig, {"input-2": {"roots": []}})
    assert second.answer == {"roots": []}
    assert rig.held == 0


def test_request_after_retry_suspends_call_again() -> None:
    rig = AskingRig()
    rig.hold(call_of(CLIENT))
    again(rig, {"input-1": YES})
    second = rig.s.last.ask(ROOTS)
    rig.clock.advance(BREATH)
    assert rig.held == 1
    again(rig, {"input-1": {"roots": []}})
    assert second.answer == {"roots": []}
    rig.s.last.answer(content=[])
    assert rig.last_result == {"content": []}


def test_withdrawn_request_is_not_sent_to_client() -> None:
    rig = AskingRig()
    rig.begin(call_of(CLIENT))
    question = rig.s.last.ask()
    question.ask.withdraw("never mind")
    rig.clock.advance(BREATH)
    assert (rig.held, rig.under_way, rig.done) == (0, 1, [])
    rig.s.last.answer(content=[])
    assert rig.last_result == {"content": []}
    assert rig.journalled() == [(ELICITATION, "withdrawn"), ("tools/call", "ok")]


def test_request_withdrawn_during_suspension_needs_no_response() -> None:
    rig = AskingRig()
    question = rig.hold(call_of(CLIENT))
    question.ask.withdraw("never mind")
    again(rig, {"input-1": YES})
    assert question.unanswered
    assert (rig.held, rig.under_way) == (0, 1)
    rig.s.last.answer(content=[])
    assert rig.last_result == {"content": []}


@pytest.mark.parametrize("held", [False, True], ids=["in the same breath", "while held"])
def test_checks_further_requests(held: bool) -> None:
    rig = AskingRig(policy=ClientRequestPolicy(max_tokens=10))
    rig.begin(call_of(stateless({"elicitation": {}, "sampling": {}})))
    rig.s.last.ask()
    if held:
        rig.clock.advance(BREATH)
    assert rig.s.last.ask(ROOTS).refusal[0] == -32601
    rig.s.last.ask(SAMPLING)
    if held:
        again(rig, {"input-1": YES}, client=stateless({"elicitation": {}, "sampling": {}}))
    else:
        rig.clock.advance(BREATH)
    [asked] = [
        one for one in rig.last_result["inputRequests"].values() if one["method"] == SAMPLING
    ]
    assert asked["params"] == {**SAMPLE, "maxTokens": 10}


def test_rejects_requests_beyond_capabilities_of_retry() -> None:
    """What a client can do is said anew with every request."""
    rig = AskingRig()
    rig.begin(call_of(CLIENT))
    form, roots = rig.s.last.ask(), rig.s.last.ask(ROOTS)
    rig.clock.advance(BREATH)
    again(rig, {"input-1": YES}, client=stateless({"elicitation": {}}))
    assert form.answer == YES
    assert roots.refusal[0] == -32601
    assert (rig.held, rig.under_way) == (0, 1)


# --- the server does something else meanwhile ---


def test_returns_result_of_same_interval() -> None:
    rig = AskingRig()
    rig.begin(call_of(CLIENT))
    rig.s.last.ask()
    rig.s.last.answer(content=[])
    assert rig.last_result == {"content": []}
    rig.clock.advance(BREATH)
    assert (rig.held, rig.under_way, len(rig.done)) == (0, 0, 1)
    assert rig.journalled() == [(ELICITATION, "withdrawn"), ("tools/call", "ok")]


def test_delivers_notifications_until_suspension() -> None:
    rig = AskingRig()
    heard: list[str] = []
    call = call_of(CLIENT, meta={META_LOG_LEVEL: "debug"})
    call.on_notification = lambda call, method, params: heard.append(method)
    rig.begin(call)
    rig.s.last.ask()
    rig.s.last.say(LOG_MESSAGE, b'{"level":"info","data":1}')
    rig.clock.advance(BREATH)
    rig.s.last.say(LOG_MESSAGE, b'{"level":"info","data":2}')
    assert heard == [LOG_MESSAGE], "nobody listens any more after the breath"


@pytest.mark.parametrize("tool", ["s.t", "s.look"])
def test_keeps_result_for_retry(tool: str) -> None:
    rig = AskingRig()
    question = rig.hold(call_of(CLIENT, tool))
    rig.s.last.answer(content=[])
    assert rig.held == 1
    again(rig, {"input-1": YES}, name=tool)
    assert rig.last_result == {"content": []}
    assert question.unanswered
    assert (rig.held, rig.under_way, len(rig.s.started)) == (0, 0, 1)
    assert rig.journalled() == [
        ("tools/call", "input_required"),
        (ELICITATION, "withdrawn"),
        ("tools/call", "ok"),
    ]


def test_keeps_error_for_retry() -> None:
    rig = AskingRig()
    rig.hold(call_of(CLIENT))
    rig.s.last.answer_error(-32000, "out of paper")
    assert refused_again(rig, answers={"input-1": YES}).message == "out of paper"


def test_lost_upstream_is_not_called_again() -> None:
    rig = AskingRig()
    rig.hold(call_of(CLIENT))
    rig.s.last.lose(sent=True)
    assert refused_again(rig, answers={"input-1": YES}).failure is UPSTREAM_LOST
    assert len(rig.s.started) == 1
    assert (rig.held, rig.under_way) == (0, 0)


def test_reports_upstream_lost_before_suspension() -> None:
    rig = AskingRig()
    rig.begin(call_of(CLIENT))
    rig.s.last.ask()
    rig.s.last.lose(sent=True)
    rig.clock.advance(BREATH)
    assert rig.last_error.failure is UPSTREAM_LOST
    assert (rig.held, len(rig.done), len(rig.s.started)) == (0, 1, 1)


async def test_repeats_lost_call_of_repeatable_tool() -> None:
    rig = AskingRig()
    rig.hold(call_of(CLIENT, "s.look"))
    rig.s.last.lose(sent=True)
    again(rig, {"input-1": YES}, name="s.look")
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(rig.s.started) == 2
    assert rig.s.last_sent == {}, "the answers belonged to the call that is lost"
    rig.s.last.answer(content=[])
    assert rig.last_result == {"content": []}


# --- the client does something else ---


def test_cancellation_before_suspension_abandons_call() -> None:
    rig = AskingRig()
    call = rig.begin(call_of(CLIENT))
    exchange = rig.s.last
    exchange.ask()
    rig.pipeline.cancel(call)
    rig.clock.advance(BREATH)
    assert rig.last_error.failure is CANCELLED
    assert exchange.abandoned
    assert (rig.held, rig.under_way, len(rig.done)) == (0, 0, 1)


def test_disconnect_after_suspension_keeps_call() -> None:
    rig = AskingRig()
    call = call_of(CLIENT)
    question = rig.hold(call)
    rig.pipeline.cancel(call)
    assert rig.s.last.is_open
    again(rig, {"input-1": YES})
    assert question.answer == YES


def test_cancellation_of_retry_cancels_call() -> None:
    rig = AskingRig()
    rig.hold(call_of(CLIENT))
    call = again(rig, {"input-1": YES})
    rig.pipeline.cancel(call)
    assert rig.s.last.abandoned
    assert (rig.held, rig.under_way) == (0, 0)
    assert rig.journal.outcomes[-1] == "cancelled"


def test_expires_before_suspension() -> None:
    rig = AskingRig(timeout=0.045)
    rig.begin(call_of(CLIENT))
    rig.clock.advance(0.04)
    rig.s.last.ask()
    rig.clock.advance(1)
    assert [error.failure for _, error in rig.done] == [DEADLINE_EXCEEDED]
    assert (rig.held, rig.under_way) == (0, 0)


def test_retry_has_new_deadline() -> None:
    rig = AskingRig(timeout=10)
    rig.hold(call_of(CLIENT))
    rig.clock.advance(300)
    assert rig.s.last.is_open, "while it is held it is the client's time"
    again(rig, {"input-1": YES})
    rig.clock.advance(9)
    assert rig.under_way == 1
    rig.clock.advance(1.2)
    assert rig.last_error.failure is DEADLINE_EXCEEDED
    assert rig.s.last.expired
