"""Changes of upstreams over HTTP: session streams, subscriptions and their failures."""

from __future__ import annotations

from typing import Any

import pytest

from interlock.core.config import ServerConfig
from interlock.core.upstreams.supervisor import State
from tests.core.upstreams.servers.http_server import Request, ResponseWriter, Streamable
from tests.core.upstreams.servers.toolbox import error, list_changed, result
from tests.support.upstreams import SupervisorHarness, run, run_supervisor, with_timeout

pytestmark = pytest.mark.usefixtures("no_leaks")

LOOPS = pytest.mark.parametrize("loop", ["uvloop", "asyncio"])


def count_listeners(server: Streamable) -> int:
    """Return how many open streams and subscriptions announce changes."""
    return len(server.toolbox.listeners) + len(server.streams)


def announcing_server(generations: str, **more: Any) -> Streamable:
    return Streamable(generations, get="stream", announces=True, **more)


def announce(server: Streamable) -> None:
    server.announce()
    server.toolbox.announce()


ERAS = pytest.mark.parametrize("generations", ["session", "stateless"])


@LOOPS
@ERAS
@pytest.mark.parametrize("chunked", [True, False])
def test_lists_again_after_change(generations: str, chunked: bool, loop: str) -> None:
    async def body() -> None:
        async with (
            announcing_server(generations, chunked=chunked) as server,
            announcing_server(generations) as other_server,
        ):
            async with (
                run_supervisor(ServerConfig(url=server.url()), key="a") as upstream,
                run_supervisor(ServerConfig(url=other_server.url()), key="b") as other,
            ):
                await upstream.ready()
                await other.ready()
                await server.until(lambda: count_listeners(server) == 1)
                for number in range(3):
                    server.toolbox.change("echo", f"new_{number}")
                    announce(server)
                    expected = ["echo", f"new_{number}"]
                    await upstream.until(lambda expected=expected: upstream.listed[-1] == expected)
                assert upstream.supervisor.lists == 4
                # Nobody else was asked.
                assert other.supervisor.lists == 1
                assert other_server.toolbox.lists == 1

    run(body, loop=loop)


@ERAS
async def test_stream_does_not_use_call_connection(generations: str) -> None:
    async with announcing_server(generations) as server:
        async with run_supervisor(ServerConfig(url=server.url(), connections=1)) as upstream:
            await upstream.ready()
            await server.until(lambda: count_listeners(server) == 1)
            for number in range(5):
                assert await upstream.text("echo", text=str(number)) == str(number)


@LOOPS
@ERAS
def test_reopens_broken_stream_and_lists_again(generations: str, loop: str) -> None:
    async def body() -> None:
        async with announcing_server(generations) as server:
            async with run_supervisor(ServerConfig(url=server.url())) as upstream:
                await upstream.ready()
                await server.until(lambda: count_listeners(server) == 1)
                upstream.sleeps.hold()
                # What happens while nobody hears is found out afterwards.
                server.toolbox.change("echo", "meanwhile")
                server.toolbox.listeners.clear()
                server.streams.clear()
                server.cut_connections()
                await upstream.until(lambda: upstream.sleeps.sleeping)
                assert upstream.sleeps.taken[-1] >= 1.0
                upstream.sleeps.wake(5)
                await upstream.until(lambda: upstream.listed[-1] == ["echo", "meanwhile"])
                await server.until(lambda: count_listeners(server) == 1)
                assert upstream.supervisor.restarts == 0
                server.toolbox.change("echo", "heard")
                announce(server)
                await upstream.until(lambda: upstream.listed[-1] == ["echo", "heard"])

    run(body, loop=loop)


async def test_renews_ended_subscription() -> None:
    async with announcing_server("stateless") as server:
        async with run_supervisor(ServerConfig(url=server.url())) as upstream:
            await upstream.ready()
            await server.until(lambda: count_listeners(server) == 1)
            server.toolbox.end_listening()
            await upstream.until(lambda: upstream.supervisor.lists >= 2)
            await server.until(lambda: count_listeners(server) == 1)
            server.toolbox.change("echo", "heard")
            announce(server)
            await upstream.until(lambda: upstream.listed[-1] == ["echo", "heard"])


async def test_increases_delay_between_streams() -> None:
    async with announcing_server("session") as server:

        async def override(request: Request, response: ResponseWriter) -> bool:
            if request.method == "GET":
                response.abort()
            return request.method == "GET"

        server.override = override
        upstream = SupervisorHarness(ServerConfig(url=server.url()))
        upstream.supervisor.begin()
        await upstream.until(lambda: len([nap for nap in upstream.sleeps.taken if nap >= 60]) >= 2)
        waits = [nap for nap in upstream.sleeps.taken if nap >= 1]
        assert waits[:6] == [2, 4, 8, 16, 32, 60]
        assert upstream.supervisor.state is State.READY
        await upstream.supervisor.end()


