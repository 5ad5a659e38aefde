"""Is it worth trying? A circuit breaker per upstream.

It counts what a connection cannot show: an upstream that is there but hangs, or answers nonsense.
An upstream that went away is not its business, its supervisor sees to that.
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
    """The breaker of every upstream."""

    def __init__(self, clock: Clock, *, failures: int, cooldown: float) -> None:
        self._clock = clock
        self._failures = failures
        self._cooldown = cooldown
        self.failing: dict[str, _Breaker] = {}
        """Those that have failed lately. Empty: nobody need ask."""

    def configure(self, *, failures: int, cooldown: float) -> None:
        self._failures = failures
        self._cooldown = cooldown

    def admit(self, upstream: str) -> None:
        """Let the call pass, or raise. After the cooldown one call may try."""
        breaker = self.failing.get(upstream)
        if breaker is None or breaker.circuit is Circuit.CLOSED:
            return
        wait = breaker.opened + self._cooldown - self._clock()
        if breaker.circuit is Circuit.OPEN and wait <= 0:
            breaker.circuit = Circuit.HALF_OPEN
            # A trial that never reports back must not block the upstream for ever.
            breaker.opened = self._clock()
            return
        if breaker.circuit is Circuit.HALF_OPEN and wait <= 0:
            breaker.opened = self._clock()
            return
        # Sums of times are a hair off: nobody is told to wait longer than the cooldown.
        retry_ms = max(1, ceil(min(wait, self._cooldown) * 1000))
        raise InterlockError(
            CIRCUIT_OPEN,
            f"{upstream} failed {breaker.failures} times in a row and is left alone for now; "
            f"try again in {retry_ms / 1000:.1f} s.",
            {"upstream": upstream, "retry_after_ms": retry_ms},
        )

    def succeeded(self, upstream: str) -> None:
        if upstream in self.failing:
            del self.failing[upstream]

    def blame(self, call: Call, error: InterlockError) -> None:
        """Hold a failed call against its upstream, if that is to blame."""
        if isinstance(error, RelayedError):
            # Something below it failed; it is well, and said so.
            self.succeeded(call.upstream)
        elif not (call.has_caller_timeout and error.failure is DEADLINE_EXCEEDED):
            # Who is in a greater hurry than the node must not speak for the others.
            self.failed(call.upstream, error.failure)

    def failed(self, upstream: str, failure: Failure) -> None:
        """Count a failure, if it is one that an upstream is to blame for.

        An error that the upstream itself answered with shows that it is there and well.
        """
        if failure.name not in _COUNTED:
            if failure.name == UPSTREAM_ERROR.name:
                self.succeeded(upstream)
            return
        breaker = self.failing.get(upstream)
        if breaker is None:
            breaker = self.failing[upstream] = _Breaker()
        breaker.failures += 1
        # Calls that were under way when it opened say nothing new: callers were told when to retry.
        if breaker.circuit is Circuit.HALF_OPEN or (
            breaker.circuit is Circuit.CLOSED and breaker.failures >= self._failures
        ):
            breaker.circuit = Circuit.OPEN
            breaker.opened = self._clock()

    def reset(self, upstream: str) -> None:
        """The upstream came back new: it starts with a clean slate."""
        self.failing.pop(upstream, None)

    def state(self, upstream: str) -> Circuit:
        breaker = self.failing.get(upstream)
        return Circuit.CLOSED if breaker is None else breaker.circuit
