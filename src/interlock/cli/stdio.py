"""`interlock stdio`: a node for clients that can only start a program and speak to it.

When a node of this config is running, this is a byte pump to it: it costs nothing and shares the
node's upstreams. Else it is a node itself, with this one client. Nothing but protocol ever goes to
stdout.
"""

from __future__ import annotations

import socket
from typing import Annotated

import typer

from interlock.cli import running, say, where
from interlock.cli.pump import asked, connected, pump
from interlock.cli.running import NodeOption
from interlock.errors import ProtocolError
from interlock.faces.mcp.views import CHOSEN, Views
from interlock.node.places import is_trusted
from interlock.protocol.jsonrpc import decode_value, encode_value, notification, request


def stdio(
    config: where.ConfigOption = None,
    node: NodeOption = None,
    view: Annotated[
        str | None,
        typer.Option(
            "--view",
            metavar="VIEW",
            help="What the client sees: plain, aql, aql-single, auto, or a profile of the config.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Speak MCP on stdin and stdout, for clients that only start programs.

    Attaches to the running node of the same config when there is one, else runs a node for as long
    as the client stays. Logs go to stderr. A client may start it in any folder, so name the config
    by its whole path.

    \b
    Example, in a client's config:
      {"mcpServers": {"interlock":
        {"command": "interlock", "args": ["stdio", "-c", "/path/to/interlock.yaml"]}}}
    """
    meant = running.meant(config, node)
    connection = connected(meant.socket) if is_trusted(meant.socket.parent) else None
    if connection is not None:
        if view is not None:
            _choose(connection, view)
        if not pump(connection):
            say.problem("the node has ended the connection.")
            raise typer.Exit(say.UNREACHABLE)
        return
    if node is not None or meant.source is None or meant.problem is not None:
        raise running.not_running(meant, named=node is not None)
    from interlock.cli.event_loop import run
    from interlock.cli.stdio_node import serve_stdio

    if view is not None:
        try:
            Views(meant.config.aql).by_name(view)
        except ProtocolError as error:
            raise typer.BadParameter(error.message, param_hint="--view") from None
    first = b"" if view is None else notification(CHOSEN, encode_value({"view": view})) + b"\n"
    run(serve_stdio(meant.source, first))


def _choose(connection: socket.socket, view: str) -> None:
    """Name a view to the node for a client that cannot do it itself. Whoever named one that is not
    there is shown nothing else instead."""
    answer = asked(connection, request(1, CHOSEN, encode_value({"view": view})) + b"\n")
    if not answer:
        say.problem("the node has ended the connection.")
        raise typer.Exit(say.UNREACHABLE)
    refused = decode_value(answer).get("error")
    if refused is not None:
        raise typer.BadParameter(refused["message"], param_hint="--view")
