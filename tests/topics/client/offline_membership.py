"""The membership of a participant without a connection."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from interlock.topics.client.events import Event
from interlock.topics.client.membership import Membership
from interlock.topics.client.proposals import ProposalTracker
from interlock.topics.client.tools import RequestServer, ToolServer

GATEWAY = "system:gateway"
EVERYTHING = ("mcp/*", "chat")


class OfflineMembership:
    """The membership of the participant `me` with recorded events."""

    def __init__(
        self,
        capabilities: Sequence[str] = EVERYTHING,
        *,
        serving: RequestServer | None = None,
        others: Sequence[str] = ("a", "b"),
        sees_all: bool = True,
        lifetime: float = 300.0,
    ) -> None:
        self.said: list[dict[str, Any]] = []
        self.texts: list[bytes] = []
        self.events: list[Event] = []
        self.welcomes = 0
        self.time = 1_000.0
        self._made = 0
        self._told = 0
        self.tools = ToolServer("alone", "1")
        self.place = Membership(
            server=serving or self.tools,
            send=self._sent,
            on_welcome=self._welcomed,
            proposals=ProposalTracker(
                clock=lambda: self.time,
                stamp=lambda seconds: f"{seconds:g}",
                receives_all=sees_all,
                seconds=lifetime,
            ),
            new_id=self._new_id,
            now=lambda: "2025-08-26T14:00:00Z",
        )
        self.welcome(capabilities, others)
        self.place.listeners.add("*", self.events.append)
        self.place.listeners.add("system/*", self.events.append)

    def welcome(
        self, capabilities: Sequence[str] = EVERYTHING, others: Sequence[str] = ("a", "b")
    ) -> None:
        seats = [{"id": one, "capabilities": list(EVERYTHING)} for one in others]
        you = {"id": "me", "capabilities": list(capabilities)}
        self.tell(GATEWAY, "system/welcome", {"you": you, "participants": seats}, to=["me"])

    def tell(self, sender: str, kind: str, payload: Any, **more: Any) -> str:
        """Somebody says something; the id of it."""
        self._told += 1
        envelope = {
            "protocol": "mcpx/v0.1",
            "id": f"told-{self._told}",
            "from": sender,
            "kind": kind,
            "payload": payload,
            **more,
        }
        self.place.receive(json.dumps(envelope).encode())
        return str(envelope["id"])

    def request(
        self, sender: str, method: str, params: Any = None, *, number: Any = 7, **more: Any
    ) -> str:
        payload = {"jsonrpc": "2.0", "id": number, "method": method, "params": params or {}}
        named = (params or {}).get("name", (params or {}).get("uri"))
        kind = f"mcp/request:{method}" + (f":{named}" if named else "")
        return self.tell(sender, kind, payload, **{"to": ["me"], **more})

    def propose(self, sender: str, tool: str, arguments: Any = None, **more: Any) -> str:
        params = {"name": tool, "arguments": arguments or {}}
        payload = {"method": "tools/call", "params": params}
        return self.tell(
            sender, f"mcp/proposal:tools/call:{tool}", payload, **{"to": ["b"], **more}
        )

    def present(self, event: str, name: str, capabilities: Sequence[str] = EVERYTHING) -> None:
        who = {"id": name, "capabilities": list(capabilities)}
        self.tell(GATEWAY, "system/presence", {"event": event, "participant": who})

    @property
    def dropped(self) -> dict[str, int]:
        return dict(self.place.reputation)

    def _sent(self, text: bytes) -> None:
        self.texts.append(text)
        self.said.append(json.loads(text))

    def _welcomed(self) -> None:
        self.welcomes += 1

    def _new_id(self) -> str:
        self._made += 1
        return f"me-{self._made}"
