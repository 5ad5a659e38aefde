"""Drivers: how long a thousand of them take to load, a changed file takes to be live, and what a
contract adds to a call.

A workspace of 1,000 drivers for 200 contracts is written to disk. A node is started on it, and the
same node without a workspace in turns with it; what the drivers add until the node lists every
contract is compared with the bar, and the whole time is shown beside it. Servers are not asked for
their tools (`verify: first_use`): nothing is started. Then files are changed, each at another
moment of the node's rhythm, and the list is read until it says so. At last the same echo is called
by its server's own name and by a contract that a driver serves with that very server.
"""

from __future__ import annotations

import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from bench.asking import ask_tools_list, call_tool, tool_names, until
from bench.bars import Bar, ratio
from bench.load_process import LoadProcess
from bench.load_run import LoadPlan
from bench.processes import TargetFailure, TargetProcess, free_port
from bench.processor import processor_seconds, resident_bytes
from bench.report import console, show_bars, show_table
from bench.targets import Bench, endpoint

ECHO = "bench.echo"
LOOK = 0.005
INPUTS = {
    "type": "object",
    "properties": {"text": {"type": "string"}, "n": {"type": "integer"}},
    "required": ["text", "n"],
}
"""As the raw upstream's echo has them."""


class DriverSettings(msgspec.Struct, frozen=True):
    rounds: int = 5
    quick: bool = False
    drivers: int = 1000
    contracts: int = 200

    @property
    def starts(self) -> int:
        return 3 if self.quick else self.rounds

    @property
    def changes(self) -> int:
        return 6 if self.quick else 20

    @property
    def turns(self) -> int:
        return 4 if self.quick else self.rounds * 3


def front_matter(**fields: Any) -> str:
    lines = [f"{name}: {json.dumps(value)}" for name, value in fields.items()]
    return "\n".join(["---", *lines, "---", ""])


def contract_id(number: int) -> str:
    return f"crowd.tool{number:03}"


def write_contract(home: Path, id: str, description: str, **more: Any) -> None:
    place = home / "tools" / id / "TOOL.md"
    place.parent.mkdir(parents=True, exist_ok=True)
    text = front_matter(
        name=id, id=id, description=description, version="1.0.0", inputs=INPUTS,
        outputs={"type": "string"}, **more,
    )  # fmt: skip
    # Whole or not at all: the node may look at any moment.
    written = place.with_suffix(".new")
    written.write_text(text)
    written.rename(place)


def write_driver(home: Path, id: str, contract: str, **more: Any) -> None:
    place = home / ".drivers" / id / "DRIVER.md"
    place.parent.mkdir(parents=True, exist_ok=True)
    server = {"kind": "binary", "path": "true", "args": ["serve"]}
    fields = {"server": server, "transport": "stdio", "network": {"egress": []}, **more}
    entry = {
        "tool": f"./tools/{contract}/TOOL.md",
        "version": "^1.0.0",
        "metadata": {"mcp": {"tool_name": "echo"}},
    }
    text = front_matter(
        name=id, id=id, description="One of many.", version="1.0.0", kind="mcp",
        implements=[entry], **fields,
    )  # fmt: skip
    place.write_text(text)


def write_workspace(home: Path, settings: DriverSettings, upstream_port: int) -> None:
    """The crowd, and one driver whose server is really there."""
    for number in range(settings.contracts - 1):
        write_contract(home, contract_id(number), "One of many.")
    for number in range(settings.drivers - 1):
        contract = contract_id(number % (settings.contracts - 1))
        write_driver(home, f"crowd{number:04}-mcp", contract)
    write_contract(home, ECHO, "Says it again.")
    write_driver(
        home,
        "echo-mcp",
        ECHO,
        server={"kind": "remote", "url": f"http://127.0.0.1:{upstream_port}/mcp"},
        transport="http",
        network={"egress": [f"127.0.0.1:{upstream_port}"]},
    )


def config(upstream_port: int) -> str:
    return (
        "listen: 127.0.0.1:PORT\n"
        "drivers: {verify: first_use, local_egress: true}\n"
        f"servers: {{up: {{url: http://127.0.0.1:{upstream_port}/mcp}}}}\n"
    )


def listed(node: TargetProcess, port: int, wanted: set[str]) -> None:
    until(
        f"{len(wanted)} tools in the node's list",
        node,
        lambda: ask_tools_list(port),
        lambda body: wanted <= set(tool_names(body)),
        pause=LOOK,
    )


def start_node(
    bench: Bench, settings: DriverSettings, upstream_port: int, template: Path | None
) -> tuple[TargetProcess, int, float]:
    """A node, with the workspace or without, and the seconds until its list is whole."""
    port = free_port()
    wanted = {"up.echo"}
    if template is not None:
        home = bench.folder / f"interlock-{port}"
        shutil.copytree(template, home)
        wanted |= {contract_id(number) for number in range(settings.contracts - 1)} | {ECHO}
    began = time.perf_counter()
    node, _ = bench.interlock("node", config(upstream_port), port)
    listed(node, port, wanted)
    return node, port, time.perf_counter() - began


def description_of(body: bytes, name: str) -> str:
    tools = msgspec.json.decode(body)["result"]["tools"]
    return next((str(tool["description"]) for tool in tools if tool["name"] == name), "")


def seconds_until_live(node: TargetProcess, port: int, number: int) -> float:
    """From writing a contract anew until the node lists it so."""
    home = node_home(node)
    id, words = contract_id(number), f"Changed at {time.time_ns()}."
    began = time.perf_counter()
    write_contract(home, id, words)
    until(
        "the changed contract",
        node,
        lambda: ask_tools_list(port),
        lambda body: description_of(body, id) == words,
        pause=LOOK,
    )
    return time.perf_counter() - began


