"""The durable benchmark: calls that are on disk before they leave, against what the disk can do.

The limit is measured in the same run on the same disk: how often a second a small record can be
appended to a file and forced to the disk. Then the journal alone, asked by one and by many at a
time; then a node in front of the raw upstream, with a tool that changes something, once with
`journal.durable: mutating` and once with `never`. A commit of the journal forces the disk at most
once, so its commits a call are the most that a call can have cost.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import statistics
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from bench.asking import ask_tools_list, tool_names, until
from bench.bars import Bar, ratio
from bench.load_process import LoadProcess
from bench.load_run import LoadPlan
from bench.report import console, show_bars, show_table
from bench.targets import Bench, TargetFailure
from interlock.core.journal.journal import Journal, notify_all

RECORD = b"x" * 8192
"""About what one commit of one entry appends: two pages of SQLite's."""
ENTRY = (0, "bench", "mcp", "tools/call", "up.echo", "up", "mutating", "dispatching", 0, "call:b-1")
CONCURRENT = (1, 16, 64)
BY_NODE = (1, 16)


class DurableSettings(msgspec.Struct, frozen=True):
    rounds: int = 5
    quick: bool = False

    @property
    def seconds(self) -> float:
        return 0.5 if self.quick else 1.0


class Figure(msgspec.Struct):
    """What one run came to."""

    per_second: float
    median_us: float
    syncs_per_call: float | None = None


