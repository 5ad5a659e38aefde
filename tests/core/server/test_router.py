"""The table of routes, the app that serves it, and the guard of its paths."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from interlock.core.server.http.asgi import Scope, respond_json
from interlock.core.server.http.guard import Guard
from interlock.core.server.http.resource_metadata import Challenges, ResourceMetadata
from interlock.core.server.http.router import (
    AppRoute,
    DirectRoute,
    PublicDocument,
    Router,
    RouteTable,
    StatusDocument,
    WebSocketRoute,
)
from interlock.errors import UNAUTHENTICATED, InterlockError

HOST = b"127.0.0.1:7070"


class RouterHarness:
    """A router with one route of each kind, some of which can be disabled."""

    def __init__(self) -> None:
        self.has_topics = self.has_app = True
        self.is_authenticated = True
        self.refused: list[str] = []
        self.guard, self.challenges = Guard("127.0.0.1", 7070), Challenges()
        self.table = RouteTable(
            [
                DirectRoute("/mcp", lambda _: None, title="The MCP endpoint"),
                DirectRoute("/sse", lambda _: None),
                AppRoute("/shop", _app("shop"), is_available=lambda: self.has_app),
                AppRoute("/shop/desk", _app("desk"), includes_subpaths=False),
                PublicDocument("/keys", lambda: {"keys": []}),
                StatusDocument("/healthz", lambda: {"status": "ok"}, authenticated=False),
                StatusDocument("/status", self._status),
                WebSocketRoute(
                    "/topics", lambda _: None, title="topics", is_available=lambda: self.has_topics
                ),
                WebSocketRoute("/ax", lambda _: None),
            ]
        )
        pipeline: Any = SimpleNamespace(admit=self._admit, record_rejection=self._refused)
        self.router = Router(
            self.table, pipeline=pipeline, guard=self.guard, challenges=self.challenges
        )

    async def _status(self) -> dict[str, Any]:
        return {"version": "1"}

    def _admit(self, call: Any) -> None:
        if not self.is_authenticated:
            raise InterlockError(UNAUTHENTICATED, "Who are you?")

    def _refused(self, call: Any, error: InterlockError) -> None:
        self.refused.append(error.failure.name)

    def request(self, path: str, method: str = "GET", **fields: bytes) -> tuple[int, Any, Any]:
        headers = {b"host": HOST, **{name.encode(): value for name, value in fields.items()}}
        scope: Scope = {
            "type": "http",
            "method": method,
            "path": path,
            "headers": list(headers.items()),
            "client": ("127.0.0.1", 5),
            "server": ("127.0.0.1", 7070),
        }
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        async def receive() -> Any:
            raise AssertionError("nobody reads a body here")

        asyncio.run(self.router(scope, receive, send))
        body = sent[1]["body"]
        return sent[0]["status"], json.loads(body) if body else None, dict(sent[0]["headers"])


def _app(name: str) -> Any:
    async def serve(scope: Scope, receive: Any, send: Any) -> None:
        await respond_json(send, 200, {"app": name, "path": scope["path"]})

    return serve


@pytest.mark.parametrize(
    ("path", "app"),
    [("/shop", "shop"), ("/shop/", "shop"), ("/shop/a/b", "shop"), ("/shop/desk", "desk"),
     ("/shop/desk/x", "shop")],
)  # fmt: skip
def test_app_serves_path_and_subpaths(path: str, app: str) -> None:
    assert RouterHarness().request(path)[:2] == (200, {"app": app, "path": path})


@pytest.mark.parametrize("path", ["/shopping", "/sho", "/", "/ax", "/sse", "/shop"])
def test_unknown_path_lists_known_paths(path: str) -> None:
    harness = RouterHarness()
    harness.has_app = False
    status, body, _ = harness.request(path)
    assert (status, body["error"]) == (404, "not_found")
    there = "There is nothing here. The MCP endpoint is /mcp, and topics are at /topics."
    assert body["message"] == there
    harness.has_topics = False
    assert harness.request(path)[1]["message"] == there.partition(", and")[0] + "."


def test_websocket_path_requires_upgrade() -> None:
    harness = RouterHarness()
    status, body, headers = harness.request("/topics")
    assert (status, body["error"]) == (426, "upgrade_required")
    assert body["message"].startswith("Topics are joined by WebSocket")
    assert headers[b"upgrade"] == b"websocket"
    harness.has_topics = False
    assert harness.request("/topics")[0] == 404


def test_status_requires_authentication() -> None:
    harness = RouterHarness()
    assert harness.request("/status")[:2] == (200, {"version": "1"})
    assert harness.request("/status", "POST")[0] == 405
    harness.is_authenticated = False
    status, _, headers = harness.request("/status")
    assert (status, headers[b"www-authenticate"]) == (401, b"Bearer")
    assert harness.request("/healthz")[:2] == (200, {"status": "ok"})


def test_public_document_allows_any_origin() -> None:
    harness = RouterHarness()
    harness.is_authenticated = False
    status, body, headers = harness.request("/keys", origin=b"https://evil.example")
    assert (status, body) == (200, {"keys": []})
    assert headers[b"access-control-allow-origin"] == b"*"
    assert harness.request("/keys", "OPTIONS")[0] == 204
    assert harness.request("/keys", "DELETE")[0] == 405


def test_guard_checks_all_paths() -> None:
    harness = RouterHarness()
    for path in ("/status", "/healthz", "/nowhere", "/topics"):
        assert harness.request(path, origin=b"https://evil.example")[0] == 403
        assert harness.request(path, host=b"evil.example")[0] == 403
    assert harness.request("/keys", host=b"evil.example")[0] == 403
    assert set(harness.refused) == {"foreign_origin"}


def test_guard_and_metadata_change_together() -> None:
    harness = RouterHarness()
    before = harness.guard.version
    harness.guard.configure(["gate.example"], ["https://app.example"])
    assert harness.guard.version is not before
    assert (
        harness.request("/healthz", host=b"gate.example", origin=b"https://app.example")[0] == 200
    )
    harness.guard.listen_at("127.0.0.1", 7071)
    assert harness.request("/healthz")[0] == 403
    assert harness.request("/healthz", host=b"127.0.0.1:7071")[0] == 200
    harness.guard.listen_at("127.0.0.1", 7070)
    where = "/.well-known/oauth-protected-resource"
    assert harness.request(where)[0] == 404
    harness.challenges.metadata = ResourceMetadata(
        "https://gate.example/mcp", ["https://issuer.example"], mcp_path="/mcp"
    )
    assert harness.request(where)[1]["resource"] == "https://gate.example/mcp"
    harness.is_authenticated = False
    assert b"resource_metadata" in harness.request("/status")[2][b"www-authenticate"]


def test_first_route_of_path_wins() -> None:
    first, second = DirectRoute("/mcp", lambda _: None), DirectRoute("/mcp", lambda _: None)
    assert RouteTable([first, second]).direct == {b"/mcp": first}


def test_empty_table_describes_no_paths() -> None:
    assert RouteTable([]).describe() == "There is nothing here."
