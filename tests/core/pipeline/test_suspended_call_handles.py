"""Handles of suspended calls: single use, binding to the caller, and expiry."""

from __future__ import annotations

from typing import Any

import pytest

from interlock.core.call import Call, Client
from interlock.core.pipeline import client_requests as held_room
from interlock.errors import INVALID_PARAMS, INVALID_STATE, SHUTTING_DOWN
from interlock.protocol.mcp import ELICITATION, META_TIMEOUT, PROMPTS_GET, ROOTS
from tests.core.pipeline.client_request_harness import (
    AUDITOR,
    BREATH,
    OPERATOR,
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


# --- a handle is good once, for its own caller and request ---


def test_accepts_handle_once() -> None:
    rig = AskingRig()
    question = rig.hold(call_of(CLIENT))
    state = rig.last_result["requestState"]
    rig.begin(call_of(CLIENT, answers={"input-1": YES}, state=state))
    for _ in range(2):
        error = rig.refused(call_of(CLIENT, answers={"input-1": {}}, state=state))
        assert error.failure is INVALID_STATE
    assert question.answer == YES
    rig.s.last.answer(content=[])
    assert rig.last_result == {"content": []}


def test_rejects_handle_of_earlier_round() -> None:
    rig = AskingRig()
    rig.begin(call_of(CLIENT))
    rig.s.last.ask()
    rig.s.last.ask(ROOTS)
    rig.clock.advance(BREATH)
    first = rig.last_result["requestState"]
    again(rig, {"input-1": YES})
    second = rig.last_result["requestState"]
    error = rig.refused(call_of(CLIENT, answers={"input-2": {"roots": []}}, state=first))
    assert error.failure is INVALID_STATE
    assert rig.held == 1
    rig.begin(call_of(CLIENT, answers={"input-2": {"roots": []}}, state=second))
    assert (rig.held, rig.under_way) == (0, 1)


def fields_of_another(rig: AskingRig) -> list[dict[str, Any]]:
    return [
        {"credentials": AUDITOR},
        {"name": "s.look", "credentials": OPERATOR},
        {"arguments": {"n": 1}, "credentials": OPERATOR},
        {"verb": PROMPTS_GET, "name": "s.p", "credentials": OPERATOR},
    ]


@pytest.mark.parametrize("which", range(4), ids=["caller", "tool", "arguments", "verb"])
def test_foreign_request_does_not_resume_call(which: int) -> None:
    rig = AskingRig()
    question = rig.hold(call_of(CLIENT, credentials=OPERATOR))
    state = rig.last_result["requestState"]
    other = fields_of_another(rig)[which]
    error = rig.refused(call_of(CLIENT, answers={"input-1": {}}, state=state, **other))
    assert error.failure is INVALID_STATE
    assert question.unanswered
    assert rig.held == 1
    mine = call_of(CLIENT, answers={"input-1": YES}, state=state, credentials=OPERATOR)
    rig.begin(mine)
    assert question.answer == YES


def test_invalid_retry_keeps_suspended_call() -> None:
    rig = AskingRig()
    question = rig.hold(call_of(CLIENT))
    state = rig.last_result["requestState"]
    for wrong in (
        {"answers": [1]},
        {"answers": {"input-1": 5}},
        {"answers": {"input-1": {}}, "meta": {META_TIMEOUT: "soon"}},
    ):
        error = rig.refused(call_of(CLIENT, state=state, **wrong))
        assert error.failure is INVALID_PARAMS
    assert question.unanswered
    rig.begin(call_of(CLIENT, answers={"input-1": YES}, state=state))
    assert question.answer == YES


def test_rejects_state_that_is_not_text() -> None:
    rig = AskingRig()
    odd: list[Any] = [5, {}, ["i1."], True]
    for state in odd:
        assert rig.refused(call_of(CLIENT, state=state)).failure is INVALID_STATE


def test_rejects_expired_state() -> None:
    rig = AskingRig(seconds=600)
    rig.hold(call_of(CLIENT))
    state = rig.last_result["requestState"]
    rig.wall += 601
    assert rig.refused(call_of(CLIENT, state=state)).failure is INVALID_STATE


def test_restarted_node_rejects_state() -> None:
    before = AskingRig()
    before.hold(call_of(CLIENT))
    state = before.last_result["requestState"]
    after = AskingRig()
    assert after.refused(call_of(CLIENT, state=state)).failure is INVALID_STATE
    assert after.s.started == []


# --- nothing is held for ever ---


def test_abandons_suspended_call_after_timeout() -> None:
    rig = AskingRig(seconds=600)
    rig.begin(call_of(CLIENT))
    questions = [rig.s.last.ask(), rig.s.last.ask(ROOTS)]
    rig.clock.advance(BREATH)
    rig.clock.advance(598)
    assert rig.held == 1
    rig.clock.advance(3)
    assert rig.held == 0
    for question in questions:
        assert "in time" in question.refusal[1]
    assert len(rig.s.last.abandoned) == 1
    rig.clock.advance(600)
    assert rig.clock.timers == 0, "nobody keeps looking when nothing is held"
    assert rig.journalled() == [
        ("tools/call", "input_required"),
        (ELICITATION, "refused"),
        (ROOTS, "refused"),
    ]


def test_removes_unfetched_result_after_timeout() -> None:
    rig = AskingRig(seconds=600)
    rig.hold(call_of(CLIENT))
    rig.s.last.answer(content=[])
    rig.clock.advance(602)
    assert rig.held == 0
    assert rig.s.last.abandoned == []


def test_failing_abandon_does_not_keep_other_calls() -> None:
    rig = AskingRig(seconds=600)

    def broken(reason: str) -> None:
        raise OSError("the link is in a bad way")

    rig.hold(call_of(CLIENT))
    rig.s.last.abandon = broken  # type: ignore[method-assign]
    rig.hold(call_of(CLIENT))
    rig.clock.advance(602)
    assert rig.held == 0
    assert rig.s.last.abandoned


async def test_drain_abandons_suspended_calls() -> None:
    rig = AskingRig()
    questions = [rig.hold(call_of(CLIENT))]
    rig.begin(call_of(CLIENT))
    questions.append(rig.s.last.ask())
    await rig.pipeline.drain(0)
    rig.clock.advance(BREATH)
    assert rig.held == 0
    for question in questions:
        assert question.refusal[1] == "The node is shutting down."
    assert all(one.abandoned for one in rig.s.started)
    assert rig.last_error.failure is SHUTTING_DOWN
    assert rig.journal.outcomes.count("shutting_down") == 1


def test_limits_suspended_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_room, "MAX_SUSPENDED_CALLS", 2)
    rig = AskingRig()
    for _ in range(2):
        rig.hold(call_of(CLIENT))
    rig.begin(call_of(CLIENT))
    question = rig.s.last.ask()
    assert question.refusal[0] == -32603
    rig.s.last.answer(content=[])
    assert rig.last_result == {"content": []}
    assert rig.held == 2


def test_sealing_failure_ends_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = AskingRig()
    rig.begin(call_of(CLIENT))
    exchange = rig.s.last
    question = exchange.ask()

    def broken(*_: Any, **__: Any) -> str:
        raise RuntimeError("no key")

    monkeypatch.setattr(rig.pipeline._input._seals, "seal", broken)
    rig.clock.advance(BREATH)
    assert rig.last_error.failure.name == "internal_error"
    assert (rig.held, rig.under_way) == (0, 0)
    assert question.refusal[0] == -32603
    assert exchange.abandoned


def test_suspended_calls_are_not_pending() -> None:
    """Who waits for people must not keep others from calling."""
    rig = AskingRig()
    clients: list[Client] = [CLIENT] * 5
    for client in clients:
        rig.hold(call_of(client))
    assert (rig.held, rig.under_way) == (5, 0)
