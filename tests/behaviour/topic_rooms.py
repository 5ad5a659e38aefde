"""A node with topics, and participants of two libraries that are not ours: Python's `websockets`
and npm's `ws`. A test says what they do, and is played with each."""

from __future__ import annotations

import asyncio
import json
import re
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any, Protocol

import httpx2
import msgspec
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from interlock.topics.config import TopicsConfig
from tests.conformance import external_packages
from tests.support.node import NodeThread
from tests.topics.peers import HANG_TIMEOUT, WebSocketParticipant

WS = "ws@8.22.2"
CLIENT = Path(__file__).parent / "clients" / "topic_client.mjs"
SECONDS = HANG_TIMEOUT
LIBRARIES = ("websockets", "ws")

PEOPLE = ("administrator", "supervisor", "worker", "agent", "newcomer", "monitor", "observer")
TOKENS = {name: f"token-of-{name}-0123456789" for name in PEOPLE}
PROFILES = {
    "administrator": "full_access",
    "supervisor": "full_access",
    "worker": "response_only",
    "agent": "proposal_only",
    "monitor": "read_only",
}
SEATS = [{"callers": [name], "profile": profile} for name, profile in PROFILES.items()]
MIXED = {
    "administrator": ["mcp/*"],
    "worker": ["mcp/response:*"],
    "newcomer": ["mcp/proposal:*"],
    "monitor": ["mcp/request:*/list"],
    "observer": [],
}
"""Example 9.3 of the draft to the letter, and one who only listens."""
DELEGATED = {
    "agent": ["mcp/proposal:*"],
    "supervisor": ["chat"],
    "administrator": ["mcp/request:*"],
    "worker": ["mcp/response:*"],
}
"""Example 9.4: proposer, human, orchestrator and worker."""


def participants_with(capabilities: dict[str, list[str]]) -> list[dict[str, Any]]:
    """Seats that may say this and nothing else."""
    return [
        {"callers": [name], "profile": "none", "capabilities": may}
        for name, may in capabilities.items()
    ]


TOPICS: dict[str, Any] = {
    "admins": ["administrator"],
    "rooms": {
        # Everybody who has a token has a seat; who is not named starts with the least.
        "ops-*": {"participants": [*SEATS, {"callers": ["newcomer", "observer"]}]},
        "mixed-*": {"participants": participants_with(MIXED)},
        "delegated-*": {"participants": participants_with(DELEGATED)},
        "closed-*": {"participants": [{"callers": ["administrator"]}]},
        "open-*": {"access": "public"},
        "house-*": {"access": "private"},
        "strict-*": {"access": "private", "queue": 50, "overflow": "close"},
        "slow-*": {"access": "private", "queue": 50},
        "paced-*": {"access": "private", "messages_per_second": 5},
    },
}
_topics = count(1)


class JoinRejected(Exception):
    """It was not let in."""

    def __init__(self, status: int) -> None:
        super().__init__(f"refused with {status}")
        self.status = status


class Joins(Protocol):
    """How participants of one library come in. Raises Refused."""

    async def __call__(
        self, topic: str, name: str | None, more: str = ""
    ) -> WebSocketParticipant: ...


class Place:
    """Where the node is."""

    def __init__(self, running: NodeThread) -> None:
        self.running = running

    @staticmethod
    def topic(kind: str = "ops") -> str:
        """One that nobody has been in."""
        return f"{kind}-{next(_topics)}"

    def url(self, topic: str, more: str = "") -> str:
        return f"ws://127.0.0.1:{self.running.port}/ws?topic={topic}{more}"

    async def change(self, id: str, topic: str, by: str = "administrator", **body: Any) -> Any:
        """Change capabilities, as an administrator does it."""
        url = f"http://127.0.0.1:{self.running.port}/admin/participants/{id}/capabilities"
        headers = {"Authorization": f"Bearer {TOKENS[by]}"}
        async with httpx2.AsyncClient(trust_env=False) as client:
            return await client.post(f"{url}?topic={topic}", json=body, headers=headers)


# -- Python


