"""Log levels and subscriptions of a client, applied to its private session."""

from __future__ import annotations

import asyncio
import json

import msgspec
import pytest

from interlock.core.call import UpstreamLostError
from interlock.core.upstreams import session_pool as private
from interlock.protocol.mcp import META_LOG_LEVEL
from tests.core.upstreams.private_sessions import a_call, apart, client_session, send, sessions
from tests.core.upstreams.servers.http_server import Answer, Request, Streamable
from tests.core.upstreams.servers.toolbox import result
from tests.support.upstreams import StartedCall, run_supervisor, with_timeout

pytestmark = pytest.mark.usefixtures("no_leaks")


async def test_sets_chosen_log_level_when_session_opens() -> None:
    async with Streamable("session") as server:
        server.toolbox.capabilities["logging"] = {}
        levels: list[tuple[str, str]] = []

        async def habit(request: Request, answer: Answer) -> bool:
            if request.rpc == "logging/setLevel":
                level = request.message["params"]["level"]
                levels.append((request.headers["mcp-session-id"], level))
                answer.json(result(request.message["id"], {}))
                server.poke()
                return True
            return False

        server.habit = habit
        async with run_supervisor(apart(server)) as one:
            await one.ready()
            clients = sessions()
            first, second = client_session(clients), client_session(clients)
            first.log_level = "warning"
            one.supervisor.set_log_level("warning", first)
            await with_timeout(send(one, session=first))
            await with_timeout(send(one, session=second))
            await server.until(lambda: levels)
            second.log_level = "debug"
            one.supervisor.set_log_level("debug", second)
            await server.until(lambda: len(levels) == 2)
            assert levels == [("session-2", "warning"), ("session-3", "debug")]


def subscribed(server: Streamable) -> list[str]:
    """On which sessions a resource was subscribed to."""
    return [
        one.headers["mcp-session-id"] for one in server.requests if one.rpc == "resources/subscribe"
    ]


async def test_renews_subscriptions_in_new_session() -> None:
    async with Streamable("session", get="stream") as server, run_supervisor(apart(server)) as one:
        await one.ready()
        peers, followed, updates = one.supervisor.session_pool, [], []  # type: ignore[var-annotated]
        peers._watched = lambda key: tuple(followed)

        def updated(uri: str, key: private.SessionKey) -> None:
            updates.append((uri, key))
            one.poke()

        peers._on_updated = updated
        clients = sessions()
        session = client_session(clients)
        call = a_call(one, "echo", session)
        sent = StartedCall(one.supervisor, call, None)
        await with_timeout(sent)
        await with_timeout(peers.watch("a:1", call, sent))
        followed.append("a:1")
        assert subscribed(server) == ["session-2"]
        assert not updates
        server.forget_sessions()
        with pytest.raises(UpstreamLostError):
            await with_timeout(send(one, session=session))
        # Nobody has to call for it.
        await server.until(lambda: len(subscribed(server)) == 2)
        await one.until(lambda: updates)
        assert updates == [("a:1", session)]
        clients.close(session)
        await asyncio.gather(*peers._closing, return_exceptions=True)
        assert not len(peers)


async def test_failed_session_fails_subscription() -> None:
    async with Streamable("session") as server, run_supervisor(apart(server)) as one:
        await one.ready()

        async def habit(request: Request, answer: Answer) -> bool:
            if request.rpc == "initialize":
                answer.empty("503 Service Unavailable")
                return True
            return False

        server.habit = habit
        session = client_session(sessions())
        call = a_call(one, "echo", session)
        sent = StartedCall(one.supervisor, call, None)
        with pytest.raises(UpstreamLostError):
            await with_timeout(one.supervisor.session_pool.watch("a:1", call, sent))
        with pytest.raises(UpstreamLostError):
            await with_timeout(sent)
        assert not subscribed(server)


async def test_sets_log_level_of_stateless_client() -> None:
    async with Streamable("session") as server:
        server.toolbox.capabilities["logging"] = {}
        levels: list[str] = []

        async def habit(request: Request, answer: Answer) -> bool:
            if request.rpc != "logging/setLevel":
                return False
            levels.append(request.message["params"]["level"])
            answer.json(result(request.message["id"], {}))
            server.poke()
            return True

        server.habit = habit
        async with run_supervisor(apart(server)) as one:
            await one.ready()
            for wanted in (None, "warning", "error", "debug", "warning"):
                call = a_call(one, "echo", None)
                if wanted is not None:
                    call.meta = {META_LOG_LEVEL: msgspec.Raw(json.dumps(wanted).encode())}
                await with_timeout(StartedCall(one.supervisor, call, None))
            # Only ever more talkative: each caller hears what it asked for anyway.
            await server.until(lambda: len(levels) == 2)
            assert levels == ["warning", "debug"]
