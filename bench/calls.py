"""The call benchmark: every target in turn, turns interleaved and rotated, medians compared.

Concurrency 1 is measured in three placements: as the scheduler has it, with the target on a core
of its own (as a proxy has that does not share its caller's machine), and with everything held on
one core. Where the scheduler decides, direct calls jump between the last two from one moment to
the next. Crossing cores costs a wake-up each time; on one core only the work itself is left.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Any, Literal

import msgspec
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.bars import Bar, ratio
from bench.load_process import LoadProcess
from bench.load_run import LoadFailure, LoadPlan, LoadReport
from bench.processor import all_cores, processor_seconds, run_on
from bench.report import console, note, show_bars, show_table
from bench.targets import Bench, Running, TargetFailure, TargetMissing, call_targets


class Lane(msgspec.Struct, frozen=True):
    """A way to load a target: how many callers, how long, and on which cores."""

    name: str
    concurrency: int
    seconds: float
    slow_calls: int
    placement: Literal["free", "own core", "one core"] = "free"


class CallSettings(msgspec.Struct, frozen=True):
    rounds: int = 5
    quick: bool = False
    nginx_workers: int = 1
    only: tuple[str, ...] = ()

    @property
    def turns(self) -> int:
        """Of a round. Short ones, and many: a neighbour of the machine that is busy for a second
        or two then spoils a few of them, and the medians are of the others."""
        return 1 if self.quick else 3

    @property
    def lanes(self) -> list[Lane]:
        scale = 0.5
        lanes = [
            Lane("c1", 1, 0.6 * scale, 10),
            Lane("c1 own core", 1, 0.5 * scale, 8, placement="own core"),
            Lane("c1 one core", 1, 0.5 * scale, 8, placement="one core"),
            Lane("c16", 16, 1.0 * scale, 32),
            Lane("c64", 64, 0.8 * scale, 64),
        ]
        return [lane for lane in lanes if not (self.quick and lane.concurrency == 64)]


class Measurement(msgspec.Struct):
    round: int
    lane: str
    target: str
    report: LoadReport
    cpu_us_per_call: float
    """What the target's own processes used, whoever else was busy."""


def start_targets(bench: Bench, only: tuple[str, ...]) -> tuple[list[Running], dict[str, str]]:
    """Start what can be started; the rest is skipped with its reason."""
    running: list[Running] = []
    skipped: dict[str, str] = {}
    for names, start in call_targets(bench).items():
        if only and not set(only) & set(names):
            continue
        try:
            running.extend(start())
        except (TargetMissing, TargetFailure) as cause:
            skipped |= dict.fromkeys(names, str(cause))
            note(f"{', '.join(names)} left out: {cause}")
    return [target for target in running if not only or target.name in only], skipped


def plan_for(target: Running, lane: Lane) -> LoadPlan:
    return LoadPlan(
        url=target.url,
        mode=target.mode,
        tools=[target.tool],
        concurrency=lane.concurrency,
        seconds=None if target.slow else lane.seconds,
        calls=lane.slow_calls if target.slow else None,
        warmup_seconds=0.12,
        warmup_calls=2 if target.slow else None,
    )


def measure(settings: CallSettings) -> dict[str, Any]:
    """Run every round; returns measurements, medians, ratios and bars, ready to be written."""
    with (
        tempfile.TemporaryDirectory(prefix="interlock-bench-") as folder,
        Bench(Path(folder), settings.nginx_workers) as bench,
        LoadProcess() as load,
    ):
        targets, skipped = start_targets(bench, settings.only)
        measurements = run_rounds(settings, bench, load, targets)
    medians = median_figures(measurements)
    bars = judge(medians)
    return {
        "rounds": [msgspec.to_builtins(entry) for entry in measurements],
        "skipped": skipped,
        "medians": medians,
        "ratios": ratios(medians),
        "bars": [bar.shown() for bar in bars],
        "wrong_answers": sum(entry.report.error_count for entry in measurements),
    }