def node_home(node: TargetProcess) -> Path:
    """Where a node was started."""
    return Path(f"/proc/{node.pid}/cwd").resolve()


def measure_calls(
    node: TargetProcess, port: int, settings: DriverSettings
) -> dict[str, dict[str, list[float]]]:
    """The same call by the server's own name and by the contract's, in turns."""
    found: dict[str, dict[str, list[float]]] = {
        name: {"calls_per_second": [], "p50_us": [], "cpu_us": [], "errors": []}
        for name in ("up.echo", ECHO)
    }
    # The driver connects with its first call.
    if call_tool(port, ECHO, {"text": "x", "n": 1}) != "x":
        raise TargetFailure(f"{ECHO} does not answer")
    with LoadProcess() as load:
        for number in range(settings.turns):
            order = list(found) if number % 2 else list(reversed(found))
            for name in order:
                plan = LoadPlan(
                    url=endpoint(port),
                    mode="stateless",
                    tools=[name],
                    concurrency=16,
                    seconds=0.3,
                    warmup_seconds=0.05,
                )
                before = processor_seconds(node.pid)
                report = load.run(plan)
                used = processor_seconds(node.pid) - before
                figures = found[name]
                figures["calls_per_second"].append(report.calls_per_second)
                figures["p50_us"].append(report.p50_us)
                figures["cpu_us"].append(used * 1e6 / max(1, report.answered))
                figures["errors"].append(float(report.error_count))
    return found


def measure(settings: DriverSettings) -> dict[str, Any]:
    starts: dict[str, list[float]] = {"without": [], "with": []}
    memory: dict[str, list[float]] = {"without": [], "with": []}
    with (
        tempfile.TemporaryDirectory(prefix="interlock-bench-") as folder,
        Bench(Path(folder)) as bench,
        console.status(f"{settings.drivers:,} drivers"),
    ):
        _, upstream_port = bench.raw_upstream()
        template = Path(folder) / "workspace"
        write_workspace(template, settings, upstream_port)
        for number in range(settings.starts):
            for name, place in (("without", None), ("with", template)):
                node, port, seconds = start_node(bench, settings, upstream_port, place)
                starts[name].append(seconds)
                memory[name].append(resident_bytes(node.pid) / 1e6)
                if name == "without" or number + 1 < settings.starts:
                    node.end()
        changes = [
            seconds_until_live(node, port, number % (settings.contracts - 1))
            for number in range(settings.changes)
        ]
        calls = measure_calls(node, port, settings)
    return summary(settings, starts, memory, changes, calls)


def summary(
    settings: DriverSettings,
    starts: dict[str, list[float]],
    memory: dict[str, list[float]],
    changes: list[float],
    calls: dict[str, dict[str, list[float]]],
) -> dict[str, Any]:
    medians = {name: statistics.median(values) for name, values in starts.items()}
    return {
        "drivers": settings.drivers,
        "contracts": settings.contracts,
        "starts_s": starts,
        "start_s": medians,
        "added_s": medians["with"] - medians["without"],
        "memory_mb": {name: statistics.median(values) for name, values in memory.items()},
        "changes_s": changes,
        "change_s": {"median": statistics.median(changes), "slowest": max(changes)},
        "calls": {
            name: {
                "calls_per_second": statistics.median(one["calls_per_second"]),
                "p50_us": statistics.median(one["p50_us"]),
                # Whoever else uses the machine can only add to it.
                "cpu_us_per_call": statistics.quantiles(one["cpu_us"], n=4)[0],
            }
            for name, one in calls.items()
        },
        "wrong_answers": sum(sum(one["errors"]) for one in calls.values()),
    }


def judge(result: dict[str, Any]) -> list[Bar]:
    crowd = f"{result['drivers']:,} drivers, {result['contracts']} contracts"
    memory = result["memory_mb"]
    whole = result["start_s"]["with"]
    return [
        Bar(
            f"{crowd}: what they add until all are listed", result["added_s"], "<=", 1.0, "s",
            note=f"from the node's own start on {whole:.2f} s; "
            f"{memory['with'] - memory['without']:.0f} MB more",
        ),
        Bar("a changed file is live, slowest", result["change_s"]["slowest"], "<=", 1.0, "s"),
        Bar("wrong answers", float(result["wrong_answers"]), "<=", 0.0),
    ]  # fmt: skip


def show(result: dict[str, Any], bars: list[Bar]) -> None:
    rows = [
        [name, f"{result['start_s'][name]:.2f}", f"{result['memory_mb'][name]:.0f}"]
        for name in ("without", "with")
    ]
    show_table(f"{result['drivers']:,} drivers", ["node", "listed after s", "MB"], rows)
    plain = result["calls"]["up.echo"]
    table = [
        [
            name,
            one["calls_per_second"],
            one["p50_us"],
            f"{one['cpu_us_per_call']:.1f}",
            f"{ratio(one['cpu_us_per_call'], plain['cpu_us_per_call']) or 0:.2f}",
        ]
        for name, one in result["calls"].items()
    ]
    columns = ["the same call as", "calls/s", "p50 µs", "cpu µs", "of the plain one"]
    show_table("a contract's call, c16", columns, table)
    show_bars(bars)


def run(settings: DriverSettings) -> tuple[dict[str, Any], list[Bar]]:
    result = measure(settings)
    bars = judge(result)
    result["bars"] = [bar.shown() for bar in bars]
    show(result, bars)
    return result, bars
