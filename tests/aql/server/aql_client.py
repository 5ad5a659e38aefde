"""A client of AQL over raw HTTP, in one view and one protocol generation."""

from __future__ import annotations

import json
from typing import Any

from tests.support.http_client import HttpResponse, initialize, message, meta, stateless_headers
from tests.support.node import HttpSession, NodeThread

FIVE = [f"mcp_aql_{family}" for family in ("create", "read", "update", "delete", "execute")]
ERAS = ["session", "stateless"]


class AqlClient:
    """A client that calls operations of a node. `path` selects the view: `?view=aql` or nothing."""

    def __init__(
        self, node: NodeThread, query: str = "?view=aql", era: str = "session", **headers: str
    ) -> None:
        self.node = node
        self.era = era
        self.path = "/mcp" + query
        self.extra = tuple(headers.items())
        self.session: HttpSession | None = None
        if era == "session":
            self.session = self.open()

    def open(self, client: str = "tests") -> HttpSession:
        """A session in this view."""
        body = message("initialize", initialize(client=client), 0)
        answer = self.node.once(self.node.http(body, *self.extra, path=self.path))
        assert answer.status == 200, answer
        return HttpSession(self.node, answer, "2025-11-25", self.extra)

    # -- requests

    def send(
        self, body: bytes, method: str = "tools/call", name: str | None = None
    ) -> HttpResponse:
        """The answer to a body as it is."""
        if self.session is not None:
            headers: list[tuple[str, str]] = list(self.session.headers)
        else:
            headers = [*stateless_headers(method, name), *self.extra]
        return self.node.once(self.node.http(body, *headers, path=self.path))

    def request(
        self, method: str, params: dict[str, Any] | None = None, name: str | None = None
    ) -> HttpResponse:
        params = dict(params or {})
        if self.session is None:
            params["_meta"] = {**meta(), **params.get("_meta", {})}
        return self.send(message(method, params), method, name)

    def tools(self) -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = self.request("tools/list").result["tools"]
        return listed

    def names(self) -> list[str]:
        return [tool["name"] for tool in self.tools()]

    def call(self, tool: str, arguments: Any) -> Any:
        """The whole result of a call."""
        answer = self.request("tools/call", {"name": tool, "arguments": arguments}, tool)
        assert answer.status == 200, answer
        return answer.result

    def ask(
        self,
        operation: str,
        params: dict[str, Any] | None = None,
        tool: str | None = None,
        **beside: Any,
    ) -> Any:
        """The envelope that answers an operation."""
        arguments: dict[str, Any] = {"operation": operation, **beside}
        if params is not None:
            arguments["params"] = params
        return read_envelope(self.call(tool or self.reader, arguments))

    @property
    def reader(self) -> str:
        return "mcp_aql" if "single" in self.path else "mcp_aql_read"

    def introspect(self, **params: Any) -> Any:
        """What introspection tells."""
        told = self.ask("introspect", {"query": "operations", **params})
        assert told["success"], told
        return told["data"]


def read_envelope(result: Any) -> Any:
    """Return the envelope of a tool result. Both forms of the envelope must be equal."""
    said = json.loads(result["content"][0]["text"])
    if "structuredContent" in result:
        assert result["structuredContent"] == said
    return said


def read_code(answer: Any) -> str:
    """Return the code of a failure."""
    assert answer["success"] is False, answer
    found: str = answer["error"]["code"]
    return found
