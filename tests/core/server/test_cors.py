"""CORS: preflight requests, and headers of responses to pages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from interlock.topics.config import TopicConfig, TopicsConfig
from tests.support.http_client import initialize, message, request
from tests.support.node import NodeThread, result_text

PAGE = ("Origin", "http://localhost:6274")
ASKS = (PAGE, ("Access-Control-Request-Method", "POST"))


@pytest.fixture(scope="module")
def shared_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeThread]:
    """A node that lets the pages of one origin call."""
    node = NodeThread(tmp_path_factory.mktemp("plain"), allowed_origins=[PAGE[1]])
    yield node
    node.stop()


def words(value: str) -> set[str]:
    return {one.strip().lower() for one in value.split(",")}


def test_answers_preflight_request(shared_node: NodeThread) -> None:
    wanted = "content-type, mcp-protocol-version, mcp-param-region, x-made-up"
    data = shared_node.http(
        b"", *ASKS, ("Access-Control-Request-Headers", wanted), method="OPTIONS"
    )
    with shared_node.connect() as wire:
        answer = wire.ask(data)
        assert (answer.status, answer.body) == (200, b"")
        assert answer.headers["access-control-allow-origin"] == PAGE[1]
        assert answer.headers["vary"] == "Origin"
        assert words(answer.headers["access-control-allow-methods"]) == {"get", "post", "delete"}
        allowed = words(answer.headers["access-control-allow-headers"])
        assert {
            "authorization", "content-type", "last-event-id", "mcp-session-id", "mcp-method",
            "mcp-name", "mcp-protocol-version", "mcp-param-region",
        } <= allowed  # fmt: skip
        assert "x-made-up" not in allowed
        assert "access-control-allow-private-network" not in answer.headers
        # The connection can be used for what was asked about.
        assert result_text(wire.ask(shared_node.call("echo", {"text": "x"}, 1, PAGE))) == "x"


def test_allows_private_network_access(shared_node: NodeThread) -> None:
    private = ("Access-Control-Request-Private-Network", "true")
    answer = shared_node.once(shared_node.http(b"", *ASKS, private, method="OPTIONS"))
    assert answer.headers["access-control-allow-private-network"] == "true"


def test_preflight_needs_no_token(start_node: Any) -> None:
    node = start_node(
        tokens={"operator": "a-token-of-operator-1234567890"}, allowed_origins=[PAGE[1]]
    )
    assert node.once(node.http(b"", *ASKS, method="OPTIONS")).status == 200
    # But to call, and it can read why.
    answer = node.once(node.call("echo", {"text": "x"}, 1, PAGE))
    assert answer.status == 401
    assert answer.headers["access-control-allow-origin"] == PAGE[1]


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example", "null", "http://localhost.evil.example", "http://localhost:9999",
        "http://127.0.0.1", "http://localhost",
    ],
)  # fmt: skip
def test_foreign_origin_gets_no_cors_headers(shared_node: NodeThread, origin: str) -> None:
    asks = (("Origin", origin), ASKS[1])
    for data in (
        shared_node.http(b"", *asks, method="OPTIONS"),
        shared_node.call("echo", {"text": "x"}, 1, ("Origin", origin)),
    ):
        answer = shared_node.once(data)
        assert answer.status == 403
        assert not [name for name in answer.headers if name.startswith("access-control")]


def test_answers_preflight_of_allowed_origin(start_node: Any) -> None:
    node = start_node(allowed_origins=["https://app.example"])
    page = ("Origin", "https://app.example")
    answer = node.once(node.http(b"", page, ASKS[1], method="OPTIONS"))
    assert answer.headers["access-control-allow-origin"] == "https://app.example"
    node.wait(node.node.apply(node.config(allowed_origins=[])))
    assert node.once(node.http(b"", page, ASKS[1], method="OPTIONS")).status == 403


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
            with node.connect() as wire:
                headers = (*upgrade, ("Origin", origin))
                wire.send(request(node.host, b"", *headers, method="GET", path=path))
                assert wire.head()[0] == status


def test_rejects_options_without_preflight_headers(shared_node: NodeThread) -> None:
    for headers in ((), (PAGE,), (ASKS[1],)):
        assert shared_node.once(shared_node.http(b"", *headers, method="OPTIONS")).status == 405


def test_adds_cors_headers_to_every_response(shared_node: NodeThread) -> None:
    opened = shared_node.once(shared_node.http(message("initialize", initialize(), 0), PAGE))
    assert "mcp-session-id" in words(opened.headers["access-control-expose-headers"])
    session = shared_node.session("2025-11-25", PAGE)
    with shared_node.connect() as wire:
        for data in (
            shared_node.call("echo", {"text": "x"}, 1, PAGE),
            shared_node.call("large", {"size": 200_000}, 1, PAGE),
            shared_node.call("nothing", {}, 1, PAGE),
            shared_node.http(b"{", PAGE),
            session.call("echo", {"text": "x"}),
            session.request("notifications/initialized", None, None),
        ):
            assert wire.ask(data).headers["access-control-allow-origin"] == PAGE[1]
        wire.send(session.get())
        assert wire.head()[1]["access-control-allow-origin"] == PAGE[1]
    answer = shared_node.once(shared_node.call("echo", {"text": "x"}))
    assert not [name for name in answer.headers if name.startswith("access-control")]
