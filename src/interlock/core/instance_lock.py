"""Locks for one process at a time: for a segment of a tree, and for a state folder."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from interlock.core.config import ConfigError
from interlock.core.paths import check_state, make_private


@contextmanager
def segment_lock(lock: Path, segment: str, url: str, *, advice: str) -> Iterator[None]:
    """Hold the lock of a segment while the block runs. The kernel releases it when the process
    ends.

    Args:
        advice: what the user can do instead, for the error.

    Raises:
        ConfigError: another process holds the lock.
    """
    descriptor = _lock(lock)
    if descriptor is None:
        raise ConfigError.of(f"{segment} has already joined {url} from this machine", advice)
    try:
        yield
    finally:
        os.close(descriptor)


class StateLock:
    """The lock that allows one listening node per state folder: the calls of a second node could
    not be seen or approved. `release` or the end of the process releases it."""

    def __init__(self, folder: Path) -> None:
        """Lock the folder. Raises InterlockError if another node uses it, or another user could
        change it."""
        check_state(folder)
        descriptor = _lock(folder / "node.lock")
        if descriptor is None:
            raise ConfigError.of(
                f"Another node uses the state folder {folder}",
                "stop that node first, or set a different `state_dir` for this one",
            )
        self._descriptor: int | None = descriptor

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _lock(path: Path) -> int | None:
    """Lock a file and return its descriptor. None: another process holds the lock."""
    make_private(path.parent)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
