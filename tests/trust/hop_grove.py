"""Nodes that make and read tokens, leaves that write down every byte, and requests by hand."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from pathlib import Path
from typing import Any

from interlock.app.node import Node
from interlock.core.call import Call, Caller
from interlock.core.config import TokenConfig
from interlock.core.config.feature_sections import make_config
from interlock.tree.component import Tree
from interlock.tree.config import ParentConfig
from tests.tree.node_tree import NodeTree, ax_url
from tests.tree.registrar_hub import ScriptedChild

SECRETS = {
    "OWNER": "owner-own-secret-0123456789",
    "DEPUTY": "deputy-own-secret-0123456789",
    "JOIN": "join-secret-0123456789",
}
TOKENS = [
    TokenConfig(name="owner", token="${env:OWNER}", scopes=["read:edge.*", "write:edge.leaf.add"]),
    TokenConfig(name="deputy", token="${env:DEPUTY}", roles=["admin"]),
    TokenConfig(name="joins", token="${env:JOIN}", may=["register"]),
]


class HopGrove(NodeTree):
    """Nodes whose calls can be watched."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.folder = folder
        self.begun: dict[Node, list[Call]] = {}

    async def plant(self, name: str, *, below: Node | None = None, **config: Any) -> Node:
        if below is not None:
            config["parent"] = ParentConfig(
                url=ax_url(below), segment=name, token="${env:JOIN}", heartbeat=1.0
            )
        own = {"listen": "127.0.0.1:0", "state_dir": str(self.folder / name)}
        settings = make_config({**own, **config})
        node = Node(settings, base_dir=self.folder, environ={**os.environ, **SECRETS})
        self._nodes.append(node)
        begin, calls = node.pipeline.begin, self.begun.setdefault(node, [])

        def watched(call: Call, **how: Any) -> None:
            calls.append(call)
            begin(call, **how)

        node.pipeline.begin = watched  # type: ignore[assignment, method-assign]
        await node.listen()
        node.start()
        node.on_settled()
        return node

    def callers(self, node: Node) -> list[Caller | None]:
        """Who called tools there."""
        return [item.caller for item in self.begun[node] if item.method == "tools/call"]


class _Registers:
    def __init__(self, node: Node) -> None:
        self.registrar = node.component(Tree).registrar


class Leaf(ScriptedChild):
    """A subserver that is nothing but a channel: it keeps what came, byte by byte."""

    def __init__(self, node: Node) -> None:
        self.came: list[bytes] = []
        super().__init__(_Registers(node))  # type: ignore[arg-type]

    def _receive(self, payload: bytes) -> None:
        self.came.append(payload)
        super()._receive(payload)

    @property
    def calls(self) -> list[dict[str, Any]]:
        return [
            message["params"] for message in self.heard if message.get("method") == "tools/call"
        ]


async def post(
    url: str, message: Any, bearer: str = "", *, method: str = "POST", **headers: str
) -> tuple[int, Any]:
    """One request on a connection of its own: the status, and what came."""
    host, _, path = url.removeprefix("http://").partition("/")
    name, _, port = host.partition(":")
    reader, writer = await asyncio.open_connection(name, int(port))
    body = b"" if message is None else json.dumps(message).encode()
    fields = {
        "host": host,
        "connection": "close",
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
        "content-length": str(len(body)),
        **{key.replace("_", "-"): value for key, value in headers.items()},
    }
    if bearer:
        fields["authorization"] = f"Bearer {bearer}"
    head = "".join(f"{key}: {value}\r\n" for key, value in fields.items())
    writer.write(f"{method} /{path} HTTP/1.1\r\n{head}\r\n".encode() + body)
    answer = await reader.read()
    writer.close()
    status, _, rest = answer.partition(b"\r\n")
    text = rest.partition(b"\r\n\r\n")[2]
    if b"data:" in text:
        text = text.partition(b"data:")[2].strip().splitlines()[0]
    return int(status.split()[1]), json.loads(text) if text else None


META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "tests", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


async def call(node: Node, bearer: str, name: str, **meta: Any) -> Any:
    """Call a tool as a stateless client does: its result, or its error."""
    params = {"name": name, "arguments": {}, "_meta": {**META, **meta}}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    _, answer = await post(
        node.url or "", message, bearer, cookie=f"session={bearer}", mcp_method="tools/call",
        mcp_name=name, mcp_protocol_version="2026-07-28",
    )  # fmt: skip
    return answer.get("result") or answer["error"]


def claims(token: str) -> dict[str, Any]:
    body = token.split(".")[1]
    message: dict[str, Any] = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    return message


def header(token: str) -> dict[str, Any]:
    head = token.split(".")[0]
    message: dict[str, Any] = json.loads(base64.urlsafe_b64decode(head + "=" * (-len(head) % 4)))
    return message
