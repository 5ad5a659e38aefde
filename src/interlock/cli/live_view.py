"""The live view of `interlock up` on a terminal: upstreams, servers of features, rates, log lines.

It is drawn on the event loop of the node. So it reads the status at most four times per second,
and draws only if something has changed.
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

from interlock.cli.upstream_table import UpstreamTable, format_upstream_row
from interlock.core.config import redact_about
from interlock.primitives.text import format_count
from interlock.terminal import output
from interlock.terminal.feature_reports import load_reports
from interlock.terminal.log_lines import LineBuffer
from interlock.trust.component import node_option

if TYPE_CHECKING:
    from interlock.app.run import NodeRun
    from interlock.core.status import NodeStatus

UPDATE_INTERVAL_SECONDS: Final = 0.25
MAX_TIME_SHARE: Final = 0.02
"""The largest share of the loop's time for drawing. Slow drawing makes updates less frequent."""
_RATE_SAMPLES: Final = 8
"""Calls per second are the mean of this many updates."""
_MAX_PROBLEMS: Final = 4
_LINES_OUTSIDE_TABLE: Final = 20
"""Lines of the screen that are not upstreams: introduction, totals, problems and log."""


async def show_live_view(run: NodeRun, log: LineBuffer) -> None:
    """Draw the live view until the node is stopped."""
    console = Console()
    view = LiveView(run, log, console)
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while not run.stopping.is_set():
            started_at = time.perf_counter()
            rendered = view.render_if_changed()
            if rendered is not None:
                live.update(rendered, refresh=True)
            duration = time.perf_counter() - started_at
            try:
                async with asyncio.timeout(max(UPDATE_INTERVAL_SECONDS, duration / MAX_TIME_SHARE)):
                    await run.stopping.wait()
            except TimeoutError:
                continue
    console.print("Stopping. Press Ctrl-C again to exit at once.", style="dim")


class LiveView:
    """The live view of one node."""

    def __init__(self, run: NodeRun, log: LineBuffer, console: Console) -> None:
        self._run = run
        self._log = log
        self._console = console
        self._samples: deque[tuple[float, int]] = deque(maxlen=_RATE_SAMPLES + 1)
        self._last_content: object = None

    def render_if_changed(self) -> RenderableType | None:
        """Render the view, or return None if nothing has changed."""
        report = self._run.node.report()
        status = report.node
        self._samples.append((status.uptime, status.calls))
        rate = self._rate()
        rows = [format_upstream_row(upstream) for upstream in status.upstreams]
        features = load_reports()
        summaries = list(filter(None, (feature.servers_summary(report) for feature in features)))
        server_problems = [
            line for feature in features for line in feature.server_problems(report, _MAX_PROBLEMS)
        ]
        size = self._console.size
        content = (
            rows,
            summaries,
            server_problems,
            f"{rate:.0f}",
            status.failed,
            status.waiting,
            status.held,
            self._log.count,
            self._run.config_problem,
            size,
        )
        if content == self._last_content:
            return None
        self._last_content = content
        problems = [
            f"{upstream.key}: {redact_about(upstream.key, upstream.problem)}"
            for upstream in status.upstreams
            if upstream.problem
        ]
        max_rows = size.height - _LINES_OUTSIDE_TABLE - len(summaries) - len(server_problems)
        # A node with only servers of features needs no empty table.
        table = [UpstreamTable(rows, max(3, max_rows))] if rows or not summaries else []
        parts: list[RenderableType] = [
            *table,
            *map(Text, summaries),
            *(Text(line, style="red") for line in server_problems),
            _format_totals(status, rate, node_option(self._run.node.config.listen)),
            *(Text(output.sanitize(line), style="red") for line in problems[:_MAX_PROBLEMS]),
        ]
        for line in (self._run.config_problem or "").splitlines():
            parts.append(Text(output.sanitize(f"config: {line}"), style="red"))
        for time_text, level, text in self._log.lines:
            if text not in problems:
                first_line = output.sanitize(text.partition("\n")[0])
                parts.append(
                    Text(f"{time_text} {first_line}", style=_level_style(level), no_wrap=True)
                )
        return Group(*parts)

    def _rate(self) -> float:
        (start_time, earlier_calls), (now, calls) = self._samples[0], self._samples[-1]
        return (calls - earlier_calls) / (now - start_time) if now > start_time else 0.0


def _format_totals(status: NodeStatus, rate: float, node_option: str) -> Text:
    text = Text(f"\n{rate:.0f} calls/s · {status.calls} calls · ")
    text.append(f"{status.failed} failed", style="red" if status.failed else "")
    text.append(f" · {format_count(status.tools, 'tool')} · ")
    text.append(f"{format_count(status.sessions, 'session')} · {status.listeners} listening")
    if status.waiting:
        pending_text = f"{status.waiting} pending approvals"
        text.append(f"\n{pending_text}: `interlock approvals{node_option}`", style="yellow")
    for tool in status.held:
        text.append(
            f"\n{output.sanitize(tool)} is held because it changed: `interlock pins diff "
            f"{output.sanitize(tool)}{node_option}`",
            style="yellow",
        )
    journal = status.journal
    if journal is not None and journal.get("state") == "failing":
        text.append(f"\njournal: {journal.get('reason')}", style="red")
    text.append("\n")
    return text


def _level_style(level: int) -> str:
    if level >= logging.ERROR:
        return "red"
    return "yellow" if level >= logging.WARNING else "dim"
