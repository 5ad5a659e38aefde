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
from tests.core.pipeline.test_pipeline import make_node
from tests.support.calls import tool_call


class Loop:
    """A clock and a queue that the test controls."""

    def __init__(self) -> None:
        self.now = 0.0
        self.queue: list[Callable[[], None]] = []
        self.under_way: list[str] = []
        self.busy_poll = BusyPoll(self.under_way, lambda: self.now, self.queue.append)
        self.busy_poll.single_calls = MIN_SINGLE_CALLS

    def run_once(self) -> bool:
        """Run the queue and return whether the loop would sleep afterwards."""
        waiting, self.queue[:] = list(self.queue), []
        for item in waiting:
            item()
        return not self.queue


@pytest.fixture
def loop() -> Loop:
    return Loop()


def test_polls_until_response_is_late(loop: Loop) -> None:
    loop.under_way.append("call")
    loop.busy_poll.start(loop.now)
    assert not loop.run_once()
    loop.now = ANSWER_SECONDS * 0.99
    assert not loop.run_once()
    loop.now = ANSWER_SECONDS * 1.01
    assert loop.run_once()


def test_polls_briefly_for_next_call_after_response(loop: Loop) -> None:
    loop.under_way.append("call")
    loop.busy_poll.start(loop.now)
    loop.under_way.clear()
    loop.now = ANSWER_SECONDS + NEXT_SECONDS * 0.9
    assert not loop.run_once()
    loop.now = ANSWER_SECONDS + NEXT_SECONDS * 1.1
    assert loop.run_once()


def test_second_call_stops_polling(loop: Loop) -> None:
    loop.under_way.append("call")
    loop.busy_poll.start(loop.now)
    loop.under_way.append("another")
    assert loop.run_once()


def test_consecutive_calls_queue_one_poll(loop: Loop) -> None:
    loop.under_way.append("call")
    for _ in range(5):
        loop.busy_poll.start(loop.now)
    assert len(loop.queue) == 1


def test_polls_again_after_sleep(loop: Loop) -> None:
    loop.under_way.append("call")
    loop.busy_poll.start(loop.now)
    loop.now = 1.0
    assert loop.run_once()
    loop.busy_poll.start(loop.now)
    assert not loop.run_once()


def test_polls_only_after_several_single_calls(loop: Loop) -> None:
    loop.busy_poll.single_calls = 0
    loop.under_way.append("call")
    for _ in range(MIN_SINGLE_CALLS):
        loop.busy_poll.start(loop.now)
    assert loop.run_once()
    loop.busy_poll.start(loop.now)
    assert not loop.run_once()


def test_concurrent_call_resets_single_calls() -> None:
    made = make_node()
    made.pipeline._busy_poll = wakeful = Loop().busy_poll
    for _ in range(2):
        made.begin(tool_call("s.open"))
    assert wakeful.single_calls == 0
