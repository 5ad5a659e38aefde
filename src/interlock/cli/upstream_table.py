"""A table of upstreams, for `up` and `status`.

The layout is computed by hand: the live view is drawn on the event loop of the node. A table that
measures and wraps every cell would block the loop for the time of a thousand calls.
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

_HEADERS: Final = ("upstream", "state", "era", "tools", "calls", "failed", "latency")
_FIRST_NUMBER_COLUMN: Final = 3
"""Numbers begin at this column."""
_MAX_COLUMN_WIDTH: Final = 40
_GAP: Final = "  "
_DIM: Final = Style(dim=True)
_STATE_STYLES: Final = {
    "ready": Style(color="green"),
    "connecting": Style(color="yellow"),
    "degraded": Style(color="yellow"),
    "failed": Style(color="red"),
}

Row = tuple[str, ...]


def format_upstream_row(status: UpstreamStatus) -> Row:
    """Format an upstream: key, state, generation, tools, calls, failed, mean latency."""
    latency = f"{status.busy_us / status.calls / 1000:.1f} ms" if status.calls else "-"
    state = (
        status.state if status.circuit == "closed" else f"{status.state}, circuit {status.circuit}"
    )
    counts = (str(status.tools), str(status.calls), str(status.failed))
    return (status.key, state, _format_generation(status.revision), *counts, latency)


def _format_generation(revision: str) -> str:
    if not revision:
        return "-"
    return "stateless" if revision in STATELESS_REVISIONS else f"session {revision}"


class UpstreamTable:
    """The rows for a rich console. Rows beyond the limit are only counted."""

    def __init__(self, rows: Sequence[Row], max_rows: int) -> None:
        self._hidden_count = max(0, len(rows) - max_rows)
        # Upstreams with problems come first if the table cannot show all.
        self._rows = (
            sorted(rows, key=lambda row: row[1] == "ready")[:max_rows]
            if self._hidden_count
            else rows
        )

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterable[Segment]:
        columns = zip(_HEADERS, *self._rows, strict=True)
        widths = [
            min(_MAX_COLUMN_WIDTH, max(cell_len(cell) for cell in column)) for column in columns
        ]
        yield Segment(_format_line(_HEADERS, widths), _DIM)
        yield Segment.line()
        for row in self._rows:
            key, state, *_ = cells = _pad_cells(row, widths)
            yield Segment(key + _GAP)
            yield Segment(state, _STATE_STYLES.get(row[1].partition(",")[0]))
            yield Segment(_GAP + _GAP.join(cells[2:]))
            yield Segment.line()
        if self._hidden_count:
            yield Segment(f"… and {self._hidden_count} more", _DIM)
            yield Segment.line()


def _pad_cells(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [
        cell.rjust(width) if index >= _FIRST_NUMBER_COLUMN else set_cell_size(cell, width)
        for index, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]


def _format_line(row: Sequence[str], widths: Sequence[int]) -> str:
    return _GAP.join(_pad_cells(row, widths))
