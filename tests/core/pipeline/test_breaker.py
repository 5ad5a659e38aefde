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


class BreakerHarness:
    """Breakers with a manual clock."""

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
def breaker() -> BreakerHarness:
    return BreakerHarness()


def closed(breaker: BreakerHarness) -> None:
    pass


def one_failure_short(breaker: BreakerHarness) -> None:
    breaker.fail(FAILURES - 1)


def open_breaker(breaker: BreakerHarness) -> None:
    breaker.fail(FAILURES)


def finish_cooldown(breaker: BreakerHarness) -> None:
    breaker.fail(FAILURES)
    breaker.clock.now += COOLDOWN


def half_open_breaker(breaker: BreakerHarness) -> None:
    finish_cooldown(breaker)
    assert breaker.admits()


def fail_call(breaker: BreakerHarness) -> None:
    breaker.fail()


def succeed(breaker: BreakerHarness) -> None:
    breaker.breakers.record_success("u")


def return_error(breaker: BreakerHarness) -> None:
    breaker.fail(failure=UPSTREAM_ERROR)


def lose_upstream(breaker: BreakerHarness) -> None:
    breaker.fail(failure=UPSTREAM_LOST)


def reset_breaker(breaker: BreakerHarness) -> None:
    breaker.breakers.reset("u")


def begin_call(breaker: BreakerHarness) -> None:
    breaker.admits()


CLOSED, OPEN, HALF_OPEN = Circuit.CLOSED, Circuit.OPEN, Circuit.HALF_OPEN


