"""The live view of `interlock up`: upstreams, servers of features, rates and the latest log
lines, on a terminal.

It is drawn on the node's own event loop, so it looks four times a second at most and draws only
when something is new: an idle node costs nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from interlock.cli.upstream_table import UpstreamRows, upstream_row
from interlock.core.config import redact_about
from interlock.primitives.text import format_count
from interlock.terminal import output
from interlock.terminal.feature_reports import load_reports
from interlock.terminal.log_lines import LineBuffer
from interlock.trust.component import node_option

if TYPE_CHECKING:
    from interlock.app.run import NodeRun
    from interlock.core.status import NodeStatus

LOOK_EVERY: Final = 0.25
MOST_TIME_SPENT: Final = 0.02
"""The part of the loop's time that drawing may take: with more to draw it looks less often."""
_RATE_OVER: Final = 8
"""Calls per second are the mean of this many looks."""
_PROBLEMS_SHOWN: Final = 4
_BESIDE_THE_TABLE: Final = 20
"""Lines that are not upstreams: the introduction above, totals, problems and log below."""


async def show_while(run: NodeRun, log: LineBuffer) -> None:
    """Draw until the run is asked to stop."""
    console = Console()
    view = LiveView(run, log, console)
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while not run.stopping.is_set():
            begun = time.perf_counter()
            drawn = view.drawn_anew()
            if drawn is not None:
                live.update(drawn, refresh=True)
            spent = time.perf_counter() - begun
            try:
                async with asyncio.timeout(max(LOOK_EVERY, spent / MOST_TIME_SPENT)):
                    await run.stopping.wait()
            except TimeoutError:
                continue
    console.print("Stopping. Ctrl-C again ends everything at once.", style="dim")


class LiveView:
    """Turns a node's status into something to look at, when it is not what it was."""

    def __init__(self, run: NodeRun, log: LineBuffer, console: Console) -> None:
        self._run = run
        self._log = log
        self._console = console
        self._looks: deque[tuple[float, int]] = deque(maxlen=_RATE_OVER + 1)
        self._drawn: object = None

    def drawn_anew(self) -> RenderableType | None:
        """The view, or None when it would look the same as before."""
        report = self._run.node.report()
        status = report.node
        self._looks.append((status.uptime, status.calls))
        rate = self._rate()
        rows = [upstream_row(one) for one in status.upstreams]
        features = load_reports()
        summaries = list(filter(None, (one.servers_summary(report) for one in features)))
        wrong = [line for one in features for line in one.server_problems(report, _PROBLEMS_SHOWN)]
        size = self._console.size
        shown = (
            rows,
            summaries,
            wrong,
            f"{rate:.0f}",
            status.failed,
            status.waiting,
            status.held,
            self._log.count,
            self._run.config_problem,
            size,
        )
        if shown == self._drawn:
            return None
        self._drawn = shown
        problems = [
            f"{one.key}: {redact_about(one.key, one.problem)}"
            for one in status.upstreams
            if one.problem
        ]
        room = size.height - _BESIDE_THE_TABLE - len(summaries) - len(wrong)
        # Who only has servers of features needs no table of nothing.
        table = [UpstreamRows(rows, max(3, room))] if rows or not summaries else []
        parts: list[RenderableType] = [
            *table,
            *map(Text, summaries),
            *(Text(line, style="red") for line in wrong),
            _totals(status, rate, node_option(self._run.node.config.listen)),
            *(Text(output.sanitize(line), style="red") for line in problems[:_PROBLEMS_SHOWN]),
        ]
        for line in (self._run.config_problem or "").splitlines():
            parts.append(Text(output.sanitize(f"config: {line}"), style="red"))
        for at, level, text in self._log.lines:
            if text not in problems:
                first = output.sanitize(text.partition("\n")[0])
                parts.append(Text(f"{at} {first}", style=_style(level), no_wrap=True))
        return Group(*parts)

    def _rate(self) -> float:
        (begun, before), (now, calls) = self._looks[0], self._looks[-1]
        return (calls - before) / (now - begun) if now > begun else 0.0


def _totals(status: NodeStatus, rate: float, at: str) -> Text:
    text = Text(f"\n{rate:.0f} calls/s · {status.calls} calls · ")
    text.append(f"{status.failed} failed", style="red" if status.failed else "")
    text.append(f" · {format_count(status.tools, 'tool')} · ")
    text.append(f"{format_count(status.sessions, 'session')} · {status.listeners} listening")
    if status.waiting:
        pending = f"{status.waiting} waiting for a human"
        text.append(f"\n{pending}: interlock approvals{at}", style="yellow")
    for tool in status.held:
        text.append(f"\n{output.sanitize(tool)} is held: interlock pins{at}", style="yellow")
    journal = status.journal
    if journal is not None and journal.get("state") == "failing":
        text.append(f"\njournal: {journal.get('reason')}", style="red")
    text.append("\n")
    return text


def _style(level: int) -> str:
    if level >= logging.ERROR:
        return "red"
    return "yellow" if level >= logging.WARNING else "dim"
