"""Locks that only one process can have: for one place in a tree, and for one state folder."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from interlock.core.config import ConfigError
from interlock.core.paths import check_state, make_private


@contextmanager
def alone(lock: Path, segment: str, url: str, *, otherwise: str) -> Iterator[None]:
    """Hold the lock for as long as the block runs. It ends with the process, however that ends.

    Raises ConfigError, with what to do otherwise, when somebody has it.
    """
    held = _lock(lock)
    if held is None:
        raise ConfigError.of(f"{segment} has joined {url} already, from this machine", otherwise)
    try:
        yield
    finally:
        os.close(held)


class StateLock:
    """One node that listens for each state folder: the calls of a second could not be seen or
    approved. Released by `release`, and with the process, however that ends."""

    def __init__(self, folder: Path) -> None:
        """Raises InterlockError when another node has it, or another user could change it."""
        check_state(folder)
        held = _lock(folder / "node.lock")
        if held is None:
            raise ConfigError.of(
                f"Another node runs with the state folder {folder}",
                "stop it first, or give this one a `state_dir` of its own",
            )
        self._held: int | None = held

    def release(self) -> None:
        if self._held is not None:
            os.close(self._held)
            self._held = None


def _lock(path: Path) -> int | None:
    """The locked file. None: another process has it."""
    make_private(path.parent)
    held = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(held)
        return None
    return held
