"""Private sessions: one per client, with a limit and an end."""

from __future__ import annotations

import asyncio
import sys

import msgspec
import pytest

from interlock.core.call import Caller, UpstreamLostError
from interlock.core.config import ServerConfig
from interlock.core.server.mcp.sessions import HttpSession
from interlock.core.upstreams import session_pool as private
from interlock.errors import TOO_BUSY, UNKNOWN_SESSION, InterlockError
from interlock.protocol.mcp import Era
from tests.core.upstreams.private_sessions import (
    AUDITOR,
    OPERATOR,
    ROOTS,
    SAMPLING,
    client_session,
    make_sessions,
    opened_capabilities,
    private_config,
    send,
    session_of_calls,
)
from tests.core.upstreams.servers.http_server import Request, ResponseWriter, Streamable
from tests.support.upstreams import (
    child_pids,
    open_files,
    run_supervisor,
    stdio_server,
    text,
    with_timeout,
)

pytestmark = pytest.mark.usefixtures("no_leaks")


async def test_shares_sessions_by_client() -> None:
    async with Streamable("session") as server, run_supervisor(private_config(server)) as upstream:
        await upstream.ready()
        clients = make_sessions()
        first, second = client_session(clients), client_session(clients, capabilities=ROOTS)
        for session in (first, second, first):
            await with_timeout(send(upstream, session=session))
        # Two sessions of one caller, and neither is the node's own.
        assert session_of_calls(server) == ["session-2", "session-3", "session-2"]
        assert opened_capabilities(server)[1:] == [{"sampling": {}}, {"roots": {}}]
        for caller, capabilities in (
            (OPERATOR, SAMPLING),
            (OPERATOR, SAMPLING),
            (OPERATOR, ROOTS),
            (AUDITOR, SAMPLING),
            (AUDITOR, SAMPLING),
        ):
            await with_timeout(send(upstream, caller=caller, capabilities=capabilities))
        assert session_of_calls(server)[3:] == [
            "session-4",
            "session-4",
            "session-5",
            "session-6",
            "session-6",
        ]
        assert len(upstream.supervisor.session_pool) == 5


async def test_session_ends_with_client() -> None:
    async with (
        Streamable("session", get="stream") as server,
        run_supervisor(private_config(server)) as upstream,
    ):
        await upstream.ready()
        clients = make_sessions()
        first, second = client_session(clients), client_session(clients)
        for session in (first, second):
            await with_timeout(send(upstream, session=session))
        clients.close(first)
        await server.until(lambda: server.deleted)
        assert server.deleted == ["session-2"]
        assert text(await with_timeout(send(upstream, session=second, text="still"))) == "still"
        assert len(upstream.supervisor.session_pool) == 1
        assert not first.on_close
    # The rest goes when the node does.
    assert sorted(server.deleted) == ["session-1", "session-2", "session-3"]


@pytest.mark.parametrize("blocked_method", ["initialize", "notifications/initialized", "GET"])
async def test_client_leaving_during_opening_closes_session(blocked_method: str) -> None:
    async with (
        Streamable("session", get="stream") as server,
        run_supervisor(private_config(server)) as upstream,
    ):
        await upstream.ready()
        await server.until(lambda: server.streams)
        stuck: list[ResponseWriter] = []

        async def override(request: Request, response: ResponseWriter) -> bool:
            if blocked_method in (request.rpc, request.method):
                stuck.append(response)
                server.notify_waiters()
                return True
            return False

        server.override = override
        clients = make_sessions()
        session = client_session(clients)
        call = send(upstream, session=session)
        await server.until(lambda: stuck)
        call.exchange.abandon("The client is gone.")
        clients.close(session)
        # Before the server has said the session's name, there is nothing to end.
        if blocked_method != "initialize":
            await server.until(lambda: server.deleted)
            assert server.deleted == ["session-2"]
        assert not len(upstream.supervisor.session_pool)
        assert call.times_ended == 0
        assert not session_of_calls(server)
        server.override = None
        other = client_session(clients)
        assert text(await with_timeout(send(upstream, session=other, text="x"))) == "x"
        assert not session.on_close
        assert not session.on_roots_changed


