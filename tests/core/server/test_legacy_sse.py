"""The HTTP+SSE transport of 2024-11-05: by raw requests, and with the official SDK's client."""

from __future__ import annotations

import asyncio
import json
import secrets
from typing import Any

from mcp import ClientSession
from mcp.client.sse import sse_client
from mcp_types import CallToolResult, TextContent

from interlock.core.server.mcp.legacy_sse import LegacySse
from tests.support.http_client import HttpConnection, event_fields, initialize, message, meta
from tests.support.node import NodeThread, result_text
from tests.support.timeouts import HANG_TIMEOUT

OPERATOR, AUDITOR = secrets.token_urlsafe(24), secrets.token_urlsafe(24)
OLD = "2024-11-05"


def legacy_endpoint(node: NodeThread) -> LegacySse:
    """Return the endpoint of the legacy transport in this node."""
    endpoint = node.node.listeners._legacy
    assert endpoint is not None
    return endpoint


class LegacyClient:
    """A client of the legacy transport."""

    def __init__(self, node: NodeThread, *headers: tuple[str, str]) -> None:
        self.node = node
        self.server = legacy_endpoint(node)
        self.headers = headers
        self.wire = HttpConnection(("127.0.0.1", node.port))
        self.wire.send(node.http(b"", *headers, method="GET", path="/sse"))
        status, text = self.wire.head()
        assert (status, text["content-type"]) == (200, "text/event-stream")
        first = event_fields(self.wire.chunk())
        assert first["event"] == "endpoint"
        self.endpoint = first["data"]

    def __enter__(self) -> LegacyClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.wire.close()

    def post(self, body: bytes, *headers: tuple[str, str], **more: Any) -> Any:
        supplied = {"path": self.endpoint, **more}
        return self.node.once(self.node.http(body, *(headers or self.headers), **supplied))

    def post_message(self, method: str, params: Any = None, id: Any = 1) -> None:
        response = self.post(message(method, params, id))
        assert (response.status, response.body) == (202, b"Accepted")

    def read_message(self) -> Any:
        while True:
            fields = event_fields(self.wire.chunk())
            if fields:
                assert fields["event"] == "message"
                return json.loads(fields["data"])

    def request(self, method: str, params: Any = None, id: Any = 1) -> Any:
        self.post_message(method, params, id)
        return self.read_message()

    def initialize(self, version: str = OLD) -> Any:
        response = self.request("initialize", initialize(version), 0)
        self.post_message("notifications/initialized", None, None)
        return response["result"]


# -- by hand


def test_serves_session(shared_node: NodeThread) -> None:
    with LegacyClient(shared_node) as client:
        assert client.endpoint.startswith("/messages?session_id=")
        assert len(client.endpoint.partition("=")[2]) >= 32
        assert client.initialize()["protocolVersion"] == OLD
        assert client.request("ping", id="p") == {"jsonrpc": "2.0", "id": "p", "result": {}}
        call = {"name": "shop.echo", "arguments": {"text": "hi"}}
        assert result_text(client.request("tools/call", call)) == "hi"
        assert client.request("nothing/known")["error"]["code"] == -32601


def test_sends_progress_and_changes(start_node: Any) -> None:
    node = start_node()
    with LegacyClient(node) as client:
        client.initialize()
        call = {"name": "shop.report", "arguments": {"steps": 2}, "_meta": {"progressToken": "t"}}
        client.post_message("tools/call", call)
        assert [client.read_message()["params"]["progress"] for _ in range(2)] == [1, 2]
        assert result_text(client.read_message()) == "reported"
        node.do(lambda: node.shop.offer("other"))
        assert client.read_message() == {
            "jsonrpc": "2.0",
            "method": "notifications/tools/list_changed",
        }


def test_closing_stream_ends_session(start_node: Any) -> None:
    node = start_node()
    with LegacyClient(node) as client:
        endpoint = client.server
        client.initialize()
        client.post_message("tools/call", {"name": "shop.hold", "arguments": {"text": "o"}}, 7)
        pending_call = node.shop.wait_for_hold("o")
        assert len(endpoint) == 1
    node.shop.wait_for(
        lambda: node.shop.find_received("notifications/cancelled", requestId=pending_call)
    )
    node.until(lambda: not len(endpoint))
    response = client.post(message("ping"))
    assert (response.status, response.error["code"]) == (404, -32600)


def test_separates_clients(shared_node: NodeThread) -> None:
    with LegacyClient(shared_node) as one, LegacyClient(shared_node) as other:
        assert one.endpoint != other.endpoint
        one.initialize()
        other.initialize()
        assert one.request("ping", id=1)["id"] == 1
        other.wire.expect_silence()


