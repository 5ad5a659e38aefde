"""Tests of a tree of real nodes and leaves."""

from __future__ import annotations

import asyncio
import itertools
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest
from mcp import Client, MCPError
from mcp.client.sse import sse_client
from mcp.types import Implementation

from interlock.app.node import Node
from interlock.core.config import PolicyConfig, ServerConfig
from interlock.tree.component import Tree
from interlock.tree.config import ParentConfig, SubserversConfig
from interlock.tree.subserver import Subserver
from tests.support.timeouts import HANG_TIMEOUT
from tests.tree.ax_list import list_ax_tools
from tests.tree.node_tree import NodeTree, ax_url, has_tool, mcp_url, wait_until

PLANT = "infra.edge.plant.temperature"


def plant_subserver(segment: str = "plant") -> Subserver:
    subserver = Subserver(segment, subserver_id=str(uuid4()))

    @subserver.tool(latency_class="fast", consistency="eventual", mutable=False)
    def temperature(sensor: str) -> dict[str, str]:
        """Return the value of a sensor."""
        return {"sensor": sensor, "segment": segment}

    @subserver.tool(mutable=True, reversible=False)
    def vent() -> str:
        """Let the steam out."""
        return "gone"

    @subserver.tool(latency_class="realtime", mutable=False)
    async def hang() -> None:
        """Never answers."""
        await asyncio.get_running_loop().create_future()

    return subserver


def read_capability(tool: Any) -> dict[str, Any]:
    found: dict[str, Any] = tool["_meta"]["x-mcpax-capability"]
    return found


@pytest.mark.spec(
    "AX-1.1-1", "AX-1.1-7", "AX-1.2-2", "AX-1-3", "AX-2-2", "AX-3.1-1", "AX-3.1-3", "AX-3.2-1",
    "AX-9.2-1", "AX-9.2-2", "AX-11.2-1", "AX-A-3",
)  # fmt: skip
async def test_lists_tree_flat_for_mcp_clients(tmp_path: Path) -> None:
    async with NodeTree(tmp_path) as grove:
        demo = ServerConfig(command=sys.executable, args=["-m", "interlock.demo"])
        root = await grove.start("root", root_segment="infra", servers={"local": demo})
        edge = await grove.start("edge", below=root)
        async with plant_subserver().connect(ax_url(edge)):
            local = "infra.local.roll_dice"
            await wait_until(root, lambda: has_tool(root, PLANT) and has_tool(root, local))
            tools = await list_ax_tools(root.url)
            assert "infra.notifications_dropped" in tools
            assert "infra.edge.notifications_dropped" in tools
            for tool in tools.values():
                assert {"latency_class", "mutable", "reversible"} <= set(read_capability(tool))
            declared = read_capability(tools[PLANT])
            assert declared["latency_class"] == "fast"
            assert declared["consistency"] == "eventual"
            assert declared["mutable"] is False
            assert tools[PLANT]["_meta"]["x-mcpax-hops"] == 2
            assert "x-mcpax-safety" not in tools[PLANT]["_meta"]
            vent = tools["infra.edge.plant.vent"]["_meta"]
            assert vent["x-mcpax-safety"] == "irreversible_mutable"
            legacy = (root.url or "").replace("/mcp", "/sse")
            for way in (mcp_url(root), sse_client(legacy)):
                async with Client(way) as client:
                    # Nothing of MCP-AX but what MCP has hints for.
                    plain = {one.name: one for one in (await client.list_tools()).tools}
                    assert len(plain) == len(tools) - 2 == root.status().tools
                    assert "infra__edge__plant__temperature" in plain
                    assert not any(one.meta for one in plain.values())
                    hints = plain["infra__edge__plant__vent"].annotations
                    assert hints is not None
                    assert hints.destructive_hint is True
                    told = await client.call_tool(PLANT, {"sensor": "a"})
                    assert told.structured_content == {"sensor": "a", "segment": "plant"}
                    assert not told.meta or not any("mcpax" in key for key in told.meta)
            # The node in the middle does the same for its own part.
            async with Client(mcp_url(edge)) as client:
                names = {one.name for one in (await client.list_tools()).tools}
                assert "plant__temperature" in names
                assert not any(name.startswith("infra") for name in names)
                told = await client.call_tool("plant.temperature", {"sensor": "b"})
                assert told.structured_content["sensor"] == "b"
            seen = msgspec.to_builtins(await root.component(Tree).view())
            roles = {one["name"]: one["role"] for one in _walk(seen)}
            assert roles == {
                "infra": "root", "edge": "aggregator", "plant": "leaf", "local": "leaf"
            }  # fmt: skip


