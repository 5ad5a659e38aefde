"""How a participant stands with its gateway, for its author: waited for, logged, and raised."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from interlock.errors import InterlockError

_log = logging.getLogger("interlock.topics")


class Standing:
    """Told of every move. Nothing that it says holds a token."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._settled = asyncio.Event()
        """It was welcomed, or it is over."""
        self._error: InterlockError | None = None
        """Why it is over."""
        self._task: asyncio.Task[object] | None = None
        self._told = ""
        self.welcomes = 0
        """How often it was let in."""

    def welcomed(self, as_whom: str, label: str) -> None:
        """A gateway has let it in."""
        again = " again" if self.welcomes else ""
        self.welcomes += 1
        self._told = ""
        _log.info("in the topic %s%s as %.128s, at %s", self._topic, again, as_whom, label)
        self._settled.set()

    def lost(self, why: str) -> None:
        """It is outside, and tries again."""
        sentence = f"not in the topic {self._topic}: {why.rstrip('.')}. Trying again."
        if sentence != self._told:
            _log.warning("%s", sentence)
        self._told = sentence

    def over(self, error: InterlockError) -> None:
        """It is refused for good."""
        self._error = error
        self._settled.set()
        if self._task is not None:
            self._task.cancel()

    async def until_welcomed(self) -> None:
        """Raises InterlockError when that will not be."""
        await self._settled.wait()
        if self._error is not None:
            raise self._error

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """The block is cancelled, and InterlockError raised, when it is refused for good."""
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
