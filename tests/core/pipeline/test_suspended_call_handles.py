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
    GROUPING_SECONDS,
    OPERATOR,
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


# --- a handle is good once, for its own caller and request ---


def test_accepts_handle_once() -> None:
    harness = ClientRequestHarness()
    client_request = harness.hold(call_of(CLIENT))
    state = harness.last_result["requestState"]
    harness.begin(call_of(CLIENT, answers={"input-1": YES}, state=state))
    for _ in range(2):
        error = harness.refused(call_of(CLIENT, answers={"input-1": {}}, state=state))
        assert error.failure is INVALID_STATE
    assert client_request.result == YES
    harness.s.last.answer(content=[])
    assert harness.last_result == {"content": []}


def test_rejects_handle_of_earlier_round() -> None:
    harness = ClientRequestHarness()
    harness.begin(call_of(CLIENT))
    harness.s.last.ask()
    harness.s.last.ask(ROOTS)
    harness.clock.advance(GROUPING_SECONDS)
    first = harness.last_result["requestState"]
    retry_call(harness, {"input-1": YES})
    second = harness.last_result["requestState"]
    error = harness.refused(call_of(CLIENT, answers={"input-2": {"roots": []}}, state=first))
    assert error.failure is INVALID_STATE
    assert harness.held == 1
    harness.begin(call_of(CLIENT, answers={"input-2": {"roots": []}}, state=second))
    assert (harness.held, harness.under_way) == (0, 1)


def foreign_fields(harness: ClientRequestHarness) -> list[dict[str, Any]]:
    return [
        {"credentials": AUDITOR},
        {"name": "s.look", "credentials": OPERATOR},
        {"arguments": {"n": 1}, "credentials": OPERATOR},
        {"verb": PROMPTS_GET, "name": "s.p", "credentials": OPERATOR},
    ]


@pytest.mark.parametrize("which", range(4), ids=["caller", "tool", "arguments", "method"])
def test_foreign_request_does_not_resume_call(which: int) -> None:
    harness = ClientRequestHarness()
    client_request = harness.hold(call_of(CLIENT, credentials=OPERATOR))
    state = harness.last_result["requestState"]
    other = foreign_fields(harness)[which]
    error = harness.refused(call_of(CLIENT, answers={"input-1": {}}, state=state, **other))
    assert error.failure is INVALID_STATE
    assert client_request.is_pending
    assert harness.held == 1
    mine = call_of(CLIENT, answers={"input-1": YES}, state=state, credentials=OPERATOR)
    harness.begin(mine)
    assert client_request.result == YES


def test_invalid_retry_keeps_suspended_call() -> None:
    harness = ClientRequestHarness()
    client_request = harness.hold(call_of(CLIENT))
    state = harness.last_result["requestState"]
    for invalid in (
        {"answers": [1]},
        {"answers": {"input-1": 5}},
        {"answers": {"input-1": {}}, "meta": {META_TIMEOUT: "soon"}},
    ):
        error = harness.refused(call_of(CLIENT, state=state, **invalid))
        assert error.failure is INVALID_PARAMS
    assert client_request.is_pending
    harness.begin(call_of(CLIENT, answers={"input-1": YES}, state=state))
    assert client_request.result == YES


def test_rejects_state_that_is_not_text() -> None:
    harness = ClientRequestHarness()
    odd: list[Any] = [5, {}, ["i1."], True]
    for state in odd:
        assert harness.refused(call_of(CLIENT, state=state)).failure is INVALID_STATE


def test_rejects_expired_state() -> None:
    harness = ClientRequestHarness(seconds=600)
    harness.hold(call_of(CLIENT))
    state = harness.last_result["requestState"]
    harness.wall += 601
    assert harness.refused(call_of(CLIENT, state=state)).failure is INVALID_STATE


