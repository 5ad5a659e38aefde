"""The process of the demo server: stdin, stdout and its end.

It ends at once when stdin ends, when stdout is closed, and on SIGTERM or SIGINT: it has no state
that could be damaged.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from typing import Final

from interlock import __version__
from interlock.demo.toolbox import Toolbox
from interlock.protocol.jsonrpc import NULL
from interlock.protocol.lines import LineDecoder, OversizeLine, encode_line
from interlock.sdk.mcp_server import Conversation, ServerDescription

ABOUT: Final = ServerDescription(
    {"name": "interlock-demo", "title": "Interlock demo", "version": __version__},
    "A demo: the clock, dice, text statistics and a few notes in memory. "
    "notes_delete cannot be undone. count_slowly is slow and reports progress.",
)
_STDIN: Final = 0
_STDOUT: Final = 1
_READ_BYTES: Final = 65536


def main() -> None:
    """Serve the client on stdin and stdout until it disconnects."""
    # The default signal handlers end the process even while a write waits for a slow client.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.stdin is not None and sys.stdin.isatty():
        print(
            "This is an MCP server: it speaks JSON-RPC on stdin and stdout, one message per line. "
            "Start it from an MCP client, or press Ctrl-D to end it.",
            file=sys.stderr,
        )
    asyncio.run(_serve())


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    finished = loop.create_future()

    def finish() -> None:
        if not finished.done():
            finished.set_result(None)

    def end_input() -> None:
        if tail := decoder.close():
            receive(tail)
        finish()

    def send(message: bytes) -> None:
        try:
            view = memoryview(encode_line(message))
            while view:
                view = view[os.write(_STDOUT, view) :]
        except OSError:
            finish()  # The client does not read any more.

    conversation = Conversation(send, Toolbox().tools, ABOUT)
    decoder = LineDecoder()

    def receive(line: bytes | OversizeLine) -> None:
        if isinstance(line, OversizeLine):
            conversation.reject(NULL, line.error())
        else:
            conversation.receive(line)

    def feed(data: bytes) -> None:
        for line in decoder.feed(data):
            receive(line)

    def read_ready() -> None:
        if data := _read_some():
            feed(data)
        else:
            loop.remove_reader(_STDIN)
            end_input()

    def read_blocking() -> None:
        handled = threading.Semaphore(0)
        while data := _read_some():
            loop.call_soon_threadsafe(feed, data)
            # One chunk at a time: the rest stays in the file until this one is handled.
            loop.call_soon_threadsafe(handled.release)
            handled.acquire()
        loop.call_soon_threadsafe(end_input)

    try:
        loop.add_reader(_STDIN, read_ready)
    except (PermissionError, NotImplementedError):
        # The event loop cannot wait for files and /dev/null, and on Windows not for stdin.
        threading.Thread(target=read_blocking, name="demo-stdin", daemon=True).start()
    await finished


def _read_some() -> bytes:
    try:
        return os.read(_STDIN, _READ_BYTES)
    except OSError:
        return b""


if __name__ == "__main__":
    main()
