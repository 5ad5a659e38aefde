"""The churn run: upstreams are killed with kill -9 at random while calls keep coming.

What must hold at the end: every call was answered, rightly or as failed; nothing is left over:
no process, no file descriptor, no task.
"""

from __future__ import annotations

import os
import random
import secrets
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.asking import fetch_json, until
from bench.bars import Bar
from bench.load_process import LoadProcess
from bench.load_run import LoadPlan, LoadReport
from bench.processes import ROOT, TargetProcess
from bench.processor import descendants, open_files, resident_bytes
from bench.report import console, note, show_bars, show_table
from bench.targets import Bench


class ChurnSettings(msgspec.Struct, frozen=True):
    cycles: int = 1000
    upstreams: int = 4
    concurrency: int = 8
    seed: int | None = None


REPORTED = ("JSON-RPC error", "tool error")
"""Verdicts of calls that were answered as failed; an HTTP error status is one too."""


def node_config(upstreams: int, label: str) -> str:
    lines = [
        "listen: 127.0.0.1:PORT",
        # A breaker that opens would keep calls away from what is being tested.
        "breaker: {failures: 1000000, cooldown: 50ms}",
        "servers:",
    ]
    for number in range(upstreams):
        lines += [
            f"  u{number}:",
            f"    command: {sys.executable}",
            f"    args: [-m, bench.raw_upstream, --stdio, --label, {label}]",
            f"    env: {{PYTHONPATH: {ROOT}}}",
        ]
    return "\n".join(lines) + "\n"


