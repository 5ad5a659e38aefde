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
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

import msgspec
from msgspec import Raw

from interlock.core.call import (
    Call,
    Caller,
    Credentials,
    Outcome,
    ProposedCall,
)
from interlock.core.journal.audit import Audit
from interlock.core.pipeline.pipeline import Pipeline
from interlock.core.redaction import is_secret_value, redact
from interlock.core.server.mcp.responses import write_error
from interlock.core.server.mcp.server_info import ServerInfo
from interlock.errors import (
    ALREADY_DECIDED,
    APPROVAL_REFUSED,
    CONFIRMATION_EXPIRED,
    CONFIRMATION_REQUIRED,
    METHOD_NOT_FOUND,
    PAYLOAD_TOO_LARGE,
    TOO_BUSY,
    InterlockError,
)
from interlock.primitives.bounded_dict import BoundedDict
from interlock.primitives.rate_limits import Sampler
from interlock.primitives.timestamps import format_utc
from interlock.protocol import jsonrpc, kinds, mcp
from interlock.protocol.jsonrpc import encode_members
from interlock.protocol.mcpx_terms import GUEST, TOPIC_SERVER
from interlock.topics.member import Member
from interlock.topics.requests import (
    MOST_OF_ONE,
    as_in_a_room,
    call_of,
    client_of,
    response_kind,
    result_of,
)
from interlock.topics.wire.envelope import EnvelopeHeader
from interlock.topics.wire.payloads import ProposalPayload, chat_payload
from interlock.trust.approvals.record import (
    DISPATCHING,
    DONE,
    EXPIRED,
    LOST,
    REFUSED,
    VOID,
    Approval,
    only_sent_along,
)
from interlock.trust.approvals.response import needed_below, told
from interlock.trust.approvals.service import Approvals

if TYPE_CHECKING:
    from interlock.topics.node_participant import NodeParticipant


# -- What the journal gets of proposals: who proposed, and what came of it.
#
# What a proposal leads to is written down each time: a gate lets few wait, and each call that is
# made is worth its entry. What leads to nothing costs its sender nothing, so that is rationed for
# each participant; the rest is counted in its next entry. Guests have no entry of their own: the
# pipeline's own one, of a stranger, says enough.

JOURNAL_WORD: Final = "proposal"
MOST_IN_VAIN: Final = 20
"""So many entries a minute say of one participant that its proposals led to nothing."""
MOST_REMEMBERED: Final = 1_000
LONGEST_ID: Final = 64
"""Its sender chose it, and it is part of the entry's name."""
_MINUTE: Final = 60.0
_LONGEST_DETAIL: Final = 400
_NOBODYS: Final = Credentials("inside")


