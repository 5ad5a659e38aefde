"""Data of one caller or client is never visible to another."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import mcp_types as types
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client

from interlock.core.config import AskConfig, ServerConfig
from interlock.core.upstreams import session_pool as private
from tests.behaviour.test_protocol_matrix import (
    HANG_TIMEOUT,
    call_json,
    complete,
    fill_in,
    over_a_pipe,
)
from tests.support.http_client import initialize, message
from tests.support.node import HttpSession, NodeThread
from tests.support.upstreams import open_files

TOKENS = {"operator": "a-secret", "auditor": "b-secret"}


@pytest.fixture(scope="module")
def shared_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeThread]:
    """A node with two callers, before a server that remembers and one that everybody shares."""
    with complete("session", "web") as web:
        servers = {"web": ServerConfig(url=web), "pipe": over_a_pipe("session", "pipe")}
        node = NodeThread(
            tmp_path_factory.mktemp("shared"), workshops={}, servers=servers, tokens=TOKENS
        )
        yield node
        node.stop()


def bearer(caller: str) -> tuple[str, str]:
    return ("Authorization", f"Bearer {TOKENS[caller]}")


@asynccontextmanager
async def client_of(
    node: NodeThread, caller: str, mode: str = "legacy", **settings: Any
) -> AsyncIterator[Client]:
    async with create_mcp_http_client(headers=dict([bearer(caller)])) as http:
        transport = streamable_http_client(node.url, http_client=http)
        async with Client(transport, mode=mode, cache=None, **settings) as client:
            yield client


def roots_of(name: str) -> Callable[[Any], Any]:
    async def roots(context: Any) -> Any:
        return types.ListRootsResult(roots=[types.Root(uri=f"file:///{name}")])  # type: ignore[arg-type]

    return roots


def test_server_state_is_separate_per_client(shared_node: NodeThread) -> None:
    async def body() -> None:
        async with (
            client_of(shared_node, "operator") as first,
            client_of(shared_node, "operator") as second,
            client_of(shared_node, "auditor") as other,
            client_of(shared_node, "operator", "auto") as stateless,
            client_of(shared_node, "auditor", "auto") as other_stateless,
        ):
            clients = {
                "first": first, "second": second, "other": other,
                "stateless": stateless, "other stateless": other_stateless,
            }  # fmt: skip
            for name, client in clients.items():
                await client.call_tool("web.remember", {"what": name})
            for name, client in clients.items():
                result = await client.call_tool("web.recall", {})
                assert result.content[0].text == name  # type: ignore[union-attr]

    asyncio.run(asyncio.wait_for(body(), HANG_TIMEOUT))


def test_client_request_outside_calls_reaches_its_session(shared_node: NodeThread) -> None:
    async def body() -> None:
        async with (
            client_of(shared_node, "operator", list_roots_callback=roots_of("first")) as first,
            client_of(shared_node, "operator", list_roots_callback=roots_of("second")) as second,
            client_of(shared_node, "auditor", list_roots_callback=roots_of("other")) as other,
            client_of(shared_node, "auditor") as unable,
        ):
            clients = {"first": first, "second": second, "other": other}
            for client in (*clients.values(), unable):
                await client.call_tool("web.later", {"what": "roots"})
            for name, client in clients.items():
                result = await call_json(client, "web.what_came_of_it")
                assert result == {"roots": [{"uri": f"file:///{name}"}]}
            assert "error" in await call_json(unable, "web.what_came_of_it")

    asyncio.run(asyncio.wait_for(body(), HANG_TIMEOUT))


def test_client_requests_outside_calls_can_be_forbidden(start_node: Any) -> None:
    async def asked(context: Any) -> Any:
        raise AssertionError("nobody may ask")

    with complete("session", "web") as web:
        config = ServerConfig(url=web, ask=AskConfig(roots="deny"))
        node = start_node(workshops={}, servers={"web": config}, tokens=TOKENS)

        async def body() -> None:
            async with client_of(node, "operator", list_roots_callback=asked) as client:
                await client.call_tool("web.later", {"what": "roots"})
                came = await call_json(client, "web.what_came_of_it")
                assert "does not allow roots requests of this server" in came["error"]

        asyncio.run(asyncio.wait_for(body(), HANG_TIMEOUT))


def test_log_messages_outside_calls_reach_their_session(shared_node: NodeThread) -> None:
    heard: dict[str, asyncio.Queue[str]] = {}

    def log_of(name: str) -> Callable[[Any], Any]:
        heard[name] = asyncio.Queue()

        async def log(params: types.LoggingMessageNotificationParams) -> None:
            heard[name].put_nowait(str(params.data))

        return log

    async def body() -> None:
        async with (
            client_of(shared_node, "operator", logging_callback=log_of("first")) as first,
            client_of(shared_node, "operator", logging_callback=log_of("second")) as second,
            client_of(shared_node, "auditor", logging_callback=log_of("other")) as other,
        ):
            clients = {"first": first, "second": second, "other": other}
            for name, client in clients.items():
                await client.call_tool("web.remember", {"what": name})
                await client.call_tool("web.later", {"what": "log"})
            for client in clients.values():
                await client.call_tool("web.what_came_of_it", {})
            for name in clients:
                assert await heard[name].get() == f"a secret of {name}"
            assert all(message.empty() for message in heard.values())

    asyncio.run(asyncio.wait_for(body(), HANG_TIMEOUT))


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_ambiguous_client_request_on_shared_connection_is_rejected(
    start_node: Any, mode: str
) -> None:
    servers = {"pipe": over_a_pipe("session", "pipe")}
    node = start_node(workshops={}, servers=servers, tokens=TOKENS)

    async def never(context: Any, params: Any) -> Any:
        raise AssertionError("asked the wrong one")

    async def body() -> None:
        async with (
            client_of(node, "operator", mode, elicitation_callback=never) as operator,
            client_of(node, "auditor", mode, elicitation_callback=fill_in) as auditor,
        ):
            result = await call_json(auditor, "pipe.ask", kind="form")
            assert result["form"]["action"] == "accept"
            begun = asyncio.Event()

            async def progress(*_: Any) -> None:
                begun.set()

            waiting = asyncio.create_task(
                operator.call_tool("pipe.wait", {"name": "operator"}, progress_callback=progress)  # type: ignore[arg-type]
            )
            await begun.wait()
            # The server is told at once, and its tool goes on.
            result = await call_json(auditor, "pipe.ask", kind="form")
            assert result["form"]["error"] == -32601
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)

    asyncio.run(asyncio.wait_for(body(), HANG_TIMEOUT))


def test_ambiguous_log_message_on_shared_connection_is_dropped(shared_node: NodeThread) -> None:
    messages: list[str] = []

    async def log(params: Any) -> None:
        messages.append(str(params.data))

    async def body() -> None:
        async with (
            client_of(shared_node, "operator", logging_callback=log) as operator,
            client_of(shared_node, "auditor", logging_callback=log) as auditor,
        ):
            begun = asyncio.Event()

            async def progress(*_: Any) -> None:
                begun.set()

            waiting = asyncio.create_task(
                operator.call_tool("pipe.wait", {"name": "operator"}, progress_callback=progress)  # type: ignore[arg-type]
            )
            await begun.wait()
            await auditor.call_tool("pipe.log", {})
            assert not messages
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)

    asyncio.run(asyncio.wait_for(body(), HANG_TIMEOUT))


# -- sessions of others


def test_session_belongs_to_its_caller(shared_node: NodeThread) -> None:
    mine = shared_node.session("2025-11-25", bearer("operator"))
    theirs = tuple(header for header in mine.headers if header[0] != "Authorization")
    body = message("tools/call", {"name": "web.recall", "arguments": {}}, 1)
    for credentials in ((), (bearer("auditor"),)):
        for request in (
            shared_node.http(body, *theirs, *credentials),
            shared_node.http(b"", *theirs, *credentials, method="GET"),
            shared_node.http(b"", *theirs, *credentials, method="DELETE"),
            shared_node.http(
                b'{"jsonrpc":"2.0","id":1,"result":{"roots":[]}}', *theirs, *credentials
            ),
        ):
            answer = shared_node.once(request)
            assert answer.status == (404 if credentials else 401)
    assert shared_node.once(mine.request("ping")).status == 200


def private_sessions(node: NodeThread) -> int:
    return node.do(lambda: len(node.node.upstreams.supervisors["web"].session_pool))


def call(session: HttpSession, tool: str) -> bytes:
    return session.request("tools/call", {"name": f"web.{tool}", "arguments": {}})


@pytest.mark.parametrize("method", ["deleted", "idle"])
def test_closed_client_session_closes_upstream_session(
    shared_node: NodeThread, method: str
) -> None:
    before = private_sessions(shared_node)
    session = shared_node.session("2025-11-25", bearer("operator"))
    assert shared_node.once(call(session, "recall")).status == 200
    assert private_sessions(shared_node) == before + 1
    if method == "deleted":
        assert shared_node.once(session.delete()).status == 200
    else:

        def let_time_pass() -> None:
            sessions = shared_node.node.sessions
            sessions.find(session.id).last_seen -= 10_000
            sessions._next_sweep = 0.0

        shared_node.do(let_time_pass)
        shared_node.once(
            shared_node.http(message("initialize", initialize("2025-11-25"), 0), bearer("auditor"))
        )
    shared_node.until(
        lambda: len(shared_node.node.upstreams.supervisors["web"].session_pool) == before,
        "it is closed",
    )
    assert shared_node.once(call(session, "recall")).status == 404


def test_limits_private_sessions(shared_node: NodeThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private, "MAX_SESSIONS", private_sessions(shared_node) + 2)
    for _ in range(6):
        session = shared_node.session("2025-11-25", bearer("operator"))
        assert "error" not in json.loads(shared_node.once(call(session, "recall")).body)
        assert private_sessions(shared_node) <= private.MAX_SESSIONS


def test_many_clients_leave_no_tasks_or_files(shared_node: NodeThread) -> None:
    def come_and_go(caller: str) -> None:
        session = shared_node.session("2025-11-25", bearer(caller))
        with shared_node.connect() as wire:
            assert b"nothing" in wire.request(call(session, "recall")).body
            assert wire.request(session.delete()).status == 200

    come_and_go("operator")
    supervisor = shared_node.node.upstreams.supervisors["web"]
    shared_node.until(lambda: not supervisor.session_pool._closing, "closed")
    sessions, before = len(shared_node.node.sessions), private_sessions(shared_node)
    tasks = shared_node.do(lambda: len(asyncio.all_tasks()))
    gc.collect()
    files = len(open_files())
    for number in range(200):
        come_and_go("operator" if number % 2 else "auditor")
    shared_node.until(lambda: not supervisor.session_pool._closing, "closed")
    assert private_sessions(shared_node) == before
    assert len(shared_node.node.sessions) == sessions
    shared_node.until(lambda: len(asyncio.all_tasks()) <= tasks + 1, "no task is left")
    gc.collect()
    assert len(open_files()) <= files + 2
