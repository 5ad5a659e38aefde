"""Tests of the connection of a participant: join, rejection, loss and reconnect."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from interlock.errors import FORBIDDEN, InterlockError
from interlock.topics.client import Participant
from interlock.topics.client.connection import MembershipState, make_join_url
from tests.topics.client.small_gateway import HANG_TIMEOUT, SmallGateway, small_gateway
from tests.topics.client.two_gateways import stay_connected

TOKEN = "t-agent"
SECRET = "t-agent-very-secret-0123456789"


class ManualSleep:
    """A sleep function that records durations and wakes on request."""

    def __init__(self) -> None:
        self.slept: list[float] = []
        self._go: asyncio.Queue[None] = asyncio.Queue()
        self._asleep: asyncio.Queue[float] = asyncio.Queue()

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self._asleep.put_nowait(seconds)
        await self._go.get()

    async def until_asleep(self) -> float:
        async with asyncio.timeout(HANG_TIMEOUT):
            return await self._asleep.get()

    def wake(self) -> None:
        self._go.put_nowait(None)


def run(test: Callable[[SmallGateway], Awaitable[None]], **settings: Any) -> None:
    async def main() -> None:
        async with asyncio.timeout(HANG_TIMEOUT), small_gateway(**settings) as made:
            await test(made)

    asyncio.run(main())


@asynccontextmanager
async def open_gateway(**settings: Any) -> AsyncIterator[SmallGateway]:
    async with asyncio.timeout(HANG_TIMEOUT), small_gateway(**settings) as made:
        yield made


def make_agent(made: SmallGateway, **more: Any) -> Participant:
    return Participant(made.url, **{"topic": "room", "token": TOKEN, **more})


def is_connected(participant: Participant) -> bool:
    return participant.status.connected


# -- coming in


async def test_sends_token_only_in_header() -> None:
    async with open_gateway() as made:
        participant = make_agent(made, routing="directed")
        async with participant.connected():
            assert participant.id == "agent"
            assert is_connected(participant)
        (knock,) = made.knocks
        assert knock.headers["Authorization"] == f"Bearer {TOKEN}"
        assert knock.path == "/ws?topic=room&routing=directed"
        assert not is_connected(participant)
        await made.until(lambda made: not made.present)


async def test_participant_can_reconnect() -> None:
    async with open_gateway() as made:
        participant = make_agent(made)
        for _ in range(2):
            async with participant.connected():
                with pytest.raises(RuntimeError, match="already"):
                    async with participant.connected():
                        raise AssertionError
            await made.until(lambda made: not made.present)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://127.0.0.1/ws", "wss://host/ws"),
        ("ws://node.example.com/ws", "is not encrypted"),
        ("wss://me:secret@node.example.com/ws", "credentials"),
        ("wss://node.example.com/ws?token=secret", "no query"),
        ("unix:/run/node.sock", "wss://host/ws"),
        ("wss:///ws", "wss://host/ws"),
        ("wss://[node/ws", "wss://host/ws"),
        ("wss://node..example.com/ws", "wss://host/ws"),
        (f"wss://{'n' * 64}/ws", "wss://host/ws"),
    ],
)
def test_rejects_invalid_urls(url: str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        Participant(url, topic="room")
    assert "secret" not in str(caught.value)
    # Parents of nodes have other addresses.
    assert "/ax" not in str(caught.value)
    assert "parent" not in str(caught.value)


def test_writes_topic_and_routing_into_query() -> None:
    assert make_join_url("wss://n/ws", "a.b", "all") == "wss://n/ws?topic=a.b&routing=all"
    for topic in ("", "a b", "a&routing=x", "a/b", "x" * 129):
        with pytest.raises(ValueError, match="topic"):
            Participant("wss://n/ws", topic=topic)
    with pytest.raises(ValueError, match="routing"):
        Participant("wss://n/ws", topic="a", routing="some")  # type: ignore[arg-type]
    for token in ("", "two words", "line\r\nX-Admin: yes"):
        with pytest.raises(ValueError, match="token") as caught:
            Participant("wss://n/ws", topic="a", token=token)
        assert not token or token not in str(caught.value)


# -- refused for good


@pytest.mark.parametrize(
    ("status", "name"),
    [(400, "invalid_request"), (401, "unauthenticated"), (403, "forbidden"), (404, "config_error")],
)
def test_rejection_is_final(status: int, name: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def test(made: SmallGateway) -> None:
        made.refuse = (status, f"Not with {SECRET}, friend.")
        clockwork = ManualSleep()
        participant = make_agent(made, token=SECRET, sleep=clockwork.sleep)
        with pytest.raises(InterlockError) as caught:
            async with participant.connected():
                raise AssertionError("it was let in")
        error = caught.value
        assert error.failure.name == name
        assert error.data == {"status": status}
        assert f"{status}" in error.message
        assert "friend" in error.message
        assert SECRET not in error.message + repr(error) + repr(participant)
        assert clockwork.slept == []

    run(test)
    ours = [record for record in caplog.records if record.name.startswith("interlock")]
    assert not [record for record in ours if SECRET in record.getMessage()]


@pytest.mark.parametrize(("code", "name"), [(4003, "forbidden"), (4009, "namespace_conflict")])
async def test_removal_ends_block(code: int, name: str) -> None:
    async with open_gateway() as made:
        clockwork = ManualSleep()
        participant = make_agent(made, sleep=clockwork.sleep)
        inside = asyncio.Event()

        async def stay() -> None:
            async with participant.connected():
                inside.set()
                await asyncio.Event().wait()

        staying = asyncio.create_task(stay())
        await inside.wait()
        await made.kick("agent", code, f"go, {TOKEN}")
        with pytest.raises(InterlockError) as caught:
            await staying
        assert caught.value.failure.name == name
        assert caught.value.data == {"close": code}
        assert "go" in caught.value.message
        assert TOKEN not in caught.value.message
        assert clockwork.slept == []


async def test_cancelled_block_stays_cancelled() -> None:
    async with open_gateway() as made:
        inside = asyncio.Event()

        async def stay() -> None:
            async with make_agent(made).connected():
                inside.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(stay())
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await made.until(lambda made: not made.present)


# -- lost, and back


def test_reconnects_and_reloads_state(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "interlock.topics")

    async def test(made: SmallGateway) -> None:
        clockwork = ManualSleep()
        participant = make_agent(made, sleep=clockwork.sleep, jitter=lambda: 1.0)
        other = Participant(made.url, topic="room", token="t-other")
        async with participant.connected():
            events = participant.events()
            async with other.connected():
                while "other" not in participant.participants:
                    await anext(events)
            while participant.participants:
                await anext(events)
            made.capabilities["agent"] = ("chat",)
            await made.cut("agent")
            assert await clockwork.until_asleep() == 1.0
            assert not is_connected(participant)
            assert dict(participant.participants) == {}
            with pytest.raises(InterlockError, match="no connection"):
                await participant.chat("anybody?")
            clockwork.wake()
            await made.until(lambda made: made.present == ["agent"])
            while not is_connected(participant):
                await anext(events)
            assert participant.capabilities == ("chat",)
            assert not participant.can_send("mcp/request:ping")
            assert participant.status.welcomes == 2
            await participant.chat("back")
            await made.heard("chat")

    run(test)
    assert "topic room: joined again as agent" in caplog.text
    assert "Retrying." in caplog.text


async def test_lost_connection_fails_pending_calls() -> None:
    async with open_gateway() as made:
        clockwork = ManualSleep()
        participant = make_agent(made, sleep=clockwork.sleep)
        slow = Participant(made.url, topic="room", token="t-slow")
        begun = asyncio.Event()

        @slow.tool()
        async def wait() -> None:
            begun.set()
            await asyncio.Event().wait()

        async with slow.connected(), participant.connected():
            calling = asyncio.create_task(participant.call("slow", "wait"))
            await begun.wait()
            await made.cut("agent")
            with pytest.raises(InterlockError) as caught:
                await calling
            assert caught.value.failure.name == "upstream_lost"
            assert caught.value.data == {"sent": True}


async def test_retries_unreachable_gateway_with_backoff() -> None:
    async with small_gateway() as made:
        url = made.url
    clockwork = ManualSleep()
    participant = Participant(
        url, topic="room", token=TOKEN, sleep=clockwork.sleep, jitter=lambda: 0.0
    )
    async with stay_connected(participant) as inside:
        for _ in range(8):
            await clockwork.until_asleep()
            clockwork.wake()
        await clockwork.until_asleep()
        assert not inside.is_set()
    assert clockwork.slept == [0.5, 1, 2, 4, 8, 15, 15, 15, 15]


async def test_retries_busy_gateway() -> None:
    async with open_gateway() as made:
        made.refuse = (503, "Later.")
        clockwork = ManualSleep()
        async with stay_connected(make_agent(made, sleep=clockwork.sleep)) as inside:
            await clockwork.until_asleep()
            made.refuse = None
            clockwork.wake()
            await inside.wait()


async def test_disconnects_without_welcome() -> None:
    async with open_gateway() as made:
        made.silent = True
        clockwork = ManualSleep()
        participant = make_agent(
            made, sleep=clockwork.sleep, jitter=lambda: 0.0, welcome_timeout=0.01
        )
        async with stay_connected(participant) as inside:
            for _ in range(3):
                await clockwork.until_asleep()
                assert not inside.is_set()
                if len(clockwork.slept) == 3:
                    made.silent = False
                    assert participant._connection is not None
                    participant._connection._welcome_timeout = HANG_TIMEOUT
                clockwork.wake()
            await inside.wait()
            # Who was welcomed begins again with a short wait.
            await made.cut("agent")
            await clockwork.until_asleep()
        assert clockwork.slept == [0.5, 1, 2, 0.5]
        assert participant.status.welcomes == 1


async def test_cancellation_wins_over_rejection() -> None:
    standing = MembershipState("room")
    inside = asyncio.Event()

    async def stay() -> None:
        async with standing.cancel_on_end():
            inside.set()
            await asyncio.Event().wait()

    for cancelled in (True, False):
        inside.clear()
        task = asyncio.create_task(stay())
        await inside.wait()
        standing.on_reject(InterlockError(FORBIDDEN, "It is over."))
        if cancelled:
            task.cancel()
        await asyncio.wait([task])
        assert task.cancelled() == cancelled
        if not cancelled:
            assert isinstance(task.exception(), InterlockError)
        standing = MembershipState("room")
