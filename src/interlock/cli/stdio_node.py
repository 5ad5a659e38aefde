"""A node whose one client is at this process's stdin and stdout."""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import threading
from collections.abc import Callable
from typing import Final

from interlock.cli import log_lines
from interlock.cli.first_list import until_worth_listing
from interlock.cli.pump import LAST_ANSWERS, write_all
from interlock.cli.where import ConfigSource
from interlock.faces.mcp.stream import McpStream
from interlock.node import Node
from interlock.node.run import NodeRun

_STDIN: Final = 0
_STDOUT: Final = 1
_CHUNK: Final = 64 * 1024


async def serve_stdio(source: ConfigSource, first: bytes = b"") -> None:
    """Serve until the client leaves, or a signal comes. `first`: what is said for the client."""
    log_lines.log_to_stderr(logging.WARNING)
    run = NodeRun(source.load, base_dir=source.base_dir, watched=source.path, listening=False)
    node = await run.start()
    loop = asyncio.get_running_loop()
    output = _Output(lambda: loop.call_soon_threadsafe(run.stopping.set))
    stream = node.stream(output.write)
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
        output.close()


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
    await until_worth_listing(node)
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
