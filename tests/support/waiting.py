"""Waits, with a limit, for what another process does."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

from tests.support.timeouts import HANG_TIMEOUT

T = TypeVar("T")

_LOOK_EVERY = 0.02


def wait_until(what: str, result: Callable[[], T | None], patience: float = HANG_TIMEOUT) -> T:
    """Call `found` repeatedly until it returns a true value, and return that value."""
    deadline = time.monotonic() + patience
    while True:
        value = result()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {patience:g} s in vain: {what}")
        time.sleep(_LOOK_EVERY)


def is_alive(pid: int) -> bool:
    """Whether a process runs: one that has ended and was not collected does not."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
    except OSError:
        os.kill(pid, 0)
        return True


def wait_until_gone(pids: list[int]) -> None:
    wait_until(f"the end of {pids}", lambda: not any(is_alive(pid) for pid in pids))
