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
from tests.core.upstreams.servers.http_server import Request, ResponseWriter, Streamable
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
    assert one.supervisor.upstream_client is not None
    link = one.supervisor.upstream_client.transport
    assert isinstance(link, StdioTransport)
    os.kill(link.pid or 0, signal.SIGKILL)


# -- states


@LOOPS
def test_changes_from_connecting_to_failed_to_ready(loop: str, free_port: int) -> None:
    async def body() -> None:
        async with run_supervisor(
            ServerConfig(url=f"http://127.0.0.1:{free_port}/mcp")
        ) as upstream:
            upstream.sleeps.hold()
            supervisor = upstream.supervisor
            assert supervisor.state is State.CONNECTING
            assert supervisor.problem is None
            await with_timeout(supervisor.wait_for_first_attempt())
            assert supervisor.state is FAILED
            assert supervisor.problem is not None
            assert not upstream.listed
            assert upstream.withdrawn == 0
            await upstream.until(lambda: upstream.sleeps.sleeping)
            upstream.sleeps.wake()
            await upstream.until(lambda: len(upstream.sleeps.taken) == 2)
            # Still failing is no news.
            assert upstream.states == [FAILED]
            server = Streamable()
            await server.start(free_port)
            upstream.sleeps.wake()
            await upstream.ready()
            assert upstream.states == [FAILED, READY]
            assert supervisor.problem is None
            assert len(upstream.listed) == 1
            await server.stop()

    run(body, loop=loop)


@LOOPS
def test_reconnects_within_grace(loop: str) -> None:
    async def body() -> None:
        server = Streamable("stateless")
        await server.start()
        async with run_supervisor(ServerConfig(url=server.url(), grace=300.0)) as upstream:
            await upstream.ready()
            since = upstream.supervisor.since
            upstream.sleeps.hold()
            await server.stop()
            with pytest.raises(UpstreamLostError):
                await with_timeout(upstream.start("echo"))
            assert upstream.states == [READY, DEGRADED]
            for turn in range(1, 5):
                await upstream.until(lambda turn=turn: len(upstream.sleeps.taken) == turn)
                upstream.sleeps.wake()
            # Its tools stay listed, and a call says why it cannot be made.
            assert upstream.withdrawn == 0
            assert upstream.supervisor.raw_offering.tools
            with pytest.raises(UpstreamLostError, match=r"up is not available: .*refused") as gone:
                upstream.start("echo")
            assert gone.value.failure is UPSTREAM_UNAVAILABLE
            assert not gone.value.was_sent
            assert gone.value.data is not None
            assert gone.value.data["upstream"] == "up"
            assert gone.value.data["retry_after_ms"] >= 100
            await upstream.until(lambda: len(upstream.sleeps.taken) == 5)
            await server.start(server.port)
            upstream.sleeps.wake()
            await upstream.ready()
            assert upstream.states == [READY, DEGRADED, READY]
            assert upstream.supervisor.restarts == 1
            assert upstream.supervisor.since >= since
            await server.stop()

    run(body, loop=loop)


@pytest.mark.parametrize("kind", ["http", "stdio"])
async def test_withdraws_tools_after_grace_and_lists_again(kind: str) -> None:
    server = Streamable("stateless")
    await server.start()
    config = ServerConfig(url=server.url(), grace=0.0)
    if kind == "stdio":
        config = stdio_server(grace=0.0)
    async with run_supervisor(config) as upstream:
        await upstream.ready()
        upstream.sleeps.hold()
        if kind == "http":
            await server.stop()
            with pytest.raises(UpstreamLostError):
                await with_timeout(upstream.start("echo"))
        else:
            # It will not start again for a while.
            upstream.connector._configured = ServerConfig(command="no-such-program-here")
            kill(upstream)
        await upstream.state(DEGRADED)
        assert upstream.withdrawn == 0
        await upstream.until(lambda: upstream.sleeps.sleeping)
        upstream.sleeps.wake()
        await upstream.state(FAILED)
        assert upstream.withdrawn == 1
        # Withdrawn once, however often it fails on.
        await upstream.until(lambda: upstream.sleeps.sleeping)
        upstream.sleeps.wake()
        await upstream.until(lambda: len(upstream.sleeps.taken) == 3)
        assert upstream.withdrawn == 1
        if kind == "http":
            await server.start(server.port)
        upstream.connector._configured = config
        upstream.sleeps.wake()
        await upstream.ready()
        assert upstream.states == [READY, DEGRADED, FAILED, READY]
        assert len(upstream.listed) == 2
    await server.stop()


async def test_applies_settings_without_reconnecting() -> None:
    async with run_supervisor(stdio_server()) as upstream:
        await upstream.ready()
        assert upstream.supervisor.upstream_client is not None
        peer = upstream.supervisor.upstream_client
        upstream.supervisor.configure(stdio_server(grace=7.0, timeout=3.0))
        assert len(upstream.listed) == 2
        assert upstream.supervisor.server.grace == 7.0
        assert upstream.supervisor.timeout == 3.0
        assert upstream.supervisor.upstream_client is peer


