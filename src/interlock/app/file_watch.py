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
        read: Callable[[Path], Fingerprint | None] = read_fingerprint,
        on_missing: Callable[[], None] = lambda: None,
    ) -> None:
        """
        Args:
            on_missing: called once when the file is missing for two checks in a row.
        """
        self._path = path
        self._sleep = sleep
        self._read = read
        self._last = read(path)
        self._on_missing = on_missing

    async def changes(self) -> AsyncIterator[None]:
        """Yield once after each change. A missing file is waited for, because editors replace
        files."""
        missing_checks = 0
        while True:
            await self._sleep(POLL_SECONDS)
            current = self._read(self._path)
            missing_checks = 0 if current is not None else missing_checks + 1
            if missing_checks == 2:
                self._on_missing()
            if current is None or current == self._last:
                continue
            # A half-written config may be valid, and an empty one would end every upstream.
            while True:
                await self._sleep(SETTLE_SECONDS)
                latest = self._read(self._path)
                if latest == current:
                    break
                current = latest
            if current is not None:
                self._last = current
                yield
