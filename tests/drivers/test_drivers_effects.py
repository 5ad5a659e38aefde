"""A tool that declares harm: its declaration applies, whatever the contract says."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from interlock.core.call import HiddenToolError
from interlock.core.catalog.effects import EffectLevel, minimum_level
from interlock.drivers.contract_tool import approval_floor, effect_level
from interlock.drivers.limits import is_repeatable
from tests.drivers.driver_decisions import contract
from tests.drivers.driver_workspace import ANY, Workspace, running
from tests.drivers.test_drivers_approvals import ALLOWED, NOTE_IN, Approver, assert_pending

pytestmark = pytest.mark.usefixtures("no_leaks")

READ, CHANGE, END = EffectLevel.READ_ONLY, EffectLevel.MUTATING, EffectLevel.IRREVERSIBLE


@pytest.mark.parametrize(
    ("hints", "level"),
    [
        (None, READ),
        ([], READ),
        ({}, READ),
        ({"readOnlyHint": True}, READ),
        ({"readOnlyHint": False}, CHANGE),
        ({"readOnlyHint": False, "destructiveHint": False}, CHANGE),
        ({"readOnlyHint": "false"}, READ),
        ({"destructiveHint": True}, END),
        ({"destructiveHint": True, "readOnlyHint": False}, END),
        # Of two that contradict each other the worse counts.
        ({"destructiveHint": True, "readOnlyHint": True}, END),
    ],
)
def test_minimum_level_derives_from_hints(hints: Any, level: EffectLevel) -> None:
    assert minimum_level(hints) is level


def test_harmful_tool_is_not_repeated_and_needs_approval() -> None:
    reads = contract()
    assert effect_level(reads) is READ
    assert is_repeatable(reads)
    assert not is_repeatable(reads, CHANGE)
    assert is_repeatable(contract(idempotent=True), CHANGE)
    assert not is_repeatable(contract(idempotent=True), END)
    assert [approval_floor(reads, level) for level in (READ, CHANGE, END)] == [
        "", "confirm", "confirm",
    ]  # fmt: skip
    assert approval_floor(contract(risk_level=3), CHANGE) == ""


def reading_workspace(folder: Path) -> Workspace:
    """A contract that says nothing of what it changes, before a tool that says that it does."""
    workspace = Workspace(folder)
    said = workspace.contract("safe.read", inputs=NOTE_IN, outputs=ANY)
    workspace.driver(
        "note-mcp", workspace.serves(said, "note"), server=workspace.server("--writes")
    )
    return workspace


async def test_harmful_tool_requires_approval_once_listed(tmp_path: Path) -> None:
    workspace, human = reading_workspace(tmp_path), Approver(tmp_path)
    notes = tmp_path / "notes"
    arguments: dict[str, Any] = {"text": "x", "file": str(notes)}

    config = workspace.config(more=ALLOWED + human.config, verify="start")
    async with running(workspace, config) as node:
        await node.until(lambda: node.driver("note-mcp").verified)
        await node.until(lambda: not node.listed("safe.read")["annotations"]["readOnlyHint"])
        assert node.node.catalog.current.by_name["safe.read"].effect_name == "mutating"
        waiting = assert_pending(await node.result("safe.read", arguments))
        assert not notes.exists()
        await human.confirms(node, waiting)
        assert notes.read_text() == "x\n"


async def test_earlier_allowed_call_is_rechecked(tmp_path: Path) -> None:
    workspace = reading_workspace(tmp_path)
    notes = tmp_path / "notes"
    arguments: dict[str, Any] = {"text": "x", "file": str(notes)}
    rules = "policy: {default: deny, rules: [{name: r, then: allow, effects: [read_only]}]}\n"

    async with running(workspace, workspace.config(more=rules)) as node:
        # Its server is started for this call: nobody has seen its tools yet.
        error = await node.refused("safe.read", **arguments)
        assert "now declares that it is mutating" in error.message
        again = await node.refused("safe.read", **arguments)
        assert isinstance(again, HiddenToolError)
        assert again.reason.failure.name == "denied_by_policy"
        assert not notes.exists()
        assert workspace.heard("tools/call") == []


async def test_one_mutating_driver_changes_contract_effect(tmp_path: Path) -> None:
    workspace = reading_workspace(tmp_path)
    workspace.driver(
        "other-mcp",
        workspace.serves("./tools/safe.read-1/TOOL.md", "note"),
        cost={"class": "metered"},
    )

    async with running(workspace, workspace.config(more=ALLOWED, verify="start")) as node:
        await node.until(
            lambda: all(driver.verified for driver in node.drivers.lifecycle.drivers.values())
        )
        await node.until(lambda: not node.listed("safe.read")["annotations"]["readOnlyHint"])
        shutil.rmtree(workspace.folder / ".drivers" / "note-mcp")
        await node.until(lambda: node.listed("safe.read")["annotations"]["readOnlyHint"])