@pytest.mark.spec("AX-9.2-2")
async def test_plain_mcp_connection_reports_ax_errors(tmp_path: Path) -> None:
    async with NodeTree(tmp_path) as grove:
        edge = await grove.start("edge")
        async with plant_subserver().connect(ax_url(edge)):
            await wait_until(edge, lambda: has_tool(edge, "plant.vent"))
            plain = {"edge": ServerConfig(url=edge.url)}
            root = await grove.start("root", servers=plain)
            await wait_until(root, lambda: has_tool(root, "edge.plant_vent"))
            tools = await list_ax_tools(root.url)
            assert tools["edge.plant_vent"]["_meta"]["x-mcpax-hops"] == 2
            flag = tools["edge.plant_vent"]["_meta"]["x-mcpax-safety"]
            assert flag == "irreversible_mutable"
            assert "edge.notifications_dropped" in tools
            async with Client(mcp_url(root)) as client:
                names = {one.name for one in (await client.list_tools()).tools}
                assert names == {f"edge__plant_{one}" for one in ("hang", "temperature", "vent")}


def _walk(tree: dict[str, Any]) -> list[dict[str, Any]]:
    return [tree, *itertools.chain.from_iterable(_walk(one) for one in tree["children"])]


@pytest.mark.spec("AX-7.3-1", "AX-7.3-7")
async def test_nearest_node_reports_failure(tmp_path: Path) -> None:
    async with NodeTree(tmp_path) as grove:
        root = await grove.start("root", root_segment="infra")
        edge = await grove.start("edge", below=root)
        cell = await grove.start("cell", below=edge)
        name = "infra.edge.cell.plant.hang"
        async with plant_subserver().connect(ax_url(cell)):
            await wait_until(root, lambda: has_tool(root, name))
            async with Client(mcp_url(root), mode="legacy") as client:
                with pytest.raises(MCPError) as caught:
                    await client.call_tool(name, {})
                assert caught.value.error.code == -31010
                assert caught.value.error.data["hop"] == "infra.edge.cell"


@pytest.mark.spec("AX-12-1", "AX-12-2", "AX-12-7", "AX-12-8", "AX-12-10")
async def test_leaf_notifications_reach_root(tmp_path: Path) -> None:
    heard: list[Any] = []
    enough = asyncio.Event()

    async def hear(message: Any) -> None:
        params = getattr(message, "params", None)
        if params is not None and getattr(message, "method", "") == "notifications/message":
            heard.append(params.model_dump(by_alias=True, mode="json"))
            if len(heard) == 3:
                enough.set()

    async with NodeTree(tmp_path) as grove:
        root = await grove.start("root")
        edge = await grove.start("edge", below=root)
        leaf = plant_subserver()
        async with leaf.connect(ax_url(edge)):
            await wait_until(root, lambda: has_tool(root, "edge.plant.temperature"))
            async with Client(mcp_url(root), mode="legacy", message_handler=hear) as client:
                await client.list_tools()
                child, parent = str(uuid4()), str(uuid4())
                for number, cause in enumerate((parent, None, parent)):
                    params = {"level": "warning", "logger": "boiler", "data": number}
                    await leaf.notify(
                        "notifications/message", params, event_id=child, causal_parent=cause
                    )
                async with asyncio.timeout(HANG_TIMEOUT):
                    await enough.wait()
    assert [one["data"] for one in heard] == [0, 1, 2]
    assert {one["logger"] for one in heard} == {"edge.plant.boiler"}
    metas = [one["_meta"] for one in heard]
    assert {one["x-mcpax-source"] for one in metas} == {"edge.plant"}
    assert {one["x-mcpax-event-id"] for one in metas} == {child}
    assert [one["x-mcpax-causal-parent"] for one in metas] == [parent, None, parent]


LEAF = """
    import sys
    from interlock.tree.subserver import Subserver

    leaf = Subserver("leaf", subserver_id={id!r})

    @leaf.tool(mutable=False)
    def {tool}() -> str:
        "Who answers."
        return "leaf"

    leaf.run(sys.argv[1], heartbeat=0.5)
"""


