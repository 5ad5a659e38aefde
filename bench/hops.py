"""The hop benchmark: one call through 1, 2, 4 and 8 nodes in a row, and what each of them costs.

Eight nodes are joined by `parent:` over WebSocket on loopback; the last has the raw upstream. A
call that enters at the last node passes one, a call that enters at the first passes all of them,
so that every length is measured on the same processes. The cost of a hop is a difference of
seconds per call: the first is one node against the upstream itself, a further one is the rest of
the way divided by the nodes on it.

At concurrency 16 seconds per call are one over the throughput. Where two cores are shared, some of
a node's work hides behind that of another process; on one core nothing hides. Both are measured.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Any

import msgspec
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.asking import ask_tools_list, tool_names, until
from bench.bars import Bar, ratio
from bench.load_process import LoadProcess
from bench.load_run import LoadFailure, LoadPlan, LoadReport
from bench.processes import TargetProcess
from bench.processor import all_cores, processor_seconds, run_on
from bench.report import console, show_bars, show_table
from bench.targets import Bench, endpoint

LENGTHS = (1, 2, 4, 8)
NODES = max(LENGTHS)


class HopLane(msgspec.Struct, frozen=True):
    name: str
    concurrency: int
    seconds: float
    one_core: bool = False


class HopSettings(msgspec.Struct, frozen=True):
    rounds: int = 5
    quick: bool = False

    @property
    def turns(self) -> int:
        """Short ones, and many: what is judged are differences, and those of few would be luck."""
        return self.rounds * (1 if self.quick else 4)

    @property
    def lanes(self) -> list[HopLane]:
        scale = 0.5
        return [
            HopLane("c16", 16, 0.7 * scale),
            HopLane("c16 one core", 16, 0.7 * scale, one_core=True),
            HopLane("c1", 1, 0.4 * scale),
        ]


class Entry(msgspec.Struct, frozen=True):
    """Where calls go in, and how many nodes they pass. 0: the upstream itself."""

    nodes: int
    url: str
    tool: str

    @property
    def name(self) -> str:
        return "direct" if not self.nodes else f"{self.nodes} node{'s' if self.nodes > 1 else ''}"


class HopMeasurement(msgspec.Struct):
    round: int
    lane: str
    nodes: int
    report: LoadReport
    cpu_us_per_call: list[float]
    """Of each node on the way, the one that is called first."""


def segment(place: int) -> str:
    """What the node at this place is called by the one before it."""
    return f"n{place}"


def chain_config(place: int, parent_port: int | None, upstream_port: int) -> str:
    """The node at this place, 1 for the first: registered with the one before it."""
    lines = ["listen: 127.0.0.1:PORT"]
    if parent_port is not None:
        lines += [
            "parent:",
            f"  url: ws://127.0.0.1:{parent_port}/ax",
            f"  segment: {segment(place)}",
        ]
    if place == NODES:
        lines += [
            "servers:",
            "  up:",
            f"    url: http://127.0.0.1:{upstream_port}/mcp",
            "    expose: prefixed",
        ]
    return "\n".join(lines) + "\n"


def tool_at(place: int) -> str:
    """The echo tool as the node at this place calls it."""
    further = [segment(one) for one in range(place + 1, NODES + 1)]
    return ".".join([*further, "up", "echo"])


def start_chain(bench: Bench) -> tuple[list[TargetProcess], list[Entry]]:
    """The upstream and all nodes, once the first of them lists the tool of the last."""
    _, upstream_port = bench.raw_upstream()
    nodes: list[TargetProcess] = []
    ports: list[int] = []
    for place in range(1, NODES + 1):
        config = chain_config(place, ports[-1] if ports else None, upstream_port)
        process, port = bench.interlock(f"node {place}", config)
        nodes.append(process)
        ports.append(port)
    for place, (process, port) in enumerate(zip(nodes, ports, strict=True), 1):
        wait_for_tool(process, port, tool_at(place))
    entries = [Entry(0, endpoint(upstream_port), "echo")]
    for nodes_passed in LENGTHS:
        place = NODES - nodes_passed + 1
        entries.append(Entry(nodes_passed, endpoint(ports[place - 1]), tool_at(place)))
    return nodes, entries


def wait_for_tool(node: TargetProcess, port: int, tool: str) -> None:
    until(
        f"{tool} in the list of {node.name}",
        node,
        lambda: ask_tools_list(port),
        lambda body: tool in tool_names(body),
    )


def measure(settings: HopSettings) -> dict[str, Any]:
    with (
        tempfile.TemporaryDirectory(prefix="interlock-bench-") as folder,
        Bench(Path(folder)) as bench,
        LoadProcess() as load,
    ):
        with console.status("starting eight nodes"):
            nodes, entries = start_chain(bench)
        measurements = run_rounds(settings, bench, load, nodes, entries)
    medians = median_figures(measurements)
    return {
        "rounds": [msgspec.to_builtins(entry) for entry in measurements],
        "medians": medians,
        "hops": {lane: hop_costs(figures) for lane, figures in medians.items()},
        "wrong_answers": sum(entry.report.error_count for entry in measurements),
    }


def run_rounds(
    settings: HopSettings,
    bench: Bench,
    load: LoadProcess,
    nodes: list[TargetProcess],
    entries: list[Entry],
) -> list[HopMeasurement]:
    measurements: list[HopMeasurement] = []
    cores = all_cores()
    pids = [load.pid, *(process.pid for process in bench.processes)]
    total = settings.turns * len(settings.lanes) * len(entries)
    columns = (TextColumn("{task.description:<36}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
        task = progress.add_task("hops", total=total)
        for number in range(1, settings.turns + 1):
            turn = (number - 1) % len(entries)
            for lane in settings.lanes:
                run_on({max(cores)} if lane.one_core else cores, pids)
                for entry in entries[turn:] + entries[:turn]:
                    described = f"turn {number} · {lane.name} · {entry.name}"
                    progress.update(task, description=described)
                    on_the_way = nodes[len(nodes) - entry.nodes :]
                    measurements.append(measure_one(load, number, lane, entry, on_the_way))
                    progress.advance(task)
            run_on(cores, pids)
    return measurements


def measure_one(
    load: LoadProcess, number: int, lane: HopLane, entry: Entry, nodes: list[TargetProcess]
) -> HopMeasurement:
    before = [processor_seconds(process.pid) for process in nodes]
    plan = LoadPlan(
        url=entry.url,
        # The wire that nodes speak among each other, so that every length is compared on the same.
        mode="stateless",
        tools=[entry.tool],
        concurrency=lane.concurrency,
        seconds=lane.seconds,
        warmup_seconds=0.12,
    )
    try:
        report = load.run(plan)
    except LoadFailure as cause:
        raise LoadFailure(f"{lane.name} · {entry.name}: {cause}") from cause
    used = [
        round((processor_seconds(process.pid) - was) * 1e6 / max(1, report.answered), 2)
        for process, was in zip(nodes, before, strict=True)
    ]
    return HopMeasurement(number, lane.name, entry.nodes, report, used)


Figures = dict[int, dict[str, float]]
"""nodes on the way → figure → median over the turns."""


def median_figures(measurements: list[HopMeasurement]) -> dict[str, Figures]:
    grouped: dict[tuple[str, int], list[HopMeasurement]] = {}
    for entry in measurements:
        grouped.setdefault((entry.lane, entry.nodes), []).append(entry)
    medians: dict[str, Figures] = {}
    for (lane, nodes), entries in grouped.items():
        reports = [entry.report for entry in entries]
        cpu = [entry.cpu_us_per_call for entry in entries]
        rate = statistics.median(one.calls_per_second for one in reports)
        figures = {
            "calls_per_second": rate,
            "p50_us": statistics.median(one.p50_us for one in reports),
            "p99_us": statistics.median(one.p99_us for one in reports),
            "errors": float(sum(one.error_count for one in reports)),
            # With one caller a call's time is its latency; with many it is a share of the machine.
            "us_per_call": 1e6 / rate if rate else 0.0,
        }
        if nodes:
            figures["cpu_first_us"] = statistics.median(one[0] for one in cpu)
            figures["cpu_last_us"] = statistics.median(one[-1] for one in cpu)
        if nodes > 2:
            figures["cpu_between_us"] = statistics.median(statistics.mean(one[1:-1]) for one in cpu)
        medians.setdefault(lane, {})[nodes] = figures
    return medians


def hop_costs(figures: Figures) -> dict[str, float]:
    """What the first node adds to a call, and what each further one does, in µs."""
    per_call = {nodes: row["us_per_call"] for nodes, row in figures.items()}
    costs = {"first_us": per_call[1] - per_call[0]}
    for nodes in LENGTHS[1:]:
        costs[f"further_of_{nodes}_us"] = (per_call[nodes] - per_call[1]) / (nodes - 1)
    return costs


def judge(result: dict[str, Any]) -> list[Bar]:
    bars: list[Bar] = []
    for lane, costs in result["hops"].items():
        if lane == "c1":
            # One caller waits for wake-ups rather than for work: shown, not judged.
            continue
        for nodes in LENGTHS[1:]:
            further = costs[f"further_of_{nodes}_us"]
            bars.append(
                Bar(
                    f"a further hop / the first, {nodes} nodes, {lane}",
                    ratio(further, costs["first_us"]),
                    "<=",
                    1.0,
                    "×",
                    note=f"{further:.1f} µs against {costs['first_us']:.1f} µs",
                )
            )
    bars.append(Bar("wrong or missing answers", float(result["wrong_answers"]), "<=", 0.0))
    return bars


def show(result: dict[str, Any], bars: list[Bar]) -> None:
    for lane, figures in result["medians"].items():
        costs = result["hops"][lane]
        rows = []
        for nodes, row in figures.items():
            hop = costs["first_us"] if nodes == 1 else costs.get(f"further_of_{nodes}_us")
            rows.append(
                [
                    Entry(nodes, "", "").name,
                    row["calls_per_second"],
                    row["p50_us"],
                    row["p99_us"],
                    row["us_per_call"],
                    hop,
                    row.get("cpu_first_us"),
                    row.get("cpu_between_us"),
                    row.get("cpu_last_us"),
                    f"{row['errors']:.0f}",
                ]
            )
        columns = ["on the way", "calls/s", "p50 µs", "p99 µs", "µs/call", "a hop µs"]
        cpu = ["cpu first", "between", "last µs"]
        show_table(f"tools/call through nodes, {lane}", [*columns, *cpu, "errors"], rows)
    show_bars(bars)


def run(settings: HopSettings) -> tuple[dict[str, Any], list[Bar]]:
    result = measure(settings)
    bars = judge(result)
    result["bars"] = [bar.shown() for bar in bars]
    show(result, bars)
    return result, bars
