"""A topic with the node as participant: a real room, a real pipeline and scripted
participants.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from interlock.core.call import Caller, Credentials
from interlock.core.catalog.offering import Offering
from interlock.core.server.mcp.server_info import Introduction, ServerInfo
from interlock.topics.config import TopicConfig, TopicsConfig
from interlock.topics.gateway import Gateway
from interlock.topics.member import Batch, Member, ParticipantProfile
from interlock.topics.node_participant import NodeParticipant
from interlock.topics.room import Room
from interlock.topics.wire.envelope import write_envelope
from tests.support.clock import run_ready_tasks
from tests.support.offerings import definition, offer
from tests.support.timeouts import HANG_TIMEOUT
from tests.trust.approvals.gated import Gated

TOPIC = "ops"
OTHER = "elsewhere"
NODE_ID = "interlock"
STAMP = "2026-05-01T12:00:00Z"
FULL = ("mcp/*", "chat")
PROPOSES = ("mcp/proposal:*", "mcp/response:*", "chat")
TOKENS = {"token-of-ada": "ada", "token-of-bob": "bob", "token-of-eve": "eve"}
INFO = {"name": "interlock", "version": "1"}


def tool_offering() -> Offering:
    """Return an offering with a read tool and a write tool."""
    return offer(
        "s",
        [
            definition("look", annotations={"readOnlyHint": True}),
            definition("write_file", annotations={"readOnlyHint": False}),
        ],
        prompts=["greeting"],
        resources=["file:///notes.txt"],
    )


class ScriptedParticipant:
    """A participant that sends scripted messages and records received messages."""

    def __init__(self, table: NodeTopic, id: str, numbers: Callable[[], int]) -> None:
        self.id = id
        self.heard: list[dict[str, Any]] = []
        self.closed: tuple[int, str] | None = None
        self.member: Member
        self._table = table
        self._numbers = numbers
        self._more = asyncio.Event()

    # -- as the room sees it

    def deliver(self, batch: Batch) -> None:
        self.heard.extend(map(json.loads, batch.texts))
        self._more.set()

    def close(self, code: int, reason: str) -> None:
        self.closed = (code, reason)

    # -- what it does

    def say(
        self,
        kind: str,
        payload: Any,
        to: tuple[str, ...] = (NODE_ID,),
        *,
        id: str = "",
        correlation_id: str | None = None,
        ts: str = "",
    ) -> str:
        """Returns the id of the envelope. `payload`: JSON, or raw bytes."""
        id = id or f"{self.id}-{self._numbers()}"
        raw = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        text = write_envelope(
            id=id,
            sender=self.id,
            kind=kind,
            payload=raw,
            to=to,
            correlation_id=correlation_id,
            ts=ts,
        )
        assert self._table.gateway.send(self.member, text) is not None, self.heard[-1]
        return id

    def request(
        self, method: str, params: Any = None, to: tuple[str, ...] = (NODE_ID,), **more: Any
    ) -> str:
        """`rpc`: the JSON-RPC id."""
        rpc = more.pop("rpc", 1)
        message = {"jsonrpc": "2.0", "id": rpc, "method": method}
        if params is not None:
            message["params"] = params
        context = (params or {}).get("name") or (params or {}).get("uri")
        kind = more.pop("kind", f"mcp/request:{method}" + (f":{context}" if context else ""))
        return self.say(kind, message, to, **more)

    def call(self, tool: str, arguments: Any = None, **more: Any) -> str:
        return self.request("tools/call", {"name": tool, "arguments": arguments or {}}, **more)

    def propose(
        self, tool: str, arguments: Any = None, to: tuple[str, ...] = (NODE_ID,), **more: Any
    ) -> str:
        params = more.pop("params", {"name": tool, "arguments": arguments or {}})
        payload = {"method": more.pop("method", "tools/call"), "params": params}
        kind = more.pop("kind", f"mcp/proposal:{payload['method']}:{tool}")
        return self.say(kind, payload, to, **more)

    # -- what it hears

    def list_messages(self, *kinds: str) -> list[dict[str, Any]]:
        """What it heard of these kinds, by how they begin."""
        return [one for one in self.heard if one["kind"].startswith(kinds)]

    def list_responses(self, id: str) -> list[dict[str, Any]]:
        return [one for one in self.heard if one.get("correlation_id") == id]

    async def answer(self, id: str, number: int = 1) -> dict[str, Any]:
        """The so manieth message about that one, waited for."""
        await self.until(lambda: len(self.list_responses(id)) >= number)
        return self.list_responses(id)[number - 1]

    async def read_payload(self, id: str) -> dict[str, Any]:
        """What stands in it."""
        payload: dict[str, Any] = (await self.answer(id))["payload"]
        return payload

    async def chat(self, id: str, number: int = 1) -> str:
        """The so manieth word about that message."""
        await self.until(lambda: len(self._chats(id)) >= number)
        text: str = self._chats(id)[number - 1]["payload"]["text"]
        return text

    def _chats(self, id: str) -> list[dict[str, Any]]:
        return [one for one in self.list_responses(id) if one["kind"] == "chat"]

    async def until(self, met: Callable[[], bool]) -> None:
        async with asyncio.timeout(HANG_TIMEOUT):
            while not met():
                self._more.clear()
                await self._more.wait()


class NodeTopic:
    """A room with the node and scripted participants."""

    def __init__(
        self,
        folder: Path,
        *offerings: Offering,
        settings: TopicConfig | None = None,
        approvals: dict[str, Any] | None = None,
        stands_still: bool = False,
        **gated: Any,
    ) -> None:
        """`approvals`: its settings. `stands_still`: the time does in the room, so that what is
        said too often is."""
        if approvals is not None:
            gated["settings"] = approvals
        gated.setdefault("default", "allow")
        gated.setdefault("tokens", TOKENS)
        self.gated = Gated(folder, *(offerings or (tool_offering(),)), **gated)
        self.journal = self.gated.journal
        self._count = count(1)
        self._minutes = count()
        loop = asyncio.get_running_loop()
        self.seats: list[NodeParticipant] = []
        self.gateway = Gateway(
            TopicsConfig(
                rooms={
                    TOPIC: settings or TopicConfig(access="private", node=NODE_ID),
                    OTHER: TopicConfig(access="private", node=NODE_ID),
                }
            ),
            call_soon=loop.call_soon,
            new_id=lambda: f"id-{self._next()}",
            now=lambda: STAMP,
            # Each look is a minute later: here nobody is stopped for saying much, the node has to.
            clock=lambda: 0.0 if stands_still else next(self._minutes) * 60.0,
            on_open=self._seat,
            audit=self.gated.rig.audit,
        )
        self.gateway.start()

    def _seat(self, room: Room) -> None:
        loop = asyncio.get_running_loop()
        self.seats.append(
            NodeParticipant(
                self.gateway,
                room,
                id=NODE_ID,
                pipeline=self.gated.pipeline,
                approvals=self.gated.approvals,
                server_info=ServerInfo(lambda: Introduction(INFO, {"tools": {}})),
                catalog=self.gated.rig.catalog,
                audit=self.gated.rig.audit,
                call_soon=loop.call_soon,
                new_id=lambda: f"id-{self._next()}",
                now=lambda: STAMP,
            )
        )

    def _next(self) -> int:
        return next(self._count)

    @property
    def seat(self) -> NodeParticipant:
        return next(seat for seat in reversed(self.seats) if seat.topic == TOPIC)

    @property
    def room(self) -> Room:
        return self.gateway.rooms[TOPIC]

    def add_participant(
        self,
        id: str,
        capabilities: tuple[str, ...] = FULL,
        *,
        name: str = "",
        bearer: str | None = "",
        inside: bool = False,
        topic: str = TOPIC,
    ) -> ScriptedParticipant:
        """`name`: of the caller, else as it is called in the room."""
        guest = ScriptedParticipant(self, id, self._next)
        name = name or id
        shown = f"token-of-{name}" if bearer == "" else bearer
        guest.member = self.gateway.add_member(
            topic,
            ParticipantProfile(id, capabilities),
            guest,
            caller=Caller(name),
            credentials=Credentials("10.0.0.9", bearer=shown),
            internal=inside,
        )
        return guest

    async def run_until_idle(self) -> None:
        """Let everything happen that is about to."""
        await run_ready_tasks(10)

    def list_entries(self, verb: str) -> list[dict[str, Any]]:
        return [row for row in self.journal.entries if row["verb"] == verb]

    def close(self) -> None:
        self.gateway.close()
        self.gated.close()
