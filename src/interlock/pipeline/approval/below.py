"""Gates of the nodes below: which approval is whose, and the way of a proof down to it.

A node below that wants a proof answers `confirmation_required`, which passes up as it is. Here is
remembered from whom an id first came, and only that node is asked about it. Of an id that nobody
remembers every node below is first asked whether it knows it, without the proof; the one that does
is given the proof, and only its answer counts. When two say so, one of them lies: nobody is asked.
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Protocol

from interlock.call import Outcome, UpstreamAnsweredError
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
    by_ax,
)
from interlock.protocol.ax import CONFIRM
from interlock.protocol.jsonrpc import decode_value

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


class Child(Protocol):
    """A node below, as its peer is known here."""

    def request(self, method: str, params: dict[str, Any]) -> Awaitable[Outcome]: ...


class Answered(Outcome, frozen=True, gc=False):
    """What a node below answered to a proof, and which one that was."""

    upstream: str = ""


class Below:
    """Takes proofs down."""

    def __init__(
        self,
        children: Callable[[], Mapping[str, Child]],
        waits_at: Callable[[str], str | None] = lambda _: None,
    ) -> None:
        """`children`: the nodes that are registered here now, by the keys of their upstreams.
        `waits_at`: the upstream at whose gate a call waits that was let through here, by the id
        that it waits for there."""
        self._children = children
        self._waits_at = waits_at
        self._known: OrderedDict[str, str] = OrderedDict()
        self._asking = 0

    def remember(self, id: str, upstream: str, until: float) -> None:
        """An approval with this id came from there. Ids cannot be guessed: who says one after
        another did has it from there, and does not take it over."""
        self._known.setdefault(id, upstream)
        self._known.move_to_end(id)
        if len(self._known) > MOST_REMEMBERED:
            self._known.popitem(last=False)

    async def confirm(self, id: str, proof: str) -> Answered:
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
        return Answered(outcome.result, outcome.era, outcome.glance, key)


async def _who_knows(children: Mapping[str, Child], id: str) -> str:
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


async def _knows(child: Child, id: str) -> bool:
    """Whether a node says that it knows this approval. It is shown no proof."""
    try:
        async with asyncio.timeout(LOOKING):
            await child.request(CONFIRM, {"confirmation_id": id, "proof": NO_PROOF})
    except TimeoutError:
        return False
    except UpstreamAnsweredError as answered:
        return by_ax(answered.code, answered.message) in _KNOWS_IT
    except InterlockError:
        return False
    # No gate opens without a proof: what says so is none.
    return False


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
