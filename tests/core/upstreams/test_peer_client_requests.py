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
from tests.core.upstreams.servers.http_server import Answer, Request, Streamable
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


class Asker:
    """A server that holds calls, asks when the test says so, and keeps what it is answered."""

    def __init__(self, server: Streamable, one: SupervisorHarness) -> None:
        self.server = server
        self.one = one
        self.held: dict[str, tuple[Any, Answer]] = {}
        self.answers: list[Message] = []
        server.habit = self

    async def __call__(self, request: Request, answer: Answer) -> bool:
        message = request.message
        if request.tool == "hold":
            answer.open()
            self.held[message["params"]["arguments"]["text"]] = (message["id"], answer)
        elif "result" in message or "error" in message:
            self.answers.append(message)
            answer.empty("202 Accepted")
        else:
            return False
        self.server.poke()
        return True

    def ask(self, id: Any, method: str = "roots/list", on: str = "", **params: Any) -> None:
        """On the stream of a held call, or on the session's own."""
        stream = self.held[on][1] if on else self.server.streams[0]
        stream.event({"jsonrpc": "2.0", "id": id, "method": method, "params": params})

    def say(self, method: str, on: str = "", **params: Any) -> None:
        stream = self.held[on][1] if on else self.server.streams[0]
        stream.event(notification(method, params))

    def release(self, name: str) -> None:
        id, answer = self.held.pop(name)
        answer.event(result(id, {"content": [{"type": "text", "text": name}]}))
        answer.end()

    async def answered(self, id: Any) -> Message:
        def found() -> list[Message]:
            return [one for one in self.answers if one["id"] == id]

        await self.server.until(found)
        (one,) = found()
        return one

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

    async def settle(self, on: str = "") -> None:
        """Wait until everything that was said on a stream so far has been taken in."""
        self.ask("fence", "ping", on=on)
        await self.answered("fence")
        self.answers = [one for one in self.answers if one["id"] != "fence"]


@asynccontextmanager
async def asker() -> AsyncIterator[Asker]:
    async with Streamable("session", get="stream") as server:
        config = ServerConfig(url=server.url(), sessions="shared")
        async with run_supervisor(config) as one:
            await one.ready()
            await server.until(lambda: server.streams)
            yield Asker(server, one)


async def asked(sent: StartedCall) -> ClientRequest:
    return await with_timeout(sent.questions.get())


async def test_ambiguous_request_is_rejected() -> None:
    async with asker() as server:
        heard: list[str] = []

        def hear(call: Call, method: str, params: bytes | Raw) -> None:
            heard.append(method)

        first = await server.hold("a", OPERATOR, hear=hear)
        second = await server.hold("b", AUDITOR, hear=hear)
        server.ask("q")
        refused = await server.answered("q")
        assert refused["error"]["code"] == -32601
        server.say("notifications/message", level="error", data="whose?")
        await server.settle()
        assert not heard
        assert first.questions.empty()
        assert second.questions.empty()
        # On a call's own stream there is no doubt.
        server.ask("mine", on="a")
        (await asked(first)).respond(ROOTS)
        assert (await server.answered("mine"))["result"] == {"roots": []}
        server.say("notifications/message", on="b", level="error", data="clear")
        await server.settle("b")
        assert heard == ["notifications/message"]
        assert second.questions.empty()
        server.release("a")
        server.release("b")
        assert text(await with_timeout(first)) == "a"
        assert text(await with_timeout(second)) == "b"


async def test_two_sessions_of_one_caller_are_ambiguous() -> None:
    async with asker() as server:
        clients = Sessions(most=10, idle=60.0, clock=asyncio.get_running_loop().time)
        client = Client(Era.SESSION, "2025-11-25")
        one = await server.hold("a", session=clients.open(client, "operator"))
        other = await server.hold("b", session=clients.open(client, "operator"))
        server.ask("q")
        assert (await server.answered("q"))["error"]["code"] == -32601
        assert one.questions.empty()
        assert other.questions.empty()


async def test_rejects_request_without_call() -> None:
    async with asker() as server:
        server.ask("early")
        assert (await server.answered("early"))["error"]["code"] == -32601
        server.ask(7, "ping")
        assert (await server.answered(7))["result"] == {}


