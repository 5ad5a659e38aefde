"""Where a call stops that a human must let through, and where it goes on when one did.

`hold` never makes anybody wait for a human: the call is written down and answered. What comes back
with an approval comes through the whole pipeline again, is held against what was approved, and is
let go once, after that is written down. Whoever makes the identical call meanwhile is told of the
same approval, waits for the call that is under way, or is given what it came to.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Protocol

from interlock.call import Call, Credentials, Outcome
from interlock.catalog.offering import Tool
from interlock.errors import (
    CONFIRMATION_EXPIRED,
    DEADLINE_EXCEEDED,
    TOO_BUSY,
    InterlockError,
)
from interlock.pipeline.approval import faults
from interlock.pipeline.approval.answer import (
    COMPLETE_NOTICE,
    REQUIRED,
    accepted,
    held_result,
    marked_as_kept,
    opens_pages,
    url_error,
    url_needed,
)
from interlock.pipeline.approval.asking_below import leaves_with, may_ask_below
from interlock.pipeline.approval.ending import (
    told,
    unwritten,
    with_error,
    with_outcome,
    worth_telling,
)
from interlock.pipeline.approval.held_below import HeldBelow
from interlock.pipeline.approval.holding import (
    Whole,
    about,
    check_context,
    sent_along,
    tell_of,
    whole,
    written_down,
)
from interlock.pipeline.approval.inbox import Entry, Inbox
from interlock.pipeline.approval.keeping import Kept
from interlock.pipeline.approval.record import (
    APPROVED,
    DISPATCHING,
    EXPIRED,
    PENDING,
    VOID,
    Approval,
    digest_of,
)
from interlock.pipeline.approval.waiting import MOST_OF_CALLER, MOST_WAITING, Waiting
from interlock.pipeline.audit import COLLECTED, OK
from interlock.pipeline.fault import fault
from interlock.pipeline.policy.decision import ACTIONS, Decision
from interlock.pipeline.resolve import name_as_it_is
from interlock.pipeline.sealing import Seals
from interlock.protocol.input_required import REQUEST_STATE
from interlock.protocol.jsonrpc import decode_value, encode_value
from interlock.protocol.mcp import TOOLS_CALL, Era

DISPATCH_WAIT: Final = 120.0
"""How long an identical call waits for the one that is under way."""
NOBODY: Final = Credentials("approved")
"""What a call comes with that is made for an approval: its caller is recalled, not authenticated.
No wire can say this."""

_log = logging.getLogger("interlock.approvals")


class Host(Protocol):
    """What the pipeline does for the gate."""

    def begin(self, call: Call) -> None: ...
    def write_first(self, call: Call) -> None:
        """The gate lets it go: it leaves once the journal has it on disk."""

    def over(
        self, call: Call, outcome: Outcome | None, error: InterlockError | None, word: str = OK
    ) -> None: ...
    def waits(self, call: Call) -> bool: ...
    def wait_for_input(self, call: Call, seconds: float) -> None: ...


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
        entry = self._inbox.of_call(caller, digest)
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
        )
        entry = self._inbox.add(record, call.session)
        self._when_written(entry, call)

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
            if accepted(call) and self._brings_state(call):
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
            if call.route is None:
                name_as_it_is(call, call.upstream)
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

    def _brings_state(self, call: Call) -> bool:
        """Whether its caller was asked to open the page for this very call, and comes back."""
        raw = (call.extra or {}).get(REQUEST_STATE)
        try:
            state = None if raw is None else decode_value(raw)
            return isinstance(state, str) and self._seals.open(state, call).again
        except InterlockError:
            return False

    def _collect(
        self, call: Call, entry: Entry, outcome: Outcome | None, error: InterlockError | None
    ) -> None:
        """Hand out what an approved call came to. The journal has it as that, not as a call."""
        call.approval = entry.record.id
        if outcome is not None and entry.record.below:
            self.host.over(call, outcome, error, REQUIRED)
            return
        outcome = outcome and marked_as_kept(outcome, entry.record)
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
        above = bool(call.credentials.known_as) or call.hop is not None
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
            state = self._seals.seal(call, left + DISPATCH_WAIT, again=True)
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
        call.on_done = self.finished
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
                self._finish(entry, outcome, error, sent=False)
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
        below wants an approval. Told twice, it counts once."""
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
            self._finish(entry, outcome, error)

    def _finish(
        self,
        entry: Entry,
        outcome: Outcome | None,
        error: InterlockError | None,
        *,
        sent: bool = True,
    ) -> None:
        record = entry.record
        collected = bool(entry.waiters) or entry.only_proposed or (entry.own and not record.below)
        now = self._inbox.wall_clock()
        if outcome is not None:
            done = with_outcome(record, outcome, collected, now)
        else:
            assert error is not None
            done = with_error(record, error, collected, now, sent=sent)
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
