"""Many servers behind one node: names, shared URIs, capabilities and subscriptions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import mcp_types as types
import pytest
from mcp import Client, MCPError

from interlock.core.config import ServerConfig
from tests.behaviour.test_protocol_matrix import (
    HANG_TIMEOUT,
    call_json,
    complete,
    open_client,
    over_a_pipe,
    with_client,
)
from tests.support.node import NodeThread
from tests.support.tool_server import ToolServer

SHARED = "note://shared"
SERVERS = ("hs", "hl", "ps", "pl")

both_modes = pytest.mark.parametrize("mode", ["legacy", "auto"])
every_server = pytest.mark.parametrize("server", SERVERS)


@pytest.fixture(scope="module")
def many_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeThread]:
    with complete("session", "hs") as hs, complete("stateless", "hl") as hl:
        servers = {
            "hs": ServerConfig(url=hs),
            "hl": ServerConfig(url=hl),
            "ps": over_a_pipe("session", "ps"),
            "pl": over_a_pipe("stateless", "pl"),
        }
        # One more, with tools and nothing else.
        node = NodeThread(
            tmp_path_factory.mktemp("many"), workshops={"plain": ToolServer()}, servers=servers
        )
        yield node
        node.stop()


def exposed_uri(server: str) -> str:
    return f"interlock:{server}:{SHARED}"


@both_modes
async def test_capabilities_are_union_of_servers(many_servers: NodeThread, mode: str) -> None:
    async with open_client(many_servers, "http", mode) as client:
        can = client.server_capabilities
        assert can.tools is not None
        assert can.prompts is not None
        assert can.completions is not None
        assert can.resources is not None
        assert can.resources.subscribe is True
        assert can.resources.list_changed is True
        for server in SERVERS:
            assert f"Ask {server} for anything." in (client.instructions or "")


@pytest.mark.spec("ST-4.4.1-7")
@both_modes
async def test_prompts_are_named_like_tools(many_servers: NodeThread, mode: str) -> None:
    async with open_client(many_servers, "http", mode) as client:
        names = [prompt.name for prompt in (await client.list_prompts()).prompts]
        assert names == [f"{s}__{p}" for s in sorted(SERVERS) for p in ("asks", "review")]
        for name in ("hs.review", "hs__review"):
            got = await client.get_prompt(name, {"lang": "C"})
            assert "this C code for hs" in got.messages[0].content.text  # type: ignore[union-attr]
        with pytest.raises(MCPError) as unknown:
            await client.get_prompt("hs.nothing")
        assert unknown.value.error.code == -32602


@both_modes
@every_server
async def test_shared_uri_is_qualified_by_server(
    many_servers: NodeThread, mode: str, server: str
) -> None:
    async with open_client(many_servers, "http", mode) as client:
        uris = [resource.uri for resource in (await client.list_resources()).resources]
        assert len(set(uris)) == len(uris)
        assert SHARED not in uris
        assert {exposed_uri(server) for server in SERVERS} <= set(uris)
        assert f"note://{server}/own" in uris
        read = await client.read_resource(exposed_uri(server))
        assert [content.uri for content in read.contents] == [exposed_uri(server)] * 2
        assert read.contents[0].text == f"{SHARED} of {server}"  # type: ignore[union-attr]
        # What is unique keeps its name, also when its server's others have got a new one.
        read = await client.read_resource(f"note://{server}/own")
        assert [content.uri for content in read.contents] == [f"note://{server}/own"] * 2
        with pytest.raises(MCPError) as ambiguous:
            await client.read_resource(SHARED)
        assert ambiguous.value.error.code == -32602
        for item in SERVERS:
            assert exposed_uri(item) in ambiguous.value.error.message


@both_modes
@every_server
async def test_uris_in_results_can_be_read(
    many_servers: NodeThread, mode: str, server: str
) -> None:
    async with open_client(many_servers, "http", mode) as client:
        result = await client.call_tool(f"{server}.rich", {})
        assert result.structured_content == {"answer": 42}
        assert (result.meta or {})["com.example/result"] == {"own": True}
        link, resource = result.content[3:]
        assert isinstance(link, types.ResourceLink)
        assert isinstance(resource, types.EmbeddedResource)
        assert (link.uri, resource.resource.uri) == (exposed_uri(server), exposed_uri(server))
        assert (link.title, resource.resource.mime_type) == ("T", "text/plain")
        again = await client.read_resource(link.uri)
        assert again.contents[0].text.endswith(f"of {server}")  # type: ignore[union-attr]
        got = await client.get_prompt(f"{server}.review", {"lang": "C"})
        pointed = got.messages[1].content
        assert isinstance(pointed, types.ResourceLink)
        assert pointed.uri == exposed_uri(server)
        about = types.ResourceTemplateReference(type="ref/resource", uri=exposed_uri(server))
        completion = await client.complete(about, {"name": "x", "value": "v"})
        assert completion.completion.values == ["v+", f"{server}|{SHARED}"]


@both_modes
@every_server
def test_updates_carry_uri_known_to_client(
    many_servers: NodeThread, mode: str, server: str
) -> None:
    updates: asyncio.Queue[str] = asyncio.Queue()

    async def hear(heard: Any) -> None:
        if isinstance(heard, types.ResourceUpdatedNotification):
            updates.put_nowait(str(heard.params.uri))

    async def touch(client: Client) -> None:
        for other in SERVERS:
            # Those whom it does not follow say nothing to it.
            await client.call_tool(f"{other}.touch", {"uri": SHARED})

    async def body(client: Client) -> None:
        if mode == "legacy":
            await client.subscribe_resource(exposed_uri(server))
            await touch(client)
            assert await updates.get() == exposed_uri(server)
            await client.unsubscribe_resource(exposed_uri(server))
            await touch(client)
        else:
            async with client.listen(resource_subscriptions=[exposed_uri(server)]) as events:
                assert events.honored.resource_subscriptions == [exposed_uri(server)]
                await touch(client)
                async for event in events:
                    assert event.uri == exposed_uri(server)  # type: ignore[union-attr]
                    break
        while not updates.empty():
            assert updates.get_nowait() == exposed_uri(server)

    with_client(many_servers, "http", mode, body, message_handler=hear)


def upstream_subscriptions(seen: Any, uri: str) -> list[str]:
    return [what for what, about in seen["subscribed"] if uri in about.split(",")]


async def test_server_is_subscribed_once_for_all_clients(many_servers: NodeThread) -> None:
    uri = "note://ps/own"

    async with asyncio.timeout(HANG_TIMEOUT):
        async with (
            Client(many_servers.url, mode="legacy", cache=None) as one,
            Client(many_servers.url, mode="legacy", cache=None) as two,
            Client(many_servers.url, mode="auto", cache=None) as three,
        ):
            before = len(upstream_subscriptions(await call_json(one, "ps.seen"), uri))

            async def seen() -> list[str]:
                return upstream_subscriptions(await call_json(one, "ps.seen"), uri)[before:]

            await asyncio.gather(
                one.subscribe_resource(uri),
                one.subscribe_resource(uri),
                two.subscribe_resource(uri),
            )
            async with three.listen(resource_subscriptions=[uri]):
                assert await seen() == ["subscribe"]
                await one.unsubscribe_resource(uri)
                await two.unsubscribe_resource(uri)
                await two.unsubscribe_resource(uri)
                assert await seen() == ["subscribe"]
            supervisor = many_servers.node.upstreams.supervisors["ps"]
            await asyncio.to_thread(
                many_servers.until,
                lambda: uri not in supervisor._subscriptions.watched,  # type: ignore[union-attr]
                "nobody follows it",
            )
            assert await seen() == ["subscribe", "unsubscribe"]
            # Who leaves without a word is counted too.
            async with Client(many_servers.url, mode="legacy", cache=None) as four:
                await four.subscribe_resource(uri)
            await asyncio.to_thread(
                many_servers.until,
                lambda: uri not in supervisor._subscriptions.watched,  # type: ignore[union-attr]
                "nobody follows it",
            )
            assert await seen() == ["subscribe", "unsubscribe"] * 2


def test_subscription_as_first_request_works(start_node: Any) -> None:
    """Nothing is known of sessions of its own yet, and there are none."""
    updates: asyncio.Queue[str] = asyncio.Queue()
    uri = "note://hl/own"

    async def hear(heard: Any) -> None:
        if isinstance(heard, types.ResourceUpdatedNotification):
            updates.put_nowait(str(heard.params.uri))

    async def body(client: Client) -> None:
        await client.subscribe_resource(uri)
        await client.call_tool("hl.touch", {"uri": uri})
        assert await updates.get() == uri
        await client.unsubscribe_resource(uri)
        assert updates.empty()

    with complete("stateless", "hl") as hl:
        node = start_node(workshops={}, servers={"hl": ServerConfig(url=hl)})
        with_client(node, "http", "legacy", body, message_handler=hear)


def test_subscription_reports_no_initial_change(start_node: Any) -> None:
    updates: list[str] = []

    async def hear(heard: Any) -> None:
        if isinstance(heard, types.ResourceUpdatedNotification):
            updates.append(str(heard.params.uri))

    async def body(client: Client) -> None:
        await client.subscribe_resource("note://hs/own")
        await client.call_tool("hs.report", {"steps": 1})
        assert not updates

    with complete("session", "hs") as hs:
        node = start_node(workshops={}, servers={"hs": ServerConfig(url=hs)})
        with_client(node, "http", "legacy", body, message_handler=hear)
