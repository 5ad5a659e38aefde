"""What happened? The outermost stage: every outcome is recorded, refusals too."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import msgspec

from interlock.call import Call
from interlock.ports import Recorder
from interlock.protocol.mcp import TOOLS_CALL

OK: Final = "ok"
TOOL_ERROR: Final = "tool_error"
"""A result in which the tool itself says that it failed."""
_MOST_CHARACTERS: Final = 500
"""What others wrote is kept up to here: one call must not fill the journal."""

MOST_STRANGERS: Final = 20
"""Entries a second about requests whose sender is not known; more are counted in the next."""


class Tally(msgspec.Struct, gc=False):
    """Running totals, for whoever watches the node."""

    calls: int = 0
    failed: int = 0
    busy_us: int = 0


class Audit:
    """Writes the journal entry of every call and keeps the tallies."""

    def __init__(
        self, recorder: Recorder | None, wall_clock: Callable[[], int] = time.time_ns
    ) -> None:
        self._recorder = recorder
        self._wall_clock = wall_clock
        self.by_upstream: dict[str, Tally] = {}
        """By key; calls that led to no upstream are under the empty one."""
        self._strangers_second = 0
        self._strangers_written = 0
        self._strangers_folded = 0

    @property
    def total(self) -> Tally:
        """The sum over all upstreams."""
        tallies = self.by_upstream.values()
        return Tally(
            sum(one.calls for one in tallies),
            sum(one.failed for one in tallies),
            sum(one.busy_us for one in tallies),
        )

    def record(self, call: Call, outcome: str, duration_us: int, detail: str = "") -> None:
        upstream = call.upstream
        if call.verb == TOOLS_CALL:
            tally = self.by_upstream.get(upstream) or self._new_tally(upstream)
            tally.calls += 1
            tally.busy_us += duration_us
            if outcome != OK:
                tally.failed += 1
        recorder = self._recorder
        if recorder is None:
            return
        caller = call.caller
        if caller is None:
            # Strangers must not push the record of everybody else out of the journal.
            folded = self._fold_strangers()
            if folded is None:
                return
            if folded:
                detail = f"{detail} (and {folded} more refusals before it)"
        route = call.route
        verb = call.verb
        if route is None:
            verb, name = verb[:_MOST_CHARACTERS], call.name[:_MOST_CHARACTERS]
        else:
            name = route.canonical
        recorder.record(
            (
                self._wall_clock(),
                "" if caller is None else caller.name,
                call.face,
                verb,
                name,
                upstream,
                call.effect,
                outcome,
                duration_us,
                detail[:_MOST_CHARACTERS] if detail else detail,
            )
        )

    def _fold_strangers(self) -> int | None:
        """None: only count this one. Else how many were only counted since the last entry."""
        second = self._wall_clock() // 1_000_000_000
        if second != self._strangers_second:
            self._strangers_second, self._strangers_written = second, 0
        if self._strangers_written >= MOST_STRANGERS:
            self._strangers_folded += 1
            return None
        self._strangers_written += 1
        folded, self._strangers_folded = self._strangers_folded, 0
        return folded

    def _new_tally(self, upstream: str) -> Tally:
        tally = self.by_upstream[upstream] = Tally()
        return tally
