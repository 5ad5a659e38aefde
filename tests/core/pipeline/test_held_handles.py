"""Held calls: whose they are, and that none is held for ever."""

from __future__ import annotations

from typing import Any

import pytest

from interlock.core.call import Call, Client
from interlock.core.pipeline import client_requests as held_room
from interlock.errors import INVALID_PARAMS, INVALID_STATE, SHUTTING_DOWN
from interlock.protocol.mcp import ELICITATION, META_TIMEOUT, PROMPTS_GET, ROOTS
from tests.core.pipeline.asking import AUDITOR, BREATH, OPERATOR, YES, AskingRig, call_of, stateless

CLIENT = stateless()


def again(rig: AskingRig, answers: Any = None, **fields: Any) -> Call:
    """The client comes back with what the last answer gave it."""
    state = rig.last_result["requestState"]
    fields.setdefault("client", CLIENT)
    return rig.begin(call_of(answers=answers, state=state, **fields))


# --- a handle is good once, for its own caller and request ---


def test_a_handle_is_good_once() -> None:
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


def test_a_handle_of_an_earlier_round_is_not_good_again() -> None:
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
def test_what_is_not_its_own_leaves_the_held_call_alone(which: int) -> None:
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


def test_a_retry_with_a_mistake_leaves_the_held_call_alone() -> None:
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


def test_state_that_is_no_text_is_refused() -> None:
    rig = AskingRig()
    odd: list[Any] = [5, {}, ["i1."], True]
    for state in odd:
        assert rig.refused(call_of(CLIENT, state=state)).failure is INVALID_STATE


def test_the_seal_is_too_old() -> None:
    rig = AskingRig(seconds=600)
    rig.hold(call_of(CLIENT))
    state = rig.last_result["requestState"]
    rig.wall += 601
    assert rig.refused(call_of(CLIENT, state=state)).failure is INVALID_STATE


def test_a_node_that_started_anew_has_nothing_to_continue() -> None:
    before = AskingRig()
    before.hold(call_of(CLIENT))
    state = before.last_result["requestState"]
    after = AskingRig()
    assert after.refused(call_of(CLIENT, state=state)).failure is INVALID_STATE
    assert after.s.started == []


# --- nothing is held for ever ---


def test_who_does_not_come_back_in_time_is_given_up() -> None:
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


def test_a_result_that_nobody_fetches_is_forgotten() -> None:
    rig = AskingRig(seconds=600)
    rig.hold(call_of(CLIENT))
    rig.s.last.answer(content=[])
    rig.clock.advance(602)
    assert rig.held == 0
    assert rig.s.last.abandoned == []


def test_one_that_cannot_be_told_does_not_keep_the_others() -> None:
    rig = AskingRig(seconds=600)

    def broken(reason: str) -> None:
        raise OSError("the link is in a bad way")

    rig.hold(call_of(CLIENT))
    rig.s.last.abandon = broken  # type: ignore[method-assign]
    rig.hold(call_of(CLIENT))
    rig.clock.advance(602)
    assert rig.held == 0
    assert rig.s.last.abandoned


async def test_draining_gives_up_what_is_held() -> None:
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


def test_only_so_many_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_what_cannot_be_sealed_fails_the_call_and_leaves_nothing_behind(
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


def test_a_held_call_is_not_under_way() -> None:
    """Who waits for people must not keep others from calling."""
    rig = AskingRig()
    clients: list[Client] = [CLIENT] * 5
    for client in clients:
        rig.hold(call_of(client))
    assert (rig.held, rig.under_way) == (5, 0)
