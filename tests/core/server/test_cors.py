"""CORS: preflight requests, and headers of responses to pages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from interlock.topics.config import TopicConfig, TopicsConfig
from tests.support.http_client import initialize, message, request
from tests.support.node import NodeThread, result_text

PAGE = ("Origin", "http://localhost:6274")
PREFLIGHT = (PAGE, ("Access-Control-Request-Method", "POST"))


@pytest.fixture(scope="module")
def shared_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeThread]:
    """A node that allows the pages of one origin."""
    node = NodeThread(tmp_path_factory.mktemp("plain"), allowed_origins=[PAGE[1]])
    yield node
    node.stop()


def split_values(value: str) -> set[str]:
    return {item.strip().lower() for item in value.split(",")}


def test_answers_preflight_request(shared_node: NodeThread) -> None:
    requested = "content-type, mcp-protocol-version, mcp-param-region, x-made-up"
    data = shared_node.http(
        b"", *PREFLIGHT, ("Access-Control-Request-Headers", requested), method="OPTIONS"
    )
    with shared_node.connect() as connection:
        response = connection.request(data)
        assert (response.status, response.body) == (200, b"")
        assert response.headers["access-control-allow-origin"] == PAGE[1]
        assert response.headers["vary"] == "Origin"
        assert split_values(response.headers["access-control-allow-methods"]) == {
            "get",
            "post",
            "delete",
        }
        allowed = split_values(response.headers["access-control-allow-headers"])
        assert {
            "authorization", "content-type", "last-event-id", "mcp-session-id", "mcp-method",
            "mcp-name", "mcp-protocol-version", "mcp-param-region",
        } <= allowed  # fmt: skip
        assert "x-made-up" not in allowed
        assert "access-control-allow-private-network" not in response.headers
        # The connection can be used for what was asked about.
        assert (
            result_text(connection.request(shared_node.call("echo", {"text": "x"}, 1, PAGE))) == "x"
        )


def test_allows_private_network_access(shared_node: NodeThread) -> None:
    private = ("Access-Control-Request-Private-Network", "true")
    response = shared_node.once(shared_node.http(b"", *PREFLIGHT, private, method="OPTIONS"))
    assert response.headers["access-control-allow-private-network"] == "true"


def test_preflight_needs_no_token(start_node: Any) -> None:
    node = start_node(
        tokens={"operator": "a-token-of-operator-1234567890"}, allowed_origins=[PAGE[1]]
    )
    assert node.once(node.http(b"", *PREFLIGHT, method="OPTIONS")).status == 200
    # But to call, and it can read why.
    response = node.once(node.call("echo", {"text": "x"}, 1, PAGE))
    assert response.status == 401
    assert response.headers["access-control-allow-origin"] == PAGE[1]


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example", "null", "http://localhost.evil.example", "http://localhost:9999",
        "http://127.0.0.1", "http://localhost",
    ],
)  # fmt: skip
def test_foreign_origin_gets_no_cors_headers(shared_node: NodeThread, origin: str) -> None:
    preflight = (("Origin", origin), PREFLIGHT[1])
    for data in (
        shared_node.http(b"", *preflight, method="OPTIONS"),
        shared_node.call("echo", {"text": "x"}, 1, ("Origin", origin)),
    ):
        response = shared_node.once(data)
        assert response.status == 403
        assert not [name for name in response.headers if name.startswith("access-control")]


def test_answers_preflight_of_allowed_origin(start_node: Any) -> None:
    node = start_node(allowed_origins=["https://app.example"])
    page = ("Origin", "https://app.example")
    response = node.once(node.http(b"", page, PREFLIGHT[1], method="OPTIONS"))
    assert response.headers["access-control-allow-origin"] == "https://app.example"
    node.wait(node.node.apply(node.config(allowed_origins=[])))
    assert node.once(node.http(b"", page, PREFLIGHT[1], method="OPTIONS")).status == 403


@pytest.mark.feature("tree")
def test_rejects_websocket_from_other_local_port(start_node: Any) -> None:
    """A program that shows foreign content at another port of this machine is somebody else."""
    node = start_node(topics=TopicsConfig(rooms={"room": TopicConfig(access="private")}))
    upgrade = (
        ("Connection", "Upgrade"),
        ("Upgrade", "websocket"),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
    )
    for path in ("/ws?topic=room", "/ax"):
        for origin, status in (("http://localhost:9999", 403), (f"http://{node.host}", 101)):
            with node.connect() as connection:
                headers = (*upgrade, ("Origin", origin))
                connection.send(request(node.host, b"", *headers, method="GET", path=path))
                assert connection.head()[0] == status


def test_rejects_options_without_preflight_headers(shared_node: NodeThread) -> None:
    for headers in ((), (PAGE,), (PREFLIGHT[1],)):
        assert shared_node.once(shared_node.http(b"", *headers, method="OPTIONS")).status == 405


def test_adds_cors_headers_to_every_response(shared_node: NodeThread) -> None:
    opened = shared_node.once(shared_node.http(message("initialize", initialize(), 0), PAGE))
    assert "mcp-session-id" in split_values(opened.headers["access-control-expose-headers"])
    session = shared_node.session("2025-11-25", PAGE)
    with shared_node.connect() as connection:
        for data in (
            shared_node.call("echo", {"text": "x"}, 1, PAGE),
            shared_node.call("large", {"size": 200_000}, 1, PAGE),
            shared_node.call("nothing", {}, 1, PAGE),
            shared_node.http(b"{", PAGE),
            session.call("echo", {"text": "x"}),
            session.request("notifications/initialized", None, None),
        ):
            assert connection.request(data).headers["access-control-allow-origin"] == PAGE[1]
        connection.send(session.get())
        assert connection.head()[1]["access-control-allow-origin"] == PAGE[1]
    response = shared_node.once(shared_node.call("echo", {"text": "x"}))
    assert not [name for name in response.headers if name.startswith("access-control")]
