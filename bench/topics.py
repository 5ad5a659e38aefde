"""Topics: one says something, 50 or 200 hear it, and how long that takes.

The node has a journal, knows its sender, reads the head of every envelope and looks at what the
sender may say. The others are bare broadcasts with WebSocket libraries. All of them are up at the
same time and take turns, in rotated order: compare figures of one run only. What a program does
that only sends shows what the kernel takes of whoever writes each message at once to each receiver.

Then one of 200 stops reading, while nobody does in another room of the same node: what the others
notice of it, what it costs the node's memory, and what the one is told when it reads again.
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
from bench.topic_peers import ONLY_SENDS
from bench.topic_sends import SEND

NODE = "node"
REFERENCE = "websockets"
LIBRARIES = tuple(name for name in topic_peers.PEERS if name != ONLY_SENDS)
SIZES = (50, 200)
WINDOWS = (1, 32)
FLOOR, FAST = 0.7, 1.5
MOST_CHANGE = 1.2
MOST_GROWTH = 32 * 1024 * 1024
MOST_MATCHER_US = 1.0
PUMPED = 40_000
"""Messages while one sleeps, 12 MB: more than its buffers and its queue take together."""
ROOMS = ("bench-one", "bench-two")


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
        """Of one of the runs in the room of the sleeper, and of those in the other room: of shorter
        ones a p99 says little."""
        return 0.2 if self.quick else 0.6

    @property
    def pairs(self) -> int:
        """Of such runs, one behind the other: with each window, and a sleeper in each room."""
        return self.rounds * (1 if self.quick else 2)


class Target(msgspec.Struct, frozen=True):
    name: str
    pid: int
    port: int

    def join(self, crowd: CrowdProcess, receivers: int, room: str = ROOMS[0]) -> None:
        if self.name == NODE:
            path = f"/ws?topic={room}"
            crowd(
                "join", port=self.port, path=path, sender_path=path, token=topic_gateway.TOKEN,
                receivers=receivers,
            )  # fmt: skip
        else:
            crowd("join", port=self.port, sender_path=SEND, receivers=receivers)


class Turn(msgspec.Struct):
    target: str
    receivers: int
    window: int
    figures: Figures
    per_second: float
    cpu_us: float
    """Processor time of the target for a delivery."""


class Pair(msgspec.Struct):
    """p99 in the room in which one sleeps, and in the other."""

    window: int
    asleep_us: float
    awake_us: float


class Sleep(msgspec.Struct):
    """One time in which a receiver did not read."""

    pairs: list[Pair]
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
    """One of the most receivers of one room sleeps, then one of the other room."""
    with CrowdProcess() as beside:
        crowds = (crowd, beside)
        for one, room in zip(crowds, ROOMS, strict=True):
            node.join(one, SIZES[-1], room)
            one("pump", messages=PUMPED // 4, window=WINDOWS[-1])
        base = resident_bytes(node.pid)
        sleeps = [
            _sleep(node, sleeper, other, base, settings)
            for sleeper, other in (crowds, crowds[::-1])
        ]
        for one in crowds:
            one("leave")
    return sleeps


def _sleep(
    node: Target, sleeper: CrowdProcess, other: CrowdProcess, base: int, settings: TopicSettings
) -> Sleep:
    sleeper("stall")
    sleeper("pump", messages=PUMPED, window=WINDOWS[-1])
    pairs: list[Pair] = []
    for number in range(settings.pairs):
        for window in WINDOWS:
            # Each of the two is as often the first as the second.
            order = (sleeper, other) if number % 2 else (other, sleeper)
            runs = {
                one: one("run", seconds=settings.asleep_seconds, window=window).p99_us
                for one in order
            }
            pairs.append(Pair(window, runs[sleeper], runs[other]))
    growth = resident_bytes(node.pid) - base
    return Sleep(pairs, growth, sleeper("wake").lost)


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
    bars = [
        _against_the_reference(receivers, window, lane)
        for receivers in SIZES
        for window in WINDOWS
        if (lane := result["lanes"].get(lane_name(receivers, window)))
    ]
    for receivers in SIZES:
        name = lane_name(receivers, 1)
        lane = result["lanes"].get(name, {})
        share = ratio(_rate(lane, NODE), _rate(lane, ONLY_SENDS))
        bars.append(
            Bar(f"deliveries/s / a program that only sends, {name}", share, ">=", FLOOR, "×")
        )
    sleeps = result["sleeps"]
    for window in WINDOWS:
        changes = [
            pair["asleep_us"] / pair["awake_us"]
            for one in sleeps
            for pair in one["pairs"]
            if pair["window"] == window
        ]
        what = (
            f"p99 of the others while one sleeps / where none does, {lane_name(SIZES[-1], window)}"
        )
        middle = statistics.median(changes) if changes else None
        bars.append(
            Bar(what, middle, "<=", MOST_CHANGE, "×", note=f"median of {len(changes)} pairs")
        )
    most = max((one["growth"] for one in sleeps), default=None)
    mebibytes = None if most is None else most / (1 << 20)
    bars.append(Bar("memory while one sleeps", mebibytes, "<=", MOST_GROWTH / (1 << 20), "MiB"))
    told = float(min(one["lost"] for one in sleeps)) if sleeps else None
    bars.append(Bar("messages that it was told it lost", told, ">=", 1.0))
    matcher = result.get("matcher_us")
    bars.append(Bar("a known kind against 20 patterns", matcher, "<=", MOST_MATCHER_US, "µs"))
    return bars


def _against_the_reference(receivers: int, window: int, lane: dict[str, Any]) -> Bar:
    """At full speed the node has to be faster. Where everybody waits for each message, a quiet
    machine lets nobody be by as much: there it is an aim, beside what a program has that only
    sends."""
    bare = _rate(lane, REFERENCE)
    what = f"deliveries/s / bare {REFERENCE}, {lane_name(receivers, window)}"
    own = ratio(_rate(lane, NODE), bare)
    reference = ratio(_rate(lane, ONLY_SENDS), bare)
    beside = "" if reference is None else f"a program that only sends: {reference:.2f} ×"
    if window == 1:
        return Bar(what, own, ">=", FLOOR, "×", aim=FAST, note=beside)
    quickest = ratio(max((_rate(lane, one) or 0.0 for one in LIBRARIES), default=None), bare)
    if quickest:
        beside = f"the quickest bare library: {quickest:.2f} ×; {beside}"
    return Bar(what, own, ">=", FAST, "×", note=beside)


def _rate(lane: dict[str, Any], target: str) -> float | None:
    figures = lane.get(target)
    return None if figures is None else float(figures["per_second"])


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
