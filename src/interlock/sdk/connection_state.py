"""The state of a connection that a program can await: until it is ready, and until it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from interlock.errors import InterlockError


class ConnectionState:
    """The state of a connection: ready after the peer has accepted it, ended after an error."""

    def __init__(self) -> None:
        self._ready = asyncio.Event()
        self._error: InterlockError | None = None
        """The reason of the end."""
        self._task: asyncio.Task[object] | None = None

    def set_ready(self) -> None:
        self._ready.set()

    def end(self, error: InterlockError) -> None:
        """End the connection. Waiting coroutines get the error, a running block is cancelled."""
        self._error = error
        self._ready.set()
        if self._task is not None:
            self._task.cancel()

    async def wait_until_ready(self) -> None:
        """Wait until the connection is ready. Raises InterlockError if it has ended."""
        await self._ready.wait()
        if self._error is not None:
            raise self._error

    @asynccontextmanager
    async def cancel_on_end(self) -> AsyncIterator[None]:
        """Cancel the block and raise InterlockError when the connection ends."""
        task = self._task = asyncio.current_task()
        assert task is not None
        other_cancellations = task.cancelling()
        try:
            yield
        except asyncio.CancelledError:
            if self._error is None or task.uncancel() > other_cancellations:
                raise
        finally:
            self._task = None
        if self._error is not None:
            raise self._error
