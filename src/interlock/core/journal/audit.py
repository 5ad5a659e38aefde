"""The audit: a journal entry for the outcome of every call, including rejected ones."""

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
"""A result in which the tool itself reports an error."""
COLLECTED: Final = "collected"
"""The result of an approved call was returned to its caller, who repeated the call. The repeated
call was not sent. The sent one has an entry of its own."""
ANSWERED: Final = "answered"
REFUSED: Final = "refused"
WITHDRAWN: Final = "withdrawn"
REMOVED_UPSTREAMS: Final = "ax:"
"""The key of the totals of removed subservers. No upstream can have it."""
DISPATCHING: Final = "dispatching"
"""Written before a call that changes something is sent. Without an entry of its end, the node
stopped in between."""
HELD: Final = "held"
"""A tool that changed after an operator accepted it."""
ASKED: Final = "asked"
"""A client request whose response comes with a later request, readable for its server only."""
_PENDING_OUTCOMES: Final = frozenset({INPUT_REQUIRED, CONFIRMATION_REQUIRED.name})
"""Outcomes of calls that have not failed: the server or an operator has to respond first."""
_IRREVERSIBLE: Final = EffectLevel.IRREVERSIBLE.label
_MAX_TEXT_LENGTH: Final = 500
"""The limit of texts from other parties: one call must not fill the journal."""

MAX_UNKNOWN_CALLER_ENTRIES: Final = 20
"""Entries per second about requests of unknown callers. Further ones are counted in the next."""
MAX_CLIENT_REQUEST_ENTRIES: Final = 100
"""Entries per second about client requests. Further ones are counted in the next."""


class CallTotals:
    """Running totals. Plain slots, the fastest objects to update for every call."""

    __slots__ = ("busy_us", "calls", "failed")

    def __init__(self, calls: int = 0, failed: int = 0, busy_us: int = 0) -> None:
        self.calls = calls
        self.failed = failed
        self.busy_us = busy_us


