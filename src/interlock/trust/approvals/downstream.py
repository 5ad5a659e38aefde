"""Gates of the nodes below: which approval is whose, and the way of a proof down to it.

A node below that wants a proof answers `confirmation_required`, which passes up as it is. Here is
remembered from whom an id first came, and only that node is asked about it. Of an id that nobody
remembers every node below is first asked whether it knows it, without the proof; the one that does
is given the proof, and only its answer counts. When two say so, one of them lies: nobody is asked.
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
from interlock.trust.approvals.record import DONE, Approval, ApprovalEntry, about, canonical
from interlock.trust.approvals.response import after_below, needed_below, seconds_of
from interlock.trust.approvals.store import WriteResult

MOST_REMEMBERED: Final = 10_000
MOST_ASKING: Final = 32
"""So many proofs may be on their way down at once."""
PATIENCE: Final = 600.0
LOOKING: Final = 10.0
"""So long a node may take to say whether it knows an approval."""
NO_PROOF: Final = "?"
"""What is shown in the place of a proof by somebody who only asks whether an approval is known: a
node that knows it says that this is no proof, or that it was decided."""
_KNOWS_IT: Final = (PROOF_INVALID, ALREADY_DECIDED, CONFIRMATION_EXPIRED)
_ID: Final = re.compile(r"[A-Za-z0-9_-]{16,128}")


class ChildPeer(Protocol):
    """A node below, as its peer is known here."""

    def request(self, method: str, params: dict[str, Any]) -> Awaitable[Outcome]: ...


class ProofOutcome(Outcome, frozen=True, gc=False):
    """What a node below answered to a proof, and which one that was."""

    upstream: str = ""


class ProofForwarder:
    """Forwards proofs to the child nodes where calls wait for them."""

    def __init__(
        self,
        children: Callable[[], Mapping[str, ChildPeer]],
        waits_at: Callable[[str], str | None] = lambda _: None,
    ) -> None:
        """`children`: the nodes that are registered here now, by the keys of their upstreams.
        `waits_at`: the upstream at whose gate a call waits that was let through here, by the id
        that it waits for there."""
        self._children = children
        self._waits_at = waits_at
        self._known: BoundedDict[str, str] = BoundedDict(MOST_REMEMBERED)
        self._asking = 0

    def remember(self, id: str, upstream: str, until: float) -> None:
        """An approval with this id came from there. Ids cannot be guessed: who says one after
        another did has it from there, and does not take it over."""
        self._known[id] = self._known.get(id, upstream)

    async def confirm(self, id: str, proof: str) -> ProofOutcome:
        """Give a proof to the node whose approval it is for. Raises InterlockError."""
        children = dict(self._children())
        if not _ID.fullmatch(id) or not children:
            raise unknown(id)
        if self._asking >= MOST_ASKING:
            raise InterlockError(TOO_BUSY, "Too many proofs are on their way down. Try again.")
        self._asking += 1
        try:
            key = self._waits_at(id) or self._known.get(id)
            if key is None:
                key = await _who_knows(children, id)
                if proof == NO_PROOF:
                    raise InterlockError(PROOF_INVALID, "It waits below, for a proof.")
            if key not in children:
                raise InterlockError(
                    UPSTREAM_UNAVAILABLE,
                    "The node that holds this call is not here now. Try again when it is back.",
                    {"upstream": key},
                )
            outcome = await _ask(children[key], id, proof)
        finally:
            self._asking -= 1
        if outcome is None:
            raise unknown(id)
        self.remember(id, key, 0.0)
        return ProofOutcome(outcome.result, outcome.era, outcome.summary, key)


async def _who_knows(children: Mapping[str, ChildPeer], id: str) -> str:
    """The one node below that knows this approval. Raises InterlockError."""
    said = await asyncio.gather(*(_knows(child, id) for child in children.values()))
    knowing = [key for key, knows in zip(children, said, strict=True) if knows]
    if not knowing:
        raise unknown(id)
    if len(knowing) > 1:
        raise InterlockError(
            UNKNOWN_APPROVAL,
            f"Several nodes below say that they know the approval {id!r}, and it can be one's "
            "only. Give the proof to the node itself that asks for it.",
            {"upstreams": sorted(knowing)},
        )
    return knowing[0]


async def _knows(child: ChildPeer, id: str) -> bool:
    """Whether a node says that it knows this approval. It is shown no proof."""
    try:
        async with asyncio.timeout(LOOKING):
            await child.request(CONFIRM, {"confirmation_id": id, "proof": NO_PROOF})
    except TimeoutError:
        return False
    except UpstreamResponseError as answered:
        return failure_for_ax(answered.code, answered.message) in _KNOWS_IT
    except InterlockError:
        return False
    # No gate opens without a proof: what says so is none.
    return False


async def _ask(child: ChildPeer, id: str, proof: str) -> Outcome | None:
    """None: it knows no such approval. Raises InterlockError."""
    try:
        async with asyncio.timeout(PATIENCE):
            return await child.request(CONFIRM, {"confirmation_id": id, "proof": proof})
    except TimeoutError:
        raise InterlockError(
            UNKNOWN_APPROVAL,
            "The node that holds the call did not answer in time. Ask it what became of it.",
        ) from None
    except UpstreamResponseError as answered:
        row = failure_for_ax(answered.code, answered.message)
        if row is UNKNOWN_APPROVAL or answered.code == METHOD_NOT_FOUND.code:
            return None
        if row is None:
            raise
        data = _data(answered)
        detail = data.pop("detail", answered.message)
        raise InterlockError(row, str(detail), data) from None


def _data(error: UpstreamResponseError) -> dict[str, Any]:
    try:
        data = decode_value(error.raw_data) if error.raw_data is not None else None
    except ProtocolError:
        data = None
    return data if isinstance(data, dict) else {}


def unknown(id: str) -> InterlockError:
    return InterlockError(
        UNKNOWN_APPROVAL,
        f"There is no approval {id[:80]!r} here: it has been decided long ago, or never was.",
    )


# -- Approvals of nodes below, as they are shown here: what such a node said of a call that it
# holds.
#
# Only said: the node below decides what stands in it, and whether a proof counts. So it is marked
# with where it comes from (`at`), it is never taken for an approval of this node, and it is kept
# in memory only, a limited number of each node's, until it expires.

MOST_OF_ONE: Final = 100
"""So many of one node below."""
MOST: Final = 500
_MOST_ARGUMENTS: Final = 32 * 1024
_Text = Annotated[str, Meta(max_length=1_000)]
_Name = Annotated[str, Meta(min_length=1, max_length=200)]


class _Said(msgspec.Struct, frozen=True):
    """What of the answer of a node below is shown."""

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


def said_below(
    result: bytes, *, upstream: str, tool: str, caller: Caller, effect: str, now: float
) -> Approval | None:
    """What a node below holds, by its answer. `tool`: as it is called here; the others: of the call
    that was sent. None: that cannot be shown."""
    try:
        raw = decode_members(result)["structuredContent"]
        said = msgspec.json.decode(raw, type=_Said, strict=True)
        shown, capability = canonical(said.arguments), canonical(said.capability)
        meta = canonical(said.meta) if said.meta else b""
    except (KeyError, ValueError, RecursionError, msgspec.MsgspecError):
        return None
    expires = seconds_of(said.expires_at)
    if expires <= now or max(len(shown), len(capability), len(meta)) > _MOST_ARGUMENTS:
        return None
    return Approval(
        id=said.confirmation_id,
        audience=said.aud,
        nonce=said.nonce,
        caller=caller,
        client=Client(Era.STATELESS, LATEST_STATELESS),
        face="",
        name=said.tool,
        tool=said.tool,
        upstream=upstream,
        route=tuple(said.route),
        arguments=b"",
        shown=shown,
        meta_shown=meta,
        masked=tuple(said.masked),
        capability=capability,
        effect=effect,
        description="",
        digest=said.args_sha256,
        contract="",
        policy="",
        rule="",
        action=said.action,
        reason=said.reason,
        created=now,
        expires=expires,
        at=tool.partition(".")[0],
    )


class ChildApprovals:
    """The pending approvals of child nodes, as far as they are known here."""

    def __init__(self) -> None:
        self._known: BoundedDict[str, Approval] = BoundedDict(MOST)

    def add(self, approval: Approval) -> bool:
        """False: it is known, or it is another node's that came first."""
        if approval.id in self._known:
            return False
        own = [id for id, one in self._known.items() if one.upstream == approval.upstream]
        if len(own) >= MOST_OF_ONE:
            del self._known[own[0]]
        self._known[approval.id] = approval
        return True

    def find(self, id: str, now: float) -> Approval | None:
        found = self._known.get(id)
        return found if found is not None and now < found.expires else None

    def pending(self, now: float) -> list[Approval]:
        for id in [id for id, one in self._known.items() if now >= one.expires]:
            del self._known[id]
        return list(self._known.values())

    def over(self, id: str) -> Approval | None:
        """It does not wait any more."""
        return self._known.pop(id, None)


