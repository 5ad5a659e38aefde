"""Nothing of one caller, or of one client, is ever visible to another."""

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
from tests.behaviour.test_four_cells import HANG_TIMEOUT, complete, fill_in, over_a_pipe, told
from tests.support.http_client import initialize, message
from tests.support.node import HttpSession, NodeThread
from tests.support.upstreams import open_files

TOKENS = {"operator": "a-secret", "auditor": "b-secret"}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeThread]:
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


def test_what_a_server_remembers(shared: NodeThread) -> None:
    async def body() -> None:
        async with (
            client_of(shared, "operator") as first,
            client_of(shared, "operator") as second,
            client_of(shared, "auditor") as other,
            client_of(shared, "operator", "auto") as stateless,
            client_of(shared, "auditor", "auto") as other_stateless,
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


def test_questions_outside_any_call(shared: NodeThread) -> None:
    async def body() -> None:
        async with (
            client_of(shared, "operator", list_roots_callback=roots_of("first")) as first,
            client_of(shared, "operator", list_roots_callback=roots_of("second")) as second,
            client_of(shared, "auditor", list_roots_callback=roots_of("other")) as other,
            client_of(shared, "auditor") as unable,
        ):
            clients = {"first": first, "second": second, "other": other}
            for client in (*clients.values(), unable):
                await client.call_tool("web.later", {"what": "roots"})
            for name, client in clients.items():
                found = await told(client, "web.what_came_of_it")
                assert found == {"roots": [{"uri": f"file:///{name}"}]}
            assert "error" in await told(unable, "web.what_came_of_it")

    asyncio.run(asyncio.wait_for(body(), HANG_TIMEOUT))


def test_a_question_outside_any_call_may_be_forbidden(start_node: Any) -> None:
    async def asked(context: Any) -> Any:
        raise AssertionError("nobody may ask")

    with complete("session", "web") as web:
        config = ServerConfig(url=web, ask=AskConfig(roots="deny"))
        node = start_node(workshops={}, servers={"web": config}, tokens=TOKENS)

        async def body() -> None:
            async with client_of(node, "operator", list_roots_callback=asked) as client:
                await client.call_tool("web.later", {"what": "roots"})
                came = await told(client, "web.what_came_of_it")
                assert "does not allow roots requests of this server" in came["error"]

        asyncio.run(asyncio.wait_for(body(), HANG_TIMEOUT))


def test_logs_outside_any_call(shared: NodeThread) -> None:
    heard: dict[str, asyncio.Queue[str]] = {}

    def log_of(name: str) -> Callable[[Any], Any]:
        heard[name] = asyncio.Queue()

        async def log(params: types.LoggingMessageNotificationParams) -> None:
            heard[name].put_nowait(str(params.data))

        return log

    async def body() -> None:
        async with (
            client_of(shared, "operator", logging_callback=log_of("first")) as first,
            client_of(shared, "operator", logging_callback=log_of("second")) as second,
            client_of(shared, "auditor", logging_callback=log_of("other")) as other,
        ):
            clients = {"first": first, "second": second, "other": other}
            for name, client in clients.items():
                await client.call_tool("web.remember", {"what": name})
                await client.call_tool("web.later", {"what": "log"})
            for client in clients.values():
                await client.call_tool("web.what_came_of_it", {})
            for name in clients:
                assert await heard[name].get() == f"a secret of {name}"
            assert all(one.empty() for one in heard.values())

    asyncio.run(asyncio.wait_for(body(), HANG_TIMEOUT))


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_a_question_on_a_shared_channel_that_could_be_anothers(start_node: Any, mode: str) -> None:
    servers = {"pipe": over_a_pipe("session", "pipe")}
    node = start_node(workshops={}, servers=servers, tokens=TOKENS)

    async def never(context: Any, params: Any) -> Any:
        raise AssertionError("asked the wrong one")

    async def body() -> None:
        async with (
            client_of(node, "operator", mode, elicitation_callback=never) as operator,
            client_of(node, "auditor", mode, elicitation_callback=fill_in) as auditor,
        ):
            found = await told(auditor, "pipe.ask", kind="form")
            assert found["form"]["action"] == "accept"
            begun = asyncio.Event()

            async def progress(*_: Any) -> None:
                begun.set()

            waiting = asyncio.create_task(
                operator.call_tool("pipe.wait", {"name": "operator"}, progress_callback=progress)  # type: ignore[arg-type]
            )
            await begun.wait()
            # The server is told at once, and its tool goes on.
            found = await told(auditor, "pipe.ask", kind="form")
            assert found["form"]["error"] == -32601
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)

    asyncio.run(asyncio.wait_for(body(), HANG_TIMEOUT))


