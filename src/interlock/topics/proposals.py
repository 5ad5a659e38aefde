"""Proposals to the node: they become pending approvals, and their outcomes are sent to the room.

A proposal becomes a call that always waits for an operator. The decision needs a proof, as for
every call. After approval the gate makes the call, and the room sees the fulfilment: a request of
the node to itself that names the proposal, and the response, which is also sent to the proposer. No
message of the room decides anything. If no call is made (rejected, expired, void), the proposer
gets a chat message: MCPx has no other message for it.

All messages follow from the state changes of the approval record, so they continue after a restart,
and the node knows what it fulfilled for as long as the record exists. Only the mapping from
requests to approvals is stored here.
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
    MAX_PENDING_REQUESTS,
    adapt_error,
    convert_result,
    create_call,
    make_client,
    make_response_kind,
)
from interlock.topics.wire.envelope import EnvelopeHeader
from interlock.topics.wire.payloads import ProposalPayload, write_chat_payload
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


# -- Journal entries about proposals: the proposer and the outcome.
#
# Pending and fulfilled proposals are always recorded: the gate limits the number of pending calls.
# Unsuccessful proposals cost their sender nothing, so their entries are rate-limited for each
# participant; the next entry has the count of the omitted ones. Guests have no entries here: the
# pipeline records them as strangers.

JOURNAL_METHOD: Final = "proposal"
MAX_UNSUCCESSFUL_ENTRIES_PER_MINUTE: Final = 20
"""The maximum number of journal entries per minute about unsuccessful proposals of one
participant."""
MAX_PARTICIPANTS: Final = 1_000
MAX_ID_LENGTH: Final = 64
"""The maximum length of a proposal id in the journal. The sender chose it."""
_MINUTE: Final = 60.0
_MAX_DETAIL_LENGTH: Final = 400
_NO_CREDENTIALS: Final = Credentials("inside")


class ProposalJournal:
    """Writes the outcomes of the proposals of one room to the journal."""

    def __init__(self, audit: Audit | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._audit = audit
        self._clock = clock
        self._in_vain: BoundedDict[str, Sampler] = BoundedDict(MAX_PARTICIPANTS)
        """By participant."""

    def note(self, proposed: ProposedCall, caller: Caller, word: str, detail: str) -> None:
        """Record an outcome."""
        if self._audit is None or caller.kind == GUEST:
            return
        name = f"{proposed.topic}/{redact_secrets(proposed.id)[:MAX_ID_LENGTH]}"
        about = Call(
            JOURNAL_METHOD, TOPIC_SERVER, _NO_CREDENTIALS, make_client(proposed.participant), name
        )
        about.caller = caller
        self._audit.record(about, word, 0, f"of {proposed.participant}: {redact_secrets(detail)}")

    def in_vain(self, proposed: ProposedCall, caller: Caller, word: str, detail: str) -> None:
        """Record an unsuccessful proposal, at a limited rate."""
        if self._audit is None or caller.kind == GUEST:
            return
        folded = self._take(proposed.participant)
        if folded is None:
            return
        more = f" (and {folded} more unsuccessful before it)" if folded else ""
        self.note(proposed, caller, word, detail[:_MAX_DETAIL_LENGTH] + more)

    def _take(self, who: str) -> int | None:
        """Return the number of entries omitted since the last one. None: omit this one too."""
        sampler = self._in_vain.touch(who)
        if sampler is None:
            sampler = self._in_vain[who] = Sampler(MAX_UNSUCCESSFUL_ENTRIES_PER_MINUTE, _MINUTE)
        return sampler.sample(self._clock())


def redact_secrets(text: str) -> str:
    """Redact a text of a participant if it looks like a secret."""
    return redact(text) if is_secret_value(text) else text


# -- The states of recent proposals to the node in one room, so that no call is made twice because
# two participants saw the proposal.
#
# Bounded. The oldest proposal of the participant with the most proposals is removed first, finished
# ones before pending ones, so that no participant displaces the proposals of others.

MAX_PROPOSALS: Final = 1_000
"""The maximum number of proposals that are stored. Pending ones are also in the approval store."""

RECEIVED: Final = "taken"
"""The pipeline has it and has not reported a result yet."""
PENDING: Final = "waits"
"""It has a pending approval, here or at a node below."""
EXECUTED: Final = "made"
NOT_EXECUTED: Final = "nothing"
"""Rejected, expired or void. Others may make the call."""
_FINAL_STATES: Final = frozenset({EXECUTED, NOT_EXECUTED})


class ProposalOutcome(msgspec.Struct):
    """The state of one proposal."""

    by: str
    """The participant that proposed it."""
    state: str = RECEIVED
    approval: str = ""
    """Empty: it has no approval, or none yet."""
    shown: bool = False
    """True if the room has seen the call and its response."""


class ProposalOutcomes:
    """The states of the proposals of one room, by proposal id."""

    def __init__(self) -> None:
        self._fates: dict[str, ProposalOutcome] = {}
        self._ids: dict[str, dict[str, None]] = {}
        """By participant: its proposals, oldest first."""
        self._waiting: dict[str, set[str]] = {}
        """By approval: the proposals that share it."""

    def __len__(self) -> int:
        return len(self._fates)

    def get(self, id: str) -> ProposalOutcome | None:
        return self._fates.get(id)

    def remember(self, proposed: ProposedCall, state: str, approval: str = "") -> None:
        """Store the state of a proposal."""
        self.forget(proposed.id)
        if len(self._fates) >= MAX_PROPOSALS:
            self._forget_one()
        self._fates[proposed.id] = ProposalOutcome(proposed.participant, state, approval)
        self._ids.setdefault(proposed.participant, {})[proposed.id] = None
        if approval:
            self._waiting.setdefault(approval, set()).add(proposed.id)

    def waiting_for(self, approval: str) -> list[tuple[str, str]]:
        """Return the proposals that share this approval: their ids and proposers."""
        return [(id, self._fates[id].by) for id in self._waiting.get(approval, ())]

    def became(self, approval: str, state: str) -> None:
        """Set the state of all proposals that share this approval."""
        for id in self._waiting.get(approval, ()):
            self._fates[id].state = state

    def shown(self, id: str) -> None:
        """Record that the room has seen the response."""
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
        over = (id for id in most if self._fates[id].state in _FINAL_STATES)
        self.forget(next(over, next(iter(most))))


# -- A proposal to the node is the node's to fulfil if its approval is pending or the call was made.
# Then no request of another participant that names it is executed.


class NodeProposals:
    """Decides whether a proposal of one room is the node's to fulfil."""

    def __init__(self, fates: ProposalOutcomes, approvals: Approvals | None, topic: str) -> None:
        self._fates = fates
        self._approvals = approvals
        self._topic = topic

    def is_open(self, id: str) -> bool:
        """Return whether a proposal with this id is pending."""
        fate = self._fates.get(id)
        return fate is not None and fate.state in (RECEIVED, PENDING)

    def must_be_open_to_others(self, id: str) -> None:
        """Raise InterlockError if a request for this proposal would repeat what the node does
        itself: its approval is pending, or the call was made."""
        fate, record = self._fates.get(id), self._record_of(id)
        # The state is known even if the approval record no longer exists.
        state = "" if fate is None else fate.state
        if record is not None:
            state = get_proposal_state(record)
        if not state or state == NOT_EXECUTED:
            return
        if state == EXECUTED:
            became = "was already executed by the node"
            if record is not None and record.state == LOST:
                became = "was approved here, but it is unknown whether it was executed"
            raise InterlockError(
                ALREADY_DECIDED,
                f"The proposal that you name {became}. It is not executed again. To execute the "
                "call again, send the request without `correlation_id`.",
            )
        if record is not None and not record.over:
            url = None if self._approvals is None else self._approvals.url_of(record.id)
            how = f"at {url}" if url else f"with `interlock approve {record.id}`"
            raise InterlockError(
                CONFIRMATION_REQUIRED,
                f"The proposal that you name is pending at the node, which executes it once. "
                f"Approve it {how}. Approval: {record.id}.",
                {"confirmation_id": record.id, "proposal": id},
            )
        raise node_proposal_error(id)

    def _record_of(self, id: str) -> Approval | None:
        """Return the approval of a proposal, if the record still exists."""
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


