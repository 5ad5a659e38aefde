"""The supervisor of an upstream: its states, its retries, and its isolation from others."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from typing import Any

import pytest

from interlock.core.call import UpstreamLostError
from interlock.core.config import ServerConfig
from interlock.core.upstreams.supervisor import State, Supervisor
from interlock.core.upstreams.transports.stdio import StdioTransport
from interlock.errors import UPSTREAM_UNAVAILABLE
from tests.core.upstreams.servers.http_server import Answer, Request, Streamable
from tests.support.upstreams import (
    SupervisorHarness,
    run,
    run_supervisor,
    stdio_server,
    with_timeout,
)

pytestmark = pytest.mark.usefixtures("no_leaks")

LOOPS = pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
READY, DEGRADED, FAILED = State.READY, State.DEGRADED, State.FAILED


def kill(one: SupervisorHarness) -> None:
    assert one.supervisor.peer is not None
    link = one.supervisor.peer.transport
    assert isinstance(link, StdioTransport)
    os.kill(link.pid or 0, signal.SIGKILL)


# -- states


@LOOPS
def test_changes_from_connecting_to_failed_to_ready(loop: str, free_port: int) -> None:
    async def body() -> None:
        async with run_supervisor(ServerConfig(url=f"http://127.0.0.1:{free_port}/mcp")) as one:
            one.naps.hold()
            supervisor = one.supervisor
            assert supervisor.state is State.CONNECTING
            assert supervisor.problem is None
            await with_timeout(supervisor.wait_for_first_attempt())
            assert supervisor.state is FAILED
            assert supervisor.problem is not None
            assert not one.listed
            assert one.withdrawn == 0
            await one.until(lambda: one.naps.sleeping)
            one.naps.wake()
            await one.until(lambda: len(one.naps.taken) == 2)
            # Still failing is no news.
            assert one.states == [FAILED]
            server = Streamable()
            await server.start(free_port)
            one.naps.wake()
            await one.ready()
            assert one.states == [FAILED, READY]
            assert supervisor.problem is None
            assert len(one.listed) == 1
            await server.stop()

    run(body, loop=loop)


@LOOPS
def test_reconnects_within_grace(loop: str) -> None:
    async def body() -> None:
        server = Streamable("stateless")
        await server.start()
        async with run_supervisor(ServerConfig(url=server.url(), grace=300.0)) as one:
            await one.ready()
            since = one.supervisor.since
            one.naps.hold()
            await server.stop()
            with pytest.raises(UpstreamLostError):
                await with_timeout(one.start("echo"))
            assert one.states == [READY, DEGRADED]
            for turn in range(1, 5):
                await one.until(lambda turn=turn: len(one.naps.taken) == turn)
                one.naps.wake()
            # Its tools stay listed, and a call says why it cannot be made.
            assert one.withdrawn == 0
            assert one.supervisor.offer.tools
            with pytest.raises(UpstreamLostError, match=r"up is not available: .*refused") as gone:
                one.start("echo")
            assert gone.value.failure is UPSTREAM_UNAVAILABLE
            assert not gone.value.was_sent
            assert gone.value.data is not None
            assert gone.value.data["upstream"] == "up"
            assert gone.value.data["retry_after_ms"] >= 100
            await one.until(lambda: len(one.naps.taken) == 5)
            await server.start(server.port)
            one.naps.wake()
            await one.ready()
            assert one.states == [READY, DEGRADED, READY]
            assert one.supervisor.restarts == 1
            assert one.supervisor.since >= since
            await server.stop()

    run(body, loop=loop)


@pytest.mark.parametrize("kind", ["http", "stdio"])
async def test_withdraws_tools_after_grace_and_lists_again(kind: str) -> None:
    server = Streamable("stateless")
    await server.start()
    config = ServerConfig(url=server.url(), grace=0.0)
    if kind == "stdio":
        config = stdio_server(grace=0.0)
    async with run_supervisor(config) as one:
        await one.ready()
        one.naps.hold()
        if kind == "http":
            await server.stop()
            with pytest.raises(UpstreamLostError):
                await with_timeout(one.start("echo"))
        else:
            # It will not start again for a while.
            one.connector._configured = ServerConfig(command="no-such-program-here")
            kill(one)
        await one.state(DEGRADED)
        assert one.withdrawn == 0
        await one.until(lambda: one.naps.sleeping)
        one.naps.wake()
        await one.state(FAILED)
        assert one.withdrawn == 1
        # Withdrawn once, however often it fails on.
        await one.until(lambda: one.naps.sleeping)
        one.naps.wake()
        await one.until(lambda: len(one.naps.taken) == 3)
        assert one.withdrawn == 1
        if kind == "http":
            await server.start(server.port)
        one.connector._configured = config
        one.naps.wake()
        await one.ready()
        assert one.states == [READY, DEGRADED, FAILED, READY]
        assert len(one.listed) == 2
    await server.stop()


async def test_applies_settings_without_reconnecting() -> None:
    async with run_supervisor(stdio_server()) as one:
        await one.ready()
        assert one.supervisor.peer is not None
        peer = one.supervisor.peer
        one.supervisor.configure(stdio_server(grace=7.0, timeout=3.0))
        assert len(one.listed) == 2
        assert one.supervisor.server.grace == 7.0
        assert one.supervisor.timeout == 3.0
        assert one.supervisor.peer is peer


# -- patience


async def test_waits_until_ready() -> None:
    async with Streamable("stateless") as server:
        async with run_supervisor(ServerConfig(url=server.url())) as one:
            supervisor = one.supervisor
            # Still connecting: it is worth the wait.
            assert await with_timeout(supervisor.wait_until_ready(10))
            assert await with_timeout(supervisor.wait_until_ready(10))
            assert one.states == [READY]
            one.naps.hold()
            await server.stop()
            with pytest.raises(UpstreamLostError):
                await with_timeout(one.start("echo"))
            # Lost, but the next attempt comes soon.
            waiting = asyncio.create_task(supervisor.wait_until_ready(10))
            await one.until(lambda: one.naps.sleeping)
            await server.start(server.port)
            one.naps.wake()
            assert await with_timeout(waiting)
            assert await one.text("echo", text="x") == "x"


async def test_does_not_wait_longer_than_allowed(free_port: int) -> None:
    async with run_supervisor(ServerConfig(url=f"http://127.0.0.1:{free_port}/mcp")) as one:
        one.naps.hold()
        await with_timeout(one.supervisor.wait_for_first_attempt())
        # Failed: nobody knows when it comes back.
        assert not await one.supervisor.wait_until_ready(86_400)

    async with run_supervisor(stdio_server()) as other:
        await other.ready()
        other.naps.hold()
        kill(other)
        await other.until(lambda: other.naps.sleeping)
        # Lost, and the next attempt comes later than anybody wants to wait.
        other.supervisor._next_try += 1_000_000
        assert not await other.supervisor.wait_until_ready(86_400)
        assert not await other.supervisor.wait_until_ready(-1)


async def test_wait_does_not_return_lost_connection() -> None:
    """In every turn of the loop after the loss, ready means that a call can be made."""

    async with run_supervisor(stdio_server()) as one:
        await one.ready()
        for _ in range(10):
            call = one.start("die")
            with pytest.raises(UpstreamLostError):
                await with_timeout(call)
            assert await with_timeout(one.supervisor.wait_until_ready(10))
            assert await one.text("echo", text="x") == "x"


# -- isolation


async def test_failing_servers_do_not_delay_others(free_port: int) -> None:
    async with Streamable() as silent, Streamable() as good:

        async def never(request: Request, answer: Answer) -> bool:
            return True

        silent.habit = never
        bad = [
            ServerConfig(url=silent.url(), start_timeout=60),
            ServerConfig(url=f"http://127.0.0.1:{free_port}/mcp"),
            stdio_server("--silent", start_timeout=60.0),
            stdio_server("--exit", "1"),
            ServerConfig(command="no-such-program-here"),
        ]
        neighbours = [SupervisorHarness(config, key=f"bad{n}") for n, config in enumerate(bad)]
        for neighbour in neighbours:
            neighbour.naps.hold()
            neighbour.supervisor.begin()
        async with (
            run_supervisor(ServerConfig(url=good.url()), key="good") as one,
            run_supervisor(stdio_server(), key="other") as other,
        ):
            await one.ready()
            await other.ready()
            assert await one.text("echo", text="x") == "x"
            assert await other.text("echo", text="y") == "y"
            assert all(bad.supervisor.state is not READY for bad in neighbours)
        await with_timeout(asyncio.gather(*(bad.supervisor.end() for bad in neighbours)))


async def test_connects_fifty_servers_at_once() -> None:
    async with Streamable("stateless") as server:
        every = [SupervisorHarness(ServerConfig(url=server.url()), key=f"up{n}") for n in range(50)]
        for one in every:
            one.supervisor.begin()
        for one in every:
            await one.ready()
        calls = [one.start("echo", {"text": one.supervisor.key}) for one in every]
        for one, call in zip(every, calls, strict=True):
            assert one.supervisor.key.encode() in bytes((await with_timeout(call)).result)
        await with_timeout(asyncio.gather(*(one.supervisor.end() for one in every)))


# -- faults of ours


def test_connection_fault_does_not_end_supervisor(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def body() -> None:
        one = SupervisorHarness(stdio_server())
        resolve = one.connector._resolve

        def broken(server: ServerConfig) -> ServerConfig:
            raise RuntimeError("a fault")

        one.connector._resolve = broken
        one.naps.hold()
        one.supervisor.begin()
        await with_timeout(one.supervisor.wait_for_first_attempt())
        assert one.supervisor.state is FAILED
        assert one.supervisor.problem == "The node failed while connecting (RuntimeError)."
        one.connector._resolve = resolve
        await one.until(lambda: one.naps.sleeping)
        one.naps.wake()
        await one.ready()
        await one.supervisor.end()

    with caplog.at_level(logging.ERROR):
        run(body)
    assert "a fault" in caplog.text


@pytest.mark.parametrize("whose", ["tools", "state"])
def test_listener_fault_does_not_end_supervisor(
    whose: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        one = SupervisorHarness(stdio_server("--eras", "session", "--announces"))

        def broken(supervisor: Supervisor) -> None:
            raise RuntimeError("cannot take it")

        if whose == "tools":
            one.on_tools = broken
        else:
            one.supervisor._on_state = broken
        one.supervisor.begin()
        await with_timeout(one.supervisor.wait_for_first_attempt())
        assert await with_timeout(one.supervisor.wait_until_ready(10))
        assert await one.text("change", names=["echo", "die"]) == "changed"
        await one.until(lambda: one.listed and one.listed[-1] == ["echo", "die"])
        with pytest.raises(UpstreamLostError):
            await with_timeout(one.start("die"))
        assert await with_timeout(one.supervisor.wait_until_ready(10))
        assert await one.text("echo", text="alive") == "alive"
        await one.supervisor.end()

    with caplog.at_level(logging.ERROR):
        run(body)
    assert "cannot take it" in caplog.text


# -- ending


@LOOPS
def test_repeated_connections_leave_nothing_behind(loop: str) -> None:
    """`run` compares open files, tasks and children before and after."""

    async def body() -> None:
        kinds: list[dict[str, Any]] = [
            {"eras": "session", "get": "stream", "announces": True},
            {"eras": "stateless", "sse": True, "announces": True},
            {"eras": "session", "sse": True},
            {"eras": "stateless"},
        ]
        for turn in range(20):
            async with Streamable(**kinds[turn % 4]) as server:
                one = SupervisorHarness(ServerConfig(url=server.url(), connections=3))
                one.supervisor.begin()
                if turn % 5 == 0:
                    # Ended wherever connecting happens to be.
                    for _ in range(turn):
                        await asyncio.sleep(0)
                    await with_timeout(one.supervisor.end())
                    continue
                await one.ready()
                calls = [one.start("hold") for _ in range(5)]
                await server.until(lambda server=server: len(server.toolbox.held) == 3)
                await with_timeout(one.supervisor.end())
                for call in calls:
                    with pytest.raises(UpstreamLostError):
                        await with_timeout(call)

    run(body, loop=loop)


async def test_ends_at_every_moment_of_connecting() -> None:
    async with Streamable("session", get="stream", announces=True) as server:
        for turns in range(40):
            one = SupervisorHarness(ServerConfig(url=server.url()))
            one.supervisor.begin()
            for _ in range(turns):
                await asyncio.sleep(0)
            await with_timeout(one.supervisor.end())
            assert one.supervisor.peer is None
        await server.until(lambda: server.open_connections == 0)


async def test_ends_during_sleep_and_twice(free_port: int) -> None:
    one = SupervisorHarness(ServerConfig(url=f"http://127.0.0.1:{free_port}/mcp"))
    await one.supervisor.end()
    one.naps.hold()
    one.supervisor.begin()
    await one.until(lambda: one.naps.sleeping)
    await with_timeout(one.supervisor.end())
    await with_timeout(one.supervisor.end())
    assert not one.naps.sleeping


async def test_concurrent_ends_finish_calls() -> None:
    """The second must not interrupt how the first lets go: who waits for an answer is told."""

    async with Streamable("session") as server:
        for turns in range(12):
            one = SupervisorHarness(ServerConfig(url=server.url()))
            one.supervisor.begin()
            await one.ready()
            call, held = one.start("hold"), len(server.toolbox.held)
            await server.until(lambda held=held: len(server.toolbox.held) > held)
            first = asyncio.ensure_future(one.supervisor.end())
            for _ in range(turns):
                await asyncio.sleep(0)
            await with_timeout(asyncio.gather(first, one.supervisor.end()))
            with pytest.raises(UpstreamLostError):
                await with_timeout(call)


async def test_unanswered_delete_delays_end_briefly() -> None:
    async with Streamable("session") as server:

        async def habit(request: Request, answer: Answer) -> bool:
            return request.method == "DELETE"

        server.habit = habit
        async with run_supervisor(ServerConfig(url=server.url())) as one:
            await one.ready()
