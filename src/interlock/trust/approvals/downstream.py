"""Approvals of child nodes: where each one is pending, and how proofs reach it.

A child node that requires a proof responds `confirmation_required`, which passes up unchanged. This
node remembers which child first sent an approval id, and asks only that child about it. For an
unknown id it first asks every child whether it knows the id, without the proof. The child that
knows it gets the proof, and only its response counts. If two children claim the id, one of them
lies, so the proof is sent to neither.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Final, Protocol

import msgspec
from msgspec import Meta

from interlock.core.call import Call, Caller, Client, Outcome, UpstreamResponseError
from interlock.errors import (
    ALREADY_DECIDED,
    CONFIRMATION_EXPIRED,
    METHOD_NOT_FOUND,
    PROOF_INVALID,
    TOO_BUSY,
    UNKNOWN_APPROVAL,
    UPSTREAM_UNAVAILABLE,
    InterlockError,
    ProtocolError,
    failure_for_ax,
)
from interlock.primitives.bounded_dict import BoundedDict
from interlock.protocol.jsonrpc import decode_members, decode_value
from interlock.protocol.mcp import LATEST_STATELESS, Era
from interlock.protocol.mcpax import CONFIRM
from interlock.trust.approvals.gate import ApprovalInbox
from interlock.trust.approvals.record import CONFIRM as CONFIRM_ACTION
from interlock.trust.approvals.record import (
    DONE,
    Approval,
    ApprovalEntry,
    encode_canonical,
    identify_tool,
)
from interlock.trust.approvals.response import parse_time, read_child_approval, with_child_outcome
from interlock.trust.approvals.store import WriteResult

MAX_KNOWN_APPROVALS: Final = 10_000
MAX_FORWARDED_PROOFS: Final = 32
"""The maximum number of proofs that are forwarded at the same time."""
CONFIRM_TIMEOUT_SECONDS: Final = 600.0
LOOKUP_TIMEOUT_SECONDS: Final = 10.0
"""The time that a child may take to say whether it knows an approval."""
NO_PROOF: Final = "?"
"""Sent instead of a proof to ask whether an approval is known. A node that knows the approval
responds that this is no valid proof, or that the call was decided."""
_KNOWN_FAILURES: Final = (PROOF_INVALID, ALREADY_DECIDED, CONFIRMATION_EXPIRED)
_ID: Final = re.compile(r"[A-Za-z0-9_-]{16,128}")


class ChildPeer(Protocol):
    """The connection to a child node."""

    def request(self, method: str, params: dict[str, Any]) -> Awaitable[Outcome]: ...


class ProofOutcome(Outcome, frozen=True, gc=False):
    """The response of a child node to a proof, and the upstream of that node."""

    upstream: str = ""


class ProofForwarder:
    """Forwards proofs to the child nodes that hold the calls."""

    def __init__(
        self,
        children: Callable[[], Mapping[str, ChildPeer]],
        find_upstream: Callable[[str], str | None] = lambda _: None,
    ) -> None:
        """Args:
        children: returns the registered child nodes, by the keys of their upstreams.
        find_upstream: returns the upstream at whose gate a call of this node waits, by the id of
            the approval there.
        """
        self._children = children
        self._find_upstream = find_upstream
        self._upstreams: BoundedDict[str, str] = BoundedDict(MAX_KNOWN_APPROVALS)
        """The upstream that first sent an approval id."""
        self._running = 0

    def remember(self, id: str, upstream: str, until: float) -> None:
        """Remember that an approval id came from this upstream. Ids cannot be guessed: a second
        upstream that sends the same id has it from the first, and does not take it over."""
        self._upstreams[id] = self._upstreams.get(id, upstream)

    async def confirm(self, id: str, proof: str) -> ProofOutcome:
        """Send a proof to the child node that holds the approval. Raises InterlockError."""
        children = dict(self._children())
        if not _ID.fullmatch(id) or not children:
            raise unknown_approval(id)
        if self._running >= MAX_FORWARDED_PROOFS:
            raise InterlockError(
                TOO_BUSY, "Too many proofs are being forwarded to child nodes. Try again later."
            )
        self._running += 1
        try:
            key = self._find_upstream(id) or self._upstreams.get(id)
            if key is None:
                key = await _find_child(children, id)
                if proof == NO_PROOF:
                    raise InterlockError(
                        PROOF_INVALID, "The call is pending at a child node. Send a proof."
                    )
            if key not in children:
                raise InterlockError(
                    UPSTREAM_UNAVAILABLE,
                    "The node where this call is pending is not connected. Try again later.",
                    {"upstream": key},
                )
            outcome = await _send_proof(children[key], id, proof)
        finally:
            self._running -= 1
        if outcome is None:
            raise unknown_approval(id)
        self.remember(id, key, 0.0)
        return ProofOutcome(outcome.result, outcome.era, outcome.summary, key)


async def _find_child(children: Mapping[str, ChildPeer], id: str) -> str:
    """Return the key of the one child node that knows an approval. Raises InterlockError."""
    responses = await asyncio.gather(*(_knows(child, id) for child in children.values()))
    matches = [key for key, knows in zip(children, responses, strict=True) if knows]
    if not matches:
        raise unknown_approval(id)
    if len(matches) > 1:
        raise InterlockError(
            UNKNOWN_APPROVAL,
            f"Several child nodes claim the approval {id!r}, but it can belong to one only. Send "
            "the proof directly to the node where the call is pending.",
            {"upstreams": sorted(matches)},
        )
    return matches[0]


async def _knows(child: ChildPeer, id: str) -> bool:
    """Return whether a child says that it knows this approval. The child gets no proof."""
    try:
        async with asyncio.timeout(LOOKUP_TIMEOUT_SECONDS):
            await child.request(CONFIRM, {"confirmation_id": id, "proof": NO_PROOF})
    except TimeoutError:
        return False
    except UpstreamResponseError as error:
        return failure_for_ax(error.code, error.message) in _KNOWN_FAILURES
    except InterlockError:
        return False
    # No gate passes a call without a proof, so this response is no sign of knowledge.
    return False


async def _send_proof(child: ChildPeer, id: str, proof: str) -> Outcome | None:
    """Send a proof to a child. None: the child does not know the approval. Raises
    InterlockError."""
    try:
        async with asyncio.timeout(CONFIRM_TIMEOUT_SECONDS):
            return await child.request(CONFIRM, {"confirmation_id": id, "proof": proof})
    except TimeoutError:
        raise InterlockError(
            UNKNOWN_APPROVAL,
            "The node where the call is pending did not respond in time. Get the outcome there.",
        ) from None
    except UpstreamResponseError as error:
        row = failure_for_ax(error.code, error.message)
        if row is UNKNOWN_APPROVAL or error.code == METHOD_NOT_FOUND.code:
            return None
        if row is None:
            raise
        data = _read_data(error)
        detail = data.pop("detail", error.message)
        raise InterlockError(row, str(detail), data) from None


def _read_data(error: UpstreamResponseError) -> dict[str, Any]:
    try:
        data = decode_value(error.raw_data) if error.raw_data is not None else None
    except ProtocolError:
        data = None
    return data if isinstance(data, dict) else {}


def unknown_approval(id: str) -> InterlockError:
    return InterlockError(
        UNKNOWN_APPROVAL,
        f"No approval {id[:80]!r} is known. It was decided long ago, or the id is invalid. "
        "List the approvals: `interlock approvals`.",
    )


# -- Approvals that child nodes reported.
#
# They are reports only: the child decides what they contain, and whether a proof counts. So they
# are marked with their origin (`at`), are never taken for approvals of this node, and are stored in
# memory only, a limited number for each child, until they expire.

MAX_REPORTS_PER_CHILD: Final = 100
MAX_REPORTS: Final = 500
_MAX_ARGUMENT_BYTES: Final = 32 * 1024
_Text = Annotated[str, Meta(max_length=1_000)]
_Name = Annotated[str, Meta(min_length=1, max_length=200)]


class _Report(msgspec.Struct, frozen=True):
    """The members of a child's `confirmation_required` that are shown."""

    confirmation_id: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{16,128}$")]
    tool: _Text
    arguments: dict[str, Any]
    expires_at: _Name
    args_sha256: _Name
    aud: _Name
    nonce: Annotated[str, Meta(max_length=200)] = ""
    capability: dict[str, Any] = {}
    route: Annotated[list[_Text], Meta(max_length=64)] = []
    action: _Name = CONFIRM_ACTION
    reason: _Text = ""
    meta: dict[str, Any] = {}
    masked: Annotated[list[_Text], Meta(max_length=1_000)] = []


