"""The approvals of a node: lists them, approves and rejects them.

Approval dispatches the call: the proof is checked, the approval is written to disk, and the call is
made. Whoever approves receives its outcome as the response; the outcome is stored for the caller.
Only a proof approves a call. Rejection needs less, because then nothing is executed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Container, Mapping
from typing import Any

from interlock.core import crash_points as faults
from interlock.core.call import Call, Caller, Outcome
from interlock.core.config.trust import ApprovalsConfig
from interlock.core.journal.audit import OK
from interlock.core.pipeline.internal_error import internal_error
from interlock.core.pipeline.request_state import StateSealer
from interlock.core.ports import Clock, Recorder
from interlock.errors import (
    ALREADY_DECIDED,
    CONFIRMATION_EXPIRED,
    FORBIDDEN,
    INTERNAL,
    INVALID_PARAMS,
    MASKED_ARGUMENTS,
    PROOF_INVALID,
    UNKNOWN_APPROVAL,
    UNRECORDABLE,
    InterlockError,
    ProtocolError,
)
from interlock.protocol.jsonrpc import decode_value, encode_value
from interlock.protocol.mcp import Era
from interlock.trust.approvals.downstream import (
    ChildApprovals,
    ChildPeer,
    ChildPendingCalls,
    ProofForwarder,
    unknown_approval,
)
from interlock.trust.approvals.gate import ApprovalGate, ApprovalInbox
from interlock.trust.approvals.proofs import REFUSE, Proofs, ProofVerdict, invalid_proof
from interlock.trust.approvals.record import (
    APPROVED,
    EXPIRED,
    PENDING,
    REFUSED,
    STATES,
    VOID,
    Approval,
    ApprovalEntry,
    reveal_arguments,
    view,
)
from interlock.trust.approvals.store import RecordStore, WriteResult
from interlock.trust.authorization import Authorizer

_MAX_REASON_LENGTH = 500
_MAX_JOURNALED_PROOFS = 20
"""The maximum number of invalid proofs of one approval in the journal."""
_log = logging.getLogger("interlock.approvals")


class Approvals:
    """The approvals of a node."""

    def __init__(
        self,
        store: RecordStore,
        proofs: Proofs,
        *,
        settings: ApprovalsConfig,
        node_id: Callable[[], str],
        authorizer: Authorizer,
        page: Callable[[], str | None],
        seals: StateSealer,
        recorder: Recorder | None,
        clock: Clock,
        wall_clock: Callable[[], float],
        call_later: Callable[[float, Callable[[], None]], Any],
        children: Callable[[], Mapping[str, ChildPeer]] = dict,
        journals_digests: bool = True,
    ) -> None:
        """Args:
        page: returns the address of the approval page (`…/approvals`), if people can reach it.
        children: returns the registered child nodes, by the keys of their upstreams.
        journals_digests: whether the journal has the `args_sha256` of pending calls.
        """
        self._proofs = proofs
        self._node_id = node_id
        self._authorizer = authorizer
        self._wall_clock = wall_clock
        self._inbox = ApprovalInbox(
            store,
            settings=settings,
            recorder=recorder,
            clock=clock,
            wall_clock=wall_clock,
            call_later=call_later,
            journals_digests=journals_digests,
        )
        self._forwarder = ProofForwarder(children, self._find_upstream)
        self._child_approvals = ChildApprovals()
        self.gate = ApprovalGate(
            self._inbox,
            node_id=node_id,
            authorizer=authorizer,
            page=page,
            seals=seals,
            child_calls=ChildPendingCalls(
                self._inbox,
                remember=self._forwarder.remember,
                show=self._add_child_approval,
                on_passed=self._remove_child_approval,
            ),
        )
        self._tasks: set[asyncio.Task[None]] = set()

    # -- Start and stop

    def load(self) -> None:
        """Load the approvals of an earlier process.

        If the store is unreadable, a warning is logged and its approvals cannot be approved. New
        calls are held as long as they can be written.
        """
        try:
            self._inbox.load()
        except InterlockError as error:
            _log.warning("approvals: %s", error.message)
        self.on_policy_changed()

    def on_policy_changed(self) -> None:
        """Make approvals void that an earlier policy held, and notify their callers. A policy only
        approves calls that it held itself."""
        version = self._authorizer.policy.version
        for entry in self._inbox:
            if entry.record.state == PENDING and entry.record.policy != version:
                self._void_outdated(entry)

    def _void_outdated(self, entry: ApprovalEntry) -> None:
        def on_written(entry: ApprovalEntry, result: WriteResult) -> None:
            if result is WriteResult.WRITTEN:
                self._void_outdated(entry)

        if entry.written is None:
            entry.on_written.append(on_written)
        elif entry.record.state == PENDING and not entry.writing:
            # An entry that is being decided now is checked when it is dispatched.
            note = "The policy changed after the call was made. It was not executed."
            self._inbox.end(entry, VOID, note=note)

    def set_timeouts(self, find_timeout: Callable[[Call, float], float]) -> None:
        """Set how long calls stay pending. The function takes a call and the configured expiry."""
        self._inbox.find_timeout = find_timeout

    def configure(self, settings: ApprovalsConfig) -> None:
        self._inbox.settings = settings

    def close(self) -> None:
        """Write the remaining steps. It blocks until the disk is done. Any thread may call it."""
        for task in list(self._tasks):
            task.get_loop().call_soon_threadsafe(task.cancel)
        self._inbox.close()

    # -- Lookup

    def _find_upstream(self, id: str) -> str | None:
        """Return the upstream at which a call of this node waits for this child approval."""
        records = (entry.record for entry in self._inbox)
        return next((record.upstream for record in records if record.below == id), None)

    def pending(self) -> list[Approval]:
        """Return the pending approvals of this node, the oldest first."""
        return [
            entry.record
            for entry in self._inbox
            if entry.record.is_pending
            and entry.written is not None
            and not self._inbox.is_expired(entry)
        ]

    def pending_at_children(self) -> list[Approval]:
        """Return the pending approvals that child nodes reported (`at`)."""
        return self._child_approvals.pending(self._wall_clock())

    def find(self, id: str) -> Approval | None:
        """Return an approval of this node, or one that a child node reported (`at`)."""
        entry = self._inbox.entries.get(id)
        if entry is None:
            return self._child_approvals.find(id, self._wall_clock())
        return None if entry.written is None else entry.record

    def _add_child_approval(self, approval: Approval) -> None:
        # An approval that names this node, or one of its approvals, is not an approval of a child.
        is_local = (
            approval.audience == self._node_id() or self._inbox.entries.get(approval.id) is not None
        )
        if not is_local and self._child_approvals.add(approval):
            self._inbox.notify_watchers(approval)

    def _remove_child_approval(self, id: str) -> None:
        """Remove an approval of a child node that is no longer pending there."""
        removed = self._child_approvals.remove(id)
        if removed is not None:
            self._inbox.notify_watchers(removed)

    def recent(self, limit: int = 50) -> list[Approval]:
        """Return the approvals of this node, the newest first."""
        records = [entry.record for entry in self._inbox if entry.written is not None]
        return sorted(records, key=lambda record: record.created, reverse=True)[:limit]

    def watch(
        self,
        callback: Callable[[Approval], None],
        states: Collection[str] = STATES,
        ids: Container[str] | None = None,
    ) -> Callable[[], None]:
        """Call `callback` for each approval that enters one of the states, here or at a child node.

        Args:
            ids: only these approvals. Read at each change, so the container may change.

        Returns a function that ends the watch.
        """
        return self._inbox.watch(callback, states, ids)

    def approval_url(self, id: str) -> str | None:
        """Return the address of the page of an approval. None: people cannot reach the page."""
        return self.gate.approval_url(id)

    def view(self, approval: Approval) -> dict[str, Any]:
        """Return what people may see of an approval, as plain data."""
        return view(approval, url=self.approval_url(approval.id))

    def reveal(self, id: str, to: str) -> Approval:
        """Return a pending approval with the real values of its masked arguments.

        The journal records to whom they were shown. Raises InterlockError.
        """
        entry = self._inbox.entries.get(id)
        if entry is None and self._child_approvals.find(id, self._wall_clock()) is not None:
            raise InterlockError(
                FORBIDDEN,
                "This call is pending at a child node. Reveal its arguments at that node.",
            )
        if entry is None or entry.written is None:
            raise unknown_approval(id)
        self._check_pending(entry)
        if entry.record.masked:
            self._inbox.write_journal(entry.record, "revealed", f"to {to}")
        return reveal_arguments(entry.record)

    # -- Decisions

    async def confirm(
        self,
        id: str,
        proof: str,
        presented_by: Caller | None = None,
        *,
        accept_masked: bool = True,
    ) -> Outcome:
        """Approve or reject a call by a proof, and return its outcome. Raises InterlockError.

        A proof may also reject the call: then the result has the status `refused`.

        Args:
            id: the approval.
            proof: a signature by a trust anchor.
            presented_by: the caller that presented the proof.
            accept_masked: True if the approver has seen the masked arguments, or approves without
                seeing them. False: a call with masked arguments is not approved.
        """
        if not accept_masked:
            child = self._child_approvals.find(id, self._wall_clock())
            if child is not None and self._inbox.entries.get(id) is None and child.masked:
                raise _masked_error(child)
        entry = self._inbox.entries.get(id)
        if entry is None or entry.written is None:
            try:
                outcome = await self._forwarder.confirm(id, proof)
            except InterlockError as error:
                if error.failure in (ALREADY_DECIDED, CONFIRMATION_EXPIRED, UNKNOWN_APPROVAL):
                    self._remove_child_approval(id)
                raise
            self._remove_child_approval(id)
            await self.gate.child_calls.on_child_outcome(id, outcome)
            return outcome
        verdict = await self._decide(entry, proof)
        if verdict.decision == REFUSE:
            await self._reject(entry, verdict.anchor, verdict.kind, verdict.reason, verdict.token)
            response = {"status": REFUSED, "confirmation_id": id, "reason": verdict.reason}
            return Outcome(encode_value(response), Era.SESSION)
        if entry.record.masked and not accept_masked:
            raise _masked_error(entry.record)
        return await self._approve(entry, verdict, presented_by)

    async def reject(
        self,
        id: str,
        *,
        proof: str | None = None,
        reason: str = "",
        presented_by: Caller | None = None,
        local: bool = False,
    ) -> Approval:
        """Reject a call. Raises InterlockError.

        Args:
            proof: a signature by a trust anchor. Not needed with one of the next two.
            presented_by: a caller that may see approvals.
            local: True for the node's own user on this machine.
        """
        entry = self._inbox.entries.get(id)
        if self._child_approvals.find(id, self._wall_clock()) is not None and entry is None:
            raise InterlockError(
                FORBIDDEN,
                "This call is pending at a child node. To reject it here, a proof is required.",
            )
        if entry is None or entry.written is None:
            raise unknown_approval(id)
        reason = reason[:_MAX_REASON_LENGTH]
        if proof is not None:
            verdict = await self._decide(entry, proof)
            if verdict.decision != REFUSE:
                raise invalid_proof("it approves the call, but the request is to reject it")
            by, kind, token = verdict.anchor, verdict.kind, verdict.token
            reason = verdict.reason or reason
        elif local or (presented_by is not None and presented_by.can_view_approvals):
            self._check_pending(entry)
            by = presented_by.name if presented_by is not None else "local"
            kind, token = "local" if local else "caller", ""
        else:
            raise InterlockError(
                FORBIDDEN, "To reject a call, a proof or a token with `may: [approve]` is required."
            )
        await self._reject(entry, by, kind, reason, token)
        return entry.record

    def confirm_call(self, call: Call) -> None:
        """Handle a request `mcpax/confirm` (MCP-AX §11.3). Raises InterlockError for an invalid
        one."""
        extra = call.extra_params or {}
        id, proof = _read_text(extra, "confirmation_id"), _read_text(extra, "proof")
        if not id:
            raise ProtocolError("`confirmation_id` is missing.", INVALID_PARAMS)
        if not proof:
            raise invalid_proof("the request has none, and a person's signature is required")
        task = asyncio.get_running_loop().create_task(self._respond(call, id, proof))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _respond(self, call: Call, id: str, proof: str) -> None:
        over = self.gate.host.finish
        try:
            over(call, await self.confirm(id, proof, call.caller), None, OK)
        except InterlockError as error:
            over(call, None, error)
        except Exception as bug:
            over(call, None, internal_error(call, bug))

    # -- Internals

    def _check_pending(self, entry: ApprovalEntry) -> None:
        """Raise InterlockError unless the approval can be decided now."""
        record = entry.record
        if record.state in (PENDING, APPROVED) and entry.call is None and not entry.writing:
            if self._inbox.is_expired(entry):
                self._inbox.expire(entry)
                raise _expired_error(record)
            if record.state == PENDING:
                return
        if record.state in (EXPIRED, VOID):
            raise _expired_error(record)
        state = f"it is {record.state}"
        if record.state == PENDING:
            state = "the decision is being written"
        raise InterlockError(
            ALREADY_DECIDED,
            f"This call has been decided already: {state}.",
            {"confirmation_id": record.id, "state": record.state},
        )

    async def _decide(self, entry: ApprovalEntry, proof: str) -> ProofVerdict:
        """Check a proof. All proofs pass here, however they arrived. Raises InterlockError."""
        self._check_pending(entry)
        record = entry.record
        try:
            verdict = await self._proofs.judge(record, proof, self._wall_clock)
        except InterlockError as error:
            # Anyone can send invalid proofs: they must not fill the journal.
            entry.invalid_proofs += 1
            if entry.invalid_proofs <= _MAX_JOURNALED_PROOFS:
                self._inbox.write_journal(record, error.failure.name, error.message)
            raise
        # Another decision may have come in during the check.
        self._check_pending(entry)
        return verdict

    async def _approve(
        self, entry: ApprovalEntry, verdict: ProofVerdict, presented_by: Caller | None
    ) -> Outcome:
        if faults.ARMED:
            faults.reach("confirm.checked")
        response: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

        def on_outcome(outcome: Outcome | None, error: InterlockError | None) -> None:
            if response.done():
                return
            if error is not None:
                response.set_exception(error)
            elif outcome is not None:
                response.set_result(outcome)

        def on_saved(result: WriteResult) -> None:
            if result is not WriteResult.WRITTEN:
                on_outcome(None, _write_error(result, entry.record))
                return
            if faults.ARMED:
                faults.reach("confirm.approved")
            entry.is_dispatching = True
            entry.on_outcome.append(on_outcome)
            entry.is_confirmed_by_caller = presented_by is not None and _is_same_caller(
                presented_by, entry.record.caller
            )
            # No error here may lose the call: it is approved, and its approver waits.
            try:
                if entry.url_offered:
                    self.gate.notify_client(entry)
            except Exception:
                _log.exception("approval %s: cannot notify its client", entry.record.id)
            try:
                self.gate.dispatch(entry)
            except Exception as bug:
                _log.exception("approval %s: cannot make its call", entry.record.id)
                self._end_failed(entry, bug)

        record = entry.record.with_state(
            APPROVED, decided=self._wall_clock(), by=verdict.anchor, proof=verdict.kind
        )
        token = (verdict.anchor, verdict.token) if verdict.token else None
        self._inbox.save(entry, record, on_saved, token=token)
        return await response

    def _end_failed(self, entry: ApprovalEntry, bug: Exception) -> None:
        """End an approval whose call could not be made, and notify its approver. A step that is
        being written continues."""
        if entry.record.state == APPROVED and not entry.writing:
            entry.call, entry.is_dispatching = None, False
            self._inbox.end(
                entry,
                VOID,
                outcome=INTERNAL.name,
                note=f"It was not executed, because of an internal error ({type(bug).__name__}).",
            )

    async def _reject(
        self, entry: ApprovalEntry, by: str, kind: str, reason: str, token: str
    ) -> None:
        if faults.ARMED:
            faults.reach("refuse.checked")
        saved: asyncio.Future[WriteResult] = asyncio.get_running_loop().create_future()
        now = self._wall_clock()

        def on_saved(result: WriteResult) -> None:
            if result is WriteResult.WRITTEN and faults.ARMED:
                faults.reach("refuse.written")
            if not saved.done():
                saved.set_result(result)

        self._inbox.end(
            entry,
            REFUSED,
            on_saved,
            token=(by, token) if token else None,
            decided=now,
            by=by,
            proof=kind,
            note=reason,
            outcome=REFUSED,
        )
        result = await saved
        if result is not WriteResult.WRITTEN:
            raise _write_error(result, entry.record)


def _is_same_caller(first: Caller, second: Caller) -> bool:
    return (first.name, first.kind, first.parent_caller) == (
        second.name,
        second.kind,
        second.parent_caller,
    )


def _write_error(result: WriteResult, record: Approval) -> InterlockError:
    data = {"confirmation_id": record.id, "state": record.state}
    if result is WriteResult.USED:
        return InterlockError(PROOF_INVALID, "This one-time token has been used already.", data)
    if result is WriteResult.TAKEN:
        return InterlockError(
            ALREADY_DECIDED, "This call has been decided by another process.", data
        )
    return InterlockError(
        UNRECORDABLE,
        "The decision does not count, because it cannot be written to disk. Try again later.",
        data,
    )


def _masked_error(record: Approval) -> InterlockError:
    return InterlockError(
        MASKED_ARGUMENTS,
        f"Not approved: {len(record.masked)} arguments are masked. Reveal them, or state that you "
        "approve the call without seeing them (`accept_masked`).",
        {"confirmation_id": record.id, "masked": list(record.masked)},
    )


def _expired_error(record: Approval) -> InterlockError:
    note = record.note or "No operator decided in time."
    return InterlockError(
        CONFIRMATION_EXPIRED,
        f"This call can no longer be confirmed: {note}",
        {"confirmation_id": record.id, "state": record.state},
    )


def _read_text(members: Mapping[str, Any], key: str) -> str:
    raw = members.get(key)
    value = None if raw is None else decode_value(raw)
    if value is not None and not isinstance(value, str):
        raise ProtocolError(f"`{key}` must be a string.", INVALID_PARAMS)
    return value or ""
