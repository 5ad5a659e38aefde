"""Tests of changes in a running tree: settings, tokens and journal entries."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uvloop

from interlock.core.config import ConfigError, TokenConfig
from interlock.core.journal.reader import JournalReader
from interlock.errors import InterlockError
from interlock.tree.component import Tree
from interlock.tree.config import ParentConfig, SubserversConfig
from tests.support.timeouts import HANG_TIMEOUT
from tests.tree.node_tree import NodeTree, ax_url, has_tool, wait_until
from tests.tree.test_tree import plant_subserver


def tokens(**may: list[str]) -> list[TokenConfig]:
    return [
        TokenConfig(name=name, token=f"${{env:{name.upper()}}}", may=allowed)  # type: ignore[arg-type]
        for name, allowed in may.items()
    ]


@pytest.mark.parametrize(("name", "taken"), [("agent", False), ("edge", True)])
async def test_registration_needs_token_permission(
    name: str, taken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT", "a" * 20)
    monkeypatch.setenv("EDGE", "e" * 20)

    async with NodeTree(tmp_path) as grove:
        given = tokens(agent=["call"], edge=["register"])
        root = await grove.start("root", tokens=given)
        token = ("a" if name == "agent" else "e") * 20
        if not taken:
            leaf = plant_subserver()
            with pytest.raises((InterlockError, TimeoutError)) as caught:
                async with asyncio.timeout(HANG_TIMEOUT), leaf.connect(ax_url(root), token=token):
                    pass
            status = leaf.status
            said = str(caught.value) or str(status and status.problem)
            assert not has_tool(root, "plant.vent"), said
            return
        async with plant_subserver().connect(ax_url(root), token=token):
            await wait_until(root, lambda: has_tool(root, "plant.vent"))
            # Without its token it is sent away, with all that it offered.
            await root.apply(msgspec.structs.replace(root.config, tokens=given[:1]))
            await wait_until(root, lambda: not has_tool(root, "plant.vent"))


async def test_unusable_parent_changes_nothing(tmp_path: Path) -> None:
    async with NodeTree(tmp_path) as grove:
        root = await grove.start("root")
        edge = await grove.start("edge", below=root)
        await wait_until(root, lambda: has_tool(root, "notifications_dropped"))
        before = edge.config, edge.component(Tree).registrant
        parent = ParentConfig(url=ax_url(root), segment="edge", token="${env:NO_SUCH_TOKEN}")
        with pytest.raises(ConfigError):
            await edge.apply(edge.config.with_sections(parent))
        assert (edge.config, edge.component(Tree).registrant) == before


async def test_reload_keeps_parent_connection(tmp_path: Path) -> None:
    async with NodeTree(tmp_path) as grove:
        root = await grove.start("root")
        edge = await grove.start("edge", below=root)
        await wait_until(root, lambda: has_tool(root, "notifications_dropped"))
        await root.supervisor("ax:edge").wait_for_first_attempt()
        peer = root.supervisor("ax:edge").upstream_client
        assert peer is not None
        (listening,) = [one for one in peer.pending.values() if "listen" in one.method]
        await edge.apply(msgspec.structs.replace(edge.config, timeout=50.0))
        async with plant_subserver().connect(ax_url(edge)):
            await wait_until(root, lambda: has_tool(root, "edge.plant.vent"))
        assert listening.is_open


async def test_link_settings_change_live(tmp_path: Path) -> None:
    async with NodeTree(tmp_path) as grove:
        root = await grove.start("root")
        async with plant_subserver().connect(ax_url(root)):
            await wait_until(root, lambda: has_tool(root, "plant.temperature"))

            def shown() -> Any:
                return root.catalog.current.by_name["plant.temperature"].latency_class

            assert shown() == "fast"
            settings = msgspec.convert(
                {"links": {"plant": {"min_latency_class": "slow", "timeout": 7.0}}},
                SubserversConfig,
            )
            await root.apply(root.config.with_sections(settings))
            assert shown() == "slow"
            assert root.supervisor("ax:plant").timeout == 7.0


def test_registrations_are_journaled(tmp_path: Path) -> None:
    async def run() -> None:
        async with NodeTree(tmp_path) as grove:
            root = await grove.start("root")
            async with plant_subserver().connect(ax_url(root)):
                await wait_until(root, lambda: has_tool(root, "plant.temperature"))
                with pytest.raises(InterlockError):
                    async with plant_subserver().connect(ax_url(root)):
                        pass
            await wait_until(root, lambda: not has_tool(root, "plant.temperature"))

    uvloop.run(run())
    entries = [
        (one.verb, one.name, one.outcome)
        for one in JournalReader(tmp_path / "root" / "journal.db").tail(100)
        if one.name == "plant"
    ]
    assert ("mcpax/register", "plant", "ok") in entries
    assert ("mcpax/register", "plant", "namespace_conflict") in entries
    assert ("mcpax/deregister", "plant", "ok") in entries


async def test_removed_children_leave_no_state(tmp_path: Path) -> None:
    async with NodeTree(tmp_path) as grove:
        root = await grove.start("root")
        for number in range(5):
            async with plant_subserver(f"plant{number}").connect(ax_url(root)):
                name = f"plant{number}.vent"
                await wait_until(root, lambda name=name: has_tool(root, name))
            await wait_until(root, lambda name=name: not has_tool(root, name))
        assert not root.component(Tree)._limiters
        assert not root.component(Tree)._lost_keys
        assert not root.upstreams.supervisors


def test_unusable_store_does_not_prevent_registration(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "root").mkdir()
    # Where its file should be, there is a folder.
    (tmp_path / "root" / "tree.db").mkdir()

    async def run() -> None:
        async with NodeTree(tmp_path) as grove:
            root = await grove.start("root")
            async with plant_subserver().connect(ax_url(root)):
                await wait_until(root, lambda: has_tool(root, "plant.vent"))

    uvloop.run(run())
    assert "a temporary id, which changes with a restart" in caplog.text
