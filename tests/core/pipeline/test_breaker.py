"""The circuit breaker: its table of transitions, and its invariants in any order of events."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from interlock import errors
from interlock.core.pipeline.breaker import Breakers, Circuit
from interlock.errors import (
    CIRCUIT_OPEN,
    DEADLINE_EXCEEDED,
    UPSTREAM_ERROR,
    UPSTREAM_LOST,
    UPSTREAM_PROTOCOL,
    Failure,
    InterlockError,
    all_failures,
)
from tests.support.clock import ManualClock

FAILURES, COOLDOWN = 3, 10.0
COUNTED = {DEADLINE_EXCEEDED, UPSTREAM_PROTOCOL}


class Bench:
    """Breakers with a clock by hand."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.breakers = Breakers(self.clock, failures=FAILURES, cooldown=COOLDOWN)

    def fail(self, times: int = 1, failure: Failure = DEADLINE_EXCEEDED) -> None:
        for _ in range(times):
            self.breakers.record_failure("u", failure)

    def admits(self, upstream: str = "u") -> bool:
        try:
            self.breakers.admit(upstream)
        except InterlockError as error:
            if error.failure is not CIRCUIT_OPEN:
                raise
            return False
        return True

    @property
    def state(self) -> Circuit:
        return self.breakers.state("u")


@pytest.fixture
def bench() -> Bench:
    return Bench()


def closed(bench: Bench) -> None:
    pass


def one_short(bench: Bench) -> None:
    bench.fail(FAILURES - 1)


def open_(bench: Bench) -> None:
    bench.fail(FAILURES)


def cooled(bench: Bench) -> None:
    bench.fail(FAILURES)
    bench.clock.now += COOLDOWN


def half_open(bench: Bench) -> None:
    cooled(bench)
    assert bench.admits()


def fails(bench: Bench) -> None:
    bench.fail()


def succeeds(bench: Bench) -> None:
    bench.breakers.record_success("u")


def answers_an_error(bench: Bench) -> None:
    bench.fail(failure=UPSTREAM_ERROR)


def is_lost(bench: Bench) -> None:
    bench.fail(failure=UPSTREAM_LOST)


def comes_back_new(bench: Bench) -> None:
    bench.breakers.reset("u")


def is_called(bench: Bench) -> None:
    bench.admits()


CLOSED, OPEN, HALF_OPEN = Circuit.CLOSED, Circuit.OPEN, Circuit.HALF_OPEN


