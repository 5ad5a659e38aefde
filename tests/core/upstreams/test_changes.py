"""Changes of upstreams over HTTP: session streams, subscriptions and their failures."""

from __future__ import annotations

from typing import Any

import pytest

from interlock.core.config import ServerConfig
from interlock.core.upstreams.supervisor import State
from tests.core.upstreams.servers.http_server import Answer, Request, Streamable
from tests.core.upstreams.servers.toolbox import changed, error, result
from tests.support.upstreams import SupervisorHarness, run, run_supervisor, with_timeout

pytestmark = pytest.mark.usefixtures("no_leaks")

LOOPS = pytest.mark.parametrize("loop", ["uvloop", "asyncio"])


def listening(server: Streamable) -> int:
    """How many ways there are to tell the node of a change."""
    return len(server.toolbox.listeners) + len(server.streams)


def announcing(eras: str, **more: Any) -> Streamable:
    return Streamable(eras, get="stream", announces=True, **more)


def tell(server: Streamable) -> None:
    server.announce()
    server.toolbox.announce()


ERAS = pytest.mark.parametrize("eras", ["session", "stateless"])


@LOOPS
@ERAS
@pytest.mark.parametrize("chunked", [True, False])
def test_lists_again_after_change(eras: str, chunked: bool, loop: str) -> None:
    async def body() -> None:
        async with announcing(eras, chunked=chunked) as server, announcing(eras) as other_server:
            async with (
                run_supervisor(ServerConfig(url=server.url()), key="a") as one,
                run_supervisor(ServerConfig(url=other_server.url()), key="b") as other,
            ):
                await one.ready()
                await other.ready()
                await server.until(lambda: listening(server) == 1)
                for number in range(3):
                    server.toolbox.change("echo", f"new_{number}")
                    tell(server)
                    expected = ["echo", f"new_{number}"]
                    await one.until(lambda expected=expected: one.listed[-1] == expected)
                assert one.supervisor.lists == 4
                # Nobody else was asked.
                assert other.supervisor.lists == 1
                assert other_server.toolbox.lists == 1

    run(body, loop=loop)


@ERAS
async def test_stream_does_not_use_call_connection(eras: str) -> None:
    async with announcing(eras) as server:
        async with run_supervisor(ServerConfig(url=server.url(), connections=1)) as one:
            await one.ready()
            await server.until(lambda: listening(server) == 1)
            for number in range(5):
                assert await one.text("echo", text=str(number)) == str(number)


@LOOPS
@ERAS
def test_reopens_broken_stream_and_lists_again(eras: str, loop: str) -> None:
    async def body() -> None:
        async with announcing(eras) as server:
            async with run_supervisor(ServerConfig(url=server.url())) as one:
                await one.ready()
                await server.until(lambda: listening(server) == 1)
                one.naps.hold()
                # What happens while nobody hears is found out afterwards.
                server.toolbox.change("echo", "meanwhile")
                server.toolbox.listeners.clear()
                server.streams.clear()
                server.cut()
                await one.until(lambda: one.naps.sleeping)
                assert one.naps.taken[-1] >= 1.0
                one.naps.wake(5)
                await one.until(lambda: one.listed[-1] == ["echo", "meanwhile"])
                await server.until(lambda: listening(server) == 1)
                assert one.supervisor.restarts == 0
                server.toolbox.change("echo", "heard")
                tell(server)
                await one.until(lambda: one.listed[-1] == ["echo", "heard"])

    run(body, loop=loop)


async def test_renews_ended_subscription() -> None:
    async with announcing("stateless") as server:
        async with run_supervisor(ServerConfig(url=server.url())) as one:
            await one.ready()
            await server.until(lambda: listening(server) == 1)
            server.toolbox.end_listening()
            await one.until(lambda: one.supervisor.lists >= 2)
            await server.until(lambda: listening(server) == 1)
            server.toolbox.change("echo", "heard")
            tell(server)
            await one.until(lambda: one.listed[-1] == ["echo", "heard"])


async def test_increases_delay_between_streams() -> None:
    async with announcing("session") as server:

        async def habit(request: Request, answer: Answer) -> bool:
            if request.method == "GET":
                answer.abort()
            return request.method == "GET"

        server.habit = habit
        one = SupervisorHarness(ServerConfig(url=server.url()))
        one.supervisor.begin()
        await one.until(lambda: len([nap for nap in one.naps.taken if nap >= 60]) >= 2)
        waits = [nap for nap in one.naps.taken if nap >= 1]
        assert waits[:6] == [2, 4, 8, 16, 32, 60]
        assert one.supervisor.state is State.READY
        await one.supervisor.end()