def test_restarted_node_rejects_state() -> None:
    before = ClientRequestHarness()
    before.hold(call_of(CLIENT))
    state = before.last_result["requestState"]
    after = ClientRequestHarness()
    assert after.refused(call_of(CLIENT, state=state)).failure is INVALID_STATE
    assert after.s.started == []


# --- nothing is held for ever ---


def test_abandons_suspended_call_after_timeout() -> None:
    harness = ClientRequestHarness(seconds=600)
    harness.begin(call_of(CLIENT))
    client_requests = [harness.s.last.ask(), harness.s.last.ask(ROOTS)]
    harness.clock.advance(GROUPING_SECONDS)
    harness.clock.advance(598)
    assert harness.held == 1
    harness.clock.advance(3)
    assert harness.held == 0
    for client_request in client_requests:
        assert "in time" in client_request.rejection[1]
    assert len(harness.s.last.abandoned) == 1
    harness.clock.advance(600)
    assert harness.clock.timers == 0, "nobody keeps looking when nothing is held"
    assert harness.list_outcomes() == [
        ("tools/call", "input_required"),
        (ELICITATION, "refused"),
        (ROOTS, "refused"),
    ]


def test_removes_unfetched_result_after_timeout() -> None:
    harness = ClientRequestHarness(seconds=600)
    harness.hold(call_of(CLIENT))
    harness.s.last.answer(content=[])
    harness.clock.advance(602)
    assert harness.held == 0
    assert harness.s.last.abandoned == []


def test_failing_abandon_does_not_keep_other_calls() -> None:
    harness = ClientRequestHarness(seconds=600)

    def broken(reason: str) -> None:
        raise OSError("the link is in a bad way")

    harness.hold(call_of(CLIENT))
    harness.s.last.abandon = broken  # type: ignore[method-assign]
    harness.hold(call_of(CLIENT))
    harness.clock.advance(602)
    assert harness.held == 0
    assert harness.s.last.abandoned


async def test_drain_abandons_suspended_calls() -> None:
    harness = ClientRequestHarness()
    client_requests = [harness.hold(call_of(CLIENT))]
    harness.begin(call_of(CLIENT))
    client_requests.append(harness.s.last.ask())
    await harness.pipeline.drain(0)
    harness.clock.advance(GROUPING_SECONDS)
    assert harness.held == 0
    for client_request in client_requests:
        assert client_request.rejection[1] == "The node is shutting down."
    assert all(exchange.abandoned for exchange in harness.s.started)
    assert harness.last_error.failure is SHUTTING_DOWN
    assert harness.journal.outcomes.count("shutting_down") == 1


def test_limits_suspended_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_room, "MAX_SUSPENDED_CALLS", 2)
    harness = ClientRequestHarness()
    for _ in range(2):
        harness.hold(call_of(CLIENT))
    harness.begin(call_of(CLIENT))
    client_request = harness.s.last.ask()
    assert client_request.rejection[0] == -32603
    harness.s.last.answer(content=[])
    assert harness.last_result == {"content": []}
    assert harness.held == 2


def test_sealing_failure_ends_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = ClientRequestHarness()
    harness.begin(call_of(CLIENT))
    exchange = harness.s.last
    client_request = exchange.ask()

    def broken(*_: Any, **__: Any) -> str:
        raise RuntimeError("no key")

    monkeypatch.setattr(harness.pipeline._input._seals, "seal", broken)
    harness.clock.advance(GROUPING_SECONDS)
    assert harness.last_error.failure.name == "internal_error"
    assert (harness.held, harness.under_way) == (0, 0)
    assert client_request.rejection[0] == -32603
    assert exchange.abandoned


def test_suspended_calls_are_not_pending() -> None:
    """Who waits for people must not keep others from calling."""
    harness = ClientRequestHarness()
    clients: list[Client] = [CLIENT] * 5
    for client in clients:
        harness.hold(call_of(client))
    assert (harness.held, harness.under_way) == (5, 0)
