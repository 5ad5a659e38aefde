"""An MCP server written with the official SDK: stdio or HTTP, in both eras or the older one only.

Over HTTP it prints its port when it listens.
"""

from __future__ import annotations

import argparse
import json
import socket
from typing import Any

import anyio
import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage
from mcp_types import ErrorData, JSONRPCError, JSONRPCRequest

STATELESS = "io.modelcontextprotocol/protocolVersion"

server = MCPServer(
    "official",
    title="The official one",
    version="1.2.3",
    instructions="Be kind.",
    log_level="CRITICAL",
)


@server.tool(title="Say it back")
def echo(text: str) -> str:
    """Says what it was told."""
    return text


@server.tool()
def add(a: int, b: int = 1) -> dict[str, int]:
    """Adds two numbers."""
    return {"sum": a + b}


@server.tool()
async def report(steps: int, ctx: Context) -> str:
    for step in range(1, steps + 1):
        await ctx.report_progress(step, steps, f"step {step}")
    return "reported"


@server.tool()
def refuse(why: str) -> str:
    raise ValueError(why)


@server.tool()
async def wait_for_ever(ctx: Context) -> str:
    await ctx.report_progress(1, 2, "waiting")
    await anyio.sleep_forever()
    return "never"


@server.tool()
async def learn(name: str, ctx: Context) -> str:
    """Adds a tool."""
    server.add_tool(lambda: name, name=name, description=f"Says {name}.")
    await ctx.notify_tools_changed()
    return "learnt"


@server.resource("note://today", name="today", mime_type="text/plain")
def today() -> str:
    return "Nothing to do."


@server.resource("note://{day}", name="day")
def day(day: str) -> str:
    return f"All about {day}."


@server.prompt()
def review(lang: str) -> str:
    return f"Review this {lang} code."


# -- as it was before 2026-07-28


class OldHttp:
    """Refuses the newer era the way older servers do."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = dict(scope.get("headers", ()))
        if headers.get(b"mcp-protocol-version", b"").startswith(b"2026"):
            body = json.dumps(
                {
                    "jsonrpc": "2.0",
                    "id": "server-error",
                    "error": {"code": -32600, "message": "Unsupported protocol version"},
                }
            ).encode()
            answered = [(b"content-type", b"application/json")]
            await send({"type": "http.response.start", "status": 400, "headers": answered})
            await send({"type": "http.response.body", "body": body})
        else:
            await self._app(scope, receive, send)


async def old_stdio() -> None:
    core = server._lowlevel_server
    async with stdio_server() as (read, write), anyio.create_task_group() as tasks:
        forward, kept = anyio.create_memory_object_stream[SessionMessage | Exception](0)

        async def sift() -> None:
            async with forward:
                async for item in read:
                    message = item.message if isinstance(item, SessionMessage) else None
                    meta = (getattr(message, "params", None) or {}).get("_meta") or {}
                    if isinstance(message, JSONRPCRequest) and STATELESS in meta:
                        error = ErrorData(code=-32602, message="Invalid request parameters")
                        answer = JSONRPCError(jsonrpc="2.0", id=message.id, error=error)
                        await write.send(SessionMessage(answer))
                    else:
                        await forward.send(item)

        tasks.start_soon(sift)
        await core.run(kept, write, core.create_initialization_options())
        tasks.cancel_scope.cancel()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("transport", choices=("stdio", "http"))
    parser.add_argument("era", choices=("both", "older"))
    options = parser.parse_args()
    if options.transport == "stdio":
        if options.era == "both":
            server.run()
        else:
            anyio.run(old_stdio)
        return
    app: Any = server.streamable_http_app()
    if options.era == "older":
        app = OldHttp(app)
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    # Whoever connects now is served as soon as the application is there.
    print(listening.getsockname()[1], flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listening])


if __name__ == "__main__":
    main()
