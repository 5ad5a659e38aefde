"""The list benchmark: 50 upstreams of 100 tools behind one node.

``tools/list`` is compared with nginx serving a file of exactly the same bytes, request for
request; then the node's memory is read, and one upstream's list is changed to see that the node
asks only that one again.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from bench.asking import ask_tools_list, fetch_json, tool_names, until
from bench.bars import Bar, ratio
from bench.load_process import LoadProcess
from bench.load_run import LoadPlan, LoadReport
from bench.processes import TargetProcess
from bench.processor import resident_bytes
from bench.report import console, show_bars, show_table
from bench.targets import Bench

MEGABYTE = 1_000_000


class ListSettings(msgspec.Struct, frozen=True):
    rounds: int = 5
    quick: bool = False
    upstreams: int = 50
    tools: int = 100

    @property
    def requests(self) -> int:
        return 150 if self.quick else 600


def node_config(upstreams: int, upstream_port: int) -> str:
    lines = ["listen: 127.0.0.1:PORT", "servers:"]
    lines += [
        f"  s{number:02}: http://127.0.0.1:{upstream_port}/mcp/{number}"
        for number in range(upstreams)
    ]
    return "\n".join(lines) + "\n"


def measure(settings: ListSettings) -> dict[str, Any]:
    expected = settings.upstreams * settings.tools
    with (
        tempfile.TemporaryDirectory(prefix="interlock-bench-") as folder,
        Bench(Path(folder)) as bench,
        LoadProcess() as load,
        console.status("lists: starting 50 upstreams and the node"),
    ):
        # `echo` is one of the tools of every upstream.
        shape = ("--paths", str(settings.upstreams), "--tools", str(settings.tools - 1))
        _, upstream_port = bench.raw_upstream(*shape, "--changes")
        node, port = bench.interlock("node", node_config(settings.upstreams, upstream_port))
        body = until(
            f"{expected} tools in the node's list",
            node,
            lambda: ask_tools_list(port),
            lambda answer: len(tool_names(answer)) == expected,
            pause=0.1,
        )
        resident_before = resident_bytes(node.pid)
        root = Path(folder) / "static"
        root.mkdir()
        (root / "list.json").write_bytes(body)
        server = "server { listen 127.0.0.1:PORT; root ROOT; }".replace("ROOT", str(root))
        _, nginx_port = bench.nginx(server)
        plans = {
            "interlock": f"http://127.0.0.1:{port}/mcp",
            "nginx file": f"http://127.0.0.1:{nginx_port}/list.json",
        }
        rounds = run_rounds(settings, load, plans)
        resident_after = resident_bytes(node.pid)
        relisted = change_one(node, port, upstream_port, settings.upstreams // 2)
    return {
        "upstreams": settings.upstreams,
        "tools": expected,
        "bytes": len(body),
        "requests_per_run": settings.requests,
        "rounds": rounds,
        "medians": {
            name: statistics.median(
                entry["report"]["calls_per_second"] for entry in rounds if entry["target"] == name
            )
            for name in plans
        },
        "wrong_answers": sum(
            sum(entry["report"]["errors"].values()) + entry["report"]["lost"] for entry in rounds
        ),
        "resident_bytes": {"after_start": resident_before, "after_load": resident_after},
        "relisted": relisted,
    }


def run_rounds(
    settings: ListSettings, load: LoadProcess, urls: dict[str, str]
) -> list[dict[str, Any]]:
    rounds: list[dict[str, Any]] = []
    for number in range(1, settings.rounds + 1):
        names = list(urls) if number % 2 else list(reversed(urls))
        for name in names:
            plan = LoadPlan(
                url=urls[name],
                kind="list" if name == "interlock" else "static",
                mode="stateless",
                concurrency=16,
                seconds=None,
                calls=settings.requests,
                warmup_calls=32,
            )
            report: LoadReport = load.run(plan)
            entry = {"round": number, "target": name, "report": msgspec.to_builtins(report)}
            rounds.append(entry)
    return rounds


def change_one(node: TargetProcess, port: int, upstream_port: int, which: int) -> dict[str, Any]:
    """Add a tool to one upstream, wait until the node shows it, and see who was asked again."""
    path = f"/mcp/{which}"
    before = fetch_json(upstream_port, "GET", "/admin/counts")
    added = fetch_json(upstream_port, "POST", f"/admin/change{path}")
    shown_as = f"s{which:02}.{added['added']}"
    until(
        f"the new tool {shown_as} in the node's list",
        node,
        lambda: ask_tools_list(port),
        lambda answer: shown_as in tool_names(answer),
        patience=20.0,
        pause=0.05,
    )
    after = fetch_json(upstream_port, "GET", "/admin/counts")
    asked = {
        name: counts["lists"] - before[name]["lists"]
        for name, counts in after.items()
        if counts["lists"] != before[name]["lists"]
    }
    return {"changed": path, "listeners_told": added["told"], "asked_again": asked}


def judge(result: dict[str, Any]) -> list[Bar]:
    medians = result["medians"]
    asked = result["relisted"]["asked_again"]
    others = sum(count for path, count in asked.items() if path != result["relisted"]["changed"])
    return [
        Bar(
            "tools/list / nginx serving a file of the same bytes, c16",
            ratio(medians["interlock"], medians["nginx file"]),
            ">=",
            0.5,
            "×",
        ),
        Bar(
            "resident memory of the node",
            result["resident_bytes"]["after_load"] / MEGABYTE,
            "<=",
            150.0,
            "MB",
        ),
        Bar("other upstreams asked again after a change in one", float(others), "<=", 0.0),
        Bar("wrong lists", float(result["wrong_answers"]), "<=", 0.0),
    ]


def show(result: dict[str, Any], bars: list[Bar]) -> None:
    size = result["bytes"]
    rows = [[name, rate, rate * size / MEGABYTE] for name, rate in result["medians"].items()]
    title = (
        f"tools/list, {result['upstreams']} upstreams, {result['tools']:,} tools, "
        f"{size / MEGABYTE:.2f} MB each, c16"
    )
    show_table(title, ["target", "lists/s", "MB/s"], rows)
    show_bars(bars)


def run(settings: ListSettings) -> tuple[dict[str, Any], list[Bar]]:
    result = measure(settings)
    bars = judge(result)
    result["bars"] = [bar.shown() for bar in bars]
    show(result, bars)
    return result, bars