@asynccontextmanager
async def by_websockets(place: Place) -> AsyncIterator[Joins]:
    async with AsyncExitStack() as stack:

        async def join(topic: str, name: str | None, more: str = "") -> WebSocketParticipant:
            headers = {} if name is None else {"Authorization": f"Bearer {TOKENS.get(name, name)}"}
            opening = connect(
                place.url(topic, more),
                additional_headers=headers,
                proxy=None,
                max_queue=None,
                max_size=4 << 20,
            )
            try:
                socket = await stack.enter_async_context(opening)
            except InvalidStatus as refused:
                raise JoinRejected(refused.response.status_code) from None
            return await WebSocketParticipant(socket).begin()

        yield join


# -- npm


class _NpmSocket:
    """One connection of the process, as far as a `UpstreamClient` uses it."""

    def __init__(self, tell: Callable[[dict[str, Any]], None], name: str) -> None:
        self._tell = tell
        self._name = name
        self._heard: asyncio.Queue[str] = asyncio.Queue()
        self._over = asyncio.Event()
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.close_code: int | None = None
        self.close_reason: str | None = None

    def take(self, line: dict[str, Any]) -> None:
        match line["event"]:
            case "open":
                self.opened.set_result(None)
            case "message":
                assert not line["binary"]
                self._heard.put_nowait(line["text"])
            case "refused":
                self.opened.set_exception(JoinRejected(line["status"]))
            case "closed":
                self.close_code, self.close_reason = line["code"], line["reason"]
                self._over.set()

    async def send(self, sent: str | bytes) -> None:
        if isinstance(sent, bytes):
            self._tell({"send": self._name, "base64": b64encode(sent).decode()})
        else:
            self._tell({"send": self._name, "text": sent})

    async def recv(self) -> str:
        return await self._heard.get()

    async def close(self, code: int = 1000) -> None:
        self._tell({"close": self._name, "code": code})
        await self.wait_closed()

    async def wait_closed(self) -> None:
        await self._over.wait()


@asynccontextmanager
async def by_ws(place: Place) -> AsyncIterator[Joins]:
    try:
        program, package = external_packages.node(), external_packages.package(WS)
    except external_packages.CannotRun as reason:
        pytest.skip(str(reason))
    process = await asyncio.create_subprocess_exec(
        program,
        str(CLIENT),
        str(package),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=4 << 20,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    written, lines = process.stdin, process.stdout
    sockets: dict[str, _NpmSocket] = {}
    numbers = count(1)

    def tell(step: dict[str, Any]) -> None:
        written.write(json.dumps(step).encode() + b"\n")

    async def read() -> None:
        while line := await lines.readline():
            message = json.loads(line)
            sockets[message["name"]].take(message)

    async def join(topic: str, name: str | None, more: str = "") -> WebSocketParticipant:
        known = f"{name}-{next(numbers)}"
        socket = sockets[known] = _NpmSocket(tell, known)
        token = None if name is None else TOKENS.get(name, name)
        tell({"open": known, "url": place.url(topic, more), "token": token})
        async with asyncio.timeout(HANG_TIMEOUT):
            await socket.opened
        return await WebSocketParticipant(socket).begin()

    reading = asyncio.ensure_future(read())
    try:
        yield join
    finally:
        # Its connections end with it.
        written.close()
        process.kill()
        await process.wait()
        await reading


def is_now(ts: str) -> bool:
    """Whether it is a time as RFC 3339 has it, and not long ago."""
    if not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", ts):
        return False
    return abs(datetime.now(UTC) - datetime.fromisoformat(ts)) < timedelta(minutes=10)


Play = Callable[[Callable[[Joins], Coroutine[Any, Any, None]]], None]


def player(place: Place, library: str) -> Play:
    """Plays a test with participants of this library."""
    way = {"websockets": by_websockets, "ws": by_ws}[library]

    def play(test: Callable[[Joins], Coroutine[Any, Any, None]]) -> None:
        async def main() -> None:
            async with asyncio.timeout(SECONDS), way(place) as join:
                await test(join)

        asyncio.run(main())

    return play


def running_place(folder: Path) -> Iterator[Place]:
    """A node with the topics, until the last test has ended."""
    topics = msgspec.convert(TOPICS, TopicsConfig)
    running = NodeThread(folder, workshops={}, tokens=TOKENS, topics=topics)
    yield Place(running)
    running.stop()