def node_proposal_error(id: str) -> InterlockError:
    """Return the error for a request that fulfils a proposal which the node is handling."""
    return InterlockError(
        CONFIRMATION_REQUIRED,
        "The proposal that you name was sent to the node, which executes it at most once.",
        {"proposal": id},
    )


def get_proposal_state(record: Approval) -> str:
    """Return the proposal state for an approval record."""
    if record.state in (REFUSED, EXPIRED, VOID):
        return NOT_EXECUTED
    # A gate of a node below may also require approval. Its response only looks like a result.
    return EXECUTED if record.state in (DONE, LOST) and not record.below else PENDING


APPROVAL_MEMBER: Final = "interlock/approval"
"""The member of `_meta` in a fulfilment that names who approved it and the kind of proof."""
LEARNED_RULE: Final = ("policy", "learned")
"""The approver in the fulfilment of a call that an accepted rule allowed."""
MAX_FULFILMENTS: Final = 1_000
"""The maximum number of fulfilments that are stored until their response. One that a node below
stopped may never get a response."""
Fulfilments = BoundedDict[str, tuple[str, bytes]]
"""By id of an approval whose call is under way: the envelope id of the request that the room saw,
and its JSON-RPC id."""
_MAX_CHAT_LENGTH: Final = 2_000
_TOO_LONG_RESULT: Final = jsonrpc.encode_value(
    {
        "content": [
            {
                "type": "text",
                "text": "The call was executed. Its result is too long for a topic. The approval "
                "record of the node has the result, if it is still stored.",
            }
        ],
        "isError": True,
    }
)