def disk(folder: Path, seconds: float) -> Figure:
    """Append, force to the disk, and again."""
    took = []
    handle = os.open(folder / "forced", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        begun = time.perf_counter()
        while (now := time.perf_counter()) - begun < seconds:
            os.write(handle, RECORD)
            os.fdatasync(handle)
            took.append(time.perf_counter() - now)
    finally:
        os.close(handle)
    return Figure(len(took) / (now - begun), statistics.median(took) * 1e6)


def journal_alone(path: Path, concurrency: int, seconds: float) -> Figure:
    """So many callers, each of which goes on when its entry is on disk."""
    journal = Journal(path)
    took: list[float] = []

    async def run() -> float:
        loop = asyncio.get_running_loop()
        journal.deliver = lambda thens, kept: loop.call_soon_threadsafe(notify_all, thens, kept)
        begun = time.perf_counter()

        async def one() -> None:
            while (now := time.perf_counter()) - begun < seconds:
                on_disk: asyncio.Future[bool] = loop.create_future()
                journal.record_durably(ENTRY, on_disk.set_result)
                if not await on_disk:
                    raise TargetFailure(f"the journal says no: {journal.health().reason}")
                took.append(time.perf_counter() - now)

        await asyncio.gather(*(one() for _ in range(concurrency)))
        return time.perf_counter() - begun

    elapsed = asyncio.run(run())
    journal.close()
    return Figure(
        len(took) / elapsed, statistics.median(took) * 1e6, journal.syncs / max(1, len(took))
    )


def node_config(upstream_port: int, durable: str) -> str:
    return (
        "listen: 127.0.0.1:PORT\n"
        f"journal: {{path: journal.db, durable: {durable}}}\n"
        "servers:\n"
        "  up:\n"
        f"    url: http://127.0.0.1:{upstream_port}/mcp\n"
        "    expose: prefixed\n"
        "    effects: {echo: mutating}\n"
    )


def commits(journal: Path) -> int:
    with closing(sqlite3.connect(journal)) as connection:
        counted: int = connection.execute("SELECT count(*) FROM page").fetchone()[0]
    return counted


def by_node(
    bench: Bench, load: LoadProcess, upstream_port: int, durable: str, seconds: float
) -> dict[str, Figure]:
    node, port = bench.interlock(f"durable {durable}", node_config(upstream_port, durable))
    until(
        "the upstream's tools in the node's list",
        node,
        lambda: ask_tools_list(port),
        lambda body: "up.echo" in tool_names(body),
        patience=30.0,
        pause=0.002,
    )
    journal = bench.folder / f"interlock-{port}" / "journal.db"
    figures = {}
    for concurrency in BY_NODE:
        before = commits(journal)
        plan = LoadPlan(
            url=f"http://127.0.0.1:{port}/mcp",
            tools=["up__echo"],
            concurrency=concurrency,
            seconds=seconds,
        )
        report = load.run(plan)
        if report.error_count:
            raise TargetFailure(f"wrong answers: {report.errors} {report.samples[:2]}")
        each = (commits(journal) - before) / max(1, report.answered)
        figures[f"c{concurrency}"] = Figure(report.calls_per_second, report.p50_us, each)
    node.end()
    return figures


def measure(settings: DurableSettings) -> dict[str, Any]:
    runs: dict[str, list[Figure]] = {}

    def keep(name: str, figure: Figure) -> None:
        runs.setdefault(name, []).append(figure)

    with (
        tempfile.TemporaryDirectory(prefix="interlock-bench-") as folder,
        Bench(Path(folder)) as bench,
        LoadProcess() as load,
        console.status("durable"),
    ):
        _, upstream_port = bench.raw_upstream()
        for number in range(settings.rounds):
            home = Path(folder) / f"round-{number}"
            home.mkdir()
            keep("disk", disk(home, settings.seconds))
            for concurrency in CONCURRENT:
                path = home / f"c{concurrency}.db"
                keep(f"journal c{concurrency}", journal_alone(path, concurrency, settings.seconds))
            for durable in ("mutating", "never"):
                figures = by_node(bench, load, upstream_port, durable, settings.seconds)
                for lane, figure in figures.items():
                    keep(f"node {durable} {lane}", figure)
    return {
        "rounds": {name: [msgspec.to_builtins(one) for one in runs[name]] for name in runs},
        "medians": {name: msgspec.to_builtins(median_of(runs[name])) for name in runs},
    }


def median_of(figures: list[Figure]) -> Figure:
    syncs = [one.syncs_per_call for one in figures if one.syncs_per_call is not None]
    return Figure(
        statistics.median(one.per_second for one in figures),
        statistics.median(one.median_us for one in figures),
        statistics.median(syncs) if syncs else None,
    )


def judge(medians: dict[str, dict[str, float | None]]) -> list[Bar]:
    def syncs(name: str) -> float | None:
        return medians.get(name, {}).get("syncs_per_call")

    def rate(name: str) -> float | None:
        return medians.get(name, {}).get("per_second")

    return [
        Bar("syncs a durable call, journal alone, c1", syncs("journal c1"), "<=", 1.0),
        Bar("syncs a durable call, journal alone, c16", syncs("journal c16"), "<=", 0.5),
        # Entries that nobody waits for are committed ten times a second by themselves.
        Bar("commits a durable call, node, c1", syncs("node mutating c1"), "<=", 1.05),
        Bar("commits a durable call, node, c16", syncs("node mutating c16"), "<=", 0.7),
        Bar(
            "durable entries of 16 at a time, of the disk's own rate",
            ratio(rate("journal c16"), rate("disk")),
            ">=",
            1.0,
            note="one at a time cannot be more than 1",
        ),
    ]


def show(result: dict[str, Any], bars: list[Bar]) -> None:
    limit = result["medians"]["disk"]["per_second"]
    rows = [
        [
            name,
            row["per_second"],
            row["median_us"],
            row["syncs_per_call"],
            f"{row['per_second'] / limit:.2f}",
        ]
        for name, row in result["medians"].items()
    ]
    columns = ["what", "a second", "median µs", "syncs a call", "of the disk"]
    show_table("durable", columns, rows)
    show_bars(bars)


def run(settings: DurableSettings) -> tuple[dict[str, Any], list[Bar]]:
    result = measure(settings)
    bars = judge(result["medians"])
    result["bars"] = [bar.shown() for bar in bars]
    show(result, bars)
    return result, bars
