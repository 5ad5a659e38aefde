"""Proposals addressed to the node: into the one inbox, and what becomes of them back into the room.

A proposal becomes a call like any other, which always waits for a human. It is decided where every
call is decided, by a proof; the gate then makes it, and the room sees the fulfilment: a request of
the node to itself that names the proposal, and the response to that request, for the proposer too.
No message of the room decides anything. What comes to no call (refused, expired, void) is told to
the proposer in a chat message: the draft has no other word for it.

What the room says here follows from the steps of the approval's record alone, so it goes on where
it was after a restart, and knows what it made as long as the inbox does. Nothing of it is kept but
which request belongs to which approval.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Final

from msgspec import Raw

from interlock.call import (
    Call,
    Caller,
    Outcome,
    Proposed,
    RelayedError,
    UpstreamAnsweredError,
    UpstreamGoneError,
)
from interlock.errors import (
    APPROVAL_REFUSED,
    CONFIRMATION_EXPIRED,
    METHOD_NOT_FOUND,
    PAYLOAD_TOO_LARGE,
    TOO_BUSY,
    InterlockError,
)
from interlock.faces.mcp.hello import Hello
from interlock.faces.mcp.writing import write_error
from interlock.faces.topics.asking import (
    MOST_OF_ONE,
    as_in_a_room,
    call_of,
    client_of,
    response_kind,
    result_of,
)
from interlock.faces.topics.fates import MADE, MOST_KNOWN, NOTHING, TAKEN, WAITS, Fates
from interlock.faces.topics.made_here import MadeHere, state_of
from interlock.faces.topics.noting import Noting
from interlock.pipeline.approval.answer import needed_below
from interlock.pipeline.approval.approvals import Approvals
from interlock.pipeline.approval.ending import MAY_HAVE_RUN, told
from interlock.pipeline.approval.holding import only_sent_along
from interlock.pipeline.approval.record import (
    DISPATCHING,
    DONE,
    EXPIRED,
    LOST,
    REFUSED,
    VOID,
    Approval,
    utc,
)
from interlock.pipeline.audit import Audit
from interlock.pipeline.pipeline import Pipeline
from interlock.pipeline.topics.seat import Member
from interlock.protocol import jsonrpc, kinds, mcp
from interlock.protocol.jsonrpc import encode_members
from interlock.protocol.mcpx.envelope import Head
from interlock.protocol.mcpx.payloads import Proposal, chat_payload

if TYPE_CHECKING:
    from interlock.faces.topics.node_seat import NodeSeat

META: Final = "interlock/approval"
"""In `_meta` of a fulfilment: who let it through, and by what kind of proof."""
LEARNED: Final = ("policy", "learned")
"""Who let through what a rule answered that a human accepted before."""
MOST_OPEN: Final = 1_000
"""So many fulfilments are remembered until they are answered. One that a node below stopped may
never be."""
Fulfilments = dict[str, tuple[str, bytes]]
"""By the id of an approval whose call is under way: the envelope of the request that the room saw,
and its JSON-RPC id."""
_LONGEST_CHAT: Final = 2_000
_TOO_LONG: Final = jsonrpc.encode_value(
    {
        "content": [
            {
                "type": "text",
                "text": "It was executed. Its result is too long for a topic: the node's inbox "
                "has it, as far as it is kept there.",
            }
        ],
        "isError": True,
    }
)

_log = logging.getLogger("interlock.faces.topics")


class Proposing:
    """Takes proposals, and tells the room what becomes of them."""

    def __init__(
        self,
        seat: NodeSeat,
        pipeline: Pipeline,
        approvals: Approvals | None,
        *,
        hello: Hello,
        audit: Audit | None,
        fulfilments: Fulfilments | None = None,
    ) -> None:
        """`approvals`: where a human decides. None: nobody can be asked, and the pipeline says so.
        `fulfilments`: what the room saw of calls that are under way, kept for whoever has the
        node's seat next."""
        self._seat = seat
        self._pipeline = pipeline
        self._approvals = approvals
        self._hello = hello
        self._noting = Noting(audit)
        self._fates = Fates()
        self.made_here = MadeHere(self._fates, approvals, seat.topic)
        self._under_way: Counter[str] = Counter()
        """How many proposals of a participant the pipeline has, and did not answer yet."""
        self._fulfilments: Fulfilments = {} if fulfilments is None else fulfilments
        self._beside: dict[str, list[tuple[Proposed, tuple[str, bytes]]]] = {}
        """By the id of an approval whose call is under way: who proposed the identical call while
        it waited, and what the room saw of it for them."""
        self._number = 0
        self._stop = None if approvals is None else approvals.watch(self._stepped)
        for record in reversed([] if approvals is None else approvals.recent(MOST_KNOWN)):
            if record.proposal is not None and record.proposal.topic == seat.topic:
                self._fates.remember(record.proposal, state_of(record), record.id)

    def close(self) -> None:
        """The node leaves the room: from now on the inbox and the journal have it alone."""
        if self._stop is not None:
            self._stop()
            self._stop = None

    # -- a proposal comes

    def propose(self, member: Member, head: Head, proposal: Proposal) -> None:
        """Have it wait for a human."""
        if proposal.method != mcp.TOOLS_CALL:
            self.chat(
                member.id,
                head.id,
                f"Only calls of tools can be proposed to {self._seat.id}, and this is "
                f"{proposal.method[:100]!r}: ask for that with mcp/request, if you may.",
                ended=METHOD_NOT_FOUND.name,
            )
            return
        proposed = Proposed(self._seat.topic, head.id, member.id)
        try:
            if self._under_way[member.id] >= MOST_OF_ONE:
                raise InterlockError(
                    TOO_BUSY,
                    f"{MOST_OF_ONE} proposals of yours are under way in this topic: wait for some.",
                )
            call = call_of(member, proposal)
        except InterlockError as error:
            self._not_taken(proposed, member.caller, error)
            return
        self._fates.remember(proposed, TAKEN)
        self._under_way[member.id] += 1
        call.context = member.caller
        # Only what a human sees is made: the name, the arguments, and what decides what they do.
        call.meta = only_sent_along(call.meta)
        call.proposal = proposed
        call.on_done = self._answered
        self._pipeline.begin(call)

    def _answered(self, call: Call, outcome: Outcome | None, error: InterlockError | None) -> None:
        """The pipeline has it: usually it waits now."""
        proposed = call.proposal
        assert proposed is not None
        self._under_way[proposed.by] -= 1
        if not self._under_way[proposed.by]:
            del self._under_way[proposed.by]
        if error is not None:
            if _may_have_run(call, error):
                self._made_at_once(call, proposed, None, error)
            else:
                self._not_taken(proposed, call.context, as_in_a_room(error))
            return
        assert outcome is not None
        needed = needed_below(outcome.result)
        if needed is not None:
            self._waits(call, proposed, needed[0])
        elif call.approval:
            self._made_before(call, proposed, outcome)
        else:
            self._made_at_once(call, proposed, outcome, None)

    def _waits(self, call: Call, proposed: Proposed, approval: str) -> None:
        record = None if self._approvals is None else self._approvals.find(approval)
        state = WAITS if record is None else state_of(record)
        self._fates.remember(proposed, state, approval)
        note = self._noting.note
        if record is not None and record.proposal == proposed:
            url = None if self._approvals is None else self._approvals.url_of(approval)
            how = f"at {url}" if url else f"with `interlock approve {approval}`"
            said = (
                f"{record.tool} waits for a human, who decides {how} until "
                f"{utc(record.expires)}. Approval: {approval}."
            )
            word = "proposed"
        elif record is not None and not record.at:
            before = record.proposal
            as_what = f" (proposal {before.id[:100]})" if before is not None else ""
            said = (
                f"The identical call of {record.tool} waits already, as approval "
                f"{approval}{as_what}: it is made once, if at all."
            )
            word, note = "waits_already", self._noting.in_vain
        else:
            said = f"{_named(call)} waits at a node below: approval {approval} there."
            word = "waits_below"
        self.chat(proposed.by, proposed.id, said)
        note(proposed, call.context, word, f"{_named(call)} approval:{approval}")

    def _made_before(self, call: Call, proposed: Proposed, outcome: Outcome) -> None:
        """Its caller has made the identical call, here or elsewhere, and collects what it came to.
        That is told once: where the room has not seen it, it sees it now."""
        self.chat(
            proposed.by,
            proposed.id,
            f"The identical call of {_named(call)} was made already, for approval "
            f"{call.approval}: it was not made again. Propose it once more if it is to be.",
        )
        self._fates.remember(proposed, MADE, call.approval)
        told_of = f"{_named(call)} approval:{call.approval}"
        self._noting.in_vain(proposed, call.context, "told", told_of)
        record = None if self._approvals is None else self._approvals.find(call.approval)
        if record is None or self._was_shown(record):
            return
        arguments, meta = bytes(call.arguments), encode_members(call.meta or {})
        fulfilment = self._request(proposed, call.name, arguments, meta, record.by, record.proof)
        if fulfilment is not None:
            self._respond(fulfilment, proposed, call.name, outcome, None)

    def _was_shown(self, record: Approval) -> bool:
        """Whether this room has seen what it came to, as another proposal."""
        before = record.proposal
        if before is None or before.topic != self._seat.topic:
            return False
        fate = self._fates.get(before.id)
        return fate is not None and fate.shown

    def _not_taken(self, proposed: Proposed, caller: Caller, error: InterlockError) -> None:
        """Nothing was made of it, nor will be."""
        self._fates.forget(proposed.id)
        said = f"Your proposal was not taken: {error.message}"
        self.chat(proposed.by, proposed.id, said, ended=error.failure.name)
        why = f"{error.failure.name} {error.message}"
        self._noting.in_vain(proposed, caller, "not_taken", why)

    def _made_at_once(
        self, call: Call, proposed: Proposed, outcome: Outcome | None, error: InterlockError | None
    ) -> None:
        """A rule that a human accepted before has let it through: the room sees the same."""
        arguments, meta = bytes(call.arguments), encode_members(call.meta or {})
        fulfilment = self._request(proposed, call.name, arguments, meta, *LEARNED)
        self._fates.remember(proposed, MADE)
        by = f"{_named(call)} by {' '.join(LEARNED)}"
        self._noting.note(proposed, call.context, "fulfilled", by)
        if fulfilment is not None:
            self._respond(fulfilment, proposed, call.name, outcome, error)
        else:
            said = f"{_named(call)} was called, by a rule that a human accepted. That is too long"
            self.chat(proposed.by, proposed.id, f"{said} to be shown in a topic.")

    # -- what becomes of it

    def _stepped(self, record: Approval) -> None:
        """A step of any approval of the node. Told in the midst of it: nothing is done here but
        to say something."""
        self._tell_others(record)
        self._fates.became(record.id, state_of(record))
        proposed = record.proposal
        if proposed is None or record.at or proposed.topic != self._seat.topic:
            return
        if record.state == DISPATCHING:
            # Without arguments it only asks again at a gate below: the room saw its request.
            if record.arguments:
                self._fulfil(record, proposed)
        elif record.state in (DONE, LOST, VOID):
            self._ended(record, proposed)
        elif record.state in (REFUSED, EXPIRED):
            self._came_to_nothing(record, proposed)

    def _tell_others(self, record: Approval) -> None:
        """Whoever proposed the identical call while it waited hears what becomes of it as well. It
        is made once."""
        if record.at:
            return
        first = None if record.proposal is None else record.proposal.id
        others = [
            Proposed(self._seat.topic, id, by)
            for id, by in self._fates.waiting_for(record.id)
            if id != first
        ]
        if record.state == DISPATCHING:
            if others and record.arguments:
                arguments, meta, by, proof = record.arguments, record.meta, record.by, record.proof
                said = [
                    (one, self._request(one, record.name, arguments, meta, by, proof))
                    for one in others
                ]
                self._beside[record.id] = [(one, shown) for one, shown in said if shown is not None]
        elif state_of(record) == MADE:
            for one, shown in self._beside.pop(record.id, ()):
                self._respond(shown, one, record.name, *told(record))
        elif state_of(record) == NOTHING:
            self._beside.pop(record.id, None)
            for one in others:
                self._tell_in_vain(record, one)

    def _fulfil(self, record: Approval, proposed: Proposed) -> None:
        fulfilment = self._request(
            proposed, record.name, record.arguments, record.meta, record.by, record.proof
        )
        if fulfilment is not None:
            if len(self._fulfilments) >= MOST_OPEN:
                del self._fulfilments[next(iter(self._fulfilments))]
            self._fulfilments[record.id] = fulfilment
        self._note(record, proposed, "fulfilled", f"by {record.by} ({record.proof})")

    def _ended(self, record: Approval, proposed: Proposed) -> None:
        if record.below:
            # It looks like a result and is none: another gate wants a human, too.
            said = f"{record.tool} waits at a node below now: approval {record.below} there."
            self.chat(proposed.by, proposed.id, said)
            self._note(record, proposed, "waits_below", f"below:{record.below}")
            return
        fulfilment = self._fulfilments.pop(record.id, None)
        if fulfilment is not None:
            self._respond(fulfilment, proposed, record.name, *told(record))
            self._note(record, proposed, record.state, f"{record.outcome}")
        elif record.state == VOID:
            self._came_to_nothing(record, proposed)
        else:
            # The room was not open when it was sent, so there is no request to answer.
            said = f"{record.tool} was let through by {record.by}: the node's inbox has the outcome"
            self.chat(proposed.by, proposed.id, f"{said} ({record.outcome or record.state}).")
            self._note(record, proposed, record.state, f"{record.outcome}")

    def _came_to_nothing(self, record: Approval, proposed: Proposed) -> None:
        self._tell_in_vain(record, proposed)
        self._note(record, proposed, record.state, f"by {record.by or 'nobody'}")

    def _tell_in_vain(self, record: Approval, proposed: Proposed) -> None:
        failure, why = CONFIRMATION_EXPIRED, record.note
        if record.state == REFUSED:
            failure = APPROVAL_REFUSED
            why = f"{record.by} refused it" + (f": {record.note}" if record.note else ".")
        said = f"{record.tool} was not called: {why}"
        self.chat(proposed.by, proposed.id, said, ended=failure.name)

    # -- saying

    def _request(
        self, proposed: Proposed, name: str, arguments: bytes, meta: bytes, by: str, proof: str
    ) -> tuple[str, bytes] | None:
        """The fulfilment, as the room sees it. None: it could not be said."""
        self._number += 1
        id = jsonrpc.encode_value(f"fulfilment-{self._number}")
        members = jsonrpc.decode_members(meta) if meta else {}
        members[META] = Raw(jsonrpc.encode_value({"by": by, "proof": proof}))
        params = b'{"name":%b,"arguments":%b,"_meta":%b}' % (
            jsonrpc.encode_value(name),
            arguments,
            encode_members(members),
        )
        method = jsonrpc.encode_value(mcp.TOOLS_CALL)
        payload = b'{"jsonrpc":"2.0","id":%b,"method":%b,"params":%b}' % (id, method, params)
        kind = kinds.request_kind(mcp.TOOLS_CALL, name)
        said = self._say(kind, payload, [self._seat.id], proposed.id)
        return None if said is None else (said, id)

    def _respond(
        self,
        fulfilment: tuple[str, bytes],
        proposed: Proposed,
        name: str,
        outcome: Outcome | None,
        error: InterlockError | None,
    ) -> None:
        """The response, to the node that asked and to whoever proposed it."""
        envelope, id = fulfilment
        client = client_of(proposed.by)
        if outcome is not None:
            try:
                result = result_of(outcome, client, self._hello.server_info, mcp.TOOLS_CALL)
                payload = jsonrpc.result_response(id, result)
            except InterlockError as unwritable:
                error = unwritable
        if error is not None:
            payload = write_error(id, error, client)[1]
        kind, to = response_kind(mcp.TOOLS_CALL, name), [self._seat.id, proposed.by]
        if self._say(kind, payload, to, envelope) is None:
            self._say(kind, jsonrpc.result_response(id, _TOO_LONG), to, envelope)
        self._fates.shown(proposed.id)

    def chat(self, to: str, about: str | None, text: str, *, ended: str = "") -> None:
        """A word to one participant, about a message of its or about none. `ended`: the proposal
        that it is about comes to nothing; the name of the error that says why."""
        self._say(kinds.CHAT, chat_payload(text[:_LONGEST_CHAT], ended=ended), [to], about)

    def _say(self, kind: str, payload: bytes, to: list[str], about: str | None) -> str | None:
        """None: it is too long to be said, or nobody is there to hear it."""
        try:
            return self._seat.say(kind, payload, to, about)
        except InterlockError as error:
            if error.failure is not PAYLOAD_TOO_LARGE:
                _log.info("something about a proposal was not said: %s", error.message)
            return None

    def _note(self, record: Approval, proposed: Proposed, word: str, detail: str) -> None:
        """The journal has what came of every proposal, whether its room is recorded or not."""
        said = f"{record.tool} approval:{record.id} {detail}"
        self._noting.note(proposed, record.caller, word, said)


def _named(call: Call) -> str:
    return call.name if call.route is None else call.route.canonical


def _may_have_run(call: Call, error: InterlockError) -> bool:
    """Whether a call that did not wait failed on its way, and not before it left."""
    if isinstance(error, UpstreamGoneError):
        return error.sent
    if "confirmation_id" in (error.data or {}):
        # It waited for an identical call, which is told of by itself.
        return False
    if isinstance(error, UpstreamAnsweredError | RelayedError):
        return True
    # What never had a deadline was never sent.
    return call.deadline > 0 and error.failure in MAY_HAVE_RUN
