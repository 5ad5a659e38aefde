"""The state of a connection, as a program awaits it: until it is settled, then until it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from interlock.errors import InterlockError


class ConnectionState:
    """Settled once the other side accepts or rejects this one; ended when it rejects for good."""

    def __init__(self) -> None:
        self._ready = asyncio.Event()
        self._error: InterlockError | None = None
        """Why it is over."""
        self._task: asyncio.Task[object] | None = None

    def set_ready(self) -> None:
        self._ready.set()

    def end(self, error: InterlockError) -> None:
        """It is over: whoever waits, or works meanwhile, is told."""
        self._error = error
        self._ready.set()
        if self._task is not None:
            self._task.cancel()

    async def wait_until_ready(self) -> None:
        """Raises InterlockError when it is over instead."""
        await self._ready.wait()
        if self._error is not None:
            raise self._error

    @asynccontextmanager
    async def cancel_on_end(self) -> AsyncIterator[None]:
        """The block is cancelled, and InterlockError raised, when it is over."""
        task = self._task = asyncio.current_task()
        assert task is not None
        others = task.cancelling()
        try:
            yield
        except asyncio.CancelledError:
            if self._error is None or task.uncancel() > others:
                raise
        finally:
            self._task = None
        if self._error is not None:
            raise self._error