def run_rounds(
    settings: CallSettings, bench: Bench, load: LoadProcess, targets: list[Running]
) -> list[Measurement]:
    measurements: list[Measurement] = []
    quick_ones = [target for target in targets if not target.slow]
    lanes = len(settings.lanes)
    total = settings.rounds * lanes * (len(targets) + (settings.turns - 1) * len(quick_ones))
    cores = all_cores()
    columns = (TextColumn("{task.description:<36}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
        task = progress.add_task("calls", total=total)
        for number in range(settings.rounds * settings.turns):
            round_number, turn = divmod(number, settings.turns)
            round_number += 1
            # Those that are slow by orders of magnitude are asked once in a round.
            asked = quick_ones if turn else targets
            for lane in settings.lanes:
                pids = [load.pid, *(process.pid for process in bench.processes)]
                run_on(cores if lane.placement == "free" else {max(cores)}, pids)
                first = number % max(1, len(asked))
                for target in asked[first:] + asked[:first]:
                    described = f"round {round_number} · {lane.name} · {target.name}"
                    progress.update(task, description=described)
                    if lane.placement == "own core":
                        run_on({min(cores)}, [target.process.pid])
                    before = processor_seconds(target.process.pid)
                    try:
                        report = load.run(plan_for(target, lane))
                    except LoadFailure as cause:
                        raise LoadFailure(f"{described}: {cause}") from cause
                    used = processor_seconds(target.process.pid) - before
                    if lane.placement == "own core":
                        run_on({max(cores)}, [target.process.pid])
                    used_us = round(used * 1e6 / max(1, report.answered), 2)
                    measurements.append(
                        Measurement(round_number, lane.name, target.name, report, used_us)
                    )
                    progress.advance(task)
                run_on(cores, pids)
    return measurements


RATE = "calls_per_second"
PEERS = ("direct", "nginx", "fastmcp", "mcp-proxy")

Medians = dict[str, dict[str, dict[str, float]]]
"""lane → target → figure → median over the turns."""


def median_figures(measurements: list[Measurement]) -> Medians:
    grouped: dict[tuple[str, str], list[Measurement]] = {}
    for entry in measurements:
        grouped.setdefault((entry.lane, entry.target), []).append(entry)
    medians: Medians = {}
    for (lane, target), entries in grouped.items():
        reports = [entry.report for entry in entries]
        medians.setdefault(lane, {})[target] = {
            "calls_per_second": statistics.median(one.calls_per_second for one in reports),
            "p50_us": statistics.median(one.p50_us for one in reports),
            "p99_us": statistics.median(one.p99_us for one in reports),
            "cpu_us_per_call": statistics.median(one.cpu_us_per_call for one in entries),
            "errors": float(sum(one.error_count for one in reports)),
        }
    return medians


def figure(medians: Medians, lane: str, target: str, name: str = RATE) -> float | None:
    return medians.get(lane, {}).get(target, {}).get(name)


def same_wire(target: str, peer: str) -> str:
    """The peer's row that had the same requests as the target's."""
    both_wires = peer in ("direct", "nginx")
    return f"{peer} stateless" if both_wires and target.endswith("stateless") else peer


def added_latency(medians: Medians, lane: str, target: str) -> float | None:
    """p50 beyond the upstream's own, in µs."""
    own = figure(medians, lane, target, "p50_us")
    direct = figure(medians, lane, same_wire(target, "direct"), "p50_us")
    return None if own is None or direct is None else own - direct


def ratios(medians: Medians) -> dict[str, Any]:
    answer: dict[str, Any] = {}
    for lane, targets in medians.items():
        for target in targets:
            rate = figure(medians, lane, target)
            row = {}
            for peer in PEERS:
                other = same_wire(target, peer)
                row[f"of_{peer}"] = ratio(rate, figure(medians, lane, other))
            if lane.startswith("c1 ") or lane == "c1":
                added = added_latency(medians, lane, target)
                nginx = added_latency(medians, lane, same_wire(target, "nginx"))
                row["added_us"] = added
                row["added_of_nginx"] = ratio(added, nginx)
            answer.setdefault(lane, {})[target] = row
    return answer


INTERLOCK_HTTP = ("interlock session", "interlock stateless")


def judge(medians: Medians) -> list[Bar]:
    used = figure(medians, "c16", "direct", "cpu_us_per_call")
    bars = [
        Bar(
            "the raw upstream is no bottleneck: direct / nginx, c16",
            ratio(figure(medians, "c16", "direct"), figure(medians, "c16", "nginx")),
            ">=",
            2.0,
            "×",
            note=f"a core of it does {1e6 / used:,.0f} calls/s" if used else "",
        )
    ]
    for target in INTERLOCK_HTTP:
        nginx = figure(medians, "c16", same_wire(target, "nginx"))
        rate = figure(medians, "c16", target)
        bars.append(Bar(f"{target} / nginx, c16", ratio(rate, nginx), ">=", 0.5, "×", aim=0.8))
    rate, nginx = figure(medians, "c16", "interlock guarded"), figure(medians, "c16", "nginx")
    guarded = "interlock with rules and a budget / nginx, c16"
    bars.append(Bar(guarded, ratio(rate, nginx), ">=", 0.45, "×"))
    for target in INTERLOCK_HTTP:
        rate = figure(medians, "c16", target)
        peer = figure(medians, "c16", "fastmcp")
        bars.append(Bar(f"{target} / FastMCP's proxy, c16", ratio(rate, peer), ">=", 200.0, "×"))
    stdio = figure(medians, "c16", "interlock stdio")
    peer = figure(medians, "c16", "mcp-proxy")
    bars.append(Bar("interlock stdio / npm mcp-proxy, c16", ratio(stdio, peer), ">=", 5.0, "×"))
    for lane in ("c1", "c1 own core", "c1 one core"):
        for target in INTERLOCK_HTTP:
            added = added_latency(medians, lane, target)
            nginx_added = added_latency(medians, lane, same_wire(target, "nginx"))
            detail = ""
            if added is not None and nginx_added is not None:
                detail = f"{added:.0f} µs against {nginx_added:.0f} µs"
            what = f"{target}: latency added / nginx's, {lane}"
            bars.append(Bar(what, ratio(added, nginx_added), "<=", 2.0, "×", note=detail))
    errors = sum(row["errors"] for targets in medians.values() for row in targets.values())
    bars.append(Bar("wrong or missing answers, all targets", errors, "<=", 0.0))
    return bars


def show(result: dict[str, Any], bars: list[Bar]) -> None:
    medians: Medians = result["medians"]
    for lane, targets in medians.items():
        rows = []
        for target, figures in targets.items():
            compared = result["ratios"][lane][target]
            added = compared.get("added_us")
            rows.append(
                [
                    target,
                    figures["calls_per_second"],
                    figures["p50_us"],
                    figures["p99_us"],
                    *(compared[f"of_{peer}"] for peer in PEERS),
                    added,
                    figures["cpu_us_per_call"],
                    f"{figures['errors']:.0f}",
                ]
            )
        columns = ["target", "calls/s", "p50 µs", "p99 µs", "× direct", "× nginx", "× fastmcp"]
        title = f"tools/call, {lane} (medians of the turns)"
        show_table(title, [*columns, "× mcp-proxy", "added µs", "cpu µs", "errors"], rows)
    show_bars(bars)


def run(settings: CallSettings) -> tuple[dict[str, Any], list[Bar]]:
    result = measure(settings)
    bars = judge(result["medians"])
    show(result, bars)
    return result, bars
