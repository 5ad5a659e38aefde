"""Detection of changes of a file by polling.

Polling costs a microsecond, needs no library, and works on every file system, including network
ones.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Final, NamedTuple

POLL_SECONDS: Final = 0.5
SETTLE_SECONDS: Final = 0.1
"""Seconds for which a changed file must stay the same before it counts as completely written."""


class Fingerprint(NamedTuple):
    """The attributes of a file that change with its content: editors rewrite or replace files."""

    inode: int
    size: int
    mtime_ns: int


def read_fingerprint(path: Path) -> Fingerprint | None:
    """Return the fingerprint of a file, or None if it does not exist."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return Fingerprint(status.st_ino, status.st_size, status.st_mtime_ns)


class FileWatch:
    """Watches one file, from construction on."""

    def __init__(
        self,
        path: Path,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        look: Callable[[Path], Fingerprint | None] = read_fingerprint,
        gone: Callable[[], None] = lambda: None,
    ) -> None:
        """
        Args:
            gone: called once when the file is missing for two checks in a row.
        """
        self._path = path
        self._sleep = sleep
        self._look = look
        self._seen = look(path)
        self._gone = gone

    async def changes(self) -> AsyncIterator[None]:
        """Yield once after each change. A missing file is waited for, because editors replace
        files."""
        missed = 0
        while True:
            await self._sleep(POLL_SECONDS)
            found = self._look(self._path)
            missed = 0 if found is not None else missed + 1
            if missed == 2:
                self._gone()
            if found is None or found == self._seen:
                continue
            # A half-written config may be valid, and an empty one would end every upstream.
            while True:
                await self._sleep(SETTLE_SECONDS)
                again = self._look(self._path)
                if again == found:
                    break
                found = again
            if found is not None:
                self._seen = found
                yield
