"""Upstreams as rows of text, for `up` and `status`.

Laid out by hand: the live view is drawn on the node's own event loop, and a table that measures
and wraps every cell would hold up calls for as long as it takes to carry a thousand of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style

from interlock.protocol.mcp import STATELESS_REVISIONS

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions

    from interlock.core.upstreams.registry import UpstreamStatus

_HEADS: Final = ("upstream", "state", "era", "tools", "calls", "failed", "latency")
_TO_THE_RIGHT: Final = 3
"""From this column on: numbers."""
_WIDEST: Final = 40
_GAP: Final = "  "
_DIM: Final = Style(dim=True)
_STATE_STYLES: Final = {
    "ready": Style(color="green"),
    "connecting": Style(color="yellow"),
    "degraded": Style(color="yellow"),
    "failed": Style(color="red"),
}

Row = tuple[str, ...]


def upstream_row(one: UpstreamStatus) -> Row:
    """key, state, era, tools, calls, failed, mean latency."""
    latency = f"{one.busy_us / one.calls / 1000:.1f} ms" if one.calls else "-"
    state = one.state if one.circuit == "closed" else f"{one.state}, circuit {one.circuit}"
    counts = (str(one.tools), str(one.calls), str(one.failed))
    return (one.key, state, _era(one.revision), *counts, latency)


def _era(revision: str) -> str:
    if not revision:
        return "-"
    return "stateless" if revision in STATELESS_REVISIONS else f"session {revision}"


class UpstreamRows:
    """The rows, ready for a rich console. What has no room is counted."""

    def __init__(self, rows: Sequence[Row], room: int) -> None:
        self._hidden = max(0, len(rows) - room)
        # What is in trouble comes first where there is no room for all.
        self._rows = (
            sorted(rows, key=lambda row: row[1] == "ready")[:room] if self._hidden else rows
        )

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterable[Segment]:
        columns = zip(_HEADS, *self._rows, strict=True)
        widths = [min(_WIDEST, max(cell_len(cell) for cell in column)) for column in columns]
        yield Segment(_joined(_HEADS, widths), _DIM)
        yield Segment.line()
        for row in self._rows:
            key, state, *_ = cells = _laid_out(row, widths)
            yield Segment(key + _GAP)
            yield Segment(state, _STATE_STYLES.get(row[1].partition(",")[0]))
            yield Segment(_GAP + _GAP.join(cells[2:]))
            yield Segment.line()
        if self._hidden:
            yield Segment(f"… and {self._hidden} more", _DIM)
            yield Segment.line()


def _laid_out(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [
        cell.rjust(width) if place >= _TO_THE_RIGHT else set_cell_size(cell, width)
        for place, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]


def _joined(row: Sequence[str], widths: Sequence[int]) -> str:
    return _GAP.join(_laid_out(row, widths))
