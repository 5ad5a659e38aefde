"""Tests of the terms of MCP-AX in channels, names and documentation."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import uvloop
from mcp import Client

from interlock.channels.websocket import WebSocketChannel
from interlock.cli.about import version_text
from interlock.core.config import ServerConfig
from interlock.protocol import mcpax as ax
from interlock.protocol.capabilities import DERIVED_KEY
from interlock.tree.component import Tree
from interlock.tree.registrar import Registrar
from interlock.tree.subserver import Subserver
from tests.support.timeouts import HANG_TIMEOUT
from tests.tree.node_tree import NodeTree, ax_url, has_tool, mcp_url, wait_until
from tests.tree.test_tree import plant_subserver

ROOT = Path(__file__).parents[2]
COMPLETE = ROOT / "tests" / "behaviour" / "servers" / "complete.py"


@pytest.mark.spec("AX-0-1", "AX-1.4-1", "AX-15-1")
def test_documentation_names_revisions() -> None:
    assert ax.DRAFT in version_text()
    docs = (ROOT / "docs" / "tree.md").read_text()
    for named in (
        ax.DRAFT, ax.VERSIONS[-1], "2025-11-25", "2026-07-28", "RFC 2119", "RFC 2741", "RFC 8174",
        "RFC 8707", "RFC 3413", "RFC 3414", "RFC 7049", "draft-zeng-mcp-network-mgmt",
        "draft-zeng-mcp-network-measurement", "draft-zeng-mcp-troubleshooting",
    ):  # fmt: skip
        assert named in docs


@pytest.mark.spec("AX-14-2")
def test_keys_match_draft_and_documentation() -> None:
    draft = {"route", "cursor", "latency-ms", "hops", "safety", "subtree-ids", "event-id",
             "causal-parent"}  # fmt: skip
    keys = {
        value
        for value in (*vars(ax).values(), DERIVED_KEY)
        if isinstance(value, str) and value.startswith(ax.PREFIX) and value != ax.PREFIX
    }
    own = keys - {f"{ax.PREFIX}{name}" for name in draft}
    assert keys - own == {f"{ax.PREFIX}{name}" for name in draft}
    docs = (ROOT / "docs" / "tree.md").read_text()
    assert own
    assert all(f"`{one}`" in docs for one in own)


@pytest.mark.spec("AX-1-1")
def test_uses_terms_of_draft() -> None:
    assert Subserver.__name__ == "Subserver"
    assert {"subserver_id", "segment"} <= set(ax.Registration.__struct_fields__)
    assert "aggregator_id" in ax.RegistrationResult.__struct_fields__
    said = [path.read_text() for path in (ROOT / "src").rglob("*.py")]
    said.append((ROOT / "docs" / "tree.md").read_text())
    assert not any(re.search(r"\b(OID|MIB|subagent|master agent)\b", text) for text in said)


@pytest.mark.spec("AX-14-3")
def test_transport_classes() -> None:
    assert set(ax.TRANSPORT_CLASSES) == {
        "native", "uart_cbor", "ble_cbor", "spi_cbor", "can_cbor", "mqtt_json",
    }  # fmt: skip


@pytest.mark.spec("AX-2-4")
async def test_name_and_route_contain_every_segment(
    tmp_path: Path,
) -> None:
    async with NodeTree(tmp_path) as grove:
        root = await grove.start("root", root_segment="infra")
        edge = await grove.start("edge", below=root)
        async with plant_subserver("stm32h7").connect(ax_url(edge)):
            name = "infra.edge.stm32h7.temperature"
            await wait_until(root, lambda: has_tool(root, name))
            way = root.catalog.current.by_name[name].route_members
    said = json.loads(b"{" + way[1:] + b"}")
    assert said == {
        "x-mcpax-route": ["infra", "edge", "stm32h7", "temperature"], "x-mcpax-cursor": 1,
    }  # fmt: skip


@pytest.mark.spec("AX-1-2", "AX-1-4", "AX-1.3-1", "AX-5.3-6")
def test_channel_messages_are_json_rpc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[dict[str, Any]] = []
    send = WebSocketChannel.send

    def overheard(channel: WebSocketChannel, payload: bytes) -> None:
        said.append(json.loads(payload))
        send(channel, payload)

    async def run() -> None:
        async with NodeTree(tmp_path) as grove:
            root = await grove.start("root")
            edge = await grove.start("edge", below=root, heartbeat=3600.0)
            async with plant_subserver().connect(ax_url(edge), heartbeat=3600.0):
                await wait_until(root, lambda: has_tool(root, "edge.plant.temperature"))
                # Once everybody is registered, calls need nothing of the tree's ids.
                with monkeypatch.context() as registered:
                    registered.setattr(Registrar, "subtree_ids", _fail_if_called)
                    async with Client(mcp_url(root)) as client:
                        await client.call_tool("edge.plant.temperature", {"sensor": "x"})
                # Whoever beats that often may be lost on a busy machine: no call goes to this one.
                async with plant_subserver("hasty").connect(ax_url(edge), heartbeat=0.1):
                    async with asyncio.timeout(HANG_TIMEOUT):
                        while not any(one.get("method") == ax.HEARTBEAT for one in said):  # noqa: ASYNC110
                            await asyncio.sleep(0.01)

    with monkeypatch.context() as listening:
        listening.setattr(WebSocketChannel, "send", overheard)
        uvloop.run(run())
    assert all(one["jsonrpc"] == "2.0" for one in said)
    methods = {one.get("method") for one in said}
    assert {ax.REGISTER, ax.HEARTBEAT, ax.DEREGISTER, ax.IDENTIFY} <= methods
    assert any("session_id" in one.get("result", {}) for one in said)


def _fail_if_called(_: Registrar) -> Any:
    raise AssertionError("calls do not look at the tree")


@pytest.mark.spec("AX-6.1-12")
async def test_resources_and_prompts_reach_root(tmp_path: Path) -> None:
    async with NodeTree(tmp_path) as grove:
        server = ServerConfig(command=sys.executable, args=[str(COMPLETE), "stdio", "both"])
        root = await grove.start("root")
        edge = await grove.start("edge", below=root, servers={"complete": server})
        await wait_until(edge, lambda: edge.catalog.current.uris.resources)
        own = {one.uri for one in edge.catalog.current.uris.resources}
        await wait_until(root, lambda: root.catalog.current.uris.resources)
        async with Client(mcp_url(root)) as client:
            listed = (await client.list_resources()).resources
            # It was not there when the node registered, and is offered all the same.
            assert {str(one.uri) for one in listed} == own
            read = await client.read_resource(str(listed[0].uri))
            assert read.contents
            prompts = {one.name for one in (await client.list_prompts()).prompts}
            assert all(name.startswith("edge__complete__") for name in prompts)
        (info,) = root.component(Tree).subservers().values()
        assert info.offers.resources
