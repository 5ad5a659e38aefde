"""A small gateway of the `websockets` library, which a test can script. It forwards every message
unchecked.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs, urlsplit

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.http11 import Request, Response

from tests.support.timeouts import HANG_TIMEOUT

EVERYTHING = ("mcp/*", "chat")
GATEWAY = "system:gateway"


class SmallGateway:
    """`capabilities`: by participant; the token of NAME is `t-NAME`."""

    def __init__(self, capabilities: Mapping[str, Sequence[str]] | None = None) -> None:
        self.capabilities = dict(capabilities or {})
        self.refuse: tuple[int, str] | None = None
        """Answer the next knocks with this status and sentence."""
        self.silent = False
        """Welcome nobody."""
        self.said: list[dict[str, Any]] = []
        """Everything that participants said, in the order in which it came."""
        self.knocks: list[Request] = []
        self._members: dict[str, ServerConnection] = {}
        self._routing: dict[str, str] = {}
        self._numbers = 0
        self._server: Server | None = None
        self._changed = asyncio.Condition()

    @property
    def url(self) -> str:
        assert self._server is not None
        port = next(iter(self._server.sockets)).getsockname()[1]
        return f"ws://127.0.0.1:{port}/ws"

    @property
    def present(self) -> list[str]:
        return sorted(self._members)

    # -- what a test makes it say

    def envelope(self, sender: str, kind: str, payload: Any, **more: Any) -> dict[str, Any]:
        self._numbers += 1
        head = {"protocol": "mcpx/v0.1", "id": f"g-{self._numbers}", "from": sender, "kind": kind}
        return {**head, "payload": payload, **more}

    async def tell(self, to: str, envelope: dict[str, Any] | str | bytes) -> None:
        """Say this to one, whatever it is."""
        text = json.dumps(envelope) if isinstance(envelope, dict) else envelope
        await self._members[to].send(text)

    async def welcome(self, name: str, **instead: Any) -> None:
        others = [self._shown(one) for one in self._members if one != name]
        payload = {"you": self._shown(name), "participants": others, **instead}
        await self.tell(name, self.envelope(GATEWAY, "system/welcome", payload, to=[name]))

    async def presence(self, event: str, name: str) -> None:
        payload = {"event": event, "participant": self._shown(name)}
        envelope = self.envelope(GATEWAY, "system/presence", payload)
        for member in list(self._members):
            await self.tell(member, envelope)

    async def kick(self, name: str, code: int, reason: str = "") -> None:
        await self._members[name].close(code, reason)

    async def cut(self, name: str) -> None:
        """Without a word."""
        self._members[name].transport.abort()

    async def until(self, what: Any) -> Any:
        """Wait until a function of the gateway says something true."""
        async with asyncio.timeout(HANG_TIMEOUT), self._changed:
            return await self._changed.wait_for(lambda: what(self))

    async def heard(self, kind: str, count: int = 1) -> dict[str, Any]:
        """The newest message of this kind, when there are so many."""
        found = await self.until(
            lambda self: [one for one in self.said if one["kind"] == kind][count - 1 :]
        )
        message: dict[str, Any] = found[0]
        return message

    # -- inside

    def _shown(self, name: str) -> dict[str, Any]:
        return {"id": name, "capabilities": list(self.capabilities.get(name, EVERYTHING))}

    async def _changes(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _knock(self, connection: ServerConnection, request: Request) -> Response | None:
        self.knocks.append(request)
        await self._changes()
        if self.refuse is None:
            return None
        status, sentence = self.refuse
        body = json.dumps({"error": {"code": 0, "message": sentence}})
        return connection.respond(HTTPStatus(status), body)

    async def _serve(self, connection: ServerConnection) -> None:
        request = connection.request
        assert request is not None
        name = request.headers["Authorization"].removeprefix("Bearer t-")
        query = parse_qs(urlsplit(request.path).query)
        self._routing[name] = query["routing"][0]
        self._members[name] = connection
        await self._changes()
        if not self.silent:
            await self.welcome(name)
            await self.presence("join", name)
        try:
            async for text in connection:
                await self._pass_on(name, text)
        finally:
            if self._members.get(name) is connection:
                del self._members[name]
                await self.presence("leave", name)
                await self._changes()

    async def _pass_on(self, sender: str, text: str | bytes) -> None:
        message = json.loads(text)
        assert message["from"] == sender
        to = message.get("to", [])
        self.said.append(message)
        for member, connection in list(self._members.items()):
            wanted = self._routing[member] == "all" or not to or member in to
            if member != sender and wanted:
                await connection.send(text)
        await self._changes()


@asynccontextmanager
async def small_gateway(
    capabilities: Mapping[str, Sequence[str]] | None = None,
) -> AsyncIterator[SmallGateway]:
    made = SmallGateway(capabilities)
    async with serve(made._serve, "127.0.0.1", 0, process_request=made._knock) as server:
        made._server = server
        yield made
