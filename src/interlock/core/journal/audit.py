"""What happened? The outermost stage: every outcome is recorded, refusals too."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count
from typing import Final

from interlock.core.call import Call, Caller, Outcome
from interlock.core.catalog.effects import EffectLevel
from interlock.core.pipeline.observers import CallObserver
from interlock.core.ports import JournalEntry, Recorder
from interlock.errors import CONFIRMATION_REQUIRED, InterlockError
from interlock.primitives.rate_limits import Sampler
from interlock.protocol.mcp import INPUT_REQUIRED, TOOLS_CALL

OK: Final = "ok"
TOOL_ERROR: Final = "tool_error"
"""A result in which the tool itself says that it failed."""
COLLECTED: Final = "collected"
"""The outcome of an approved call is handed to its caller, who made the call once more: that one
was not sent. What was, has an entry of its own."""
ANSWERED: Final = "answered"
REFUSED: Final = "refused"
WITHDRAWN: Final = "withdrawn"
GONE: Final = "ax:"
"""Under this key are the sums of subservers that are no more. No upstream can have it."""
DISPATCHING: Final = "dispatching"
"""Written before a call leaves that changes something. Alone, without the entry of how it ended, it
says that the node stopped meanwhile."""
HELD: Final = "held"
"""A tool that changed since a human accepted it."""
ASKED: Final = "asked"
"""A question whose answer comes with a request of its own, for its server alone to read."""
_NOT_OVER: Final = frozenset({INPUT_REQUIRED, CONFIRMATION_REQUIRED.name})
"""Outcomes of calls that have not failed: their server, or a human, has to say something first."""
_IRREVERSIBLE: Final = EffectLevel.IRREVERSIBLE.label
_MOST_CHARACTERS: Final = 500
"""What others wrote is kept up to here: one call must not fill the journal."""

MOST_STRANGERS: Final = 20
"""Entries a second about requests whose sender is not known; more are counted in the next."""
MOST_QUESTIONS: Final = 100
"""Entries a second about questions of upstreams; more are counted in the next."""


class CallTotals:
    """Running totals, for whoever watches the node. Plain slots: they are written for every call,
    and nothing is written quicker."""

    __slots__ = ("busy_us", "calls", "failed")

    def __init__(self, calls: int = 0, failed: int = 0, busy_us: int = 0) -> None:
        self.calls = calls
        self.failed = failed
        self.busy_us = busy_us


class Audit(CallObserver):
    """Writes the journal entry of every call and keeps the tallies."""

    def __init__(
        self,
        recorder: Recorder | None,
        wall_clock: Callable[[], int] = time.time_ns,
        *,
        durable: bool = True,
        digest: Callable[[Call], str] | None = None,
    ) -> None:
        """Args:
        recorder: where entries go. None: nowhere.
        wall_clock: nanoseconds since 1970.
        durable: whether calls that change something are on disk before they leave.
        digest: what the entries of irreversible and approved calls say of their arguments.
        """
        self._recorder = recorder
        self._wall_clock = wall_clock
        self.writes_first = durable and recorder is not None
        """Whether `intend` has anything to do."""
        self._digest = digest
        self._intended: dict[Call, str] = {}
        self._last_caller: Caller | None = None
        self._last_whom = ""
        """How the last caller of a call that a parent sent is written down."""
        # Never the same again, not after a restart either.
        self._run = f"{wall_clock():x}"
        self._numbers = count(1)
        self.by_upstream: dict[str, CallTotals] = {}
        """By key; calls that led to no upstream are under the empty one."""
        self._strangers = Sampler(MOST_STRANGERS, 1.0)
        self._questions = Sampler(MOST_QUESTIONS, 1.0)

    @property
    def total(self) -> CallTotals:
        """The sum over all upstreams."""
        tallies = self.by_upstream.values()
        return CallTotals(
            sum(one.calls for one in tallies),
            sum(one.failed for one in tallies),
            sum(one.busy_us for one in tallies),
        )

    def forget(self, upstream: str) -> None:
        """It is no more, and others may come under ever new names: only the sum is kept."""
        gone = self.by_upstream.pop(upstream, None)
        if gone is not None:
            sum_of_gone = self.by_upstream.get(GONE) or self._new_tally(GONE)
            sum_of_gone.calls += gone.calls
            sum_of_gone.failed += gone.failed
            sum_of_gone.busy_us += gone.busy_us

    def intend(self, call: Call, then: Callable[[bool], None]) -> None:
        """Write down that a call is about to leave. `then` is told whether that is on disk: if not,
        it must not leave. The entry of how it ends names the same call."""
        recorder = self._recorder
        if recorder is None:
            then(True)
            return
        mark = self._intended.get(call)
        if mark is None:
            mark = f"call:{self._run}-{next(self._numbers)}" if self.writes_first else ""
            # Arguments are read and sorted for it, which is too slow for calls that can be undone.
            if self._digest is not None and (call.effect == _IRREVERSIBLE or call.approval_id):
                mark = f"{mark} {self._digest(call)}".strip()
            if mark:
                self._intended[call] = mark
        if self.writes_first:
            detail = _told_of(call, mark, "")
            recorder.record_durably(self._entry(call, DISPATCHING, 0, detail), then)
        else:
            then(True)

    def record(self, call: Call, word: str, duration_us: int, detail: str = "") -> None:
        """Write down what is no call on its way through the pipeline."""
        self.on_end(call, word, duration_us, detail)

    def on_end(
        self,
        call: Call,
        outcome_name: str,
        duration_us: int,
        detail: str = "",
        outcome: Outcome | None = None,
        error: InterlockError | None = None,
    ) -> None:
        upstream, verb = call.upstream, call.method
        if verb == TOOLS_CALL and outcome_name != COLLECTED:
            tally = self.by_upstream.get(upstream) or self._new_tally(upstream)
            tally.calls += 1
            tally.busy_us += duration_us
            # A call whose server wants to know more first has not failed.
            if outcome_name != OK and outcome_name not in _NOT_OVER:
                tally.failed += 1
        recorder = self._recorder
        if recorder is None:
            return
        caller, route = call.caller, call.route
        if (
            route is not None
            and caller is not None
            and not (detail or self._intended or call.approval_id)
        ):
            # Nearly every entry, put together in one go.
            if not caller.parent_caller:
                whom = caller.name
            elif caller is self._last_caller:
                whom = self._last_whom
            else:
                whom = self._last_whom = _whom(caller)
                self._last_caller = caller
            wall_clock = self._wall_clock
            recorder.record(
                (
                    wall_clock(), whom, call.server, verb, route.canonical, upstream, call.effect,
                    outcome_name, duration_us, "",
                )
            )  # fmt: skip
            return
        if caller is None:
            # Strangers must not push the record of everybody else out of the journal.
            folded = self._strangers.sample(self._wall_clock() / 1e9)
            if folded is None:
                return
            if folded:
                detail = f"{detail} (and {folded} more of strangers before it)"
        if self._intended or call.approval_id:
            detail = _told_of(call, self._intended.pop(call, ""), detail)
        recorder.record(self._entry(call, outcome_name, duration_us, detail))

    def _entry(self, call: Call, outcome: str, duration_us: int, detail: str) -> JournalEntry:
        caller = call.caller
        route = call.route
        verb = call.method
        if route is None:
            verb, name = verb[:_MOST_CHARACTERS], call.name[:_MOST_CHARACTERS]
        else:
            name = route.canonical
        return (
            self._wall_clock(),
            "" if caller is None else _whom(caller),
            call.server,
            verb,
            name,
            call.upstream,
            call.effect,
            outcome,
            duration_us,
            detail[:_MOST_CHARACTERS] if detail else detail,
        )

    def record_held(self, tool: str, detail: str) -> None:
        """A tool is not what a human accepted, and is held."""
        if self._recorder is not None:
            entry = (self._wall_clock(), "", "", HELD, tool, "", "", HELD, 0, detail)
            self._recorder.record(entry)

    def record_change(self, what: str, name: str, word: str, detail: str = "") -> None:
        """Somebody changed by what the node decides: its rules, pins, keys or tokens."""
        if self._recorder is not None:
            detail = detail[:_MOST_CHARACTERS]
            self._recorder.record((self._wall_clock(), "", "", what, name, "", "", word, 0, detail))

    def record_part(
        self,
        call: Call,
        what: str,
        name: str,
        upstream: str,
        outcome: str,
        duration_us: int,
        detail: str,
    ) -> None:
        """A step of a call that has more than one. `detail` is whole: nobody else wrote it."""
        if self._recorder is not None:
            caller = "" if call.caller is None else _whom(call.caller)
            self._recorder.record(
                (
                    self._wall_clock(), caller, call.server, what, name, upstream, call.effect,
                    outcome, duration_us, detail,
                )
            )  # fmt: skip

    def record_question(
        self,
        method: str,
        *,
        caller: str,
        face: str,
        about: str,
        upstream: str,
        outcome: str,
        duration_us: int,
        detail: str = "",
    ) -> None:
        """What an upstream asked of a caller, and what came of it. `about`: during which call."""
        if self._recorder is None:
            return
        now = self._wall_clock()
        # However much an upstream wants to know, the calls stay in the journal.
        folded = self._questions.sample(now / 1e9)
        if folded is None:
            return
        detail = detail[:_MOST_CHARACTERS]
        if folded:
            detail = f"{detail} (and {folded} more questions before it)".lstrip()
        self._recorder.record(
            (
                now,
                caller,
                face,
                method[:_MOST_CHARACTERS],
                about[:_MOST_CHARACTERS],
                upstream,
                "",
                outcome,
                duration_us,
                detail,
            )
        )

    def _new_tally(self, upstream: str) -> CallTotals:
        tally = self.by_upstream[upstream] = CallTotals()
        return tally


def _told_of(call: Call, mark: str, detail: str) -> str:
    """The detail of an entry, behind the words by which others find it."""
    approval = f"approval:{call.approval_id}" if call.approval_id else ""
    return " ".join(word for word in (mark, approval, detail) if word)


def _whom(caller: Caller) -> str:
    """Who it was; of a call that a parent sent, also who called there."""
    return (
        f"{caller.name}/{caller.parent_caller}"[:_MOST_CHARACTERS]
        if caller.parent_caller
        else caller.name
    )
