"""Log levels and subscriptions of a client, applied to its private session."""

from __future__ import annotations

import asyncio
import json

import msgspec
import pytest

from interlock.core.call import UpstreamLostError
from interlock.core.upstreams import session_pool as private
from interlock.protocol.mcp import META_LOG_LEVEL
from tests.core.upstreams.private_sessions import (
    client_session,
    make_call,
    make_sessions,
    private_config,
    send,
)
from tests.core.upstreams.servers.http_server import Request, ResponseWriter, Streamable
from tests.core.upstreams.servers.toolbox import result
from tests.support.upstreams import StartedCall, run_supervisor, with_timeout

pytestmark = pytest.mark.usefixtures("no_leaks")


async def test_sets_chosen_log_level_when_session_opens() -> None:
    async with Streamable("session") as server:
        server.toolbox.capabilities["logging"] = {}
        levels: list[tuple[str, str]] = []

        async def override(request: Request, response: ResponseWriter) -> bool:
            if request.rpc == "logging/setLevel":
                level = request.message["params"]["level"]
                levels.append((request.headers["mcp-session-id"], level))
                response.json(result(request.message["id"], {}))
                server.notify_waiters()
                return True
            return False

        server.override = override
        async with run_supervisor(private_config(server)) as upstream:
            await upstream.ready()
            clients = make_sessions()
            first, second = client_session(clients), client_session(clients)
            first.log_level = "warning"
            upstream.supervisor.set_log_level("warning", first)
            await with_timeout(send(upstream, session=first))
            await with_timeout(send(upstream, session=second))
            await server.until(lambda: levels)
            second.log_level = "debug"
            upstream.supervisor.set_log_level("debug", second)
            await server.until(lambda: len(levels) == 2)
            assert levels == [("session-2", "warning"), ("session-3", "debug")]


def subscribed_sessions(server: Streamable) -> list[str]:
    """Return the sessions on which a resource was subscribed."""
    return [
        request.headers["mcp-session-id"]
        for request in server.requests
        if request.rpc == "resources/subscribe"
    ]


async def test_renews_subscriptions_in_new_session() -> None:
    async with (
        Streamable("session", get="stream") as server,
        run_supervisor(private_config(server)) as upstream,
    ):
        await upstream.ready()
        peers, followed, updates = upstream.supervisor.session_pool, [], []  # type: ignore[var-annotated]
        peers._watched = lambda key: tuple(followed)

        def updated(uri: str, key: private.SessionKey) -> None:
            updates.append((uri, key))
            upstream.notify_waiters()

        peers._on_updated = updated
        clients = make_sessions()
        session = client_session(clients)
        call = make_call(upstream, "echo", session)
        sent = StartedCall(upstream.supervisor, call, None)
        await with_timeout(sent)
        await with_timeout(peers.watch("a:1", call, sent))
        followed.append("a:1")
        assert subscribed_sessions(server) == ["session-2"]
        assert not updates
        server.forget_sessions()
        with pytest.raises(UpstreamLostError):
            await with_timeout(send(upstream, session=session))
        # Nobody has to call for it.
        await server.until(lambda: len(subscribed_sessions(server)) == 2)
        await upstream.until(lambda: updates)
        assert updates == [("a:1", session)]
        clients.close(session)
        await asyncio.gather(*peers._closing, return_exceptions=True)
        assert not len(peers)


async def test_failed_session_fails_subscription() -> None:
    async with Streamable("session") as server, run_supervisor(private_config(server)) as upstream:
        await upstream.ready()

        async def override(request: Request, response: ResponseWriter) -> bool:
            if request.rpc == "initialize":
                response.empty("503 Service Unavailable")
                return True
            return False

        server.override = override
        session = client_session(make_sessions())
        call = make_call(upstream, "echo", session)
        sent = StartedCall(upstream.supervisor, call, None)
        with pytest.raises(UpstreamLostError):
            await with_timeout(upstream.supervisor.session_pool.watch("a:1", call, sent))
        with pytest.raises(UpstreamLostError):
            await with_timeout(sent)
        assert not subscribed_sessions(server)


async def test_sets_log_level_of_stateless_client() -> None:
    async with Streamable("session") as server:
        server.toolbox.capabilities["logging"] = {}
        levels: list[str] = []

        async def override(request: Request, response: ResponseWriter) -> bool:
            if request.rpc != "logging/setLevel":
                return False
            levels.append(request.message["params"]["level"])
            response.json(result(request.message["id"], {}))
            server.notify_waiters()
            return True

        server.override = override
        async with run_supervisor(private_config(server)) as upstream:
            await upstream.ready()
            for requested in (None, "warning", "error", "debug", "warning"):
                call = make_call(upstream, "echo", None)
                if requested is not None:
                    call.meta = {META_LOG_LEVEL: msgspec.Raw(json.dumps(requested).encode())}
                await with_timeout(StartedCall(upstream.supervisor, call, None))
            # Only ever more talkative: each caller hears what it asked for anyway.
            await server.until(lambda: len(levels) == 2)
            assert levels == ["warning", "debug"]
