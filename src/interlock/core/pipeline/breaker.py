"""A circuit breaker for each upstream.

It counts failures of a connected upstream: timeouts and invalid responses. Lost connections are
handled by the supervisor of the upstream.
"""

from __future__ import annotations

from enum import Enum
from math import ceil
from typing import Final

from interlock.core.call import Call, RelayedError
from interlock.core.ports import Clock
from interlock.errors import (
    CIRCUIT_OPEN,
    DEADLINE_EXCEEDED,
    UPSTREAM_ERROR,
    UPSTREAM_PROTOCOL,
    Failure,
    InterlockError,
)

_COUNTED: Final = frozenset({DEADLINE_EXCEEDED.name, UPSTREAM_PROTOCOL.name})


class Circuit(Enum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class _Breaker:
    __slots__ = ("circuit", "failures", "opened")

    def __init__(self) -> None:
        self.circuit = Circuit.CLOSED
        self.failures = 0
        self.opened = 0.0


class Breakers:
    """The circuit breakers of all upstreams."""

    def __init__(self, clock: Clock, *, failures: int, cooldown: float) -> None:
        self._clock = clock
        self._failures = failures
        self._cooldown = cooldown
        self.failing: dict[str, _Breaker] = {}
        """The breakers of upstreams with recent failures, by key."""

    def configure(self, *, failures: int, cooldown: float) -> None:
        self._failures = failures
        self._cooldown = cooldown

    def admit(self, upstream: str) -> None:
        """Admit a call, or raise InterlockError. After the cooldown one trial call passes."""
        breaker = self.failing.get(upstream)
        if breaker is None or breaker.circuit is Circuit.CLOSED:
            return
        wait = breaker.opened + self._cooldown - self._clock()
        if breaker.circuit is Circuit.OPEN and wait <= 0:
            breaker.circuit = Circuit.HALF_OPEN
            # A trial call without a result must not block the upstream permanently.
            breaker.opened = self._clock()
            return
        if breaker.circuit is Circuit.HALF_OPEN and wait <= 0:
            breaker.opened = self._clock()
            return
        # Limited, since sums of times are not exact: the wait is never longer than the cooldown.
        retry_ms = max(1, ceil(min(wait, self._cooldown) * 1000))
        raise InterlockError(
            CIRCUIT_OPEN,
            f"The upstream {upstream} failed {breaker.failures} times in a row. "
            f"Try again in {retry_ms / 1000:.1f} s.",
            {"upstream": upstream, "retry_after_ms": retry_ms},
        )

    def record_success(self, upstream: str) -> None:
        if upstream in self.failing:
            del self.failing[upstream]

    def record_error(self, call: Call, error: InterlockError) -> None:
        """Count the error of a call, if its upstream caused it."""
        if isinstance(error, RelayedError):
            # The failure is below the upstream: the upstream itself works.
            self.record_success(call.upstream)
        elif not (call.has_caller_timeout and error.failure is DEADLINE_EXCEEDED):
            # A timeout that a caller chose says nothing about the upstream.
            self.record_failure(call.upstream, error.failure)

    def record_failure(self, upstream: str, failure: Failure) -> None:
        """Count a failure, if an upstream can cause it.

        A JSON-RPC error of the upstream counts as a success: it shows that the upstream works.
        """
        if failure.name not in _COUNTED:
            if failure.name == UPSTREAM_ERROR.name:
                self.record_success(upstream)
            return
        breaker = self.failing.get(upstream)
        if breaker is None:
            breaker = self.failing[upstream] = _Breaker()
        breaker.failures += 1
        # Calls that were running when it opened do not extend the wait that callers were told.
        if breaker.circuit is Circuit.HALF_OPEN or (
            breaker.circuit is Circuit.CLOSED and breaker.failures >= self._failures
        ):
            breaker.circuit = Circuit.OPEN
            breaker.opened = self._clock()

    def reset(self, upstream: str) -> None:
        """Remove the failures of an upstream that was connected again."""
        self.failing.pop(upstream, None)

    def state(self, upstream: str) -> Circuit:
        breaker = self.failing.get(upstream)
        return Circuit.CLOSED if breaker is None else breaker.circuit