@pytest.mark.parametrize(
    "status",
    ["405 Method Not Allowed", "404 Not Found", "400 Bad Request", "403 Forbidden", "501 No"],
)
async def test_serves_session_server_without_stream(status: str) -> None:
    """Also 404: a server that has no such route is not one that forgot the session."""

    async with Streamable("session", get=status, announces=True) as server:
        async with run_supervisor(ServerConfig(url=server.url(), sessions="shared")) as one:
            await one.ready()
            await server.until(lambda: any(r.method == "GET" for r in server.requests))
            for number in range(5):
                assert await one.text("echo", text=str(number)) == str(number)
            gets = [r for r in server.requests if r.method == "GET"]
            assert len(gets) == 1
            assert one.supervisor.restarts == 0
            # It may still say so on the answer of a call.
            await one.text("change", names=["echo", "change"])
            await one.until(lambda: one.listed[-1] == ["echo", "change"])


async def test_serves_stateless_server_without_subscriptions() -> None:
    async with announcing("stateless") as server:

        async def habit(request: Request, answer: Answer) -> bool:
            if request.rpc == "subscriptions/listen":
                id = request.message["id"]
                answer.json(error(id, -32601, "Method not found"), "404 Not Found")
            return request.rpc == "subscriptions/listen"

        server.habit = habit
        async with run_supervisor(ServerConfig(url=server.url())) as one:
            await one.ready()
            await server.until(
                lambda: any(r.rpc == "subscriptions/listen" for r in server.requests)
            )
            assert await one.text("echo", text="x") == "x"
            asked = [r for r in server.requests if r.rpc == "subscriptions/listen"]
            assert len(asked) == 1
            assert one.supervisor.restarts == 0
            message = asked[0].message["params"]
            assert message["notifications"] == {"toolsListChanged": True}


async def test_does_not_subscribe_without_announced_changes() -> None:
    async with Streamable("stateless", get="stream") as server:
        async with run_supervisor(ServerConfig(url=server.url())) as one:
            await one.ready()
            await one.text("echo", text="x")
        kinds = {(request.method, request.rpc) for request in server.requests}
        assert ("GET", "") not in kinds
        assert ("POST", "subscriptions/listen") not in kinds


async def test_opens_stream_without_announced_changes() -> None:
    """Questions, logs and updates come on the same stream."""

    async with Streamable("session", get="stream") as server:
        async with run_supervisor(ServerConfig(url=server.url())) as one:
            await one.ready()
            await server.until(lambda: server.streams)


async def test_pauses_between_repeated_changes() -> None:
    """It is read again and again, but never without a pause."""

    async with announcing("session", sse=True) as server:

        async def habit(request: Request, answer: Answer) -> bool:
            if request.rpc != "tools/list":
                return False
            answer.open()
            answer.event(changed())
            answer.event(result(request.message["id"], {"tools": server.toolbox.tools}))
            answer.end()
            return True

        server.habit = habit
        one = SupervisorHarness(ServerConfig(url=server.url()))
        one.naps.hold()
        one.supervisor.begin()
        await one.until(lambda: one.naps.sleeping)
        lists = one.supervisor.lists
        assert await one.text("echo", text="x") == "x"
        assert one.supervisor.lists == lists == 2
        one.naps.wake()
        await one.until(lambda: one.supervisor.lists == 3)
        await one.supervisor.end()


async def test_retries_failed_listing() -> None:
    async with announcing("session") as server:
        async with run_supervisor(ServerConfig(url=server.url())) as one:
            await one.ready()
            await server.until(lambda: listening(server) == 1)
            refused = 3

            async def habit(request: Request, answer: Answer) -> bool:
                nonlocal refused
                if request.rpc != "tools/list" or not refused:
                    return False
                refused -= 1
                answer.empty("503 Busy")
                return True

            server.habit = habit
            server.toolbox.change("echo", "in the end")
            tell(server)
            await one.until(lambda: one.listed[-1] == ["echo", "in the end"])
            assert one.naps.taken[:3] == pytest.approx([0.1, 0.2, 0.4])
            assert one.supervisor.state is State.READY


async def test_combines_many_changes_into_one_listing() -> None:
    async with announcing("session") as server:
        async with run_supervisor(ServerConfig(url=server.url())) as one:
            await one.ready()
            await server.until(lambda: listening(server) == 1)
            one.naps.hold()
            server.toolbox.change("echo", "new")
            for _ in range(500):
                tell(server)
            await one.until(lambda: one.listed[-1] == ["echo", "new"])
            await one.text("echo", text="x")
            assert one.supervisor.lists <= 3


@LOOPS
@ERAS
def test_closes_streams_with_upstream(eras: str, loop: str) -> None:
    async def body() -> None:
        async with announcing(eras) as server:
            for _ in range(5):
                async with run_supervisor(ServerConfig(url=server.url())) as one:
                    await one.ready()
                    await server.until(lambda: listening(server) >= 1)
                await with_timeout(server.until(lambda: server.open_connections == 0))
                server.toolbox.listeners.clear()
                server.streams.clear()

    run(body, loop=loop)
