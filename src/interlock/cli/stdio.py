"""`interlock stdio`: a node for clients that can only start a program and speak to it.

When a node of this config is running, this is a byte pump to it: it costs nothing and shares the
node's upstreams. Else it is a node itself, with this one client. Nothing but protocol ever goes to
stdout.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import typer

from interlock.cli import say, where

if TYPE_CHECKING:
    import socket


def stdio(config: where.ConfigOption = None) -> None:
    """Speak MCP on stdin and stdout, for clients that only start programs.

    Attaches to the running node of the same config when there is one, else runs a node for as long
    as the client stays. Logs go to stderr.

    \b
    Example, in a client's config:
      {"mcpServers": {"interlock": {"command": "interlock", "args": ["stdio"]}}}
    """
    source = where.source_if_any(config)
    connection = _running_node(source)
    if connection is not None:
        from interlock.cli.pump import pump

        if not pump(connection):
            say.problem("the node has ended the connection.")
            raise typer.Exit(say.UNREACHABLE)
        return
    if source is None:
        raise where.nowhere()
    from interlock.cli.event_loop import run
    from interlock.cli.stdio_node import serve_stdio

    run(serve_stdio(source))


def _running_node(source: where.ConfigSource | None) -> socket.socket | None:
    from interlock.cli.pump import connected
    from interlock.node.places import socket_path

    config, base_dir = where.load_or_default(source)
    return connected(socket_path(config, os.environ, base_dir))