async def test_inferred_request_survives_call_of_session() -> None:
    async with asker() as server:
        clients = Sessions(most=10, idle=60.0, clock=asyncio.get_running_loop().time)
        session = clients.open(Client(Era.SESSION, "2025-11-25"), "operator")
        call = await server.hold("a", session=session)
        server.ask("q")
        ask = await asked(call)
        server.release("a")
        await with_timeout(call)
        assert ask.is_open
        ask.respond(ROOTS)
        assert (await server.answered("q"))["result"] == {"roots": []}


@pytest.mark.parametrize("on", ["", "a"])
async def test_request_ends_with_stateless_call(on: str) -> None:
    async with asker() as server:
        call = await server.hold("a")
        server.ask("q", on=on)
        ask = await asked(call)
        withdrawn: list[str] = []
        ask.on_withdraw = lambda _, reason: withdrawn.append(reason)
        server.release("a")
        await with_timeout(call)
        assert not ask.is_open
        assert len(withdrawn) == 1
        # The server does not wait for ever either.
        assert (await server.answered("q"))["error"]["code"] == -32603
        ask.respond(ROOTS)
        await server.settle()
        assert len(server.answers) == 1


async def test_cancelled_call_rejects_client_request() -> None:
    async with asker() as server:
        call = await server.hold("a")
        server.ask("q", on="a")
        ask = await asked(call)
        call.exchange.abandon("The caller left.")
        assert not ask.is_open
        answer = await server.answered("q")
        assert answer["error"]["message"] == "The caller left."
        toolbox = server.server.toolbox
        await server.server.until(lambda: toolbox.cancelled)


async def test_server_cancels_client_request() -> None:
    async with asker() as server:
        call = await server.hold("a")
        server.ask("q", on="a")
        ask = await asked(call)
        withdrawn: list[str] = []
        ask.on_withdraw = lambda _, reason: withdrawn.append(reason)
        server.say("notifications/cancelled", on="a", requestId="q", reason="Never mind.")
        await server.settle("a")
        assert withdrawn == ["Never mind."]
        ask.respond(ROOTS)
        server.release("a")
        await with_timeout(call)
        await server.settle()
        assert not server.answers


async def test_rejects_duplicate_ids_and_too_many_requests() -> None:
    async with asker() as server:
        call = await server.hold("a")
        server.ask("q", on="a")
        first = await asked(call)
        server.ask("q", on="a")
        assert (await server.answered("q"))["error"]["code"] == -32600
        server.answers.clear()
        # 1 and "1" are two ids.
        server.ask(1, on="a")
        server.ask("1", on="a")
        one, other = await asked(call), await asked(call)
        other.reject(-1, "no")
        one.respond(ROOTS)
        assert (await server.answered("1"))["error"]["code"] == -1
        assert (await server.answered(1))["result"] == {"roots": []}
        for number in range(100, 200):
            server.ask(number, on="a")
        assert (await server.answered(199))["error"]["code"] == -32600
        first.respond(ROOTS)
        assert call.questions.qsize() == 99


async def test_lost_server_withdraws_client_requests() -> None:
    async with asker() as server:
        call = await server.hold("a")
        server.ask("q", on="a")
        ask = await asked(call)
        server.server.cut()
        with pytest.raises(InterlockError):
            await with_timeout(call)
        assert not ask.is_open


async def test_relays_progress_of_client() -> None:
    async with asker() as server:
        call = await server.hold("a")
        server.ask("q", "sampling/createMessage", on="a", _meta={"progressToken": "t"})
        ask = await asked(call)
        assert ask.progress_token == b'"t"'
        assert ask.on_progress is not None
        ask.on_progress(b'{"progressToken":"t","progress":1}')
        heard = server.server.toolbox.heard
        await server.server.until(
            lambda: [one for one in heard if one.get("method") == "notifications/progress"]
        )
        ask.respond(b"{}")
        await server.answered("q")


async def test_rejects_client_request_of_stateless_server() -> None:
    async with Streamable("stateless") as server:
        async with run_supervisor(ServerConfig(url=server.url())) as one:
            await one.ready()
            asking = Asker(server, one)
            call = await asking.hold("a")
            asking.ask("q", on="a")
            assert (await asking.answered("q"))["error"]["code"] == -32601
            assert call.questions.empty()
            asking.release("a")
            await with_timeout(call)