def start_leaf(folder: Path, url: str, id: str, tool: str = "who") -> subprocess.Popen[bytes]:
    script = folder / f"leaf-{tool}.py"
    script.write_text(textwrap.dedent(LEAF.format(id=id, tool=tool)))
    return subprocess.Popen([sys.executable, str(script), url], cwd=folder)


AX_CLIENT = {"experimental": {"mcpax": {"versions": ["2026-05-01"]}}}


@pytest.mark.spec(
    "AX-9.1-10", "AX-13.1-2", "AX-13.1-3", "AX-13.2-1", "AX-13.2-2", "AX-4.2-13",
    "AX-7.1-1",
)  # fmt: skip
async def test_killed_leaf_is_degraded_and_returns_with_new_list(tmp_path: Path) -> None:
    async with NodeTree(tmp_path) as grove:
        root = await grove.start("root")
        id = str(uuid4())
        leaf = start_leaf(tmp_path, ax_url(root), id)
        try:
            await wait_until(root, lambda: has_tool(root, "leaf.who"))
            tool = root.catalog.current.by_name["leaf.who"]
            entry = root.component(Tree).routing_table()["leaf.who"]
            assert entry.downstream_session
            assert time.strptime(entry.registered_at, "%Y-%m-%dT%H:%M:%SZ")
            leaf.send_signal(signal.SIGKILL)
            before = time.time()
            await wait_until(root, lambda: root.catalog.current.by_name["leaf.who"] is not tool)
            async with Client(mcp_url(root), mode="legacy") as client:
                assert "leaf__who" in {one.name for one in (await client.list_tools()).tools}
                listed = (await list_ax_tools(root.url))["leaf.who"]
                assert read_capability(listed)["availability"] == "degraded"
                with pytest.raises(MCPError) as caught:
                    await client.call_tool("leaf.who", {})
                data = caught.value.error.data
                assert caught.value.error.code == -31020
                assert data["reason"] == "subserver_unreachable"
                assert data["retry_after_ms"] == 500
                since = time.strptime(data["since"], "%Y-%m-%dT%H:%M:%SZ")
                assert abs(_to_utc(since) - before) < 30
            (entry,) = root.component(Tree).routing_table().values()
            assert entry.downstream_name == "who"
            answer = await _call_as_ax_client(root, "leaf.who")
            assert answer["error"]["code"] == -32002
            assert answer["error"]["message"] == "tool_degraded"
            leaf.wait()
            # The same one comes back, with something else to offer.
            leaf = start_leaf(tmp_path, ax_url(root), id, tool="whoami")
            await wait_until(root, lambda: has_tool(root, "leaf.whoami"))
            assert not has_tool(root, "leaf.who")
            async with Client(mcp_url(root)) as client:
                assert (await client.call_tool("leaf.whoami", {})).content[0].text == "leaf"  # type: ignore[union-attr]
        finally:
            leaf.kill()
            leaf.wait()


def _to_utc(when: time.struct_time) -> float:
    import calendar

    return calendar.timegm(when)


async def _call_as_ax_client(node: Node, tool: str) -> Any:
    """Return the response to a call of an MCP-AX client on the local socket."""
    path = await node.listen_locally()
    return await _send_request(path, "tools/call", {"name": tool, "arguments": {}})


async def _send_request(path: Path, asked: str, about: dict[str, Any]) -> Any:
    reader, writer = await asyncio.open_unix_connection(str(path))
    try:
        params = {
            "protocolVersion": "2025-11-25", "capabilities": AX_CLIENT,
            "clientInfo": {"name": "test", "version": "1"},
        }  # fmt: skip
        for id, method, said in (
            (1, "initialize", params),
            (2, asked, about),
        ):
            message = {"jsonrpc": "2.0", "id": id, "method": method, "params": said}
            writer.write(msgspec.json.encode(message) + b"\n")
        async with asyncio.timeout(HANG_TIMEOUT):
            while True:
                answer = msgspec.json.decode(await reader.readline())
                if answer.get("id") == 2:
                    return answer
    finally:
        writer.close()


@pytest.mark.spec("AX-14-1")
async def test_supports_exactly_draft_methods(tmp_path: Path) -> None:
    async with NodeTree(tmp_path) as grove:
        root = await grove.start("root")
        path = await root.listen_locally()
        confirmed = await _send_request(
            path, "mcpax/confirm", {"confirmation_id": "x", "proof": "y"}
        )
        assert confirmed["error"]["message"] == "unknown_approval"
        unknown = await _send_request(path, "mcpax/foo", {})
        assert unknown["error"]["code"] == -32601
        async with plant_subserver().connect(ax_url(root)):
            await wait_until(root, lambda: has_tool(root, "plant.vent"))
        await wait_until(root, lambda: not has_tool(root, "plant.vent"))


