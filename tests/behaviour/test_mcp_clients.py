"""The official SDK's client in both protocol generations, with a node before servers of both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, MCPError
from mcp_types import CallToolResult, Implementation, TextContent

from interlock.core.config import ServerConfig
from tests.behaviour.conftest import UPSTREAMS
from tests.support.command_line import DEMO, CommandLine, NodeProcess
from tests.support.node import NodeThread
from tests.support.timeouts import HANG_TIMEOUT
from tests.support.tool_server import ToolServer, tool

MODES = {"auto": "2026-07-28", "legacy": "2025-11-25"}

both_modes = pytest.mark.parametrize("mode", MODES)
every_upstream = pytest.mark.parametrize("upstream", UPSTREAMS)


def with_client(
    node: NodeThread | NodeProcess,
    mode: str,
    body: Callable[[Client], Awaitable[None]],
    **settings: Any,
) -> None:
    async def run() -> None:
        # A list is asked for anew each time: what is tested is the node, not the client's cache.
        async with asyncio.timeout(HANG_TIMEOUT):
            async with Client(node.url, mode=mode, cache=None, **settings) as client:
                await body(client)

    asyncio.run(run())


@asynccontextmanager
async def open_client(
    node: NodeThread | NodeProcess, mode: str, **settings: Any
) -> AsyncIterator[Client]:
    async with asyncio.timeout(HANG_TIMEOUT):
        async with Client(node.url, mode=mode, cache=None, **settings) as client:
            yield client


def text_of(result: Any) -> str:
    assert isinstance(result, CallToolResult)
    (content,) = result.content
    assert isinstance(content, TextContent)
    return content.text


# -- all combinations of eras


@pytest.mark.spec("AX-1.1-1", "AX-3.1-1")
@both_modes
async def test_lists_tools_of_all_servers(four: NodeThread, mode: str) -> None:
    async with open_client(four, mode) as client:
        assert client.protocol_version == MODES[mode]
        assert client.server_info is not None
        assert client.server_info.name == "interlock"
        names = [tool.name for tool in (await client.list_tools()).tools]
        own = ["add", "echo", "learn", "refuse", "report", "wait_for_ever"]
        for segment in UPSTREAMS:
            assert [name for name in names if name.startswith(f"{segment}__")][:6] == [
                f"{segment}__{name}" for name in own
            ]
        assert len(names) == len(set(names))


@pytest.mark.spec("ST-4.4.2-12")
def test_each_upstream_uses_its_protocol_generation(four: NodeThread) -> None:
    status = four.do(four.node.status)
    assert {upstream.key: upstream.revision for upstream in status.upstreams} == {
        segment: "2026-07-28" if era == "both" else "2025-11-25"
        for segment, (_, era) in UPSTREAMS.items()
    }


@pytest.mark.spec("AX-1.1-1", "ST-4.4.2-12")
@both_modes
@every_upstream
async def test_tool_calls_work(four: NodeThread, mode: str, upstream: str) -> None:
    async with open_client(four, mode) as client:
        assert text_of(await client.call_tool(f"{upstream}.echo", {"text": "Grüezi"})) == "Grüezi"
        result = await client.call_tool(f"{upstream}.add", {"a": 2, "b": 3})
        assert result.structured_content == {"sum": 5}
        # The name that it is listed under, and a default.
        result = await client.call_tool(f"{upstream}__add", {"a": 2})
        assert result.structured_content == {"sum": 3}
        refused = await client.call_tool(f"{upstream}.refuse", {"why": "no"})
        assert refused.is_error
        assert "refuse" in text_of(refused)


@both_modes
@every_upstream
async def test_progress_reaches_client(four: NodeThread, mode: str, upstream: str) -> None:
    async with open_client(four, mode) as client:
        messages: list[Any] = []

        async def hear(progress: float, total: float | None, message: str | None) -> None:
            messages.append((progress, total, message))

        result = await client.call_tool(f"{upstream}.report", {"steps": 3}, progress_callback=hear)
        assert text_of(result) == "reported"
        assert messages == [(step, 3, f"step {step}") for step in (1, 2, 3)]


@both_modes
@every_upstream
def test_cancelled_call_ends(four: NodeThread, mode: str, upstream: str) -> None:
    async def body(client: Client) -> None:
        waiting = asyncio.Event()

        async def hear(progress: float, total: float | None, message: str | None) -> None:
            waiting.set()

        call = asyncio.create_task(
            client.call_tool(f"{upstream}.wait_for_ever", {}, progress_callback=hear)
        )
        await waiting.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        # The client and the upstream are as good as before.
        assert text_of(await client.call_tool(f"{upstream}.echo", {"text": "on"})) == "on"

    with_client(four, mode, body)
    four.until(lambda: not list(four.node.pipeline.running_calls()), "the end of the call")


@both_modes
@every_upstream
async def test_invalid_arguments_are_reported(four: NodeThread, mode: str, upstream: str) -> None:
    async with open_client(four, mode) as client:
        result = await client.call_tool(f"{upstream}.add", {"a": "two"})
        assert result.is_error
        assert "a:" in text_of(result)


@both_modes
async def test_unknown_tool_is_reported(four: NodeThread, mode: str) -> None:
    async with open_client(four, mode) as client:
        with pytest.raises(MCPError) as error:
            await client.call_tool("web.ecko", {})
        assert error.value.code == -32602
        assert "web.echo" in str(error.value)
        # The session, where there is one, goes on.
        assert text_of(await client.call_tool("web.echo", {"text": "on"})) == "on"


@both_modes
async def test_unsupported_methods_are_reported(four: NodeThread, mode: str) -> None:
    async with open_client(four, mode) as client:
        with pytest.raises(MCPError) as error:
            await client.get_prompt("nope", {})
        assert error.value.code == -32602
        assert text_of(await client.call_tool("web.echo", {"text": "on"})) == "on"


@both_modes
async def test_concurrent_calls_work(four: NodeThread, mode: str) -> None:
    async with open_client(four, mode) as client:
        calls = [
            client.call_tool(f"{upstream}.echo", {"text": f"{upstream} {number}"})
            for number in range(8)
            for upstream in UPSTREAMS
        ]
        results = await asyncio.gather(*calls)
        assert [text_of(result) for result in results] == [
            f"{upstream} {number}" for number in range(8) for upstream in UPSTREAMS
        ]


@pytest.mark.spec("ST-4.4.3-6")
@both_modes
async def test_clients_connect_and_disconnect(four: NodeThread, mode: str) -> None:
    async with open_client(four, mode) as stays:
        for _ in range(3):
            async with Client(four.url, mode=mode) as goes:
                assert text_of(await goes.call_tool("pipe.echo", {"text": "hi"})) == "hi"
            assert text_of(await stays.call_tool("pipe.echo", {"text": "on"})) == "on"


@pytest.mark.spec("AX-4.1-6")
@both_modes
async def test_unknown_client_sees_names_without_dots(four: NodeThread, mode: str) -> None:
    async with open_client(four, mode) as client:
        names = [tool.name for tool in (await client.list_tools()).tools]
        assert "web__echo" in names
        assert not any("." in name for name in names)
        assert text_of(await client.call_tool("web__echo", {"text": "hi"})) == "hi"


@both_modes
async def test_client_without_model_sees_canonical_names(four: NodeThread, mode: str) -> None:
    async with open_client(
        four, mode, client_info=Implementation(name="inspector-client", version="2")
    ) as client:
        names = [tool.name for tool in (await client.list_tools()).tools]
        assert "web.echo" in names
        assert text_of(await client.call_tool("web.echo", {"text": "hi"})) == "hi"


# -- changes


@pytest.mark.spec("ST-4.4.2-5")
@both_modes
@pytest.mark.parametrize("era", ["session", "stateless"])
def test_tool_list_change_reaches_client(start_node: Any, mode: str, era: str) -> None:
    shop = ToolServer(era)
    node = start_node(workshops={"shop": shop})
    shop.wait_for(lambda: shop._listening, "the node to listen")

    async def names(client: Client) -> list[str]:
        return [tool.name for tool in (await client.list_tools()).tools]

    async def stateless(client: Client) -> None:
        async with client.listen(tools_list_changed=True) as subscription:
            assert subscription.honored.tools_list_changed
            node.do(lambda: shop.offer("fresh"))
            async for _ in subscription:
                break
            assert await names(client) == ["shop__fresh"]
            assert text_of(await client.call_tool("shop.fresh", {})) == "fresh"
            with pytest.raises(MCPError):
                await client.call_tool("shop.echo", {"text": "gone"})

    heard = asyncio.Event()

    async def hear(message: Any) -> None:
        if getattr(message, "method", "") == "notifications/tools/list_changed":
            heard.set()

    async def session(client: Client) -> None:
        # The stream on which it hears of changes is opened beside its other requests.
        await asyncio.to_thread(
            node.until, lambda: len(node.node._change_listeners) == 1, "a listener"
        )
        node.do(lambda: shop.offer("fresh"))
        await heard.wait()
        assert await names(client) == ["shop__fresh"]
        assert text_of(await client.call_tool("shop.fresh", {})) == "fresh"

    with_client(node, mode, stateless if mode == "auto" else session, message_handler=hear)


@both_modes
@pytest.mark.parametrize("segment", ["pipe", "web"])
async def test_added_tool_of_official_server_is_called(
    start_node: Any, server_for: Any, mode: str, segment: str
) -> None:
    node = start_node(workshops={}, servers={segment: server_for(segment)})
    name = f"{segment}_{mode}"

    async with open_client(node, mode) as client:
        assert text_of(await client.call_tool(f"{segment}.learn", {"name": name})) == "learnt"
        await asyncio.to_thread(
            node.until, lambda: node.node.catalog.current.resolve(f"{segment}.{name}"), "the tool"
        )
        assert text_of(await client.call_tool(f"{segment}.{name}", {})) == name


@pytest.mark.spec("ST-4.4.2-9")
@both_modes
async def test_changed_schema_applies_at_once(start_node: Any, mode: str) -> None:
    node = start_node()
    shop = node.shop
    shop.wait_for(lambda: shop._listening, "the node to listen")

    async with open_client(node, mode) as client:
        assert not (await client.call_tool("shop.echo", {})).is_error

        def demand() -> None:
            shop.tools = [tool("echo", "text", text={"type": "string"}), tool("new")]
            shop.announce()

        node.do(demand)
        await asyncio.to_thread(
            node.until, lambda: node.node.catalog.current.resolve("shop.new"), "the new list"
        )
        assert (await client.call_tool("shop.echo", {})).is_error
        assert not (await client.call_tool("shop.echo", {"text": "x"})).is_error


@pytest.mark.spec("AX-5.1-1", "ST-4.4.4-5")
@both_modes
def test_unchanged_list_is_requested_once(start_node: Any, mode: str) -> None:
    node = start_node()

    async def body(client: Client) -> None:
        for _ in range(100):
            assert len((await client.list_tools()).tools) == len(node.shop.tools)

    with_client(node, mode, body)
    assert len(node.shop.find_received("tools/list")) == 1


# -- cancelling


@both_modes
@pytest.mark.parametrize("era", ["session", "stateless"])
async def test_cancellation_reaches_upstream(start_node: Any, mode: str, era: str) -> None:
    shop = ToolServer(era)
    node = start_node(workshops={"shop": shop})

    async with open_client(node, mode) as client:
        call = asyncio.create_task(client.call_tool("shop.hold", {"text": "c"}))
        held = await asyncio.to_thread(shop.wait_for_hold, "c")
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        if era == "session":
            heard = lambda: shop.find_received("notifications/cancelled", requestId=held)  # noqa: E731
        else:
            heard = lambda: held in shop.hung_up  # type: ignore[assignment, return-value]  # noqa: E731
        await asyncio.to_thread(shop.wait_for, heard, "the cancellation")


# -- the real program


@pytest.mark.spec("AX-1.1-1")
@both_modes
def test_up_serves_demo(tmp_path: Path, mode: str) -> None:
    world = CommandLine(tmp_path)
    world.config({"demo": DEMO})
    try:
        program = world.up()
        program.pids()

        async def body(client: Client) -> None:
            assert client.protocol_version == MODES[mode]
            names = [tool.name for tool in (await client.list_tools()).tools]
            assert "demo__time_now" in names
            assert "demo__notes_delete" in names
            result = await client.call_tool("demo.text_stats", {"text": "one two"})
            assert result.structured_content is not None
            assert result.structured_content["words"] == 2

        with_client(program, mode, body)
    finally:
        world.close()


# -- a tree of nodes


@pytest.mark.spec("AX-1-3")
@both_modes
def test_chained_nodes_work(start_node: Any, mode: str) -> None:
    edge = start_node()
    region = start_node(
        workshops={"local": ToolServer()}, servers={"edge": ServerConfig(url=edge.url)}
    )
    root = start_node(
        workshops={"here": ToolServer()}, servers={"region": ServerConfig(url=region.url)}
    )

    async def body(client: Client) -> None:
        names = [tool.name for tool in (await client.list_tools()).tools]
        assert "here__echo" in names
        assert "region__local_echo" in names
        (deep,) = [name for name in names if name.endswith("shop_echo")]
        assert text_of(await client.call_tool(deep, {"text": "down there"})) == "down there"

        messages: list[float] = []

        async def hear(progress: float, total: float | None, message: str | None) -> None:
            messages.append(progress)

        report = deep.replace("echo", "report")
        await client.call_tool(report, {"steps": 3}, progress_callback=hear)
        assert messages == [1, 2, 3]

    with_client(root, mode, body)
    assert len(edge.shop.calls("echo")) == 1


# -- credentials


@pytest.mark.spec("AX-1.1-8")
def test_caller_token_is_not_forwarded(start_node: Any) -> None:
    shop = ToolServer()
    node = start_node(
        workshops={"shop": shop}, tokens={"clerk": "clerks-own", "up": "for-the-shop"}
    )
    guarded = ServerConfig(url=shop.url, headers={"Authorization": "Bearer ${env:T_up}"})
    node.wait(node.node.apply(node.config(servers={"shop": guarded})))
    node.wait(node.node.until_settled(10))
    token = ("Authorization", "Bearer clerks-own")
    shop.received.clear()
    shop.headers.clear()
    assert node.once(node.call("echo", {"text": "x"}, 1, token)).status == 200
    assert node.once(node.session("2025-11-25", token).call("echo", {"text": "x"})).status == 200
    assert len(shop.calls("echo")) == 2
    for headers in shop.headers:
        assert headers["authorization"] == "Bearer for-the-shop"
        assert not any("clerks-own" in value for value in headers.values())
    assert "clerks-own" not in str(shop.received)
