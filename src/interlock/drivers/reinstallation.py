"""When a driver that could not be installed, or whose version would not do, is looked at again: as
soon as somebody installed something in its folder, and otherwise after a while."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from msgspec import Struct

from interlock.drivers.installation import MARKER

LOOK_AGAIN: Final = 5.0
"""It may have come onto this machine by another way."""
INSTALL_AGAIN: Final = 60.0
"""Where the node installs by itself: an attempt without a network takes its time."""

Mark = tuple[int, int, int] | None


class FailedInstall(Struct, frozen=True):
    """An attempt that failed."""

    folder: Path
    seen: Mark
    """By what a change of the folder is seen."""
    again_at: float
    """On the clock of whoever tried."""

    def is_outdated(self) -> bool:
        """Whether somebody has installed something since."""
        return install_mark(self.folder) != self.seen


def install_mark(folder: Path) -> Mark:
    """Another one after each install; None when nothing is installed."""
    try:
        found = os.stat(folder / MARKER)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