async def test_ended_client_session_opens_nothing() -> None:
    async with Streamable("session") as server, run_supervisor(private_config(server)) as upstream:
        await upstream.ready()
        clients = make_sessions()
        session = client_session(clients)
        clients.close(session)
        with pytest.raises(InterlockError) as caught:
            send(upstream, session=session)
        assert caught.value.failure is UNKNOWN_SESSION
        assert not len(upstream.supervisor.session_pool)


async def test_limits_number_of_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private, "MAX_SESSIONS", 3)

    async with Streamable("session") as server, run_supervisor(private_config(server)) as upstream:
        await upstream.ready()
        clients = make_sessions()
        session = client_session(clients)
        await with_timeout(send(upstream, session=session))
        await with_timeout(send(upstream, caller=OPERATOR))
        await with_timeout(send(upstream, caller=AUDITOR))
        assert session_of_calls(server) == ["session-2", "session-3", "session-4"]
        # The oldest that remembers nobody goes, not that of a client which is still there.
        await with_timeout(send(upstream, caller=Caller("guest")))
        await server.until(lambda: server.deleted)
        assert server.deleted == ["session-3"]
        assert len(upstream.supervisor.session_pool) == 3
        # Whoever is busy is not disturbed.
        busy = [
            send(upstream, "hold", session=session),
            send(upstream, "hold", caller=AUDITOR),
            send(upstream, "hold", caller=Caller("guest")),
        ]
        await server.until(lambda: len(server.toolbox.pending_calls) == 3)
        with pytest.raises(InterlockError) as caught:
            send(upstream, caller=Caller("dave"))
        assert caught.value.failure is TOO_BUSY
        await with_timeout(send(upstream, "release", caller=AUDITOR))
        for call in busy:
            await with_timeout(call)
        await with_timeout(send(upstream, caller=Caller("dave")))


async def test_closes_idle_sessions() -> None:
    async with Streamable("session") as server, run_supervisor(private_config(server)) as upstream:
        await upstream.ready()
        now = 1_000.0
        peers = upstream.supervisor.session_pool
        peers._clock = lambda: now
        clients = make_sessions()
        await with_timeout(send(upstream, session=client_session(clients)))
        await with_timeout(send(upstream, caller=OPERATOR))
        busy = send(upstream, "hold", caller=AUDITOR)
        await server.until(lambda: server.toolbox.pending_calls)
        now += private.IDLE_TIMEOUT_SECONDS - 1
        peers._sweep()
        assert len(peers) == 3
        now += 2
        peers._sweep()
        await server.until(lambda: server.deleted)
        # That of a client which is there stays; so does one with a call under way.
        assert server.deleted == ["session-3"]
        assert len(peers) == 2
        await with_timeout(send(upstream, "release", caller=AUDITOR))
        await with_timeout(busy)


async def test_reopens_lost_session() -> None:
    async with Streamable("session") as server, run_supervisor(private_config(server)) as upstream:
        await upstream.ready()
        session = client_session(make_sessions())
        await with_timeout(send(upstream, session=session))
        for _ in range(3):
            server.forget_sessions()
            with pytest.raises(UpstreamLostError):
                await with_timeout(send(upstream, session=session))
            assert (
                text(await with_timeout(send(upstream, session=session, text="again"))) == "again"
            )
        # It is in nobody's way for that.
        assert len(session.on_close) == 1
        assert len(upstream.supervisor.session_pool) == 1


