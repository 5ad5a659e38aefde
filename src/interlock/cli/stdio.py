"""`interlock stdio`: a node for clients that can only start a program and speak to it.

When a node of this config is running, this is a byte pump to it: it costs nothing and shares the
node's upstreams. Else it is a node itself, with this one client. Nothing but protocol ever goes to
stdout.
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import socket
import threading
from collections.abc import Callable
from typing import Annotated, Final

import typer

from interlock.app import Node
from interlock.app.run import NodeRun
from interlock.cli.pump import LAST_ANSWERS, asked, connected, pump, write_all
from interlock.core.paths import is_trusted
from interlock.core.server.mcp.stream import McpStream
from interlock.core.server.mcp.views import CHOSEN, Views
from interlock.errors import ProtocolError
from interlock.protocol.jsonrpc import decode_value, encode_value, notification, request
from interlock.terminal import config_source, log_lines, node_discovery, output
from interlock.terminal.config_source import ConfigSource
from interlock.terminal.node_client import wait_for_tools
from interlock.terminal.node_discovery import NodeOption

# -- A node whose one client is at this process's stdin and stdout.

_STDIN: Final = 0
_STDOUT: Final = 1
_CHUNK: Final = 64 * 1024


async def serve_stdio(source: ConfigSource, first: bytes = b"") -> None:
    """Serve until the client leaves, or a signal comes. `first`: what is said for the client."""
    log_lines.log_to_stderr(logging.WARNING)
    run = NodeRun(source.load, base_dir=source.base_dir, watched=source.path, listening=False)
    node = await run.start()
    loop = asyncio.get_running_loop()
    stdout_writer = _Output(lambda: loop.call_soon_threadsafe(run.stopping.set))
    stream = node.stream(stdout_writer.write)
    stream.feed(first)
    doorstep = _Doorstep(stream)
    ended = asyncio.Event()
    threading.Thread(
        target=_read_input, args=(loop, doorstep.feed, ended.set), name="stdin", daemon=True
    ).start()
    settled = loop.create_task(_let_in_when_settled(node, doorstep))
    try:
        await _first_of(ended, run.stopping)
        if not run.stopping.is_set():
            # The client has said everything; it may still wait for answers.
            await asyncio.wait([settled], timeout=LAST_ANSWERS)
            doorstep.let_in()
            await _within(LAST_ANSWERS, stream)
    finally:
        settled.cancel()
        stream.closed()
        await run.stop()
        stdout_writer.close()


class _Doorstep:
    """Holds requests back while upstreams start: else the first list would be empty.

    The introduction waits too: what the node can do is what its upstreams can do.
    """

    def __init__(self, stream: McpStream) -> None:
        self._stream = stream
        self._held: list[bytes] | None = []

    def feed(self, data: bytes) -> None:
        if self._held is None:
            self._stream.feed(data)
        else:
            self._held.append(data)

    def let_in(self) -> None:
        held, self._held = self._held, None
        for data in held or ():
            self._stream.feed(data)


class _Output:
    """Writes to stdout on a thread of its own: a client that reads slowly holds up nobody else."""

    def __init__(self, broken: Callable[[], object]) -> None:
        self._broken = broken
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="stdout", daemon=True)
        self._thread.start()

    def write(self, data: bytes) -> None:
        self._lines.put(data)

    def close(self) -> None:
        """Write what is left, unless the client does not take it."""
        self._lines.put(None)
        self._thread.join(LAST_ANSWERS)

    def _run(self) -> None:
        while (data := self._lines.get()) is not None:
            try:
                write_all(_STDOUT, data)
            except OSError:
                self._broken()
                return


def _read_input(
    loop: asyncio.AbstractEventLoop, feed: Callable[[bytes], None], end: Callable[[], None]
) -> None:
    try:
        while data := _read_some():
            loop.call_soon_threadsafe(feed, data)
        # The last line may lack its end.
        loop.call_soon_threadsafe(feed, b"\n")
        loop.call_soon_threadsafe(end)
    except RuntimeError:
        # The node has ended already, and its loop with it.
        return


def _read_some() -> bytes:
    try:
        return os.read(_STDIN, _CHUNK)
    except OSError:
        # Nothing to read from is the same as nothing left to read.
        return b""


async def _let_in_when_settled(node: Node, doorstep: _Doorstep) -> None:
    await wait_for_tools(node)
    doorstep.let_in()


async def _first_of(*events: asyncio.Event) -> None:
    waiting = [asyncio.ensure_future(event.wait()) for event in events]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for one in waiting:
        one.cancel()


async def _within(seconds: float, stream: McpStream) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stream.drained()
    except TimeoutError:
        logging.getLogger("interlock.node").warning("some answers were not ready in time")


def stdio(
    config: config_source.ConfigOption = None,
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
    target = node_discovery.find_node(config, node)
    connection = connected(target.socket) if is_trusted(target.socket.parent) else None
    if connection is not None:
        if view is not None:
            _choose(connection, view)
        if not pump(connection):
            output.print_problem("the node has ended the connection.")
            raise typer.Exit(output.UNREACHABLE)
        return
    if node is not None or target.source is None or target.config_error is not None:
        raise node_discovery.not_running_error(target, named=node is not None)
    from interlock.terminal.event_loop import run

    if view is not None:
        try:
            Views(target.config).by_name(view)
        except ProtocolError as error:
            raise typer.BadParameter(error.message, param_hint="--view") from None
    first = b"" if view is None else notification(CHOSEN, encode_value({"view": view})) + b"\n"
    run(serve_stdio(target.source, first))


def _choose(connection: socket.socket, view: str) -> None:
    """Name a view to the node for a client that cannot do it itself. Whoever named one that is not
    there is shown nothing else instead."""
    answer = asked(connection, request(1, CHOSEN, encode_value({"view": view})) + b"\n")
    if not answer:
        output.print_problem("the node has ended the connection.")
        raise typer.Exit(output.UNREACHABLE)
    refused = decode_value(answer).get("error")
    if refused is not None:
        raise typer.BadParameter(refused["message"], param_hint="--view")