@pytest.mark.parametrize(
    ("given", "event", "then", "admits"),
    [
        (closed, fails, CLOSED, True),
        (closed, succeeds, CLOSED, True),
        (closed, is_called, CLOSED, True),
        (one_short, fails, OPEN, False),
        (one_short, succeeds, CLOSED, True),
        (one_short, answers_an_error, CLOSED, True),
        (one_short, is_lost, CLOSED, True),
        (open_, is_called, OPEN, False),
        (open_, fails, OPEN, False),
        (open_, is_lost, OPEN, False),
        (open_, succeeds, CLOSED, True),
        (open_, answers_an_error, CLOSED, True),
        (open_, comes_back_new, CLOSED, True),
        (cooled, is_called, HALF_OPEN, False),
        (cooled, fails, OPEN, True),
        (half_open, is_called, HALF_OPEN, False),
        (half_open, succeeds, CLOSED, True),
        (half_open, answers_an_error, CLOSED, True),
        (half_open, fails, OPEN, False),
        (half_open, is_lost, HALF_OPEN, False),
        (half_open, comes_back_new, CLOSED, True),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_changes_state_by_table(
    bench: Bench,
    given: Callable[[Bench], None],
    event: Callable[[Bench], None],
    then: Circuit,
    admits: bool,
) -> None:
    given(bench)
    event(bench)
    assert bench.state is then
    assert bench.admits() is admits


def test_opens_after_consecutive_failures(bench: Bench) -> None:
    bench.fail(FAILURES - 1)
    bench.breakers.record_success("u")
    bench.fail(FAILURES - 1)
    assert bench.admits()
    bench.fail(failure=UPSTREAM_PROTOCOL)
    assert not bench.admits()


def test_error_response_closes_breaker(bench: Bench) -> None:
    # Now and then it is slow, but every time between it answered: that is no row of failures.
    for _ in range(10):
        bench.fail()
        bench.fail(failure=UPSTREAM_ERROR)
    assert bench.state is CLOSED


def test_admits_call_after_suggested_wait(bench: Bench) -> None:
    open_(bench)
    bench.clock.now += 2.50049
    with pytest.raises(InterlockError) as caught:
        bench.breakers.admit("u")
    assert caught.value.data is not None
    bench.clock.now += caught.value.data["retry_after_ms"] / 1000
    assert bench.admits()


@pytest.mark.parametrize("row", all_failures(), ids=lambda row: row.name)
def test_counts_only_upstream_failures(bench: Bench, row: Failure) -> None:
    bench.fail(FAILURES * 10, row)
    assert (bench.state is OPEN) is (row in COUNTED)


def test_admits_one_trial_after_cooldown(bench: Bench) -> None:
    open_(bench)
    bench.clock.now += COOLDOWN - 0.001
    assert not bench.admits()
    bench.clock.now += 0.001
    assert [bench.admits() for _ in range(5)] == [True, False, False, False, False]


def test_failed_trial_restarts_cooldown(bench: Bench) -> None:
    half_open(bench)
    bench.clock.now += 5
    bench.fail()
    bench.clock.now += COOLDOWN - 0.001
    assert not bench.admits()
    bench.clock.now += 0.001
    assert bench.admits()


def test_admits_second_trial_when_first_never_reports(bench: Bench) -> None:
    half_open(bench)
    assert not bench.admits()
    bench.clock.now += COOLDOWN
    assert [bench.admits(), bench.admits()] == [True, False]


def test_earlier_failures_do_not_delay_trial(bench: Bench) -> None:
    open_(bench)
    for _ in range(10):
        bench.clock.now += COOLDOWN / 10
        bench.fail()
    assert bench.admits()


def test_rejection_contains_retry_delay(bench: Bench) -> None:
    open_(bench)
    bench.clock.now += 2.5
    with pytest.raises(InterlockError) as caught:
        bench.breakers.admit("u")
    assert caught.value.failure is CIRCUIT_OPEN
    assert caught.value.failure.retryable
    assert caught.value.data == {"upstream": "u", "retry_after_ms": 7500}
    assert caught.value.message == ("The upstream u failed 3 times in a row. Try again in 7.5 s.")
    bench.clock.now += caught.value.data["retry_after_ms"] / 1000
    assert bench.admits()


def test_keeps_separate_breaker_for_each_upstream(bench: Bench) -> None:
    open_(bench)
    assert bench.admits("other")
    assert bench.breakers.state("other") is CLOSED


def test_applies_new_settings_immediately(bench: Bench) -> None:
    bench.breakers.configure(failures=1, cooldown=1)
    bench.fail()
    assert not bench.admits()
    bench.clock.now += 1
    assert bench.admits()


class AnyOrder(RuleBasedStateMachine):
    """Whatever happens: never more than one trial per cooldown, never stuck, never open early."""

    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench()
        self.row = 0
        self.turned_away_until = 0.0

    @rule(seconds=st.floats(0, 2 * COOLDOWN))
    def time_passes(self, seconds: float) -> None:
        self.bench.clock.now += seconds

    @rule()
    def a_call_comes(self) -> None:
        before = self.bench.state
        admitted = self.bench.admits()
        if before is CLOSED:
            assert admitted
        elif admitted:
            assert self.bench.state is HALF_OPEN
            assert not self.bench.admits(), "one trial at a time"
        else:
            with pytest.raises(InterlockError) as caught:
                self.bench.breakers.admit("u")
            assert caught.value.data is not None
            wait = caught.value.data["retry_after_ms"]
            assert 1 <= wait <= COOLDOWN * 1000

    @rule(failure=st.sampled_from([DEADLINE_EXCEEDED, UPSTREAM_PROTOCOL]))
    def a_call_fails(self, failure: Failure) -> None:
        before = self.bench.state
        self.bench.fail(failure=failure)
        self.row += 1
        if before is HALF_OPEN:
            assert self.bench.state is OPEN

    @rule(failure=st.sampled_from([errors.UPSTREAM_LOST, errors.INVALID_ARGUMENTS, CIRCUIT_OPEN]))
    def something_else_goes_wrong(self, failure: Failure) -> None:
        before = self.bench.state
        self.bench.fail(failure=failure)
        assert self.bench.state is before

    @rule(how=st.sampled_from([succeeds, answers_an_error, comes_back_new]))
    def it_is_well(self, how: Callable[[Bench], None]) -> None:
        how(self.bench)
        self.row = 0
        assert self.bench.state is CLOSED

    @precondition(lambda self: self.bench.state is not CLOSED)
    @rule()
    def it_is_never_stuck(self) -> None:
        self.bench.clock.now += COOLDOWN
        assert self.bench.admits()

    @invariant()
    def it_is_open_only_for_a_reason(self) -> None:
        assert (self.bench.state is CLOSED) is (self.row < FAILURES)


TestAnyOrder = AnyOrder.TestCase
