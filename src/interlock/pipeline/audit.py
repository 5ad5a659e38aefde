"""What happened? The outermost stage: every outcome is recorded, refusals too."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import msgspec

from interlock.call import Call, Outcome
from interlock.ports import Recorder
from interlock.protocol.mcp import TOOLS_CALL, CallResult

OK: Final = "ok"
_MOST_CHARACTERS: Final = 500
"""What others wrote is kept up to here: one call must not fill the journal."""

_decode_call_result = msgspec.json.Decoder(CallResult).decode


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
        self.total = Tally()
        self.by_upstream: dict[str, Tally] = {}

    def record(self, call: Call, outcome: str, duration_us: int, detail: str = "") -> None:
        failed = outcome != OK
        if call.verb == TOOLS_CALL:
            self._count(self.total, failed, duration_us)
            if call.upstream:
                tally = self.by_upstream.get(call.upstream)
                if tally is None:
                    tally = self.by_upstream[call.upstream] = Tally()
                self._count(tally, failed, duration_us)
        if self._recorder is not None:
            caller = call.caller
            route = call.route
            verb = call.verb
            if route is None:
                verb, name = verb[:_MOST_CHARACTERS], call.name[:_MOST_CHARACTERS]
            else:
                name = route.canonical
            if detail:
                detail = detail[:_MOST_CHARACTERS]
            self._recorder.record(
                (
                    self._wall_clock(),
                    "" if caller is None else caller.name,
                    call.face,
                    verb,
                    name,
                    call.upstream,
                    call.effect,
                    outcome,
                    duration_us,
                    detail,
                )
            )

    @staticmethod
    def _count(tally: Tally, failed: bool, duration_us: int) -> None:
        tally.calls += 1
        tally.busy_us += duration_us
        if failed:
            tally.failed += 1


def outcome_word(outcome: Outcome) -> str:
    """`ok`, or `tool_error` for a result in which the tool itself says that it failed."""
    raw = bytes(outcome.result)
    if b'"isError"' in raw:
        try:
            return "tool_error" if _decode_call_result(raw).is_error else OK
        except (msgspec.DecodeError, RecursionError):
            return OK
    return OK
