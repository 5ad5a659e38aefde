"""`interlock tree`: every node and server below the running node, looked at once or live."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Final

import typer
from msgspec import Struct
from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style

from interlock.core.config import redact_about
from interlock.primitives.text import format_count
from interlock.terminal import config_source, node_discovery, output
from interlock.terminal.node_discovery import NodeOption, TargetNode
from interlock.tree.overview import TreeNode

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType

    from interlock.tree.overview import TreeNode


# -- The tree as lines of text: one for each node or server, and one for what is wrong with it.
#
# Pure: a tree in, lines out. Where there is no room for all, trouble comes first, the rest is
# counted.

_DIM: Final = Style(dim=True)
_BAD: Final = Style(color="red")
_STATE_STYLES: Final = {
    "ready": Style(color="green"),
    "connecting": Style(color="yellow"),
    "degraded": Style(color="yellow"),
    "failed": _BAD,
}
_GAP: Final = "  "
_LEFT_OUT_FIRST: Final = ("role", "failed", "link")
"""Columns that make room for long names."""


class LinkRate(Struct, frozen=True):
    """How busy a link is: calls per second (None: not known yet), and what one takes."""

    per_second: float | None
    mean_us: float | None


class LinkRates:
    """The pace of every link, from the difference of two looks. The first look is all time."""

    def __init__(self) -> None:
        self._before: dict[tuple[str, ...], tuple[int, int]] = {}
        self._at: float | None = None

    def look(self, top: TreeNode, now: float) -> dict[int, LinkRate]:
        """By the id() of each node of this tree."""
        seconds = None if self._at is None else now - self._at
        counts: dict[tuple[str, ...], tuple[int, int]] = {}
        paces: dict[int, LinkRate] = {}
        waiting: list[tuple[tuple[str, ...], TreeNode]] = [((), top)]
        while waiting:
            path, one = waiting.pop()
            counts[path] = (one.calls, one.busy_us)
            paces[id(one)] = self._pace(path, one, seconds)
            waiting += [((*path, child.name), child) for child in one.children]
        self._before, self._at = counts, now
        return paces

    def _pace(self, path: tuple[str, ...], one: TreeNode, seconds: float | None) -> LinkRate:
        before = self._before.get(path)
        if seconds is None or seconds <= 0 or before is None or one.calls < before[0]:
            # The first look at it, or it was started anew since the last one.
            return LinkRate(None, one.busy_us / one.calls if one.calls else None)
        calls, busy = one.calls - before[0], one.busy_us - before[1]
        return LinkRate(calls / seconds, busy / calls if calls else None)


class TreeLine(Struct, frozen=True):
    """A line: the branches before it, and a node, or a remark about the one above."""

    branches: str
    node: TreeNode | None = None
    remark: str = ""
    bad: bool = False


def lay_out(top: TreeNode, room: int | None) -> list[TreeLine]:
    """The lines of a tree, at most `room` of them. None: as many as there are."""
    if room is None:
        return list(_lines(top, None, {}))
    lines = list(islice(_lines(top, None, {}), room + 1))
    if len(lines) <= room:
        return lines
    troubled = _troubled(top)
    # As many of each one's children as fit: the most for which it all has room.
    fewest, most = 1, max(len(one.children) for one in top.walk())
    while fewest < most:
        middle = (fewest + most + 1) // 2
        if len(list(islice(_lines(top, middle, troubled), room + 1))) <= room:
            fewest = middle
        else:
            most = middle - 1
    lines = list(islice(_lines(top, fewest, troubled), room + 1))
    if len(lines) > room:
        lines = [*lines[: max(1, room - 1)], TreeLine("", remark="… and more below; see --json")]
    return lines


def _troubled(top: TreeNode) -> dict[int, bool]:
    """Of every node: whether it, or anything below it, is in trouble. By id()."""
    found: dict[int, bool] = {}
    # What is below comes later in the walk, so it is looked at first.
    for one in reversed(list(top.walk())):
        found[id(one)] = one.in_trouble or any(found[id(child)] for child in one.children)
    return found


def _lines(top: TreeNode, most: int | None, troubled: dict[int, bool]) -> Iterator[TreeLine]:
    yield TreeLine("", top)
    if top.problem:
        yield TreeLine("  ", remark=_shown(top), bad=True)
    yield from _below(top, "", most, troubled)


def _below(
    one: TreeNode, branches: str, most: int | None, bad: dict[int, bool]
) -> Iterator[TreeLine]:
    children, hidden = one.children, 0
    if most is not None and len(children) > most:
        first = sorted(children, key=lambda child: not bad[id(child)])
        children, rest = first[:most], first[most:]
        hidden = len(rest)
        troubled = sum(bad[id(child)] for child in rest)
        told = f", {troubled} of them in trouble" if troubled else ", all ready"
    elif one.left_out:
        told = " that were not told"
    hidden += one.left_out
    for place, child in enumerate(children):
        last = place == len(children) - 1 and not hidden
        yield TreeLine(branches + ("└ " if last else "├ "), child)
        further = branches + ("  " if last else "│ ")
        if child.problem:
            yield TreeLine(further + ("│ " if child.children else "  "), None, _shown(child), True)
        yield from _below(child, further, most, bad)
    if hidden:
        yield TreeLine(branches + "└ ", remark=f"… and {hidden} more{told}")


def _shown(one: TreeNode) -> str:
    return output.sanitize(redact_about(one.name, one.problem or "")).replace("\n", " ")


class TreeRows:
    """The lines, ready for a rich console."""

    def __init__(self, lines: Sequence[TreeLine], paces: dict[int, LinkRate] | None = None) -> None:
        """With `paces`: calls per second and what they take now, instead of totals."""
        self._lines = lines
        self._paces = paces

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterable[Segment]:
        rows = [None if one.node is None else self._cells(one.node) for one in self._lines]
        heads = self._heads()
        widths = {
            head: max(len(head), *(cell_len(row[head]) for row in rows if row is not None))
            for head in heads
        }
        names = [one.branches + _name(one.node) for one in self._lines if one.node is not None]
        needed = max(cell_len(name) for name in names)
        room = options.max_width
        for head in _LEFT_OUT_FIRST:
            rest = sum(widths[one] + len(_GAP) for one in heads)
            if rest + needed > room:
                heads = [one for one in heads if one != head]
        rest = sum(widths[one] + len(_GAP) for one in heads)
        wide = max(8, min(needed, room - rest))
        yield Segment(" " * wide + _GAP + _GAP.join(_aligned(h, h, widths) for h in heads), _DIM)
        yield Segment.line()
        for line, row in zip(self._lines, rows, strict=True):
            if row is None or line.node is None:
                remark = line.branches + line.remark
                fitting = remark if cell_len(remark) <= room else set_cell_size(remark, room - 1)
                yield Segment(fitting + ("" if fitting == remark else "…"), _line_style(line))
                yield Segment.line()
                continue
            yield Segment(_fit(line.branches, _name(line.node), wide))
            for head in heads:
                style = _STATE_STYLES[line.node.state] if head == "state" else None
                yield Segment(_GAP)
                yield Segment(_aligned(head, row[head], widths), style)
            yield Segment.line()

    def _heads(self) -> list[str]:
        calls = "calls" if self._paces is None else "calls/s"
        return ["state", "role", "link", "tools", calls, "failed", "latency"]

    def _cells(self, one: TreeNode) -> dict[str, str]:
        cells = {
            "state": one.state,
            "role": one.role,
            "link": output.sanitize(one.link) or "-",
            "tools": str(one.tools),
            "failed": str(one.failed),
        }
        if self._paces is None:
            mean = one.busy_us / one.calls if one.calls else None
            return cells | {"calls": str(one.calls), "latency": _latency(mean)}
        pace = self._paces[id(one)]
        per_second = "-" if pace.per_second is None else f"{pace.per_second:.0f}"
        return cells | {"calls/s": per_second, "latency": _latency(pace.mean_us)}


def _name(one: TreeNode) -> str:
    return output.sanitize(one.name).replace("\n", " ")


def _line_style(line: TreeLine) -> Style:
    return _BAD if line.bad else _DIM


def _fit(branches: str, name: str, width: int) -> str:
    """A name with its branches, shortened where it must be: rather the branches than the name."""
    text = branches + name
    if cell_len(text) <= width:
        return set_cell_size(text, width)
    if len(branches) > 2 and cell_len(name) + 3 <= width:
        kept = width - cell_len(name) - 1
        return set_cell_size("…" + branches[-kept:] + name, width)
    return set_cell_size(text, width - 1) + "…"


def _aligned(head: str, cell: str, widths: dict[str, int]) -> str:
    if head in ("state", "role", "link"):
        return set_cell_size(cell, widths[head])
    return cell.rjust(widths[head])


def _latency(mean_us: float | None) -> str:
    if mean_us is None:
        return "-"
    if mean_us >= 1_000_000:
        return f"{mean_us / 1_000_000:.1f} s"
    return f"{mean_us / 1000:.1f} ms" if mean_us < 100_000 else f"{mean_us / 1000:.0f} ms"


def summary(top: TreeNode) -> str:
    """The tree in a line."""
    nodes = list(top.walk())
    aggregators = sum(one.role != "leaf" for one in nodes)
    troubled = sum(one.in_trouble for one in nodes)
    servers = len(nodes) - aggregators
    said = [
        format_count(aggregators, "node"),
        format_count(servers, "server"),
        format_count(top.tools, "tool"),
    ]
    return " · ".join([*said, f"{troubled} in trouble" if troubled else "all well"])


_LOOK_EVERY: Final = 1.0
_BESIDE_THE_TREE: Final = 4
"""Lines of a terminal that are no branch: the summary, the heads, a problem, the cursor."""


def tree(
    config: config_source.ConfigOption = None,
    once: Annotated[bool, typer.Option("--once", help="Print it once, do not stay.")] = False,
    json: Annotated[bool, typer.Option("--json", help="JSON, for programs; printed once.")] = False,
    node: NodeOption = None,
) -> None:
    """Show the tree below the running node: nodes and servers, their state, calls and latencies.

    On a terminal it stays and looks again every second, until Ctrl-C: calls/s and latency are
    those of the last second, on the link from the node above. Anywhere else it is printed once,
    with totals. Where a terminal has no room for all, trouble comes first and the rest is counted.

    Exit code 4 when no node is running.

    \b
    Examples:
      interlock tree
      interlock tree --once --node 8421
      interlock tree --json | jq '.. | objects | select(.state? and .state != "ready") | .name'
    """
    target = node_discovery.find_node(config, node)
    body = _ask(target)
    if target.config_error is not None:
        node_discovery.print_earlier_config_note(target.config_error)
    if json:
        import msgspec

        output.print_json(msgspec.json.decode(body))
        return
    console = output.create_console()
    if once or not console.is_terminal:
        console.print(_drawn(_read(body), console))
        return
    try:
        _watch(target, console, body)
    except KeyboardInterrupt:
        # The only way to end it, so nothing went wrong.
        return


def _ask(target: TargetNode) -> bytes:
    """The tree, as JSON. Raises InterlockError when no node tells it."""
    from interlock.terminal.node_http import fetch_over_http
    from interlock.tree.socket import tree_socket_path

    # Its own user needs no token. A node of somebody else is asked over HTTP.
    return node_discovery.read_socket(tree_socket_path(target.socket)) or fetch_over_http(
        target, "/tree"
    )


def _read(body: bytes) -> TreeNode:
    import msgspec

    from interlock.errors import UPSTREAM_UNAVAILABLE, InterlockError
    from interlock.tree.overview import read_tree

    try:
        return read_tree(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InterlockError(
            UPSTREAM_UNAVAILABLE, "what the node told is no tree; is it of another version?"
        ) from None


def _watch(target: TargetNode, console: Console, body: bytes) -> None:
    """Draw it every second, also while the node is away for a moment."""
    from rich.live import Live

    from interlock.errors import InterlockError

    paces = LinkRates()
    top, problem = _read(body), ""
    with Live(console=console, auto_refresh=False) as live:
        while True:
            live.update(_drawn(top, console, paces, problem), refresh=True)
            time.sleep(_LOOK_EVERY)
            try:
                top, problem = _read(_ask(target)), ""
            except InterlockError as error:
                problem = error.message


def _drawn(
    top: TreeNode, console: Console, paces: LinkRates | None = None, problem: str = ""
) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    room = max(3, console.size.height - _BESIDE_THE_TREE) if console.is_terminal else None
    now = None if paces is None else paces.look(top, time.monotonic())
    parts: list[RenderableType] = [
        Text(summary(top), no_wrap=True, overflow="ellipsis"),
        TreeRows(lay_out(top, room), now),
    ]
    if problem:
        parts.append(Text(output.sanitize(problem).partition("\n")[0], style="red", no_wrap=True))
    return Group(*parts)
