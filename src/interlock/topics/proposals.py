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
    select_forwarded_meta,
)
from interlock.trust.approvals.response import read_child_approval, read_outcome
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
        self._samplers: BoundedDict[str, Sampler] = BoundedDict(MAX_PARTICIPANTS)
        """By participant."""

    def note(self, proposed: ProposedCall, caller: Caller, outcome_name: str, detail: str) -> None:
        """Record an outcome."""
        if self._audit is None or caller.kind == GUEST:
            return
        name = f"{proposed.topic}/{redact_secrets(proposed.id)[:MAX_ID_LENGTH]}"
        call = Call(
            JOURNAL_METHOD, TOPIC_SERVER, _NO_CREDENTIALS, make_client(proposed.participant), name
        )
        call.caller = caller
        self._audit.record(
            call, outcome_name, 0, f"of {proposed.participant}: {redact_secrets(detail)}"
        )

    def note_unsuccessful(
        self, proposed: ProposedCall, caller: Caller, outcome_name: str, detail: str
    ) -> None:
        """Record an unsuccessful proposal, at a limited rate."""
        if self._audit is None or caller.kind == GUEST:
            return
        omitted = self._count_omitted(proposed.participant)
        if omitted is None:
            return
        omitted_note = f" (and {omitted} more unsuccessful before it)" if omitted else ""
        self.note(proposed, caller, outcome_name, detail[:_MAX_DETAIL_LENGTH] + omitted_note)

    def _count_omitted(self, participant: str) -> int | None:
        """Return the number of entries omitted since the last one. None: omit this one too."""
        sampler = self._samplers.touch(participant)
        if sampler is None:
            sampler = self._samplers[participant] = Sampler(
                MAX_UNSUCCESSFUL_ENTRIES_PER_MINUTE, _MINUTE
            )
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
"""The proposal has a pending approval, here or at a child node."""
EXECUTED: Final = "made"
NOT_EXECUTED: Final = "nothing"
"""Rejected, expired or void. Others may make the call."""
_FINAL_STATES: Final = frozenset({EXECUTED, NOT_EXECUTED})


class ProposalOutcome(msgspec.Struct):
    """The state of one proposal."""

    participant: str
    """The participant that proposed it."""
    state: str = RECEIVED
    approval: str = ""
    """Empty: it has no approval, or none yet."""
    is_shown: bool = False
    """True if the room has seen the call and its response."""


class ProposalOutcomes:
    """The states of the proposals of one room, by proposal id."""

    def __init__(self) -> None:
        self._outcomes: dict[str, ProposalOutcome] = {}
        self._ids_by_participant: dict[str, dict[str, None]] = {}
        """By participant: its proposals, oldest first."""
        self._by_approval: dict[str, set[str]] = {}
        """By approval: the proposals that share it."""

    def __len__(self) -> int:
        return len(self._outcomes)

    def get(self, id: str) -> ProposalOutcome | None:
        return self._outcomes.get(id)

    def store(self, proposed: ProposedCall, state: str, approval: str = "") -> None:
        """Store the state of a proposal."""
        self.remove(proposed.id)
        if len(self._outcomes) >= MAX_PROPOSALS:
            self._evict_one()
        self._outcomes[proposed.id] = ProposalOutcome(proposed.participant, state, approval)
        self._ids_by_participant.setdefault(proposed.participant, {})[proposed.id] = None
        if approval:
            self._by_approval.setdefault(approval, set()).add(proposed.id)

    def find_by_approval(self, approval: str) -> list[tuple[str, str]]:
        """Return the proposals that share this approval: their ids and proposers."""
        return [(id, self._outcomes[id].participant) for id in self._by_approval.get(approval, ())]

    def set_state(self, approval: str, state: str) -> None:
        """Set the state of all proposals that share this approval."""
        for id in self._by_approval.get(approval, ()):
            self._outcomes[id].state = state

    def mark_shown(self, id: str) -> None:
        """Record that the room has seen the response."""
        proposal_outcome = self._outcomes.get(id)
        if proposal_outcome is not None:
            proposal_outcome.is_shown = True

    def remove(self, id: str) -> None:
        proposal_outcome = self._outcomes.pop(id, None)
        if proposal_outcome is None:
            return
        participant_proposals = self._ids_by_participant[proposal_outcome.participant]
        del participant_proposals[id]
        if not participant_proposals:
            del self._ids_by_participant[proposal_outcome.participant]
        if proposal_outcome.approval:
            approval_proposals = self._by_approval[proposal_outcome.approval]
            approval_proposals.discard(id)
            if not approval_proposals:
                del self._by_approval[proposal_outcome.approval]

    def _evict_one(self) -> None:
        largest_group = max(self._ids_by_participant.values(), key=len)
        finished_ids = (id for id in largest_group if self._outcomes[id].state in _FINAL_STATES)
        self.remove(next(finished_ids, next(iter(largest_group))))


