"""``python -m bench``: runs benchmarks, prints what they found, writes it as JSON."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from bench import (
    calls,
    churn,
    crowd,
    cut,
    decisions,
    drivers,
    durable,
    effects,
    finding,
    hops,
    lists,
    overhead,
    startup,
    tokens,
    topics,
)
from bench.bars import Bar
from bench.load_run import LoadFailure
from bench.processor import machine_facts
from bench.report import console, note
from bench.targets import TargetFailure, TargetMissing

DEFAULT = (
    "calls",
    "lists",
    "startup",
    "hops",
    "crowd",
    "cut",
    "durable",
    "decisions",
    "overhead",
    "tokens",
    "finding",
    "effects",
    "topics",
    "drivers",
)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument(
        "which", nargs="?", choices=(*DEFAULT, "churn", "all"), help="default: all but churn"
    )
    parser.add_argument("--quick", action="store_true", help="short runs, about a minute")
    parser.add_argument("--rounds", type=int, help="interleaved rounds (default 5, quick 3)")
    parser.add_argument("--cycles", type=int, help="kills of the churn run (default 1000)")
    parser.add_argument("--seed", type=int, help="makes the churn run's choices repeatable")
    parser.add_argument("--only", action="append", default=[], help="a target of calls, by name")
    parser.add_argument(
        "--livemcpbench",
        type=Path,
        metavar="DIR",
        help="the folder of LiveMCPBench",
    )
    parser.add_argument("--nginx-workers", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("bench-results/latest.json"))
    parser.add_argument("--strict", action="store_true", help="exit 1 when a bar is missed")
    return parser.parse_args(arguments)


def run_one(name: str, chosen: argparse.Namespace) -> tuple[dict[str, Any], list[Bar]]:
    rounds = chosen.rounds or (3 if chosen.quick else 5)
    if name == "calls":
        settings = calls.CallSettings(
            rounds, chosen.quick, chosen.nginx_workers, tuple(chosen.only)
        )
        return calls.run(settings)
    if name == "lists":
        return lists.run(lists.ListSettings(rounds, chosen.quick))
    if name == "startup":
        return startup.run(startup.StartupSettings(chosen.quick))
    if name == "hops":
        return hops.run(hops.HopSettings(rounds, chosen.quick))
    if name == "crowd":
        return crowd.run(crowd.CrowdSettings())
    if name == "cut":
        return cut.run(cut.CutSettings(chosen.quick))
    if name == "durable":
        return durable.run(durable.DurableSettings(rounds, chosen.quick))
    if name == "decisions":
        return decisions.run(decisions.DecisionSettings(rounds, chosen.quick))
    if name == "overhead":
        return overhead.run(overhead.OverheadSettings(rounds, chosen.quick))
    if name == "tokens":
        return tokens.run(tokens.TokenSettings(chosen.quick))
    if name == "finding":
        return finding.run(finding.FindingSettings(chosen.quick, chosen.livemcpbench))
    if name == "effects":
        return effects.run(effects.EffectSettings(chosen.quick, chosen.livemcpbench))
    if name == "topics":
        return topics.run(topics.TopicSettings(rounds, chosen.quick))
    if name == "drivers":
        return drivers.run(drivers.DriverSettings(rounds, chosen.quick))
    cycles = chosen.cycles or (50 if chosen.quick else 1000)
    return churn.run(churn.ChurnSettings(cycles=cycles, seed=chosen.seed))


def main(arguments: list[str] | None = None) -> int:
    chosen = parse(arguments)
    # Ended from outside, it ends what it started too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    names = {None: DEFAULT, "all": (*DEFAULT, "churn")}.get(chosen.which, (chosen.which,))
    machine = machine_facts()
    started = time.time()
    note(f"{machine['processor']}, {machine['cores']} cores, shared by load, target and upstream")
    results: dict[str, Any] = {"machine": machine, "started": started, "quick": chosen.quick}
    bars: list[Bar] = []
    problems = 0
    for name in names:
        try:
            results[name], judged = run_one(name, chosen)
            bars += judged
        except (TargetFailure, TargetMissing, LoadFailure) as cause:
            problems += 1
            results[name] = {"problem": str(cause)}
            console.print(f"[red]{name} could not be run:[/] {cause}", markup=True)
    results["seconds"] = round(time.time() - started, 1)
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")
    missed = [bar.what for bar in bars if bar.met is False]
    said = f"{len(missed)} bars missed" if missed else "no bar missed"
    if problems:
        said += f", {problems} benchmarks could not be run"
    note(f"{said}; {results['seconds']:.0f} s; figures in {chosen.out}")
    return 1 if chosen.strict and (missed or problems) else 0


if __name__ == "__main__":
    sys.exit(main())
