"""`interlock tree`: the nodes and servers below the running node, printed once or live."""

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


# -- The tree as lines of text: one line per node or server, and one per problem. Pure.
#
# If not all lines fit, nodes with problems come first, and the rest is counted.

_DIM: Final = Style(dim=True)
_BAD: Final = Style(color="red")
_STATE_STYLES: Final = {
    "ready": Style(color="green"),
    "connecting": Style(color="yellow"),
    "degraded": Style(color="yellow"),
    "failed": _BAD,
}
_GAP: Final = "  "
_OPTIONAL_COLUMNS: Final = ("role", "failed", "link")
"""Columns that are removed if names are long."""


class LinkRate(Struct, frozen=True):
    """The load of a link: calls per second (None: unknown) and mean latency."""

    per_second: float | None
    mean_us: float | None


class LinkRates:
    """The load of every link, from the difference of two updates.

    The first update uses the totals.
    """

    def __init__(self) -> None:
        self._previous_counts: dict[tuple[str, ...], tuple[int, int]] = {}
        self._previous_time: float | None = None

    def update(self, root: TreeNode, now: float) -> dict[int, LinkRate]:
        """Return the load of each link, by the `id()` of its node."""
        seconds = None if self._previous_time is None else now - self._previous_time
        counts: dict[tuple[str, ...], tuple[int, int]] = {}
        rates: dict[int, LinkRate] = {}
        pending: list[tuple[tuple[str, ...], TreeNode]] = [((), root)]
        while pending:
            path, node = pending.pop()
            counts[path] = (node.calls, node.busy_us)
            rates[id(node)] = self._rate(path, node, seconds)
            pending += [((*path, child.name), child) for child in node.children]
        self._previous_counts, self._previous_time = counts, now
        return rates

    def _rate(self, path: tuple[str, ...], node: TreeNode, seconds: float | None) -> LinkRate:
        previous = self._previous_counts.get(path)
        if seconds is None or seconds <= 0 or previous is None or node.calls < previous[0]:
            # The first update of the node, or the node was restarted.
            return LinkRate(None, node.busy_us / node.calls if node.calls else None)
        calls, busy_us = node.calls - previous[0], node.busy_us - previous[1]
        return LinkRate(calls / seconds, busy_us / calls if calls else None)


class TreeLine(Struct, frozen=True):
    """A line of the tree: its branches with a node, or with a remark about the line above."""

    branches: str
    node: TreeNode | None = None
    remark: str = ""
    bad: bool = False


def layout_tree(root: TreeNode, max_lines: int | None) -> list[TreeLine]:
    """Return the lines of a tree.

    Args:
        max_lines: the maximum number of lines. None: no limit.
    """
    if max_lines is None:
        return list(_build_lines(root, None, {}))
    lines = list(islice(_build_lines(root, None, {}), max_lines + 1))
    if len(lines) <= max_lines:
        return lines
    has_problem = _find_problems(root)
    # Find the largest number of children per node with which the tree fits.
    low, high = 1, max(len(node.children) for node in root.walk())
    while low < high:
        middle = (low + high + 1) // 2
        if len(list(islice(_build_lines(root, middle, has_problem), max_lines + 1))) <= max_lines:
            low = middle
        else:
            high = middle - 1
    lines = list(islice(_build_lines(root, low, has_problem), max_lines + 1))
    if len(lines) > max_lines:
        lines = [*lines[: max(1, max_lines - 1)], TreeLine("", remark="… and more; see --json")]
    return lines


def _find_problems(root: TreeNode) -> dict[int, bool]:
    """Return whether each node, or any node below it, has a problem. By `id()`."""
    has_problem: dict[int, bool] = {}
    # In reversed order, children come before their parents.
    for node in reversed(list(root.walk())):
        has_problem[id(node)] = node.has_problem or any(
            has_problem[id(child)] for child in node.children
        )
    return has_problem


def _build_lines(
    root: TreeNode, max_children: int | None, has_problem: dict[int, bool]
) -> Iterator[TreeLine]:
    yield TreeLine("", root)
    if root.problem:
        yield TreeLine("  ", remark=_format_problem(root), bad=True)
    yield from _build_child_lines(root, "", max_children, has_problem)