def test_logs_on_a_shared_channel_that_could_be_anothers(shared: NodeThread) -> None:
    heard: list[str] = []

    async def log(params: Any) -> None:
        heard.append(str(params.data))

    async def body() -> None:
        async with (
            client_of(shared, "operator", logging_callback=log) as operator,
            client_of(shared, "auditor", logging_callback=log) as auditor,
        ):
            begun = asyncio.Event()

            async def progress(*_: Any) -> None:
                begun.set()

            waiting = asyncio.create_task(
                operator.call_tool("pipe.wait", {"name": "operator"}, progress_callback=progress)  # type: ignore[arg-type]
            )
            await begun.wait()
            await auditor.call_tool("pipe.log", {})
            assert not heard
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)

    asyncio.run(asyncio.wait_for(body(), HANG_TIMEOUT))


# -- sessions of others


def test_a_session_is_of_no_use_to_anybody_else(shared: NodeThread) -> None:
    mine = shared.session("2025-11-25", bearer("operator"))
    theirs = tuple(one for one in mine.headers if one[0] != "Authorization")
    body = message("tools/call", {"name": "web.recall", "arguments": {}}, 1)
    for credentials in ((), (bearer("auditor"),)):
        for request in (
            shared.http(body, *theirs, *credentials),
            shared.http(b"", *theirs, *credentials, method="GET"),
            shared.http(b"", *theirs, *credentials, method="DELETE"),
            shared.http(b'{"jsonrpc":"2.0","id":1,"result":{"roots":[]}}', *theirs, *credentials),
        ):
            answer = shared.once(request)
            assert answer.status == (404 if credentials else 401)
    assert shared.once(mine.request("ping")).status == 200


def private_sessions(node: NodeThread) -> int:
    return node.do(lambda: len(node.node.upstreams.supervisors["web"].session_pool))


def call(session: HttpSession, tool: str) -> bytes:
    return session.request("tools/call", {"name": f"web.{tool}", "arguments": {}})


@pytest.mark.parametrize("how", ["deleted", "idle"])
def test_a_clients_session_takes_its_upstream_session_with_it(shared: NodeThread, how: str) -> None:
    before = private_sessions(shared)
    session = shared.session("2025-11-25", bearer("operator"))
    assert shared.once(call(session, "recall")).status == 200
    assert private_sessions(shared) == before + 1
    if how == "deleted":
        assert shared.once(session.delete()).status == 200
    else:

        def let_time_pass() -> None:
            sessions = shared.node.sessions
            sessions.find(session.id).last_seen -= 10_000
            sessions._next_sweep = 0.0

        shared.do(let_time_pass)
        shared.once(
            shared.http(message("initialize", initialize("2025-11-25"), 0), bearer("auditor"))
        )
    shared.until(
        lambda: len(shared.node.upstreams.supervisors["web"].session_pool) == before, "it is closed"
    )
    assert shared.once(call(session, "recall")).status == 404


def test_no_more_sessions_than_there_may_be(
    shared: NodeThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(private, "MAX_SESSIONS", private_sessions(shared) + 2)
    for _ in range(6):
        session = shared.session("2025-11-25", bearer("operator"))
        assert "error" not in json.loads(shared.once(call(session, "recall")).body)
        assert private_sessions(shared) <= private.MAX_SESSIONS


def test_two_hundred_clients_come_and_go(shared: NodeThread) -> None:
    def come_and_go(caller: str) -> None:
        session = shared.session("2025-11-25", bearer(caller))
        with shared.connect() as wire:
            assert b"nothing" in wire.ask(call(session, "recall")).body
            assert wire.ask(session.delete()).status == 200

    come_and_go("operator")
    supervisor = shared.node.upstreams.supervisors["web"]
    shared.until(lambda: not supervisor.session_pool._closing, "closed")
    sessions, before = len(shared.node.sessions), private_sessions(shared)
    tasks = shared.do(lambda: len(asyncio.all_tasks()))
    gc.collect()
    files = len(open_files())
    for number in range(200):
        come_and_go("operator" if number % 2 else "auditor")
    shared.until(lambda: not supervisor.session_pool._closing, "closed")
    assert private_sessions(shared) == before
    assert len(shared.node.sessions) == sessions
    shared.until(lambda: len(asyncio.all_tasks()) <= tasks + 1, "no task is left")
    gc.collect()
    assert len(open_files()) <= files + 2
