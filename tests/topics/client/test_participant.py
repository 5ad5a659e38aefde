"""Tests of participants that chat, request, propose and fulfil, with both gateways."""

from __future__ import annotations

import ast
import asyncio
import gc
import inspect
from importlib import import_module
from typing import Any
from uuid import UUID

import pytest

from interlock.errors import InterlockError
from interlock.topics.client import Chat, Event, Notification, Participant, Proposal, SendError
from interlock.topics.client.membership import Membership
from interlock.topics.wire.envelope import is_timestamp, write_envelope
from interlock.topics.wire.payloads import read_content
from tests.support.timeouts import HANG_TIMEOUT
from tests.topics.client.two_gateways import (
    GatewayUnderTest,
    run_with_both_gateways,
    wait_for_presence,
    wait_until,
)

EVERYTHING = ("mcp/*", "chat")
PROPOSES = ("mcp/proposal:*", "mcp/response:*", "chat")
SERVES = ("mcp/response:*", "chat")


@pytest.mark.spec("MX-3-3", "MX-3-4", "MX-3-5", "MX-3-16", "MX-3.3-1")
def test_participants_chat() -> None:
    async def test(house: GatewayUnderTest) -> None:
        human, agent = house.participant("human"), house.participant("agent")
        async with human.connected(), agent.connected():
            events = agent.events()
            await wait_for_presence(human, agent)
            ids = [await human.chat(f"number {n}") for n in range(200)]
            heard = [await wait_until(events, lambda event: isinstance(event.content, Chat))]
            while len(heard) < 200:
                heard.append(
                    await wait_until(events, lambda event: isinstance(event.content, Chat))
                )
            assert [event.id for event in heard] == ids
            assert len(set(ids)) == 200
            for event in heard:
                assert UUID(event.id).version == 4
                assert event.sender == "human"
                assert is_timestamp(event.envelope.ts)
                assert event.envelope.ts.endswith("Z")
            assert heard[-1].content == Chat("number 199")
            assert agent.status.dropped_messages == 0

    run_with_both_gateways(test, {"human": EVERYTHING, "agent": ("chat",)})


def test_rejects_text_that_is_no_unicode() -> None:
    async def test(house: GatewayUnderTest) -> None:
        human = house.participant("human")
        async with human.connected():
            # As in the name of a file that is not UTF-8.
            for said in (human.chat("\udcff"), human.send("chat", {"text": "\udcff"})):
                with pytest.raises(SendError, match="cannot be encoded as JSON"):
                    await said

    run_with_both_gateways(test, {"human": EVERYTHING})


@pytest.mark.spec("MX-3-3")
def test_message_ids_are_unique() -> None:
    participant = Participant("ws://127.0.0.1:1/ws", topic="room")
    made = {participant._membership._new_id() for _ in range(10_000)}
    assert len(made) == 10_000
    assert all(UUID(one).version == 4 for one in made)


@pytest.mark.spec("MX-2.1-6", "MX-8.2-7", "MX-3.1.2-6")
def test_every_participant_is_server_and_client() -> None:
    async def test(house: GatewayUnderTest) -> None:
        boss = house.participant("boss")
        worker = house.participant("worker", name="worker", version="3")
        other = house.participant("other")

        @worker.tool()
        async def add(one: int, other: int) -> int:
            """Add."""
            return one + other

        @worker.resource("note://a")
        async def note() -> str:
            """A note."""
            return "words"

        @worker.prompt()
        async def greeting(who: str) -> str:
            """Greets."""
            return f"Greet {who}."

        async with boss.connected(), worker.connected(), other.connected():
            await wait_for_presence(boss, worker, other)
            hello = await boss.request("worker", "initialize", {"protocolVersion": "2025-06-18"})
            assert hello["serverInfo"] == {"name": "worker", "version": "3"}
            assert await boss.request("worker", "ping") == {}
            result = await boss.call("worker", "add", {"one": 1, "other": 2})
            assert result["content"][0]["text"] == "3"
            listed = await boss.request("worker", "resources/list")
            assert listed["resources"][0]["description"] == "A note."
            read = await boss.request("worker", "resources/read", {"uri": "note://a"})
            assert read["contents"][0]["text"] == "words"
            prompts = await boss.request("worker", "prompts/list")
            assert prompts["prompts"][0]["name"] == "greeting"
            got = await boss.request(
                "worker", "prompts/get", {"name": "greeting", "arguments": {"who": "all"}}
            )
            assert got["messages"][0]["content"]["text"] == "Greet all."
            # Everybody is asked, and everybody answers.
            every = await boss.request_all("tools/list", timeout=HANG_TIMEOUT)
            assert sorted(every) == ["other", "worker"]
            assert every["other"] == {"tools": []}
            # Only one of them has this, and only that one says anything.
            first = await boss.request((), "tools/call", {"name": "add", "arguments": {"one": 1}})
            assert first["isError"]
            with pytest.raises(InterlockError, match="There is no tool") as caught:
                await boss.call("other", "add", {})
            assert caught.value.data is not None
            assert caught.value.data["participant"] == "other"

    run_with_both_gateways(test, {"boss": EVERYTHING, "worker": SERVES, "other": SERVES})