@pytest.mark.spec("AX-13.3-2", "AX-6.3-4")
async def test_leaves_of_lost_node_use_backup(
    tmp_path: Path,
) -> None:
    async with NodeTree(tmp_path) as grove:
        root = await grove.start("root")
        middle = await grove.start("middle", below=root, heartbeat=3600.0)
        spare = await grove.start("spare", below=root, heartbeat=3600.0)
        leaf = plant_subserver()
        async with leaf.connect(ax_url(middle), backup=[ax_url(spare)], heartbeat=3600.0):
            await wait_until(root, lambda: has_tool(root, "middle.plant.temperature"))
            await grove.stop(middle)
            # It deregistered: the subtree is gone long before a heartbeat can be missed.
            await wait_until(root, lambda: not has_tool(root, "middle.plant.temperature"))
            await wait_until(root, lambda: has_tool(root, "spare.plant.temperature"))
            async with Client(mcp_url(root)) as client:
                told = await client.call_tool("spare.plant.temperature", {"sensor": "x"})
                assert told.structured_content["sensor"] == "x"


@pytest.mark.spec("AX-5.3-3", "AX-5.3-5", "AX-A-2")
async def test_rejects_cycle_and_second_registration(tmp_path: Path) -> None:
    async with NodeTree(tmp_path) as grove:
        one = await grove.start("one")
        two = await grove.start("two", below=one)
        await wait_until(one, lambda: has_tool(one, "notifications_dropped"))
        # Another tree may have the same segment.
        other = await grove.start("other")
        leaf, same = plant_subserver(), plant_subserver()
        async with leaf.connect(ax_url(two)):
            async with same.connect(ax_url(other)):
                await wait_until(other, lambda: has_tool(other, "plant.temperature"))
        top = await grove.start("top", below=two)
        assert top.component(Tree).registrant is not None
        async with asyncio.timeout(HANG_TIMEOUT):
            while top.component(Tree).registrar.tree_id != one.place.id:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        # Who is below cannot be above too.
        circle = one.config
        parent = top.config.section(ParentConfig)
        config = circle.with_sections(
            msgspec.structs.replace(parent, url=ax_url(top), segment="one")
        )
        await one.apply(config)
        registrant = one.component(Tree).registrant
        assert registrant is not None
        async with asyncio.timeout(HANG_TIMEOUT):
            while registrant.problem is None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert registrant.status().symbol == "cycle_detected"


@pytest.mark.spec("AX-11.4-2", "AX-11.4-1", "AX-6.2-4")
async def test_enforces_budget(tmp_path: Path) -> None:
    async with NodeTree(tmp_path) as grove:
        settings = msgspec.convert(
            {"budget": {"calls_per_minute": 3, "mutable_calls": 1}}, SubserversConfig
        )
        free = PolicyConfig(default="allow")
        root = await grove.start("root", subservers=settings, policy=free)
        async with plant_subserver().connect(ax_url(root)):
            await wait_until(root, lambda: has_tool(root, "plant.vent"))
            async with Client(mcp_url(root), mode="legacy") as client:
                await client.call_tool("plant.vent", {})
                with pytest.raises(MCPError) as caught:
                    await client.call_tool("plant.vent", {})
                assert caught.value.error.code == -31027
                await client.call_tool("plant.temperature", {"sensor": "x"})
            answer = await _call_as_ax_client(root, "plant.vent")
            assert answer["error"]["code"] == -32003
            assert answer["error"]["message"] == "budget_exceeded"


async def test_names_without_dots_reach_whole_tree(tmp_path: Path) -> None:
    async with NodeTree(tmp_path) as grove:
        root = await grove.start("root", root_segment="infra")
        edge = await grove.start("edge", below=root)
        async with plant_subserver().connect(ax_url(edge)):
            await wait_until(root, lambda: has_tool(root, PLANT))
            info = Implementation(name="claude-code", version="1")
            async with Client(mcp_url(root), client_info=info) as client:
                names = {one.name for one in (await client.list_tools()).tools}
                assert "infra__edge__plant__temperature" in names
                told = await client.call_tool("infra__edge__plant__temperature", {"sensor": "x"})
                assert told.structured_content["segment"] == "plant"