@pytest.mark.parametrize(
    ("supplied", "event", "then", "admits"),
    [
        (closed, fail_call, CLOSED, True),
        (closed, succeed, CLOSED, True),
        (closed, begin_call, CLOSED, True),
        (one_failure_short, fail_call, OPEN, False),
        (one_failure_short, succeed, CLOSED, True),
        (one_failure_short, return_error, CLOSED, True),
        (one_failure_short, lose_upstream, CLOSED, True),
        (open_breaker, begin_call, OPEN, False),
        (open_breaker, fail_call, OPEN, False),
        (open_breaker, lose_upstream, OPEN, False),
        (open_breaker, succeed, CLOSED, True),
        (open_breaker, return_error, CLOSED, True),
        (open_breaker, reset_breaker, CLOSED, True),
        (finish_cooldown, begin_call, HALF_OPEN, False),
        (finish_cooldown, fail_call, OPEN, True),
        (half_open_breaker, begin_call, HALF_OPEN, False),
        (half_open_breaker, succeed, CLOSED, True),
        (half_open_breaker, return_error, CLOSED, True),
        (half_open_breaker, fail_call, OPEN, False),
        (half_open_breaker, lose_upstream, HALF_OPEN, False),
        (half_open_breaker, reset_breaker, CLOSED, True),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_changes_state_by_table(
    breaker: BreakerHarness,
    supplied: Callable[[BreakerHarness], None],
    event: Callable[[BreakerHarness], None],
    then: Circuit,
    admits: bool,
) -> None:
    supplied(breaker)
    event(breaker)
    assert breaker.state is then
    assert breaker.admits() is admits


def test_opens_after_consecutive_failures(breaker: BreakerHarness) -> None:
    breaker.fail(FAILURES - 1)
    breaker.breakers.record_success("u")
    breaker.fail(FAILURES - 1)
    assert breaker.admits()
    breaker.fail(failure=UPSTREAM_PROTOCOL)
    assert not breaker.admits()


def test_error_response_closes_breaker(breaker: BreakerHarness) -> None:
    # Now and then it is slow, but every time between it answered: that is no row of failures.
    for _ in range(10):
        breaker.fail()
        breaker.fail(failure=UPSTREAM_ERROR)
    assert breaker.state is CLOSED


def test_admits_call_after_suggested_wait(breaker: BreakerHarness) -> None:
    open_breaker(breaker)
    breaker.clock.now += 2.50049
    with pytest.raises(InterlockError) as caught:
        breaker.breakers.admit("u")
    assert caught.value.data is not None
    breaker.clock.now += caught.value.data["retry_after_ms"] / 1000
    assert breaker.admits()


@pytest.mark.parametrize(
    "consecutive_failures",
    all_failures(),
    ids=lambda consecutive_failures: consecutive_failures.name,
)
def test_counts_only_upstream_failures(
    breaker: BreakerHarness, consecutive_failures: Failure
) -> None:
    breaker.fail(FAILURES * 10, consecutive_failures)
    assert (breaker.state is OPEN) is (consecutive_failures in COUNTED)


def test_admits_one_trial_after_cooldown(breaker: BreakerHarness) -> None:
    open_breaker(breaker)
    breaker.clock.now += COOLDOWN - 0.001
    assert not breaker.admits()
    breaker.clock.now += 0.001
    assert [breaker.admits() for _ in range(5)] == [True, False, False, False, False]


def test_failed_trial_restarts_cooldown(breaker: BreakerHarness) -> None:
    half_open_breaker(breaker)
    breaker.clock.now += 5
    breaker.fail()
    breaker.clock.now += COOLDOWN - 0.001
    assert not breaker.admits()
    breaker.clock.now += 0.001
    assert breaker.admits()


def test_admits_second_trial_when_first_never_reports(breaker: BreakerHarness) -> None:
    half_open_breaker(breaker)
    assert not breaker.admits()
    breaker.clock.now += COOLDOWN
    assert [breaker.admits(), breaker.admits()] == [True, False]


def test_earlier_failures_do_not_delay_trial(breaker: BreakerHarness) -> None:
    open_breaker(breaker)
    for _ in range(10):
        breaker.clock.now += COOLDOWN / 10
        breaker.fail()
    assert breaker.admits()


def test_rejection_contains_retry_delay(breaker: BreakerHarness) -> None:
    open_breaker(breaker)
    breaker.clock.now += 2.5
    with pytest.raises(InterlockError) as caught:
        breaker.breakers.admit("u")
    assert caught.value.failure is CIRCUIT_OPEN
    assert caught.value.failure.retryable
    assert caught.value.data == {"upstream": "u", "retry_after_ms": 7500}
    assert caught.value.message == ("The upstream u failed 3 times in a row. Try again in 7.5 s.")
    breaker.clock.now += caught.value.data["retry_after_ms"] / 1000
    assert breaker.admits()


def test_keeps_separate_breaker_for_each_upstream(breaker: BreakerHarness) -> None:
    open_breaker(breaker)
    assert breaker.admits("other")
    assert breaker.breakers.state("other") is CLOSED


def test_applies_new_settings_immediately(breaker: BreakerHarness) -> None:
    breaker.breakers.configure(failures=1, cooldown=1)
    breaker.fail()
    assert not breaker.admits()
    breaker.clock.now += 1
    assert breaker.admits()


class BreakerStateMachine(RuleBasedStateMachine):
    """Any order of events: one trial per cooldown, never stuck open, never open early."""

    def __init__(self) -> None:
        super().__init__()
        self.bench = BreakerHarness()
        self.consecutive_failures = 0
        self.rejected_until = 0.0

    @rule(seconds=st.floats(0, 2 * COOLDOWN))
    def advance_clock(self, seconds: float) -> None:
        self.bench.clock.now += seconds

    @rule()
    def call(self) -> None:
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
    def fail(self, failure: Failure) -> None:
        before = self.bench.state
        self.bench.fail(failure=failure)
        self.consecutive_failures += 1
        if before is HALF_OPEN:
            assert self.bench.state is OPEN

    @rule(failure=st.sampled_from([errors.UPSTREAM_LOST, errors.INVALID_ARGUMENTS, CIRCUIT_OPEN]))
    def record_other_failure(self, failure: Failure) -> None:
        before = self.bench.state
        self.bench.fail(failure=failure)
        assert self.bench.state is before

    @rule(how=st.sampled_from([succeed, return_error, reset_breaker]))
    def recover(self, how: Callable[[BreakerHarness], None]) -> None:
        how(self.bench)
        self.consecutive_failures = 0
        assert self.bench.state is CLOSED

    @precondition(lambda self: self.bench.state is not CLOSED)
    @rule()
    def admits_after_cooldown(self) -> None:
        self.bench.clock.now += COOLDOWN
        assert self.bench.admits()

    @invariant()
    def opens_only_after_failures(self) -> None:
        assert (self.bench.state is CLOSED) is (self.consecutive_failures < FAILURES)


TestBreakerStates = BreakerStateMachine.TestCase
