"""`interlock tree`: every node and server below the running node, looked at once or live."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Final

import typer

from interlock.cli import running, say, where
from interlock.cli.running import Meant, NodeOption

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from interlock.cli.tree_rows import Paces
    from interlock.node.tree_view import TreeNode

_LOOK_EVERY: Final = 1.0
_BESIDE_THE_TREE: Final = 4
"""Lines of a terminal that are no branch: the summary, the heads, a problem, the cursor."""


def tree(
    config: where.ConfigOption = None,
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
    meant = running.meant(config, node)
    body = _ask(meant)
    if meant.problem is not None:
        say.note(f"Note: the node runs by an earlier config: {meant.problem.problems[0]}")
    if json:
        import msgspec

        say.as_json(msgspec.json.decode(body))
        return
    console = say.console()
    if once or not console.is_terminal:
        console.print(_drawn(_read(body), console))
        return
    try:
        _watch(meant, console, body)
    except KeyboardInterrupt:
        # The only way to end it, so nothing went wrong.
        return


def _ask(meant: Meant) -> bytes:
    """The tree, as JSON. Raises InterlockError when no node tells it."""
    from interlock.cli.status import ask_over_http
    from interlock.node.tree_socket import tree_socket_path

    # Its own user needs no token. A node of somebody else is asked over HTTP.
    return running.told_at(tree_socket_path(meant.socket)) or ask_over_http(meant, "/tree")


def _read(body: bytes) -> TreeNode:
    import msgspec

    from interlock.errors import UPSTREAM_UNAVAILABLE, InterlockError
    from interlock.node.tree_view import read_tree

    try:
        return read_tree(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InterlockError(
            UPSTREAM_UNAVAILABLE, "what the node told is no tree; is it of another version?"
        ) from None


def _watch(meant: Meant, console: Console, body: bytes) -> None:
    """Draw it every second, also while the node is away for a moment."""
    from rich.live import Live

    from interlock.cli.tree_rows import Paces
    from interlock.errors import InterlockError

    paces = Paces()
    top, problem = _read(body), ""
    with Live(console=console, auto_refresh=False) as live:
        while True:
            live.update(_drawn(top, console, paces, problem), refresh=True)
            time.sleep(_LOOK_EVERY)
            try:
                top, problem = _read(_ask(meant)), ""
            except InterlockError as error:
                problem = error.message


def _drawn(
    top: TreeNode, console: Console, paces: Paces | None = None, problem: str = ""
) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    from interlock.cli.tree_rows import TreeRows, lay_out, summary

    room = max(3, console.size.height - _BESIDE_THE_TREE) if console.is_terminal else None
    now = None if paces is None else paces.look(top, time.monotonic())
    parts: list[RenderableType] = [
        Text(summary(top), no_wrap=True, overflow="ellipsis"),
        TreeRows(lay_out(top, room), now),
    ]
    if problem:
        parts.append(Text(say.printable(problem).partition("\n")[0], style="red", no_wrap=True))
    return Group(*parts)
