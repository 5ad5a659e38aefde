"""Busy polling: how long a node polls for a single call."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from interlock.core.pipeline.busy_poll import (
    ANSWER_SECONDS,
    MIN_SINGLE_CALLS,
    NEXT_SECONDS,
    BusyPoll,
)
from tests.core.pipeline.test_pipeline import rig
from tests.support.calls import tool_call


class Loop:
    """A clock and a queue that a test turns by hand."""

    def __init__(self) -> None:
        self.now = 0.0
        self.queue: list[Callable[[], None]] = []
        self.under_way: list[str] = []
        self.wakeful = BusyPoll(self.under_way, lambda: self.now, self.queue.append)
        self.wakeful.single_calls = MIN_SINGLE_CALLS

    def turn(self) -> bool:
        """Run what is queued; whether the loop would sleep afterwards."""
        waiting, self.queue[:] = list(self.queue), []
        for one in waiting:
            one()
        return not self.queue


@pytest.fixture
def loop() -> Loop:
    return Loop()


def test_polls_until_response_is_late(loop: Loop) -> None:
    loop.under_way.append("call")
    loop.wakeful.start(loop.now)
    assert not loop.turn()
    loop.now = ANSWER_SECONDS * 0.99
    assert not loop.turn()
    loop.now = ANSWER_SECONDS * 1.01
    assert loop.turn()


def test_polls_briefly_for_next_call_after_response(loop: Loop) -> None:
    loop.under_way.append("call")
    loop.wakeful.start(loop.now)
    loop.under_way.clear()
    loop.now = ANSWER_SECONDS + NEXT_SECONDS * 0.9
    assert not loop.turn()
    loop.now = ANSWER_SECONDS + NEXT_SECONDS * 1.1
    assert loop.turn()


def test_second_call_stops_polling(loop: Loop) -> None:
    loop.under_way.append("call")
    loop.wakeful.start(loop.now)
    loop.under_way.append("another")
    assert loop.turn()


def test_consecutive_calls_queue_one_poll(loop: Loop) -> None:
    loop.under_way.append("call")
    for _ in range(5):
        loop.wakeful.start(loop.now)
    assert len(loop.queue) == 1


def test_polls_again_after_sleep(loop: Loop) -> None:
    loop.under_way.append("call")
    loop.wakeful.start(loop.now)
    loop.now = 1.0
    assert loop.turn()
    loop.wakeful.start(loop.now)
    assert not loop.turn()


def test_polls_only_after_several_single_calls(loop: Loop) -> None:
    loop.wakeful.single_calls = 0
    loop.under_way.append("call")
    for _ in range(MIN_SINGLE_CALLS):
        loop.wakeful.start(loop.now)
    assert loop.turn()
    loop.wakeful.start(loop.now)
    assert not loop.turn()


def test_concurrent_call_resets_single_calls() -> None:
    made = rig()
    made.pipeline._busy_poll = wakeful = Loop().wakeful
    for _ in range(2):
        made.begin(tool_call("s.open"))
    assert wakeful.single_calls == 0
