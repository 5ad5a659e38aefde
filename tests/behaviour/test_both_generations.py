"""A started server that speaks both protocol generations: each client is served in its own.

Such a server serves one generation per process. Its tools ask the client in the way of the session
generation, as most tools in the world do, so they work only where that is spoken.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp import Client, MCPError

from interlock.core.config import ServerConfig, parse_config
from interlock.errors import InterlockError
from tests.support.node import NodeThread
from tests.support.timeouts import HANG_TIMEOUT

BOTH = """
import os
from mcp.server.mcpserver import Context, MCPServer
from mcp_types import SamplingMessage, TextContent

server = MCPServer("both", log_level="CRITICAL")

@server.tool()
async def ask(ctx: Context) -> str:
    message = SamplingMessage(role="user", content=TextContent(type="text", text="?"))
    answer = await ctx.session.create_message([message], max_tokens=10)
    return answer.content.text

@server.tool()
def pid() -> str:
    return str(os.getpid())

server.run()
"""
Makers = dict[str, Callable[[str], Client]]
OFFICIAL = Path(__file__).parent / "servers" / "official.py"


async def sample(context: Any, params: Any) -> types.CreateMessageResult:
    content = types.TextContent(type="text", text="sampled")
    return types.CreateMessageResult(role="assistant", content=content, model="m")


def started_servers(folder: Path, **settings: Any) -> dict[str, ServerConfig]:
    script = folder / "both.py"
    script.write_text(BOTH)
    return {"both": ServerConfig(command=sys.executable, args=[str(script)], **settings)}


async def call_text(client: Client, tool: str) -> str:
    answer = await client.call_tool(f"both.{tool}", {})
    assert isinstance(answer.content[0], types.TextContent)
    return answer.content[0].text


@pytest.fixture
def clients() -> Makers:
    return {
        "asked": lambda url: Client(url, mode="legacy", sampling_callback=sample),
        "session": lambda url: Client(url, mode="legacy"),
        "stateless": lambda url: Client(url, mode="auto", sampling_callback=sample),
    }


def pids(node: NodeThread, clients: Makers) -> dict[str, str]:
    async def body() -> dict[str, str]:
        actual = {}
        async with asyncio.timeout(HANG_TIMEOUT):
            for name, make in clients.items():
                async with make(node.url) as client:
                    actual[name] = await call_text(client, "pid")
        return actual

    return asyncio.run(body())


def ask_text(node: NodeThread, make: Callable[[str], Client]) -> str:
    async def body() -> str:
        async with asyncio.timeout(HANG_TIMEOUT), make(node.url) as client:
            return await call_text(client, "ask")

    return asyncio.run(body())


def test_session_client_uses_session_server_process(
    start_node: Any, tmp_path: Path, clients: Any
) -> None:
    node = start_node(workshops={}, servers=started_servers(tmp_path))
    assert ask_text(node, clients["asked"]) == "sampled"
    result = pids(node, clients)
    # Only a client that answers something costs a process.
    assert result["asked"] != result["stateless"]
    assert result["session"] == result["stateless"]


def test_pinned_session_server_has_one_process(
    start_node: Any, tmp_path: Path, clients: Any
) -> None:
    node = start_node(workshops={}, servers=started_servers(tmp_path, protocol="session"))
    assert ask_text(node, clients["asked"]) == "sampled"
    # The node asks the stateless client on behalf of the server.
    assert ask_text(node, clients["stateless"]) == "sampled"
    assert len(set(pids(node, clients).values())) == 1


def test_pinned_stateless_server_has_one_process(
    start_node: Any, tmp_path: Path, clients: Any
) -> None:
    node = start_node(workshops={}, servers=started_servers(tmp_path, protocol="stateless"))
    with pytest.raises(BaseExceptionGroup) as error:
        ask_text(node, clients["asked"])
    assert error.group_contains(MCPError)
    assert len(set(pids(node, clients).values())) == 1


def test_server_without_pinned_generation_is_reported(start_node: Any, tmp_path: Path) -> None:
    old = ServerConfig(
        command=sys.executable, args=[str(OFFICIAL), "stdio", "older"], protocol="stateless"
    )
    node = start_node(workshops={}, servers={"old": old})
    (upstream,) = node.do(lambda: node.node.status().upstreams)
    assert "protocol: stateless" in (upstream.problem or "")


def test_rejects_private_sessions_of_stateless_server() -> None:
    text = "servers: {a: {command: x, protocol: stateless, sessions: private}}"
    with pytest.raises(InterlockError) as error:
        parse_config(text)
    assert "servers.a.sessions" in error.value.message