def test_rejects_stateless_requests(shared_node: NodeThread) -> None:
    with LegacyClient(shared_node) as client:
        response = client.request("tools/list", {"_meta": meta()})
        assert response["error"]["code"] == -32600


def test_close_ends_streams(start_node: Any) -> None:
    node = start_node()
    with LegacyClient(node) as client:
        client.initialize()
        node.do(client.server.close)
        client.wire.stream_end()
        assert len(client.server) == 0
        assert client.post(message("ping")).status == 404


# -- who may


def test_checks_hosts_and_origins(shared_node: NodeThread) -> None:
    legacy_endpoint(shared_node)
    for path, method in (("/sse", "GET"), ("/messages?session_id=x", "POST")):
        data = shared_node.http(b"{}", ("Origin", "http://evil.example"), method=method, path=path)
        assert shared_node.once(data).status == 403
        data = shared_node.http(b"{}", method=method, path=path).replace(
            b"Host: 127", b"Host: evil"
        )
        assert shared_node.once(data).status == 403


def test_checks_tokens(start_node: Any) -> None:
    node = start_node(tokens={"operator": OPERATOR, "auditor": AUDITOR})
    legacy_endpoint(node)
    for data in (
        node.http(b"", method="GET", path="/sse"),
        node.http(message("ping"), path="/messages?session_id=x"),
        node.http(b"", ("Authorization", "Bearer x"), method="GET", path="/sse"),
    ):
        response = node.once(data)
        assert response.status == 401
        assert response.headers["www-authenticate"] == "Bearer"
    with LegacyClient(node, ("Authorization", f"Bearer {OPERATOR}")) as client:
        client.initialize()
        # It is Ann's: neither Auditor nor a stranger can speak in it.
        assert client.post(message("ping"), ("Authorization", f"Bearer {AUDITOR}")).status == 404
        assert client.post(message("ping"), ("X-Nothing", "")).status == 401
        assert client.request("ping", id=5)["id"] == 5


def test_limits_sessions(shared_node: NodeThread) -> None:
    endpoint = legacy_endpoint(shared_node)
    most, endpoint.max_clients = endpoint.max_clients, 1
    try:
        with LegacyClient(shared_node):
            response = shared_node.once(shared_node.http(b"", method="GET", path="/sse"))
            assert (response.status, response.error["data"]["error"]) == (503, "too_busy")
        shared_node.until(lambda: not len(endpoint))
        with LegacyClient(shared_node) as client:
            client.initialize()
    finally:
        endpoint.max_clients = most


# -- what is wrong


def test_rejects_invalid_requests(shared_node: NodeThread) -> None:
    with LegacyClient(shared_node) as client:
        client.initialize()
        assert client.post(b"{").status == 400
        assert client.post(b'{"jsonrpc":"2.0","id":3}').json["id"] == 3
        path = "/messages?session_id=wrong"
        assert client.post(message("ping"), path=path).status == 404
        assert client.post(message("ping"), path="/messages").status == 404
        text = shared_node.http(message("ping"), path=client.endpoint)
        text = text.replace(b"application/json\r\nContent-Length", b"text/plain\r\nContent-Length")
        assert shared_node.once(text).status == 400
        for path, method in (("/sse", "POST"), ("/messages", "GET"), ("/sse", "DELETE")):
            assert shared_node.once(shared_node.http(b"", method=method, path=path)).status == 405
        data = shared_node.http(b"", method="GET", path="/sse")
        assert shared_node.once(data.replace(b"text/event-stream", b"text/html")).status == 406
        assert client.request("ping", id=5)["id"] == 5


def test_rejects_large_body(start_node: Any) -> None:
    node = start_node(limits={"body_bytes": 10_000})
    with LegacyClient(node) as client:
        client.initialize()
        assert client.post(message("ping", {"x": "y" * 20_000})).status == 413


# -- the official SDK's client


async def test_works_with_official_client(shared_node: NodeThread) -> None:
    legacy_endpoint(shared_node)

    async def talk() -> None:
        url = f"http://127.0.0.1:{shared_node.port}/sse"
        async with sse_client(url) as (read, write), ClientSession(read, write) as session:
            opened = await session.initialize()
            assert opened.server_info.name == "interlock"
            tools = await session.list_tools()
            assert "shop__echo" in {tool.name for tool in tools.tools}
            result = await session.call_tool("shop.echo", {"text": "Grüezi"})
            assert isinstance(result, CallToolResult)
            (content,) = result.content
            assert isinstance(content, TextContent)
            assert content.text == "Grüezi"

    async with asyncio.timeout(HANG_TIMEOUT):
        await talk()
