"""A foreign participant as an upstream, called by the official SDK through the node."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client

from tests.behaviour.topic_rooms import LIBRARIES, TOKENS, Joins, Place, Play, player
from tests.support.command_line import CommandLine
from tests.topics.peers import Envelope, WebSocketParticipant

pytestmark = [pytest.mark.feature("topics"), pytest.mark.timeout(1800)]

TOPIC = "ops"
NODE = "node"
CALL = "mcp/request:tools/call:echo"
ANSWER = "mcp/response:tools/call:echo"
TOOL = {"name": "echo", "description": "Says it again.", "inputSchema": {"type": "object"}}
ROOM = {
    "node": NODE,
    "participants": [
        {"callers": ["worker"], "profile": "response_only"},
        {"callers": ["supervisor"], "profile": "full_access"},
        {"callers": ["observer"]},
    ],
    # What it does nobody believes the participant itself.
    "upstreams": {"worker": {"effects": {"*": "mutating"}}},
}


class Plant(Place):
    """The node is a program of its own."""

    def __init__(self, world: CommandLine) -> None:
        world.config(
            tokens=[{"name": name, "token": f"${{env:T_{name}}}"} for name in TOKENS],
            topics={"rooms": {TOPIC: ROOM}},
        )
        self.node = world.up(**{f"T_{name}": token for name, token in TOKENS.items()})

    def url(self, topic: str, more: str = "") -> str:
        base = self.node.url.removeprefix("http").rpartition("/")[0]
        return f"ws{base}/ws?topic={topic}{more}"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Plant]:
    world = CommandLine(tmp_path)
    try:
        yield Plant(world)
    finally:
        world.close()


@pytest.fixture(params=LIBRARIES)
def play(request: pytest.FixtureRequest, place: Plant) -> Play:
    return player(place, request.param)


class Server:
    """An MCP server in a room, envelope by envelope. Calls of its tool are left to the test."""

    def __init__(self, peer: WebSocketParticipant) -> None:
        self.peer = peer
        self.calls: asyncio.Queue[Envelope] = asyncio.Queue()

    async def serve(self) -> None:
        while True:
            message = json.loads(await self.peer.socket.recv())
            if self.peer.id not in message.get("to", []):
                continue
            match message["kind"]:
                case "mcp/request:initialize":
                    info = {"name": "by hand", "version": "1"}
                    result = {
                        "protocolVersion": message["payload"]["params"]["protocolVersion"],
                        "capabilities": {"tools": {}},
                        "serverInfo": info,
                    }
                    await self.answer(message, result)
                case "mcp/request:tools/list":
                    await self.answer(message, {"tools": [TOOL]})
                case kind if kind == CALL:
                    self.calls.put_nowait(message)

    async def answer(self, asked: Envelope, result: Envelope, **changed: Any) -> str:
        """`changed`: members of the envelope, and `rpc`, the id of the payload."""
        payload = {"jsonrpc": "2.0", "id": asked["payload"].get("id"), "result": result}
        payload["id"] = changed.pop("rpc", payload["id"])
        head = {"to": [NODE], "correlation_id": asked["id"], **changed}
        kind = head.pop("kind", asked["kind"].replace("request", "response", 1))
        return await self.peer.say(kind, payload, **head)


@asynccontextmanager
async def serving(place: Plant, join: Joins) -> AsyncIterator[Server]:
    """It has come in, and the node has listed its tool."""
    server = Server(await join(TOPIC, "worker"))
    task = asyncio.create_task(server.serve())
    try:
        await asyncio.to_thread(place.node.wait_for_line, "upstream topic:ops/worker: ready")
        yield server
    finally:
        task.cancel()
        await asyncio.wait([task])


@asynccontextmanager
async def client_of(place: Plant) -> AsyncIterator[Client]:
    headers = {"Authorization": f"Bearer {TOKENS['monitor']}"}
    async with create_mcp_http_client(headers=headers) as http:
        wire = streamable_http_client(place.node.url, http_client=http)
        async with Client(wire, cache=None) as client:
            yield client


def saying(text: str) -> Envelope:
    return {"content": [{"type": "text", "text": text}]}


def test_foreign_participant_is_called_through_node(place: Plant, play: Play) -> None:
    async def test(join: Joins) -> None:
        observer = await join(TOPIC, "observer")
        async with serving(place, join) as server, client_of(place) as client:
            tools = (await client.list_tools()).tools
            assert [tool.name for tool in tools] == ["worker__echo"]
            calling = asyncio.create_task(client.call_tool("worker.echo", {"text": "hé"}))
            response = await server.calls.get()
            assert (response["from"], response["to"]) == (NODE, ["worker"])
            assert response["payload"]["method"] == "tools/call"
            assert response["payload"]["params"]["name"] == "echo"
            assert response["payload"]["params"]["arguments"] == {"text": "hé"}
            # Everybody in the room sees what the node asks there.
            assert await observer.until(response["id"]) == response
            await server.answer(response, saying("hé"))
            told: Any = await calling
            assert told.content[0].text == "hé"
            assert not told.is_error

    play(test)


UNFIT: dict[str, Callable[[Envelope], dict[str, Any]]] = {
    "JSON-RPC id": lambda asked: {"rpc": asked["payload"]["id"] + 1},
    "the JSON-RPC id as a text": lambda asked: {"rpc": str(asked["payload"]["id"])},
    "no JSON-RPC id": lambda asked: {"rpc": None},
    "another kind": lambda asked: {"kind": "mcp/response:tools/list"},
    "another tool": lambda asked: {"kind": "mcp/response:tools/call:other"},
}


def test_invalid_response_is_rejected(place: Plant, play: Play) -> None:
    """Who called is told so, and hears nothing of what was in it."""

    async def test(join: Joins) -> None:
        async with serving(place, join) as server, client_of(place) as client:
            for what, changed in UNFIT.items():
                calling = asyncio.create_task(client.call_tool("worker.echo", {"text": what}))
                response = await server.calls.get()
                await server.answer(response, saying("a lie"), **changed(response))
                with pytest.raises(MCPError) as error:
                    await calling
                assert "topic:ops/worker" in str(error.value), what
                assert "a lie" not in str(error.value)
                # The next call is a call like any other.
                calling = asyncio.create_task(client.call_tool("worker.echo", {"text": what}))
                response = await server.calls.get()
                await server.answer(
                    response, saying(response["payload"]["params"]["arguments"]["text"])
                )
                told: Any = await calling
                assert told.content[0].text == what

    play(test)


def test_response_of_other_participant_is_ignored(place: Plant, play: Play) -> None:
    """Nor does what it says about another request: the node waits for the answer itself."""

    async def test(join: Joins) -> None:
        eve = await join(TOPIC, "supervisor")
        async with serving(place, join) as server, client_of(place) as client:
            calling = asyncio.create_task(client.call_tool("worker.echo", {"text": "x"}))
            response = await server.calls.get()
            assert await eve.until(response["id"]) == response
            await Server(eve).answer(response, saying("a lie"))
            await server.answer(response, saying("about nothing"), correlation_id="nothing")
            # The node has heard both once it answers what was asked after them.
            ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
            pinged = await eve.say("mcp/request:ping", ping, to=[NODE])
            await eve.until(lambda one: one.get("correlation_id") == pinged)
            assert not calling.done()
            await server.answer(response, saying("the truth"))
            told: Any = await calling
            assert told.content[0].text == "the truth"

    play(test)


def test_disconnect_during_call_fails_call(place: Plant, play: Play) -> None:
    async def test(join: Joins) -> None:
        async with serving(place, join) as server, client_of(place) as client:
            calling = asyncio.create_task(client.call_tool("worker.echo", {"text": "x"}))
            await server.calls.get()
            await server.peer.socket.close()
            with pytest.raises(MCPError, match="topic:ops/worker"):
                await calling

    play(test)