_log = logging.getLogger("interlock.topics")


class ProposalHandler:
    """Handles proposals and tells the room their outcomes."""

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
        """
        Args:
            approvals: None if no operator can approve; the pipeline then reports that.
            fulfilments: calls under way, shared with the next participant of the node in this room.
        """
        self._seat = seat
        self._pipeline = pipeline
        self._approvals = approvals
        self._hello = hello
        self._noting = ProposalJournal(audit)
        self._fates = ProposalOutcomes()
        self.made_here = NodeProposals(self._fates, approvals, seat.topic)
        self._under_way: Counter[str] = Counter()
        """The number of proposals of each participant for which the pipeline has no result yet."""
        self._fulfilments = Fulfilments(MAX_FULFILMENTS) if fulfilments is None else fulfilments
        self._beside: dict[str, list[tuple[ProposedCall, tuple[str, bytes]]]] = {}
        """By id of an approval whose call is under way: further proposals of the identical call,
        and the requests that the room saw for them."""
        self._number = 0
        self._stop = None if approvals is None else approvals.watch(self._stepped)
        for record in reversed([] if approvals is None else approvals.recent(MAX_PROPOSALS)):
            if record.proposal is not None and record.proposal.topic == seat.topic:
                self._fates.remember(record.proposal, get_proposal_state(record), record.id)

    def close(self) -> None:
        """Stop: the node leaves the room. From now on only the approval store and the journal have
        the outcomes."""
        if self._stop is not None:
            self._stop()
            self._stop = None

    # -- new proposals

    def propose(self, member: Member, head: EnvelopeHeader, proposal: ProposalPayload) -> None:
        """Begin a call that waits for approval."""
        if proposal.method != mcp.TOOLS_CALL:
            self.chat(
                member.id,
                head.id,
                f"Only tool calls can be proposed to {self._seat.id}. This is "
                f"{proposal.method[:100]!r}: send it as mcp/request, if you may.",
                ended=METHOD_NOT_FOUND.name,
            )
            return
        proposed = ProposedCall(self._seat.topic, head.id, member.id)
        try:
            if self._under_way[member.id] >= MAX_PENDING_REQUESTS:
                raise InterlockError(
                    TOO_BUSY,
                    f"You have {MAX_PENDING_REQUESTS} proposals under way in this topic, which is "
                    "the "
                    "limit. Wait, then try again.",
                )
            call = create_call(member, proposal)
        except InterlockError as error:
            self._not_taken(proposed, member.caller, error)
            return
        self._fates.remember(proposed, RECEIVED)
        self._under_way[member.id] += 1
        call.context = member.caller
        # Only what the operator sees is executed: the name, the arguments and relevant `_meta`.
        call.meta = only_sent_along(call.meta)
        call.proposal = proposed
        call.on_done = self._answered
        self._pipeline.begin(call)

    def _answered(self, call: Call, outcome: Outcome | None, error: InterlockError | None) -> None:
        """Handle the result of the pipeline. Usually the call is pending now."""
        proposed = call.proposal
        assert proposed is not None
        self._under_way[proposed.participant] -= 1
        if not self._under_way[proposed.participant]:
            del self._under_way[proposed.participant]
        if error is not None:
            # An error with an approval id means that an identical call is pending, here or below.
            # The outcome of that call is announced separately.
            if call.is_dispatched and "confirmation_id" not in (error.data or {}):
                self._made_at_once(call, proposed, None, error)
            else:
                self._not_taken(proposed, cast("Caller", call.context), adapt_error(error))
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
        state = PENDING if record is None else get_proposal_state(record)
        self._fates.remember(proposed, state, approval)
        note = self._noting.note
        if record is not None and record.proposal == proposed:
            url = None if self._approvals is None else self._approvals.url_of(approval)
            how = f"at {url}" if url else f"with `interlock approve {approval}`"
            said = (
                f"{record.tool} waits for approval until {format_utc(record.expires)}. An operator "
                f"approves it {how}. Approval: {approval}."
            )
            word = "proposed"
        elif record is not None and not record.at:
            before = record.proposal
            as_what = f" (proposal {before.id[:100]})" if before is not None else ""
            said = (
                f"An identical call of {record.tool} is already pending, as approval "
                f"{approval}{as_what}. It is executed at most once."
            )
            word, note = "waits_already", self._noting.in_vain
        else:
            said = (
                f"{_tool_name(call)} waits for approval at a node below: approval {approval} there."
            )
            word = "waits_below"
        self.chat(proposed.participant, proposed.id, said)
        note(
            proposed, cast("Caller", call.context), word, f"{_tool_name(call)} approval:{approval}"
        )

    def _made_before(self, call: Call, proposed: ProposedCall, outcome: Outcome) -> None:
        """Report that the identical call was made before and was not repeated.

        The room is shown the response if it has not seen it.
        """
        self.chat(
            proposed.participant,
            proposed.id,
            f"An identical call of {_tool_name(call)} was already executed, for approval "
            f"{call.approval_id}. It was not repeated. To execute it again, propose it again.",
        )
        self._fates.remember(proposed, EXECUTED, call.approval_id)
        told_of = f"{_tool_name(call)} approval:{call.approval_id}"
        self._noting.in_vain(proposed, cast("Caller", call.context), "told", told_of)
        record = None if self._approvals is None else self._approvals.find(call.approval_id)
        if record is None or self._was_shown(record):
            return
        arguments, meta = bytes(call.arguments), encode_members(call.meta or {})
        fulfilment = self._request(proposed, call.name, arguments, meta, record.by, record.proof)
        if fulfilment is not None:
            self._respond(fulfilment, proposed, call.name, outcome, None)

    def _was_shown(self, record: Approval) -> bool:
        """Return whether this room has seen the response, for another proposal."""
        before = record.proposal
        if before is None or before.topic != self._seat.topic:
            return False
        fate = self._fates.get(before.id)
        return fate is not None and fate.shown

    def _not_taken(self, proposed: ProposedCall, caller: Caller, error: InterlockError) -> None:
        """Tell the proposer that its proposal was rejected before it became pending."""
        self._fates.forget(proposed.id)
        said = f"Your proposal was rejected: {error.message}"
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
        """Show the room a call that an accepted rule allowed without a decision of an operator."""
        arguments, meta = bytes(call.arguments), encode_members(call.meta or {})
        fulfilment = self._request(proposed, call.name, arguments, meta, *LEARNED_RULE)
        self._fates.remember(proposed, EXECUTED)
        by = f"{_tool_name(call)} by {' '.join(LEARNED_RULE)}"
        self._noting.note(proposed, cast("Caller", call.context), "fulfilled", by)
        if fulfilment is not None:
            self._respond(fulfilment, proposed, call.name, outcome, error)
        else:
            said = (
                f"{_tool_name(call)} was executed, because a rule allows it. The call is too long"
            )
            self.chat(proposed.participant, proposed.id, f"{said} for a topic.")

    # -- outcomes

    def _stepped(self, record: Approval) -> None:
        """Handle a state change of any approval of the node. It only sends messages: the gate is in
        the middle of its work."""
        self._tell_others(record)
        self._fates.became(record.id, get_proposal_state(record))
        proposed = record.proposal
        if proposed is None or record.at or proposed.topic != self._seat.topic:
            return
        if record.state == DISPATCHING:
            # Without arguments it only repeats a request at a gate below, which the room has seen.
            if record.arguments:
                self._fulfil(record, proposed)
        elif record.state in (DONE, LOST, VOID):
            self._ended(record, proposed)
        elif record.state in (REFUSED, EXPIRED):
            self._came_to_nothing(record, proposed)

    def _tell_others(self, record: Approval) -> None:
        """Tell further proposers of the identical call its outcome. The call is made once."""
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
        elif get_proposal_state(record) == EXECUTED:
            for one, shown in self._beside.pop(record.id, ()):
                self._respond(shown, one, record.name, *told(record))
        elif get_proposal_state(record) == NOT_EXECUTED:
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
            # Not a result: the gate of a node below requires another approval.
            said = (
                f"{record.tool} now waits for approval at a node below: approval {record.below} "
                "there."
            )
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
            # The room was not open when the call was made, so it has seen no request.
            said = f"{record.tool} was approved by {record.by}. The approval record has the outcome"
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
            why = f"{record.by} rejected it" + (f": {record.note}" if record.note else ".")
        said = f"{record.tool} was not executed: {why}"
        self.chat(proposed.participant, proposed.id, said, ended=failure.name)

    # -- messages

    def _request(
        self, proposed: ProposedCall, name: str, arguments: bytes, meta: bytes, by: str, proof: str
    ) -> tuple[str, bytes] | None:
        """Send the fulfilment to the room. Returns None if it could not be sent."""
        self._number += 1
        id = jsonrpc.encode_value(f"fulfilment-{self._number}")
        members = jsonrpc.decode_members(meta) if meta else {}
        members[APPROVAL_MEMBER] = Raw(jsonrpc.encode_value({"by": by, "proof": proof}))
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
        """Send the response, to the node as the requester and to the proposer."""
        envelope, id = fulfilment
        client = make_client(proposed.participant)
        if outcome is not None:
            try:
                result = convert_result(outcome, client, self._hello.server_info, mcp.TOOLS_CALL)
                payload = jsonrpc.result_response(id, result)
            except InterlockError as unwritable:
                error = unwritable
        if error is not None:
            payload = write_error(id, error, client)[1]
        kind, to = make_response_kind(mcp.TOOLS_CALL, name), [self._seat.id, proposed.participant]
        if self._say(kind, payload, to, envelope) is None:
            self._say(kind, jsonrpc.result_response(id, _TOO_LONG_RESULT), to, envelope)
        self._fates.shown(proposed.id)

    def chat(self, to: str, about: str | None, text: str, *, ended: str = "") -> None:
        """Send a chat message to one participant.

        Args:
            about: the id of the message that it is about, if any.
            ended: the name of the error with which the proposal ended.
        """
        self._say(kinds.CHAT, write_chat_payload(text[:_MAX_CHAT_LENGTH], ended=ended), [to], about)

    def _say(self, kind: str, payload: bytes, to: list[str], about: str | None) -> str | None:
        """Send a message. Returns None if it is too long or the node has left the room."""
        try:
            return self._seat.say(kind, payload, to, about)
        except InterlockError as error:
            if error.failure is not PAYLOAD_TOO_LARGE:
                _log.info(
                    "topic %s: cannot send a message about a proposal: %s",
                    self._seat.topic,
                    error.message,
                )
            return None

    def _note(self, record: Approval, proposed: ProposedCall, word: str, detail: str) -> None:
        """Record the outcome of a proposal in the journal, whether or not the room is recorded."""
        said = f"{record.tool} approval:{record.id} {detail}"
        self._noting.note(proposed, record.caller, word, said)


def _tool_name(call: Call) -> str:
    return call.name if call.route is None else call.route.canonical