def _build_child_lines(
    node: TreeNode, branches: str, max_children: int | None, has_problem: dict[int, bool]
) -> Iterator[TreeLine]:
    children, hidden_count = node.children, 0
    if max_children is not None and len(children) > max_children:
        sorted_children = sorted(children, key=lambda child: not has_problem[id(child)])
        children, rest = sorted_children[:max_children], sorted_children[max_children:]
        hidden_count = len(rest)
        problem_count = sum(has_problem[id(child)] for child in rest)
        hidden_text = f", {problem_count} of them with problems" if problem_count else ", all ready"
    elif node.left_out:
        hidden_text = " that were not reported"
    hidden_count += node.left_out
    for index, child in enumerate(children):
        last = index == len(children) - 1 and not hidden_count
        yield TreeLine(branches + ("└ " if last else "├ "), child)
        child_branches = branches + ("  " if last else "│ ")
        if child.problem:
            yield TreeLine(
                child_branches + ("│ " if child.children else "  "),
                None,
                _format_problem(child),
                True,
            )
        yield from _build_child_lines(child, child_branches, max_children, has_problem)
    if hidden_count:
        yield TreeLine(branches + "└ ", remark=f"… and {hidden_count} more{hidden_text}")


def _format_problem(node: TreeNode) -> str:
    return output.sanitize(redact_about(node.name, node.problem or "")).replace("\n", " ")


class TreeRows:
    """The lines of a tree for a rich console."""

    def __init__(self, lines: Sequence[TreeLine], rates: dict[int, LinkRate] | None = None) -> None:
        """Create the rows.

        Args:
            rates: the present load of each link. None: show totals.
        """
        self._lines = lines
        self._rates = rates

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterable[Segment]:
        rows = [None if node.node is None else self._cells(node.node) for node in self._lines]
        columns = self._heads()
        widths = {
            column: max(len(column), *(cell_len(row[column]) for row in rows if row is not None))
            for column in columns
        }
        names = [node.branches + _name(node.node) for node in self._lines if node.node is not None]
        name_width = max(cell_len(name) for name in names)
        room = options.max_width
        for column in _OPTIONAL_COLUMNS:
            columns_width = sum(widths[node] + len(_GAP) for node in columns)
            if columns_width + name_width > room:
                columns = [node for node in columns if node != column]
        columns_width = sum(widths[node] + len(_GAP) for node in columns)
        tree_width = max(8, min(name_width, room - columns_width))
        yield Segment(
            " " * tree_width + _GAP + _GAP.join(_align_cell(h, h, widths) for h in columns), _DIM
        )
        yield Segment.line()
        for line, row in zip(self._lines, rows, strict=True):
            if row is None or line.node is None:
                remark = line.branches + line.remark
                fitting = remark if cell_len(remark) <= room else set_cell_size(remark, room - 1)
                yield Segment(fitting + ("" if fitting == remark else "…"), _line_style(line))
                yield Segment.line()
                continue
            yield Segment(_fit(line.branches, _name(line.node), tree_width))
            for column in columns:
                style = _STATE_STYLES[line.node.state] if column == "state" else None
                yield Segment(_GAP)
                yield Segment(_align_cell(column, row[column], widths), style)
            yield Segment.line()

    def _heads(self) -> list[str]:
        calls = "calls" if self._rates is None else "calls/s"
        return ["state", "role", "link", "tools", calls, "failed", "latency"]

    def _cells(self, node: TreeNode) -> dict[str, str]:
        cells = {
            "state": node.state,
            "role": node.role,
            "link": output.sanitize(node.link) or "-",
            "tools": str(node.tools),
            "failed": str(node.failed),
        }
        if self._rates is None:
            mean = node.busy_us / node.calls if node.calls else None
            return cells | {"calls": str(node.calls), "latency": _latency(mean)}
        rate = self._rates[id(node)]
        per_second = "-" if rate.per_second is None else f"{rate.per_second:.0f}"
        return cells | {"calls/s": per_second, "latency": _latency(rate.mean_us)}


def _name(node: TreeNode) -> str:
    return output.sanitize(node.name).replace("\n", " ")


def _line_style(line: TreeLine) -> Style:
    return _BAD if line.bad else _DIM


def _fit(branches: str, name: str, width: int) -> str:
    """Fit a name with its branches into a width. Branches are shortened before the name."""
    text = branches + name
    if cell_len(text) <= width:
        return set_cell_size(text, width)
    if len(branches) > 2 and cell_len(name) + 3 <= width:
        branch_width = width - cell_len(name) - 1
        return set_cell_size("…" + branches[-branch_width:] + name, width)
    return set_cell_size(text, width - 1) + "…"


