"""Where a call stops that a human must let through, and where it goes on when one did.

`ApprovalGate.hold` never makes anybody wait for a human: the call is written down and answered.
What comes back with an approval comes through the whole pipeline again, is held against what was
approved, and is let go once, after that is written down. Whoever makes the identical call meanwhile
is told of the same approval, waits for the call that is under way, or is given what it came to.

`ApprovalInbox` has all approvals that a node knows, and takes them from state to state. A step is
written down before anybody acts on it or hears of it. One record takes one step at a time, so of
two who decide at once exactly one does. Time is looked at twice: on the wall clock, by which a
record says when it expires, and on the clock that never goes back, so that a wall clock that is set
back gives nobody more time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Container, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from interlock.core import crash_points as faults
from interlock.core.call import Call, ClientSession, Credentials, Outcome
from interlock.core.catalog.offering import META_CONTEXT, Tool
from interlock.core.config.trust import ApprovalsConfig
from interlock.core.deferred_request import PendingRequestBase
from interlock.core.journal.audit import COLLECTED
from interlock.core.pipeline.internal_error import internal_error
from interlock.core.pipeline.request_state import StateSealer
from interlock.core.ports import CallHost, Clock, Recorder
from interlock.errors import (
    CONFIRMATION_EXPIRED,
    DEADLINE_EXCEEDED,
    TOO_BUSY,
    InterlockError,
)
from interlock.protocol.aql_terms import BUILTIN_KEY
from interlock.protocol.jsonrpc import decode_members, encode_value
from interlock.protocol.mcp import TOOLS_CALL, Era
from interlock.protocol.mcpax import APPROVAL
from interlock.protocol.mcpx_terms import TOPIC_SERVER as TOPIC
from interlock.trust.approvals.record import (
    APPROVED,
    DISPATCHING,
    DONE,
    ENDS,
    EXPIRED,
    LOST,
    PENDING,
    REFUSED,
    STATES,
    VOID,
    Approval,
    ApprovalEntry,
    ReviewedCall,
    Told,
    Whose,
    may_ask_below,
    whole,
    whose,
    written_down,
)
from interlock.trust.approvals.response import (
    COMPLETE_NOTICE,
    REQUIRED,
    accepted,
    declined,
    held_result,
    marked_as_kept,
    named_approval,
    opens_pages,
    state_of,
    told,
    unwritten,
    url_error,
    url_needed,
    with_error,
    with_outcome,
    worth_telling,
)
from interlock.trust.approvals.store import RecordStore, WriteResult
from interlock.trust.authorization import Authorizer
from interlock.trust.policy.decision import ACTIONS, Decision

if TYPE_CHECKING:
    from interlock.trust.approvals.downstream import ChildPendingCalls

FUTURE: Final = 5.0
"""So much may a wall clock be behind the one by which a record was made."""
MOST_WAITING_BYTES: Final = 32 * 1024 * 1024
"""Bytes of arguments, exact and as they are shown, of all calls that wait together."""
MOST_WAITING_BYTES_OF_ONE: Final = 4 * 1024 * 1024
"""The same of one caller."""
MOST_KEPT: Final = 64 * 1024 * 1024
"""Bytes of results, and of arguments as they are shown, of all calls that are over."""
MOST_KEPT_OF_ONE: Final = 16 * 1024 * 1024
"""The same of one caller."""
VERB: Final = "approval"
"""What its entries in the journal are about."""

_log = logging.getLogger("interlock.approvals")


def size(record: Approval) -> int:
    """How many bytes of it there may be many of."""
    asked = len(record.arguments) + len(record.meta)
    return asked + len(record.shown) + len(record.meta_shown) + len(record.result)


def _trim(entries: list[ApprovalEntry], most: int, newest: Approval | None) -> None:
    total = sum(size(one.record) for one in entries)
    if total <= most:
        return
    for one in sorted(entries, key=lambda one: (not one.record.collected, one.record.ended)):
        if one.record is not newest:
            before = size(one.record)
            one.record = one.record.without_bulk()
            total -= before - size(one.record)
            if total <= most:
                return


class ApprovalInbox:
    """Keeps the entries, and takes them from state to state."""

    def __init__(
        self,
        keeper: RecordStore,
        *,
        settings: ApprovalsConfig,
        recorder: Recorder | None,
        clock: Clock,
        wall_clock: Callable[[], float],
        call_later: Callable[[float, Callable[[], None]], Any],
        journals_digests: bool = True,
    ) -> None:
        """`journals_digests`: whether the journal has `args_sha256` of what is held."""
        self.settings = settings
        self._journals_digests = journals_digests
        self.seconds_of: Callable[[Call], float | None] | None = None
        """For how long calls in a view, and of operations of the node's own, wait for a human.
        None: as long as any other."""
        self.wall_clock = wall_clock
        self._keeper = keeper
        self._recorder = recorder
        self._clock = clock
        self._call_later = call_later
        self.entries: dict[str, ApprovalEntry] = {}
        """By the id of the approval."""
        self.by_call: dict[Whose, ApprovalEntry] = {}
        """The approval of the identical call of a client, if its outcome was not told yet."""
        self._below: dict[str, str] = {}
        """From an approval of a node below to the one here whose call waits, or waited, for it."""
        self._watchers: list[
            tuple[Callable[[Approval], None], Collection[str], Container[str] | None]
        ] = []
        self.on_ended: Callable[[ApprovalEntry], None] = lambda _: None
        """Told when a record that nobody used for a call came to its end."""

    # -- what there is

    def __iter__(self) -> Iterator[ApprovalEntry]:
        return iter(list(self.entries.values()))

    def named(self, id: str) -> ApprovalEntry | None:
        """The approval of this id, or the one whose call waited for this approval of a node below:
        then its caller was told that id."""
        return self.entries.get(self._below.get(id, id))

    def waits_below(self, record: Approval) -> None:
        """The call of this approval waits for one of a node below, and its caller is told that."""
        if record.below not in self.entries:
            self._below[record.below] = record.id

    def watch(
        self,
        callback: Callable[[Approval], None],
        states: Collection[str] = STATES,
        ids: Container[str] | None = None,
    ) -> Callable[[], None]:
        """Hear of every record that comes to one of these states. `ids`: of these approvals only,
        looked at anew each time. Returns what ends that."""
        watcher = (callback, states, ids)
        self._watchers.append(watcher)

        def stop() -> None:
            if watcher in self._watchers:
                self._watchers.remove(watcher)

        return stop

    # -- life

    def load(self) -> None:
        """Take up what an earlier process left. Raises InterlockError when it cannot be read."""
        now = self.wall_clock()
        for record in self._keeper.load():
            entry = ApprovalEntry(record, record.state, asked_plainly=True)
            self.entries[record.id] = entry
            if record.below:
                self.waits_below(record)
            if record.state in ENDS:
                self._keep(entry, record.ended + self.settings.keep - now)
                if not record.collected:
                    self.index(entry)
                continue
            self.index(entry)
            # What is left of its time, and never more than it had in all.
            left = min(record.expires - now, record.expires - record.created)
            entry.until = self._clock() + left
            if record.state == DISPATCHING:
                self.end(
                    entry,
                    LOST,
                    note="The node stopped while the call was under way. Whether it was executed "
                    "is not known: look before it is made again.",
                    outcome="lost",
                    # What it heard from a gate below before it asked there again is past.
                    result=b"",
                    below="",
                    below_until=0.0,
                )
            elif record.created > now + FUTURE:
                self.end(entry, VOID, note="It was made in the future: the clock was set back.")
            else:
                self._arm(entry)
        self._make_room()

    def close(self) -> None:
        """Write what is left. Not for the event loop: it waits. Timers that are still to come find
        a store that takes nothing any more."""
        self._keeper.close()

    # -- steps

    def add(
        self,
        record: Approval,
        session: ClientSession | None,
        asker: ClientSession | None,
        then: Callable[[ApprovalEntry, WriteResult], None],
    ) -> None:
        """Write a new one down, and tell `then` of it. `asker`: the session that it is bound to.
        Raises InterlockError when too many wait already."""
        waiting = [one.record for one in self.entries.values() if one.record.state == PENDING]
        settings = self.settings
        if len(waiting) >= settings.most:
            raise InterlockError(TOO_BUSY, "Too many calls wait for an approval. Try again later.")
        own_size = size(record)
        if own_size + sum(map(size, waiting)) > MOST_WAITING_BYTES:
            raise InterlockError(TOO_BUSY, "What waits for an approval is too much. Try later.")
        own = [one for one in waiting if one.caller.name == record.caller.name]
        if (
            len(own) >= settings.most_per_caller
            or own_size + sum(map(size, own)) > MOST_WAITING_BYTES_OF_ONE
        ):
            raise InterlockError(
                TOO_BUSY,
                f"{len(own)} calls of {record.caller.name} wait for an approval already: wait "
                "until some are decided.",
            )
        entry = ApprovalEntry(record, session=session, asker=asker, on_written=[then])
        entry.until = self._clock() + (record.expires - record.created)
        self.entries[record.id] = entry
        self.by_call[whose(record.caller, record.digest, asker)] = entry
        if faults.ARMED:
            faults.reach("hold.begun")

        def written(kept: WriteResult) -> None:
            if kept is WriteResult.WRITTEN:
                if faults.ARMED:
                    faults.reach("hold.written")
                self._arm(entry)
            else:
                self._drop(entry)
            told, entry.on_written = entry.on_written, []
            for tell in told:
                try:
                    tell(entry, kept)
                except Exception:
                    _log.exception("who waited for approval %s could not be told", record.id)

        self.step(entry, record, written)

    def step(
        self,
        entry: ApprovalEntry,
        record: Approval,
        then: Callable[[WriteResult], None],
        *,
        token: tuple[str, str] | None = None,
    ) -> None:
        """Write a step, and take it once it is written. One at a time:
        see `ApprovalEntry.writing`."""
        assert not entry.writing
        entry.writing = True
        self._keeper.write(
            record, entry.written, partial(self._stepped, entry, record, then), token=token
        )

    def end(
        self,
        entry: ApprovalEntry,
        state: str,
        then: Callable[[WriteResult], None] = lambda _: None,
        *,
        token: tuple[str, str] | None = None,
        **changes: Any,
    ) -> None:
        """Bring a record to its end without a call."""
        record = entry.record.step(state, ended=self.wall_clock(), **changes)

        def written(kept: WriteResult) -> None:
            if entry.record is record:
                try:
                    self.on_ended(entry)
                except Exception:
                    _log.exception("the end of approval %s could not be told", record.id)
            then(kept)

        self.step(entry, record, written, token=token)

    def collected(self, entry: ApprovalEntry, then: Callable[[], None]) -> None:
        """Its caller is about to be told: once."""
        self.unindex(entry)
        entry.told = True
        if entry.writing or entry.record.collected:
            then()
            return
        if faults.ARMED:
            faults.reach("collect.begun")
        record = entry.record.step(entry.record.state, collected=True)

        def written(kept: WriteResult) -> None:
            if faults.ARMED:
                faults.reach("collect.written")
            then()

        self.step(entry, record, written)

    def expired(self, entry: ApprovalEntry) -> bool:
        """Whether its time is over, by either clock."""
        now = self.wall_clock()
        record = entry.record
        return (
            now >= record.expires or self._clock() >= entry.until or now < record.created - FUTURE
        )

    def unindex(self, entry: ApprovalEntry) -> None:
        """The next identical call is a new one."""
        key = whose(entry.record.caller, entry.record.digest, entry.asker)
        if self.by_call.get(key) is entry:
            del self.by_call[key]

    def note(self, record: Approval, word: str, detail: str = "") -> None:
        """Write an entry of the journal about it."""
        if self._recorder is None:
            return
        about = f"approval:{record.id}"
        self._recorder.record(
            (
                int(self.wall_clock() * 1e9),
                record.caller.name,
                record.face,
                VERB,
                record.tool,
                record.upstream,
                record.effect,
                word,
                0,
                f"{about} {detail}"[:500] if detail else about,
            )
        )

    # -- inside

    def _stepped(
        self,
        entry: ApprovalEntry,
        record: Approval,
        then: Callable[[WriteResult], None],
        kept: WriteResult,
    ) -> None:
        """A step is written, or could not be."""
        before, new = entry.record, entry.written is None
        entry.writing = False
        # An end that cannot be written is an end all the same: nothing of it is called again.
        if kept is WriteResult.WRITTEN or (kept is WriteResult.FAILED and record.state in ENDS):
            entry.record = record
            if kept is WriteResult.WRITTEN:
                entry.written = record.state
            if new or (record.state, record.below) != (before.state, before.below):
                self._tell_step(entry, record)
        then(kept)

    def _tell_step(self, entry: ApprovalEntry, record: Approval) -> None:
        word = "held" if record.state == PENDING else record.state
        detail = record.note
        if record.state == PENDING:
            detail = f"{record.action} by {record.rule}"
            if self._journals_digests:
                detail = f"args_sha256:{record.digest} {detail}"
        elif record.state == APPROVED:
            detail = f"by {record.by} ({record.proof})"
        elif record.state in ENDS and record.outcome:
            detail = f"{record.outcome} {record.note}".rstrip()
        if record.state in ENDS:
            if entry.timer is not None:
                entry.timer.cancel()
            self._keep(entry, self.settings.keep)
            self._make_room(record)
        if record.by and record.state != APPROVED:
            detail = f"{detail} (by {record.by})".lstrip()
        try:
            self.note(record, word, detail)
        except Exception:
            _log.exception("a step of approval %s could not be recorded", record.id)
        self.tell_watchers(record)

    def tell_watchers(self, record: Approval) -> None:
        for callback, states, ids in list(self._watchers):
            if record.state not in states or (ids is not None and record.id not in ids):
                continue
            try:
                callback(record)
            except Exception:
                _log.exception("somebody who watches approvals failed")

    def index(self, entry: ApprovalEntry) -> None:
        entry.told = False
        self.by_call[whose(entry.record.caller, entry.record.digest, entry.asker)] = entry

    def _arm(self, entry: ApprovalEntry) -> None:
        left = min(entry.until - self._clock(), entry.record.expires - self.wall_clock())
        entry.timer = self._call_later(max(0.0, left), lambda: self._time_is_up(entry))

    def _time_is_up(self, entry: ApprovalEntry) -> None:
        entry.timer = None
        if entry.record.state not in (PENDING, APPROVED) or entry.call is not None:
            return
        if entry.writing:
            # Somebody decides this very moment: who was in time is in time.
            entry.timer = self._call_later(1.0, lambda: self._time_is_up(entry))
        elif self.expired(entry):
            self.expire(entry)
        else:
            self._arm(entry)

    def expire(self, entry: ApprovalEntry) -> None:
        """Nobody answered in time."""
        waited = entry.record.state == PENDING
        note = "Nobody decided in time." if waited else "It was not made in time."
        self.end(entry, EXPIRED, note=f"{note} It was not executed.")

    def _keep(self, entry: ApprovalEntry, seconds: float) -> None:
        entry.timer = self._call_later(max(0.0, seconds), lambda: self._forget(entry))

    def _make_room(self, newest: Approval | None = None) -> None:
        """Results are kept as long as there is room for them: who is over its share, or all
        together, loses the oldest first, and what was told before that. That it was executed is
        kept. `newest`: the one that just came to its end, which keeps its own."""
        over = [
            one
            for one in self.entries.values()
            if one.record.state in ENDS and not one.record.below and not one.writing
        ]
        whose_are: dict[str, list[ApprovalEntry]] = {}
        for one in over:
            if newest is None or one.record.caller.name == newest.caller.name:
                whose_are.setdefault(one.record.caller.name, []).append(one)
        for some in whose_are.values():
            _trim(some, MOST_KEPT_OF_ONE, newest)
        _trim(over, MOST_KEPT, newest)

    def _forget(self, entry: ApprovalEntry) -> None:
        entry.timer = None
        if entry.writing or entry.call is not None:
            self._keep(entry, 1.0)
            return
        self._drop(entry)
        self._keeper.forget([entry.record.id])

    def _drop(self, entry: ApprovalEntry) -> None:
        self.entries.pop(entry.record.id, None)
        for id in [below for below, own in self._below.items() if own == entry.record.id]:
            del self._below[id]
        self.unindex(entry)


# -- A call that waits for an identical one which is under way, or for a human who is being asked.

MOST_WAITING: Final = 16
"""So many calls may wait for what becomes of one approval."""
MOST_OF_CALLER: Final = 64
"""So many calls of one caller may wait for all of its approvals."""


class RepeatedRequest(PendingRequestBase):
    """The request of a repeated call: it is answered when the first one is."""

    def __init__(
        self,
        entry: ApprovalEntry,
        call: Call,
        collect: Callable[[Call, ApprovalEntry, Outcome | None, InterlockError | None], None],
        in_vain: Callable[[Call, ApprovalEntry], None],
    ) -> None:
        """`collect`: hands it what the other came to. `in_vain`: answers it when it has waited for
        too long."""
        self._entry = entry
        self._call = call
        self._collect = collect
        self._in_vain = in_vain
        self._told: Told = self._tell
        self.is_open = True
        entry.waiters.append(self._told)

    def _tell(self, outcome: Outcome | None, error: InterlockError | None) -> None:
        self.is_open = False
        self._collect(self._call, self._entry, outcome, error)

    def _leave(self) -> None:
        self.is_open = False
        if self._told in self._entry.waiters:
            self._entry.waiters.remove(self._told)

    def abandon(self, reason: str) -> None:
        self._leave()

    def expire(self) -> None:
        if self.is_open:
            self._leave()
            self._call.upstream_request = None
            self._in_vain(self._call, self._entry)


DISPATCH_WAIT: Final = 120.0
"""How long an identical call waits for the one that is under way."""
NOBODY: Final = Credentials("approved")
"""What a call comes with that is made for an approval: its caller is recalled, not authenticated.
No wire can say this."""


def _is_only_proposed(entry: ApprovalEntry) -> bool:
    """Whether it came from a room alone, which is told what becomes of it: nobody else comes for
    that."""
    return entry.record.proposal is not None and not entry.asked_plainly


def _is_from_above(call: Call) -> bool:
    return bool(call.credentials.assigned_name) or call.hop is not None


def _is_bound(call: Call, record: Approval) -> bool:
    """Whether a call without a session and without a handle belongs to this approval by its caller
    alone: the node above tells its clients apart itself, and so does a topic its participants."""
    return _is_from_above(call) or call.server == record.face == TOPIC


class ApprovalGate:
    """Stops calls, and lets approved ones go."""

    host: CallHost
    """Set by the pipeline that it belongs to."""

    def __init__(
        self,
        inbox: ApprovalInbox,
        *,
        node_id: Callable[[], str],
        authorizer: Authorizer,
        page: Callable[[], str | None],
        seals: StateSealer,
        below: ChildPendingCalls,
    ) -> None:
        """`authorizer`: whose policy holds calls. `page`: the address of the approval page
        (`…/approvals`), where people can reach it."""
        self._inbox = inbox
        self._node_id = node_id
        self._audience = ""
        self._authorizer = authorizer
        self._find_page = page
        self.page: str | None = None
        """The address of the page, once it was asked for. None: it is to be asked for."""
        self._seals = seals
        self.below = below
        self.anybody = True
        """Whether there is somebody whose proof could count."""
        self.secrets: frozenset[bytes] = frozenset()
        """Digests of the config's secrets: such a value is masked where it is a whole argument."""
        self.on_approved_tool: Callable[[Tool, str], None] = lambda *_: None
        """Told of the tool whose call a human let through, and whose proof that was."""
        inbox.on_ended = self.ended

    def url_of(self, id: str) -> str | None:
        """Where a human decides this one. None: there is no page that people could reach."""
        base = self.page or self._find_page()
        if base is None:
            return None
        self.page = base
        return f"{base.rstrip('/')}/{id}"

    def _know_audience(self) -> str:
        """The id of the node: it never changes."""
        self._audience = self._node_id()
        return self._audience

    # -- a call comes

    def request_approval(self, call: Call, decision: Decision) -> None:
        """Stop it, or let it go if it is approved. Raises InterlockError."""
        route = call.route
        asked = whole(call, route)
        if call.approval_id:
            self._consume(call, decision, asked)
            return
        # The session that its approval is bound to. None: it came without one, from a topic, or
        # from the node above, which tells its clients apart itself.
        unbound = (
            call.proposal is not None or call.credentials.assigned_name or call.hop is not None
        )
        asker = None if unbound else call.session
        entry = self._asked_before(call, asked.digest, asker)
        if entry is not None and self._goes_on(call, entry, decision, asked):
            return
        if isinstance(route, Tool) and route.check_context is not None:
            # No human is asked about a call of a contract that would be refused for its context.
            context = (asked.meta or {}).get(META_CONTEXT)
            route.check_context({} if context is None else context)
        inbox = self._inbox
        if entry is not None:
            inbox.unindex(entry)
        now, expiry = inbox.wall_clock(), inbox.settings.expiry
        if inbox.seconds_of is not None and (call.view is not None or call.upstream == BUILTIN_KEY):
            own = inbox.seconds_of(call)
            expiry = expiry if own is None else own
        record = written_down(
            call,
            decision,
            asked,
            audience=self._audience or self._know_audience(),
            policy=self._authorizer.policy.version,
            created=now,
            expires=now + expiry,
            secrets=self.secrets,
        )
        inbox.add(record, call.session, asker, partial(self._answer, call))

    def _asked_before(
        self, call: Call, digest: str, asker: ClientSession | None
    ) -> ApprovalEntry | None:
        """The approval that this call belongs to: the one that it names, else the one of the
        identical call of the same session. Several clients may be one caller (they share a token,
        or the node has none), so the caller's name alone does not give a call an outcome."""
        caller = call.caller
        assert caller is not None
        inbox = self._inbox
        meta = call.meta
        if (
            call.extra_params is not None
            or call.operation_request is not None
            or (meta and APPROVAL in meta)
        ):
            entry = inbox.named(named_approval(call, self._seals))
            if entry is not None and not (entry.told or entry.record.collected):
                record = entry.record
                if whose(record.caller, record.digest) == whose(caller, digest):
                    return entry
        entry = inbox.by_call.get(whose(caller, digest, asker))
        if entry is None or asker is not None or _is_bound(call, entry.record):
            return entry
        # Nobody knows which client this is. While it is pending there is nothing to hand out, and
        # a client that repeats its call must not make two of it.
        return entry if entry.record.state == PENDING else None

    def _goes_on(
        self, call: Call, entry: ApprovalEntry, decision: Decision, asked: ReviewedCall
    ) -> bool:
        """The same was asked before. False: that is past, and this is a new call."""
        record = entry.record
        if entry.written is None:
            entry.on_written.append(partial(self._answer, call))
        elif record.state == PENDING:
            if self._inbox.expired(entry) or record.policy != self._authorizer.policy.version:
                return False
            if decision.action > ACTIONS[record.action]:
                self._inbox.end(entry, VOID, note="more is asked for now")
                return False
            state = state_of(call, self._seals)
            # The state of another approval of the identical call says nothing about this one.
            brings_state = state is not None and state.handle == record.id
            if declined(call) and brings_state and not entry.writing:
                self._withdraw(call, entry)
            elif accepted(call) and brings_state:
                self._wait(call, entry, record.expires - self._inbox.wall_clock() + DISPATCH_WAIT)
            else:
                self._answer(call, entry)
        elif record.state == APPROVED and not entry.live and not entry.writing:
            if self._inbox.expired(entry):
                return False
            # Approved before the node was started anew: this is the call that was waited for.
            call.approval_id = record.id
            # Sent is what the human saw, and nothing that may stand beside it now.
            call.arguments, call.extra_params = record.arguments, None
            call.meta = decode_members(record.meta) if record.meta else None
            self._consume(call, decision, asked)
        elif record.state not in ENDS:
            self._wait(call, entry, DISPATCH_WAIT)
        elif record.below:
            changed = self._changes(record, call, decision, asked)
            now, keep = self._inbox.wall_clock(), self._inbox.settings.keep
            if not may_ask_below(record, changed, now, keep):
                return False
            if self._wait(call, entry, DISPATCH_WAIT) and entry.call is None and not entry.writing:
                self.dispatch(entry, bytes(call.arguments), asked.raw_meta)
        elif record.collected or record.state == EXPIRED or not worth_telling(record):
            return False
        else:
            outcome, error = told(record)
            self._inbox.collected(entry, lambda: self._collect(call, entry, outcome, error))
        return True

    def _withdraw(self, call: Call, entry: ApprovalEntry) -> None:
        """The user of the client that asked declines the call."""
        assert call.caller is not None
        if self._wait(call, entry, DISPATCH_WAIT):
            self._inbox.end(
                entry,
                REFUSED,
                decided=self._inbox.wall_clock(),
                by=call.caller.name,
                proof="declined",
                note="the user of the client that asked declined it",
                outcome=REFUSED,
            )

    def _collect(
        self,
        call: Call,
        entry: ApprovalEntry,
        outcome: Outcome | None,
        error: InterlockError | None,
    ) -> None:
        """Hand out what an approved call came to. The journal has it as that, not as a call."""
        call.approval_id = entry.record.id
        if outcome is not None and entry.record.below:
            self.host.finish(call, outcome, error, REQUIRED)
            return
        if outcome is not None:
            # AQL reads a result as data, a topic is told in a message of its own, and a retry by
            # `requestState` is the same call.
            plain = call.operation_request is None and call.proposal is None
            told_in_text = plain and state_of(call, self._seals) is None
            outcome = marked_as_kept(outcome, entry.record, in_text=told_in_text)
        self.host.finish(call, outcome, error, COLLECTED)

    def _answer(
        self, call: Call, entry: ApprovalEntry, kept: WriteResult = WriteResult.WRITTEN
    ) -> None:
        """Tell a caller that its call waits: nobody is told of an approval that is not on disk.
        Never raises."""
        record, host = entry.record, self.host
        if kept is not WriteResult.WRITTEN:
            host.finish(call, None, unwritten())
            return
        if call.proposal is None:
            entry.asked_plainly = True
        url = self.url_of(record.id)
        if (
            url is None
            or not opens_pages(call.client)
            or _is_from_above(call)
            or accepted(call) is False
        ):
            nobody = not self.anybody
            host.finish(call, held_result(record, url, nobody=nobody), None, REQUIRED)
            return
        entry.url_offered = True
        if call.client.era is Era.SESSION:
            entry.session = call.session
            host.finish(call, None, url_error(record, url))
            return
        try:
            left = record.expires - self._inbox.wall_clock()
            state = self._seals.seal(call, left + DISPATCH_WAIT, handle=record.id, is_restart=True)
        except InterlockError as error:
            host.finish(call, None, error)
            return
        host.finish(call, url_needed(record, url, state), None, REQUIRED)

    # -- an approved call

    def dispatch(
        self, entry: ApprovalEntry, arguments: bytes | None = None, meta: bytes = b""
    ) -> None:
        """Make the call that was approved. It goes the whole way, as any other does. `arguments`
        and `meta`: given where the record has its own no more."""
        record = entry.record
        session = entry.session
        client = record.client
        if session is not None and session.is_alive and session.owner == record.caller.name:
            client = session.client
        else:
            session = None
        if arguments is None:
            arguments, meta = record.arguments, record.meta
        call = Call(
            TOOLS_CALL, record.face, NOBODY, client, record.name,
            arguments=arguments,
            meta=decode_members(meta) if meta else None,
            session=session, hop=record.hop,
        )  # fmt: skip
        call.caller, call.proposal = record.caller, record.proposal
        call.approval_id = record.id
        entry.call = call
        self.host.begin(call)

    def _consume(self, call: Call, decision: Decision, asked: ReviewedCall) -> None:
        """Raises InterlockError when this is not the call that was approved."""
        entry = self._inbox.entries.get(call.approval_id)
        # It was just given; or the call was sent before, stopped below, and this one asks there
        # again.
        if (
            entry is None
            or entry.writing
            or (
                entry.record.state != APPROVED
                and not (entry.record.state == DONE and entry.record.below and entry.call is call)
            )
        ):
            call.approval_id = ""
            raise InterlockError(CONFIRMATION_EXPIRED, "There is no approval for this call.")
        if entry.call is None:
            entry.call = call
        elif entry.call is not call:
            call.approval_id = ""
            raise InterlockError(CONFIRMATION_EXPIRED, "The approval is used for another call.")
        record = entry.record
        changed = self._changes(record, call, decision, asked)
        if changed:
            raise InterlockError(
                CONFIRMATION_EXPIRED,
                f"{record.tool} was not called: {' and '.join(changed)} changed since it was "
                "approved. Make the call again for a new approval.",
                {"confirmation_id": record.id, "state": VOID, "changed": changed},
            )
        # Whatever the tool says of itself: what a human let through is sent once.
        call.is_retryable = False
        call.approval_digest = asked.digest
        if faults.ARMED:
            faults.reach("gate.checked")

        def then(kept: WriteResult) -> None:
            if entry.early is not None:
                outcome, error = entry.early
                entry.early = None
                self._finish(entry, outcome, error, dispatched=False)
            elif kept is WriteResult.WRITTEN:
                if faults.ARMED:
                    faults.reach("gate.dispatching")
                route = call.route
                if isinstance(route, Tool) and not record.below:
                    try:
                        self.on_approved_tool(route, record.by)
                    except Exception:
                        _log.exception("%s could not be noted as approved", route.canonical)
                try:
                    self.host.record_and_send(call)
                except Exception as bug:
                    self.host.finish(call, None, internal_error(call, bug))
                if faults.ARMED:
                    faults.reach("dispatch.begun")
            else:
                self.host.finish(call, None, unwritten())

        self._inbox.step(entry, record.step(DISPATCHING), then)

    def _changes(
        self, record: Approval, call: Call, decision: Decision, asked: ReviewedCall
    ) -> list[str]:
        changed = []
        if asked.tool != record.tool or call.upstream != record.upstream:
            changed.append("the tool")
        elif asked.contract != record.contract:
            changed.append("the tool's definition")
        if (
            self._authorizer.policy.version != record.policy
            or decision.action > ACTIONS[record.action]
        ):
            changed.append("the policy")
        if not changed and asked.digest != record.digest:
            changed.append("the call")
        return changed

    # -- what became of it

    def on_result(self, call: Call, outcome: Outcome | None, error: InterlockError | None) -> None:
        """A call that was made for an approval is over, or one whose result may say that a node
        below wants an approval. Told once, by the pipeline's one exit."""
        if not call.approval_id:
            if outcome is not None and call.route is not None and call.route.route_members:
                self.below.note(call, outcome)
            return
        entry = self._inbox.entries.get(call.approval_id)
        if entry is None or entry.call is not call:
            return
        entry.call = None
        if faults.ARMED:
            faults.reach("dispatch.answered")
        if entry.writing:
            # It ended while its start was being written, so it was never sent.
            entry.early = (outcome, error)
        else:
            self._finish(entry, outcome, error, dispatched=call.is_dispatched)

    def _finish(
        self,
        entry: ApprovalEntry,
        outcome: Outcome | None,
        error: InterlockError | None,
        *,
        dispatched: bool,
    ) -> None:
        record = entry.record
        collected = bool(
            entry.waiters
            or (entry.own and not record.below)
            or (record.proposal is not None and _is_only_proposed(entry))
        )
        now = self._inbox.wall_clock()
        if outcome is not None:
            done = with_outcome(record, outcome, collected, now)
        else:
            assert error is not None
            done = with_error(record, error, collected, now, dispatched=dispatched)
        settled = done
        if entry.heard_below is not None or record.below or done.below:
            settled = self.below.settle(entry, done, now)
        if settled is not done:
            outcome, error = told(settled)
        entry.live = False

        def then(kept: WriteResult) -> None:
            if faults.ARMED:
                faults.reach("outcome.written")
            if entry.record.collected:
                self._inbox.unindex(entry)
            self._tell(entry, outcome, error)

        self._inbox.step(entry, settled, then)

    def ended(self, entry: ApprovalEntry) -> None:
        """A record came to its end without a call."""
        outcome, error = told(entry.record)
        self.decided(entry)
        is_told = bool(entry.waiters) or _is_only_proposed(entry)
        self._tell(entry, outcome, error)
        if is_told:
            self._inbox.collected(entry, lambda: None)

    def decided(self, entry: ApprovalEntry) -> None:
        """Tell a client that was given the page: its user is done there."""
        session = entry.session
        if entry.url_offered and session is not None and session.is_alive:
            session.send_notification(
                COMPLETE_NOTICE, encode_value({"elicitationId": entry.record.id})
            )

    def _tell(
        self, entry: ApprovalEntry, outcome: Outcome | None, error: InterlockError | None
    ) -> None:
        waiting, entry.waiters = entry.waiters, []
        asking, entry.on_over = entry.on_over, []
        for tell in (*waiting, *asking):
            try:
                tell(outcome, error)
            except Exception:
                _log.exception("what became of approval %s could not be told", entry.record.id)

    # -- waiting for a call that is under way

    def is_waiting_for_other_call(self, call: Call) -> bool:
        """Whether a call that is under way waits for what was, or will be, sent for another."""
        return isinstance(call.upstream_request, RepeatedRequest)

    def _wait(self, call: Call, entry: ApprovalEntry, seconds: float) -> bool:
        """False: too many do already, and it is over."""
        record = entry.record
        if call.proposal is None:
            # Whatever becomes of the waiting: it comes back for the result.
            entry.asked_plainly = True
        own = sum(len(one.waiters) for one in self._inbox if one.record.caller == record.caller)
        if len(entry.waiters) >= MOST_WAITING or own >= MOST_OF_CALLER:
            self.host.finish(
                call,
                None,
                InterlockError(
                    TOO_BUSY,
                    f"Enough calls wait for what becomes of {record.tool}. Make the same call "
                    "again later to get its result.",
                    {"confirmation_id": record.id},
                ),
            )
            return False
        call.upstream_request = RepeatedRequest(entry, call, self._collect, self._waited_in_vain)
        self.host.pause_deadline(call, seconds)
        return True

    def _waited_in_vain(self, call: Call, entry: ApprovalEntry) -> None:
        if entry.record.state == PENDING:
            self._answer(call, entry)
            return
        self.host.finish(
            call,
            None,
            InterlockError(
                DEADLINE_EXCEEDED,
                f"The approved call of {entry.record.tool} is still under way. Make the same call "
                "again to get its result.",
                {"confirmation_id": entry.record.id},
            ),
        )
