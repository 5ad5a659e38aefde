"""The paths beside the MCP endpoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from interlock.topics.config import TopicConfig, TopicsConfig
from tests.support.node import NodeThread

OFFER = (
    ("Upgrade", "websocket"),
    ("Connection", "Upgrade"),
    ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ("Sec-WebSocket-Version", "13"),
)
TOKEN = ("Authorization", "Bearer s3cret")


def get(node: NodeThread, path: str, *headers: tuple[str, str], method: str = "GET") -> Any:
    with node.connect() as connection:
        connection.send(node.http(b"", *headers, method=method, path=path))
        return connection.read_response(to_head=method == "HEAD")


def test_healthz_returns_ok(shared_node: NodeThread) -> None:
    response = get(shared_node, "/healthz")
    assert (response.status, response.json) == (200, {"status": "ok"})
    assert response.headers["content-type"] == "application/json"
    assert response.headers["cache-control"] == "no-store"
    assert get(shared_node, "/healthz", method="HEAD").status == 200
    assert get(shared_node, "/healthz?x=1").status == 200


def test_status_lists_upstreams(shared_node: NodeThread) -> None:
    shared_node.once(shared_node.call("echo", {"text": "x"}))
    status = get(shared_node, "/status").json
    assert status["url"] == shared_node.url
    assert status["calls"] >= 1
    (shop,) = status["upstreams"]
    assert (shop["key"], shop["state"], shop["circuit"]) == ("shop", "ready", "closed")
    assert shop["tools"] == len(shared_node.shop.tools)
    assert status["tools"] == shop["tools"]
    assert status["under_way"] == 0
    assert get(shared_node, "/status", method="HEAD").status == 200


@pytest.mark.feature("tree")
def test_tree_lists_children(shared_node: NodeThread) -> None:
    tree = get(shared_node, "/tree").json
    assert (tree["name"], tree["role"], tree["state"]) == ("root", "root", "ready")
    (shop,) = tree["children"]
    assert (shop["name"], shop["role"], shop["link"]) == ("shop", "leaf", "http")
    assert shop["tools"] == tree["tools"] == len(shared_node.shop.tools)
    assert get(shared_node, "/tree", method="HEAD").status == 200


def test_topic_path_requires_websocket(start_node: Callable[..., NodeThread]) -> None:
    node = start_node(topics=TopicsConfig(rooms={"ops": TopicConfig(access="private")}))
    for path in ("/ws", "/ws?topic=ops"):
        response = get(node, path)
        assert (response.status, response.json["error"]) == (426, "upgrade_required")
        assert response.headers["upgrade"] == "websocket"
        assert response.headers["connection"].lower() == "upgrade"
        assert "If a proxy forwards it" in response.json["message"]
    assert get(node, "/nothing").json["message"].endswith("/mcp, and topics are at /ws.")
    # Who dials the wrong path is told the right one.
    response = get(node, "/mcp", *OFFER)
    assert response.status == 404
    assert "topics are at /ws" in response.body.decode()
    # Whoever offers something else is served as always.
    response = get(node, "/mcp", ("Upgrade", "h2c"), ("Connection", "Upgrade"))
    assert "topics" not in response.body.decode()


def test_disabled_topics_are_not_mentioned(shared_node: NodeThread) -> None:
    assert get(shared_node, "/ws").status == 404
    assert "topics" not in get(shared_node, "/ws").json["message"]
    assert "topics" not in get(shared_node, "/mcp", *OFFER).body.decode()


@pytest.mark.parametrize(
    "path", ["/", "/mcp/", "/MCP", "/favicon.ico", "/status/", "/tree/", "/mcp%20"]
)
def test_unknown_path_names_mcp_endpoint(shared_node: NodeThread, path: str) -> None:
    for method in ("GET", "POST", "DELETE"):
        response = get(shared_node, path, method=method)
        assert response.status == 404
        assert "/mcp" in response.json["message"]


@pytest.mark.parametrize("path", ["/healthz", "/status", "/tree"])
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
@pytest.mark.feature("tree")
def test_rejects_write_methods(shared_node: NodeThread, path: str, method: str) -> None:
    assert get(shared_node, path, method=method).status == 405


@pytest.mark.parametrize("path", ["/status", "/tree"])
@pytest.mark.feature("tree")
def test_status_requires_token(start_node: Any, path: str) -> None:
    node = start_node(tokens={"clerk": "s3cret"})
    for headers in ([], [("Authorization", "Bearer wrong")], [("Authorization", "s3cret")]):
        response = get(node, path, *headers)
        assert response.status == 401
        assert response.headers["www-authenticate"] == "Bearer"
        assert not {"upstreams", "children"} & set(response.json)
        assert "s3cret" not in str(response)
    assert get(node, path, TOKEN).status == 200
    # Whoever restarts nodes has none.
    assert get(node, "/healthz").status == 200


def test_serves_mcp_at_configured_path(start_node: Any) -> None:
    node = start_node(path="/agents/mcp")
    assert node.url.endswith("/agents/mcp")
    assert "/agents/mcp" in get(node, "/mcp").json["message"]
    data = node.call("echo", {"text": "x"}).replace(b"POST /mcp ", b"POST /agents/mcp?a=b ")
    assert node.once(data).status == 200
