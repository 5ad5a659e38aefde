"""Waiting: for the first of several things, before a stream that ended is opened again, and before
an upstream that failed is tried again."""

from __future__ import annotations

import asyncio
from typing import Any, Final

RETRY_FIRST: Final = 0.1
RETRY_AT_MOST: Final = 30.0
REOPEN_AFTER: Final = 1.0
REOPEN_SOONEST: Final = 0.05
REOPEN_AT_MOST: Final = 60.0


async def first_of(*things: asyncio.Future[Any], timeout: float | None = None) -> None:
    """Wait until one of these is done. Whatever becomes of the wait, they go on."""
    await asyncio.wait(things, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)


class Pauses:
    """A stream that lasted was a good one; one that breaks at once must not be hammered."""

    def __init__(self) -> None:
        self._wait = REOPEN_AFTER

    def after(self, lasted: float, wanted: float | None = None, *, properly: bool = False) -> float:
        """The seconds to wait now. `wanted`: what the server asked for, if it did."""
        shortest = REOPEN_AFTER if wanted is None else max(wanted, REOPEN_SOONEST)
        if (properly and wanted is not None) or lasted > self._wait:
            # Ended on purpose, or after a good while.
            self._wait = min(shortest, REOPEN_AT_MOST)
        else:
            self._wait = min(max(self._wait, shortest) * 2, REOPEN_AT_MOST)
        return self._wait
