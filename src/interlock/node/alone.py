"""Two of the same in a tree would drive each other out for ever: a lock that only one can have."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from interlock.config import ConfigError
from interlock.node.places import make_private


@contextmanager
def alone(lock: Path, segment: str, url: str, *, otherwise: str) -> Iterator[None]:
    """Hold the lock for as long as the block runs. It ends with the process, however that ends.

    Raises ConfigError, with what to do otherwise, when somebody has it.
    """
    make_private(lock.parent)
    held = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError.of(
                f"{segment} has joined {url} already, from this machine", otherwise
            ) from None
        yield
    finally:
        os.close(held)
