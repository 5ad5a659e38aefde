"""The startup benchmark: how long a person waits for ``interlock version`` and ``interlock up``."""

from __future__ import annotations

import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from bench.asking import ask_tools_list, tool_names, until
from bench.bars import Bar
from bench.processes import module_command, python_environment
from bench.report import console, show_bars, show_table
from bench.targets import Bench, http_config, interlock_command, stdio_config


class StartupSettings(msgspec.Struct, frozen=True):
    quick: bool = False

    @property
    def repeats(self) -> int:
        return 3 if self.quick else 5


def seconds_for_version() -> float:
    started = time.perf_counter()
    command = [*interlock_command(), "version"]
    subprocess.run(command, check=True, capture_output=True, env=python_environment(), timeout=30)
    return time.perf_counter() - started


def seconds_of_stdio_upstream() -> float:
    """From starting the raw upstream until it answers its first request."""
    started = time.perf_counter()
    with subprocess.Popen(
        module_command("bench.raw_upstream", "--stdio"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=python_environment(),
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n')
        process.stdin.flush()
        process.stdout.readline()
        elapsed = time.perf_counter() - started
        process.stdin.close()
    return elapsed


def seconds_until_ready(bench: Bench, config: str) -> float:
    """From starting the node until its list holds the upstream's tools."""
    started = time.perf_counter()
    node, port = bench.interlock("node", config)
    until(
        "the upstream's tools in the node's list",
        node,
        lambda: ask_tools_list(port),
        lambda body: "up.echo" in tool_names(body),
        patience=30.0,
        pause=0.002,
    )
    elapsed = time.perf_counter() - started
    node.end()
    return elapsed


def measure(settings: StartupSettings) -> dict[str, Any]:
    runs: dict[str, list[float]] = {"version": [], "up, HTTP upstream": []}
    runs |= {"up, stdio upstream": [], "the stdio upstream's own start": []}
    with (
        tempfile.TemporaryDirectory(prefix="interlock-bench-") as folder,
        Bench(Path(folder)) as bench,
        console.status("startup"),
    ):
        _, upstream_port = bench.raw_upstream()
        for _ in range(settings.repeats):
            runs["version"].append(seconds_for_version())
            runs["up, HTTP upstream"].append(seconds_until_ready(bench, http_config(upstream_port)))
            runs["up, stdio upstream"].append(seconds_until_ready(bench, stdio_config()))
            runs["the stdio upstream's own start"].append(seconds_of_stdio_upstream())
    return {
        "runs_s": runs,
        "best_s": {name: min(values) for name, values in runs.items()},
        "medians_s": {name: statistics.median(values) for name, values in runs.items()},
    }


def judge(result: dict[str, Any]) -> list[Bar]:
    medians = result["medians_s"]
    beyond = medians["up, stdio upstream"] - medians["the stdio upstream's own start"]
    return [
        Bar("interlock version", medians["version"], "<=", 0.25, "s"),
        Bar(
            "interlock up, HTTP upstream already there", medians["up, HTTP upstream"], "<=", 1, "s"
        ),
        Bar("interlock up beyond its stdio upstream's own start", beyond, "<=", 1, "s"),
    ]


def show(result: dict[str, Any], bars: list[Bar]) -> None:
    rows = [
        [name, f"{result['best_s'][name]:.3f}", f"{median:.3f}"]
        for name, median in result["medians_s"].items()
    ]
    show_table("startup", ["what", "best s", "median s"], rows)
    show_bars(bars)


def run(settings: StartupSettings) -> tuple[dict[str, Any], list[Bar]]:
    result = measure(settings)
    bars = judge(result)
    result["bars"] = [bar.shown() for bar in bars]
    show(result, bars)
    return result, bars
