"""Inference of effects: how often an irreversible tool would run, and a harmless one wait.

The tools are real: public servers, installed and listed live, and the tools of LiveMCPBench. The
labels (`*effect_labels.json`) are our own judgement of what each tool really does, made before
inference was run on it. Tools are judged as if they had no annotations. Three sets:

- development: used to write the inference;
- held-out: not used for its first version, but for its second;
- unseen: LiveMCPBench, labelled after the inference was written, and not used for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from bench import live_mcp_bench
from bench.bars import Bar
from bench.finding import CACHE
from bench.real_server_table import SERVERS
from bench.real_servers import Listed, list_real_servers
from bench.report import note, show_table
from interlock.core.catalog.effect_inference import EffectKind, infer

LABELS = Path(__file__).parent / "effect_labels.json"
UNSEEN = Path(__file__).parent / "live_mcp_bench_effect_labels.json"
TOOLS = 2_000
"""More than all servers of the table have."""


class EffectSettings(msgspec.Struct, frozen=True):
    quick: bool = False
    live_mcp_bench: Path | None = None
    """The folder of LiveMCPBench. None: the environment names it, or it is left out."""


class Labels(msgspec.Struct, frozen=True):
    """Of one server."""

    half: str
    hold: list[str]
    run: list[str]


class Counts(msgspec.Struct):
    """Of some tools with labels."""

    hold: int = 0
    run: int = 0
    false_run: list[str] = []
    false_hold: list[str] = []

    def add(self, name: str, wanted: bool, held: bool) -> None:
        if wanted:
            self.hold += 1
        else:
            self.run += 1
        if wanted and not held:
            self.false_run.append(name)
        elif held and not wanted:
            self.false_hold.append(name)


def run(settings: EffectSettings) -> tuple[dict[str, Any], list[Bar]]:
    """Judge every labelled tool that can be listed here, print it, and give it back."""
    sources = {server.name: server.source for server in SERVERS}
    servers = list_real_servers(200 if settings.quick else TOOLS, CACHE)
    found = [(server, sources[server.server]) for server in servers]
    report = judge(found, read_labels(LABELS))
    try:
        unseen = live_mcp_bench.read_servers(live_mcp_bench.folder(settings.live_mcp_bench))
    except live_mcp_bench.MissingDataSet as why:
        note(f"LiveMCPBench is left out: {why}.")
    else:
        more = judge([(server, "LiveMCPBench") for server in unseen], read_labels(UNSEEN))
        report["half"] |= more["half"]
        report["source"] |= more["source"]
    show(report)
    return report, []


def read_labels(path: Path) -> dict[str, Labels]:
    return msgspec.json.decode(path.read_bytes(), type=dict[str, Labels])


def judge(servers: Iterable[tuple[Listed, str]], labels: dict[str, Labels]) -> dict[str, Any]:
    """Counts by half, by where the list comes from, and by server."""
    found: dict[str, dict[str, Counts]] = {"half": {}, "source": {}, "server": {}}
    for server, source in servers:
        known = labels.get(server.server)
        if known is None:
            continue
        groups = {"half": known.half, "source": source, "server": server.server}
        for tool in server.tools:
            name = tool["name"]
            if name not in known.hold and name not in known.run:
                continue
            said = infer(name, tool.get("description") or "", tool.get("inputSchema"))
            held = said.kind is EffectKind.IRREVERSIBLE
            for kind, group in groups.items():
                counts = found[kind].setdefault(group, Counts())
                counts.add(f"{server.server}.{name}", name in known.hold, held)
    report: dict[str, Any] = msgspec.to_builtins(found)
    return report


def show(report: dict[str, Any]) -> None:
    rows = []
    for kind, groups in report.items():
        for group, one in groups.items():
            rows.append(
                [
                    f"{kind}: {group}",
                    f"{len(one['false_run'])} of {one['hold']}",
                    f"{len(one['false_hold'])} of {one['run']}",
                ]
            )
    show_table(
        "Inferred effects", ["tools", "irreversible, would run", "harmless, would wait"], rows
    )
    for one in report["half"].values():
        for name in one["false_run"]:
            note(f"would run: {name}")
        for name in one["false_hold"]:
            note(f"would wait: {name}")