def read_report(
    result: bytes, *, upstream: str, tool: str, caller: Caller, effect: str, now: float
) -> Approval | None:
    """Return the approval that a child node reports in a result. None: it cannot be shown.

    Args:
        tool: the name of the tool here.
        caller: the caller of the call that was sent, as `effect` is its effect.
    """
    try:
        raw = decode_members(result)["structuredContent"]
        report = msgspec.json.decode(raw, type=_Report, strict=True)
        arguments, capability = (
            encode_canonical(report.arguments),
            encode_canonical(report.capability),
        )
        meta = encode_canonical(report.meta) if report.meta else b""
    except (KeyError, ValueError, RecursionError, msgspec.MsgspecError):
        return None
    expires = parse_time(report.expires_at)
    if expires <= now or max(len(arguments), len(capability), len(meta)) > _MAX_ARGUMENT_BYTES:
        return None
    return Approval(
        id=report.confirmation_id,
        audience=report.aud,
        nonce=report.nonce,
        caller=caller,
        client=Client(Era.STATELESS, LATEST_STATELESS),
        face="",
        name=report.tool,
        tool=report.tool,
        upstream=upstream,
        route=tuple(report.route),
        arguments=b"",
        shown=arguments,
        meta_shown=meta,
        masked=tuple(report.masked),
        capability=capability,
        effect=effect,
        description="",
        digest=report.args_sha256,
        contract="",
        policy="",
        rule="",
        action=report.action,
        reason=report.reason,
        created=now,
        expires=expires,
        at=tool.partition(".")[0],
    )