class ProposalJournal:
    """Writes what happens to the proposals of one room to the journal."""

    def __init__(self, audit: Audit | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._audit = audit
        self._clock = clock
        self._in_vain: BoundedDict[str, Sampler] = BoundedDict(MOST_REMEMBERED)
        """By participant."""

    def note(self, proposed: ProposedCall, caller: Caller, word: str, detail: str) -> None:
        """Something came of a proposal."""
        if self._audit is None or caller.kind == GUEST:
            return
        name = f"{proposed.topic}/{plain(proposed.id)[:LONGEST_ID]}"
        about = Call(JOURNAL_WORD, TOPIC_SERVER, _NOBODYS, client_of(proposed.participant), name)
        about.caller = caller
        self._audit.record(about, word, 0, f"of {proposed.participant}: {plain(detail)}")

    def in_vain(self, proposed: ProposedCall, caller: Caller, word: str, detail: str) -> None:
        """Nothing came of it."""
        if self._audit is None or caller.kind == GUEST:
            return
        folded = self._take(proposed.participant)
        if folded is None:
            return
        more = f" (and {folded} more in vain before it)" if folded else ""
        self.note(proposed, caller, word, detail[:_LONGEST_DETAIL] + more)

    def _take(self, who: str) -> int | None:
        """None: only count this one. Else how many were only counted since the last entry."""
        sampler = self._in_vain.touch(who)
        if sampler is None:
            sampler = self._in_vain[who] = Sampler(MOST_IN_VAIN, _MINUTE)
        return sampler.sample(self._clock())


def plain(text: str) -> str:
    """What others wrote, without what looks like a secret."""
    return redact(text) if is_secret_value(text) else text


# -- What became of the proposals to the node in one room, as far as that is remembered: so that
# none is made twice because two looked at it.
#
# Bounded. Of whoever proposed the most, the oldest is forgotten first, one that is over before
# one that is not: nobody makes what others proposed be forgotten.

MOST_KNOWN: Final = 1_000
"""So many proposals are remembered. Those that wait are in the inbox, too."""

TAKEN: Final = "taken"
"""The pipeline has it, and did not say yet what comes of it."""
WAITS: Final = "waits"
"""An approval has it, here or at a node below."""
MADE: Final = "made"
NOTHING: Final = "nothing"
"""It was refused, or nobody decided in time, or it became void: others may make that call."""
_OVER: Final = frozenset({MADE, NOTHING})


class ProposalOutcome(msgspec.Struct):
    """What became of one proposal."""

    by: str
    """The participant that proposed it."""
    state: str = TAKEN
    approval: str = ""
    """Empty: it has none, or none yet."""
    shown: bool = False
    """Whether the room saw the call that was made of it, and what that came to."""


class ProposalOutcomes:
    """The outcomes of the proposals of one room, by the id of the proposal."""

    def __init__(self) -> None:
        self._fates: dict[str, ProposalOutcome] = {}
        self._ids: dict[str, dict[str, None]] = {}
        """By participant: its proposals, the oldest first."""
        self._waiting: dict[str, set[str]] = {}
        """By approval: the proposals that it is about."""

    def __len__(self) -> int:
        return len(self._fates)

    def get(self, id: str) -> ProposalOutcome | None:
        return self._fates.get(id)

    def remember(self, proposed: ProposedCall, state: str, approval: str = "") -> None:
        """So it stands with it now."""
        self.forget(proposed.id)
        if len(self._fates) >= MOST_KNOWN:
            self._forget_one()
        self._fates[proposed.id] = ProposalOutcome(proposed.participant, state, approval)
        self._ids.setdefault(proposed.participant, {})[proposed.id] = None
        if approval:
            self._waiting.setdefault(approval, set()).add(proposed.id)

    def waiting_for(self, approval: str) -> list[tuple[str, str]]:
        """The proposals that this approval is about: their ids, and who made them."""
        return [(id, self._fates[id].by) for id in self._waiting.get(approval, ())]

    def became(self, approval: str, state: str) -> None:
        """All that this approval was about has come to that."""
        for id in self._waiting.get(approval, ()):
            self._fates[id].state = state

    def shown(self, id: str) -> None:
        """The room has seen what it came to."""
        fate = self._fates.get(id)
        if fate is not None:
            fate.shown = True

    def forget(self, id: str) -> None:
        fate = self._fates.pop(id, None)
        if fate is None:
            return
        own = self._ids[fate.by]
        del own[id]
        if not own:
            del self._ids[fate.by]
        if fate.approval:
            same = self._waiting[fate.approval]
            same.discard(id)
            if not same:
                del self._waiting[fate.approval]

    def _forget_one(self) -> None:
        most = max(self._ids.values(), key=len)
        over = (id for id in most if self._fates[id].state in _OVER)
        self.forget(next(over, next(iter(most))))


# -- Whether a proposal to the node is the node's to make: it waits in the inbox, or was made.
# Then nobody else's request that names it is made as well.


class NodeProposals:
    """Of one room."""

    def __init__(self, fates: ProposalOutcomes, approvals: Approvals | None, topic: str) -> None:
        self._fates = fates
        self._approvals = approvals
        self._topic = topic

    def is_open(self, id: str) -> bool:
        """Whether a proposal of this id was taken lately, and nothing became of it yet."""
        fate = self._fates.get(id)
        return fate is not None and fate.state in (TAKEN, WAITS)

    def must_be_open_to_others(self, id: str) -> None:
        """Raises InterlockError where a request that fulfils the proposal of this id would do what
        the node does itself: it waits in the inbox, or was made."""
        fate, record = self._fates.get(id), self._record_of(id)
        # Of one that the inbox keeps no more it is known all the same how it ended.
        state = "" if fate is None else fate.state
        if record is not None:
            state = state_of(record)
        if not state or state == NOTHING:
            return
        if state == MADE:
            became = "was made by the node already"
            if record is not None and record.state == LOST:
                became = "was let through here, and whether it was made is not known"
            raise InterlockError(
                ALREADY_DECIDED,
                f"The proposal that you name {became}: it is not made again. Ask without "
                "`correlation_id` if it is to be.",
            )
        if record is not None and not record.over:
            url = None if self._approvals is None else self._approvals.url_of(record.id)
            how = f"at {url}" if url else f"with `interlock approve {record.id}`"
            raise InterlockError(
                CONFIRMATION_REQUIRED,
                f"The proposal that you name waits in the node's inbox, and is made once: decide "
                f"it there, {how}. Approval: {record.id}.",
                {"confirmation_id": record.id, "proposal": id},
            )
        raise given_to_the_node(id)

    def _record_of(self, id: str) -> Approval | None:
        """The approval that a proposal has, where the inbox still knows it."""
        if self._approvals is None:
            return None
        fate = self._fates.get(id)
        if fate is not None:
            return self._approvals.find(fate.approval) if fate.approval else None
        ours = (one for one in self._approvals.pending() if self._is_about(one, id))
        return next(ours, None)

    def _is_about(self, record: Approval, id: str) -> bool:
        about = record.proposal
        return about is not None and (about.topic, about.id) == (self._topic, id)


def given_to_the_node(id: str) -> InterlockError:
    """For whoever fulfils a proposal of which it is not known yet what comes."""
    return InterlockError(
        CONFIRMATION_REQUIRED,
        "The proposal that you name was given to the node, which makes it once, if at all.",
        {"proposal": id},
    )


def state_of(record: Approval) -> str:
    if record.state in (REFUSED, EXPIRED, VOID):
        return NOTHING
    # With a gate below that wants a human, too, it looks like a result and is none.
    return MADE if record.state in (DONE, LOST) and not record.below else WAITS


META: Final = "interlock/approval"
"""In `_meta` of a fulfilment: who let it through, and by what kind of proof."""
LEARNED: Final = ("policy", "learned")
"""Who let through what a rule answered that a human accepted before."""
MOST_OPEN: Final = 1_000
"""So many fulfilments are remembered until they are answered. One that a node below stopped may
never be."""
Fulfilments = BoundedDict[str, tuple[str, bytes]]
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

_log = logging.getLogger("interlock.topics")


class ProposalHandler:
    """Takes proposals, and tells the room what becomes of them."""

    def __init__(
        self,
        seat: NodeParticipant,
        pipeline: Pipeline,
        approvals: Approvals | None,
        *,
        hello: ServerInfo,
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
        self._noting = ProposalJournal(audit)
        self._fates = ProposalOutcomes()
        self.made_here = NodeProposals(self._fates, approvals, seat.topic)
        self._under_way: Counter[str] = Counter()
        """How many proposals of a participant the pipeline has, and did not answer yet."""
        self._fulfilments = Fulfilments(MOST_OPEN) if fulfilments is None else fulfilments
        self._beside: dict[str, list[tuple[ProposedCall, tuple[str, bytes]]]] = {}
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

    def propose(self, member: Member, head: EnvelopeHeader, proposal: ProposalPayload) -> None:
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
        proposed = ProposedCall(self._seat.topic, head.id, member.id)
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
        self._under_way[proposed.participant] -= 1
        if not self._under_way[proposed.participant]:
            del self._under_way[proposed.participant]
        if error is not None:
            # With the id of an approval it waited for an identical call, here or below: the
            # outcome of that one is announced by itself.
            if call.is_dispatched and "confirmation_id" not in (error.data or {}):
                self._made_at_once(call, proposed, None, error)
            else:
                self._not_taken(proposed, cast("Caller", call.context), as_in_a_room(error))
            return
        assert outcome is not None
        needed = needed_below(outcome.result)
        if needed is not None:
            self._waits(call, proposed, needed[0])
        elif call.approval_id:
            self._made_before(call, proposed, outcome)
        else:
            self._made_at_once(call, proposed, outcome, None)

    def _waits(self, call: Call, proposed: ProposedCall, approval: str) -> None:
        record = None if self._approvals is None else self._approvals.find(approval)
        state = WAITS if record is None else state_of(record)
        self._fates.remember(proposed, state, approval)
        note = self._noting.note
        if record is not None and record.proposal == proposed:
            url = None if self._approvals is None else self._approvals.url_of(approval)
            how = f"at {url}" if url else f"with `interlock approve {approval}`"
            said = (
                f"{record.tool} waits for a human, who decides {how} until "
                f"{format_utc(record.expires)}. Approval: {approval}."
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
        self.chat(proposed.participant, proposed.id, said)
        note(proposed, cast("Caller", call.context), word, f"{_named(call)} approval:{approval}")

    def _made_before(self, call: Call, proposed: ProposedCall, outcome: Outcome) -> None:
        """Its caller has made the identical call, here or elsewhere, and collects what it came to.
        That is told once: where the room has not seen it, it sees it now."""
        self.chat(
            proposed.participant,
            proposed.id,
            f"The identical call of {_named(call)} was made already, for approval "
            f"{call.approval_id}: it was not made again. Propose it once more if it is to be.",
        )
        self._fates.remember(proposed, MADE, call.approval_id)
        told_of = f"{_named(call)} approval:{call.approval_id}"
        self._noting.in_vain(proposed, cast("Caller", call.context), "told", told_of)
        record = None if self._approvals is None else self._approvals.find(call.approval_id)
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

    def _not_taken(self, proposed: ProposedCall, caller: Caller, error: InterlockError) -> None:
        """Nothing was made of it, nor will be."""
        self._fates.forget(proposed.id)
        said = f"Your proposal was not taken: {error.message}"
        self.chat(proposed.participant, proposed.id, said, ended=error.failure.name)
        why = f"{error.failure.name} {error.message}"
        self._noting.in_vain(proposed, caller, "not_taken", why)

    def _made_at_once(
        self,
        call: Call,
        proposed: ProposedCall,
        outcome: Outcome | None,
        error: InterlockError | None,
    ) -> None:
        """A rule that a human accepted before has let it through: the room sees the same."""
        arguments, meta = bytes(call.arguments), encode_members(call.meta or {})
        fulfilment = self._request(proposed, call.name, arguments, meta, *LEARNED)
        self._fates.remember(proposed, MADE)
        by = f"{_named(call)} by {' '.join(LEARNED)}"
        self._noting.note(proposed, cast("Caller", call.context), "fulfilled", by)
        if fulfilment is not None:
            self._respond(fulfilment, proposed, call.name, outcome, error)
        else:
            said = f"{_named(call)} was called, by a rule that a human accepted. That is too long"
            self.chat(proposed.participant, proposed.id, f"{said} to be shown in a topic.")

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
            ProposedCall(self._seat.topic, id, by)
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

    def _fulfil(self, record: Approval, proposed: ProposedCall) -> None:
        fulfilment = self._request(
            proposed, record.name, record.arguments, record.meta, record.by, record.proof
        )
        if fulfilment is not None:
            self._fulfilments[record.id] = fulfilment
        self._note(record, proposed, "fulfilled", f"by {record.by} ({record.proof})")

    def _ended(self, record: Approval, proposed: ProposedCall) -> None:
        if record.below:
            # It looks like a result and is none: another gate wants a human, too.
            said = f"{record.tool} waits at a node below now: approval {record.below} there."
            self.chat(proposed.participant, proposed.id, said)
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
            self.chat(
                proposed.participant, proposed.id, f"{said} ({record.outcome or record.state})."
            )
            self._note(record, proposed, record.state, f"{record.outcome}")

    def _came_to_nothing(self, record: Approval, proposed: ProposedCall) -> None:
        self._tell_in_vain(record, proposed)
        self._note(record, proposed, record.state, f"by {record.by or 'nobody'}")

    def _tell_in_vain(self, record: Approval, proposed: ProposedCall) -> None:
        failure, why = CONFIRMATION_EXPIRED, record.note
        if record.state == REFUSED:
            failure = APPROVAL_REFUSED
            why = f"{record.by} refused it" + (f": {record.note}" if record.note else ".")
        said = f"{record.tool} was not called: {why}"
        self.chat(proposed.participant, proposed.id, said, ended=failure.name)

    # -- saying

    def _request(
        self, proposed: ProposedCall, name: str, arguments: bytes, meta: bytes, by: str, proof: str
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
        proposed: ProposedCall,
        name: str,
        outcome: Outcome | None,
        error: InterlockError | None,
    ) -> None:
        """The response, to the node that asked and to whoever proposed it."""
        envelope, id = fulfilment
        client = client_of(proposed.participant)
        if outcome is not None:
            try:
                result = result_of(outcome, client, self._hello.server_info, mcp.TOOLS_CALL)
                payload = jsonrpc.result_response(id, result)
            except InterlockError as unwritable:
                error = unwritable
        if error is not None:
            payload = write_error(id, error, client)[1]
        kind, to = response_kind(mcp.TOOLS_CALL, name), [self._seat.id, proposed.participant]
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

    def _note(self, record: Approval, proposed: ProposedCall, word: str, detail: str) -> None:
        """The journal has what came of every proposal, whether its room is recorded or not."""
        said = f"{record.tool} approval:{record.id} {detail}"
        self._noting.note(proposed, record.caller, word, said)


def _named(call: Call) -> str:
    return call.name if call.route is None else call.route.canonical
