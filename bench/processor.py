"""Which cores processes may run on, and what the machine is. Reads ``/proc``; Linux only."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import perf_counter
from typing import Any


def descendants(pid: int) -> list[int]:
    """The processes below this one, children first."""
    found: list[int] = []
    waiting = [pid]
    while waiting:
        current = waiting.pop()
        for task in Path(f"/proc/{current}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                below = [int(word) for word in task.read_text().split()]
                found.extend(below)
                waiting.extend(below)
    return found


def all_cores() -> set[int]:
    return set(os.sched_getaffinity(0))


def run_on(cores: set[int], pids: list[int]) -> None:
    """Let these processes, their children and all their threads run on these cores only."""
    for pid in pids:
        for process in (pid, *descendants(pid)):
            for thread in Path(f"/proc/{process}/task").glob("*"):
                with contextlib.suppress(OSError):
                    os.sched_setaffinity(int(thread.name), cores)


def resident_bytes(pid: int) -> int:
    """VmRSS: the memory that the process really holds."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def processor_seconds(pid: int) -> float:
    """User and system time of a process, its threads and its helpers, but not of an upstream."""
    total = 0.0
    for process in (pid, *descendants(pid)):
        with contextlib.suppress(OSError):
            if process != pid and b"raw_upstream" in Path(f"/proc/{process}/cmdline").read_bytes():
                continue
            fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
            total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def processor_name() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def package_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def program_version(*command: str) -> str | None:
    if shutil.which(command[0]) is None:
        return None
    done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    return (done.stdout + done.stderr).strip().splitlines()[0] if done.returncode == 0 else None


def interpreter_milliseconds() -> float:
    """A fixed piece of plain Python, best of several: how fast this build is on this machine.

    Builds of one version differ by half, with and without profile-guided optimization.
    """
    best = float("inf")
    for _ in range(7):
        started = perf_counter()
        seen: dict[int, bytes] = {}
        for number in range(20_000):
            seen[number & 255] = b"%d" % len(seen)
        best = min(best, perf_counter() - started)
    return round(best * 1000, 3)


def machine_facts() -> dict[str, Any]:
    packages = ("interlock", "uvloop", "msgspec", "uvicorn", "httptools", "fastmcp", "mcp")
    return {
        "cores": len(all_cores()),
        "processor": processor_name(),
        "system": platform.platform(),
        "python": sys.version.split()[0],
        "interpreter_ms": interpreter_milliseconds(),
        "load_average": [round(value, 2) for value in os.getloadavg()],
        "packages": {name: package_version(name) for name in packages},
        "nginx": program_version("nginx", "-v"),
        "node": program_version("node", "--version"),
    }
