"""Journal entries of a contract's call: three entries as specified, without arguments."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.drivers.driver_workspace import Workspace, running

pytestmark = pytest.mark.usefixtures("no_leaks")

RESOLVED = {
    "type", "tool_id", "tool_version", "user_id", "workspace_id", "candidates_total",
    "candidates_passed_phase_2_capability", "candidates_passed_phase_3_policy", "pinned_provider",
    "rejected", "selected", "ts",
}  # fmt: skip
INVOKED = {
    "type", "provider_id", "provider_version", "tool_id", "user_id", "workspace_id", "input_keys",
    "duration_ms", "ok", "cost_units_charged", "auth_state", "ts",
    # Of AIP-32.
    "kind", "mcp_tool_name", "transport", "server_kind",
}  # fmt: skip
TOOL = {
    "type", "tool_id", "tool_version", "tool_mutates", "resolved_provider_id",
    "resolved_provider_version", "user_id", "workspace_id", "input_keys", "duration_ms", "retries",
    "ok", "ts",
}  # fmt: skip
SECRET = "sk-live-0123456789abcdef"


def workspace_of_two(folder: Path) -> Workspace:
    workspace = Workspace(folder)
    contract = workspace.contract(version="1.4.0")
    workspace.driver(
        "cheap-mcp", workspace.echoes(contract, cost_override={"cost_units_per_call": 3}),
        version="2.1.0",
    )  # fmt: skip
    workspace.driver(
        "abroad-mcp", workspace.echoes(contract), region=["moon"], policy_tags=["self-hosted"]
    )
    return workspace


@pytest.mark.spec(
    "DR-30.audit-1", "DR-30.audit-2", "DR-30.audit-3", "DR-30.identity-1", "DR-14.audit-1",
    "DR-32.adapter-4",
)  # fmt: skip
async def test_call_writes_three_entries_in_order(tmp_path: Path) -> None:
    workspace = workspace_of_two(tmp_path)
    place = str(tmp_path.resolve())

    config = workspace.config(region="eu")
    async with running(workspace, config) as node:
        await node.call("text.echo", text="hello")
        rows = await node.rows("driver.resolved", "driver.invoked", "tool.invoked")
    kinds = [entry.verb for entry, _ in rows]
    assert kinds == ["driver.resolved", "driver.invoked", "tool.invoked"]
    resolved, invoked, tool = (row for _, row in rows)
    assert resolved.keys() == RESOLVED
    assert invoked.keys() == INVOKED
    assert tool.keys() == TOOL
    common = {"tool_id": "text.echo", "user_id": "local", "workspace_id": place}
    for entry, row in rows:
        assert row["type"] == entry.verb
        assert row.items() >= common.items()
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", row["ts"])
        assert entry.upstream == "driver:cheap-mcp@2"
    assert resolved["candidates_total"] == 2
    assert resolved["candidates_passed_phase_2_capability"] == 2
    assert resolved["candidates_passed_phase_3_policy"] == 1
    assert resolved["pinned_provider"] is None
    (rejected,) = resolved["rejected"]
    assert rejected.keys() == {"provider_id", "phase", "reason"}
    assert (rejected["provider_id"], rejected["phase"]) == ("abroad-mcp@1", 3)
    assert resolved["selected"] == {
        "provider_id": "cheap-mcp@2", "kind": "mcp", "cost_units_per_call": 3,
    }  # fmt: skip
    assert invoked["input_keys"] == tool["input_keys"] == ["text"]
    assert invoked["provider_id"] == tool["resolved_provider_id"] == "cheap-mcp"
    assert invoked["provider_version"] == tool["resolved_provider_version"] == "2.1.0"
    assert invoked["cost_units_charged"] == 3
    assert (invoked["auth_state"], invoked["ok"]) == ("authed", True)
    assert (invoked["mcp_tool_name"], invoked["kind"]) == ("echo", "mcp")
    assert (invoked["transport"], invoked["server_kind"]) == ("stdio", "binary")
    assert 0 < invoked["duration_ms"] <= tool["duration_ms"]
    assert (tool["tool_version"], tool["tool_mutates"]) == ("1.4.0", [])
    assert (tool["retries"], tool["ok"]) == (0, True)


@pytest.mark.spec("DR-30.audit-1", "DR-30.audit-2")
async def test_unserved_call_journals_reasons(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    contract = workspace.contract()
    workspace.driver("abroad-mcp", workspace.echoes(contract), region=["moon"])

    async with running(workspace, workspace.config(region="eu")) as node:
        error = await node.refused("text.echo", text="hello")
        assert error.failure.name == "no_route_in_region"
        ((entry, row),) = await node.rows("driver.resolved", "driver.invoked", "tool.invoked")
        assert entry.outcome == "no_route_in_region"
        assert row["selected"] is None
        assert len(row["rejected"]) == 1


@pytest.mark.spec("DR-30.audit-4")
async def test_journal_and_log_contain_no_arguments(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    workspace = workspace_of_two(tmp_path)
    inputs = {"type": "object", "properties": {"text": {"type": "string", "maxLength": 5}}}
    strict = workspace.contract("text.short", inputs=inputs)
    workspace.driver("short-mcp", workspace.echoes(strict))

    caplog.set_level("DEBUG")
    async with running(workspace) as node:
        await node.call("text.echo", text=SECRET)
        await node.refused("text.short", text=SECRET)
        rows = await node.rows("driver.resolved", "driver.invoked", "tool.invoked")
        assert len(rows) == 3
    for file in (tmp_path / "state").rglob("*"):
        assert file.is_dir() or SECRET.encode() not in file.read_bytes(), file
    assert SECRET not in caplog.text


@pytest.mark.spec("DR-30.audit-3")
async def test_every_attempt_has_own_entry(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    contract = workspace.contract()
    workspace.driver("a-mcp", workspace.serves(contract, "crash"))
    workspace.driver("b-mcp", workspace.echoes(contract))

    async with running(workspace) as node:
        await node.call("text.echo", text="hello")
        rows = await node.rows("driver.invoked")
        assert [(entry.upstream, entry.outcome) for entry, _ in rows] == [
            ("driver:a-mcp@1", "tool_unavailable"),
            ("driver:b-mcp@1", "ok"),
        ]
