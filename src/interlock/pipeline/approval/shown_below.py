"""Approvals of nodes below, as they are shown here: what such a node said of a call that it holds.

Only said: the node below decides what stands in it, and whether a proof counts. So it is marked
with where it comes from (`at`), it is never taken for an approval of this node, and it is kept in
memory only, a limited number of each node's, until it expires.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from interlock.call import Caller, Client
from interlock.pipeline.approval.answer import seconds_of
from interlock.pipeline.approval.record import CONFIRM, Approval, canonical
from interlock.protocol.jsonrpc import decode_members
from interlock.protocol.mcp import LATEST_STATELESS, Era

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
    action: _Name = CONFIRM
    reason: _Text = ""
    meta: dict[str, Any] = {}


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


class ShownBelow:
    """All of them that still wait, as far as is known here."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, Approval] = OrderedDict()

    def add(self, approval: Approval) -> bool:
        """False: it is known, or it is another node's that came first."""
        if approval.id in self._known:
            return False
        own = [id for id, one in self._known.items() if one.upstream == approval.upstream]
        if len(own) >= MOST_OF_ONE:
            del self._known[own[0]]
        elif len(self._known) >= MOST:
            self._known.popitem(last=False)
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
