"""The crowd: 200 subservers with 50 tools each register at once, and again after their root died.

All of them live in one process, each with a channel of its own. Measured are the time from the
first dial until the root lists every tool, and its memory. Then the root is killed with kill -9
and started again on the same port: nobody tells the subservers, they come back by themselves.
"""

from __future__ import annotations

import os
import re
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from bench.asking import ask_tools_list, call_tool, fetch_json, tool_names, until
from bench.bars import Bar
from bench.processes import TargetFailure, TargetProcess, module_command
from bench.processor import processor_seconds, resident_bytes
from bench.report import console, show_bars, show_table
from bench.targets import Bench

CONFIG = "listen: 127.0.0.1:PORT\n"
LOOK = 0.02
CALLED = 20
"""So many of the subservers are called once all are listed."""


class CrowdSettings(msgspec.Struct, frozen=True):
    subservers: int = 200
    tools: int = 50

    @property
    def everything(self) -> int:
        return self.subservers * self.tools


class Gathered(msgspec.Struct):
    """How it was when all were listed."""

    seconds: float
    resident_bytes: int
    processor_seconds: float


def segment(number: int) -> str:
    return f"s{number:03}"


def tool(number: int) -> str:
    return f"tool_{number:02}"


def names(settings: CrowdSettings) -> set[str]:
    return {
        f"{segment(one)}.{tool(other)}"
        for one in range(settings.subservers)
        for other in range(settings.tools)
    }


def begun_at(crowd: TargetProcess) -> float:
    """When the crowd dialled, as it says itself."""
    said = until("the crowd", crowd, crowd.log_tail, lambda text: "begun " in text, pause=0.005)
    found = re.search(r"begun ([\d.]+)", said)
    if found is None:
        raise TargetFailure(f"the crowd did not say when it began: {said}")
    return float(found[1])


def listed(root: TargetProcess, port: int, settings: CrowdSettings) -> float:
    """The moment in which the root lists every tool of everybody."""
    until(
        f"{settings.everything:,} tools at the root",
        root,
        lambda: fetch_json(port, "GET", "/status"),
        # The root has a tool of its own beside them.
        lambda status: status["tools"] >= settings.everything,
        pause=LOOK,
    )
    moment = time.time()
    missing = names(settings) - set(tool_names(ask_tools_list(port)))
    if missing:
        raise TargetFailure(f"{len(missing)} tools are not listed, such as {min(missing)}")
    return moment


def call_some(port: int, settings: CrowdSettings) -> int:
    """Call tools all over the crowd; how many were not answered by their own subserver."""
    wrong = 0
    for number in range(0, settings.subservers, max(1, settings.subservers // CALLED)):
        name = f"{segment(number)}.{tool(number % settings.tools)}"
        wrong += call_tool(port, name, {"text": "x"}) != f"{name}: x"
    return wrong


def gathered(root: TargetProcess, seconds: float) -> Gathered:
    return Gathered(round(seconds, 3), resident_bytes(root.pid), processor_seconds(root.pid))


def measure(settings: CrowdSettings) -> dict[str, Any]:
    with (
        tempfile.TemporaryDirectory(prefix="interlock-bench-") as folder,
        Bench(Path(folder)) as bench,
        console.status(f"{settings.subservers} subservers"),
    ):
        root, port = bench.interlock("root", CONFIG)
        alone = resident_bytes(root.pid)
        command = module_command(
            "bench.crowd_process",
            f"ws://127.0.0.1:{port}/ax",
            str(settings.subservers),
            str(settings.tools),
        )
        crowd = bench.start("crowd", command)
        begun = begun_at(crowd)
        first = gathered(root, listed(root, port, settings) - begun)
        wrong = call_some(port, settings)
        os.kill(root.pid, signal.SIGKILL)
        root.process.wait()
        again = time.time()
        root, _ = bench.interlock("root again", CONFIG, port)
        started = time.time()
        second = gathered(root, listed(root, port, settings) - again)
        wrong += call_some(port, settings)
        if crowd.process.poll() is not None:
            raise TargetFailure(f"the crowd ended:\n{crowd.log_tail()}")
    return {
        "subservers": settings.subservers,
        "tools": settings.everything,
        "alone_bytes": alone,
        "first": msgspec.to_builtins(first),
        "again": msgspec.to_builtins(second),
        "again_start_s": round(started - again, 3),
        "wrong": wrong,
    }


def judge(result: dict[str, Any]) -> list[Bar]:
    first, again = result["first"], result["again"]
    tools = f"{result['tools']:,} tools"
    return [
        Bar(f"{tools} listed after all registered at once", first["seconds"], "<=", 5.0, "s"),
        Bar(
            f"{tools} listed again after kill -9 of the root",
            again["seconds"],
            "<=",
            10.0,
            "s",
            note=f"of which {result['again_start_s']:.1f} s are the node's own start",
        ),
        Bar("memory of the root", first["resident_bytes"] / 1e6, "<=", 250.0, "MB"),
        Bar("memory of the new root", again["resident_bytes"] / 1e6, "<=", 250.0, "MB"),
        Bar("calls not answered by their own subserver", float(result["wrong"]), "<=", 0.0),
    ]


def show(result: dict[str, Any], bars: list[Bar]) -> None:
    rows = [
        [
            name,
            f"{one['seconds']:.2f}",
            f"{one['resident_bytes'] / 1e6:.0f}",
            f"{one['processor_seconds']:.1f}",
        ]
        for name, one in (("all at once", result["first"]), ("after kill -9", result["again"]))
    ]
    title = (
        f"{result['subservers']} subservers, {result['tools']:,} tools; "
        f"the root alone holds {result['alone_bytes'] / 1e6:.0f} MB"
    )
    show_table(title, ["registered", "listed after s", "root MB", "root cpu s"], rows)
    show_bars(bars)


def run(settings: CrowdSettings) -> tuple[dict[str, Any], list[Bar]]:
    result = measure(settings)
    bars = judge(result)
    result["bars"] = [bar.shown() for bar in bars]
    show(result, bars)
    return result, bars
