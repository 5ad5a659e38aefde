"""Placeholders for the upstream request of a call: a request that has its response already, and a
request that waits in the node until it can be sent. A request at an upstream is
`upstreams.pending_request.PendingRequest`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from interlock.core.call import Call
from interlock.core.ports import ResponseHandler, UpstreamRequest
from interlock.errors import INTERNAL, INTERNAL_ERROR_TEXT, InterlockError

_log = logging.getLogger("interlock.pipeline")


class PendingRequestBase:
    """Base class of placeholders for a request (`ports.UpstreamRequest`). All methods do
    nothing."""

    is_open: bool = False

    def abandon(self, reason: str) -> None:
        """See `UpstreamRequest.abandon`."""

    def expire(self) -> None:
        """See `UpstreamRequest.expire`."""

    def reassign(self, call: Call, handler: ResponseHandler) -> None:
        """See `UpstreamRequest.reassign`."""


ANSWERED: Final = PendingRequestBase()
"""A request that had its response when it was made."""


class DeferredRequest(PendingRequestBase):
    """A request that waits in the node until it can be sent. Then it forwards to the sent request.

    The handler gets exactly one result. Nothing is sent for an abandoned call.
    """

    def __init__(
        self,
        call: Call,
        handler: ResponseHandler,
        timeout_error: InterlockError,
        send: Callable[[Call, ResponseHandler], Awaitable[UpstreamRequest]] | None = None,
    ) -> None:
        """Start to wait.

        Args:
            timeout_error: the result if the deadline passes before the request is sent.
            send: waits for the connection and sends the request, in a task. None: `start` or
                `fail` is called instead.
        """
        self.call = call
        self.is_waiting = True
        self._handler = handler
        self._timeout_error = timeout_error
        self._request: UpstreamRequest | None = None
        self.task: asyncio.Task[None] | None = None
        if send is not None:
            self.task = asyncio.get_running_loop().create_task(self._run(send))

    @property
    def is_open(self) -> bool:  # type: ignore[override]
        return self.is_waiting or (self._request is not None and self._request.is_open)

    def start(self, start: Callable[[Call, ResponseHandler], UpstreamRequest]) -> None:
        """Send the request now, unless it was abandoned."""
        if not self.is_waiting:
            return
        self.is_waiting = False
        try:
            self._set_request(start(self.call, self._handler))
        except InterlockError as error:
            self._handler.on_result(self.call, None, error)

    def fail(self, error: InterlockError) -> None:
        """End the request with an error. It will not be sent."""
        if self.is_waiting:
            self.is_waiting = False
            self._handler.on_result(self.call, None, error)

    async def _run(
        self, send: Callable[[Call, ResponseHandler], Awaitable[UpstreamRequest]]
    ) -> None:
        call, handler = self.call, self._handler
        try:
            sent = await send(call, handler)
        except InterlockError as error:
            self.fail(error)
        except Exception:
            # Nothing awaits this task, but the call must end.
            _log.exception("upstream %s: cannot send a deferred request", call.upstream)
            self.fail(InterlockError(INTERNAL, INTERNAL_ERROR_TEXT))
        else:
            if self.is_waiting:
                self.is_waiting = False
                if self.call is not call or self._handler is not handler:
                    sent.reassign(self.call, self._handler)
                self._set_request(sent)
            else:
                sent.abandon("The call was cancelled.")

    def _set_request(self, request: UpstreamRequest) -> None:
        self._request = request
        if self.call.upstream_request is self:
            self.call.upstream_request = request

    def _stop(self) -> None:
        if self.task is not None:
            self.task.cancel()

    def abandon(self, reason: str) -> None:
        self.is_waiting = False
        self._stop()
        if self._request is not None:
            self._request.abandon(reason)

    def expire(self) -> None:
        if self._request is not None:
            self._request.expire()
        elif self.is_waiting:
            self._stop()
            self.fail(self._timeout_error)

    def reassign(self, call: Call, handler: ResponseHandler) -> None:
        self.call, self._handler = call, handler
        if self._request is not None:
            self._request.reassign(call, handler)