# -- patience


async def test_waits_until_ready() -> None:
    async with Streamable("stateless") as server:
        async with run_supervisor(ServerConfig(url=server.url())) as upstream:
            supervisor = upstream.supervisor
            # Still connecting: it is worth the wait.
            assert await with_timeout(supervisor.wait_until_ready(10))
            assert await with_timeout(supervisor.wait_until_ready(10))
            assert upstream.states == [READY]
            upstream.sleeps.hold()
            await server.stop()
            with pytest.raises(UpstreamLostError):
                await with_timeout(upstream.start("echo"))
            # Lost, but the next attempt comes soon.
            waiting = asyncio.create_task(supervisor.wait_until_ready(10))
            await upstream.until(lambda: upstream.sleeps.sleeping)
            await server.start(server.port)
            upstream.sleeps.wake()
            assert await with_timeout(waiting)
            assert await upstream.text("echo", text="x") == "x"


async def test_does_not_wait_longer_than_allowed(free_port: int) -> None:
    async with run_supervisor(ServerConfig(url=f"http://127.0.0.1:{free_port}/mcp")) as upstream:
        upstream.sleeps.hold()
        await with_timeout(upstream.supervisor.wait_for_first_attempt())
        # Failed: nobody knows when it comes back.
        assert not await upstream.supervisor.wait_until_ready(86_400)

    async with run_supervisor(stdio_server()) as other:
        await other.ready()
        other.sleeps.hold()
        kill(other)
        await other.until(lambda: other.sleeps.sleeping)
        # Lost, and the next attempt comes later than anybody wants to wait.
        other.supervisor._next_try += 1_000_000
        assert not await other.supervisor.wait_until_ready(86_400)
        assert not await other.supervisor.wait_until_ready(-1)


async def test_wait_does_not_return_lost_connection() -> None:
    """In every turn of the loop after the loss, ready means that a call can be made."""

    async with run_supervisor(stdio_server()) as upstream:
        await upstream.ready()
        for _ in range(10):
            call = upstream.start("die")
            with pytest.raises(UpstreamLostError):
                await with_timeout(call)
            assert await with_timeout(upstream.supervisor.wait_until_ready(10))
            assert await upstream.text("echo", text="x") == "x"


# -- isolation


async def test_failing_servers_do_not_delay_others(free_port: int) -> None:
    async with Streamable() as silent, Streamable() as valid:

        async def block_forever(request: Request, response: ResponseWriter) -> bool:
            return True

        silent.override = block_forever
        invalid = [
            ServerConfig(url=silent.url(), start_timeout=60),
            ServerConfig(url=f"http://127.0.0.1:{free_port}/mcp"),
            stdio_server("--silent", start_timeout=60.0),
            stdio_server("--exit", "1"),
            ServerConfig(command="no-such-program-here"),
        ]
        neighbours = [SupervisorHarness(config, key=f"bad{n}") for n, config in enumerate(invalid)]
        for neighbour in neighbours:
            neighbour.sleeps.hold()
            neighbour.supervisor.begin()
        async with (
            run_supervisor(ServerConfig(url=valid.url()), key="good") as upstream,
            run_supervisor(stdio_server(), key="other") as other,
        ):
            await upstream.ready()
            await other.ready()
            assert await upstream.text("echo", text="x") == "x"
            assert await other.text("echo", text="y") == "y"
            assert all(invalid.supervisor.state is not READY for invalid in neighbours)
        await with_timeout(asyncio.gather(*(invalid.supervisor.end() for invalid in neighbours)))


async def test_connects_fifty_servers_at_once() -> None:
    async with Streamable("stateless") as server:
        every = [SupervisorHarness(ServerConfig(url=server.url()), key=f"up{n}") for n in range(50)]
        for item in every:
            item.supervisor.begin()
        for item in every:
            await item.ready()
        calls = [
            supervisor.start("echo", {"text": supervisor.supervisor.key}) for supervisor in every
        ]
        for value, call in zip(every, calls, strict=True):
            assert value.supervisor.key.encode() in bytes((await with_timeout(call)).result)
        await with_timeout(asyncio.gather(*(supervisor.supervisor.end() for supervisor in every)))


# -- faults of ours


