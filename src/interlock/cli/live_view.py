"""The live view of `interlock up`: upstreams, rates and the latest log lines, on a terminal.

It is drawn on the node's own event loop, so it looks four times a second and draws only when
something is new: an idle node costs nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from interlock.cli.log_lines import KeptLines
from interlock.config import redact
from interlock.protocol.mcp import STATELESS_REVISIONS

if TYPE_CHECKING:
    from interlock.node import NodeStatus, UpstreamStatus
    from interlock.node.run import NodeRun

LOOK_EVERY: Final = 0.25
_RATE_OVER: Final = 8
"""Calls per second are the mean of this many looks."""
_PROBLEMS_SHOWN: Final = 4
_BESIDE_THE_TABLE: Final = 20
"""Lines that are not upstreams: the introduction above, totals, problems and log below."""

STATE_STYLES: Final = {
    "ready": "green",
    "connecting": "yellow",
    "degraded": "yellow",
    "failed": "red",
}


async def show_while(run: NodeRun, log: KeptLines) -> None:
    """Draw until the run is asked to stop."""
    console = Console()
    view = LiveView(run, log, console)
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while not run.stopping.is_set():
            drawn = view.drawn_anew()
            if drawn is not None:
                live.update(drawn, refresh=True)
            try:
                async with asyncio.timeout(LOOK_EVERY):
                    await run.stopping.wait()
            except TimeoutError:
                continue
    console.print("Stopping. Ctrl-C again ends everything at once.", style="dim")


class LiveView:
    """Turns a node's status into something to look at, when it is not what it was."""

    def __init__(self, run: NodeRun, log: KeptLines, console: Console) -> None:
        self._run = run
        self._log = log
        self._console = console
        self._looks: deque[tuple[float, int]] = deque(maxlen=_RATE_OVER + 1)
        self._drawn: object = None

    def drawn_anew(self) -> RenderableType | None:
        """The view, or None when it would look the same as before."""
        status = self._run.node.status()
        self._looks.append((status.uptime, status.calls))
        rate = self._rate()
        rows = [upstream_row(one) for one in status.upstreams]
        size = self._console.size
        shown = (
            rows,
            f"{rate:.0f}",
            status.failed,
            self._log.count,
            self._run.config_problem,
            size,
        )
        if shown == self._drawn:
            return None
        self._drawn = shown
        problems = [f"{one.key}: {redact(one.problem)}" for one in status.upstreams if one.problem]
        parts: list[RenderableType] = [
            upstream_table(rows, max(3, size.height - _BESIDE_THE_TABLE)),
            _totals(status, rate),
            *(Text(line, style="red") for line in problems[:_PROBLEMS_SHOWN]),
        ]
        if self._run.config_problem:
            parts.append(Text(f"config: {self._run.config_problem}", style="red"))
        parts += [
            Text(f"{at} {line}", style=_style(level))
            for at, level, line in self._log.lines
            if line not in problems
        ]
        return Group(*parts)

    def _rate(self) -> float:
        (begun, before), (now, calls) = self._looks[0], self._looks[-1]
        return (calls - before) / (now - begun) if now > begun else 0.0


def upstream_row(one: UpstreamStatus) -> tuple[str, ...]:
    """key, state, era, tools, calls, failed, mean latency."""
    latency = f"{one.busy_us / one.calls / 1000:.1f} ms" if one.calls else "-"
    state = one.state if one.circuit == "closed" else f"{one.state}, circuit {one.circuit}"
    counts = (str(one.tools), str(one.calls), str(one.failed))
    return (one.key, state, era_word(one.revision), *counts, latency)


def era_word(revision: str) -> str:
    if not revision:
        return "-"
    return "stateless" if revision in STATELESS_REVISIONS else f"session {revision}"


def upstream_table(rows: list[tuple[str, ...]], room: int) -> Table:
    """Upstreams, one a line; what has no room is counted."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("upstream", "state", "era"):
        table.add_column(name, no_wrap=True)
    for name in ("tools", "calls", "failed", "latency"):
        table.add_column(name, justify="right", no_wrap=True)
    # What is in trouble comes first where there is no room for all.
    hidden = max(0, len(rows) - room)
    listed = rows if not hidden else sorted(rows, key=lambda row: row[1] == "ready")[:room]
    for key, state, *rest in listed:
        style = STATE_STYLES.get(state.partition(",")[0], "")
        table.add_row(Text(key), Text(state, style=style), *(Text(cell) for cell in rest))
    if hidden:
        table.add_row(Text(f"… and {hidden} more", style="dim"))
    return table


def _totals(status: NodeStatus, rate: float) -> Text:
    text = Text(f"\n{rate:.0f} calls/s · {status.calls} calls · ")
    text.append(f"{status.failed} failed", style="red" if status.failed else "")
    text.append(f" · {status.tools} tools · {status.sessions} sessions · {status.listeners} listen")
    journal = status.journal
    if journal is not None and journal.get("state") == "failing":
        text.append(f"\njournal: {journal.get('reason')}", style="red")
    text.append("\n")
    return text


def _style(level: int) -> str:
    if level >= logging.ERROR:
        return "red"
    return "yellow" if level >= logging.WARNING else "dim"
