"""The approval gate: holds calls until an operator approves them (MCP-AX §11.3).

`ApprovalGate.request_approval` never waits for a person. It stores the call as a pending approval
and responds at once. An approved call passes the whole pipeline again, is compared with what was
approved, and is dispatched once, after that step is on disk. A caller that repeats the identical
call gets the same approval, waits for the call that is under way, or receives its outcome.

`ApprovalInbox` holds all approvals of a node and changes their states. Each step is on disk before
anything acts on it or is notified. A record takes one step at a time, so of two concurrent
decisions exactly one counts. Expiry is checked on two clocks: the wall clock of the record, and the
monotonic clock, so that setting the wall clock back does not extend an approval.
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
    ALREADY_DECIDED,
    CONFIRMATION_EXPIRED,
    DEADLINE_EXCEEDED,
    TOO_BUSY,
    UNKNOWN_APPROVAL,
    InterlockError,
)
from interlock.protocol.aql_terms import BUILTIN_KEY
from interlock.protocol.jsonrpc import decode_members, encode_value
from interlock.protocol.mcp import META_APPROVAL_ONLY, TOOLS_CALL, Era
from interlock.protocol.mcpax import APPROVAL
from interlock.protocol.mcpx_terms import TOPIC_SERVER as TOPIC
from interlock.trust.approvals.record import (
    APPROVED,
    DISPATCHING,
    DONE,
    EXPIRED,
    FINAL_STATES,
    LOST,
    PENDING,
    REFUSED,
    STATES,
    VOID,
    Approval,
    ApprovalEntry,
    CallKey,
    OutcomeCallback,
    ReviewedCall,
    call_key,
    create_record,
    may_retry_below,
    review_call,
)
from interlock.trust.approvals.response import (
    COMPLETE_NOTICE,
    REQUIRED,
    can_open_urls,
    is_accepted,
    is_declined,
    mark_as_earlier,
    must_deliver,
    pending_result,
    read_approval_id,
    read_outcome,
    read_required_approval,
    read_state,
    unrecordable_error,
    url_error,
    url_input_request,
    with_error,
    with_outcome,
)
from interlock.trust.approvals.store import RecordStore, WriteResult
from interlock.trust.authorization import Authorizer
from interlock.trust.policy.decision import ACTIONS, Decision

if TYPE_CHECKING:
    from interlock.trust.approvals.downstream import ChildPendingCalls

CLOCK_SKEW_SECONDS: Final = 5.0
"""The maximum time by which the wall clock may be behind the creation time of a record."""
MAX_PENDING_BYTES: Final = 32 * 1024 * 1024
"""Bytes of arguments, exact and displayed, of all pending calls together."""
MAX_PENDING_BYTES_PER_CALLER: Final = 4 * 1024 * 1024
MAX_RETAINED_BYTES: Final = 64 * 1024 * 1024
"""Bytes of results and displayed arguments of all calls that have ended."""
MAX_RETAINED_BYTES_PER_CALLER: Final = 16 * 1024 * 1024
JOURNAL_METHOD: Final = "approval"
"""The method of journal entries about approvals."""

_log = logging.getLogger("interlock.approvals")


def record_size(record: Approval) -> int:
    """Return the size of the variable-length fields of a record, in bytes."""
    sent = len(record.arguments) + len(record.meta)
    return sent + len(record.shown) + len(record.meta_shown) + len(record.result)


def _trim_entries(entries: list[ApprovalEntry], max_bytes: int, newest: Approval | None) -> None:
    """Remove results and arguments, collected and oldest first, until the entries fit."""
    total = sum(record_size(entry.record) for entry in entries)
    if total <= max_bytes:
        return
    for entry in sorted(
        entries, key=lambda entry: (not entry.record.collected, entry.record.ended)
    ):
        if entry.record is not newest:
            before = record_size(entry.record)
            entry.record = entry.record.without_bulk()
            total -= before - record_size(entry.record)
            if total <= max_bytes:
                return


class ApprovalInbox:
    """The approvals of a node and their state changes."""

    def __init__(
        self,
        store: RecordStore,
        *,
        settings: ApprovalsConfig,
        recorder: Recorder | None,
        clock: Clock,
        wall_clock: Callable[[], float],
        call_later: Callable[[float, Callable[[], None]], Any],
        journals_digests: bool = True,
    ) -> None:
        """Args:
        journals_digests: whether the journal has the `args_sha256` of pending calls.
        """
        self.settings = settings
        self._journals_digests = journals_digests
        self.find_timeout: Callable[[Call, float], float] | None = None
        """Returns how many seconds a call in a view, or of a node operation, stays pending. None:
        the `expiry` of the settings."""
        self.wall_clock = wall_clock
        self._store = store
        self._recorder = recorder
        self._clock = clock
        self._call_later = call_later
        self.entries: dict[str, ApprovalEntry] = {}
        """By approval id."""
        self.by_call: dict[CallKey, ApprovalEntry] = {}
        """The approval of the identical call of a client, until its outcome was delivered."""
        self._child_ids: dict[str, str] = {}
        """Maps the approval id of a child node to the id of the approval here whose call waits, or
        waited, for it."""
        self._watchers: list[
            tuple[Callable[[Approval], None], Collection[str], Container[str] | None]
        ] = []
        self.on_ended: Callable[[ApprovalEntry], None] = lambda _: None
        """Called when a record ends without a call that used it."""

    # -- Lookup

    def __iter__(self) -> Iterator[ApprovalEntry]:
        return iter(list(self.entries.values()))

    def find(self, id: str) -> ApprovalEntry | None:
        """Return the approval with this id, or the approval whose call waited for this id of a
        child node: the caller was told the id of the child node."""
        return self.entries.get(self._child_ids.get(id, id))

    def index_child_id(self, record: Approval) -> None:
        """Find this approval also by the id of the child approval that its call waits for."""
        if record.below not in self.entries:
            self._child_ids[record.below] = record.id

    def watch(
        self,
        callback: Callable[[Approval], None],
        states: Collection[str] = STATES,
        ids: Container[str] | None = None,
    ) -> Callable[[], None]:
        """Call `callback` for each record that enters one of the states.

        Args:
            ids: only these approvals. Read at each change, so the container may change.

        Returns a function that ends the watch.
        """
        watcher = (callback, states, ids)
        self._watchers.append(watcher)

        def stop() -> None:
            if watcher in self._watchers:
                self._watchers.remove(watcher)

        return stop

    # -- Start and stop

    def load(self) -> None:
        """Load the records of an earlier process. Raises InterlockError when the store is
        unreadable."""
        now = self.wall_clock()
        for record in self._store.load():
            entry = ApprovalEntry(record, record.state, has_plain_caller=True)
            self.entries[record.id] = entry
            if record.below:
                self.index_child_id(record)
            if record.state in FINAL_STATES:
                self._schedule_removal(entry, record.ended + self.settings.keep - now)
                if not record.collected:
                    self.index(entry)
                continue
            self.index(entry)
            # The remaining time, and never more than the whole time.
            remaining = min(record.expires - now, record.expires - record.created)
            entry.deadline = self._clock() + remaining
            if record.state == DISPATCHING:
                self.end(
                    entry,
                    LOST,
                    note="The node stopped during the call. The outcome is unknown: check whether "
                    "it ran before you repeat it.",
                    outcome="lost",
                    # Responses of a child gate from before the restart are no longer valid.
                    result=b"",
                    below="",
                    below_until=0.0,
                )
            elif record.created > now + CLOCK_SKEW_SECONDS:
                self.end(entry, VOID, note="It was created in the future: the clock was set back.")
            else:
                self._schedule_expiry(entry)
        self._trim_results()

    def close(self) -> None:
        """Write the remaining steps. It blocks: do not call it on the event loop. Timers that fire
        later find a store that accepts nothing."""
        self._store.close()

    # -- Steps

    def add(
        self,
        record: Approval,
        session: ClientSession | None,
        bound_session: ClientSession | None,
        on_written: Callable[[ApprovalEntry, WriteResult], None],
    ) -> None:
        """Store a new pending approval.

        Args:
            session: the session of the call.
            bound_session: the session that the approval is bound to.
            on_written: called when the record is on disk, or cannot be written.

        Raises InterlockError when too many calls are pending.
        """
        pending = [entry.record for entry in self.entries.values() if entry.record.state == PENDING]
        settings = self.settings
        if len(pending) >= settings.max_pending:
            raise InterlockError(TOO_BUSY, "Too many calls wait for approval. Try again later.")
        new_size = record_size(record)
        if new_size + sum(map(record_size, pending)) > MAX_PENDING_BYTES:
            raise InterlockError(
                TOO_BUSY, "The arguments of the pending calls use all space. Try again later."
            )
        pending_of_caller = [other for other in pending if other.caller.name == record.caller.name]
        if (
            len(pending_of_caller) >= settings.max_pending_per_caller
            or new_size + sum(map(record_size, pending_of_caller)) > MAX_PENDING_BYTES_PER_CALLER
        ):
            raise InterlockError(
                TOO_BUSY,
                f"{len(pending_of_caller)} calls of {record.caller.name} are pending already. "
                "Wait until "
                "some of them are decided.",
            )
        entry = ApprovalEntry(
            record, session=session, bound_session=bound_session, on_written=[on_written]
        )
        entry.deadline = self._clock() + (record.expires - record.created)
        self.entries[record.id] = entry
        self.by_call[call_key(record.caller, record.digest, bound_session)] = entry
        if faults.ARMED:
            faults.reach("hold.begun")

        def finish(result: WriteResult) -> None:
            if result is WriteResult.WRITTEN:
                if faults.ARMED:
                    faults.reach("hold.written")
                self._schedule_expiry(entry)
            else:
                self._remove(entry)
            callbacks, entry.on_written = entry.on_written, []
            for callback in callbacks:
                try:
                    callback(entry, result)
                except Exception:
                    _log.exception("approval %s: cannot notify the caller", record.id)

        self.save(entry, record, finish)

    def save(
        self,
        entry: ApprovalEntry,
        record: Approval,
        on_saved: Callable[[WriteResult], None],
        *,
        token: tuple[str, str] | None = None,
    ) -> None:
        """Write the next state of a record, and apply it once it is written.

        One write at a time: see `ApprovalEntry.writing`.
        """
        assert not entry.writing
        entry.writing = True
        self._store.write(
            record, entry.written, partial(self._on_saved, entry, record, on_saved), token=token
        )

    def end(
        self,
        entry: ApprovalEntry,
        state: str,
        on_saved: Callable[[WriteResult], None] = lambda _: None,
        *,
        token: tuple[str, str] | None = None,
        **changes: Any,
    ) -> None:
        """Move a record to a final state without a call."""
        record = entry.record.with_state(state, ended=self.wall_clock(), **changes)

        def finish(result: WriteResult) -> None:
            if entry.record is record:
                try:
                    self.on_ended(entry)
                except Exception:
                    _log.exception("approval %s: cannot deliver its end", record.id)
            on_saved(result)

        self.save(entry, record, finish, token=token)

    def mark_collected(self, entry: ApprovalEntry, on_saved: Callable[[], None]) -> None:
        """Write that the caller receives the outcome now. An outcome is delivered once."""
        self.unindex(entry)
        entry.is_delivered = True
        if entry.writing or entry.record.collected:
            on_saved()
            return
        if faults.ARMED:
            faults.reach("collect.begun")
        record = entry.record.with_state(entry.record.state, collected=True)

        def finish(_: WriteResult) -> None:
            if faults.ARMED:
                faults.reach("collect.written")
            on_saved()

        self.save(entry, record, finish)

    def is_expired(self, entry: ApprovalEntry) -> bool:
        """Return whether an approval has expired by the wall clock or by the monotonic clock."""
        now = self.wall_clock()
        record = entry.record
        return (
            now >= record.expires
            or self._clock() >= entry.deadline
            or now < record.created - CLOCK_SKEW_SECONDS
        )

    def unindex(self, entry: ApprovalEntry) -> None:
        """Remove an approval from the index by call: the next identical call is a new one."""
        key = call_key(entry.record.caller, entry.record.digest, entry.bound_session)
        if self.by_call.get(key) is entry:
            del self.by_call[key]

    def write_journal(self, record: Approval, event: str, detail: str = "") -> None:
        """Write a journal entry about an approval."""
        if self._recorder is None:
            return
        subject = f"approval:{record.id}"
        self._recorder.record(
            (
                int(self.wall_clock() * 1e9),
                record.caller.name,
                record.face,
                JOURNAL_METHOD,
                record.tool,
                record.upstream,
                record.effect,
                event,
                0,
                f"{subject} {detail}"[:500] if detail else subject,
            )
        )

    # -- Internals

    def _on_saved(
        self,
        entry: ApprovalEntry,
        record: Approval,
        on_saved: Callable[[WriteResult], None],
        result: WriteResult,
    ) -> None:
        """Apply a step that is written, or could not be."""
        before, is_new = entry.record, entry.written is None
        entry.writing = False
        # A final state that cannot be written counts as well: the call never runs again.
        if result is WriteResult.WRITTEN or (
            result is WriteResult.FAILED and record.state in FINAL_STATES
        ):
            entry.record = record
            if result is WriteResult.WRITTEN:
                entry.written = record.state
            if is_new or (record.state, record.below) != (before.state, before.below):
                self._publish(entry, record)
        on_saved(result)

    def _publish(self, entry: ApprovalEntry, record: Approval) -> None:
        event = "held" if record.state == PENDING else record.state
        detail = record.note
        if record.state == PENDING:
            detail = f"{record.action} by {record.rule}"
            if self._journals_digests:
                detail = f"args_sha256:{record.digest} {detail}"
        elif record.state == APPROVED:
            detail = f"by {record.by} ({record.proof})"
        elif record.state in FINAL_STATES and record.outcome:
            detail = f"{record.outcome} {record.note}".rstrip()
        if record.state in FINAL_STATES:
            if entry.timer is not None:
                entry.timer.cancel()
            self._schedule_removal(entry, self.settings.keep)
            self._trim_results(record)
        if record.by and record.state != APPROVED:
            detail = f"{detail} (by {record.by})".lstrip()
        try:
            self.write_journal(record, event, detail)
        except Exception:
            _log.exception("approval %s: cannot write a step to the journal", record.id)
        self.notify_watchers(record)

    def notify_watchers(self, record: Approval) -> None:
        for callback, states, ids in list(self._watchers):
            if record.state not in states or (ids is not None and record.id not in ids):
                continue
            try:
                callback(record)
            except Exception:
                _log.exception("approval %s: a watcher failed", record.id)

    def index(self, entry: ApprovalEntry) -> None:
        entry.is_delivered = False
        key = call_key(entry.record.caller, entry.record.digest, entry.bound_session)
        self.by_call[key] = entry

    def _schedule_expiry(self, entry: ApprovalEntry) -> None:
        remaining = min(entry.deadline - self._clock(), entry.record.expires - self.wall_clock())
        entry.timer = self._call_later(max(0.0, remaining), lambda: self._on_expiry_timer(entry))

    def _on_expiry_timer(self, entry: ApprovalEntry) -> None:
        entry.timer = None
        if entry.record.state not in (PENDING, APPROVED) or entry.call is not None:
            return
        if entry.writing:
            # A decision is being written: a decision that came in time counts.
            entry.timer = self._call_later(1.0, lambda: self._on_expiry_timer(entry))
        elif self.is_expired(entry):
            self.expire(entry)
        else:
            self._schedule_expiry(entry)

    def expire(self, entry: ApprovalEntry) -> None:
        """End an approval that was not decided, or not used, in time."""
        was_pending = entry.record.state == PENDING
        note = (
            "No operator decided in time."
            if was_pending
            else "The approved call was not made in time."
        )
        self.end(entry, EXPIRED, note=f"{note} It was not executed.")

    def _schedule_removal(self, entry: ApprovalEntry, seconds: float) -> None:
        entry.timer = self._call_later(max(0.0, seconds), lambda: self._on_removal_timer(entry))

    def _trim_results(self, newest: Approval | None = None) -> None:
        """Remove stored results and arguments beyond the limits per caller and in total.

        Collected ones go first, then the oldest. The fact that a call was executed is kept.

        Args:
            newest: the record that ended just now, which keeps its result.
        """
        ended_entries = [
            entry
            for entry in self.entries.values()
            if entry.record.state in FINAL_STATES and not entry.record.below and not entry.writing
        ]
        by_caller: dict[str, list[ApprovalEntry]] = {}
        for entry in ended_entries:
            if newest is None or entry.record.caller.name == newest.caller.name:
                by_caller.setdefault(entry.record.caller.name, []).append(entry)
        for entries_of_caller in by_caller.values():
            _trim_entries(entries_of_caller, MAX_RETAINED_BYTES_PER_CALLER, newest)
        _trim_entries(ended_entries, MAX_RETAINED_BYTES, newest)

    def _on_removal_timer(self, entry: ApprovalEntry) -> None:
        entry.timer = None
        if entry.writing or entry.call is not None:
            self._schedule_removal(entry, 1.0)
            return
        self._remove(entry)
        self._store.remove([entry.record.id])

    def _remove(self, entry: ApprovalEntry) -> None:
        self.entries.pop(entry.record.id, None)
        child_ids = [
            child for child, own_id in self._child_ids.items() if own_id == entry.record.id
        ]
        for child_id in child_ids:
            del self._child_ids[child_id]
        self.unindex(entry)


# -- A call that waits for an identical call under way, or for the user of its client.

MAX_WAITING_CALLS_PER_APPROVAL: Final = 16
MAX_WAITING_CALLS_PER_CALLER: Final = 64
"""Calls of one caller that wait for the outcome of any of its approvals."""


class RepeatedRequest(PendingRequestBase):
    """The pending request of a repeated call: it ends when the first call does."""

    def __init__(
        self,
        entry: ApprovalEntry,
        call: Call,
        deliver: Callable[[Call, ApprovalEntry, Outcome | None, InterlockError | None], None],
        on_timeout: Callable[[Call, ApprovalEntry], None],
    ) -> None:
        """Args:
        deliver: delivers the outcome of the first call.
        on_timeout: responds to the call when it has waited too long.
        """
        self._entry = entry
        self._call = call
        self._deliver = deliver
        self._on_timeout = on_timeout
        self._callback: OutcomeCallback = self._on_outcome
        self.is_open = True
        entry.waiters.append(self._callback)

    def _on_outcome(self, outcome: Outcome | None, error: InterlockError | None) -> None:
        self.is_open = False
        self._deliver(self._call, self._entry, outcome, error)

    def _stop_waiting(self) -> None:
        self.is_open = False
        if self._callback in self._entry.waiters:
            self._entry.waiters.remove(self._callback)

    def abandon(self, reason: str) -> None:
        self._stop_waiting()

    def expire(self) -> None:
        if self.is_open:
            self._stop_waiting()
            self._call.upstream_request = None
            self._on_timeout(self._call, self._entry)


DISPATCH_TIMEOUT_SECONDS: Final = 120.0
"""The time for which a repeated call waits for the identical call that is under way."""
APPROVED_CREDENTIALS: Final = Credentials("approved")
"""Credentials of a call that the gate makes for an approval: its caller is recalled, not
authenticated. No client can send this peer name."""


def _has_topic_caller_only(entry: ApprovalEntry) -> bool:
    """Return whether the call came only as a proposal in a topic. The topic is notified of the
    outcome, and no other caller fetches it."""
    return entry.record.proposal is not None and not entry.has_plain_caller


def _is_from_parent(call: Call) -> bool:
    return bool(call.credentials.assigned_name) or call.hop is not None


def _is_identified_by_caller(call: Call, record: Approval) -> bool:
    """Return whether the caller alone connects a call without session and handle to this approval.
    The parent node distinguishes its clients itself, and a topic its participants."""
    return _is_from_parent(call) or call.server == record.face == TOPIC


class ApprovalGate:
    """Holds calls for approval, and dispatches approved ones."""

    host: CallHost
    """Set by the pipeline that the gate belongs to."""

    def __init__(
        self,
        inbox: ApprovalInbox,
        *,
        node_id: Callable[[], str],
        authorizer: Authorizer,
        page: Callable[[], str | None],
        seals: StateSealer,
        child_calls: ChildPendingCalls,
    ) -> None:
        """Args:
        authorizer: has the policy that requires approvals.
        page: returns the address of the approval page (`…/approvals`), if people can reach it.
        """
        self._inbox = inbox
        self._node_id = node_id
        self._audience = ""
        self._authorizer = authorizer
        self._find_page = page
        self.page: str | None = None
        """The address of the approval page, cached. None: not read yet."""
        self._seals = seals
        self.child_calls = child_calls
        self.has_operators = True
        """True if there is an operator or service whose proof can be valid."""
        self.secrets: frozenset[bytes] = frozenset()
        """Digests of the config's secrets: an argument that equals one is masked."""
        self.on_approved_tool: Callable[[Tool, str], None] = lambda *_: None
        """Called with the tool of a call that was approved, and the name of the approver."""
        inbox.on_ended = self.on_ended

    def approval_url(self, id: str) -> str | None:
        """Return the address of the page of an approval. None: people cannot reach the page."""
        base = self.page or self._find_page()
        if base is None:
            return None
        self.page = base
        return f"{base.rstrip('/')}/{id}"

    def _read_audience(self) -> str:
        """Return the id of the node, which never changes."""
        self._audience = self._node_id()
        return self._audience

    # -- A call arrives

    def request_approval(self, call: Call, decision: Decision) -> None:
        """Hold a call as a pending approval, or let it pass if it is approved.

        Raises InterlockError when it cannot be held, or is not what was approved.
        """
        route = call.route
        reviewed = review_call(call, route)
        if call.approval_id:
            self._use_approval(call, decision, reviewed)
            return
        if call.meta and META_APPROVAL_ONLY in call.meta:
            self._return_outcome_only(call, decision, reviewed)
            return
        # The session that the approval is bound to. None: the call came without one, from a topic,
        # or from the parent node, which distinguishes its clients itself.
        unbound = (
            call.proposal is not None or call.credentials.assigned_name or call.hop is not None
        )
        bound_session = None if unbound else call.session
        entry = self._find_entry(call, reviewed.digest, bound_session)
        if entry is not None and self._handle_repeat(call, entry, decision, reviewed):
            return
        if isinstance(route, Tool) and route.check_context is not None:
            # A contract call that its context would reject needs no approval.
            context = (reviewed.meta or {}).get(META_CONTEXT)
            route.check_context({} if context is None else context)
        inbox = self._inbox
        if entry is not None:
            inbox.unindex(entry)
        now, expiry = inbox.wall_clock(), inbox.settings.expiry
        if inbox.find_timeout is not None and (
            call.view is not None or call.upstream == BUILTIN_KEY
        ):
            expiry = inbox.find_timeout(call, expiry)
        record = create_record(
            call,
            decision,
            reviewed,
            audience=self._audience or self._read_audience(),
            policy=self._authorizer.policy.version,
            created=now,
            expires=now + expiry,
            secrets=self.secrets,
        )
        inbox.add(record, call.session, bound_session, partial(self._respond_pending, call))

    def _return_outcome_only(self, call: Call, decision: Decision, reviewed: ReviewedCall) -> None:
        """Handle a call that asks for the result of one approval. It never becomes a new call.

        Raises InterlockError when the approval is unknown, is over, or has returned its result.
        """
        assert call.caller is not None
        id = read_required_approval(call)
        entry, route = self._inbox.find(id), call.route
        if entry is None and not decision.needs_approval and route and route.route_members:
            # A child node may have the approval. It handles the same member of `_meta`.
            self.host.record_and_send(call)
            return
        data = {"confirmation_id": id}
        if entry is None or entry.record.caller != call.caller:
            raise InterlockError(
                UNKNOWN_APPROVAL,
                f"The approval {id[:80]!r} is unknown. The call was not made.",
                data,
            )
        record = entry.record
        if record.digest != reviewed.digest:
            raise InterlockError(
                UNKNOWN_APPROVAL,
                f"The approval {id} belongs to another call. Use the same tool and arguments. The "
                "call was not made.",
                data,
            )
        data["state"] = record.state
        if entry.is_delivered or record.collected:
            raise InterlockError(
                ALREADY_DECIDED,
                f"The result of the approval {id} was already returned. The call was not made "
                "again.",
                data,
            )
        if not self._handle_repeat(call, entry, decision, reviewed):
            note = f" {entry.record.note}" if entry.record.note else ""
            raise InterlockError(
                CONFIRMATION_EXPIRED,
                f"The approval {id} is not valid any more. Its state is {entry.record.state}."
                f"{note} The call was not made.",
                data,
            )

    def _find_entry(
        self, call: Call, digest: str, bound_session: ClientSession | None
    ) -> ApprovalEntry | None:
        """Return the approval that a call belongs to: the one that it names, or the one of the
        identical call of the same session.

        Several clients may be one caller (they share a token, or the node has none), so the name of
        the caller alone does not entitle a call to an outcome.
        """
        caller = call.caller
        assert caller is not None
        inbox = self._inbox
        meta = call.meta
        if (
            call.extra_params is not None
            or call.operation_request is not None
            or (meta and APPROVAL in meta)
        ):
            entry = inbox.find(read_approval_id(call, self._seals))
            if entry is not None and not (entry.is_delivered or entry.record.collected):
                record = entry.record
                if call_key(record.caller, record.digest) == call_key(caller, digest):
                    return entry
        entry = inbox.by_call.get(call_key(caller, digest, bound_session))
        if (
            entry is None
            or bound_session is not None
            or _is_identified_by_caller(call, entry.record)
        ):
            return entry
        # The client is unknown. A pending approval has no outcome to give away, and a client that
        # repeats its call must not create a second one.
        return entry if entry.record.state == PENDING else None

    def _handle_repeat(
        self, call: Call, entry: ApprovalEntry, decision: Decision, reviewed: ReviewedCall
    ) -> bool:
        """Handle a call that was made before. False: the earlier call is over, and this is a new
        one."""
        record = entry.record
        if entry.written is None:
            entry.on_written.append(partial(self._respond_pending, call))
        elif record.state == PENDING:
            if self._inbox.is_expired(entry) or record.policy != self._authorizer.policy.version:
                return False
            if decision.action > ACTIONS[record.action]:
                self._inbox.end(entry, VOID, note="the policy now requires a stricter action")
                return False
            state = read_state(call, self._seals)
            # The state of another approval of the identical call does not apply to this approval.
            has_state = state is not None and state.handle == record.id
            if is_declined(call) and has_state and not entry.writing:
                self._decline(call, entry)
            elif is_accepted(call) and has_state:
                remaining = record.expires - self._inbox.wall_clock()
                self._wait_for_outcome(call, entry, remaining + DISPATCH_TIMEOUT_SECONDS)
            else:
                self._respond_pending(call, entry)
        elif record.state == APPROVED and not entry.is_dispatching and not entry.writing:
            if self._inbox.is_expired(entry):
                return False
            # Approved before the node restarted: this call uses the approval.
            call.approval_id = record.id
            # Send what the operator saw, and no member that this request adds.
            call.arguments, call.extra_params = record.arguments, None
            call.meta = decode_members(record.meta) if record.meta else None
            self._use_approval(call, decision, reviewed)
        elif record.state not in FINAL_STATES:
            self._wait_for_outcome(call, entry, DISPATCH_TIMEOUT_SECONDS)
        elif record.below:
            changes = self._find_changes(record, call, decision, reviewed)
            now, keep = self._inbox.wall_clock(), self._inbox.settings.keep
            if not may_retry_below(record, changes, now, keep):
                return False
            is_waiting = self._wait_for_outcome(call, entry, DISPATCH_TIMEOUT_SECONDS)
            if is_waiting and entry.call is None and not entry.writing:
                self.dispatch(entry, bytes(call.arguments), reviewed.raw_meta)
        elif record.collected or record.state == EXPIRED or not must_deliver(record):
            return False
        else:
            outcome, error = read_outcome(record)
            self._inbox.mark_collected(
                entry, lambda: self._deliver_outcome(call, entry, outcome, error)
            )
        return True

    def _decline(self, call: Call, entry: ApprovalEntry) -> None:
        """Reject a call that the user of its own client declined."""
        assert call.caller is not None
        if self._wait_for_outcome(call, entry, DISPATCH_TIMEOUT_SECONDS):
            self._inbox.end(
                entry,
                REFUSED,
                decided=self._inbox.wall_clock(),
                by=call.caller.name,
                proof="declined",
                note="the user of the calling client declined it",
                outcome=REFUSED,
            )

    def _deliver_outcome(
        self,
        call: Call,
        entry: ApprovalEntry,
        outcome: Outcome | None,
        error: InterlockError | None,
    ) -> None:
        """Return the outcome of an approved call. The journal records a collected outcome, no
        call."""
        call.approval_id = entry.record.id
        if outcome is not None and entry.record.below:
            self.host.finish(call, outcome, error, REQUIRED)
            return
        if outcome is not None:
            # AQL reads a result as data, a topic gets a message of its own, and a retry with
            # `requestState` is the same call.
            plain = call.operation_request is None and call.proposal is None
            in_text = plain and read_state(call, self._seals) is None
            outcome = mark_as_earlier(outcome, entry.record, in_text=in_text)
        self.host.finish(call, outcome, error, COLLECTED)

    def _respond_pending(
        self, call: Call, entry: ApprovalEntry, result: WriteResult = WriteResult.WRITTEN
    ) -> None:
        """Respond that a call is pending. Only an approval that is on disk is reported. Never
        raises."""
        record, host = entry.record, self.host
        if result is not WriteResult.WRITTEN:
            host.finish(call, None, unrecordable_error())
            return
        if call.proposal is None:
            entry.has_plain_caller = True
        url = self.approval_url(record.id)
        if (
            url is None
            or not can_open_urls(call.client)
            or _is_from_parent(call)
            or is_accepted(call) is False
        ):
            response = pending_result(record, url, has_operators=self.has_operators)
            host.finish(call, response, None, REQUIRED)
            return
        entry.url_offered = True
        if call.client.era is Era.SESSION:
            entry.session = call.session
            host.finish(call, None, url_error(record, url))
            return
        try:
            remaining = record.expires - self._inbox.wall_clock()
            state = self._seals.seal(
                call, remaining + DISPATCH_TIMEOUT_SECONDS, handle=record.id, is_restart=True
            )
        except InterlockError as error:
            host.finish(call, None, error)
            return
        host.finish(call, url_input_request(record, url, state), None, REQUIRED)

    # -- An approved call

    def dispatch(
        self, entry: ApprovalEntry, arguments: bytes | None = None, meta: bytes = b""
    ) -> None:
        """Make the call that was approved. It passes the whole pipeline.

        Args:
            arguments: the arguments, where the record does not hold them any more.
            meta: the same for `_meta`.
        """
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
            TOOLS_CALL, record.face, APPROVED_CREDENTIALS, client, record.name,
            arguments=arguments,
            meta=decode_members(meta) if meta else None,
            session=session, hop=record.hop,
        )  # fmt: skip
        call.caller, call.proposal = record.caller, record.proposal
        call.approval_id = record.id
        entry.call = call
        self.host.begin(call)

    def _use_approval(self, call: Call, decision: Decision, reviewed: ReviewedCall) -> None:
        """Use the approval of a call. Raises InterlockError when the call is not what was
        approved."""
        entry = self._inbox.entries.get(call.approval_id)
        # Either it was approved just now; or the call was sent before, a child node held it, and
        # this call asks the child node again.
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
            raise InterlockError(CONFIRMATION_EXPIRED, "The approval belongs to another call.")
        record = entry.record
        changes = self._find_changes(record, call, decision, reviewed)
        if changes:
            raise InterlockError(
                CONFIRMATION_EXPIRED,
                f"{record.tool} was not called: {' and '.join(changes)} changed since it was "
                "approved. Make the call again for a new approval.",
                {"confirmation_id": record.id, "state": VOID, "changed": changes},
            )
        # An approved call is sent once, whatever the tool declares about repeats.
        call.is_retryable = False
        call.approval_digest = reviewed.digest
        if faults.ARMED:
            faults.reach("gate.checked")

        def on_saved(result: WriteResult) -> None:
            if entry.early_outcome is not None:
                outcome, error = entry.early_outcome
                entry.early_outcome = None
                self._record_outcome(entry, outcome, error, dispatched=False)
            elif result is WriteResult.WRITTEN:
                if faults.ARMED:
                    faults.reach("gate.dispatching")
                route = call.route
                if isinstance(route, Tool) and not record.below:
                    try:
                        self.on_approved_tool(route, record.by)
                    except Exception:
                        _log.exception("tool %s: cannot pin it after its approval", route.canonical)
                try:
                    self.host.record_and_send(call)
                except Exception as bug:
                    self.host.finish(call, None, internal_error(call, bug))
                if faults.ARMED:
                    faults.reach("dispatch.begun")
            else:
                self.host.finish(call, None, unrecordable_error())

        self._inbox.save(entry, record.with_state(DISPATCHING), on_saved)

    def _find_changes(
        self, record: Approval, call: Call, decision: Decision, reviewed: ReviewedCall
    ) -> list[str]:
        """Return what changed since the call was approved, as phrases for a message."""
        changes = []
        if reviewed.tool != record.tool or call.upstream != record.upstream:
            changes.append("the tool")
        elif reviewed.contract != record.contract:
            changes.append("the tool's definition")
        if (
            self._authorizer.policy.version != record.policy
            or decision.action > ACTIONS[record.action]
        ):
            changes.append("the policy")
        if not changes and reviewed.digest != record.digest:
            changes.append("the call")
        return changes

    # -- The outcome

    def on_result(self, call: Call, outcome: Outcome | None, error: InterlockError | None) -> None:
        """Record the end of a call that was made for an approval, or learn from its result that a
        child node holds it. The pipeline calls this once per call."""
        if not call.approval_id:
            if outcome is not None and call.route is not None and call.route.route_members:
                self.child_calls.note(call, outcome)
            return
        entry = self._inbox.entries.get(call.approval_id)
        if entry is None or entry.call is not call:
            return
        entry.call = None
        if faults.ARMED:
            faults.reach("dispatch.answered")
        if entry.writing:
            # It ended while its start was being written, so it was never sent.
            entry.early_outcome = (outcome, error)
        else:
            self._record_outcome(entry, outcome, error, dispatched=call.is_dispatched)

    def _record_outcome(
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
            or (entry.is_confirmed_by_caller and not record.below)
            or (record.proposal is not None and _has_topic_caller_only(entry))
        )
        now = self._inbox.wall_clock()
        if outcome is not None:
            ended_record = with_outcome(record, outcome, collected, now)
        else:
            assert error is not None
            ended_record = with_error(record, error, collected, now, dispatched=dispatched)
        final = ended_record
        if entry.child_outcome is not None or record.below or ended_record.below:
            final = self.child_calls.apply_child_outcome(entry, ended_record, now)
        if final is not ended_record:
            outcome, error = read_outcome(final)
        entry.is_dispatching = False

        def on_saved(_: WriteResult) -> None:
            if faults.ARMED:
                faults.reach("outcome.written")
            if entry.record.collected:
                self._inbox.unindex(entry)
            self._notify_waiters(entry, outcome, error)

        self._inbox.save(entry, final, on_saved)

    def on_ended(self, entry: ApprovalEntry) -> None:
        """Notify the callers of a record that ended without a call."""
        outcome, error = read_outcome(entry.record)
        try:
            self.notify_client(entry)
        finally:
            # An operator or a caller waits here without a limit.
            is_delivered = bool(entry.waiters) or _has_topic_caller_only(entry)
            self._notify_waiters(entry, outcome, error)
            if is_delivered:
                self._inbox.mark_collected(entry, lambda: None)

    def notify_client(self, entry: ApprovalEntry) -> None:
        """Tell a client that received the page address that its user is done there."""
        session = entry.session
        if entry.url_offered and session is not None and session.is_alive:
            session.send_notification(
                COMPLETE_NOTICE, encode_value({"elicitationId": entry.record.id})
            )

    def _notify_waiters(
        self, entry: ApprovalEntry, outcome: Outcome | None, error: InterlockError | None
    ) -> None:
        waiters, entry.waiters = entry.waiters, []
        confirmers, entry.on_outcome = entry.on_outcome, []
        for callback in (*waiters, *confirmers):
            try:
                callback(outcome, error)
            except Exception:
                _log.exception("approval %s: cannot deliver its outcome", entry.record.id)

    # -- Calls that wait for a call under way

    def is_waiting_for_other_call(self, call: Call) -> bool:
        """Return whether a call under way waits for the outcome of another call."""
        return isinstance(call.upstream_request, RepeatedRequest)

    def _wait_for_outcome(self, call: Call, entry: ApprovalEntry, seconds: float) -> bool:
        """Make a call wait for the outcome. False: too many calls wait, and this call has ended."""
        record = entry.record
        if call.proposal is None:
            # Even if the wait ends early, the caller comes back for the result.
            entry.has_plain_caller = True
        waiting_count = sum(
            len(other.waiters) for other in self._inbox if other.record.caller == record.caller
        )
        if (
            len(entry.waiters) >= MAX_WAITING_CALLS_PER_APPROVAL
            or waiting_count >= MAX_WAITING_CALLS_PER_CALLER
        ):
            self.host.finish(
                call,
                None,
                InterlockError(
                    TOO_BUSY,
                    f"Too many calls wait for the outcome of {record.tool}. Make the same call "
                    "again later to get its result.",
                    {"confirmation_id": record.id},
                ),
            )
            return False
        call.upstream_request = RepeatedRequest(
            entry, call, self._deliver_outcome, self._on_wait_timeout
        )
        self.host.pause_deadline(call, seconds)
        return True

    def _on_wait_timeout(self, call: Call, entry: ApprovalEntry) -> None:
        if entry.record.state == PENDING:
            self._respond_pending(call, entry)
            return
        self.host.finish(
            call,
            None,
            InterlockError(
                DEADLINE_EXCEEDED,
                f"The approved call of {entry.record.tool} has no result yet. Make the same call "
                "again to get its result.",
                {"confirmation_id": entry.record.id},
            ),
        )
