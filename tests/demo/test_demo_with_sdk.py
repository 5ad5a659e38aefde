"""The demo upstream as the official SDK's client sees it, in both eras, over real pipes."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta

import jsonschema_rs
import pytest
from mcp import Client, MCPError, StdioServerParameters
from mcp_types import CallToolResult, TextContent

from tests.support.timeouts import HANG_TIMEOUT

ERAS = [("legacy", "2025-11-25"), ("auto", "2026-07-28"), ("2026-07-28", "2026-07-28")]

pytestmark = pytest.mark.parametrize(("mode", "revision"), ERAS)


@asynccontextmanager
async def connected(mode: str) -> AsyncIterator[Client]:
    server = StdioServerParameters(
        command=sys.executable, args=["-m", "interlock.demo"], env=dict(os.environ)
    )
    async with Client(server, mode=mode) as client:
        yield client


def with_client(mode: str, body: Callable[[Client], Awaitable[None]]) -> None:
    async def run() -> None:
        async with connected(mode) as client:
            await asyncio.wait_for(body(client), HANG_TIMEOUT)

    asyncio.run(run())


def text_of(result: CallToolResult) -> str:
    (content,) = result.content
    assert isinstance(content, TextContent)
    return content.text


def test_introduces_itself(mode: str, revision: str) -> None:
    async def body(client: Client) -> None:
        assert client.protocol_version == revision
        if mode == revision:
            return  # a pinned client asks nothing before its first request
        assert client.server_info is not None
        assert client.server_info.name == "interlock-demo"
        assert client.server_capabilities.tools is not None
        assert client.instructions is not None

    with_client(mode, body)


def test_list_is_complete_and_correctly_annotated(mode: str, revision: str) -> None:
    async def body(client: Client) -> None:
        listing = await client.list_tools()
        tools = {tool.name: tool for tool in listing.tools}
        assert list(tools) == [
            "time_now",
            "roll_dice",
            "text_stats",
            "notes_list",
            "notes_read",
            "notes_add",
            "notes_delete",
            "count_slowly",
            "fail",
        ]
        writers = {"notes_add", "notes_delete"}
        for name, tool in tools.items():
            assert tool.title
            assert tool.description
            assert tool.annotations is not None
            assert tool.annotations.read_only_hint is (name not in writers)
            assert tool.annotations.open_world_hint is False
            jsonschema_rs.meta.validate(tool.input_schema)
            for argument in tool.input_schema["properties"].values():
                assert argument["description"]
            if name in writers:
                assert tool.annotations.destructive_hint is (name == "notes_delete")

    with_client(mode, body)


def test_results_match_output_schema(mode: str, revision: str) -> None:
    calls: dict[str, dict[str, object]] = {
        "time_now": {"timezone": "Europe/Zurich"},
        "roll_dice": {"sides": 20, "count": 3},
        "text_stats": {"text": "one two\nthree"},
        "notes_list": {},
        "notes_read": {"id": 1},
        "notes_add": {"title": "New", "text": "ä"},
        "notes_delete": {"id": 2},
        "count_slowly": {"to": 2, "delay_ms": 0},
    }

    async def body(client: Client) -> None:
        for tool in (await client.list_tools()).tools:
            if tool.name == "fail":
                assert tool.output_schema is None
                continue
            result = await client.call_tool(tool.name, calls[tool.name])
            assert not result.is_error
            assert text_of(result)
            assert tool.output_schema is not None
            jsonschema_rs.validate(tool.output_schema, result.structured_content)

    with_client(mode, body)


def test_tools_return_results(mode: str, revision: str) -> None:
    async def body(client: Client) -> None:
        now = (await client.call_tool("time_now", {"timezone": "Asia/Tokyo"})).structured_content
        assert datetime.fromisoformat(now["time"]).utcoffset() == timedelta(hours=9)
        dice = (await client.call_tool("roll_dice", {"sides": 2, "count": 50})).structured_content
        assert set(dice["rolls"]) <= {1, 2}
        assert dice["total"] == sum(dice["rolls"])
        assert len(dice["rolls"]) == 50
        stats = (await client.call_tool("text_stats", {"text": "a bcd\ne"})).structured_content
        assert stats == {"characters": 7, "words": 3, "lines": 2, "longest_word": "bcd"}

    with_client(mode, body)


def test_notes_are_added_read_and_deleted(mode: str, revision: str) -> None:
    async def body(client: Client) -> None:
        async def titles() -> list[str]:
            response = (await client.call_tool("notes_list", {})).structured_content
            return [note["title"] for note in response["notes"]]

        assert len(await titles()) == 2
        added = (
            await client.call_tool("notes_add", {"title": "T", "text": "x"})
        ).structured_content
        assert added == {"id": 3, "title": "T", "text": "x"}
        read = await client.call_tool("notes_read", {"id": 3})
        assert read.structured_content == added
        assert (await titles())[2] == "T"
        assert not (await client.call_tool("notes_delete", {"id": 3})).is_error
        assert len(await titles()) == 2
        again = await client.call_tool("notes_delete", {"id": 3})
        assert again.is_error
        assert text_of(again) == "There is no note 3. Existing notes: 1, 2."

    with_client(mode, body)


def test_bad_arguments_are_tool_errors(mode: str, revision: str) -> None:
    cases: list[tuple[str, dict[str, object], str]] = [
        ("time_now", {"timezone": "Mars/Olympus"}, "Unknown time zone 'Mars/Olympus'"),
        ("time_now", {"timezone": "../../etc/passwd"}, "Unknown time zone"),
        ("time_now", {"timezone": "Europe"}, "Unknown time zone"),
        ("time_now", {"timezone": ""}, "Unknown time zone"),
        ("time_now", {"zone": "UTC"}, "unknown field `zone`"),
        ("roll_dice", {"sides": 1}, "Argument `sides` of roll_dice"),
        ("roll_dice", {"sides": "six"}, "expected `int`, got `str`"),
        ("roll_dice", {"count": True}, "Argument `count`"),
        ("notes_read", {}, "missing required field `id`"),
        ("notes_add", {"title": ""}, "Argument `title`"),
        ("count_slowly", {"to": 1001}, "Argument `to`"),
        ("fail", {}, "fails on purpose: you asked for it"),
        ("fail", {"reason": "practice"}, "fails on purpose: practice"),
    ]

    async def body(client: Client) -> None:
        for name, arguments, said in cases:
            result = await client.call_tool(name, arguments)
            assert result.is_error
            assert said in text_of(result)

    with_client(mode, body)


def test_limits_notes(mode: str, revision: str) -> None:
    async def body(client: Client) -> None:
        for _ in range(998):
            assert not (await client.call_tool("notes_add", {"title": "more"})).is_error
        full = await client.call_tool("notes_add", {"title": "one too many"})
        assert full.is_error
        assert "Delete one first" in text_of(full)

    with_client(mode, body)


def test_unknown_tool_is_protocol_error(mode: str, revision: str) -> None:
    async def body(client: Client) -> None:
        with pytest.raises(MCPError, match="Unknown tool 'nope'") as error:
            await client.call_tool("nope", {})
        assert error.value.code == -32602

    with_client(mode, body)


def test_progress_arrives_in_order(mode: str, revision: str) -> None:
    async def body(client: Client) -> None:
        events: list[tuple[float, float | None, str | None]] = []

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            events.append((progress, total, message))

        result = await client.call_tool(
            "count_slowly", {"to": 4, "delay_ms": 1}, progress_callback=on_progress
        )
        assert result.structured_content == {"counted_to": 4}
        assert events == [(n, 4, f"Counted to {n} of 4") for n in (1, 2, 3, 4)]

    with_client(mode, body)


def test_cancelled_call_stops_without_affecting_others(mode: str, revision: str) -> None:
    async def body(client: Client) -> None:
        started = asyncio.Event()
        seen = 0

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            nonlocal seen
            seen += 1
            started.set()

        slow = asyncio.create_task(
            client.call_tool(
                "count_slowly", {"to": 1000, "delay_ms": 1}, progress_callback=on_progress
            )
        )
        await started.wait()
        slow.cancel()
        with pytest.raises(asyncio.CancelledError):
            await slow
        # The server reads in order: once this is answered, the cancellation has been served.
        await client.call_tool("notes_list", {})
        before = seen
        await client.call_tool("count_slowly", {"to": 20, "delay_ms": 1})
        assert seen == before

    with_client(mode, body)


def test_slow_calls_run_concurrently(mode: str, revision: str) -> None:
    async def body(client: Client) -> None:
        counts = [client.call_tool("count_slowly", {"to": n, "delay_ms": 1}) for n in range(1, 9)]
        results = await asyncio.gather(*counts, client.call_tool("notes_list", {}))
        done = [result.structured_content for result in results[:-1]]
        assert done == [{"counted_to": n} for n in range(1, 9)]

    with_client(mode, body)
