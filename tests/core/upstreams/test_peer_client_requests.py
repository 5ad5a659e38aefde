"""Client requests and notifications of an upstream: which caller receives them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec import Raw

from interlock.core.call import Call, Caller, Client, ClientRequest, ClientSession, Credentials
from interlock.core.config import ServerConfig
from interlock.core.server.mcp.sessions import Sessions
from interlock.errors import InterlockError
from interlock.protocol.mcp import Era
from tests.core.upstreams.servers.http_server import Request, ResponseWriter, Streamable
from tests.core.upstreams.servers.toolbox import Message, notification, result
from tests.support.upstreams import (
    StartedCall,
    SupervisorHarness,
    run_supervisor,
    text,
    with_timeout,
)

pytestmark = pytest.mark.usefixtures("no_leaks")

OPERATOR, AUDITOR = Caller("operator"), Caller("auditor")
ROOTS = b'{"roots":[]}'


class ScriptedServer:
    """A server that keeps calls pending, sends client requests, and stores responses."""

    def __init__(self, server: Streamable, one: SupervisorHarness) -> None:
        self.server = server
        self.one = one
        self.held: dict[str, tuple[Any, ResponseWriter]] = {}
        self.answers: list[Message] = []
        server.override = self

    async def __call__(self, request: Request, answer: ResponseWriter) -> bool:
        message = request.message
        if request.tool == "hold":
            answer.open()
            self.held[message["params"]["arguments"]["text"]] = (message["id"], answer)
        elif "result" in message or "error" in message:
            self.answers.append(message)
            answer.empty("202 Accepted")
        else:
            return False
        self.server.notify_waiters()
        return True

    def send_request(
        self, id: Any, method: str = "roots/list", on: str = "", **params: Any
    ) -> None:
        """Send a client request on the stream of a pending call, or of the session."""
        stream = self.held[on][1] if on else self.server.streams[0]
        stream.event({"jsonrpc": "2.0", "id": id, "method": method, "params": params})

    def send_notification(self, method: str, on: str = "", **params: Any) -> None:
        stream = self.held[on][1] if on else self.server.streams[0]
        stream.event(notification(method, params))

    def release(self, name: str) -> None:
        id, response = self.held.pop(name)
        response.event(result(id, {"content": [{"type": "text", "text": name}]}))
        response.end()

    async def wait_for_response(self, id: Any) -> Message:
        def found() -> list[Message]:
            return [response for response in self.answers if response["id"] == id]

        await self.server.until(found)
        (upstream,) = found()
        return upstream

    async def hold(
        self,
        name: str,
        caller: Caller = OPERATOR,
        session: ClientSession | None = None,
        hear: Any = None,
    ) -> StartedCall:
        client = Client(Era.STATELESS, "2026-07-28") if session is None else session.client
        call = Call(
            method="tools/call",
            server="test",
            credentials=Credentials("local"),
            client=client,
            name="hold",
            arguments=json.dumps({"text": name}).encode(),
            route=self.one.tool("hold"),
            session=session,
            caller=caller,
        )
        sent = StartedCall(self.one.supervisor, call, hear)
        call.upstream_request = sent.exchange
        await self.server.until(lambda: name in self.held)
        return sent

    async def wait_until_handled(self, on: str = "") -> None:
        """Wait until the node has handled all earlier messages of a stream."""
        self.send_request("fence", "ping", on=on)
        await self.wait_for_response("fence")
        self.answers = [response for response in self.answers if response["id"] != "fence"]


@asynccontextmanager
async def open_server() -> AsyncIterator[ScriptedServer]:
    async with Streamable("session", get="stream") as server:
        config = ServerConfig(url=server.url(), sessions="shared")
        async with run_supervisor(config) as upstream:
            await upstream.ready()
            await server.until(lambda: server.streams)
            yield ScriptedServer(server, upstream)


async def next_client_request(sent: StartedCall) -> ClientRequest:
    return await with_timeout(sent.questions.get())


async def test_ambiguous_request_is_rejected() -> None:
    async with open_server() as server:
        received: list[str] = []

        def hear(call: Call, method: str, params: bytes | Raw) -> None:
            received.append(method)

        first = await server.hold("a", OPERATOR, hear=hear)
        second = await server.hold("b", AUDITOR, hear=hear)
        server.send_request("q")
        caught = await server.wait_for_response("q")
        assert caught["error"]["code"] == -32601
        server.send_notification("notifications/message", level="error", data="whose?")
        await server.wait_until_handled()
        assert not received
        assert first.questions.empty()
        assert second.questions.empty()
        # On a call's own stream there is no doubt.
        server.send_request("mine", on="a")
        (await next_client_request(first)).respond(ROOTS)
        assert (await server.wait_for_response("mine"))["result"] == {"roots": []}
        server.send_notification("notifications/message", on="b", level="error", data="clear")
        await server.wait_until_handled("b")
        assert received == ["notifications/message"]
        assert second.questions.empty()
        server.release("a")
        server.release("b")
        assert text(await with_timeout(first)) == "a"
        assert text(await with_timeout(second)) == "b"


async def test_two_sessions_of_one_caller_are_ambiguous() -> None:
    async with open_server() as server:
        clients = Sessions(max_sessions=10, idle=60.0, clock=asyncio.get_running_loop().time)
        client = Client(Era.SESSION, "2025-11-25")
        upstream = await server.hold("a", session=clients.open(client, "operator"))
        other = await server.hold("b", session=clients.open(client, "operator"))
        server.send_request("q")
        assert (await server.wait_for_response("q"))["error"]["code"] == -32601
        assert upstream.questions.empty()
        assert other.questions.empty()


async def test_rejects_request_without_call() -> None:
    async with open_server() as server:
        server.send_request("early")
        assert (await server.wait_for_response("early"))["error"]["code"] == -32601
        server.send_request(7, "ping")
        assert (await server.wait_for_response(7))["result"] == {}


async def test_inferred_request_survives_call_of_session() -> None:
    async with open_server() as server:
        clients = Sessions(max_sessions=10, idle=60.0, clock=asyncio.get_running_loop().time)
        session = clients.open(Client(Era.SESSION, "2025-11-25"), "operator")
        call = await server.hold("a", session=session)
        server.send_request("q")
        client_request = await next_client_request(call)
        server.release("a")
        await with_timeout(call)
        assert client_request.is_open
        client_request.respond(ROOTS)
        assert (await server.wait_for_response("q"))["result"] == {"roots": []}


@pytest.mark.parametrize("on", ["", "a"])
async def test_request_ends_with_stateless_call(on: str) -> None:
    async with open_server() as server:
        call = await server.hold("a")
        server.send_request("q", on=on)
        client_request = await next_client_request(call)
        withdrawn: list[str] = []
        client_request.on_withdraw = lambda _, reason: withdrawn.append(reason)
        server.release("a")
        await with_timeout(call)
        assert not client_request.is_open
        assert len(withdrawn) == 1
        # The server does not wait for ever either.
        assert (await server.wait_for_response("q"))["error"]["code"] == -32603
        client_request.respond(ROOTS)
        await server.wait_until_handled()
        assert len(server.answers) == 1


async def test_cancelled_call_rejects_client_request() -> None:
    async with open_server() as server:
        call = await server.hold("a")
        server.send_request("q", on="a")
        client_request = await next_client_request(call)
        call.exchange.abandon("The caller left.")
        assert not client_request.is_open
        response = await server.wait_for_response("q")
        assert response["error"]["message"] == "The caller left."
        toolbox = server.server.toolbox
        await server.server.until(lambda: toolbox.cancelled)


async def test_server_cancels_client_request() -> None:
    async with open_server() as server:
        call = await server.hold("a")
        server.send_request("q", on="a")
        client_request = await next_client_request(call)
        withdrawn: list[str] = []
        client_request.on_withdraw = lambda _, reason: withdrawn.append(reason)
        server.send_notification(
            "notifications/cancelled", on="a", requestId="q", reason="Never mind."
        )
        await server.wait_until_handled("a")
        assert withdrawn == ["Never mind."]
        client_request.respond(ROOTS)
        server.release("a")
        await with_timeout(call)
        await server.wait_until_handled()
        assert not server.answers


async def test_rejects_duplicate_ids_and_too_many_requests() -> None:
    async with open_server() as server:
        call = await server.hold("a")
        server.send_request("q", on="a")
        first = await next_client_request(call)
        server.send_request("q", on="a")
        assert (await server.wait_for_response("q"))["error"]["code"] == -32600
        server.answers.clear()
        # 1 and "1" are two ids.
        server.send_request(1, on="a")
        server.send_request("1", on="a")
        upstream, other = await next_client_request(call), await next_client_request(call)
        other.reject(-1, "no")
        upstream.respond(ROOTS)
        assert (await server.wait_for_response("1"))["error"]["code"] == -1
        assert (await server.wait_for_response(1))["result"] == {"roots": []}
        for number in range(100, 200):
            server.send_request(number, on="a")
        assert (await server.wait_for_response(199))["error"]["code"] == -32600
        first.respond(ROOTS)
        assert call.questions.qsize() == 99


async def test_lost_server_withdraws_client_requests() -> None:
    async with open_server() as server:
        call = await server.hold("a")
        server.send_request("q", on="a")
        client_request = await next_client_request(call)
        server.server.cut_connections()
        with pytest.raises(InterlockError):
            await with_timeout(call)
        assert not client_request.is_open


async def test_relays_progress_of_client() -> None:
    async with open_server() as server:
        call = await server.hold("a")
        server.send_request("q", "sampling/createMessage", on="a", _meta={"progressToken": "t"})
        client_request = await next_client_request(call)
        assert client_request.progress_token == b'"t"'
        assert client_request.on_progress is not None
        client_request.on_progress(b'{"progressToken":"t","progress":1}')
        received = server.server.toolbox.received
        await server.server.until(
            lambda: [
                message for message in received if message.get("method") == "notifications/progress"
            ]
        )
        client_request.respond(b"{}")
        await server.wait_for_response("q")


async def test_rejects_client_request_of_stateless_server() -> None:
    async with Streamable("stateless") as server:
        async with run_supervisor(ServerConfig(url=server.url())) as upstream:
            await upstream.ready()
            asking = ScriptedServer(server, upstream)
            call = await asking.hold("a")
            asking.send_request("q", on="a")
            assert (await asking.wait_for_response("q"))["error"]["code"] == -32601
            assert call.questions.empty()
            asking.release("a")
            await with_timeout(call)
