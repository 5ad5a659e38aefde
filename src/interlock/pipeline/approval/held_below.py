"""Calls that left this node and were held by a gate below: whom that gate is known to, what it said
of them, and what a call came to in the end that was let through here and there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from interlock.call import Call, Caller, Outcome
from interlock.pipeline.approval.answer import needed_below
from interlock.pipeline.approval.below import Answered, unknown
from interlock.pipeline.approval.ending import after_below
from interlock.pipeline.approval.holding import about
from interlock.pipeline.approval.inbox import Entry, Inbox
from interlock.pipeline.approval.keeping import Kept
from interlock.pipeline.approval.record import DONE, Approval
from interlock.pipeline.approval.shown_below import said_below


class HeldBelow:
    """What the gates of nodes below hold of this node's calls."""

    def __init__(
        self,
        inbox: Inbox,
        *,
        remember: Callable[[str, str, float], None],
        show: Callable[[Approval], None],
        on_passed: Callable[[str], None],
    ) -> None:
        """`remember`: told which approval of which upstream a call came back with, and until when
        that holds. `show`: told what that node said of it. `on_passed`: told of an approval below
        for which a call does not wait any more."""
        self._inbox = inbox
        self._remember = remember
        self._show = show
        self._on_passed = on_passed

    def note(self, call: Call, outcome: Outcome) -> None:
        """A node below may have a gate of its own, and its result say so. It goes up as it is."""
        needed = needed_below(outcome.result)
        if needed is not None:
            self._remember(needed[0], call.upstream, needed[1])
            assert call.caller is not None
            tool, _ = about(call)
            self._tell(outcome.result, call.upstream, tool, call.caller, call.effect)

    def settle(self, entry: Entry, done: Approval, now: float) -> Approval:
        """An approved call was made, and is `done` by what it was answered. Returns what it came
        to: more than that, where the gate below was passed meanwhile."""
        record = entry.record
        heard, entry.heard_below = entry.heard_below, None
        if heard is not None and heard[0] == done.below:
            # It was let through there just after it was asked about.
            done = after_below(record, heard[1], now)
        if record.below and record.below != done.below:
            self._on_passed(record.below)
        if done.below:
            self._waits(done)
        return done

    async def answered(self, id: str, outcome: Answered) -> None:
        """A gate of a node below was passed: what the call came to now is the outcome of whoever
        let it through here. Raises InterlockError when another node answered than the one at whose
        gate the call waits."""
        loop = asyncio.get_running_loop()
        waiting = [one for one in self._inbox if one.record.below == id]
        if any(one.record.upstream != outcome.upstream for one in waiting):
            raise unknown(id)
        for entry in waiting:
            record = entry.record
            if record.below == id and (entry.call is not None or entry.writing):
                entry.heard_below = (id, outcome)
            elif record.below == id and record.state == DONE:
                changed = after_below(record, outcome, self._inbox.wall_clock())
                if changed.below:
                    self._waits(changed)
                self._inbox.index(entry)
                written: asyncio.Future[Kept] = loop.create_future()
                self._inbox.step(entry, changed, written.set_result)
                # Not given up by a confirmer who hangs up.
                await asyncio.shield(written)

    def _waits(self, record: Approval) -> None:
        """The call of this record was stopped by another gate, below."""
        self._remember(record.below, record.upstream, record.below_until)
        self._tell(record.result, record.upstream, record.tool, record.caller, record.effect)

    def _tell(self, result: bytes, upstream: str, tool: str, caller: Caller, effect: str) -> None:
        now = self._inbox.wall_clock()
        said = said_below(
            result, upstream=upstream, tool=tool, caller=caller, effect=effect, now=now
        )
        if said is not None:
            self._show(said)
