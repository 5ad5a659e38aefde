"""A room for the link of a participant."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from interlock.protocol.mcpx_terms import GATEWAY, PRESENCE, WELCOME
from interlock.topics.wire.envelope import EnvelopeHeader, read_head, write_envelope

NODE = "node"


class SentMessage(msgspec.Struct):
    """A message that the node sent."""

    id: str
    kind: str
    payload: dict[str, Any]
    to: tuple[str, ...]
    about: str | None


class LinkRoom:
    """A room that records messages of the node and delivers messages of others."""

    def __init__(self) -> None:
        self.said: list[SentMessage] = []
        self.heard: list[Callable[[EnvelopeHeader, bytes], None]] = []
        self.on_said: Callable[[SentMessage], None] | None = None
        self.refuses: BaseException | None = None
        self._ids = 0

    def say(self, kind: str, payload: bytes, to: Sequence[str], correlation_id: str | None) -> str:
        """The seat of the node."""
        if self.refuses is not None:
            raise self.refuses
        said = SentMessage(self.new_id(), kind, json.loads(payload), tuple(to), correlation_id)
        self.said.append(said)
        if self.on_said is not None:
            self.on_said(said)
        return said.id

    def new_id(self) -> str:
        self._ids += 1
        return f"env-{self._ids}"

    def deliver(
        self,
        sender: str,
        kind: str,
        payload: Any,
        *,
        about: str | None = None,
        to: Sequence[str] = (NODE,),
    ) -> None:
        """Somebody says something."""
        text = write_envelope(
            id=self.new_id(),
            sender=sender,
            kind=kind,
            payload=payload if isinstance(payload, bytes) else json.dumps(payload).encode(),
            to=to,
            correlation_id=about,
        )
        head = read_head(text)
        for one in list(self.heard):
            one(head, text)

    def add_participant(self, id: str, *capabilities: str) -> None:
        self._presence("join", {"id": id, "capabilities": list(capabilities)})

    def remove_participant(self, id: str) -> None:
        self._presence("leave", {"id": id})

    def _presence(self, event: str, participant: dict[str, Any]) -> None:
        self.deliver(GATEWAY, PRESENCE, {"event": event, "participant": participant}, to=())

    def send_welcome(self, *others: tuple[str, list[str]]) -> None:
        """The node itself comes in, and is told who is there."""
        them = [{"id": id, "capabilities": capabilities} for id, capabilities in others]
        you = {"id": NODE, "capabilities": ["mcp/*"]}
        self.deliver(GATEWAY, WELCOME, {"you": you, "participants": them})


class ScriptedWorker:
    """A participant with tools that responds to requests of the node."""

    def __init__(self, room: LinkRoom, id: str = "worker", *, soon: Callable[..., Any]) -> None:
        self.room = room
        self.id = id
        self.tools = ["write_file"]
        self.nodes: dict[str, int] = {}
        """How many nodes a tool says that it came through."""
        self.info: dict[str, Any] | None = {"name": "worker", "version": "1"}
        """None: it answers no `initialize`."""
        self.asked: list[SentMessage] = []
        self._soon = soon
        room.on_said = self._hears

    def _hears(self, said: SentMessage) -> None:
        if self.id in said.to:
            self._soon(self._answer, said)

    def _answer(self, said: SentMessage) -> None:
        self.asked.append(said)
        method, id = said.payload["method"], said.payload.get("id")
        if id is None:
            return
        answer: dict[str, Any] = {"jsonrpc": "2.0", "id": id}
        if method == "initialize":
            if self.info is None:
                return
            answer["result"] = {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {}, "resources": {}},
                "serverInfo": self.info,
            }
        elif method == "tools/list":
            tools: list[dict[str, Any]] = [
                {"name": name, "inputSchema": {"type": "object"}} for name in self.tools
            ]
            for tool in tools:
                if tool["name"] in self.nodes:
                    tool["_meta"] = {"x-mcpax-hops": self.nodes[tool["name"]]}
            answer["result"] = {"tools": tools}
        elif method == "resources/list":
            answer["result"] = {"resources": [{"uri": "file:///a", "name": "a"}]}
        elif method == "tools/call":
            told = json.dumps(said.payload["params"].get("arguments"))
            answer["result"] = {"content": [{"type": "text", "text": told}]}
        else:
            answer["error"] = {"code": -32601, "message": f"{method} is not known here"}
        kind = said.kind.replace("mcp/request", "mcp/response", 1)
        self.room.deliver(self.id, kind, answer, about=said.id)
