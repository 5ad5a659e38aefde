"""`interlock stdio`: MCP on stdin and stdout, for clients that only start programs.

If a node of this config is running, the command is a byte pump to that node and shares its
upstreams. Otherwise the command runs a node for this one client. Only protocol messages go to
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
from interlock.cli.pump import (
    RESPONSE_TIMEOUT_SECONDS,
    connect_to_socket,
    pump_bytes,
    send_line,
    write_all,
)
from interlock.core.paths import is_trusted
from interlock.core.server.mcp.stream import McpStream
from interlock.core.server.mcp.views import CHOSEN, Views
from interlock.errors import ProtocolError
from interlock.protocol.jsonrpc import decode_value, encode_value, notification, request
from interlock.terminal import config_source, log_lines, node_discovery, output
from interlock.terminal.config_source import ConfigSource
from interlock.terminal.node_client import wait_for_tools
from interlock.terminal.node_discovery import NodeOption

# -- A node whose only client uses stdin and stdout of this process.

_STDIN: Final = 0
_STDOUT: Final = 1
_CHUNK_SIZE: Final = 64 * 1024


async def serve_stdio(source: ConfigSource, initial_data: bytes = b"") -> None:
    """Run a node until the client disconnects or a signal comes.

    Args:
        initial_data: messages to process before those of the client.
    """
    log_lines.log_to_stderr(logging.WARNING)
    run = NodeRun(source.load, base_dir=source.base_dir, config_path=source.path, listens=False)
    node = await run.start()
    loop = asyncio.get_running_loop()
    stdout_writer = _StdoutWriter(lambda: loop.call_soon_threadsafe(run.stopping.set))
    stream = node.stream(stdout_writer.write)
    stream.feed(initial_data)
    request_queue = _RequestQueue(stream)
    input_ended = asyncio.Event()
    threading.Thread(
        target=_read_input,
        args=(loop, request_queue.feed, input_ended.set),
        name="stdin",
        daemon=True,
    ).start()
    release_task = loop.create_task(_release_when_ready(node, request_queue))
    try:
        await _wait_for_first(input_ended, run.stopping)
        if not run.stopping.is_set():
            # The client has closed stdin. It may still wait for responses.
            await asyncio.wait([release_task], timeout=RESPONSE_TIMEOUT_SECONDS)
            request_queue.release()
            await _drain(RESPONSE_TIMEOUT_SECONDS, stream)
    finally:
        release_task.cancel()
        stream.closed()
        await run.stop()
        stdout_writer.close()


class _RequestQueue:
    """A queue that delays requests while upstreams start. Otherwise the first list would be empty.

    `initialize` is delayed too, because the capabilities of the node are those of its upstreams.
    """

    def __init__(self, stream: McpStream) -> None:
        self._stream = stream
        self._queued: list[bytes] | None = []

    def feed(self, data: bytes) -> None:
        if self._queued is None:
            self._stream.feed(data)
        else:
            self._queued.append(data)

    def release(self) -> None:
        queued, self._queued = self._queued, None
        for data in queued or ():
            self._stream.feed(data)


class _StdoutWriter:
    """Writes to stdout in a thread, so that a slow client does not block the event loop."""

    def __init__(self, on_error: Callable[[], object]) -> None:
        self._on_error = on_error
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="stdout", daemon=True)
        self._thread.start()

    def write(self, data: bytes) -> None:
        self._lines.put(data)

    def close(self) -> None:
        """Write the remaining lines, if the client reads them in time."""
        self._lines.put(None)
        self._thread.join(RESPONSE_TIMEOUT_SECONDS)

    def _run(self) -> None:
        while (data := self._lines.get()) is not None:
            try:
                write_all(_STDOUT, data)
            except OSError:
                self._on_error()
                return


def _read_input(
    loop: asyncio.AbstractEventLoop, feed: Callable[[bytes], None], on_end: Callable[[], None]
) -> None:
    try:
        while data := _read_chunk():
            loop.call_soon_threadsafe(feed, data)
        # The last line may have no line end.
        loop.call_soon_threadsafe(feed, b"\n")
        loop.call_soon_threadsafe(on_end)
    except RuntimeError:
        # The node has stopped, and its event loop is closed.
        return


def _read_chunk() -> bytes:
    try:
        return os.read(_STDIN, _CHUNK_SIZE)
    except OSError:
        # A closed stdin is the end of the input.
        return b""


async def _release_when_ready(node: Node, request_queue: _RequestQueue) -> None:
    await wait_for_tools(node)
    request_queue.release()


async def _wait_for_first(*events: asyncio.Event) -> None:
    tasks = [asyncio.ensure_future(event.wait()) for event in events]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()


async def _drain(seconds: float, stream: McpStream) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stream.drained()
    except TimeoutError:
        logging.getLogger("interlock.node").warning(
            "stdio: some responses were not ready within %g s", seconds
        )


def stdio(
    config: config_source.ConfigOption = None,
    node: NodeOption = None,
    view: Annotated[
        str | None,
        typer.Option(
            "--view",
            metavar="VIEW",
            help="Serve this view: plain, aql, aql-single, auto, or a profile of the config.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Serve MCP on stdin and stdout, for clients that only start programs.

    Connects to the running node of the same config. If none is running, runs a node until the
    client disconnects. Logs go to stderr. A client can start the command in any folder, so use the
    absolute path of the config.

    \b
    Example of an entry in a client's config:
      {"mcpServers": {"interlock":
        {"command": "interlock", "args": ["stdio", "-c", "/path/to/interlock.yaml"]}}}
    """
    target = node_discovery.find_node(config, node)
    connection = connect_to_socket(target.socket) if is_trusted(target.socket.parent) else None
    if connection is not None:
        if view is not None:
            _select_view(connection, view)
        if not pump_bytes(connection):
            output.print_problem("The node closed the connection. Look at its log.")
            raise typer.Exit(output.UNREACHABLE)
        return
    if node is not None or target.source is None or target.config_error is not None:
        raise node_discovery.not_running_error(target, selected_by_address=node is not None)
    from interlock.terminal.event_loop import run

    if view is not None:
        try:
            Views(target.config).find_view(view)
        except ProtocolError as error:
            raise typer.BadParameter(error.message, param_hint="--view") from None
    initial_data = (
        b"" if view is None else notification(CHOSEN, encode_value({"view": view})) + b"\n"
    )
    run(serve_stdio(target.source, initial_data))


def _select_view(connection: socket.socket, view: str) -> None:
    """Select a view at the node for a client that cannot select it. An unknown view is an error:
    the client never gets another view instead."""
    response = send_line(connection, request(1, CHOSEN, encode_value({"view": view})) + b"\n")
    if not response:
        output.print_problem("The node closed the connection. Look at its log.")
        raise typer.Exit(output.UNREACHABLE)
    error = decode_value(response).get("error")
    if error is not None:
        raise typer.BadParameter(error["message"], param_hint="--view")
