"""Gates of the nodes below: which approval is whose, and the way of a proof down to it.

A node below that wants a proof answers `confirmation_required`, which passes up as it is. Here is
remembered from whom it came. A proof for an id that nobody remembers is offered to every node below
in turn: each checks it with its own anchors, and none can answer for another.
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Protocol

from interlock.call import Outcome, UpstreamAnsweredError
from interlock.errors import (
    METHOD_NOT_FOUND,
    TOO_BUSY,
    UNKNOWN_APPROVAL,
    InterlockError,
    ProtocolError,
    by_ax,
)
from interlock.protocol.ax import CONFIRM
from interlock.protocol.jsonrpc import decode_value

MOST_REMEMBERED: Final = 10_000
MOST_ASKING: Final = 32
"""So many proofs may be on their way down at once."""
PATIENCE: Final = 600.0
_ID: Final = re.compile(r"[A-Za-z0-9_-]{16,128}")


class Child(Protocol):
    """A node below, as its peer is known here."""

    def request(self, method: str, params: dict[str, Any]) -> Awaitable[Outcome]: ...


class Below:
    """Takes proofs down."""

    def __init__(self, children: Callable[[], Mapping[str, Child]]) -> None:
        """`children`: the nodes that are registered here now, by the keys of their upstreams."""
        self._children = children
        self._known: OrderedDict[str, str] = OrderedDict()
        self._asking = 0

    def remember(self, id: str, upstream: str, until: float) -> None:
        """An approval with this id came from there."""
        self._known[id] = upstream
        self._known.move_to_end(id)
        if len(self._known) > MOST_REMEMBERED:
            self._known.popitem(last=False)

    async def confirm(self, id: str, proof: str) -> Outcome:
        """Give a proof to the node whose approval it is for. Raises InterlockError."""
        children = dict(self._children())
        known = self._known.get(id)
        if known is not None and known in children:
            # First, and not alone: anybody below can claim an id.
            children = {known: children.pop(known), **children}
        if not _ID.fullmatch(id) or not children:
            raise unknown(id)
        if self._asking >= MOST_ASKING:
            raise InterlockError(TOO_BUSY, "Too many proofs are on their way down. Try again.")
        self._asking += 1
        try:
            for key, child in children.items():
                outcome = await _ask(child, id, proof)
                if outcome is not None:
                    self.remember(id, key, 0.0)
                    return outcome
        finally:
            self._asking -= 1
        raise unknown(id)


async def _ask(child: Child, id: str, proof: str) -> Outcome | None:
    """None: it knows no such approval. Raises InterlockError."""
    try:
        async with asyncio.timeout(PATIENCE):
            return await child.request(CONFIRM, {"confirmation_id": id, "proof": proof})
    except TimeoutError:
        raise InterlockError(
            UNKNOWN_APPROVAL,
            "The node that holds the call did not answer in time. Ask it what became of it.",
        ) from None
    except UpstreamAnsweredError as answered:
        row = by_ax(answered.code, answered.message)
        if row is UNKNOWN_APPROVAL or answered.code == METHOD_NOT_FOUND.code:
            return None
        if row is None:
            raise
        data = _data(answered)
        detail = data.pop("detail", answered.message)
        raise InterlockError(row, str(detail), data) from None


def _data(error: UpstreamAnsweredError) -> dict[str, Any]:
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
