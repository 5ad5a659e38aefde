"""An MCP server written with the official SDK, over HTTP. Prints its port when it listens."""

from __future__ import annotations

import argparse
import socket

import anyio
import uvicorn
from mcp.server.mcpserver import Context, MCPServer

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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=("json", "sse", "legacy"))
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args()
    if options.kind == "legacy":
        app = server.sse_app()
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
