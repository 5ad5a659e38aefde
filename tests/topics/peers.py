"""A foreign participant of the `websockets` library with handwritten envelopes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.support.timeouts import HANG_TIMEOUT

_numbers = count(1)

Envelope = dict[str, Any]


class WebSocketParticipant:
    """A member of a topic that reads on request."""

    def __init__(self, socket: Any) -> None:
        """`socket`: a connection of the `websockets` library, or what behaves like one."""
        self.socket = socket
        self.welcome: Envelope = {}
        self.first: str = ""
        """The first message, as it came."""

    @property
    def id(self) -> str:
        return str(self.welcome["payload"]["you"]["id"])

    @property
    def capabilities(self) -> list[str]:
        return list(self.welcome["payload"]["you"]["capabilities"])

    async def begin(self) -> WebSocketParticipant:
        """Read the welcome."""
        self.first = await self.text()
        self.welcome = json.loads(self.first)
        assert self.welcome["kind"] == "system/welcome", self.welcome
        return self

    # -- saying

    async def say(self, kind: str, payload: Envelope | None = None, **more: Any) -> str:
        """Send an envelope; returns its id."""
        envelope = self.envelope(kind, payload, **more)
        await self.socket.send(json.dumps(envelope))
        return str(envelope["id"])

    def envelope(self, kind: str, payload: Envelope | None = None, **more: Any) -> Envelope:
        id = f"env-{next(_numbers)}"
        head = {"protocol": "mcpx/v0.1", "id": id, "from": self.id, "kind": kind}
        return {**head, "payload": payload or {}, **more}

    async def chat(self, text: str = "hello", **more: Any) -> str:
        return await self.say("chat", {"text": text}, **more)

    # -- hearing

    async def text(self) -> str:
        """The next message, as it came."""
        async with asyncio.timeout(HANG_TIMEOUT):
            got = await self.socket.recv()
        assert isinstance(got, str)
        return got

    async def hear(self) -> Envelope:
        """The next message, whatever it is."""
        return dict(json.loads(await self.text()))

    async def until(self, wanted: str | Callable[[Envelope], bool]) -> Envelope:
        """The next of this id or kind, or as wanted; what comes before it is passed over."""
        while True:
            heard = await self.hear()
            if wanted(heard) if callable(wanted) else wanted in (heard["id"], heard["kind"]):
                return heard

    async def receive_until(self, id: str) -> list[Envelope]:
        """Everything that comes before the message with this id."""
        heard: list[Envelope] = []
        while True:
            envelope = await self.hear()
            if envelope["id"] == id:
                return heard
            heard.append(envelope)

    async def read_rejection(self, about: str) -> Envelope:
        """What the gateway has against a message of ours."""
        heard = await self.until(lambda one: one.get("correlation_id") == about)
        assert heard["kind"] == "system/error"
        assert heard["from"] == "system:gateway"
        assert heard["to"] == [self.id]
        return dict(heard["payload"])

    async def wait_closed(self) -> tuple[int, str]:
        """The code and the words with which it was closed."""
        await asyncio.wait_for(self.socket.wait_closed(), HANG_TIMEOUT)
        return self.socket.close_code or 0, self.socket.close_reason or ""


@asynccontextmanager
async def join_topic(
    url: str, token: str | None = None, **options: Any
) -> AsyncIterator[WebSocketParticipant]:
    """Join a topic and leave it at the end of the block."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    options.setdefault("max_size", 4 * 1024 * 1024)
    async with connect(url, additional_headers=headers, proxy=None, **options) as socket:
        yield await WebSocketParticipant(socket).begin()


class RejectedJoin:
    """The response to a rejected join."""

    def __init__(self, refusal: InvalidStatus) -> None:
        response = refusal.response
        self.status = response.status_code
        self.headers = response.headers
        body = bytes(response.body or b"")
        self.sentence = str(json.loads(body)["error"]["message"])


async def get_rejection(
    url: str, token: str | None = None, *headers: tuple[str, str], **options: Any
) -> RejectedJoin:
    sent = list(headers)
    if token is not None:
        sent.append(("Authorization", f"Bearer {token}"))
    with pytest.raises(InvalidStatus) as caught:
        async with connect(url, additional_headers=sent, proxy=None, **options):
            raise AssertionError("it was let in")
    return RejectedJoin(caught.value)