def test_connection_fault_does_not_end_supervisor(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def body() -> None:
        upstream = SupervisorHarness(stdio_server())
        resolve = upstream.connector._resolve

        def broken(server: ServerConfig) -> ServerConfig:
            raise RuntimeError("a fault")

        upstream.connector._resolve = broken
        upstream.sleeps.hold()
        upstream.supervisor.begin()
        await with_timeout(upstream.supervisor.wait_for_first_attempt())
        assert upstream.supervisor.state is FAILED
        assert upstream.supervisor.problem == "Internal error. See the log of the node."
        upstream.connector._resolve = resolve
        await upstream.until(lambda: upstream.sleeps.sleeping)
        upstream.sleeps.wake()
        await upstream.ready()
        await upstream.supervisor.end()

    with caplog.at_level(logging.ERROR):
        run(body)
    assert "a fault" in caplog.text


@pytest.mark.parametrize("whose", ["tools", "state"])
def test_listener_fault_does_not_end_supervisor(
    whose: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        upstream = SupervisorHarness(stdio_server("--eras", "session", "--announces"))

        def broken(supervisor: Supervisor) -> None:
            raise RuntimeError("cannot take it")

        if whose == "tools":
            upstream.on_tools = broken
        else:
            upstream.supervisor._on_state = broken
        upstream.supervisor.begin()
        await with_timeout(upstream.supervisor.wait_for_first_attempt())
        assert await with_timeout(upstream.supervisor.wait_until_ready(10))
        assert await upstream.text("change", names=["echo", "die"]) == "changed"
        await upstream.until(lambda: upstream.listed and upstream.listed[-1] == ["echo", "die"])
        with pytest.raises(UpstreamLostError):
            await with_timeout(upstream.start("die"))
        assert await with_timeout(upstream.supervisor.wait_until_ready(10))
        assert await upstream.text("echo", text="alive") == "alive"
        await upstream.supervisor.end()

    with caplog.at_level(logging.ERROR):
        run(body)
    assert "cannot take it" in caplog.text


# -- ending


@LOOPS
def test_repeated_connections_leave_nothing_behind(loop: str) -> None:
    """`run` compares open files, tasks and children before and after."""

    async def body() -> None:
        kinds: list[dict[str, Any]] = [
            {"generations": "session", "get": "stream", "announces": True},
            {"generations": "stateless", "sse": True, "announces": True},
            {"generations": "session", "sse": True},
            {"generations": "stateless"},
        ]
        for turn in range(20):
            async with Streamable(**kinds[turn % 4]) as server:
                upstream = SupervisorHarness(ServerConfig(url=server.url(), connections=3))
                upstream.supervisor.begin()
                if turn % 5 == 0:
                    # Ended wherever connecting happens to be.
                    for _ in range(turn):
                        await asyncio.sleep(0)
                    await with_timeout(upstream.supervisor.end())
                    continue
                await upstream.ready()
                calls = [upstream.start("hold") for _ in range(5)]
                await server.until(lambda server=server: len(server.toolbox.pending_calls) == 3)
                await with_timeout(upstream.supervisor.end())
                for call in calls:
                    with pytest.raises(UpstreamLostError):
                        await with_timeout(call)

    run(body, loop=loop)


async def test_ends_at_every_moment_of_connecting() -> None:
    async with Streamable("session", get="stream", announces=True) as server:
        for turns in range(40):
            upstream = SupervisorHarness(ServerConfig(url=server.url()))
            upstream.supervisor.begin()
            for _ in range(turns):
                await asyncio.sleep(0)
            await with_timeout(upstream.supervisor.end())
            assert upstream.supervisor.upstream_client is None
        await server.until(lambda: server.open_connections == 0)


async def test_ends_during_sleep_and_twice(free_port: int) -> None:
    upstream = SupervisorHarness(ServerConfig(url=f"http://127.0.0.1:{free_port}/mcp"))
    await upstream.supervisor.end()
    upstream.sleeps.hold()
    upstream.supervisor.begin()
    await upstream.until(lambda: upstream.sleeps.sleeping)
    await with_timeout(upstream.supervisor.end())
    await with_timeout(upstream.supervisor.end())
    assert not upstream.sleeps.sleeping


async def test_concurrent_ends_finish_calls() -> None:
    """The second must not interrupt how the first lets go: who waits for an answer is told."""

    async with Streamable("session") as server:
        for turns in range(12):
            upstream = SupervisorHarness(ServerConfig(url=server.url()))
            upstream.supervisor.begin()
            await upstream.ready()
            call, held = upstream.start("hold"), len(server.toolbox.pending_calls)
            await server.until(lambda held=held: len(server.toolbox.pending_calls) > held)
            first = asyncio.ensure_future(upstream.supervisor.end())
            for _ in range(turns):
                await asyncio.sleep(0)
            await with_timeout(asyncio.gather(first, upstream.supervisor.end()))
            with pytest.raises(UpstreamLostError):
                await with_timeout(call)


async def test_unanswered_delete_delays_end_briefly() -> None:
    async with Streamable("session") as server:

        async def override(request: Request, response: ResponseWriter) -> bool:
            return request.method == "DELETE"

        server.override = override
        async with run_supervisor(ServerConfig(url=server.url())) as upstream:
            await upstream.ready()
