"""The node as a target of the topic benchmarks: `interlock up`, with a journal and every check on.

Run as a module it is the same program, and writes into a file, whenever it gets SIGUSR2, how many
objects it holds: a leak shows there long before it shows in the memory of the process.
"""

from __future__ import annotations

import gc
import os
import shlex
import signal
import statistics
import sys
import time
from pathlib import Path

import msgspec

from bench.processes import TargetProcess, module_command
from bench.targets import Bench
from interlock.protocol.kinds import KindGrants

TOKEN = "topic-bench-token-0123456789"
REPORT = "BENCH_OBJECTS"
"""The environment variable that names the file."""
_OBJECTS = "objects.json"
CONFIG = """\
listen: 127.0.0.1:PORT
tokens:
  - name: sender
    token: ${env:BENCH_TOPIC_TOKEN}
topics:
  rooms:
    bench-*:
      access: public
      profile: full_access
      stalled: 10m
      ping: 10m
"""
"""Receivers are guests; the sender is known, and what it may say are patterns. Nobody is pinged:
what a receiver gets is counted by its bytes."""


class Holds(msgspec.Struct):
    """What the process holds."""

    number: int
    objects: int


def start(
    bench: Bench, config: str = CONFIG, secrets: dict[str, str] | None = None
) -> tuple[TargetProcess, int]:
    """A node, and its port. `secrets`: variables that the config refers to."""
    given = {
        "BENCH_INTERLOCK": shlex.join(module_command("bench.topic_gateway")),
        REPORT: str(bench.folder / _OBJECTS),
        **(secrets or {"BENCH_TOPIC_TOKEN": TOKEN}),
    }
    had = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        return bench.interlock("node", config)
    finally:
        for name, value in had.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def objects_of(bench: Bench, node: TargetProcess, patience: float = 10.0) -> int:
    """How many objects the node holds, after it has thrown away what it does not need."""
    path = bench.folder / _OBJECTS
    before = _read(path)
    os.kill(node.pid, signal.SIGUSR2)
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        found = _read(path)
        if found is not None and (before is None or found.number > before.number):
            return found.objects
        time.sleep(0.01)
    raise TimeoutError(f"the node did not say what it holds:\n{node.log_tail()}")


def _read(path: Path) -> Holds | None:
    return msgspec.json.decode(path.read_bytes(), type=Holds) if path.exists() else None


def matcher_us(turns: int = 51) -> float:
    """What it takes to see whether a kind that was seen before is granted by 20 patterns: the
    median over many turns, in microseconds, with the loop around it."""
    grants = KindGrants(
        [*(f"mcp/request:tools/call:tool-{number}" for number in range(17)),
         "mcp/request:*/list", "mcp/response:*", "chat"]
    )  # fmt: skip
    kinds = ["chat", "mcp/request:tools/call:tool-16", "mcp/request:tools/list", "mcp/proposal:x"]
    times = []
    for _ in range(turns):
        began = time.perf_counter()
        for _ in range(1_000):
            for kind in kinds:
                grants.grants(kind)
        times.append((time.perf_counter() - began) / (1_000 * len(kinds)))
    return statistics.median(times) * 1e6


def main() -> None:
    path = Path(os.environ[REPORT])
    told = 0

    def tell(_: int, __: object) -> None:
        nonlocal told
        told += 1
        gc.collect()
        beside = path.with_suffix(".new")
        beside.write_bytes(msgspec.json.encode(Holds(told, len(gc.get_objects()))))
        beside.rename(path)

    signal.signal(signal.SIGUSR2, tell)
    from interlock.cli.main import main as interlock

    sys.argv[0] = "interlock"
    sys.exit(interlock())


if __name__ == "__main__":
    main()
