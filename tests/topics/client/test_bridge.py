"""Tests of the bridge to an unmodified server of the official SDK."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

from interlock.core.config import ServerConfig
from interlock.errors import (
    DEADLINE_EXCEEDED,
    METHOD_NOT_FOUND,
    UPSTREAM_LOST,
    UPSTREAM_UNAVAILABLE,
    InterlockError,
)
from interlock.topics.client.bridge import Bridge
from interlock.topics.client.tools import progress_reporter
from interlock.topics.wire.payloads import Request
from tests.support.upstreams import with_timeout

pytestmark = pytest.mark.usefixtures("no_leaks")

OFFICIAL = Path(__file__).parents[2] / "behaviour" / "servers" / "official.py"


def server(era: str = "both", **more: Any) -> ServerConfig:
    return ServerConfig(command=sys.executable, args=[str(OFFICIAL), "stdio", era], **more)


def request(method: str, context: str = "", **params: Any) -> Request:
    return Request(Raw(b'"room-1"'), method, context, Raw(json.dumps(params).encode()))


def call(tool: str, **arguments: Any) -> Request:
    return request("tools/call", tool, name=tool, arguments=arguments)


@pytest.mark.parametrize("era", ["both", "older"])
async def test_forwards_requests_to_server(era: str) -> None:
    bridge = Bridge(server(era), name="official")
    assert not bridge.can_handle("tools/list", "")
    async with bridge.running():
        said = json.loads(await bridge.handle(call("echo", text="hé")))
        assert said["content"][0]["text"] == "hé"
        # Nothing of the newer wire, which rooms do not speak.
        assert "resultType" not in said
        listed = json.loads(await bridge.handle(request("tools/list")))
        names = {tool["name"] for tool in listed["tools"]}
        assert {"echo", "add", "report"} <= names
        assert bridge.tools == len(names)
        read = await bridge.handle(request("resources/read", "note://today", uri="note://today"))
        assert json.loads(read)["contents"][0]["text"] == "Nothing to do."
        assert await bridge.handle(request("ping")) == b"{}"
    with pytest.raises(InterlockError) as ended:
        await bridge.handle(call("echo", text="x"))
    assert ended.value.failure is UPSTREAM_UNAVAILABLE


async def test_returns_server_info_and_usable_capabilities() -> None:
    bridge = Bridge(server(), name="official")
    async with bridge.running():
        asked = request("initialize", protocolVersion="2025-06-18", capabilities={})
        said = json.loads(await bridge.handle(asked))
    assert said["protocolVersion"] == "2025-06-18"
    assert said["serverInfo"]["name"] == "official"
    assert said["instructions"] == "Be kind."
    assert said["capabilities"].keys() >= {"tools", "resources", "prompts"}
    assert "logging" not in said["capabilities"]
    assert "tasks" not in said["capabilities"]


async def test_supports_only_methods_of_server() -> None:
    bridge = Bridge(server())
    async with bridge.running():
        assert bridge.can_handle("tools/call", "echo")
        assert not bridge.can_handle("tools/call", "format_disk")
        assert bridge.can_handle("resources/read", "note://today")
        assert bridge.can_handle("tools/list", "")
        for method in (
            "sampling/createMessage",
            "tasks/get",
            "mcpax/confirm",
            "logging/setLevel",
        ):
            assert not bridge.can_handle(method, "")
            with pytest.raises(InterlockError) as unknown:
                await bridge.handle(request(method))
            assert unknown.value.failure is METHOD_NOT_FOUND


async def test_passes_errors_of_server() -> None:
    bridge = Bridge(server())
    async with bridge.running():
        failed = json.loads(await bridge.handle(call("refuse", why="not today")))
        assert failed["isError"]
        assert "refuse" in failed["content"][0]["text"]
        with pytest.raises(InterlockError) as missing:
            await bridge.handle(request("resources/read", "nowhere:", uri="nowhere:x"))
        assert missing.value.message


async def test_forwards_progress() -> None:
    told: list[tuple[float, float, str]] = []
    bridge = Bridge(server())
    async with bridge.running():
        progress_reporter.set(lambda *report: told.append(report))
        said = request(
            "tools/call",
            "report",
            name="report",
            arguments={"steps": 2},
            _meta={"progressToken": "of the room"},
        )
        await bridge.handle(said)
    assert told == [(1.0, 2.0, "step 1"), (2.0, 2.0, "step 2")]


async def test_cancellation_reaches_server() -> None:
    begun = asyncio.Event()
    bridge = Bridge(server())
    async with bridge.running():
        progress_reporter.set(lambda *_: begun.set())
        task = asyncio.ensure_future(bridge.handle(call("wait_for_ever")))
        await with_timeout(begun.wait())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # The server was told, and has time for others.
        assert json.loads(await bridge.handle(call("add", a=1)))["structuredContent"] == {"sum": 2}


async def test_timeout_ends_request() -> None:
    bridge = Bridge(server(timeout=0.05), name="slow")
    async with bridge.running():
        with pytest.raises(InterlockError) as late:
            await bridge.handle(call("wait_for_ever"))
        assert late.value.failure is DEADLINE_EXCEEDED
        assert "slow did not respond" in late.value.message


async def test_forwards_list_changes() -> None:
    changed: asyncio.Queue[str] = asyncio.Queue()
    bridge = Bridge(server())
    async with bridge.running():
        bridge.on_change = changed.put_nowait
        assert not bridge.can_handle("tools/call", "sing")
        await bridge.handle(call("learn", name="sing"))
        said = await with_timeout(changed.get())
        assert said == "notifications/tools/list_changed"
        assert bridge.can_handle("tools/call", "sing")


async def test_restarts_lost_server() -> None:
    changed: asyncio.Queue[str] = asyncio.Queue()
    code = (
        "import os, sys\n"
        f"sys.path.insert(0, {str(OFFICIAL.parent)!r})\n"
        "import official\n"
        "official.server.add_tool(lambda: os._exit(1), name='die')\n"
        "official.server.run()\n"
    )
    bridge = Bridge(ServerConfig(command=sys.executable, args=["-c", code]), name="mortal")
    async with bridge.running():
        bridge.on_change = changed.put_nowait
        with pytest.raises(InterlockError) as lost:
            await bridge.handle(call("die"))
        assert lost.value.failure is UPSTREAM_LOST
        await with_timeout(changed.get())
        assert json.loads(await bridge.handle(call("echo", text="back")))["content"]


async def test_names_program_that_cannot_start() -> None:
    bridge = Bridge(ServerConfig(command="/no/such/program"), name="nowhere")
    with pytest.raises(InterlockError) as failed:
        async with bridge.running():
            raise AssertionError
    assert failed.value.failure is UPSTREAM_UNAVAILABLE
    assert "/no/such/program" in failed.value.message
