"""Topics: one says something, 50 or 200 hear it, and how long that takes.

The node has a journal, knows its sender, reads the head of every envelope and looks at what the
sender may say. The others are bare broadcasts with WebSocket libraries. All of them are up at the
same time and take turns, in rotated order: compare figures of one run only.

Then one of 200 stops reading, again and again: what the others notice of it, what it costs the
node's memory, and what the one is told when it reads again.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from bench import topic_gateway, topic_peers
from bench.bars import Bar, ratio
from bench.processor import processor_seconds, resident_bytes
from bench.report import console, note, show_bars, show_table
from bench.targets import Bench, TargetMissing
from bench.topic_crowd import CrowdProcess
from bench.topic_load import Figures

NODE = "node"
REFERENCE = "websockets"
SIZES = (50, 200)
WINDOWS = (1, 32)
FLOOR, FAST = 0.7, 1.5
MOST_CHANGE = 1.2
MOST_GROWTH = 32 * 1024 * 1024
MOST_MATCHER_US = 1.0
PUMPED = 40_000
"""Messages while one sleeps, 12 MB: more than its buffers and its queue take together."""
PIECES = 4
"""Short runs in each state, before and while one sleeps."""


class TopicSettings(msgspec.Struct, frozen=True):
    rounds: int = 5
    quick: bool = False

    @property
    def turns(self) -> int:
        """Short ones, and many: medians of few would be luck."""
        return self.rounds * (1 if self.quick else 3)

    @property
    def seconds(self) -> float:
        """Of one turn."""
        return 0.4 if self.quick else 0.5

    @property
    def asleep_seconds(self) -> float:
        """Of one of the pieces before and while one sleeps: of shorter ones a p99 says little."""
        return 0.2 if self.quick else 0.75


class Target(msgspec.Struct, frozen=True):
    name: str
    pid: int
    port: int

    def join(self, crowd: CrowdProcess, receivers: int) -> None:
        if self.name == NODE:
            path = "/ws?topic=bench"
            crowd(
                "join", port=self.port, path=path, sender_path=path, token=topic_gateway.TOKEN,
                receivers=receivers,
            )  # fmt: skip
        else:
            crowd("join", port=self.port, sender_path=topic_peers.SEND, receivers=receivers)


class Turn(msgspec.Struct):
    target: str
    receivers: int
    window: int
    figures: Figures
    per_second: float
    cpu_us: float
    """Processor time of the target for a delivery."""


class Sleep(msgspec.Struct):
    """One time in which a receiver did not read, and the time before it."""

    window: int
    awake_p99_us: list[float]
    asleep_p99_us: list[float]
    growth: int
    lost: int


def measure(settings: TopicSettings) -> dict[str, Any]:
    turns: list[Turn] = []
    with (
        tempfile.TemporaryDirectory(prefix="interlock-bench-") as folder,
        Bench(Path(folder)) as bench,
        CrowdProcess() as crowd,
        console.status("topics: one speaks, many listen"),
    ):
        targets, missing = _targets(bench)
        for number in range(settings.turns):
            first = number % len(targets)
            for target in targets[first:] + targets[:first]:
                for receivers in SIZES:
                    target.join(crowd, receivers)
                    crowd("run", seconds=0.1, window=WINDOWS[-1])
                    for window in WINDOWS:
                        turns.append(_turn(crowd, target, receivers, window, settings.seconds))
                    crowd("leave")
        sleeps = _sleeps(crowd, targets[0], settings)
    return {
        "lanes": lanes(turns),
        "sleeps": msgspec.to_builtins(sleeps),
        "matcher_us": topic_gateway.matcher_us(),
        "missing": missing,
        "turns": msgspec.to_builtins(turns),
    }


def _targets(bench: Bench) -> tuple[list[Target], list[str]]:
    node, port = topic_gateway.start(bench)
    targets, missing = [Target(NODE, node.pid, port)], []
    for name in topic_peers.PEERS:
        try:
            targets.append(Target(name, *topic_peers.start(bench, name)))
        except TargetMissing as why:
            missing.append(str(why))
    return targets, missing


def _turn(crowd: CrowdProcess, target: Target, receivers: int, window: int, seconds: float) -> Turn:
    before = processor_seconds(target.pid)
    figures = crowd("run", seconds=seconds, window=window)
    used = processor_seconds(target.pid) - before
    cpu_us = used * 1e6 / max(1, figures.deliveries)
    return Turn(target.name, receivers, window, figures, figures.per_second, cpu_us)


def _sleeps(crowd: CrowdProcess, node: Target, settings: TopicSettings) -> list[Sleep]:
    """One of the most receivers sleeps, and wakes, and sleeps."""
    node.join(crowd, SIZES[-1])
    crowd("pump", messages=PUMPED // 4, window=WINDOWS[-1])
    base = resident_bytes(node.pid)
    sleeps: list[Sleep] = []
    for number in range(settings.rounds * 2):
        window = WINDOWS[number % 2]

        def p99s(window: int = window) -> list[float]:
            runs = [
                crowd("run", seconds=settings.asleep_seconds, window=window) for _ in range(PIECES)
            ]
            return [run.p99_us for run in runs]

        awake = p99s()
        crowd("stall")
        crowd("pump", messages=PUMPED, window=WINDOWS[-1])
        asleep = p99s()
        growth = resident_bytes(node.pid) - base
        lost = crowd("wake").lost
        sleeps.append(Sleep(window, awake, asleep, growth, lost))
    crowd("leave")
    return sleeps


def lanes(turns: list[Turn]) -> dict[str, dict[str, dict[str, float]]]:
    """Medians over the turns, by receivers and window, then by target."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for receivers in SIZES:
        for window in WINDOWS:
            lane = found[lane_name(receivers, window)] = {}
            for name in dict.fromkeys(one.target for one in turns):
                mine = [
                    one
                    for one in turns
                    if (one.target, one.receivers, one.window) == (name, receivers, window)
                ]
                if mine:
                    lane[name] = {
                        "per_second": statistics.median(one.per_second for one in mine),
                        "p50_us": statistics.median(one.figures.p50_us for one in mine),
                        "p99_us": statistics.median(one.figures.p99_us for one in mine),
                        "cpu_us": statistics.median(one.cpu_us for one in mine),
                    }
    return found


