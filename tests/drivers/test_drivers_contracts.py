"""Breaking changes of driver contracts: reported, and blocked if configured."""

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


def echo_workspace(folder: Path) -> Workspace:
    workspace = Workspace(folder)
    workspace.driver("echo-mcp", workspace.echoes(workspace.contract()))
    return workspace


def config(workspace: Workspace, on_break: str) -> Config:
    return workspace.config(more=f"contracts: {{on_break: {on_break}}}\n")


def read_contract_version(
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
def test_breaking_change_is_reported_until_accepted(
    tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    file = tmp_path / "state" / "contracts.json"
    before = read_contract_version(tmp_path)
    assert AcceptedContractStore(file).update([before]) == ({}, [])
    after = read_contract_version(tmp_path, **change)
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


def test_compatible_change_becomes_baseline(tmp_path: Path) -> None:
    known = AcceptedContractStore(tmp_path / "contracts.json")
    known.update([read_contract_version(tmp_path)])
    assert known.update([read_contract_version(tmp_path, MAY_HAVE, version="1.1.0")]) == ({}, [])
    broken = known.find_broken([read_contract_version(tmp_path, NEW_INPUT, version="1.1.0")])
    assert broken["text.echo@1"].accepted.version == "1.1.0"


def test_new_major_may_break(tmp_path: Path) -> None:
    known = AcceptedContractStore(tmp_path / "contracts.json")
    known.update([read_contract_version(tmp_path)])
    assert known.update([read_contract_version(tmp_path, NEW_INPUT, version="2.0.0")]) == ({}, [])


def test_broken_contract_stays_blocked_after_restart(tmp_path: Path) -> None:
    workspace = echo_workspace(tmp_path)
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
            actual = [entry for entry in journal.tail(100) if entry.verb == "contracts"]
            assert [(item.name, item.outcome) for item in actual] == [("text.echo", "breaking")]

    async def again() -> None:
        async with running(workspace, hold) as node:
            assert node.tools == []
            known = AcceptedContractStore.from_config(hold, {}, tmp_path)
            known.accept(load_contract(tmp_path / "tools" / "text.echo-1" / "TOOL.md").value)  # type: ignore[arg-type]
            await node.until(lambda: "text.echo" in node.tools, "the accepted contract")
            assert node.node.report().part(ContractsStatus).changed_contracts == []

    run(breaking)
    run(again)


async def test_reverted_break_is_served_again(tmp_path: Path) -> None:
    workspace = echo_workspace(tmp_path)

    async with running(workspace, config(workspace, "hold")) as node:
        await node.call("text.echo", text="hello")
        workspace.contract(inputs=NEW_INPUT)
        await node.until(lambda: "text.echo" not in node.tools, "the list without it")
        workspace.contract()
        await node.until(lambda: "text.echo" in node.tools, "the list with it")
        assert (await node.call("text.echo", text="hello"))["said"] == "hello"


async def test_report_mode_serves_broken_contract(tmp_path: Path) -> None:
    workspace = echo_workspace(tmp_path)

    async with running(workspace, config(workspace, "report")) as node:
        await node.call("text.echo", text="hello")
        workspace.contract(inputs=MAY_HAVE, outputs={"type": "object"})
        await node.until(
            lambda: node.node.report().part(ContractsStatus).changed_contracts, "the break"
        )
        [row] = node.node.report().part(ContractsStatus).changed_contracts
        assert (row.tool, row.held) == ("text.echo", False)
        assert any("new major" in warning for warning in node.status().warnings)
        assert "text.echo" in node.tools
        assert "tone" in json.dumps(node.listed("text.echo"))
        await node.node.apply(config(workspace, "hold"))
        await node.until(lambda: "text.echo" not in node.tools, "the held contract")
