"""The raw upstream of the benchmarks, with the official SDK's client."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from bench.asking import ask_tools_list, fetch_json, tool_names
from bench.load import run_load
from bench.load_run import LoadPlan, LoadReport
from bench.processes import ROOT, python_environment
from bench.targets import Bench

LEGACY = "legacy"
STATELESS = "2026-07-28"


async def use(client: Client) -> tuple[list[str], str]:
    """List the tools and call one."""
    tools = await client.list_tools()
    result: Any = await client.call_tool("echo", {"text": "ünder → test", "n": 1})
    return [tool.name for tool in tools.tools], result.content[0].text


@pytest.mark.parametrize(
    ("generation", "mode"),
    [
        ("session", LEGACY),
        ("session", "auto"),
        ("stateless", STATELESS),
        ("stateless", "auto"),
        ("both", LEGACY),
        ("both", STATELESS),
        ("both", "auto"),
    ],
)
def test_sdk_client_works_over_http(tmp_path: Path, generation: str, mode: str) -> None:
    async def talk(port: int) -> tuple[list[str], str]:
        transport = streamable_http_client(f"http://127.0.0.1:{port}/mcp")
        async with Client(transport, mode=mode) as client:
            return await use(client)

    with Bench(tmp_path) as bench:
        _, port = bench.raw_upstream("--tools", "3", "--wire", generation)
        names, text = asyncio.run(talk(port))
    assert names == ["echo", "list_issue", "get_issue", "create_issue"]
    assert text == "ünder → test"


@pytest.mark.parametrize("mode", [LEGACY, STATELESS])
def test_sdk_client_works_over_stdio(mode: str) -> None:
    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "bench.raw_upstream", "--stdio", "--tools", "1"],
        env=python_environment(),
        cwd=ROOT,
    )

    async def talk() -> tuple[list[str], str]:
        async with Client(server, mode=mode) as client:
            return await use(client)

    names, text = asyncio.run(talk())
    assert names == ["echo", "list_issue"]
    assert text == "ünder → test"


@pytest.mark.parametrize("mode", ["session", "stateless"])
def test_load_generator_finds_no_errors(tmp_path: Path, mode: str) -> None:
    async def load(port: int) -> LoadReport:
        url = f"http://127.0.0.1:{port}/mcp"
        plan = LoadPlan(url=url, concurrency=8, calls=200, seconds=None, warmup_calls=8)
        plan.mode = "session" if mode == "session" else "stateless"
        return await run_load(plan)

    with Bench(tmp_path) as bench:
        _, port = bench.raw_upstream()
        report = asyncio.run(load(port))
    assert (report.calls, report.errors, report.lost) == (200, {}, 0)


def test_compares_lists_byte_for_byte(tmp_path: Path) -> None:
    async def load(port: int) -> LoadReport:
        plan = LoadPlan(
            url=f"http://127.0.0.1:{port}/mcp",
            kind="list",
            concurrency=4,
            calls=20,
            seconds=None,
            warmup_calls=1,
        )
        return await run_load(plan)

    with Bench(tmp_path) as bench:
        _, port = bench.raw_upstream("--tools", "3000")
        report = asyncio.run(load(port))
    assert (report.calls, report.errors, report.lost) == (20, {}, 0)


def test_notices_list_changed_under_load(tmp_path: Path) -> None:
    async def load(port: int) -> LoadReport:
        url = f"http://127.0.0.1:{port}/mcp"
        plan = LoadPlan(url=url, kind="list", concurrency=2, seconds=None, until_told=True)
        plan.warmup_calls, plan.error_limit = 1, 3
        loading = asyncio.create_task(run_load(plan))
        # The warm-up has learned the list once it was asked for twice.
        while (await asyncio.to_thread(list_requests, port)) < 2:
            assert not loading.done()
        await asyncio.to_thread(fetch_json, port, "POST", "/admin/change/mcp")
        return await loading

    with Bench(tmp_path) as bench:
        _, port = bench.raw_upstream("--changes")
        report = asyncio.run(load(port))
    assert set(report.errors) == {"wrong length"}


def list_requests(port: int) -> int:
    return int(fetch_json(port, "GET", "/admin/counts")["/mcp"]["lists"])


def test_announces_change_to_both_kinds_of_listeners(tmp_path: Path) -> None:
    async def listen(port: int) -> list[str]:
        reading: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        get = b"GET /mcp/1 HTTP/1.1\r\nhost: x\r\naccept: text/event-stream\r\n\r\n"
        body = b'{"jsonrpc":"2.0","id":"L","method":"subscriptions/listen","params":{"_meta":{}}}'
        post = b"POST /mcp/1 HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (
            len(body),
            body,
        )
        for request in (get, post):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request)
            await reader.readuntil(b"\r\n\r\n")
            reading.append((reader, writer))
        await reading[1][0].readuntil(b'"toolsListChanged":true}}}\n\n')
        await asyncio.to_thread(fetch_json, port, "POST", "/admin/change/mcp/1")
        received = []
        for reader, writer in reading:
            event = await reader.readuntil(b"}\n\n")
            received.append(event.split(b"data: ")[1].strip().decode())
            writer.close()
        return received

    with Bench(tmp_path) as bench:
        _, port = bench.raw_upstream("--changes", "--paths", "2", "--tools", "1")
        before = tool_names(ask_tools_list(port, "/mcp/1"))
        session, stateless = asyncio.run(listen(port))
        after = tool_names(ask_tools_list(port, "/mcp/1"))
        counts = fetch_json(port, "GET", "/admin/counts")
    assert session == '{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}'
    assert '"io.modelcontextprotocol/subscriptionId":"L"' in stateless
    assert set(after) - set(before) == {"get_issue"}
    assert {path: count["lists"] for path, count in counts.items()} == {"/mcp/0": 0, "/mcp/1": 2}