def test_missing_responses_fail_requests() -> None:
    async def test(house: GatewayUnderTest) -> None:
        boss, worker = house.participant("boss"), house.participant("worker")
        begun, cancelled = asyncio.Event(), asyncio.Event()

        @worker.tool()
        async def hang() -> None:
            await asyncio.Event().wait()

        @worker.tool()
        async def wait() -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()

        async with boss.connected(), worker.connected():
            await wait_for_presence(boss, worker)
            with pytest.raises(
                InterlockError, match=r"is not in the topic room\. Participants: worker"
            ):
                await boss.request("nobody", "ping")
            events = worker.events()
            assert await boss.request_all("odd/method", timeout=0.01) == {}
            with pytest.raises(InterlockError) as caught:
                await boss.request("worker", "tools/call", {"name": "hang"}, timeout=0.01)
            assert caught.value.failure.name == "deadline_exceeded"
            # The worker hears that nobody waits any more.
            told = await wait_until(events, lambda event: isinstance(event.content, Notification))
            assert told.kind == "mcp/request:notifications/cancelled"
            calling = asyncio.create_task(boss.call("worker", "wait"))
            await begun.wait()
            calling.cancel()
            await asyncio.wait([calling])
            await cancelled.wait()
            assert boss.status.pending_requests == 0

    run_with_both_gateways(test, {"boss": EVERYTHING, "worker": SERVES})


@pytest.mark.spec(
    "MX-3.2-1", "MX-3.2.1-1", "MX-3.2.1-3", "MX-3.2.1-4", "MX-3.2.1-6", "MX-3.2.1-7", "MX-3-10",
    "MX-3-8", "MX-8.2-10", "MX-8.2-11", "MX-8.2-12", "MX-3.2-3", "MX-3.2.1-5",
)  # fmt: skip
def test_trusted_participant_fulfils_proposal() -> None:
    async def test(house: GatewayUnderTest) -> None:
        agent = house.participant("untrusted-agent")
        human = house.participant("human-user")
        target = house.participant("target-agent")
        done: list[str] = []

        @target.tool()
        async def dangerous_operation(target: str) -> str:
            done.append(target)
            return "Operation completed successfully"

        async with agent.connected(), human.connected(), target.connected():
            await wait_for_presence(agent, human, target)
            proposals, events = human.events(), agent.events()
            calling = asyncio.create_task(
                agent.call("target-agent", "dangerous_operation", {"target": "production"})
            )
            event = await wait_until(proposals, lambda event: isinstance(event.content, Proposal))
            assert event.kind == "mcp/proposal:tools/call:dangerous_operation"
            assert event.correlation_id is None
            # Nobody but the human can do anything about it, and nothing has happened.
            assert done == []
            assert human.proposals[event.id].status == "pending"
            with pytest.raises(SendError, match="own proposal"):
                await agent.fulfil(event.id)
            result = await human.fulfil(event)
            assert done == ["production"]
            assert await calling == result
            assert result["content"][0]["text"] == "Operation completed successfully"
            fulfilment = await wait_until(events, lambda event: "mcp/request" in event.kind)
            assert fulfilment.correlation_id == event.id
            assert fulfilment.to == ("target-agent",)
            assert fulfilment.content.params == event.content.params
            response = await wait_until(events, lambda event: "mcp/response" in event.kind)
            assert response.correlation_id == fulfilment.id
            assert response.to == ("human-user", "untrusted-agent")
            chain = (event.id, fulfilment.id, response.id)
            assert agent.find_thread(event.id) == human.find_thread(response.id) == chain
            for one in (agent, human, target):
                tracked = one.proposals[event.id]
                assert (tracked.status, tracked.fulfilled_by) == ("fulfilled", "human-user")
                assert one.status.dropped_messages == 0
            with pytest.raises(SendError, match="fulfilled by human-user"):
                await human.fulfil(event.id)
            assert done == ["production"]

    run_with_both_gateways(
        test, {"untrusted-agent": PROPOSES, "human-user": EVERYTHING, "target-agent": SERVES}
    )