# -- Calls that left this node and were held by a gate below: whom that gate is known to, what it
# said of them, and what a call came to in the end that was let through here and there.


class ChildPendingCalls:
    """The calls of this node that wait at the gates of child nodes."""

    def __init__(
        self,
        inbox: ApprovalInbox,
        *,
        remember: Callable[[str, str, float], None],
        show: Callable[[Approval], None],
        on_passed: Callable[[str], None],
    ) -> None:
        """`remember`: told which approval of which upstream a call came back with, and until when
        that holds. `show`: told what that node said of it. `on_passed`: told of an approval below
        for which a call does not wait any more."""
        self._inbox = inbox
        self._remember = remember
        self._show = show
        self._on_passed = on_passed

    def note(self, call: Call, outcome: Outcome) -> None:
        """A node below may have a gate of its own, and its result say so. It goes up as it is."""
        needed = needed_below(outcome.result)
        if needed is not None:
            self._remember(needed[0], call.upstream, needed[1])
            assert call.caller is not None
            tool, _ = about(call.name, call.route)
            self._tell(outcome.result, call.upstream, tool, call.caller, call.effect)

    def settle(self, entry: ApprovalEntry, done: Approval, now: float) -> Approval:
        """An approved call was made, and is `done` by what it was answered. Returns what it came
        to: more than that, where the gate below was passed meanwhile."""
        record = entry.record
        heard, entry.heard_below = entry.heard_below, None
        if heard is not None and heard[0] == done.below:
            # It was let through there just after it was asked about.
            done = after_below(record, heard[1], now)
        if record.below and record.below != done.below:
            self._on_passed(record.below)
        if done.below:
            self._waits(done)
        return done

    async def answered(self, id: str, outcome: ProofOutcome) -> None:
        """A gate of a node below was passed: what the call came to now is the outcome of whoever
        let it through here. Raises InterlockError when another node answered than the one at whose
        gate the call waits."""
        loop = asyncio.get_running_loop()
        waiting = [one for one in self._inbox if one.record.below == id]
        if any(one.record.upstream != outcome.upstream for one in waiting):
            raise unknown(id)
        for entry in waiting:
            record = entry.record
            if record.below == id and (entry.call is not None or entry.writing):
                entry.heard_below = (id, outcome)
            elif record.below == id and record.state == DONE:
                changed = after_below(record, outcome, self._inbox.wall_clock())
                if changed.below:
                    self._waits(changed)
                self._inbox.index(entry)
                written: asyncio.Future[WriteResult] = loop.create_future()
                self._inbox.step(entry, changed, written.set_result)
                # Not given up by a confirmer who hangs up.
                await asyncio.shield(written)

    def _waits(self, record: Approval) -> None:
        """The call of this record was stopped by another gate, below."""
        self._inbox.waits_below(record)
        self._remember(record.below, record.upstream, record.below_until)
        self._tell(record.result, record.upstream, record.tool, record.caller, record.effect)

    def _tell(self, result: bytes, upstream: str, tool: str, caller: Caller, effect: str) -> None:
        now = self._inbox.wall_clock()
        said = said_below(
            result, upstream=upstream, tool=tool, caller=caller, effect=effect, now=now
        )
        if said is not None:
            self._show(said)