class ChildApprovals:
    """The pending approvals that child nodes reported."""

    def __init__(self) -> None:
        self._reports: BoundedDict[str, Approval] = BoundedDict(MAX_REPORTS)

    def add(self, approval: Approval) -> bool:
        """Add an approval. False: the id is known already, possibly from another child."""
        if approval.id in self._reports:
            return False
        approvals_of_child = [
            id for id, report in self._reports.items() if report.upstream == approval.upstream
        ]
        if len(approvals_of_child) >= MAX_REPORTS_PER_CHILD:
            del self._reports[approvals_of_child[0]]
        self._reports[approval.id] = approval
        return True

    def find(self, id: str, now: float) -> Approval | None:
        report = self._reports.get(id)
        return report if report is not None and now < report.expires else None

    def pending(self, now: float) -> list[Approval]:
        expired = [id for id, report in self._reports.items() if now >= report.expires]
        for id in expired:
            del self._reports[id]
        return list(self._reports.values())

    def remove(self, id: str) -> Approval | None:
        """Remove and return an approval that is no longer pending. None: it is unknown."""
        return self._reports.pop(id, None)


# -- Calls of this node that a child gate holds: which child, its report, and the final outcome of a
# call that was approved here and there.


class ChildPendingCalls:
    """The calls of this node that are pending at the gates of child nodes."""

    def __init__(
        self,
        inbox: ApprovalInbox,
        *,
        remember: Callable[[str, str, float], None],
        show: Callable[[Approval], None],
        on_passed: Callable[[str], None],
    ) -> None:
        """Args:
        remember: stores which approval of which upstream a call came back with, and until when the
            approval is valid.
        show: shows the report of the child node.
        on_passed: called with an approval of a child for which a call no longer waits.
        """
        self._inbox = inbox
        self._remember = remember
        self._show = show
        self._on_passed = on_passed

    def note(self, call: Call, outcome: Outcome) -> None:
        """Record that a child node may hold a call, by its result. The result passes up
        unchanged."""
        needed = read_child_approval(outcome.result)
        if needed is not None:
            self._remember(needed[0], call.upstream, needed[1])
            assert call.caller is not None
            tool, _ = identify_tool(call.name, call.route)
            self._show_report(outcome.result, call.upstream, tool, call.caller, call.effect)

    def apply_child_outcome(
        self, entry: ApprovalEntry, ended_record: Approval, now: float
    ) -> Approval:
        """Return the final record of an approved call.

        It differs from `ended_record` if the child gate approved the call meanwhile.

        Args:
            ended_record: the record with the response to the call.
        """
        record = entry.record
        child_outcome, entry.child_outcome = entry.child_outcome, None
        if child_outcome is not None and child_outcome[0] == ended_record.below:
            # The child approved the call just after this node asked about it.
            ended_record = with_child_outcome(record, child_outcome[1], now)
        if record.below and record.below != ended_record.below:
            self._on_passed(record.below)
        if ended_record.below:
            self._on_pending(ended_record)
        return ended_record

    async def on_child_outcome(self, id: str, outcome: ProofOutcome) -> None:
        """Use the outcome of a call that a child gate approved as the outcome of the approval here.

        Raises InterlockError if it is from another node than the one where the call is pending.
        """
        loop = asyncio.get_running_loop()
        entries = [entry for entry in self._inbox if entry.record.below == id]
        if any(entry.record.upstream != outcome.upstream for entry in entries):
            raise unknown_approval(id)
        for entry in entries:
            record = entry.record
            if record.below == id and (entry.call is not None or entry.writing):
                entry.child_outcome = (id, outcome)
            elif record.below == id and record.state == DONE:
                updated_record = with_child_outcome(record, outcome, self._inbox.wall_clock())
                if updated_record.below:
                    self._on_pending(updated_record)
                self._inbox.index(entry)
                saved: asyncio.Future[WriteResult] = loop.create_future()
                self._inbox.save(entry, updated_record, saved.set_result)
                # A client that disconnects must not cancel this.
                await asyncio.shield(saved)

    def _on_pending(self, record: Approval) -> None:
        """Record that the call of this approval is pending at a child node."""
        self._inbox.index_child_id(record)
        self._remember(record.below, record.upstream, record.below_until)
        self._show_report(record.result, record.upstream, record.tool, record.caller, record.effect)

    def _show_report(
        self, result: bytes, upstream: str, tool: str, caller: Caller, effect: str
    ) -> None:
        now = self._inbox.wall_clock()
        report = read_report(
            result, upstream=upstream, tool=tool, caller=caller, effect=effect, now=now
        )
        if report is not None:
            self._show(report)
