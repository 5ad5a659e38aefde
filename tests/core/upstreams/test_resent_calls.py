"""Calls whose upstream was lost, through a whole node: which calls are sent again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from interlock.app.node import Node
from interlock.core.call import Call, Client, Credentials, Outcome
from interlock.core.config import Config, JournalConfig, ServerConfig
from interlock.core.pipeline import pipeline as dispatch
from interlock.errors import UPSTREAM_LOST, UPSTREAM_UNAVAILABLE, InterlockError
from interlock.protocol.mcp import Era
from tests.core.upstreams.servers.http_server import Streamable
from tests.support.upstreams import stdio_server, text, with_timeout

pytestmark = pytest.mark.usefixtures("no_leaks")


@asynccontextmanager
async def node(server: ServerConfig, *, ready: bool = True) -> AsyncIterator[Node]:
    one = Node(
        Config(servers={"up": server}, journal=JournalConfig(enabled=False)), base_dir=Path.cwd()
    )
    one.start()
    try:
        if ready:
            assert await one.supervisor("up").wait_until_ready(20)
        yield one
    finally:
        await one.stop()


def begin(one: Node, tool: str, **arguments: Any) -> asyncio.Future[Outcome]:
    future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    def done(call: Call, outcome: Outcome | None, error: InterlockError | None) -> None:
        if error is not None:
            future.set_exception(error)
        else:
            assert outcome is not None
            future.set_result(outcome)

    call = Call(
        method="tools/call",
        server="test",
        credentials=Credentials("local"),
        client=Client(Era.SESSION, "2025-11-25"),
        name=f"up.{tool}",
        arguments=json.dumps(arguments).encode(),
        on_done=done,
    )
    one.pipeline.begin(call)
    return future


async def test_resends_calls_after_session_loss() -> None:
    async with Streamable("session") as server:
        async with node(ServerConfig(url=server.url(), connections=4)) as one:
            for turn in range(3):
                server.forget_sessions()
                executed = server.toolbox.calls
                calls = [begin(one, "echo", text=f"{turn}-{n}") for n in range(20)]
                for number, call in enumerate(calls):
                    assert text(await with_timeout(call)) == f"{turn}-{number}"
                # Each exactly once.
                assert server.toolbox.calls == executed + 20


async def test_possibly_executed_call_is_not_resent(tmp_path: Path) -> None:
    config = stdio_server("--starts", str(tmp_path / "starts"), effects={"moody": "mutating"})
    async with node(config) as one:
        with pytest.raises(InterlockError, match="ended by SIGKILL") as caught:
            await with_timeout(begin(one, "moody"))
        assert caught.value.failure is UPSTREAM_LOST
        # The next call waits for the next process.
        assert text(await with_timeout(begin(one, "moody"))) == "fine"


async def test_harmless_call_is_resent_once(tmp_path: Path) -> None:
    effects = {"moody": "read_only", "die": "read_only"}
    log = tmp_path / "starts"
    async with node(stdio_server("--starts", str(log), effects=effects)) as one:
        assert text(await with_timeout(begin(one, "moody"))) == "fine"
        assert len(log.read_text(encoding="utf-8").splitlines()) == 2
        with pytest.raises(InterlockError, match="ended by SIGKILL") as caught:
            await with_timeout(begin(one, "die"))
        assert caught.value.failure is UPSTREAM_LOST
        assert len(log.read_text(encoding="utf-8").splitlines()) == 3
        assert text(await with_timeout(begin(one, "echo", text="x"))) == "x"


async def test_waits_for_short_outage() -> None:
    server = Streamable("stateless")
    await server.start()
    async with node(ServerConfig(url=server.url())) as one:
        await server.stop()
        calls = [begin(one, "echo", text=str(n)) for n in range(5)]
        await asyncio.sleep(0)
        await server.start(server.port)
        for number, call in enumerate(calls):
            assert text(await with_timeout(call)) == str(number)
    await server.stop()


@pytest.mark.spec("AX-13.1-2", "AX-13.1-3")
async def test_lists_changed_tools_after_reconnect() -> None:
    server = Streamable("stateless")
    await server.start()
    async with node(ServerConfig(url=server.url(), unannotated="allow")) as one:
        changed = asyncio.Event()
        one.catalog.on_change(lambda *_: changed.set())
        old = {tool.canonical for tool in one.catalog.current.tools}
        assert "up.hold" in old
        await server.stop()
        schema = {"type": "object", "required": ["text"]}
        server.toolbox.tools = [{"name": "echo", "inputSchema": schema}]
        waiting = begin(one, "release")
        await server.start(server.port)
        await with_timeout(waiting)
        await with_timeout(changed.wait())
        (tool,) = one.catalog.current.tools
        assert tool.canonical == "up.echo"
        assert tool.input_schema() == schema
        assert text(await with_timeout(begin(one, "echo", text="x"))) == "x"
        with pytest.raises(InterlockError, match="hold"):
            await with_timeout(begin(one, "hold"))
    await server.stop()


@pytest.mark.spec("AX-13.2-4")
def test_default_grace_is_five_minutes() -> None:
    assert ServerConfig(url="http://127.0.0.1/mcp").grace == 300.0


async def test_reports_server_that_stays_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "RECONNECT_WAIT_SECONDS", 0.05)

    server = Streamable("stateless")
    await server.start()
    async with node(ServerConfig(url=server.url())) as one:
        await server.stop()
        with pytest.raises(InterlockError, match="refused") as caught:
            await with_timeout(begin(one, "echo", text="x"))
        assert caught.value.failure is UPSTREAM_UNAVAILABLE
