"""What AQL adds to a call: the same echo by its own name, through five endpoints, and through one.

All three are asked of one node, in turns that are short and rotated, so that whatever else happens
on the machine happens to all of them. The cost of a call is the processor time of the node that it
takes. Whoever else uses the machine can only add to that (cold caches, other frequencies), so the
quarter of the turns that took the least is compared. Rates and latencies are medians: they are
what is left where the load, the node and the upstream share two cores.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from bench.asking import ask_tools_list, tool_names, until
from bench.bars import Bar, ratio
from bench.exchange import Mode
from bench.load_process import LoadProcess
from bench.load_run import LoadPlan, LoadReport
from bench.processor import processor_seconds
from bench.report import console, show_bars, show_table
from bench.targets import Bench, endpoint, http_config

LIMIT = 1.25
WIRES: tuple[Mode, ...] = ("session", "stateless")
OPERATION = "up_echo"
CONCURRENCY = (1, 16)


class View(msgspec.Struct, frozen=True):
    name: str
    query: str
    tool: str
    operation: str


VIEWS = (
    View("plain", "", "up.echo", ""),
    View("five endpoints", "?view=aql", "mcp_aql_read", OPERATION),
    View("one endpoint", "?view=aql-single", "mcp_aql", OPERATION),
)


class OverheadSettings(msgspec.Struct, frozen=True):
    rounds: int = 5
    quick: bool = False

    @property
    def turns(self) -> int:
        """Short ones, and many: medians of few would be luck."""
        return self.rounds * (2 if self.quick else 4)

    @property
    def seconds(self) -> float:
        return 0.25


class Turn(msgspec.Struct):
    wire: Mode
    concurrency: int
    view: str
    report: LoadReport
    cpu_us: float


def measure(settings: OverheadSettings) -> dict[str, Any]:
    turns: list[Turn] = []
    with (
        tempfile.TemporaryDirectory(prefix="interlock-bench-") as folder,
        Bench(Path(folder)) as bench,
        LoadProcess() as load,
        console.status("overhead: the same call in three views"),
    ):
        _, upstream_port = bench.raw_upstream()
        node, port = bench.interlock("node", http_config(upstream_port))
        until(
            "the upstream's tools in the node's list",
            node,
            lambda: ask_tools_list(port),
            lambda body: "up.echo" in tool_names(body),
        )
        for number in range(settings.turns):
            first = number % len(VIEWS)
            for wire in WIRES:
                for concurrency in CONCURRENCY:
                    for view in VIEWS[first:] + VIEWS[:first]:
                        plan = LoadPlan(
                            url=endpoint(port) + view.query,
                            mode=wire,
                            tools=[view.tool],
                            operation=view.operation,
                            concurrency=concurrency,
                            seconds=settings.seconds,
                            warmup_seconds=0.05,
                        )
                        before = processor_seconds(node.pid)
                        report = load.run(plan)
                        used = processor_seconds(node.pid) - before
                        cpu_us = used * 1e6 / max(1, report.answered)
                        turns.append(Turn(wire, concurrency, view.name, report, cpu_us))
    return summary(turns)


def summary(turns: list[Turn]) -> dict[str, Any]:
    lanes: dict[str, dict[str, dict[str, float]]] = {}
    for wire in WIRES:
        for concurrency in CONCURRENCY:
            mine = [one for one in turns if (one.wire, one.concurrency) == (wire, concurrency)]
            lanes[f"{wire}, c{concurrency}"] = {
                view.name: figures([one for one in mine if one.view == view.name]) for view in VIEWS
            }
    return {
        "lanes": lanes,
        "wrong_answers": sum(one.report.error_count for one in turns),
        "turns": msgspec.to_builtins(turns),
    }


def figures(turns: list[Turn]) -> dict[str, float]:
    return {
        "calls_per_second": statistics.median(one.report.calls_per_second for one in turns),
        "p50_us": statistics.median(one.report.p50_us for one in turns),
        "cpu_us_per_call": statistics.quantiles([one.cpu_us for one in turns], n=4)[0],
    }


def judge(result: dict[str, Any]) -> list[Bar]:
    bars = []
    for lane, views in result["lanes"].items():
        if not lane.endswith("c16"):
            continue
        for view in VIEWS[1:]:
            plain = views["plain"]["cpu_us_per_call"]
            own = views[view.name]["cpu_us_per_call"]
            what = f"cost of a call through {view.name} / plainly, {lane}"
            more = f"{own - plain:.1f} µs more"
            bars.append(Bar(what, ratio(own, plain), "<=", LIMIT, "×", note=more))
    bars.append(Bar("wrong answers", float(result["wrong_answers"]), "<=", 0.0))
    return bars


def show(result: dict[str, Any], bars: list[Bar]) -> None:
    for lane, views in result["lanes"].items():
        plain = views["plain"]
        rows = [
            [
                name,
                one["calls_per_second"],
                one["p50_us"],
                ratio(one["p50_us"], plain["p50_us"]),
                one["cpu_us_per_call"],
                ratio(one["cpu_us_per_call"], plain["cpu_us_per_call"]),
            ]
            for name, one in views.items()
        ]
        columns = ["view", "calls/s", "p50 µs", "× time", "cpu µs", "× cost"]
        show_table(f"the same call, {lane}", columns, rows)
    show_bars(bars)


def run(settings: OverheadSettings) -> tuple[dict[str, Any], list[Bar]]:
    result = measure(settings)
    bars = judge(result)
    result["bars"] = [bar.shown() for bar in bars]
    show(result, bars)
    return result, bars