class Audit(CallObserver):
    """Writes the journal entry of every call and counts calls per upstream."""

    def __init__(
        self,
        recorder: Recorder | None,
        wall_clock: Callable[[], int] = time.time_ns,
        *,
        durable: bool = True,
        digest: Callable[[Call], str] | None = None,
    ) -> None:
        """
        Args:
            recorder: where entries go. None: nowhere.
            wall_clock: nanoseconds since 1970.
            durable: calls that change something are on disk before they are sent.
            digest: returns what entries of irreversible and approved calls say of their arguments.
        """
        self._recorder = recorder
        self._wall_clock = wall_clock
        self.records_intents = durable and recorder is not None
        """True if `record_intent` has anything to do."""
        self._digest = digest
        self._intents: dict[Call, str] = {}
        self._last_caller: Caller | None = None
        self._last_caller_name = ""
        """The formatted name of the last caller of a parent's call."""
        # Unique, even after a restart.
        self._run = f"{wall_clock():x}"
        self._numbers = count(1)
        self.by_upstream: dict[str, CallTotals] = {}
        """By upstream key. Calls without an upstream are under the empty one."""
        self._unknown_callers = Sampler(MAX_UNKNOWN_CALLER_ENTRIES, 1.0)
        self._client_requests = Sampler(MAX_CLIENT_REQUEST_ENTRIES, 1.0)

    @property
    def total(self) -> CallTotals:
        """The sum of all upstreams."""
        all_totals = self.by_upstream.values()
        return CallTotals(
            sum(totals.calls for totals in all_totals),
            sum(totals.failed for totals in all_totals),
            sum(totals.busy_us for totals in all_totals),
        )

    def remove_upstream(self, upstream: str) -> None:
        """Add the totals of a removed upstream to those of all removed ones. Their names may be
        unlimited in number."""
        removed = self.by_upstream.pop(upstream, None)
        if removed is not None:
            totals = self.by_upstream.get(REMOVED_UPSTREAMS) or self._add_totals(REMOVED_UPSTREAMS)
            totals.calls += removed.calls
            totals.failed += removed.failed
            totals.busy_us += removed.busy_us

    def record_intent(self, call: Call, on_recorded: Callable[[bool], None]) -> None:
        """Record that a call is about to be sent. `on_recorded` gets True when that is on disk. On
        False the call must not be sent. The entry of its end has the same call id."""
        recorder = self._recorder
        if recorder is None:
            on_recorded(True)
            return
        call_id = self._intents.get(call)
        if call_id is None:
            call_id = f"call:{self._run}-{next(self._numbers)}" if self.records_intents else ""
            # The digest reads and sorts the arguments, which is too slow for reversible calls.
            if self._digest is not None and (call.effect == _IRREVERSIBLE or call.approval_id):
                call_id = f"{call_id} {self._digest(call)}".strip()
            if call_id:
                self._intents[call] = call_id
        if self.records_intents:
            detail = _format_detail(call, call_id, "")
            recorder.record_durably(self._entry(call, DISPATCHING, 0, detail), on_recorded)
        else:
            on_recorded(True)

    def record(self, call: Call, outcome_name: str, duration_us: int, detail: str = "") -> None:
        """Record something that is not a call in the pipeline."""
        self.on_end(call, outcome_name, duration_us, detail)

    def on_end(
        self,
        call: Call,
        outcome_name: str,
        duration_us: int,
        detail: str = "",
        outcome: Outcome | None = None,
        error: InterlockError | None = None,
    ) -> None:
        upstream, method = call.upstream, call.method
        if method == TOOLS_CALL and outcome_name != COLLECTED:
            totals = self.by_upstream.get(upstream) or self._add_totals(upstream)
            totals.calls += 1
            totals.busy_us += duration_us
            # A call whose server or operator has to respond first has not failed.
            if outcome_name != OK and outcome_name not in _PENDING_OUTCOMES:
                totals.failed += 1
        recorder = self._recorder
        if recorder is None:
            return
        caller, route = call.caller, call.route
        if (
            route is not None
            and caller is not None
            and not (detail or self._intents or call.approval_id)
        ):
            # Nearly every entry, built at once.
            if not caller.parent_caller:
                caller_name = caller.name
            elif caller is self._last_caller:
                caller_name = self._last_caller_name
            else:
                caller_name = self._last_caller_name = _format_caller(caller)
                self._last_caller = caller
            wall_clock = self._wall_clock
            recorder.record(
                (
                    wall_clock(), caller_name, call.server, method, route.canonical, upstream,
                    call.effect, outcome_name, duration_us, "",
                )
            )  # fmt: skip
            return
        if caller is None:
            # Unknown callers must not push other entries out of the journal.
            skipped = self._unknown_callers.sample(self._wall_clock() / 1e9)
            if skipped is None:
                return
            if skipped:
                detail = f"{detail} (and {skipped} more of unknown callers before)"
        if self._intents or call.approval_id:
            detail = _format_detail(call, self._intents.pop(call, ""), detail)
        recorder.record(self._entry(call, outcome_name, duration_us, detail))

    def _entry(self, call: Call, outcome: str, duration_us: int, detail: str) -> JournalEntry:
        caller = call.caller
        route = call.route
        method = call.method
        if route is None:
            method, name = method[:_MAX_TEXT_LENGTH], call.name[:_MAX_TEXT_LENGTH]
        else:
            name = route.canonical
        return (
            self._wall_clock(),
            "" if caller is None else _format_caller(caller),
            call.server,
            method,
            name,
            call.upstream,
            call.effect,
            outcome,
            duration_us,
            detail[:_MAX_TEXT_LENGTH] if detail else detail,
        )

    def record_held_tool(self, tool: str, detail: str) -> None:
        """Record that a tool is held because it differs from the accepted definition."""
        if self._recorder is not None:
            entry = (self._wall_clock(), "", "", HELD, tool, "", "", HELD, 0, detail)
            self._recorder.record(entry)

    def record_change(self, kind: str, name: str, outcome_name: str, detail: str = "") -> None:
        """Record a change of policy rules, pins, keys or tokens."""
        if self._recorder is not None:
            detail = detail[:_MAX_TEXT_LENGTH]
            self._recorder.record(
                (self._wall_clock(), "", "", kind, name, "", "", outcome_name, 0, detail)
            )

    def record_part(
        self,
        call: Call,
        kind: str,
        name: str,
        upstream: str,
        outcome: str,
        duration_us: int,
        detail: str,
    ) -> None:
        """Record one step of a call. `detail` is not shortened: the node wrote it."""
        if self._recorder is not None:
            caller = "" if call.caller is None else _format_caller(call.caller)
            self._recorder.record(
                (
                    self._wall_clock(), caller, call.server, kind, name, upstream, call.effect,
                    outcome, duration_us, detail,
                )
            )  # fmt: skip

    def record_client_request(
        self,
        method: str,
        *,
        caller: str,
        face: str,
        name: str,
        upstream: str,
        outcome: str,
        duration_us: int,
        detail: str = "",
    ) -> None:
        """Record a client request and its outcome. `name`: the call that it belongs to."""
        if self._recorder is None:
            return
        now = self._wall_clock()
        # Many client requests must not push calls out of the journal.
        skipped = self._client_requests.sample(now / 1e9)
        if skipped is None:
            return
        detail = detail[:_MAX_TEXT_LENGTH]
        if skipped:
            detail = f"{detail} (and {skipped} more client requests before)".lstrip()
        self._recorder.record(
            (
                now,
                caller,
                face,
                method[:_MAX_TEXT_LENGTH],
                name[:_MAX_TEXT_LENGTH],
                upstream,
                "",
                outcome,
                duration_us,
                detail,
            )
        )

    def _add_totals(self, upstream: str) -> CallTotals:
        totals = self.by_upstream[upstream] = CallTotals()
        return totals


def _format_detail(call: Call, call_id: str, detail: str) -> str:
    """Return the detail of an entry, after the words by which readers find it."""
    approval = f"approval:{call.approval_id}" if call.approval_id else ""
    return " ".join(outcome_name for outcome_name in (call_id, approval, detail) if outcome_name)


def _format_caller(caller: Caller) -> str:
    """Return the name of a caller, with the name of the parent's caller if there is one."""
    return (
        f"{caller.name}/{caller.parent_caller}"[:_MAX_TEXT_LENGTH]
        if caller.parent_caller
        else caller.name
    )
