"""A forced exit, for a program that does not stop in time."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Final, NoReturn

FORCED_EXIT: Final = 130


def exit_now() -> NoReturn:
    """Kill all child processes and exit now."""
    for pid in child_processes():
        try:
            # Each child leads a process group, which includes the processes that the child started.
            os.killpg(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            # The child has ended, or does not lead a group.
            continue
    os._exit(FORCED_EXIT)


def child_processes() -> list[int]:
    """Return the process ids of the children, where the system lists them (Linux does)."""
    children: list[int] = []
    for task in Path("/proc/self/task").glob("*/children"):
        try:
            children += [int(pid) for pid in task.read_text().split()]
        except OSError:
            # The thread ended in the meantime.
            continue
    return children