def lane_name(receivers: int, window: int) -> str:
    how = "one at a time" if window == 1 else f"{window} on their way"
    return f"{receivers} receivers, {how}"


def judge(result: dict[str, Any]) -> list[Bar]:
    bars = []
    for name, lane in result["lanes"].items():
        own = lane.get(NODE, {}).get("per_second")
        bare = lane.get(REFERENCE, {}).get("per_second")
        what = f"deliveries/s / bare {REFERENCE}, {name}"
        quickest = ratio(
            max((one["per_second"] for who, one in lane.items() if who != NODE), default=None), bare
        )
        best = f"the floor is {FLOOR} ×"
        if quickest is not None:
            best += f"; the quickest bare library: {quickest:.2f} ×"
        bars.append(Bar(what, ratio(own, bare), ">=", FAST, "×", note=best))
    for window in WINDOWS:
        mine = [one for one in result["sleeps"] if one["window"] == window]
        asleep = _quietest([p99 for one in mine for p99 in one["asleep_p99_us"]])
        awake = _quietest([p99 for one in mine for p99 in one["awake_p99_us"]])
        what = f"p99 of the others while one sleeps / before, {lane_name(SIZES[-1], window)}"
        bars.append(Bar(what, ratio(asleep, awake), "<=", MOST_CHANGE, "×"))
    sleeps = result["sleeps"]
    most = max((one["growth"] for one in sleeps), default=None)
    mebibytes = None if most is None else most / (1 << 20)
    bars.append(Bar("memory while one sleeps", mebibytes, "<=", MOST_GROWTH / (1 << 20), "MiB"))
    told = float(min(one["lost"] for one in sleeps)) if sleeps else None
    bars.append(Bar("messages that it was told it lost", told, ">=", 1.0))
    matcher = result.get("matcher_us")
    bars.append(Bar("a known kind against 20 patterns", matcher, "<=", MOST_MATCHER_US, "µs"))
    return bars


def _quietest(values: list[float]) -> float | None:
    """Of the quarter that was disturbed least: whoever else uses the machine can only add."""
    return statistics.quantiles(values, n=4)[0] if len(values) > 1 else None


def show(result: dict[str, Any], bars: list[Bar]) -> None:
    for name, lane in result["lanes"].items():
        bare = lane.get(REFERENCE, {}).get("per_second")
        rows = [
            [
                target,
                figures["per_second"],
                ratio(figures["per_second"], bare),
                figures["p50_us"],
                figures["p99_us"],
                figures["cpu_us"],
            ]
            for target, figures in lane.items()
        ]
        columns = ("", "deliveries/s", f"× {REFERENCE}", "p50 µs", "p99 µs", "cpu µs")
        show_table(name, columns, rows)
    for why in result["missing"]:
        note(why)
    show_bars(bars)


def run(settings: TopicSettings) -> tuple[dict[str, Any], list[Bar]]:
    result = measure(settings)
    bars = judge(result)
    show(result, bars)
    return result, bars
