"""An MCP server written with the official SDK, over stdio."""

from __future__ import annotations

import anyio
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


if __name__ == "__main__":
    server.run()
