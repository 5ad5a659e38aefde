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
    apart,
    client_session,
    opened,
    send,
    sessions,
    used,
)
from tests.core.upstreams.servers.http_server import Answer, Request, Streamable
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
    async with Streamable("session") as server, run_supervisor(apart(server)) as one:
        await one.ready()
        clients = sessions()
        first, second = client_session(clients), client_session(clients, capabilities=ROOTS)
        for session in (first, second, first):
            await with_timeout(send(one, session=session))
        # Two sessions of one caller, and neither is the node's own.
        assert used(server) == ["session-2", "session-3", "session-2"]
        assert opened(server)[1:] == [{"sampling": {}}, {"roots": {}}]
        for caller, capabilities in (
            (OPERATOR, SAMPLING),
            (OPERATOR, SAMPLING),
            (OPERATOR, ROOTS),
            (AUDITOR, SAMPLING),
            (AUDITOR, SAMPLING),
        ):
            await with_timeout(send(one, caller=caller, capabilities=capabilities))
        assert used(server)[3:] == [
            "session-4",
            "session-4",
            "session-5",
            "session-6",
            "session-6",
        ]
        assert len(one.supervisor.session_pool) == 5


async def test_session_ends_with_client() -> None:
    async with Streamable("session", get="stream") as server, run_supervisor(apart(server)) as one:
        await one.ready()
        clients = sessions()
        first, second = client_session(clients), client_session(clients)
        for session in (first, second):
            await with_timeout(send(one, session=session))
        clients.close(first)
        await server.until(lambda: server.deleted)
        assert server.deleted == ["session-2"]
        assert text(await with_timeout(send(one, session=second, text="still"))) == "still"
        assert len(one.supervisor.session_pool) == 1
        assert not first.on_close
    # The rest goes when the node does.
    assert sorted(server.deleted) == ["session-1", "session-2", "session-3"]


@pytest.mark.parametrize("held", ["initialize", "notifications/initialized", "GET"])
async def test_client_leaving_during_opening_closes_session(held: str) -> None:
    async with Streamable("session", get="stream") as server, run_supervisor(apart(server)) as one:
        await one.ready()
        await server.until(lambda: server.streams)
        stuck: list[Answer] = []

        async def habit(request: Request, answer: Answer) -> bool:
            if held in (request.rpc, request.method):
                stuck.append(answer)
                server.poke()
                return True
            return False

        server.habit = habit
        clients = sessions()
        session = client_session(clients)
        call = send(one, session=session)
        await server.until(lambda: stuck)
        call.exchange.abandon("The client is gone.")
        clients.close(session)
        # Before the server has said the session's name, there is nothing to end.
        if held != "initialize":
            await server.until(lambda: server.deleted)
            assert server.deleted == ["session-2"]
        assert not len(one.supervisor.session_pool)
        assert call.times_settled == 0
        assert not used(server)
        server.habit = None
        other = client_session(clients)
        assert text(await with_timeout(send(one, session=other, text="x"))) == "x"
        assert not session.on_close
        assert not session.on_roots_changed


async def test_ended_client_session_opens_nothing() -> None:
    async with Streamable("session") as server, run_supervisor(apart(server)) as one:
        await one.ready()
        clients = sessions()
        session = client_session(clients)
        clients.close(session)
        with pytest.raises(InterlockError) as refused:
            send(one, session=session)
        assert refused.value.failure is UNKNOWN_SESSION
        assert not len(one.supervisor.session_pool)


async def test_limits_number_of_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private, "MAX_SESSIONS", 3)

    async with Streamable("session") as server, run_supervisor(apart(server)) as one:
        await one.ready()
        clients = sessions()
        session = client_session(clients)
        await with_timeout(send(one, session=session))
        await with_timeout(send(one, caller=OPERATOR))
        await with_timeout(send(one, caller=AUDITOR))
        assert used(server) == ["session-2", "session-3", "session-4"]
        # The oldest that remembers nobody goes, not that of a client which is still there.
        await with_timeout(send(one, caller=Caller("guest")))
        await server.until(lambda: server.deleted)
        assert server.deleted == ["session-3"]
        assert len(one.supervisor.session_pool) == 3
        # Whoever is busy is not disturbed.
        busy = [
            send(one, "hold", session=session),
            send(one, "hold", caller=AUDITOR),
            send(one, "hold", caller=Caller("guest")),
        ]
        await server.until(lambda: len(server.toolbox.held) == 3)
        with pytest.raises(InterlockError) as refused:
            send(one, caller=Caller("dave"))
        assert refused.value.failure is TOO_BUSY
        await with_timeout(send(one, "release", caller=AUDITOR))
        for call in busy:
            await with_timeout(call)
        await with_timeout(send(one, caller=Caller("dave")))


async def test_closes_idle_sessions() -> None:
    async with Streamable("session") as server, run_supervisor(apart(server)) as one:
        await one.ready()
        now = 1_000.0
        peers = one.supervisor.session_pool
        peers._clock = lambda: now
        clients = sessions()
        await with_timeout(send(one, session=client_session(clients)))
        await with_timeout(send(one, caller=OPERATOR))
        busy = send(one, "hold", caller=AUDITOR)
        await server.until(lambda: server.toolbox.held)
        now += private.IDLE_TIMEOUT_SECONDS - 1
        peers._sweep()
        assert len(peers) == 3
        now += 2
        peers._sweep()
        await server.until(lambda: server.deleted)
        # That of a client which is there stays; so does one with a call under way.
        assert server.deleted == ["session-3"]
        assert len(peers) == 2
        await with_timeout(send(one, "release", caller=AUDITOR))
        await with_timeout(busy)


