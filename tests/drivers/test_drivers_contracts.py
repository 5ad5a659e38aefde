"""Contracts of drivers that change so that callers break: told, and held where that is wished."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from interlock.contracts.accepted_contracts import AcceptedContractStore
from interlock.contracts.changed_tools import ContractsStatus
from interlock.core.config import Config
from interlock.manifests.tool_reader import load_contract
from tests.drivers.driver_workspace import SAID, TEXT_IN, Workspace, running
from tests.support.upstreams import run

pytestmark = pytest.mark.usefixtures("no_leaks")

NEW_INPUT = {
    "type": "object",
    "properties": {"text": {"type": "string"}, "tone": {"type": "string"}},
    "required": ["text", "tone"],
}
MAY_HAVE = {**NEW_INPUT, "required": ["text"]}


def echo(folder: Path) -> Workspace:
    workspace = Workspace(folder)
    workspace.driver("echo-mcp", workspace.echoes(workspace.contract()))
    return workspace


def config(workspace: Workspace, on_break: str) -> Config:
    return workspace.config(more=f"contracts: {{on_break: {on_break}}}\n")


def reading(
    folder: Path, inputs: Any = TEXT_IN, outputs: Any = SAID, version: str = "1.0.0"
) -> Any:
    workspace = Workspace(folder)
    place = workspace.contract(version=version, inputs=inputs, outputs=outputs)
    return load_contract(folder / place).value


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"inputs": NEW_INPUT}, "/inputs"),
        ({"outputs": {"type": "object", "properties": {}}}, "/outputs"),
        ({"inputs": NEW_INPUT, "version": "1.7.0"}, "/inputs"),
    ],
)
def test_what_breaks_callers_is_found_until_it_is_accepted(
    tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    file = tmp_path / "state" / "contracts.json"
    before = reading(tmp_path)
    assert AcceptedContractStore(file).update([before]) == ({}, [])
    after = reading(tmp_path, **change)
    broken, news = AcceptedContractStore(file).update([after])
    assert [*broken] == ["text.echo@1"]
    assert reason in broken["text.echo@1"].message
    assert "2.0.0" in broken["text.echo@1"].message
    assert len(news) == 1
    # It is told once, and stays so.
    broken, news = AcceptedContractStore(file).update([after])
    assert (len(broken), news) == (1, [])
    assert AcceptedContractStore(file).update([before]) == ({}, [])
    AcceptedContractStore(file).accept(after)
    assert AcceptedContractStore(file).update([after]) == ({}, [])


def test_what_breaks_nobody_is_what_the_next_is_held_against(tmp_path: Path) -> None:
    known = AcceptedContractStore(tmp_path / "contracts.json")
    known.update([reading(tmp_path)])
    assert known.update([reading(tmp_path, MAY_HAVE, version="1.1.0")]) == ({}, [])
    broken = known.find_broken([reading(tmp_path, NEW_INPUT, version="1.1.0")])
    assert broken["text.echo@1"].accepted.version == "1.1.0"


def test_a_new_major_may_break(tmp_path: Path) -> None:
    known = AcceptedContractStore(tmp_path / "contracts.json")
    known.update([reading(tmp_path)])
    assert known.update([reading(tmp_path, NEW_INPUT, version="2.0.0")]) == ({}, [])


def test_a_break_is_held_also_after_a_restart_until_it_is_accepted(tmp_path: Path) -> None:
    workspace = echo(tmp_path)
    hold = config(workspace, "hold")

    async def breaking() -> None:
        async with running(workspace, hold) as node:
            await node.call("text.echo", text="hello")
            workspace.contract(inputs=NEW_INPUT)
            await node.until(lambda: "text.echo" not in node.tools, "the list without it")
            [contract] = node.drivers.contract_status()
            assert "no new major version" in contract.problem
            assert "REQUIRED" in contract.problem
            [row] = node.node.report().part(ContractsStatus).changed_contracts
            assert (row.tool, row.held, row.breaks.drivers) == ("text.echo", True, ["echo-mcp"])
            assert (await node.refused("text.echo", text="hello")).failure.name == "unknown_tool"
            journal = node.node._journal
            assert journal is not None
            assert await journal.flush_async()
            told = [one for one in journal.tail(100) if one.verb == "contracts"]
            assert [(one.name, one.outcome) for one in told] == [("text.echo", "breaking")]

    async def again() -> None:
        async with running(workspace, hold) as node:
            assert node.tools == []
            known = AcceptedContractStore.from_config(hold, {}, tmp_path)
            known.accept(load_contract(tmp_path / "tools" / "text.echo-1" / "TOOL.md").value)  # type: ignore[arg-type]
            await node.until(lambda: "text.echo" in node.tools, "the accepted contract")
            assert node.node.report().part(ContractsStatus).changed_contracts == []

    run(breaking)
    run(again)


async def test_a_break_that_is_taken_back_is_served_again(tmp_path: Path) -> None:
    workspace = echo(tmp_path)

    async with running(workspace, config(workspace, "hold")) as node:
        await node.call("text.echo", text="hello")
        workspace.contract(inputs=NEW_INPUT)
        await node.until(lambda: "text.echo" not in node.tools, "the list without it")
        workspace.contract()
        await node.until(lambda: "text.echo" in node.tools, "the list with it")
        assert (await node.call("text.echo", text="hello"))["said"] == "hello"


async def test_where_breaks_are_only_reported_it_is_served_and_said(tmp_path: Path) -> None:
    workspace = echo(tmp_path)

    async with running(workspace, config(workspace, "report")) as node:
        await node.call("text.echo", text="hello")
        workspace.contract(inputs=MAY_HAVE, outputs={"type": "object"})
        await node.until(
            lambda: node.node.report().part(ContractsStatus).changed_contracts, "the break"
        )
        [row] = node.node.report().part(ContractsStatus).changed_contracts
        assert (row.tool, row.held) == ("text.echo", False)
        assert any("new major" in one for one in node.status().warnings)
        assert "text.echo" in node.tools
        assert "tone" in json.dumps(node.listed("text.echo"))
        await node.node.apply(config(workspace, "hold"))
        await node.until(lambda: "text.echo" not in node.tools, "the held contract")
