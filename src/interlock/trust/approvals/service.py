"""The inbox as everybody sees it: what waits, and the ways to answer it.

Confirming dispatches: a proof is checked, that is written down, and the call is made; what it comes
to is the answer to whoever confirmed, and is kept for whoever asked. Only a proof confirms. To
refuse is easier: nothing happens then.
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
    unknown,
)
from interlock.trust.approvals.gate import ApprovalGate, ApprovalInbox
from interlock.trust.approvals.proofs import REFUSE, Proofs, ProofVerdict, invalid
from interlock.trust.approvals.record import (
    APPROVED,
    EXPIRED,
    PENDING,
    REFUSED,
    STATES,
    VOID,
    Approval,
    ApprovalEntry,
    revealed,
    view,
)
from interlock.trust.approvals.store import RecordStore, WriteResult
from interlock.trust.authorization import Authorizer

_MOST_REASON = 500
_MOST_NOTED = 20
"""So many wrong proofs of one approval are recorded."""
_log = logging.getLogger("interlock.approvals")


class Approvals:
    """The one inbox of a node."""

    def __init__(
        self,
        keeper: RecordStore,
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
        """`page`: the address under which people reach the approval page (`…/approvals`), if they
        do. `children`: the nodes registered here, by the keys of their upstreams.
        `journals_digests`: whether the journal has `args_sha256` of what is held."""
        self._proofs = proofs
        self._node_id = node_id
        self._authorizer = authorizer
        self._wall_clock = wall_clock
        self._inbox = ApprovalInbox(
            keeper,
            settings=settings,
            recorder=recorder,
            clock=clock,
            wall_clock=wall_clock,
            call_later=call_later,
            journals_digests=journals_digests,
        )
        self._below = ProofForwarder(children, self._upstream_of)
        self._shown_below = ChildApprovals()
        self.gate = ApprovalGate(
            self._inbox,
            node_id=node_id,
            authorizer=authorizer,
            page=page,
            seals=seals,
            below=ChildPendingCalls(
                self._inbox,
                remember=self._below.remember,
                show=self._show_below,
                on_passed=self._over_below,
            ),
        )
        self._tasks: set[asyncio.Task[None]] = set()

    # -- life

    def load(self) -> None:
        """Take up what an earlier process left. What cannot be read is said, and nothing of it
        can be confirmed; new calls are then held as far as they can be written down."""
        try:
            self._inbox.load()
        except InterlockError as error:
            _log.warning("%s", error.message)
        self.policy_changed()

    def policy_changed(self) -> None:
        """Calls are stopped by other rules now: what waits by the old ones waits in vain, since
        nothing is let through by a policy that it was not stopped by. Whoever waits is told."""
        version = self._authorizer.policy.version
        for entry in self._inbox:
            if entry.record.state == PENDING and entry.record.policy != version:
                self._outdated(entry)

    def _outdated(self, entry: ApprovalEntry) -> None:
        def written(entry: ApprovalEntry, kept: WriteResult) -> None:
            if kept is WriteResult.WRITTEN:
                self._outdated(entry)

        if entry.written is None:
            entry.on_written.append(written)
        elif entry.record.state == PENDING and not entry.writing:
            # One that somebody decides this very moment is looked at when it is dispatched.
            note = "The policy changed since it was asked for. It was not executed."
            self._inbox.end(entry, VOID, note=note)

    def set_wait_times(self, seconds_of: Callable[[Call], float | None]) -> None:
        """Calls of some operations wait for so long. None: as long as any other."""
        self._inbox.seconds_of = seconds_of

    def configure(self, settings: ApprovalsConfig) -> None:
        self._inbox.settings = settings

    def close(self) -> None:
        """Write what is left. Waits for the disk: may be called on any thread."""
        for task in list(self._tasks):
            task.get_loop().call_soon_threadsafe(task.cancel)
        self._inbox.close()

    # -- what there is

    def _upstream_of(self, id: str) -> str | None:
        """Where the approval is that a call of ours came back with."""
        return next((one.record.upstream for one in self._inbox if one.record.below == id), None)

    def pending(self) -> list[Approval]:
        """What waits here for a human, the oldest first."""
        return [
            one.record
            for one in self._inbox
            if one.record.waits and one.written is not None and not self._inbox.expired(one)
        ]

    def pending_below(self) -> list[Approval]:
        """What waits at the nodes below, as they said themselves (`at`)."""
        return self._shown_below.pending(self._wall_clock())

    def find(self, id: str) -> Approval | None:
        """An approval of this node; else what a node below said of one of its own (`at`)."""
        entry = self._inbox.entries.get(id)
        if entry is None:
            return self._shown_below.find(id, self._wall_clock())
        return None if entry.written is None else entry.record

    def _show_below(self, approval: Approval) -> None:
        # What names this node, or one of its approvals, is none of a node below.
        own = (
            approval.audience == self._node_id() or self._inbox.entries.get(approval.id) is not None
        )
        if not own and self._shown_below.add(approval):
            self._inbox.tell_watchers(approval)

    def _over_below(self, id: str) -> None:
        """It waits there no more."""
        over = self._shown_below.over(id)
        if over is not None:
            self._inbox.tell_watchers(over)

    def recent(self, most: int = 50) -> list[Approval]:
        """What is known, the newest first."""
        known = [one.record for one in self._inbox if one.written is not None]
        return sorted(known, key=lambda one: one.created, reverse=True)[:most]

    def watch(
        self,
        callback: Callable[[Approval], None],
        states: Collection[str] = STATES,
        ids: Container[str] | None = None,
    ) -> Callable[[], None]:
        """Hear of every approval that comes to one of these states, also of those at the nodes
        below. `ids`: of these approvals only, looked at anew each time. Returns what ends that."""
        return self._inbox.watch(callback, states, ids)

    def url_of(self, id: str) -> str | None:
        """Where a human decides this one. None: there is no page that people could reach."""
        return self.gate.url_of(id)

    def view(self, approval: Approval) -> dict[str, Any]:
        """What people may see of it, as plain data."""
        return view(approval, url=self.url_of(approval.id))

    def reveal(self, id: str, to: str) -> Approval:
        """A pending approval with the real values of its masked arguments. The journal says to whom
        they were shown. Raises InterlockError."""
        entry = self._inbox.entries.get(id)
        if entry is None and self._shown_below.find(id, self._wall_clock()) is not None:
            raise InterlockError(
                FORBIDDEN, "A node below holds this call: reveal its arguments at that node."
            )
        if entry is None or entry.written is None:
            raise unknown(id)
        self._must_wait(entry)
        if entry.record.masked:
            self._inbox.note(entry.record, "revealed", f"to {to}")
        return revealed(entry.record)

    # -- answers

    async def confirm(
        self,
        id: str,
        proof: str,
        presented_by: Caller | None = None,
        *,
        accept_masked: bool = True,
    ) -> Outcome:
        """Decide by a proof. Returns what the call came to. Raises InterlockError.

        A proof may also say that the call is refused: then the result says `refused`.

        Args:
            id: the approval.
            proof: a signature by somebody who may decide.
            presented_by: who brought the proof.
            accept_masked: whoever decides has seen the masked arguments, or approves without that.
                False: a call with masked arguments is not approved.
        """
        if not accept_masked:
            below = self._shown_below.find(id, self._wall_clock())
            if below is not None and self._inbox.entries.get(id) is None and below.masked:
                raise _masked(below)
        entry = self._inbox.entries.get(id)
        if entry is None or entry.written is None:
            try:
                outcome = await self._below.confirm(id, proof)
            except InterlockError as error:
                if error.failure in (ALREADY_DECIDED, CONFIRMATION_EXPIRED, UNKNOWN_APPROVAL):
                    self._over_below(id)
                raise
            self._over_below(id)
            await self.gate.below.answered(id, outcome)
            return outcome
        verdict = await self._decide(entry, proof)
        if verdict.decision == REFUSE:
            await self._refuse(entry, verdict.anchor, verdict.kind, verdict.reason, verdict.token)
            said = {"status": REFUSED, "confirmation_id": id, "reason": verdict.reason}
            return Outcome(encode_value(said), Era.SESSION)
        if entry.record.masked and not accept_masked:
            raise _masked(entry.record)
        return await self._approve(entry, verdict, presented_by)

    async def refuse(
        self,
        id: str,
        *,
        proof: str | None = None,
        reason: str = "",
        presented_by: Caller | None = None,
        local: bool = False,
    ) -> Approval:
        """Refuse a call: with a proof, as somebody who may see approvals, or as this machine's own
        user (`local`). Raises InterlockError."""
        entry = self._inbox.entries.get(id)
        if self._shown_below.find(id, self._wall_clock()) is not None and entry is None:
            raise InterlockError(
                FORBIDDEN, "A node below holds this call: to refuse it here takes a proof."
            )
        if entry is None or entry.written is None:
            raise unknown(id)
        reason = reason[:_MOST_REASON]
        if proof is not None:
            verdict = await self._decide(entry, proof)
            if verdict.decision != REFUSE:
                raise invalid("it approves, and the call is to be refused")
            by, kind, token = verdict.anchor, verdict.kind, verdict.token
            reason = verdict.reason or reason
        elif local or (presented_by is not None and presented_by.can_view_approvals):
            self._must_wait(entry)
            by = presented_by.name if presented_by is not None else "local"
            kind, token = "local" if local else "caller", ""
        else:
            raise InterlockError(
                FORBIDDEN, "To refuse takes a proof, or a token with `may: [approve]`."
            )
        await self._refuse(entry, by, kind, reason, token)
        return entry.record

    def confirm_call(self, call: Call) -> None:
        """Answer a request `mcpax/confirm`. Raises InterlockError for one that cannot be read."""
        extra = call.extra_params or {}
        id, proof = _text(extra, "confirmation_id"), _text(extra, "proof")
        if not id:
            raise ProtocolError("`confirmation_id` is missing.", INVALID_PARAMS)
        if not proof:
            raise invalid("there is none: a human's signature is needed")
        task = asyncio.get_running_loop().create_task(self._answer(call, id, proof))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, call: Call, id: str, proof: str) -> None:
        over = self.gate.host.finish
        try:
            over(call, await self.confirm(id, proof, call.caller), None, OK)
        except InterlockError as error:
            over(call, None, error)
        except Exception as bug:
            over(call, None, internal_error(call, bug))

    # -- deciding

    def _must_wait(self, entry: ApprovalEntry) -> None:
        """Raises InterlockError unless it can be decided now."""
        record = entry.record
        if record.state in (PENDING, APPROVED) and entry.call is None and not entry.writing:
            if self._inbox.expired(entry):
                self._inbox.expire(entry)
                raise _expired(record)
            if record.state == PENDING:
                return
        if record.state in (EXPIRED, VOID):
            raise _expired(record)
        now = f"it is {record.state}"
        if record.state == PENDING:
            now = "that is being written down"
        raise InterlockError(
            ALREADY_DECIDED,
            f"This call has been decided already: {now}.",
            {"confirmation_id": record.id, "state": record.state},
        )

    async def _decide(self, entry: ApprovalEntry, proof: str) -> ProofVerdict:
        """The one place where a proof is believed, whichever way it came in. Raises
        InterlockError."""
        self._must_wait(entry)
        record = entry.record
        try:
            verdict = await self._proofs.judge(record, proof, self._wall_clock)
        except InterlockError as error:
            # Anybody can send what is no proof: the journal must not be filled with it.
            entry.wrong += 1
            if entry.wrong <= _MOST_NOTED:
                self._inbox.note(record, error.failure.name, error.message)
            raise
        # Somebody else may have decided while it was looked at.
        self._must_wait(entry)
        return verdict

    async def _approve(
        self, entry: ApprovalEntry, verdict: ProofVerdict, presented_by: Caller | None
    ) -> Outcome:
        if faults.ARMED:
            faults.reach("confirm.checked")
        over: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

        def tell(outcome: Outcome | None, error: InterlockError | None) -> None:
            if over.done():
                return
            if error is not None:
                over.set_exception(error)
            elif outcome is not None:
                over.set_result(outcome)

        def written(kept: WriteResult) -> None:
            if kept is not WriteResult.WRITTEN:
                tell(None, _why_not(kept, entry.record))
                return
            if faults.ARMED:
                faults.reach("confirm.approved")
            entry.live = True
            entry.on_over.append(tell)
            entry.own = presented_by is not None and _same(presented_by, entry.record.caller)
            # Nothing that goes wrong here may strand it: it is approved, and somebody waits.
            try:
                if entry.url_offered:
                    self.gate.decided(entry)
            except Exception:
                _log.exception("the client of approval %s could not be told", entry.record.id)
            try:
                self.gate.dispatch(entry)
            except Exception as bug:
                _log.exception("the call of approval %s could not be made", entry.record.id)
                self._could_not_be_made(entry, bug)

        record = entry.record.step(
            APPROVED, decided=self._wall_clock(), by=verdict.anchor, proof=verdict.kind
        )
        token = (verdict.anchor, verdict.token) if verdict.token else None
        self._inbox.step(entry, record, written, token=token)
        return await over

    def _could_not_be_made(self, entry: ApprovalEntry, bug: Exception) -> None:
        """Whoever confirmed it is told. What is on its way to the disk goes on from there."""
        if entry.record.state == APPROVED and not entry.writing:
            entry.call, entry.live = None, False
            self._inbox.end(
                entry,
                VOID,
                outcome=INTERNAL.name,
                note=f"It was not executed: the node failed ({type(bug).__name__}).",
            )

    async def _refuse(
        self, entry: ApprovalEntry, by: str, kind: str, reason: str, token: str
    ) -> None:
        if faults.ARMED:
            faults.reach("refuse.checked")
        over: asyncio.Future[WriteResult] = asyncio.get_running_loop().create_future()
        now = self._wall_clock()

        def written(kept: WriteResult) -> None:
            if kept is WriteResult.WRITTEN and faults.ARMED:
                faults.reach("refuse.written")
            if not over.done():
                over.set_result(kept)

        self._inbox.end(
            entry,
            REFUSED,
            written,
            token=(by, token) if token else None,
            decided=now,
            by=by,
            proof=kind,
            note=reason,
            outcome=REFUSED,
        )
        kept = await over
        if kept is not WriteResult.WRITTEN:
            raise _why_not(kept, entry.record)


def _same(one: Caller, other: Caller) -> bool:
    return (one.name, one.kind, one.parent_caller) == (other.name, other.kind, other.parent_caller)


def _why_not(kept: WriteResult, record: Approval) -> InterlockError:
    about = {"confirmation_id": record.id, "state": record.state}
    if kept is WriteResult.USED:
        return InterlockError(PROOF_INVALID, "This one-time token has been used.", about)
    if kept is WriteResult.TAKEN:
        return InterlockError(ALREADY_DECIDED, "Somebody else decided this call.", about)
    return InterlockError(
        UNRECORDABLE, "The decision cannot be written down now, and counts for nothing.", about
    )


def _masked(record: Approval) -> InterlockError:
    return InterlockError(
        MASKED_ARGUMENTS,
        f"Nothing was decided: masked arguments ({len(record.masked)}). Reveal them, or state that "
        "you approve the call without seeing them (`accept_masked`).",
        {"confirmation_id": record.id, "masked": list(record.masked)},
    )


def _expired(record: Approval) -> InterlockError:
    note = record.note or "Nobody decided in time."
    return InterlockError(
        CONFIRMATION_EXPIRED,
        f"This call can no longer be confirmed: {note}",
        {"confirmation_id": record.id, "state": record.state},
    )


def _text(members: Mapping[str, Any], key: str) -> str:
    raw = members.get(key)
    value = None if raw is None else decode_value(raw)
    if value is not None and not isinstance(value, str):
        raise ProtocolError(f"`{key}` must be a string.", INVALID_PARAMS)
    return value or ""
