"""Contracts as the official SDK sees them in both protocol generations, and client requests of
driver servers."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp import Client, MCPError

from tests.drivers.driver_workspace import ANY, Running, Workspace, running
from tests.support.upstreams import HANG_TIMEOUT

COMPLETE = Path(__file__).parents[1] / "behaviour" / "servers" / "complete.py"
REVISIONS = {"legacy": "2025-11-25", "auto": "2026-07-28"}
KIND = {"type": "object", "properties": {"kind": {"type": "string"}}, "required": ["kind"]}

every_client = pytest.mark.parametrize("mode", REVISIONS)


@asynccontextmanager
async def client_of(workspace: Workspace, mode: str, **settings: Any) -> AsyncIterator[Client]:
    """The official client of a node on this workspace, over HTTP."""
    async with asyncio.timeout(HANG_TIMEOUT), running(workspace) as node:
        url = await node.node.listen()
        async with Client(url, mode=mode, cache=None, **settings) as client:
            assert client.protocol_version == REVISIONS[mode]
            yield client


async def fill_in(context: Any, params: Any) -> Any:
    return types.ElicitResult(action="accept", content={"name": "somebody"})


@every_client
@pytest.mark.spec("DR-32.meta-1")
async def test_contract_is_tool_for_official_client(tmp_path: Path, mode: str) -> None:
    workspace = Workspace(tmp_path)
    why = {"type": "object", "properties": {"why": {"type": "string"}}, "required": ["why"]}
    workspace.driver(
        "echo-mcp",
        workspace.echoes(workspace.contract()),
        workspace.serves(workspace.contract("text.wrong", inputs=why), "wrong"),
    )

    async with client_of(workspace, mode) as client:
        listing = {tool.name: tool for tool in (await client.list_tools()).tools}
        # Some clients take no dots in names: what is called is what was listed.
        (echo,) = [name for name in listing if name.replace("__", ".") == "text.echo"]
        (wrong,) = [name for name in listing if name.replace("__", ".") == "text.wrong"]
        assert listing[echo].output_schema is not None
        result = await client.call_tool(echo, {"text": "hello"})
        assert not result.is_error
        assert result.structured_content is not None
        assert result.structured_content["said"] == "hello"
        failed = await client.call_tool(wrong, {"why": "no luck"})
        assert failed.is_error
        assert "no luck" in failed.content[0].text  # type: ignore[union-attr]


@every_client
@pytest.mark.parametrize("era", ["session", "stateless", "both"])
async def test_client_request_of_driver_server_reaches_client(
    tmp_path: Path, mode: str, era: str
) -> None:
    workspace = Workspace(tmp_path)
    contract = workspace.contract("person.ask", inputs=KIND, outputs=ANY)
    args = [str(COMPLETE), "stdio", era, "far"]
    workspace.driver(
        "ask-mcp",
        workspace.serves(contract, "ask"),
        server={"kind": "binary", "path": sys.executable, "args": args},
    )

    async with client_of(workspace, mode, elicitation_callback=fill_in) as client:
        (tool,) = (await client.list_tools()).tools
        for _ in range(2):
            result = await client.call_tool(tool.name, {"kind": "form"})
            assert not result.is_error, result
            assert result.structured_content is not None
            form = result.structured_content["form"]
            assert (form["action"], form["content"]) == ("accept", {"name": "somebody"})


@every_client
@pytest.mark.parametrize("change", ["another driver", "another file"])
async def test_client_response_goes_to_requesting_server(
    tmp_path: Path, mode: str, change: str
) -> None:
    """While somebody is asked, a better driver comes, or the one that asked becomes another."""
    workspace = Workspace(tmp_path)
    contract = workspace.contract("person.ask", inputs=KIND, outputs=ANY)
    args = [str(COMPLETE), "stdio", "stateless", "far"]
    server = {"kind": "binary", "path": sys.executable, "args": args}
    workspace.driver("ask-mcp", workspace.serves(contract, "ask"), server=server)
    nodes: list[Running] = []

    async def changes(context: Any, params: Any) -> Any:
        (node,) = nodes
        before = node.node.catalog.current.by_name["person.ask"].served_by
        if change == "another driver":
            cheap = {"cost_units_per_call": 1}
            entry = workspace.serves(contract, "show", cost_override=cheap)
            workspace.driver("aaa-mcp", entry)
        else:
            entry = workspace.serves(contract, "show")
            workspace.driver("ask-mcp", entry, version="1.1.0")
        await node.until(
            lambda: node.node.catalog.current.by_name["person.ask"].served_by != before
        )
        return await fill_in(context, params)

    async with asyncio.timeout(HANG_TIMEOUT), running(workspace) as node:
        nodes.append(node)
        url = await node.node.listen()
        async with Client(url, mode=mode, cache=None, elicitation_callback=changes) as client:
            (tool,) = (await client.list_tools()).tools
            if change == "another driver":
                result = await client.call_tool(tool.name, {"kind": "form"})
                assert result.structured_content is not None
                form = result.structured_content["form"]
                assert (form["action"], form["content"]) == ("accept", {"name": "somebody"})
            else:
                with pytest.raises(MCPError, match="The driver that requested this input"):
                    await client.call_tool(tool.name, {"kind": "form"})
    # Nobody else hears what somebody answered.
    assert workspace.heard("tools/call") == []
