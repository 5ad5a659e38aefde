"""An MCP server written with the official SDK, over HTTP. Prints its port when it listens."""

from __future__ import annotations

import argparse
import socket

import anyio
import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.streamable_http import EventCallback, EventMessage, EventStore
from mcp.types import JSONRPCMessage

DEFAULT_RETRY_MS = 60

server = MCPServer("official", instructions="From the official SDK.")


@server.tool()
def echo(text: str) -> str:
    return text


@server.tool()
async def report(steps: int, ctx: Context) -> str:
    for step in range(1, steps + 1):
        await ctx.report_progress(step, steps)
    return "reported"


@server.tool()
async def wait_for_ever() -> str:
    await anyio.sleep_forever()
    return "never"


gates: dict[str, anyio.Event] = {}


@server.tool()
async def leave_and_answer(times: int, gate: str, ctx: Context) -> str:
    """End the stream of this call repeatedly, and answer on the next stream."""
    for step in range(1, times + 1):
        gates[gate] = anyio.Event()
        await ctx.report_progress(step, times)
        await gates[gate].wait()
        await ctx.close_sse_stream()
    return "answered in the end"


@server.tool()
def leave(gate: str) -> str:
    gates[gate].set()
    return gate


@server.tool()
async def ask_for_roots(ctx: Context) -> str:
    result = await ctx.session.list_roots()
    return ",".join(str(root.uri) for root in result.roots)


class Events(EventStore):
    """Every event, in order.

    The SDK loses what is stored between the end of a replay and the moment when it listens to the
    stream again. So a replay lasts until there was something to replay: here something always is.
    """

    def __init__(self) -> None:
        self._events: list[tuple[str, JSONRPCMessage | None]] = []
        self._stored = anyio.Event()

    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        self._events.append((stream_id, message))
        self._stored.set()
        self._stored = anyio.Event()
        return str(len(self._events))

    async def replay_events_after(
        self, last_event_id: str, send_callback: EventCallback
    ) -> str | None:
        last = int(last_event_id)
        stream = self._events[last - 1][0]
        while not (missed := self._messages(stream, last)):
            await self._stored.wait()
        for item in missed:
            await send_callback(item)
        return stream

    def _messages(self, stream: str, last: int) -> list[EventMessage]:
        return [
            EventMessage(message, str(number))
            for number, (of, message) in enumerate(self._events[last:], last + 1)
            if of == stream and message is not None
        ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=("json", "sse", "resumable", "legacy"))
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args()
    if options.kind == "legacy":
        app = server.sse_app()
    elif options.kind == "resumable":
        app = server.streamable_http_app(event_store=Events(), retry_interval=DEFAULT_RETRY_MS)
    else:
        app = server.streamable_http_app(json_response=options.kind == "json")
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("127.0.0.1", options.port))
    listening.listen()
    # Whoever connects now is served as soon as the application is there.
    print(listening.getsockname()[1], flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listening])


if __name__ == "__main__":
    main()