async def test_reopens_lost_session() -> None:
    async with Streamable("session") as server, run_supervisor(apart(server)) as one:
        await one.ready()
        session = client_session(sessions())
        await with_timeout(send(one, session=session))
        for _ in range(3):
            server.forget_sessions()
            with pytest.raises(UpstreamLostError):
                await with_timeout(send(one, session=session))
            assert text(await with_timeout(send(one, session=session, text="again"))) == "again"
        # It is in nobody's way for that.
        assert len(session.on_close) == 1
        assert len(one.supervisor.session_pool) == 1


async def test_closing_session_does_not_close_new_session() -> None:
    """The end of the old one does not take the new one with it."""

    async with Streamable("session") as server, run_supervisor(apart(server)) as one:
        await one.ready()
        stuck: list[Answer] = []

        async def habit(request: Request, answer: Answer) -> bool:
            if request.rpc == "initialize":
                stuck.append(answer)
                server.poke()
                return True
            return False

        server.habit = habit
        waiting = send(one, caller=OPERATOR)
        await server.until(lambda: stuck)
        peers = one.supervisor.session_pool
        waiting.exchange.abandon("Nobody waits.")
        (key,) = peers._sessions
        peers._close(key)
        server.habit = None
        again = send(one, caller=OPERATOR)
        await with_timeout(again)
        assert len(peers) == 1
        await with_timeout(send(one, caller=OPERATOR))
        assert len(set(used(server))) == 1


async def test_failed_session_fails_calls() -> None:
    async with Streamable("session") as server, run_supervisor(apart(server)) as one:
        await one.ready()

        async def habit(request: Request, answer: Answer) -> bool:
            if request.rpc == "initialize":
                answer.empty("503 Service Unavailable")
                return True
            return False

        server.habit = habit
        session = client_session(sessions())
        calls = [send(one, session=session) for _ in range(3)]
        for call in calls:
            with pytest.raises(UpstreamLostError) as failed:
                await with_timeout(call)
            assert not failed.value.was_sent
        assert not len(one.supervisor.session_pool)
        assert not session.on_close


async def test_each_client_has_separate_process() -> None:
    server = msgspec.structs.replace(stdio_server("--eras", "session"), sessions="private")
    async with run_supervisor(server) as one:
        await one.ready()
        before = child_pids()
        clients = sessions()
        first, second = client_session(clients), client_session(clients)
        await with_timeout(send(one, session=first))
        await with_timeout(send(one, session=second))
        assert len(child_pids()) == len(before) + 2
        clients.close(first)
        clients.close(second)
        await asyncio.gather(*one.supervisor.session_pool._closing, return_exceptions=True)
        assert child_pids() == before


async def test_two_hundred_clients_leave_nothing_behind() -> None:
    async with Streamable("session", get="stream") as server, run_supervisor(apart(server)) as one:
        await one.ready()
        clients = sessions()

        async def come_and_go(number: int) -> None:
            session = client_session(clients, owner=f"caller-{number % 7}")
            said = text(await with_timeout(send(one, session=session, text=str(number))))
            assert said == str(number)
            clients.close(session)
            gone.append(session)

        gone: list[HttpSession] = []
        await server.until(lambda: server.streams)
        connections = server.open_connections
        await come_and_go(0)
        await server.until(lambda: len(server.deleted) == 1)
        await asyncio.gather(*one.supervisor.session_pool._closing, return_exceptions=True)
        await server.until(lambda: server.open_connections <= connections)
        files, tasks = len(open_files()), len(asyncio.all_tasks())
        for batch in range(20):
            await asyncio.gather(*(come_and_go(batch * 10 + place) for place in range(10)))
        await server.until(lambda: len(server.deleted) == 201)
        assert len(set(server.deleted)) == 201
        await asyncio.gather(*one.supervisor.session_pool._closing, return_exceptions=True)
        assert not len(one.supervisor.session_pool)
        await server.until(lambda: server.open_connections <= connections)
        assert len(open_files()) <= files
        assert len(asyncio.all_tasks()) <= tasks
        assert not any(session.on_close or session.on_roots_changed for session in gone)


async def test_stateless_process_is_private_too() -> None:
    config = ServerConfig(command=sys.executable, args=["-m", "interlock.demo"], sessions="private")
    async with run_supervisor(config) as one:
        await one.ready()
        assert one.supervisor.peer is not None
        assert one.supervisor.peer.era is Era.STATELESS
        await with_timeout(send(one, "notes_add", caller=OPERATOR, title="between us", text="x"))
        mine = text(await with_timeout(send(one, "notes_list", caller=OPERATOR)))
        others = text(await with_timeout(send(one, "notes_list", caller=AUDITOR)))
        assert "between us" in mine
        assert "between us" not in others
        assert len(one.supervisor.session_pool) == 2
