"""How often a code may be wrong. Counted by who tries, across all of its challenges and over
restarts; by two clocks, so that one that is set back gives nobody more tries.

No `SlidingWindow`: every failure is written down by itself, and too many lock the caller out for a
time that doubles with each lockout."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final

from interlock.aql.config import SafetyConfig
from interlock.aql.safety.store import Attempts, SafetyKeeper
from interlock.core.call import Principal
from interlock.errors import InterlockError
from interlock.primitives.backoff import exponential_delay

_MOST_TIMES: Final = 1024.0
_log = logging.getLogger("interlock.safety")


class Tries:
    """The wrong codes of everybody."""

    def __init__(
        self,
        keeper: SafetyKeeper,
        config: SafetyConfig,
        *,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
    ) -> None:
        self.config = config
        self._keeper = keeper
        self._clock = clock
        self._now = wall_clock
        self._of: dict[Principal, Attempts] = {}
        self._until: dict[Principal, float] = {}
        """The same on the clock that never goes back."""

    def load(self, found: Iterable[Attempts]) -> None:
        now = self._now()
        for one in found:
            self._of[one.who] = one
            left = min(one.until - now, self._lockout(one.locked))
            if left > 0:
                self._until[one.who] = self._clock() + left

    def wait(self, who: Principal) -> float:
        """For how many seconds nothing is taken from it. 0: it may try."""
        known = self._of.get(who)
        if known is None:
            return 0.0
        left = self._until.get(who, 0.0) - self._clock()
        by_wall = known.until - self._now()
        # Never longer than it was locked out for, however far the clock was set back.
        return max(left, min(by_wall, self._lockout(known.locked)), 0.0)

    def failed(self, who: Principal) -> float:
        """One more was wrong. Returns for how long nothing more is taken."""
        now, config = self._now(), self.config
        known = self._of.get(who) or Attempts(who)
        # One that lies in the future was made before the clock was set back: it counts.
        recent = [at for at in known.failures if at > now - config.attempts_within]
        failures = (*recent, now)[-config.attempts :]
        locked, until = known.locked, known.until
        if len(failures) >= config.attempts:
            locked += 1
            failures = ()
            until = now + self._lockout(locked)
            self._until[who] = self._clock() + self._lockout(locked)
        self._keep(Attempts(who, failures, locked, until))
        return self.wait(who)

    def passed(self, who: Principal) -> None:
        """The right one was entered: it begins anew."""
        known = self._of.pop(who, None)
        self._until.pop(who, None)
        if known is not None:
            try:
                self._keeper.drop(known)
            except InterlockError as error:
                _log.warning("wrong codes of %s are remembered too long: %s", who[0], error)

    def _lockout(self, locked: int) -> float:
        within = self.config.attempts_within
        if not self.config.lockout:
            return within
        return exponential_delay(locked - 1, within, within * _MOST_TIMES)

    def _keep(self, attempts: Attempts) -> None:
        self._of[attempts.who] = attempts
        try:
            self._keeper.keep(attempts)
        except InterlockError as error:
            _log.error("wrong codes of %s count until the node stops: %s", attempts.who[0], error)