async def test_closing_session_does_not_close_new_session() -> None:
    """The end of the old one does not take the new one with it."""

    async with Streamable("session") as server, run_supervisor(private_config(server)) as upstream:
        await upstream.ready()
        stuck: list[ResponseWriter] = []

        async def override(request: Request, response: ResponseWriter) -> bool:
            if request.rpc == "initialize":
                stuck.append(response)
                server.notify_waiters()
                return True
            return False

        server.override = override
        waiting = send(upstream, caller=OPERATOR)
        await server.until(lambda: stuck)
        peers = upstream.supervisor.session_pool
        waiting.exchange.abandon("Nobody waits.")
        (key,) = peers._sessions
        peers._close(key)
        server.override = None
        again = send(upstream, caller=OPERATOR)
        await with_timeout(again)
        assert len(peers) == 1
        await with_timeout(send(upstream, caller=OPERATOR))
        assert len(set(session_of_calls(server))) == 1


async def test_failed_session_fails_calls() -> None:
    async with Streamable("session") as server, run_supervisor(private_config(server)) as upstream:
        await upstream.ready()

        async def override(request: Request, response: ResponseWriter) -> bool:
            if request.rpc == "initialize":
                response.empty("503 Service Unavailable")
                return True
            return False

        server.override = override
        session = client_session(make_sessions())
        calls = [send(upstream, session=session) for _ in range(3)]
        for call in calls:
            with pytest.raises(UpstreamLostError) as failed:
                await with_timeout(call)
            assert not failed.value.was_sent
        assert not len(upstream.supervisor.session_pool)
        assert not session.on_close


async def test_each_client_has_separate_process() -> None:
    server = msgspec.structs.replace(stdio_server("--eras", "session"), sessions="private")
    async with run_supervisor(server) as upstream:
        await upstream.ready()
        before = child_pids()
        clients = make_sessions()
        first, second = client_session(clients), client_session(clients)
        await with_timeout(send(upstream, session=first))
        await with_timeout(send(upstream, session=second))
        assert len(child_pids()) == len(before) + 2
        clients.close(first)
        clients.close(second)
        await asyncio.gather(*upstream.supervisor.session_pool._closing, return_exceptions=True)
        assert child_pids() == before


async def test_two_hundred_clients_leave_nothing_behind() -> None:
    async with (
        Streamable("session", get="stream") as server,
        run_supervisor(private_config(server)) as upstream,
    ):
        await upstream.ready()
        clients = make_sessions()

        async def come_and_go(number: int) -> None:
            session = client_session(clients, owner=f"caller-{number % 7}")
            message = text(await with_timeout(send(upstream, session=session, text=str(number))))
            assert message == str(number)
            clients.close(session)
            gone.append(session)

        gone: list[HttpSession] = []
        await server.until(lambda: server.streams)
        connections = server.open_connections
        await come_and_go(0)
        await server.until(lambda: len(server.deleted) == 1)
        await asyncio.gather(*upstream.supervisor.session_pool._closing, return_exceptions=True)
        await server.until(lambda: server.open_connections <= connections)
        files, tasks = len(open_files()), len(asyncio.all_tasks())
        for batch in range(20):
            await asyncio.gather(*(come_and_go(batch * 10 + place) for place in range(10)))
        await server.until(lambda: len(server.deleted) == 201)
        assert len(set(server.deleted)) == 201
        await asyncio.gather(*upstream.supervisor.session_pool._closing, return_exceptions=True)
        assert not len(upstream.supervisor.session_pool)
        await server.until(lambda: server.open_connections <= connections)
        assert len(open_files()) <= files
        assert len(asyncio.all_tasks()) <= tasks
        assert not any(session.on_close or session.on_roots_changed for session in gone)


async def test_stateless_process_is_private_too() -> None:
    config = ServerConfig(command=sys.executable, args=["-m", "interlock.demo"], sessions="private")
    async with run_supervisor(config) as upstream:
        await upstream.ready()
        assert upstream.supervisor.upstream_client is not None
        assert upstream.supervisor.upstream_client.era is Era.STATELESS
        await with_timeout(
            send(upstream, "notes_add", caller=OPERATOR, title="between us", text="x")
        )
        mine = text(await with_timeout(send(upstream, "notes_list", caller=OPERATOR)))
        others = text(await with_timeout(send(upstream, "notes_list", caller=AUDITOR)))
        assert "between us" in mine
        assert "between us" not in others
        assert len(upstream.supervisor.session_pool) == 2
