"""One contract over stdio, HTTP and SSE."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from interlock.core.call import UpstreamLostError
from tests.drivers.driver_remotes import SEGMENT, Remote, remote
from tests.drivers.driver_workspace import ANY, Running, Workspace, running, use_clock
from tests.support.clock import ManualClock

pytestmark = pytest.mark.usefixtures("no_leaks")

TRANSPORTS = pytest.mark.parametrize("transport", ["stdio", "http", "sse"])
WHY = {"type": "object", "properties": {"why": {"type": "string"}}, "required": ["why"]}


class TransportWorld:
    """A driver with a few contracts, whose server is here or there."""

    def __init__(self, folder: Path, transport: str) -> None:
        self.folder = folder
        self.transport = transport
        here = folder / "here"
        here.mkdir()
        self.workspace = Workspace(here)
        self.remote: Remote | None = None
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> TransportWorld:
        workspace = self.workspace
        block: dict[str, Any] = {}
        if self.transport != "stdio":
            self.remote = await self._stack.enter_async_context(
                remote(self.folder / "there", workspace.heard_file)
            )
            block = self.remote.block(self.transport)
        echo = workspace.contract()
        wrong = workspace.contract("text.wrong", inputs=WHY)
        slow = workspace.contract("text.slow", inputs=ANY)
        mapped: dict[str, Any] = {"argument_mapping": {"text": "message"}}
        workspace.driver(
            "echo-mcp",
            workspace.serves(echo, self.tool("echo"), **mapped),
            workspace.serves(wrong, self.tool("wrong")),
            workspace.serves(slow, self.tool("slow")),
            **block,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def tool(self, name: str) -> str:
        return name if self.transport == "stdio" else f"{SEGMENT}.{name}"


@TRANSPORTS
@pytest.mark.spec("DR-32.principles-4", "DR-32.transport-5")
async def test_contract_works_over_every_transport(tmp_path: Path, transport: str) -> None:
    async with TransportWorld(tmp_path, transport) as where, running(where.workspace) as node:
        workspace = where.workspace
        assert node.tools == ["text.echo", "text.slow", "text.wrong"]
        response = await node.call("text.echo", text="hello")
        assert response["said"] == "hello"
        assert (await node.call("text.echo", text="again"))["birth"] == response["birth"]
        called = workspace.heard("tools/call")
        assert [item["params"]["name"] for item in called] == ["echo", "echo"]
        assert called[0]["params"]["arguments"] == {"message": "hello"}
        error = await node.refused("text.echo", text=5)
        assert error.failure.name == "invalid_arguments"
        assert await node.failed("text.wrong", why="no luck") == ("upstream_error", "no luck")
        call = node.request("tools/call", "text.slow", {})
        waiting = asyncio.create_task(node.run(call))
        await node.until(lambda: len(workspace.heard("tools/call")) == 4, "the slow call")
        node.node.pipeline.cancel(call)
        await asyncio.gather(waiting, return_exceptions=True)
        await node.until(lambda: workspace.heard("notifications/cancelled"), "the word")
        rows = [row for _, row in await node.rows("driver.invoked")]
        assert {row["transport"] for row in rows} == {transport}
        kind = "binary" if transport == "stdio" else "remote"
        assert {row["server_kind"] for row in rows} == {kind}
        outcomes = [row["ok"] for row in rows]
        assert outcomes == [True, True, False, False]


@TRANSPORTS
async def test_missing_tool_is_detected_over_every_transport(
    tmp_path: Path, transport: str
) -> None:
    async with TransportWorld(tmp_path, transport) as where:
        workspace = where.workspace
        bad = workspace.contract("text.bad")
        block = {} if where.remote is None else where.remote.block(transport)
        workspace.driver("bad-mcp", workspace.serves(bad, "nowhere"), **block)
        async with running(workspace, workspace.config(verify="start")) as node:
            await node.until(lambda: node.status("bad-mcp").state == "refused", "its refusal")
            await node.until(lambda: "text.bad" not in node.tools, "the list without it")
            assert (await node.call("text.echo", text="x"))["said"] == "x"


@pytest.mark.spec("DR-32.transport-2")
async def test_sse_uses_one_stream_for_all_calls(tmp_path: Path) -> None:
    async with TransportWorld(tmp_path, "sse") as where, running(where.workspace) as node:
        texts = [f"text {number}" for number in range(10)]
        results = await asyncio.gather(*(node.call("text.echo", text=text) for text in texts))
        assert [item["said"] for item in results] == texts
        assert where.remote is not None
        assert where.remote.tap.said.count(b"GET /sse ") == 1


@pytest.mark.spec("DR-32.transport-3")
async def test_http_uses_one_request_per_call(tmp_path: Path) -> None:
    async with TransportWorld(tmp_path, "http") as where, running(where.workspace) as node:
        for number in range(5):
            await node.call("text.echo", text=str(number))
        assert where.remote is not None
        text = bytes(where.remote.tap.said)
        assert text.count(b'"method":"tools/call"') == 5
        posts = [item for item in text.split(b"POST /mcp ")[1:] if b'"tools/call"' in item]
        assert len(posts) == 5


@pytest.mark.spec("DR-32.transport-5")
async def test_sse_falls_back_to_streamable_http(tmp_path: Path) -> None:
    """An endpoint that refuses the older stream is spoken to over streamable HTTP."""

    async with TransportWorld(tmp_path, "http") as where:
        assert where.remote is not None
        workspace = where.workspace
        block = where.remote.block("http")
        workspace.driver(
            "echo-mcp",
            workspace.serves(
                "./tools/text.echo-1/TOOL.md",
                where.tool("echo"),
                argument_mapping={"text": "message"},
            ),
            **{**block, "transport": "sse"},
        )
        async with running(workspace) as node:
            assert (await node.call("text.echo", text="x"))["said"] == "x"
            text = bytes(where.remote.tap.said)
            assert b"GET /mcp " in text
            assert b"POST /mcp " in text


@pytest.mark.spec("DR-32.adapter-1")
@pytest.mark.parametrize("transport", ["http", "sse"])
async def test_broken_connection_is_reopened(tmp_path: Path, transport: str) -> None:
    async with TransportWorld(tmp_path, transport) as where, running(where.workspace) as node:
        await node.call("text.echo", text="one")
        assert where.remote is not None
        before = where.remote.tap.connections
        where.remote.tap.cut()
        assert (await _call_until(node, "two"))["said"] == "two"
        assert where.remote.tap.connections > before


async def _call_until(node: Running, text: str) -> Any:
    """Once it is noticed that the connection is gone, calls wait for the next."""
    health = node.driver().health
    assert health is not None
    for _ in range(5):
        try:
            return await node.call("text.echo", text=text)
        except UpstreamLostError:
            await node.until(lambda: not health.is_failing, "its return")
    raise AssertionError("it is still gone")


@pytest.mark.spec("DR-32.server-8", "DR-30.auth-2")
async def test_remote_server_receives_secret_and_wrong_secret_is_detected(
    tmp_path: Path,
) -> None:
    right, wrong = "the-right-key-0123456789", "a-wrong-key-0123456789"
    token = "tokens: [{name: driver, token: '${env:TOKEN}'}]\n"

    here = tmp_path / "here"
    here.mkdir()
    workspace = Workspace(here)
    clock = ManualClock()
    async with remote(tmp_path / "there", workspace.heard_file, more=token, TOKEN=right) as there:
        echo = workspace.contract()
        workspace.secrets({"slug": "far-key", "name": "Key", "description": "A key."})
        workspace.driver(
            "echo-mcp",
            workspace.serves(echo, f"{SEGMENT}.echo", argument_mapping={"text": "message"}),
            auth={
                "ref": "./SECRETS.md",
                "state": {"env": ["FAR_KEY"]},
                "expiry": {"detect": ["http_status:401"]},
            },
            **there.block("http"),
        )
        key = here / "key"
        config = workspace.config(secrets={"far-key": "${file:key}"})
        key.write_text(right)
        key.chmod(0o600)
        async with running(workspace, config, before=lambda node: use_clock(node, clock)) as node:
            assert (await node.call("text.echo", text="x"))["said"] == "x"
            assert f"Authorization: Bearer {right}".encode() in there.tap.said
            key.write_text(wrong)
            clock.advance(2)
            error = await node.refused("text.echo", text="y")
            assert error.failure.name == "auth_required"
            assert node.status().state == "unauthed"
            assert wrong not in error.message