# -- A proposal to the node is the node's to fulfil if its approval is pending or the call was made.
# Then no request of another participant that names it is executed.


class NodeProposals:
    """Decides whether a proposal of one room is the node's to fulfil."""

    def __init__(self, outcomes: ProposalOutcomes, approvals: Approvals | None, topic: str) -> None:
        self._outcomes = outcomes
        self._approvals = approvals
        self._topic = topic

    def is_open(self, id: str) -> bool:
        """Return whether a proposal with this id is pending."""
        proposal_outcome = self._outcomes.get(id)
        return proposal_outcome is not None and proposal_outcome.state in (RECEIVED, PENDING)

    def check_open_to_others(self, id: str) -> None:
        """Raise InterlockError if a request for this proposal would repeat what the node does
        itself: its approval is pending, or the call was made."""
        proposal_outcome, record = self._outcomes.get(id), self._find_record(id)
        # The state is known even if the approval record no longer exists.
        state = "" if proposal_outcome is None else proposal_outcome.state
        if record is not None:
            state = get_proposal_state(record)
        if not state or state == NOT_EXECUTED:
            return
        if state == EXECUTED:
            description = "was already executed by the node"
            if record is not None and record.state == LOST:
                description = "was approved here, but it is unknown whether it was executed"
            raise InterlockError(
                ALREADY_DECIDED,
                f"The proposal that you name {description}. It is not executed again. To execute "
                "the "
                "call again, send the request without `correlation_id`.",
            )
        if record is not None and not record.is_final:
            url = None if self._approvals is None else self._approvals.approval_url(record.id)
            instruction = f"at {url}" if url else f"with `interlock approve {record.id}`"
            raise InterlockError(
                CONFIRMATION_REQUIRED,
                f"The proposal that you name is pending at the node, which executes it once. "
                f"Approve it {instruction}. Approval: {record.id}.",
                {"confirmation_id": record.id, "proposal": id},
            )
        raise node_proposal_error(id)

    def _find_record(self, id: str) -> Approval | None:
        """Return the approval of a proposal, if the record still exists."""
        if self._approvals is None:
            return None
        proposal_outcome = self._outcomes.get(id)
        if proposal_outcome is not None:
            return (
                self._approvals.find(proposal_outcome.approval)
                if proposal_outcome.approval
                else None
            )
        matching = (record for record in self._approvals.pending() if self._concerns(record, id))
        return next(matching, None)

    def _concerns(self, record: Approval, id: str) -> bool:
        proposal = record.proposal
        return proposal is not None and (proposal.topic, proposal.id) == (self._topic, id)


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
        participant: NodeParticipant,
        pipeline: Pipeline,
        approvals: Approvals | None,
        *,
        server_info: ServerInfo,
        audit: Audit | None,
        fulfilments: Fulfilments | None = None,
    ) -> None:
        """
        Args:
            approvals: None if no operator can approve; the pipeline then reports that.
            fulfilments: calls under way, shared with the next participant of the node in this room.
        """
        self._participant = participant
        self._pipeline = pipeline
        self._approvals = approvals
        self._server_info = server_info
        self._journal = ProposalJournal(audit)
        self._outcomes = ProposalOutcomes()
        self.node_proposals = NodeProposals(self._outcomes, approvals, participant.topic)
        self._active_counts: Counter[str] = Counter()
        """The number of proposals of each participant for which the pipeline has no result yet."""
        self._fulfilments = Fulfilments(MAX_FULFILMENTS) if fulfilments is None else fulfilments
        self._identical_proposals: dict[str, list[tuple[ProposedCall, tuple[str, bytes]]]] = {}
        """By id of an approval whose call is under way: further proposals of the identical call,
        and the requests that the room saw for them."""
        self._last_number = 0
        self._stop_watching = (
            None if approvals is None else approvals.watch(self._on_approval_change)
        )
        for record in reversed([] if approvals is None else approvals.recent(MAX_PROPOSALS)):
            if record.proposal is not None and record.proposal.topic == participant.topic:
                self._outcomes.store(record.proposal, get_proposal_state(record), record.id)

    def close(self) -> None:
        """Stop: the node leaves the room. From now on only the approval store and the journal have
        the outcomes."""
        if self._stop_watching is not None:
            self._stop_watching()
            self._stop_watching = None

    # -- new proposals

    def handle_proposal(
        self, member: Member, head: EnvelopeHeader, proposal: ProposalPayload
    ) -> None:
        """Begin a call that waits for approval."""
        if proposal.method != mcp.TOOLS_CALL:
            self.send_chat(
                member.id,
                head.id,
                f"Only tool calls can be proposed to {self._participant.id}. This is "
                f"{proposal.method[:100]!r}: send it as mcp/request, if you may.",
                end_reason=METHOD_NOT_FOUND.name,
            )
            return
        proposed = ProposedCall(self._participant.topic, head.id, member.id)
        try:
            if self._active_counts[member.id] >= MAX_PENDING_REQUESTS:
                raise InterlockError(
                    TOO_BUSY,
                    f"You have {MAX_PENDING_REQUESTS} unfinished proposals in this topic, which is "
                    "the limit. Wait, then try again.",
                )
            call = create_call(member, proposal)
        except InterlockError as error:
            self._report_rejection(proposed, member.caller, error)
            return
        self._outcomes.store(proposed, RECEIVED)
        self._active_counts[member.id] += 1
        call.context = member.caller
        # Only what the operator sees is executed: the name, the arguments and relevant `_meta`.
        call.meta = select_forwarded_meta(call.meta)
        call.proposal = proposed
        call.on_done = self._on_result
        self._pipeline.begin(call)

    def _on_result(self, call: Call, outcome: Outcome | None, error: InterlockError | None) -> None:
        """Handle the result of the pipeline. Usually the call is pending now."""
        proposed = call.proposal
        assert proposed is not None
        self._active_counts[proposed.participant] -= 1
        if not self._active_counts[proposed.participant]:
            del self._active_counts[proposed.participant]
        if error is not None:
            # An error with an approval id means that an identical call is pending, here or below.
            # The outcome of that call is announced separately.
            if call.is_dispatched and "confirmation_id" not in (error.data or {}):
                self._show_immediate_execution(call, proposed, None, error)
            else:
                self._report_rejection(proposed, cast("Caller", call.context), adapt_error(error))
            return
        assert outcome is not None
        approvals_below = read_child_approval(outcome.result)
        if approvals_below is not None:
            self._report_pending(call, proposed, approvals_below[0])
        elif call.approval_id:
            self._report_earlier_execution(call, proposed, outcome)
        else:
            self._show_immediate_execution(call, proposed, outcome, None)

    def _report_pending(self, call: Call, proposed: ProposedCall, approval: str) -> None:
        record = None if self._approvals is None else self._approvals.find(approval)
        state = PENDING if record is None else get_proposal_state(record)
        self._outcomes.store(proposed, state, approval)
        note = self._journal.note
        if record is not None and record.proposal == proposed:
            url = None if self._approvals is None else self._approvals.approval_url(approval)
            instruction = f"at {url}" if url else f"with `interlock approve {approval}`"
            text = (
                f"{record.tool} waits for approval until {format_utc(record.expires)}. An operator "
                f"approves it {instruction}. Approval: {approval}."
            )
            outcome_name = "proposed"
        elif record is not None and not record.at:
            pending_proposal = record.proposal
            earlier_proposal = (
                f" (proposal {pending_proposal.id[:100]})" if pending_proposal is not None else ""
            )
            text = (
                f"An identical call of {record.tool} is already pending, as approval "
                f"{approval}{earlier_proposal}. It is executed at most once."
            )
            outcome_name, note = "already_pending", self._journal.note_unsuccessful
        else:
            text = (
                f"{_tool_name(call)} waits for approval at a node below: approval {approval} there."
            )
            outcome_name = "pending_below"
        self.send_chat(proposed.participant, proposed.id, text)
        note(
            proposed,
            cast("Caller", call.context),
            outcome_name,
            f"{_tool_name(call)} approval:{approval}",
        )

    def _report_earlier_execution(
        self, call: Call, proposed: ProposedCall, outcome: Outcome
    ) -> None:
        """Report that the identical call was made before and was not repeated.

        The room is shown the response if it has not seen it.
        """
        self.send_chat(
            proposed.participant,
            proposed.id,
            f"An identical call of {_tool_name(call)} was already executed, for approval "
            f"{call.approval_id}. It was not repeated. To execute it again, propose it again.",
        )
        self._outcomes.store(proposed, EXECUTED, call.approval_id)
        detail = f"{_tool_name(call)} approval:{call.approval_id}"
        self._journal.note_unsuccessful(
            proposed, cast("Caller", call.context), "already_executed", detail
        )
        record = None if self._approvals is None else self._approvals.find(call.approval_id)
        if record is None or self._is_shown(record):
            return
        arguments, meta = bytes(call.arguments), encode_members(call.meta or {})
        fulfilment = self._send_request(
            proposed, call.name, arguments, meta, record.by, record.proof
        )
        if fulfilment is not None:
            self._send_response(fulfilment, proposed, call.name, outcome, None)

    def _is_shown(self, record: Approval) -> bool:
        """Return whether this room has seen the response, for another proposal."""
        earlier_proposal = record.proposal
        if earlier_proposal is None or earlier_proposal.topic != self._participant.topic:
            return False
        proposal_outcome = self._outcomes.get(earlier_proposal.id)
        return proposal_outcome is not None and proposal_outcome.is_shown

    def _report_rejection(
        self, proposed: ProposedCall, caller: Caller, error: InterlockError
    ) -> None:
        """Tell the proposer that its proposal was rejected before it became pending."""
        self._outcomes.remove(proposed.id)
        text = f"Your proposal was rejected: {error.message}"
        self.send_chat(proposed.participant, proposed.id, text, end_reason=error.failure.name)
        reason = f"{error.failure.name} {error.message}"
        self._journal.note_unsuccessful(proposed, caller, "rejected", reason)

    def _show_immediate_execution(
        self,
        call: Call,
        proposed: ProposedCall,
        outcome: Outcome | None,
        error: InterlockError | None,
    ) -> None:
        """Show the room a call that an accepted rule allowed without a decision of an operator."""
        arguments, meta = bytes(call.arguments), encode_members(call.meta or {})
        fulfilment = self._send_request(proposed, call.name, arguments, meta, *LEARNED_RULE)
        self._outcomes.store(proposed, EXECUTED)
        by = f"{_tool_name(call)} by {' '.join(LEARNED_RULE)}"
        self._journal.note(proposed, cast("Caller", call.context), "fulfilled", by)
        if fulfilment is not None:
            self._send_response(fulfilment, proposed, call.name, outcome, error)
        else:
            text = (
                f"{_tool_name(call)} was executed, because a rule allows it. The call is too long"
            )
            self.send_chat(proposed.participant, proposed.id, f"{text} for a topic.")

    # -- outcomes

    def _on_approval_change(self, record: Approval) -> None:
        """Handle a state change of any approval of the node. It only sends messages: the gate is in
        the middle of its work."""
        self._update_identical_proposals(record)
        self._outcomes.set_state(record.id, get_proposal_state(record))
        proposed = record.proposal
        if proposed is None or record.at or proposed.topic != self._participant.topic:
            return
        if record.state == DISPATCHING:
            # Without arguments it only repeats a request at a gate below, which the room has seen.
            if record.arguments:
                self._show_fulfilment(record, proposed)
        elif record.state in (DONE, LOST, VOID):
            self._on_end(record, proposed)
        elif record.state in (REFUSED, EXPIRED):
            self._on_no_execution(record, proposed)

    def _update_identical_proposals(self, record: Approval) -> None:
        """Tell further proposers of the identical call its outcome. The call is made once."""
        if record.at:
            return
        first = None if record.proposal is None else record.proposal.id
        proposals = [
            ProposedCall(self._participant.topic, id, by)
            for id, by in self._outcomes.find_by_approval(record.id)
            if id != first
        ]
        if record.state == DISPATCHING:
            if proposals and record.arguments:
                arguments, meta, by, proof = record.arguments, record.meta, record.by, record.proof
                requests = [
                    (
                        proposal,
                        self._send_request(proposal, record.name, arguments, meta, by, proof),
                    )
                    for proposal in proposals
                ]
                self._identical_proposals[record.id] = [
                    (proposal, fulfilment)
                    for proposal, fulfilment in requests
                    if fulfilment is not None
                ]
        elif get_proposal_state(record) == EXECUTED:
            for proposal, fulfilment in self._identical_proposals.pop(record.id, ()):
                self._send_response(fulfilment, proposal, record.name, *read_outcome(record))
        elif get_proposal_state(record) == NOT_EXECUTED:
            self._identical_proposals.pop(record.id, None)
            for proposal in proposals:
                self._tell_not_executed(record, proposal)

    def _show_fulfilment(self, record: Approval, proposed: ProposedCall) -> None:
        fulfilment = self._send_request(
            proposed, record.name, record.arguments, record.meta, record.by, record.proof
        )
        if fulfilment is not None:
            self._fulfilments[record.id] = fulfilment
        self._record(record, proposed, "fulfilled", f"by {record.by} ({record.proof})")

    def _on_end(self, record: Approval, proposed: ProposedCall) -> None:
        if record.below:
            # Not a result: the gate of a node below requires another approval.
            text = (
                f"{record.tool} now waits for approval at a node below: approval {record.below} "
                "there."
            )
            self.send_chat(proposed.participant, proposed.id, text)
            self._record(record, proposed, "pending_below", f"below:{record.below}")
            return
        fulfilment = self._fulfilments.pop(record.id, None)
        if fulfilment is not None:
            self._send_response(fulfilment, proposed, record.name, *read_outcome(record))
            self._record(record, proposed, record.state, f"{record.outcome}")
        elif record.state == VOID:
            self._on_no_execution(record, proposed)
        else:
            # The room was not open when the call was made, so it has seen no request.
            text = f"{record.tool} was approved by {record.by}. The approval record has the outcome"
            self.send_chat(
                proposed.participant, proposed.id, f"{text} ({record.outcome or record.state})."
            )
            self._record(record, proposed, record.state, f"{record.outcome}")

    def _on_no_execution(self, record: Approval, proposed: ProposedCall) -> None:
        self._tell_not_executed(record, proposed)
        self._record(record, proposed, record.state, f"by {record.by or 'nobody'}")

    def _tell_not_executed(self, record: Approval, proposed: ProposedCall) -> None:
        failure, reason = CONFIRMATION_EXPIRED, record.note
        if record.state == REFUSED:
            failure = APPROVAL_REFUSED
            reason = f"{record.by} rejected it" + (f": {record.note}" if record.note else ".")
        text = f"{record.tool} was not executed: {reason}"
        self.send_chat(proposed.participant, proposed.id, text, end_reason=failure.name)

    # -- messages

    def _send_request(
        self, proposed: ProposedCall, name: str, arguments: bytes, meta: bytes, by: str, proof: str
    ) -> tuple[str, bytes] | None:
        """Send the fulfilment to the room. Returns None if it could not be sent."""
        self._last_number += 1
        id = jsonrpc.encode_value(f"fulfilment-{self._last_number}")
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
        envelope_id = self._send(kind, payload, [self._participant.id], proposed.id)
        return None if envelope_id is None else (envelope_id, id)

    def _send_response(
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
                result = convert_result(
                    outcome, client, self._server_info.server_info, mcp.TOOLS_CALL
                )
                payload = jsonrpc.result_response(id, result)
            except InterlockError as conversion_error:
                error = conversion_error
        if error is not None:
            payload = write_error(id, error, client)[1]
        kind, to = (
            make_response_kind(mcp.TOOLS_CALL, name),
            [self._participant.id, proposed.participant],
        )
        if self._send(kind, payload, to, envelope) is None:
            self._send(kind, jsonrpc.result_response(id, _TOO_LONG_RESULT), to, envelope)
        self._outcomes.mark_shown(proposed.id)

    def send_chat(
        self, to: str, correlation_id: str | None, text: str, *, end_reason: str = ""
    ) -> None:
        """Send a chat message to one participant.

        Args:
            correlation_id: the id of the message that it is about, if any.
            end_reason: the name of the error with which the proposal ended.
        """
        self._send(
            kinds.CHAT,
            write_chat_payload(text[:_MAX_CHAT_LENGTH], end_reason=end_reason),
            [to],
            correlation_id,
        )

    def _send(
        self, kind: str, payload: bytes, to: list[str], correlation_id: str | None
    ) -> str | None:
        """Send a message. Returns None if it is too long or the node has left the room."""
        try:
            return self._participant.send(kind, payload, to, correlation_id)
        except InterlockError as error:
            if error.failure is not PAYLOAD_TOO_LARGE:
                _log.info(
                    "topic %s: cannot send a message about a proposal: %s",
                    self._participant.topic,
                    error.message,
                )
            return None

    def _record(
        self, record: Approval, proposed: ProposedCall, outcome_name: str, detail: str
    ) -> None:
        """Record the outcome of a proposal in the journal, whether or not the room is recorded."""
        text = f"{record.tool} approval:{record.id} {detail}"
        self._journal.note(proposed, record.caller, outcome_name, text)


def _tool_name(call: Call) -> str:
    return call.name if call.route is None else call.route.canonical
