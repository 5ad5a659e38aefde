"""A request on its way to an upstream, until it is answered, given up, or lost.

Whoever sent it is told in the very moment in which it is settled: a caller's request by its way
back, without a trip through the event loop; the node's own requests can be awaited.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import UNSET, Raw

from interlock.core.call import (
    Call,
    ClientRequest,
    Outcome,
    RelayedError,
    UpstreamLostError,
    UpstreamResponseError,
)
from interlock.core.ports import ResponseHandler
from interlock.core.upstreams.secret_mask import mask_json
from interlock.errors import (
    APPROVAL_REFUSED,
    BUDGET_EXCEEDED,
    DEADLINE_EXCEEDED,
    DENIED,
    METHOD_NOT_FOUND,
    ROUTE_MISMATCH,
    TOOL_HELD,
    UNKNOWN_TOOL,
    UPSTREAM_UNAVAILABLE,
    Failure,
    InterlockError,
    ProtocolError,
    failure_for_ax,
)
from interlock.protocol.fast_structs import plain_stores
from interlock.protocol.jsonrpc import ErrorObject, decode_value
from interlock.protocol.mcp import META_PROGRESS_TOKEN, TOOLS_CALL

if TYPE_CHECKING:
    from interlock.core.upstreams.client import UpstreamClient

_RELAYED: Final = frozenset(
    {
        UPSTREAM_UNAVAILABLE,
        DEADLINE_EXCEEDED,
        BUDGET_EXCEEDED,
        ROUTE_MISMATCH,
        UNKNOWN_TOOL,
        TOOL_HELD,
        DENIED,
        APPROVAL_REFUSED,
    }
)
"""What can happen to a call below. Whatever else a subserver says (`unknown_session`,
`scope_denied`) would be taken for a word about the caller's standing here."""


@plain_stores
class PendingRequest(msgspec.Struct, eq=False):
    """One request. It is settled exactly once: what comes first counts."""

    peer: UpstreamClient
    id: int
    method: str
    call: Call | None = None
    back: ResponseHandler | None = None
    token: Raw | None = None
    """What the caller calls its progress. None: it wants to hear of none."""
    asks: dict[bytes, ClientRequest] | None = None
    """What the upstream wants to know before it answers, by its own ids."""
    is_open: bool = True
    outcome: Outcome | None = None
    error: InterlockError | None = None
    carrier: Any = None
    """What carries it, for the link that does."""
    future: asyncio.Future[None] | None = None
    dispatched_before: bool = False
    """Whether another request for its call had left before: then the call stays dispatched."""

    def succeed(self, outcome: Outcome) -> None:
        if not self.is_open:
            return
        call, back = self.call, self.back
        if call is not None and back is not None:
            self.is_open = False
            # It and its carrier point at each other: taken apart, they are freed at once.
            self.carrier = None
            if self.asks:
                self._withdraw("The request is answered.")
            back.on_result(call, outcome, None)
        else:
            self.outcome = outcome
            self._settled()

    def fail_with(self, error: InterlockError) -> None:
        if self.is_open:
            self.error = error
            self._settled()

    def fail(
        self, failure: Failure, message: str, *, sent: bool, status: int = 0, location: str = ""
    ) -> None:
        self.peer.pending.pop(self.id, None)
        call = self.call
        if not sent and call is not None and self.is_open and not self.dispatched_before:
            call.is_dispatched = False
        self.fail_with(
            UpstreamLostError(failure, message, was_sent=sent, status=status, location=location)
        )

    def expire(self) -> None:
        """The deadline has passed: tell the upstream to stop, and whoever waits that it is over."""
        if not self.is_open:
            return
        self.peer.abandon(self, "The deadline has passed.")
        self.fail_with(
            InterlockError(
                DEADLINE_EXCEEDED,
                f"{self.peer.label} did not answer {self.method} in time; it was told to stop.",
                {"upstream": self.peer.label},
            )
        )

    def abandon(self, reason: str) -> None:
        """Nobody waits any more: tell the upstream to stop."""
        if self.is_open:
            self.is_open = False
            if self.asks:
                self._withdraw(reason)
            self.peer.abandon(self, reason)

    def reassign(self, call: Call, back: ResponseHandler) -> None:
        self.call, self.back = call, back
        # Whoever takes it over takes over a request that has left.
        self.dispatched_before = True
        token = None
        if call.meta is not None and call.on_notification is not None:
            token = call.meta.get(META_PROGRESS_TOKEN)
        self.token = token

    def _withdraw(self, reason: str) -> None:
        """Nobody waits for what was asked on the way any more: both sides are told."""
        asks, self.asks = self.asks, None
        for id, ask in (asks or {}).items():
            self.peer.questions.take_back(id, ask, reason)

    def _settled(self) -> None:
        self.is_open = False
        if self.asks:
            self._withdraw("The request is answered.")
        call, back = self.call, self.back
        if call is not None and back is not None:
            self.call = self.back = None
            back.on_result(call, self.outcome, self.error)
        elif self.future is not None and not self.future.done():
            self.future.set_result(None)

    def __await__(self) -> Generator[Any, None, Outcome]:
        if self.is_open:
            self.future = asyncio.get_running_loop().create_future()
            try:
                yield from self.future
            except asyncio.CancelledError:
                self.abandon("Nobody waits any more.")
                raise
        if self.error is not None:
            raise self.error
        assert self.outcome is not None
        return self.outcome


def answered_error(exchange: PendingRequest, error: ErrorObject) -> InterlockError:
    """What an upstream answered instead of a result. On a link of MCP-AX it may be a word of our
    own table, said by the node that it happened to."""
    peer = exchange.peer
    if peer.speaks_ax:
        row = failure_for_ax(error.code, error.message)
        if row is None and exchange.method == TOOLS_CALL and error.code == METHOD_NOT_FOUND.code:
            # The draft has this number for a tool that is not there.
            row = UNKNOWN_TOOL
        if row in _RELAYED:
            data = _details(peer.mask, error)
            sentence = data.pop("detail", None)
            if not isinstance(sentence, str) or not sentence:
                sentence = error.message
            return RelayedError(row, peer.mask(sentence), data or None)
    raw = None if error.data is UNSET else mask_json(peer.mask, error.data)
    return UpstreamResponseError(error.code, peer.mask(error.message), raw)


def _details(mask: Callable[[str], str], error: ErrorObject) -> dict[str, Any]:
    if error.data is UNSET:
        return {}
    try:
        data = decode_value(mask_json(mask, error.data))
    except ProtocolError:
        return {}
    return data if isinstance(data, dict) else {}