@pytest.mark.parametrize(
    "status",
    ["405 Method Not Allowed", "404 Not Found", "400 Bad Request", "403 Forbidden", "501 No"],
)
async def test_serves_session_server_without_stream(status: str) -> None:
    """Also 404: a server that has no such route is not one that forgot the session."""

    async with Streamable("session", get=status, announces=True) as server:
        async with run_supervisor(ServerConfig(url=server.url(), sessions="shared")) as upstream:
            await upstream.ready()
            await server.until(lambda: any(r.method == "GET" for r in server.requests))
            for number in range(5):
                assert await upstream.text("echo", text=str(number)) == str(number)
            gets = [r for r in server.requests if r.method == "GET"]
            assert len(gets) == 1
            assert upstream.supervisor.restarts == 0
            # It may still say so on the answer of a call.
            await upstream.text("change", names=["echo", "change"])
            await upstream.until(lambda: upstream.listed[-1] == ["echo", "change"])


async def test_serves_stateless_server_without_subscriptions() -> None:
    async with announcing_server("stateless") as server:

        async def override(request: Request, response: ResponseWriter) -> bool:
            if request.rpc == "subscriptions/listen":
                id = request.message["id"]
                response.json(error(id, -32601, "Method not found"), "404 Not Found")
            return request.rpc == "subscriptions/listen"

        server.override = override
        async with run_supervisor(ServerConfig(url=server.url())) as upstream:
            await upstream.ready()
            await server.until(
                lambda: any(r.rpc == "subscriptions/listen" for r in server.requests)
            )
            assert await upstream.text("echo", text="x") == "x"
            requests = [r for r in server.requests if r.rpc == "subscriptions/listen"]
            assert len(requests) == 1
            assert upstream.supervisor.restarts == 0
            message = requests[0].message["params"]
            assert message["notifications"] == {"toolsListChanged": True}


async def test_does_not_subscribe_without_announced_changes() -> None:
    async with Streamable("stateless", get="stream") as server:
        async with run_supervisor(ServerConfig(url=server.url())) as upstream:
            await upstream.ready()
            await upstream.text("echo", text="x")
        kinds = {(request.method, request.rpc) for request in server.requests}
        assert ("GET", "") not in kinds
        assert ("POST", "subscriptions/listen") not in kinds


async def test_opens_stream_without_announced_changes() -> None:
    """Questions, logs and updates come on the same stream."""

    async with Streamable("session", get="stream") as server:
        async with run_supervisor(ServerConfig(url=server.url())) as upstream:
            await upstream.ready()
            await server.until(lambda: server.streams)


async def test_pauses_between_repeated_changes() -> None:
    """It is read again and again, but never without a pause."""

    async with announcing_server("session", sse=True) as server:

        async def override(request: Request, response: ResponseWriter) -> bool:
            if request.rpc != "tools/list":
                return False
            response.open()
            response.event(list_changed())
            response.event(result(request.message["id"], {"tools": server.toolbox.tools}))
            response.end()
            return True

        server.override = override
        upstream = SupervisorHarness(ServerConfig(url=server.url()))
        upstream.sleeps.hold()
        upstream.supervisor.begin()
        await upstream.until(lambda: upstream.sleeps.sleeping)
        lists = upstream.supervisor.lists
        assert await upstream.text("echo", text="x") == "x"
        assert upstream.supervisor.lists == lists == 2
        upstream.sleeps.wake()
        await upstream.until(lambda: upstream.supervisor.lists == 3)
        await upstream.supervisor.end()


async def test_retries_failed_listing() -> None:
    async with announcing_server("session") as server:
        async with run_supervisor(ServerConfig(url=server.url())) as upstream:
            await upstream.ready()
            await server.until(lambda: count_listeners(server) == 1)
            refused = 3

            async def override(request: Request, response: ResponseWriter) -> bool:
                nonlocal refused
                if request.rpc != "tools/list" or not refused:
                    return False
                refused -= 1
                response.empty("503 Busy")
                return True

            server.override = override
            server.toolbox.change("echo", "in the end")
            announce(server)
            await upstream.until(lambda: upstream.listed[-1] == ["echo", "in the end"])
            assert upstream.sleeps.taken[:3] == pytest.approx([0.1, 0.2, 0.4])
            assert upstream.supervisor.state is State.READY


async def test_combines_many_changes_into_one_listing() -> None:
    async with announcing_server("session") as server:
        async with run_supervisor(ServerConfig(url=server.url())) as upstream:
            await upstream.ready()
            await server.until(lambda: count_listeners(server) == 1)
            upstream.sleeps.hold()
            server.toolbox.change("echo", "new")
            for _ in range(500):
                announce(server)
            await upstream.until(lambda: upstream.listed[-1] == ["echo", "new"])
            await upstream.text("echo", text="x")
            assert upstream.supervisor.lists <= 3


@LOOPS
@ERAS
def test_closes_streams_with_upstream(generations: str, loop: str) -> None:
    async def body() -> None:
        async with announcing_server(generations) as server:
            for _ in range(5):
                async with run_supervisor(ServerConfig(url=server.url())) as upstream:
                    await upstream.ready()
                    await server.until(lambda: count_listeners(server) >= 1)
                await with_timeout(server.until(lambda: server.open_connections == 0))
                server.toolbox.listeners.clear()
                server.streams.clear()

    run(body, loop=loop)
