"""A request that was sent to an upstream, until it is completed, abandoned or lost.

The completion of a caller's request is reported immediately to its ResponseHandler, without the
event loop. Requests of the node itself can be awaited.
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

_RELAYED_FAILURES: Final = frozenset(
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
"""Failures of a subserver that are relayed to the caller. Others, such as `unknown_session` or
`scope_denied`, would be mistaken for statements about the caller's session or rights here."""


@plain_stores
class PendingRequest(msgspec.Struct, eq=False):
    """A pending request. Its first outcome or error completes it; later ones are ignored."""

    upstream_client: UpstreamClient
    id: int
    method: str
    call: Call | None = None
    handler: ResponseHandler | None = None
    progress_token: Raw | None = None
    """The caller's progress token. None: the caller wants no progress."""
    client_requests: dict[bytes, ClientRequest] | None = None
    """Client requests that the upstream made for this request, by the upstream's ids."""
    is_open: bool = True
    outcome: Outcome | None = None
    error: InterlockError | None = None
    carrier: Any = None
    """The object of the transport that carries the request."""
    future: asyncio.Future[None] | None = None
    dispatched_before: bool = False
    """True if an earlier request for the same call was sent: the call stays `dispatched`."""

    def succeed(self, outcome: Outcome) -> None:
        if not self.is_open:
            return
        call, handler = self.call, self.handler
        if call is not None and handler is not None:
            self.is_open = False
            # The request and its carrier refer to each other: cutting the cycle frees both at once.
            self.carrier = None
            if self.client_requests:
                self._withdraw_client_requests("The request has a response.")
            handler.on_result(call, outcome, None)
        else:
            self.outcome = outcome
            self._finish()

    def fail_with(self, error: InterlockError) -> None:
        if self.is_open:
            self.error = error
            self._finish()

    def fail(
        self, failure: Failure, message: str, *, was_sent: bool, status: int = 0, location: str = ""
    ) -> None:
        self.upstream_client.pending.pop(self.id, None)
        call = self.call
        if not was_sent and call is not None and self.is_open and not self.dispatched_before:
            call.is_dispatched = False
        self.fail_with(
            UpstreamLostError(failure, message, was_sent=was_sent, status=status, location=location)
        )

    def expire(self) -> None:
        """Fail the request because its deadline passed, and cancel it at the upstream."""
        if not self.is_open:
            return
        self.upstream_client.abandon(self, "The deadline passed.")
        self.fail_with(
            InterlockError(
                DEADLINE_EXCEEDED,
                f"{self.upstream_client.label} did not respond to {self.method} in time. The "
                "request was "
                "cancelled.",
                {"upstream": self.upstream_client.label},
            )
        )

    def abandon(self, reason: str) -> None:
        """Cancel the request: its result is no longer needed."""
        if self.is_open:
            self.is_open = False
            if self.client_requests:
                self._withdraw_client_requests(reason)
            self.upstream_client.abandon(self, reason)

    def reassign(self, call: Call, handler: ResponseHandler) -> None:
        self.call, self.handler = call, handler
        # The new owner takes over a request that was already sent.
        self.dispatched_before = True
        progress_token = None
        if call.meta is not None and call.on_notification is not None:
            progress_token = call.meta.get(META_PROGRESS_TOKEN)
        self.progress_token = progress_token

    def _withdraw_client_requests(self, reason: str) -> None:
        """Withdraw the client requests of this request."""
        client_requests, self.client_requests = self.client_requests, None
        for id, client_request in (client_requests or {}).items():
            self.upstream_client.client_requests.withdraw(id, client_request, reason)

    def _finish(self) -> None:
        self.is_open = False
        if self.client_requests:
            self._withdraw_client_requests("The request has a response.")
        call, handler = self.call, self.handler
        if call is not None and handler is not None:
            self.call = self.handler = None
            handler.on_result(call, self.outcome, self.error)
        elif self.future is not None and not self.future.done():
            self.future.set_result(None)

    def __await__(self) -> Generator[Any, None, Outcome]:
        if self.is_open:
            self.future = asyncio.get_running_loop().create_future()
            try:
                yield from self.future
            except asyncio.CancelledError:
                self.abandon("The result is no longer needed.")
                raise
        if self.error is not None:
            raise self.error
        assert self.outcome is not None
        return self.outcome


def error_from_response(request: PendingRequest, error: ErrorObject) -> InterlockError:
    """Return the error for an error response of an upstream.

    On an MCP-AX connection it may be a failure of our own table, reported by the node where it
    happened.
    """
    upstream_client = request.upstream_client
    if upstream_client.speaks_ax:
        failure = failure_for_ax(error.code, error.message)
        if failure is None and request.method == TOOLS_CALL and error.code == METHOD_NOT_FOUND.code:
            # MCP-AX uses this code for an unknown tool.
            failure = UNKNOWN_TOOL
        if failure in _RELAYED_FAILURES:
            data = _details(upstream_client.mask, error)
            message = data.pop("detail", None)
            if not isinstance(message, str) or not message:
                message = error.message
            return RelayedError(failure, upstream_client.mask(message), data or None)
    raw = None if error.data is UNSET else mask_json(upstream_client.mask, error.data)
    return UpstreamResponseError(error.code, upstream_client.mask(error.message), raw)


def _details(mask: Callable[[str], str], error: ErrorObject) -> dict[str, Any]:
    if error.data is UNSET:
        return {}
    try:
        data = decode_value(mask_json(mask, error.data))
    except ProtocolError:
        return {}
    return data if isinstance(data, dict) else {}
