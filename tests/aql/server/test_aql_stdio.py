"""Tests of AQL over stdio, over the local socket, and with the official SDK."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from mcp import Client

from interlock.aql.config import AqlConfig, OperationConfig
from interlock.core.server.mcp.views import CHOSEN
from tests.aql.server.aql_client import ERAS, FIVE, read_envelope
from tests.support.http_client import HANG_TIMEOUT, HttpConnection, initialize, message, meta
from tests.support.node import NodeThread
from tests.support.tool_server import ToolServer, tool

READ = {
    "shop.echo": OperationConfig(category="READ", danger="safe"),
    "shop.hold": OperationConfig(category="EXECUTE", danger="safe"),
}
Start = Callable[..., NodeThread]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeThread]:
    config = AqlConfig(view="aql", operations=READ)
    shop = ToolServer()
    shop.tools = [tool(name, "text", text={"type": "string"}) for name in ("echo", "hold")]
    running = NodeThread(tmp_path_factory.mktemp("lines"), workshops={"shop": shop}, aql=config)
    yield running
    running.stop()


class Lines:
    """A client of lines in one protocol generation."""

    def __init__(self, node: NodeThread, era: str, client: str = "tests") -> None:
        self.wire: HttpConnection = node.local()
        self.stateless = era == "stateless"
        self.client = client
        if not self.stateless:
            self.opened = self.request("initialize", initialize(client=client))
            self.wire.send(message("notifications/initialized", None, None) + b"\n")

    def request(self, method: str, params: dict[str, Any], id: int = 5) -> Any:
        if self.stateless:
            params = {**params, "_meta": meta()}
        self.wire.send(message(method, params, id) + b"\n")
        while True:
            answer = self.wire.line()
            if answer.get("id") == id:
                return answer

    def ask(self, operation: str, params: dict[str, Any], tool: str = "mcp_aql_read") -> Any:
        arguments = {"operation": operation, "params": params}
        answer = self.request("tools/call", {"name": tool, "arguments": arguments})
        return read_envelope(answer["result"])


@pytest.mark.spec("AQ-3.3-1")
@pytest.mark.parametrize("era", ERAS)
def test_stdio_uses_view_of_config(node: NodeThread, era: str) -> None:
    lines = Lines(node, era)
    with lines.wire:
        names = [one["name"] for one in lines.request("tools/list", {})["result"]["tools"]]
        assert names == FIVE
        assert lines.ask("shop_echo", {"text": "lines"})["success"] is True
        found = lines.ask("introspect", {"query": "operations", "search": "echo"})
        assert "shop_echo" in [one["name"] for one in found["data"]["operations"]]


@pytest.mark.spec("AQ-2.3-1", "AQ-2.3.2-1")
def test_each_connection_has_own_session_id(node: NodeThread) -> None:
    ids = []
    for _ in range(2):
        lines = Lines(node, "session")
        with lines.wire:
            told = lines.ask("introspect", {"query": "operations"})
            ids.append(told["data"]["_protocol"]["session_id"])
    assert ids[0] != ids[1]


@pytest.mark.spec("AQ-2.3.1-1")
def test_rejects_calls_before_initialize(node: NodeThread) -> None:
    with node.local() as wire:
        call = {"name": "mcp_aql_read", "arguments": {"operation": "introspect"}}
        wire.send(message("tools/call", call, 1) + b"\n")
        assert "error" in wire.line()


def test_invalid_utf8_affects_only_its_line(node: NodeThread) -> None:
    lines = Lines(node, "session")
    with lines.wire:
        arguments = b'{"operation":"shop_echo","params":{"text":"\xff"}}'
        lines.wire.send(
            b'{"jsonrpc":"2.0","id":8,"method":"tools/call","params":{"name":"mcp_aql_read",'
            b'"arguments":' + arguments + b"}}\n"
        )
        said = lines.wire.line()
        if "error" in said:
            assert said["error"]["code"] == -32700
        else:
            assert read_envelope(said["result"])["error"]["code"] == "VALIDATION_INVALID_ENCODING"
        assert lines.ask("shop_echo", {"text": "after"})["success"] is True


@pytest.mark.spec("AQ-2.3.3-1", "AQ-2.3-1", "AQ-2.3.1-1", "AQ-2.3.2-1")
def test_disconnect_cancels_executions(node: NodeThread) -> None:
    lines = Lines(node, "session")
    arguments = {"operation": "shop_hold", "params": {"text": "begun"}, "_async": True}
    answer = lines.request("tools/call", {"name": "mcp_aql_execute", "arguments": arguments})
    begun = read_envelope(answer["result"])
    assert begun["data"]["status"] == "running"
    held = node.shop.wait_for_hold("begun")
    lines.wire.close()
    node.shop.wait_for(
        lambda: (
            held in node.shop.hung_up
            or node.shop.find_received("notifications/cancelled", requestId=held)
        ),
        "the execution ends with its session",
    )
    later = Lines(node, "session")
    with later.wire:
        wanted = {"execution_id": begun["data"]["execution_id"]}
        found = later.ask("get_execution", wanted)
        assert found["data"]["status"] in ("cancelled", "failed")


@pytest.mark.spec("AQ-7.1-1")
@pytest.mark.parametrize("era", ERAS)
def test_unknown_view_blocks_connection_until_valid_view(node: NodeThread, era: str) -> None:
    asked = {"view": "bogus"}
    wire = node.local()
    wire.send(message(CHOSEN, asked, None) + b"\n")
    for id, method in enumerate(("initialize", "server/discover", "tools/list", "tools/call"), 1):
        params = initialize(client="tests") if method == "initialize" else {"name": "shop.echo"}
        if era == "stateless":
            params = {**params, "_meta": meta()}
        wire.send(message(method, params, id) + b"\n")
        answer = wire.line()
        # Nothing comes that nobody asked for, and no answer is a result.
        assert answer["id"] == id
        assert "aql-single" in answer["error"]["message"]
    wire.send(message(CHOSEN, asked, 8) + b"\n")
    assert "error" in wire.line()
    wire.send(message(CHOSEN, {"view": "aql-single"}, 9) + b"\n")
    assert wire.line()["result"] == {}
    wire.send(message("server/discover", {"_meta": meta()}, 10) + b"\n")
    assert "call mcp_aql with" in wire.line()["result"]["instructions"]


@pytest.mark.parametrize("view", ["aql", "aql-single"])
def test_official_client_finds_and_calls_operation(node: NodeThread, view: str) -> None:
    async def talk() -> Any:
        async with asyncio.timeout(HANG_TIMEOUT):
            async with Client(f"{node.url}?view={view}") as client:
                tools = (await client.list_tools()).tools
                reader = tools[0].name if len(tools) == 1 else "mcp_aql_read"
                assert reader in [one.name for one in tools]
                wanted = {"query": "operations", "search": "echo a text",
                          "include": ["parameters"]}  # fmt: skip
                found = await client.call_tool(
                    reader, {"operation": "introspect", "params": wanted}
                )
                data = json.loads(found.content[0].text)["data"]  # type: ignore[union-attr]
                (one,) = [each for each in data["operations"] if each["name"] == "shop_echo"]
                assert [each["name"] for each in one["parameters"]][:1] == ["text"]
                tool = "mcp_aql" if len(tools) == 1 else f"mcp_aql_{one['endpoint']}"
                called = await client.call_tool(
                    tool, {"operation": "shop_echo", "params": {"text": "sdk"}}
                )
                assert not called.is_error
                assert called.structured_content is not None
                return json.loads(called.content[0].text)  # type: ignore[union-attr]

    assert asyncio.run(talk())["data"]["content"][0]["text"] == "sdk"