def _align_cell(column: str, cell: str, widths: dict[str, int]) -> str:
    if column in ("state", "role", "link"):
        return set_cell_size(cell, widths[column])
    return cell.rjust(widths[column])


def _latency(mean_us: float | None) -> str:
    if mean_us is None:
        return "-"
    if mean_us >= 1_000_000:
        return f"{mean_us / 1_000_000:.1f} s"
    return f"{mean_us / 1000:.1f} ms" if mean_us < 100_000 else f"{mean_us / 1000:.0f} ms"


def format_summary(root: TreeNode) -> str:
    """Summarize the tree in one line."""
    nodes = list(root.walk())
    aggregators = sum(node.role != "leaf" for node in nodes)
    problem_count = sum(node.has_problem for node in nodes)
    servers = len(nodes) - aggregators
    parts = [
        format_count(aggregators, "node"),
        format_count(servers, "server"),
        format_count(root.tools, "tool"),
    ]
    problem_text = f"{problem_count} with problems" if problem_count else "no problems"
    return " · ".join([*parts, problem_text])


_UPDATE_INTERVAL_SECONDS: Final = 1.0
_LINES_OUTSIDE_TREE: Final = 4
"""Lines of the screen that are not part of the tree: summary, header, problem, cursor."""


def tree(
    config: config_source.ConfigOption = None,
    once: Annotated[bool, typer.Option("--once", help="Print the tree once and exit.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON once, for programs.")] = False,
    node: NodeOption = None,
) -> None:
    """Show the tree below the running node: nodes and servers with state, calls and latency.

    On a terminal the view is updated every second until Ctrl-C: calls/s and latency are those of
    the last second, on the link from the node above. Elsewhere the tree is printed once, with
    totals. If not all lines fit on the terminal, nodes with problems come first.

    The exit code is 4 if no node is running.

    \b
    Examples:
      interlock tree
      interlock tree --once --node 8421
      interlock tree --json | jq '.. | objects | select(.state? and .state != "ready") | .name'
    """
    target = node_discovery.find_node(config, node)
    body = _fetch_tree(target)
    if target.config_error is not None:
        node_discovery.print_earlier_config_note(target.config_error)
    if json:
        import msgspec

        output.print_json(msgspec.json.decode(body))
        return
    console = output.create_console()
    if once or not console.is_terminal or console.is_dumb_terminal:
        console.print(_render(_decode_tree(body), console))
        return
    try:
        _watch(target, console, body)
    except KeyboardInterrupt:
        # Ctrl-C is the normal end of the live view.
        return


def _fetch_tree(target: TargetNode) -> bytes:
    """Fetch the tree as JSON. Raises InterlockError if no node is running."""
    from interlock.terminal.node_http import fetch_over_http
    from interlock.tree.socket import tree_socket_path

    # The user of the node needs no token. The node of another user is reached over HTTP.
    return node_discovery.read_socket(tree_socket_path(target.socket)) or fetch_over_http(
        target, "/tree"
    )


def _decode_tree(body: bytes) -> TreeNode:
    import msgspec

    from interlock.errors import UPSTREAM_UNAVAILABLE, InterlockError
    from interlock.tree.overview import read_tree

    try:
        return read_tree(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InterlockError(
            UPSTREAM_UNAVAILABLE,
            "The node sent an invalid tree. Check that both have the same version: "
            "`interlock version`",
        ) from None


def _watch(target: TargetNode, console: Console, body: bytes) -> None:
    """Draw the tree every second, also while the node is unreachable for a moment."""
    from rich.live import Live

    from interlock.errors import InterlockError

    rates = LinkRates()
    root, problem = _decode_tree(body), ""
    with Live(console=console, auto_refresh=False) as live:
        while True:
            live.update(_render(root, console, rates, problem), refresh=True)
            time.sleep(_UPDATE_INTERVAL_SECONDS)
            try:
                root, problem = _decode_tree(_fetch_tree(target)), ""
            except InterlockError as error:
                problem = error.message


def _render(
    root: TreeNode, console: Console, rates: LinkRates | None = None, problem: str = ""
) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    room = max(3, console.size.height - _LINES_OUTSIDE_TREE) if console.is_terminal else None
    now = None if rates is None else rates.update(root, time.monotonic())
    parts: list[RenderableType] = [
        Text(format_summary(root), no_wrap=True, overflow="ellipsis"),
        TreeRows(layout_tree(root, room), now),
    ]
    if problem:
        parts.append(Text(output.sanitize(problem).partition("\n")[0], style="red", no_wrap=True))
    return Group(*parts)