def labelled(label: str) -> list[int]:
    """Every process on the machine that carries the run's label, wherever it hangs."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if label.encode() in command:
            found.append(int(folder.name))
    return found


class Leftovers(msgspec.Struct):
    """What the node holds at one moment."""

    children: int
    files: int
    tasks: int | None
    resident_bytes: int


class ChurnRun:
    def __init__(self, settings: ChurnSettings, node: TargetProcess, port: int) -> None:
        self.settings = settings
        self.node = node
        self.port = port
        self.chance = random.Random(settings.seed)
        self.kills = 0
        self.most_children = 0

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = fetch_json(self.port, "GET", "/status")
        return status

    def all_ready(self) -> None:
        until(
            "every upstream ready",
            self.node,
            self.status,
            lambda status: all(one["state"] == "ready" for one in status["upstreams"]),
            pause=0.02,
        )

    def holds(self) -> Leftovers:
        tasks = self.status().get("tasks")
        return Leftovers(
            children=len(descendants(self.node.pid)),
            files=open_files(self.node.pid),
            tasks=tasks if isinstance(tasks, int) else None,
            resident_bytes=resident_bytes(self.node.pid),
        )

    def kill_one(self) -> bool:
        """Kill a random upstream; mostly one that is serving, now and then one that starts."""
        below = descendants(self.node.pid)
        self.most_children = max(self.most_children, len(below))
        if self.chance.random() > 0.05:
            ready = (one["pid"] for one in self.status()["upstreams"] if one["state"] == "ready")
            serving = set(ready)
            below = [pid for pid in below if pid in serving]
        if not below:
            return False
        try:
            os.kill(self.chance.choice(below), signal.SIGKILL)
        except ProcessLookupError:
            return False
        self.kills += 1
        return True

    def kill_all_cycles(self) -> float:
        started = time.monotonic()
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
            task = progress.add_task("kill -9", total=self.settings.cycles)
            while self.kills < self.settings.cycles:
                progress.update(task, completed=self.kills)
                self.kill_one()
                # A moment that is never the same, so that kills meet calls in every phase.
                time.sleep(self.chance.uniform(0.0, 0.06))
        return time.monotonic() - started

    def settle(self, baseline: Leftovers) -> Leftovers:
        """Give the node a while to let go of what it held, then say what it still holds."""
        deadline = time.monotonic() + 10.0
        now = self.holds()
        while time.monotonic() < deadline:
            tasks_back = now.tasks is None or now.tasks <= (baseline.tasks or 0)
            if now.files <= baseline.files and tasks_back:
                break
            time.sleep(0.1)
            now = self.holds()
        return now


def measure(settings: ChurnSettings) -> dict[str, Any]:
    label = f"churn-{secrets.token_hex(6)}"
    with (
        tempfile.TemporaryDirectory(prefix="interlock-bench-") as folder,
        Bench(Path(folder)) as bench,
        LoadProcess() as load,
    ):
        node, port = bench.interlock("node", node_config(settings.upstreams, label))
        run = ChurnRun(settings, node, port)
        run.all_ready()
        url = f"http://127.0.0.1:{port}/mcp"
        tools = [f"u{number}.echo" for number in range(settings.upstreams)]
        calm = LoadPlan(url=url, tools=tools, concurrency=settings.concurrency, seconds=1.0)
        load.run(calm)
        baseline = run.holds()
        storm = LoadPlan(
            url=url,
            tools=tools,
            concurrency=settings.concurrency,
            seconds=None,
            until_told=True,
            warmup_seconds=0.0,
            call_timeout=90.0,
            error_limit=1_000_000_000,
        )
        load.begin(storm)
        seconds = run.kill_all_cycles()
        run.all_ready()
        load.tell_to_stop()
        report = load.result()
        run.all_ready()
        after = run.settle(baseline)
        node.end()
        orphans = labelled(label)
        for pid in orphans:
            os.kill(pid, signal.SIGKILL)
    return {
        "cycles": run.kills,
        "seconds": seconds,
        "upstreams": settings.upstreams,
        "most_children": run.most_children,
        "answers": sort_answers(report),
        "kinds": report.errors,
        "samples": report.samples,
        "calls_per_second": report.calls_per_second,
        "baseline": msgspec.to_builtins(baseline),
        "after": msgspec.to_builtins(after),
        "orphans": len(orphans),
    }


def sort_answers(report: LoadReport) -> dict[str, int]:
    failed = sum(
        count
        for kind, count in report.errors.items()
        if kind in REPORTED or kind.startswith("HTTP ")
    )
    return {
        "ok": report.calls,
        "reported as failed": failed,
        "wrong": sum(report.errors.values()) - failed,
        "lost": report.lost,
    }


def judge(result: dict[str, Any]) -> list[Bar]:
    before, after = result["baseline"], result["after"]
    answers = result["answers"]
    more_children = float(after["children"] - before["children"])
    more_files = float(after["files"] - before["files"])
    bars = [
        Bar("wrong answers", float(answers["wrong"]), "<=", 0.0),
        Bar("calls without an answer", float(answers["lost"]), "<=", 0.0),
        Bar("processes left after the node ended", float(result["orphans"]), "<=", 0.0),
        Bar("children beyond one per upstream", more_children, "<=", 0.0),
        Bar("file descriptors more than before", more_files, "<=", 0.0),
    ]
    if after["tasks"] is None:
        bars.append(Bar("tasks more than before", None, "<=", 0.0, note="the node does not say"))
    else:
        more = float(after["tasks"] - before["tasks"])
        bars.append(Bar("tasks more than before", more, "<=", 0.0))
    return bars


def show(result: dict[str, Any], bars: list[Bar]) -> None:
    rows = [[name, f"{count:,}"] for name, count in result["answers"].items()]
    title = f"{result['cycles']:,} kills in {result['seconds']:.0f} s under load"
    show_table(title, ["answers", "calls"], rows)
    before, after = result["baseline"], result["after"]
    grown = (after["resident_bytes"] - before["resident_bytes"]) / 1e6
    note(f"memory {after['resident_bytes'] / 1e6:.0f} MB, {grown:+.1f} MB since before the kills")
    if result["samples"]:
        note(f"a failed call said: {result['samples'][0]}")
    show_bars(bars)


def run(settings: ChurnSettings) -> tuple[dict[str, Any], list[Bar]]:
    result = measure(settings)
    bars = judge(result)
    result["bars"] = [bar.shown() for bar in bars]
    show(result, bars)
    return result, bars