@pytest.mark.spec("MX-3.2.1-8", "MX-3.2.1-10", "MX-10.2-3")
def test_fulfils_with_options() -> None:
    async def test(house: GatewayUnderTest) -> None:
        now = [1_000.0]
        agent = house.participant("agent")
        human = house.participant("human", clock=lambda: now[0])
        worker = house.participant("worker")
        done: list[int] = []

        @worker.tool()
        async def count(number: int) -> None:
            done.append(number)

        async def propose(number: int) -> Event:
            params = {"name": "count", "arguments": {"number": number}}
            await agent.propose("worker", "tools/call", params)
            return await wait_until(proposals, lambda event: isinstance(event.content, Proposal))

        async with agent.connected(), human.connected(), worker.connected():
            await wait_for_presence(agent, human, worker)
            proposals, requests = human.events(), agent.events()
            # Other arguments, said so and noted.
            event = await propose(1)
            await human.fulfil(event, {"name": "count", "arguments": {"number": 2}})
            assert done == [2]
            seen = await wait_until(requests, lambda one: "mcp/request" in one.kind)
            assert seen.correlation_id == event.id
            assert "human changed the arguments" in human.proposals[event.id].note
            assert "human changed the arguments" in agent.proposals[event.id].note
            # Once more, only when it is said so.
            await human.fulfil(event, force=True)
            assert done == [2, 1]
            assert "again" in human.proposals[event.id].note
            # Refused here, and nothing is said about it.
            event = await propose(3)
            assert human.reject(event, "too many")
            assert not human.reject(event)
            with pytest.raises(SendError, match="rejected"):
                await human.fulfil(event)
            assert human.proposals[event.id].note == "too many"
            assert agent.proposals[event.id].status == "pending"
            # Too late, unless it is forced.
            event = await propose(4)
            now[0] += 301
            assert human.proposals[event.id].status == "expired"
            with pytest.raises(SendError, match="expired"):
                await human.fulfil(event)
            await human.fulfil(human.proposals[event.id], force=True)
            assert done == [2, 1, 4]
            with pytest.raises(SendError, match="There is no proposal"):
                await human.fulfil("nothing")
            # Another call is not what was proposed: that is not for `override`.
            event = await propose(5)
            with pytest.raises(SendError):
                await human.fulfil(event, {"nothing": "at all"})

    run_with_both_gateways(test, {"agent": PROPOSES, "human": EVERYTHING, "worker": SERVES})


def test_recipient_may_fulfil_proposal() -> None:
    async def test(house: GatewayUnderTest) -> None:
        agent, worker = house.participant("agent"), house.participant("worker")
        done: list[str] = []

        @worker.tool()
        async def work() -> str:
            done.append("work")
            return "worked"

        async with agent.connected(), worker.connected():
            await wait_for_presence(agent, worker)
            worker.on(Proposal, lambda event: worker.fulfil(event))
            result = await agent.call("worker", "work")
            assert result["content"][0]["text"] == "worked"
            assert done == ["work"]
            assert agent.status.dropped_messages == worker.status.dropped_messages == 0

    run_with_both_gateways(test, {"agent": PROPOSES, "worker": EVERYTHING})


def test_unfulfilled_proposal_has_no_outcome() -> None:
    async def test(house: GatewayUnderTest) -> None:
        agent, human = house.participant("agent"), house.participant("human")
        directed = house.participant("directed", routing="directed")
        async with agent.connected(), human.connected(), directed.connected():
            await wait_for_presence(agent, human, directed)
            events = agent.events()
            proposal = await agent.propose("human", "tools/call", {"name": "x"})
            await human.chat("Not today.", ["agent"], correlation_id=proposal.id)
            await wait_until(events, lambda event: isinstance(event.content, Chat))
            with pytest.raises(InterlockError, match=r"human: Not today\.") as caught:
                await proposal.outcome(timeout=0)
            assert caught.value.failure.name == "deadline_exceeded"
            assert caught.value.data is not None
            assert caught.value.data["status"] == "pending"
            with pytest.raises(InterlockError, match="routing"):
                await directed.call("human", "x")
            with pytest.raises(InterlockError, match="not in the topic"):
                await agent.propose("nobody", "tools/call", {"name": "x"})
            with pytest.raises(SendError, match=r"params\.name"):
                await agent.propose("human", "tools/call", {})

    run_with_both_gateways(test, {"agent": PROPOSES, "human": EVERYTHING, "directed": PROPOSES})


