"""Where a call stops that a human must let through, and where it goes on when one did.

`hold` never makes anybody wait for a human: the call is written down and answered. What comes back
with an approval comes through the whole pipeline again, is held against what was approved, and is
let go once, after that is written down. Whoever makes the identical call meanwhile is told of the
same approval, waits for the call that is under way, or is given what it came to.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from interlock.core import crash_points as faults
from interlock.core.call import Call, Caller, ClientSession, Credentials, Outcome
from interlock.core.catalog.offering import Tool
from interlock.core.journal.audit import COLLECTED
from interlock.core.pending import Pending
from interlock.core.pipeline.internal_error import fault
from interlock.core.pipeline.request_state import Sealed, Seals
from interlock.core.ports import Host
from interlock.errors import CONFIRMATION_EXPIRED, DEADLINE_EXCEEDED, TOO_BUSY, InterlockError
from interlock.protocol.input_required import REQUEST_STATE
from interlock.protocol.jsonrpc import decode_value, encode_value
from interlock.protocol.mcp import TOOLS_CALL, Era
from interlock.protocol.mcpax import APPROVAL
from interlock.protocol.mcpx_terms import FACE as TOPIC
from interlock.trust.approvals.downstream import HeldBelow, leaves_with, may_ask_below
from interlock.trust.approvals.inbox import Entry, Inbox, Kept, Told, whose
from interlock.trust.approvals.record import (
    APPROVED,
    DISPATCHING,
    EXPIRED,
    PENDING,
    REFUSED,
    VOID,
    Approval,
    Whole,
    about,
    check_context,
    digest_of,
    sent_along,
    tell_of,
    whole,
    written_down,
)
from interlock.trust.approvals.response import (
    COMPLETE_NOTICE,
    REQUIRED,
    accepted,
    declined,
    held_result,
    marked_as_kept,
    opens_pages,
    told,
    unwritten,
    url_error,
    url_needed,
    with_error,
    with_outcome,
    worth_telling,
)
from interlock.trust.policy.decision import ACTIONS, Decision

# -- A call that waits for an identical one which is under way, or for a human who is being asked.

MOST_WAITING: Final = 16
"""So many calls may wait for what becomes of one approval."""
MOST_OF_CALLER: Final = 64
"""So many calls of one caller may wait for all of its approvals."""


class Waiting(Pending):
    """Stands for the request of such a call: it is answered when the other one is."""

    def __init__(
        self,
        entry: Entry,
        call: Call,
        collect: Callable[[Call, Entry, Outcome | None, InterlockError | None], None],
        in_vain: Callable[[Call, Entry], None],
    ) -> None:
        """`collect`: hands it what the other came to. `in_vain`: answers it when it has waited for
        too long."""
        self._entry = entry
        self._call = call
        self._collect = collect
        self._in_vain = in_vain
        self._told: Told = self._tell
        self.open = True
        entry.waiters.append(self._told)

    def _tell(self, outcome: Outcome | None, error: InterlockError | None) -> None:
        self.open = False
        self._collect(self._call, self._entry, outcome, error)

    def _leave(self) -> None:
        self.open = False
        if self._told in self._entry.waiters:
            self._entry.waiters.remove(self._told)

    def abandon(self, reason: str) -> None:
        self._leave()

    def expire(self) -> None:
        if self.open:
            self._leave()
            self._call.exchange = None
            self._in_vain(self._call, self._entry)


DISPATCH_WAIT: Final = 120.0
"""How long an identical call waits for the one that is under way."""
NOBODY: Final = Credentials("approved")
"""What a call comes with that is made for an approval: its caller is recalled, not authenticated.
No wire can say this."""

_log = logging.getLogger("interlock.approvals")


def asker_of(call: Call) -> ClientSession | None:
    """The session that a call's approval is bound to. None: it came without one, from a topic, or
    from the node above, which tells its clients apart itself."""
    if call.proposal is not None or _is_from_above(call):
        return None
    return call.session


def _is_from_above(call: Call) -> bool:
    return bool(call.credentials.known_as) or call.hop is not None


def _is_bound(call: Call, record: Approval) -> bool:
    """Whether a call without a session and without a handle belongs to this approval by its caller
    alone: the node above tells its clients apart itself, and so does a topic its participants."""
    return _is_from_above(call) or call.face == record.face == TOPIC


class Gate:
    """Stops calls, and lets approved ones go."""

    host: Host
    """Set by the pipeline that it belongs to."""

    def __init__(
        self,
        inbox: Inbox,
        *,
        node_id: Callable[[], str],
        policy_version: Callable[[], str],
        page: Callable[[str], str | None],
        seals: Seals,
        below: HeldBelow,
    ) -> None:
        """`page`: the address of one approval's page, where people can reach it."""
        self._inbox = inbox
        self._node_id = node_id
        self.policy_version = policy_version
        self._page = page
        self._seals = seals
        self.below = below
        self.anybody: Callable[[], bool] = lambda: True
        """Whether there is somebody whose proof could count."""
        self.secrets: Callable[[], frozenset[bytes]] = frozenset
        """Digests of the config's secrets: such a value is masked where it is a whole argument."""
        self.on_approved_tool: Callable[[Tool, str], None] = lambda *_: None
        """Told of the tool whose call a human let through, and whose proof that was."""
        inbox.on_ended = self.ended

    # -- a call comes

    def hold(self, call: Call, decision: Decision) -> None:
        """Stop it, or let it go if it is approved. Raises InterlockError."""
        asked = whole(call, call.route)
        if call.approval:
            self._consume(call, decision, asked)
            return
        caller = call.caller
        assert caller is not None
        tool, contract = about(call)
        digest = digest_of(tool, asked.arguments, contract, caller, asked.meta)
        entry = self._asked_before(call, caller, digest)
        if entry is not None and self._goes_on(call, entry, decision, asked):
            return
        check_context(call.route, asked)
        if entry is not None:
            self._inbox.unindex(entry)
        now = self._inbox.wall_clock()
        record = written_down(
            call,
            decision,
            asked,
            audience=self._node_id(),
            policy=self.policy_version(),
            created=now,
            expires=now + self._inbox.expiry_of(call),
            secrets=self.secrets(),
        )
        entry = self._inbox.add(record, call.session, asker_of(call))
        self._when_written(entry, call)

    def _asked_before(self, call: Call, caller: Caller, digest: str) -> Entry | None:
        """The approval that this call belongs to: the one that it names, else the one of the
        identical call of the same session. Several clients may be one caller (they share a token,
        or the node has none), so the caller's name alone does not give a call an outcome."""
        named = self._named(call)
        entry = self._inbox.named(named) if named else None
        if entry is not None and not (entry.told or entry.record.collected):
            record = entry.record
            if whose(record.caller, record.digest) == whose(caller, digest):
                return entry
        asker = asker_of(call)
        entry = self._inbox.of_call(caller, digest, asker)
        if entry is None or asker is not None or _is_bound(call, entry.record):
            return entry
        # Nobody knows which client this is. While it is pending there is nothing to hand out, and
        # a client that repeats its call must not make two of it.
        return entry if entry.record.state == PENDING else None

    def _named(self, call: Call) -> str:
        """The id of the approval that the call brings back: in its `requestState`, its `_meta`, or
        as an AQL confirmation token. Empty: none."""
        state = self._state(call)
        if state is not None:
            return state.held
        if call.asked is not None:
            token = call.asked.confirmation
            if token:
                return token.partition("_")[2]
        raw = None if call.meta is None else call.meta.get(APPROVAL)
        try:
            named = None if raw is None else decode_value(raw)
        except InterlockError:
            return ""
        return named if isinstance(named, str) else ""

    def _goes_on(self, call: Call, entry: Entry, decision: Decision, asked: Whole) -> bool:
        """The same was asked before. False: that is past, and this is a new call."""
        record = entry.record
        if entry.written is None:
            self._when_written(entry, call)
        elif record.state == PENDING:
            if self._inbox.expired(entry) or record.policy != self.policy_version():
                return False
            if decision.action > ACTIONS[record.action]:
                self._inbox.end(entry, VOID, note="more is asked for now")
                return False
            state = self._state(call)
            # The state of another approval of the identical call says nothing about this one.
            brings_state = state is not None and state.held == record.id
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
            call.approval = record.id
            # Sent is what the human saw, and nothing that may stand beside it now.
            call.arguments, call.extra, call.meta = (
                record.arguments, None, sent_along(record.meta)
            )  # fmt: skip
            self._consume(call, decision, asked)
        elif not record.over:
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

    def _state(self, call: Call) -> Sealed | None:
        """What its caller was given when it was asked to open the page for this very call, and
        brings back. None: nothing of the kind."""
        raw = (call.extra or {}).get(REQUEST_STATE)
        try:
            state = None if raw is None else decode_value(raw)
            opened = self._seals.open(state, call) if isinstance(state, str) else None
        except InterlockError:
            return None
        return opened if opened is not None and opened.again else None

    def _withdraw(self, call: Call, entry: Entry) -> None:
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
        self, call: Call, entry: Entry, outcome: Outcome | None, error: InterlockError | None
    ) -> None:
        """Hand out what an approved call came to. The journal has it as that, not as a call."""
        call.approval = entry.record.id
        if outcome is not None and entry.record.below:
            self.host.over(call, outcome, error, REQUIRED)
            return
        if outcome is not None:
            # AQL reads a result as data, a topic is told in a message of its own, and a retry by
            # `requestState` is the same call.
            plain = call.asked is None and call.proposal is None
            told_in_text = plain and self._state(call) is None
            outcome = marked_as_kept(outcome, entry.record, in_text=told_in_text)
        self.host.over(call, outcome, error, COLLECTED)

    def _when_written(self, entry: Entry, call: Call) -> None:
        """Nobody is told of an approval that is not on disk."""

        def then(kept: Kept) -> None:
            if kept is Kept.WRITTEN:
                self._answer(call, entry)
            else:
                self.host.over(call, None, unwritten())

        entry.on_written.append(then)

    def _answer(self, call: Call, entry: Entry) -> None:
        """Tell a caller that its call waits. Never raises."""
        record, host = entry.record, self.host
        if call.proposal is None:
            entry.asked_plainly = True
        above = _is_from_above(call)
        url = self._page(record.id)
        if url is None or above or not opens_pages(call.client) or accepted(call) is False:
            nobody = not self.anybody()
            host.over(call, held_result(record, url, nobody=nobody), None, REQUIRED)
            return
        entry.url_offered = True
        if call.client.era is Era.SESSION:
            entry.session = call.session
            host.over(call, None, url_error(record, url))
            return
        try:
            left = record.expires - self._inbox.wall_clock()
            state = self._seals.seal(call, left + DISPATCH_WAIT, held=record.id, again=True)
        except InterlockError as error:
            host.over(call, None, error)
            return
        host.over(call, url_needed(record, url, state), None, REQUIRED)

    # -- an approved call

    def dispatch(self, entry: Entry, arguments: bytes | None = None, meta: bytes = b"") -> None:
        """Make the call that was approved. It goes the whole way, as any other does. `arguments`
        and `meta`: given where the record has its own no more."""
        record = entry.record
        session = entry.session
        client = record.client
        if session is not None and session.alive and session.owner == record.caller.name:
            client = session.client
        else:
            session = None
        call = Call(
            TOOLS_CALL, record.face, NOBODY, client, record.name,
            arguments=record.arguments if arguments is None else arguments,
            meta=sent_along(record.meta if arguments is None else meta),
            session=session, hop=record.hop,
        )  # fmt: skip
        call.caller, call.proposal = record.caller, record.proposal
        call.approval = record.id
        entry.call = call
        self.host.begin(call)

    def _consume(self, call: Call, decision: Decision, asked: Whole) -> None:
        """Raises InterlockError when this is not the call that was approved."""
        entry = self._inbox.get(call.approval)
        if entry is None or not leaves_with(entry, call) or entry.writing:
            call.approval = ""
            raise InterlockError(CONFIRMATION_EXPIRED, "There is no approval for this call.")
        if entry.call is None:
            entry.call = call
        elif entry.call is not call:
            call.approval = ""
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
        call.repeatable = False
        faults.at("gate.checked")

        def then(kept: Kept) -> None:
            if entry.early is not None:
                outcome, error = entry.early
                entry.early = None
                self._finish(entry, outcome, error, dispatched=False)
            elif kept is Kept.WRITTEN:
                faults.at("gate.dispatching")
                route = call.route
                if isinstance(route, Tool) and not record.below:
                    tell_of(self.on_approved_tool, route, record.by)
                try:
                    self.host.write_first(call)
                except Exception as bug:
                    self.host.over(call, None, fault(call, bug))
                faults.at("dispatch.begun")
            else:
                self.host.over(call, None, unwritten())

        self._inbox.step(entry, record.step(DISPATCHING), then)

    def _changes(self, record: Approval, call: Call, decision: Decision, asked: Whole) -> list[str]:
        assert call.caller is not None
        tool, contract = about(call)
        changed = []
        if tool != record.tool or call.upstream != record.upstream:
            changed.append("the tool")
        elif contract != record.contract:
            changed.append("the tool's definition")
        if self.policy_version() != record.policy or decision.action > ACTIONS[record.action]:
            changed.append("the policy")
        digest = digest_of(tool, asked.arguments, contract, call.caller, asked.meta)
        if not changed and digest != record.digest:
            changed.append("the call")
        return changed

    # -- what became of it

    def finished(self, call: Call, outcome: Outcome | None, error: InterlockError | None) -> None:
        """A call that was made for an approval is over, or one whose result may say that a node
        below wants an approval. Told once, by the pipeline's one exit."""
        if not call.approval:
            if outcome is not None and call.route is not None and call.route.way:
                self.below.note(call, outcome)
            return
        entry = self._inbox.get(call.approval)
        if entry is None or entry.call is not call:
            return
        entry.call = None
        faults.at("dispatch.answered")
        if entry.writing:
            # It ended while its start was being written, so it was never sent.
            entry.early = (outcome, error)
        else:
            self._finish(entry, outcome, error, dispatched=call.dispatched)

    def _finish(
        self,
        entry: Entry,
        outcome: Outcome | None,
        error: InterlockError | None,
        *,
        dispatched: bool,
    ) -> None:
        record = entry.record
        collected = bool(entry.waiters) or entry.only_proposed or (entry.own and not record.below)
        now = self._inbox.wall_clock()
        if outcome is not None:
            done = with_outcome(record, outcome, collected, now)
        else:
            assert error is not None
            done = with_error(record, error, collected, now, dispatched=dispatched)
        settled = self.below.settle(entry, done, now)
        if settled is not done:
            outcome, error = told(settled)
        entry.live = False

        def then(kept: Kept) -> None:
            faults.at("outcome.written")
            if entry.record.collected:
                self._inbox.unindex(entry)
            self._tell(entry, outcome, error)

        self._inbox.step(entry, settled, then)

    def ended(self, entry: Entry) -> None:
        """A record came to its end without a call."""
        outcome, error = told(entry.record)
        self.decided(entry)
        is_told = bool(entry.waiters) or entry.only_proposed
        self._tell(entry, outcome, error)
        if is_told:
            self._inbox.collected(entry, lambda: None)

    def decided(self, entry: Entry) -> None:
        """Tell a client that was given the page: its user is done there."""
        session = entry.session
        if entry.url_offered and session is not None and session.alive:
            session.tell(COMPLETE_NOTICE, encode_value({"elicitationId": entry.record.id}))

    def _tell(self, entry: Entry, outcome: Outcome | None, error: InterlockError | None) -> None:
        waiting, entry.waiters = entry.waiters, []
        asking, entry.on_over = entry.on_over, []
        for tell in (*waiting, *asking):
            try:
                tell(outcome, error)
            except Exception:
                _log.exception("what became of approval %s could not be told", entry.record.id)

    # -- waiting for a call that is under way

    def only_waits(self, call: Call) -> bool:
        """Whether a call that is under way waits for what was, or will be, sent for another."""
        return isinstance(call.exchange, Waiting)

    def _wait(self, call: Call, entry: Entry, seconds: float) -> bool:
        """False: too many do already, and it is over."""
        record = entry.record
        if call.proposal is None:
            # Whatever becomes of the waiting: it comes back for the result.
            entry.asked_plainly = True
        own = sum(len(one.waiters) for one in self._inbox if one.record.caller == record.caller)
        if len(entry.waiters) >= MOST_WAITING or own >= MOST_OF_CALLER:
            self.host.over(
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
        call.exchange = Waiting(entry, call, self._collect, self._waited_in_vain)
        self.host.wait_for_input(call, seconds)
        return True

    def _waited_in_vain(self, call: Call, entry: Entry) -> None:
        if entry.record.state == PENDING:
            self._answer(call, entry)
            return
        self.host.over(
            call,
            None,
            InterlockError(
                DEADLINE_EXCEEDED,
                f"The approved call of {entry.record.tool} is still under way. Make the same call "
                "again to get its result.",
                {"confirmation_id": entry.record.id},
            ),
        )
