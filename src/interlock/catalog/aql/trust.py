"""How far each server is trusted with dangerous operations, and how that came about.

Trust rises step by step and falls at once. What a server lists may only become wider: when
something that could be asked before is no longer understood, it is trusted no more than something
that nobody has tried.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from interlock.catalog.aql.danger import TRUST, Trust
from interlock.catalog.aql.operation import Signature

CONFIGURED: Final[Trust] = "validated"
"""Of a server that the config names: an operator chose it."""
REGISTERED: Final[Trust] = "generated"
"""Of one that registered itself."""
_MOST_CHANGES: Final = 100
"""So many are remembered of each server."""


class Change(msgspec.Struct, frozen=True, rename={"from_": "from"}, omit_defaults=True):
    """One step of a server's history."""

    from_: Trust
    to: Trust
    at: float
    by: str
    reason: str = ""


class Trusting:
    """The trust of one node in its servers."""

    def __init__(
        self,
        declared: Mapping[str, Trust],
        *,
        registered: Callable[[str], bool] = lambda _: False,
        wall_clock: Callable[[], float],
    ) -> None:
        """`declared`: what the config says. `registered`: whether a server came by itself."""
        self._registered = registered
        self._wall_clock = wall_clock
        self._declared = dict(declared)
        self._levels: dict[str, Trust] = dict(declared)
        self._history: dict[str, list[Change]] = {}
        self.on_change: Callable[[], None] = lambda: None
        """Told when some server is trusted more or less than before."""

    def __call__(self, server: str) -> Trust:
        known = self._levels.get(server)
        if known is not None:
            return known
        return REGISTERED if self._registered(server) else CONFIGURED

    def configure(self, declared: Mapping[str, Trust]) -> list[str]:
        """What the config says from now on. Returns a sentence for each promotion that skips a
        level: it is not made.
        """
        problems = []
        for server in sorted(self._declared.keys() | declared.keys()):
            if self._declared.get(server) == declared.get(server):
                continue
            wanted = declared.get(server) or (
                REGISTERED if self._registered(server) else CONFIGURED
            )
            problem = self.change(server, wanted, "config")
            if problem is not None:
                problems.append(problem)
        self._declared = dict(declared)
        return problems

    def change(self, server: str, to: Trust, by: str, reason: str = "") -> str | None:
        """Promote a server by one level, or demote it to any. Returns why not, if not."""
        now = self(server)
        if to == now:
            return None
        if TRUST.index(to) > TRUST.index(now) + 1:
            following = TRUST[TRUST.index(now) + 1]
            return (
                f"'{server}' is {now}: it can become {following} next, not {to}. Trust rises by "
                "one level after the other."
            )
        self._levels[server] = to
        self.on_change()
        history = self._history.setdefault(server, [])
        history.append(Change(now, to, self._wall_clock(), by, reason))
        del history[:-_MOST_CHANGES]
        return None

    def broke(self, server: str, operation: str, what: str) -> None:
        """A server no longer understands what could be asked before."""
        if TRUST.index(self(server)) > TRUST.index(REGISTERED):
            self.change(server, REGISTERED, "node", f"{operation}: {what}")

    def history(self, server: str) -> list[dict[str, Any]]:
        """How its trust came about, the oldest first."""
        return [msgspec.to_builtins(change) for change in self._history.get(server, ())]


def broken(before: Signature, now: Signature) -> str:
    """What of an operation is no longer understood. Empty: nothing."""
    for one in before.parameters:
        other = now.by_name.get(one.name)
        if other is None:
            if not now.open:
                return f"parameter {one.name} is gone"
        elif other.type != one.type and other.type != "any":
            return f"parameter {one.name} was {one.type} and is {other.type}"
        elif other.inside != one.inside:
            return f"parameter {one.name} has another place"
    known = {one.name: one for one in before.parameters}
    for one in now.parameters:
        if one.required and (one.name not in known or not known[one.name].required):
            return f"parameter {one.name} is required now"
    return ""
