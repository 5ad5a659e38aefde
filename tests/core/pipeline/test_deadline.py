"""Deadlines of calls: timeouts of node, upstream and caller, progress, and the clock."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from interlock.core.call import Call
from interlock.core.pipeline.deadlines import (
    FULL_RATE_CALLS,
    PROGRESS_EXTENSION_FACTOR,
    TICK_SECONDS,
    DeadlineWatch,
    set_deadline,
)
from interlock.errors import DEADLINE_EXCEEDED, INVALID_PARAMS, InterlockError
from interlock.protocol.mcp import META_TIMEOUT, PROGRESS
from tests.support.calls import tool_call
from tests.support.clock import ManualClock
from tests.support.offerings import offer
from tests.support.pipeline import PipelineHarness

NOW = 1000.0
LIMIT = 60.0


def make_node(**settings: Any) -> PipelineHarness:
    return PipelineHarness(offer("s", ["t"]), **settings)


# --- how long ---


@pytest.mark.parametrize(
    ("requested", "timeout", "hard"),
    [
        (None, LIMIT, LIMIT * PROGRESS_EXTENSION_FACTOR),
        # a shorter limit of the caller's own is meant as it stands: progress does not extend it
        (1, 0.001, 0.001),
        (1500, 1.5, 1.5),
        (0.5, 0.0005, 0.0005),
        (60_000, 60.0, 60.0),
        # a longer one is not granted
        (60_001, LIMIT, LIMIT * PROGRESS_EXTENSION_FACTOR),
        (1e300, LIMIT, LIMIT * PROGRESS_EXTENSION_FACTOR),
        (10**400, LIMIT, LIMIT * PROGRESS_EXTENSION_FACTOR),
    ],
)
def test_calculates_deadline_of_call(requested: Any, timeout: float, hard: float) -> None:
    call = tool_call(meta=None if requested is None else {META_TIMEOUT: requested})
    set_deadline(call, NOW, LIMIT)
    assert call.timeout == pytest.approx(timeout)
    assert call.deadline == pytest.approx(NOW + timeout)
    assert call.hard_deadline == pytest.approx(NOW + hard)


@pytest.mark.parametrize("requested", [0, -1, -0.5, True, False, "1000", None, [], {}])
def test_rejects_invalid_timeout(requested: Any) -> None:
    call = tool_call(meta={META_TIMEOUT: requested})
    with pytest.raises(InterlockError, match="must be a number of milliseconds above 0") as caught:
        set_deadline(call, NOW, LIMIT)
    assert caught.value.failure is INVALID_PARAMS


@pytest.mark.parametrize("raw", [b"1e999", b"9" * 5_000, b"nonsense"])
def test_rejects_undecodable_timeout(raw: bytes) -> None:
    call = tool_call()
    call.meta = {META_TIMEOUT: Raw(raw)}
    with pytest.raises(InterlockError) as caught:
        set_deadline(call, NOW, LIMIT)
    assert caught.value.failure is INVALID_PARAMS


def test_ignores_other_meta_keys() -> None:
    call = tool_call(meta={"timeout": 5, "progressToken": 1})
    set_deadline(call, NOW, LIMIT)
    assert call.timeout == LIMIT


def test_upstream_timeout_overrides_node_timeout() -> None:
    node = make_node(timeout=60)
    node.upstreams["s"].timeout = 2.0
    node.begin(tool_call())
    node.clock.advance(1.99)
    assert not node.done
    node.clock.advance(2 * TICK_SECONDS)
    assert len(node.done) == 1


# --- when it ends ---


@given(st.floats(0.001, 30), st.floats(0, 10_000))
def test_expires_call_within_one_tick_of_deadline(timeout: float, start: float) -> None:
    node = make_node(timeout=timeout)
    node.clock.now = start
    node.begin(tool_call())
    exchange = node.upstreams["s"].last
    deadline = exchange.call.deadline
    while exchange.is_open:
        before = node.clock.now
        node.clock.advance(TICK_SECONDS)
        assert node.clock.now <= deadline + 2 * TICK_SECONDS
        if not exchange.is_open:
            assert node.clock.now >= deadline > before - TICK_SECONDS
    assert exchange.expired
    [(_, error)] = node.done
    assert error.failure is DEADLINE_EXCEEDED
    assert node.journal.outcomes == ["deadline_exceeded"]


def test_result_before_deadline_ends_watch() -> None:
    node = make_node(timeout=1)
    node.begin(tool_call())
    exchange = node.upstreams["s"].last
    node.clock.advance(0.9)
    exchange.answer(content=[])
    node.clock.advance(10)
    assert not exchange.expired
    assert node.journal.outcomes == ["ok"]


def test_watches_distant_deadlines() -> None:
    node = make_node(timeout=10_000)
    for milliseconds in (5_000_000, 100, 2_000, 9_000_000):
        node.begin(tool_call(meta={META_TIMEOUT: milliseconds}))
    expired = []
    for _ in range(4):
        node.clock.advance(0.2)
        expired.append([exchange.expired for exchange in node.upstreams["s"].started].count(True))
        node.clock.advance({1: 2, 2: 5_000, 3: 4_500}.get(expired[-1], 0))
    assert expired == [1, 2, 3, 4]


def test_stalled_loop_expires_only_due_calls() -> None:
    node = make_node(timeout=1_000)
    for milliseconds in (50, 400, 700, 60_000):
        node.begin(tool_call(meta={META_TIMEOUT: milliseconds}))
    node.clock.stall(30)
    assert [exchange.expired for exchange in node.upstreams["s"].started] == [
        True, True, True, False
    ]  # fmt: skip
    node.clock.advance(30.1)
    assert node.under_way == 0


def test_expires_call_with_past_deadline() -> None:
    node = make_node()
    call = tool_call(meta={META_TIMEOUT: 0.001})
    node.begin(call)
    node.clock.advance(2 * TICK_SECONDS)
    assert node.journal.outcomes == ["deadline_exceeded"]


# --- progress ---


def begin_with_progress(node: PipelineHarness, **meta: Any) -> list[tuple[str, bytes]]:
    received: list[tuple[str, bytes]] = []
    node.begin(
        tool_call(
            meta={"progressToken": 1, **meta},
            on_notification=lambda _, method, params: received.append((method, bytes(params))),
        )
    )
    return received


def test_progress_restarts_timeout() -> None:
    node = make_node(timeout=1)
    received = begin_with_progress(node)
    exchange = node.upstreams["s"].last
    for _ in range(5):
        node.clock.advance(0.9)
        exchange.say(PROGRESS, b'{"progress":1}')
    assert received == [(PROGRESS, b'{"progress":1}')] * 5
    node.clock.advance(0.9)
    assert exchange.is_open
    node.clock.advance(0.1 + TICK_SECONDS)
    assert exchange.expired


def test_progress_does_not_extend_hard_deadline() -> None:
    node = make_node(timeout=1)
    begin_with_progress(node)
    exchange = node.upstreams["s"].last
    began = node.clock.now
    while exchange.is_open:
        assert node.clock.now < began + PROGRESS_EXTENSION_FACTOR + 2 * TICK_SECONDS
        node.clock.advance(TICK_SECONDS)
        exchange.say(PROGRESS, b"{}")
    assert node.clock.now >= began + PROGRESS_EXTENSION_FACTOR


def test_progress_does_not_extend_requested_timeout() -> None:
    node = make_node(timeout=10)
    begin_with_progress(node, **{META_TIMEOUT: 1_000})
    exchange = node.upstreams["s"].last
    for _ in range(3):
        node.clock.advance(0.3)
        exchange.say(PROGRESS, b"{}")
    node.clock.advance(0.1 + TICK_SECONDS)
    assert exchange.expired


def test_ignores_progress_without_listener() -> None:
    node = make_node()
    node.begin(tool_call())
    node.upstreams["s"].last.say(PROGRESS, b"{}")
    assert node.upstreams["s"].last.is_open


# --- the clock itself ---


def test_clock_stops_without_calls() -> None:
    node = make_node(timeout=1)
    assert node.clock.timers == 0
    node.begin(tool_call())
    node.begin(tool_call())
    assert node.clock.timers == 1
    for exchange in node.upstreams["s"].started:
        exchange.answer(content=[])
    node.clock.advance(2 * TICK_SECONDS)
    assert node.clock.timers == 0
    # It starts again with the next call.
    node.begin(tool_call())
    assert node.clock.timers == 1
    node.clock.advance(1 + 2 * TICK_SECONDS)
    assert node.journal.outcomes == ["ok", "ok", "deadline_exceeded"]
    node.clock.advance(2 * TICK_SECONDS)
    assert node.clock.timers == 0


def test_failing_expiry_does_not_delay_others(caplog: pytest.LogCaptureFixture) -> None:
    node = make_node(timeout=1)
    node.begin(tool_call())
    node.begin(tool_call())
    first, second = node.upstreams["s"].started

    def broken() -> None:
        raise RuntimeError("the link is in a bad way")

    first.expire = broken  # type: ignore[method-assign]
    node.clock.advance(1 + 2 * TICK_SECONDS)
    assert second.expired
    assert "deadlines: cannot end a call" in caplog.text
    # And the clock goes on.
    node.begin(tool_call())
    node.clock.advance(1 + 2 * TICK_SECONDS)
    assert node.upstreams["s"].last.expired


@pytest.mark.parametrize(("number", "looks"), [(FULL_RATE_CALLS - 1, 20), (FULL_RATE_CALLS, 10)])
def test_checks_many_calls_less_often(number: int, looks: int) -> None:
    clock = ManualClock(now=0.0)
    calls = [tool_call() for _ in range(number)]
    looked = 0

    def running_calls() -> list[Call]:
        nonlocal looked
        looked += 1
        return calls

    watch = DeadlineWatch(running_calls, clock, clock.call_later)
    watch.start()
    clock.advance(TICK_SECONDS * 20.5)
    assert looked in (looks, looks + 1)
    assert watch.ticking
    calls.clear()
    clock.advance(6 * TICK_SECONDS)
    assert not watch.ticking
    assert clock.timers == 0
