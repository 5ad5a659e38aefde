"""Noticing that a file has changed, by looking at it now and then.

Looking costs a microsecond, needs no library, and works on every disk, network ones included.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Final, NamedTuple

LOOK_EVERY: Final = 0.5
SETTLE: Final = 0.1
"""How long a changed file must stay the same before it is believed to be written to its end."""


class Fingerprint(NamedTuple):
    """What of a file changes when its content does: an editor may rewrite or replace it."""

    inode: int
    size: int
    mtime_ns: int


def fingerprint(path: Path) -> Fingerprint | None:
    """The file's fingerprint; None when it is not there."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return Fingerprint(status.st_ino, status.st_size, status.st_mtime_ns)


class FileWatch:
    """Watches one file, from the moment this is made."""

    def __init__(
        self,
        path: Path,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        look: Callable[[Path], Fingerprint | None] = fingerprint,
        gone: Callable[[], None] = lambda: None,
    ) -> None:
        """`gone` is called once when the file has been missing for two looks in a row."""
        self._path = path
        self._sleep = sleep
        self._look = look
        self._seen = look(path)
        self._gone = gone

    async def changes(self) -> AsyncIterator[None]:
        """Yields once after each change. A file that is gone is waited for: editors replace."""
        missed = 0
        while True:
            await self._sleep(LOOK_EVERY)
            found = self._look(self._path)
            missed = 0 if found is not None else missed + 1
            if missed == 2:
                self._gone()
            if found is None or found == self._seen:
                continue
            # Half a config is a config too, and an empty one ends every upstream.
            while True:
                await self._sleep(SETTLE)
                again = self._look(self._path)
                if again == found:
                    break
                found = again
            if found is not None:
                self._seen = found
                yield
