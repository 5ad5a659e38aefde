"""What stands for the request of a call while no upstream has it: it was answered at once, or it
waits in the node for something to be sent to. The request at an upstream is
`upstreams.pending_request.PendingRequest`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from interlock.core.call import Call
from interlock.core.ports import ResponseHandler, UpstreamRequest
from interlock.errors import INTERNAL, InterlockError

_log = logging.getLogger("interlock.pipeline")


class PendingRequestBase:
    """Base class of the stand-ins for a request (`ports.UpstreamRequest`). Every method does
    nothing."""

    is_open: bool = False

    def abandon(self, reason: str) -> None:
        """Nobody waits any more."""

    def expire(self) -> None:
        """The deadline has passed."""

    def reassign(self, call: Call, back: ResponseHandler) -> None:
        """Somebody else waits from now on."""


ANSWERED: Final = PendingRequestBase()
"""Stands for a request that was answered when it was made."""


class DeferredRequest(PendingRequestBase):
    """Waits in the node until it can be sent, and is the request that was sent from then on.

    Whoever waits is told exactly once. Nothing is sent for a call that was given up.
    """

    def __init__(
        self,
        call: Call,
        back: ResponseHandler,
        late: InterlockError,
        send: Callable[[Call, ResponseHandler], Awaitable[UpstreamRequest]] | None = None,
    ) -> None:
        """Begin to wait.

        Args:
            late: what the caller is told when the deadline passes before the request is sent.
            send: waits for what is needed and sends the request, in a task. None: somebody calls
                `start` or `fail`.
        """
        self.call = call
        self.waits = True
        self._back = back
        self._late = late
        self._sent: UpstreamRequest | None = None
        self.task: asyncio.Task[None] | None = None
        if send is not None:
            self.task = asyncio.get_running_loop().create_task(self._run(send))

    @property
    def is_open(self) -> bool:  # type: ignore[override]
        return self.waits or (self._sent is not None and self._sent.is_open)

    def start(self, start: Callable[[Call, ResponseHandler], UpstreamRequest]) -> None:
        """Send it now, unless nobody waits for it."""
        if not self.waits:
            return
        self.waits = False
        try:
            self._become(start(self.call, self._back))
        except InterlockError as error:
            self._back.on_result(self.call, None, error)

    def fail(self, error: InterlockError) -> None:
        """It will not be sent."""
        if self.waits:
            self.waits = False
            self._back.on_result(self.call, None, error)

    async def _run(
        self, send: Callable[[Call, ResponseHandler], Awaitable[UpstreamRequest]]
    ) -> None:
        call, back = self.call, self._back
        try:
            sent = await send(call, back)
        except InterlockError as error:
            self.fail(error)
        except Exception as bug:
            # Nobody awaits this task, but somebody waits for the call.
            _log.exception("a request that waited in the node could not be sent")
            self.fail(InterlockError(INTERNAL, f"The node failed ({type(bug).__name__})."))
        else:
            if self.waits:
                self.waits = False
                if self.call is not call or self._back is not back:
                    sent.reassign(self.call, self._back)
                self._become(sent)
            else:
                sent.abandon("Nobody waits for it any more.")

    def _become(self, sent: UpstreamRequest) -> None:
        self._sent = sent
        if self.call.upstream_request is self:
            self.call.upstream_request = sent

    def _stop(self) -> None:
        if self.task is not None:
            self.task.cancel()

    def abandon(self, reason: str) -> None:
        self.waits = False
        self._stop()
        if self._sent is not None:
            self._sent.abandon(reason)

    def expire(self) -> None:
        if self._sent is not None:
            self._sent.expire()
        elif self.waits:
            self._stop()
            self.fail(self._late)

    def reassign(self, call: Call, back: ResponseHandler) -> None:
        self.call, self._back = call, back
        if self._sent is not None:
            self._sent.reassign(call, back)