@pytest.mark.spec("MX-8.2-15", "MX-4.1-8", "MX-6.2a-6")
def test_does_not_send_forbidden_messages() -> None:
    async def test(house: GatewayUnderTest) -> None:
        mute, human = house.participant("mute"), house.participant("human")
        async with mute.connected(), human.connected():
            await wait_for_presence(mute, human)
            events = human.events()
            assert not mute.can_send("mcp/request:ping")
            for sending in (
                mute.request("human", "ping"),
                mute.call("human", "x"),
                mute.request_all("tools/list"),
                mute.send("system/presence", {"event": "leave", "participant": {"id": "human"}}),
                mute.send("chat", {"no": "text"}),
                mute.send("chat", {"text": object()}),
            ):
                with pytest.raises(SendError):
                    await sending
            await mute.chat("**the first**", markdown=True)
            event = await wait_until(events, lambda event: event.sender == "mute")
            assert event.content == Chat("**the first**", "markdown")

    run_with_both_gateways(test, {"mute": ("chat",), "human": EVERYTHING})


@pytest.mark.spec("MX-4.3-3", "MX-4.3-4", "MX-7.1-5", "MX-8.2-5")
def test_every_participant_detects_false_kind() -> None:
    async def test(house: GatewayUnderTest) -> None:
        liar, worker = house.participant("liar"), house.participant("worker")
        done: list[str] = []

        @worker.tool()
        async def dangerous_tool() -> None:
            done.append("!")

        async with liar.connected(), worker.connected():
            await wait_for_presence(liar, worker)
            events = worker.events()
            # The library does not send this; somebody else's does, and no gateway looks into it.
            params = b'{"name":"dangerous_tool"}'
            lie = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":%b}' % params
            liar._send(
                write_envelope(
                    id="lie", sender="liar", kind="mcp/request:tools/call:safe_tool",
                    payload=lie, to=["worker"],
                )
            )  # fmt: skip
            await liar.chat("done?")
            await wait_until(events, lambda event: isinstance(event.content, Chat))
            assert done == []
            assert worker.reputation == {"liar": 1}
            assert worker.status.reputation == {"liar": 1}
            assert worker.status.dropped_messages == 1

    run_with_both_gateways(
        test, {"liar": ("mcp/request:tools/call:safe_tool", "chat"), "worker": SERVES}
    )


@pytest.mark.spec("MX-7.1-2")
def test_validation_has_no_switch() -> None:
    """Nothing decides whether a payload is held against its kind but the envelope itself: what
    there is to set is listed here, so that nobody adds a switch by the way, and neither the
    environment nor a module's variable is asked."""
    assert list(inspect.signature(Participant).parameters) == [
        "url", "topic", "token", "routing", "server", "name", "version", "instructions", "ca",
        "certificate", "key", "lifetime", "welcome_timeout", "dial", "sleep", "jitter", "clock",
    ]  # fmt: skip
    assert list(inspect.signature(Membership).parameters) == [
        "server", "send", "on_welcome", "proposals", "new_id", "now",
    ]  # fmt: skip
    assert list(inspect.signature(Membership.receive).parameters) == ["self", "text"]
    assert list(inspect.signature(read_content).parameters) == ["envelope"]
    for module in ("topics.client.membership", "topics.wire.payloads", "topics.wire.envelope"):
        source = inspect.getsource(import_module(f"interlock.{module}"))
        gc.disable()  # Early releases of Python 3.11 fail when rubbish is looked for in between.
        try:
            tree = ast.parse(source)
        finally:
            gc.enable()
        for node in ast.walk(tree):
            assert not isinstance(node, ast.Global)
            if isinstance(node, ast.Import):
                assert "os" not in [one.name for one in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.module not in ("os", "sys")


def test_decorators_need_builtin_server() -> None:
    class Silent:
        def can_handle(self, method: str, context: str) -> bool:
            return False

        async def handle(self, request: Any) -> bytes:
            raise AssertionError

    participant = Participant("wss://n/ws", topic="room", token="t", server=Silent())
    with pytest.raises(RuntimeError, match="`server`"):
        participant.tool()(lambda: None)
    assert repr(participant) == "Participant('not joined', topic='room')"


def test_decorators_need_no_parentheses() -> None:
    participant = Participant("wss://n/ws", topic="room", token="t")

    @participant.tool
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @participant.prompt
    def greet(name: str) -> str:
        return f"Greet {name}."

    @participant.tool(name="sum")
    def both(a: int) -> int:
        return a

    assert (add(1, 2), greet("Ada"), both(3)) == (3, "Greet Ada.", 3)
    tools = participant._get_tool_server()
    assert tools.can_handle("tools/call", "add")
    assert tools.can_handle("tools/call", "sum")
    assert tools.can_handle("prompts/get", "greet")
    with pytest.raises(TypeError, match="name='sum'"):
        participant.tool("sum")  # type: ignore[call-overload]
