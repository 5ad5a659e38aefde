"""Checks of a driver's server against its manifest, at the start and whenever its tools change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.drivers.driver_workspace import ANY, SERVER, TEXT_IN, Workspace, running

pytestmark = pytest.mark.usefixtures("no_leaks")

OPTIONAL = {"type": "object", "properties": {"text": {"type": "string"}}}
NUMBER = {"type": "object", "properties": {"text": {"type": "number"}}, "required": ["text"]}


@pytest.mark.spec("DR-32.mapping-2", "DR-32.pertool-1", "DR-30.resolver-7")
async def test_misspelled_tool_fails_at_start_without_affecting_others(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    good, bad = workspace.contract(), workspace.contract("text.bad")
    workspace.driver("echo-mcp", workspace.echoes(good))
    workspace.driver("bad-mcp", workspace.serves(bad, "ecko", argument_mapping={"text": "message"}))

    async with running(workspace, workspace.config(verify="start")) as node:
        await node.until(lambda: node.driver("bad-mcp").verified, "the look at its tools")
        await node.until(lambda: node.driver("echo-mcp").verified, "the look at the other's")
        status = node.status("bad-mcp")
        assert status.state == "refused"
        (binding,) = status.bindings
        (problem,) = binding.problems
        assert "'ecko'" in problem
        assert "'echo'" in problem
        await node.until(lambda: node.tools == ["text.echo"], "the list without it")
        assert workspace.heard("tools/call") == []
        assert (await node.call("text.echo", text="hello"))["said"] == "hello"
        # Who was only asked for its tools does not go on running.
        await node.until(lambda: node.pid("bad-mcp") is None, "its end")


@pytest.mark.spec("DR-32.security-2", "DR-32.mapping-2")
@pytest.mark.parametrize(
    ("tool", "inputs", "entry", "message"),
    [
        ("echo", TEXT_IN, {}, "requires 'message', but no input"),
        ("echo", OPTIONAL, {"argument_mapping": {"text": "message"}}, "an optional input"),
        ("echo", NUMBER, {"argument_mapping": {"text": "message"}}, "is number"),
    ],
    ids=["not supplied", "optional only", "another type"],
)
async def test_mismatched_tool_fails_without_call(
    tmp_path: Path, tool: str, inputs: dict[str, Any], entry: dict[str, Any], message: str
) -> None:
    workspace = Workspace(tmp_path)
    contract = workspace.contract(inputs=inputs)
    workspace.driver("echo-mcp", workspace.serves(contract, tool, **entry))

    async with running(workspace, workspace.config(verify="start")) as node:
        await node.until(lambda: node.status().state == "refused", "the refusal")
        assert message in node.status().bindings[0].problems[0]
        await node.until(lambda: node.tools == [], "the empty list")
        error = await node.refused("text.echo", text="hello")
        assert error.failure.name == "unknown_tool"
        assert workspace.heard("tools/call") == []


@pytest.mark.spec("DR-32.mapping-4")
async def test_unverified_driver_is_checked_before_first_dispatch(
    tmp_path: Path,
) -> None:
    workspace = Workspace(tmp_path)
    contract = workspace.contract()
    workspace.driver("echo-mcp", workspace.serves(contract, "ecko"))

    async with running(workspace) as node:
        assert node.status().state == "unverified"
        error = await node.refused("text.echo", text="hello")
        assert error.failure.name == "tool_unavailable"
        assert "'ecko'" in error.message
        assert workspace.heard("tools/call") == []
        assert node.status().state == "refused"


@pytest.mark.spec("DR-32.mapping-4")
async def test_tool_removed_and_restored_by_server_is_followed(
    tmp_path: Path,
) -> None:
    workspace = Workspace(tmp_path)
    echo = workspace.contract()
    named = {
        "type": "object",
        "properties": {"name": {"type": "string"}},
        "required": ["name"],
    }
    drop = workspace.contract("server.drop", inputs=named, outputs=ANY)
    restore = workspace.contract("server.restore", inputs=named, outputs=ANY)
    workspace.driver(
        "echo-mcp",
        workspace.echoes(echo),
        workspace.serves(drop, "drop"),
        workspace.serves(restore, "restore"),
    )

    async with running(workspace) as node:
        await node.call("text.echo", text="hello")
        assert node.status().state == "running"
        pid = node.pid()
        await node.call("server.drop", name="echo")
        await node.until(lambda: "text.echo" not in node.tools, "the list without it")
        status = node.status()
        assert (status.state, status.pid) == ("running", pid)
        assert "'echo'" in next(
            binding.problems[0] for binding in status.bindings if binding.contract == "text.echo@1"
        )
        error = await node.refused("text.echo", text="hello")
        assert error.failure.name == "unknown_tool"
        await node.call("server.restore", name="echo")
        await node.until(lambda: "text.echo" in node.tools, "the list with it")
        assert (await node.call("text.echo", text="again"))["said"] == "again"


@pytest.mark.spec("DR-32.mapping-4")
async def test_restarted_server_is_checked_again(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    contract = workspace.contract()
    workspace.driver("echo-mcp", workspace.echoes(contract))

    async with running(workspace) as node:
        await node.call("text.echo", text="hello")
        await node.driver().server.end()
        await node.call("text.echo", text="hello")
        assert len(workspace.heard("tools/list")) == 2


@pytest.mark.spec("DR-14.mutates-1")
@pytest.mark.parametrize("strict", [False, True])
async def test_tool_exceeding_declared_effect_is_warned_or_rejected(
    tmp_path: Path, strict: bool
) -> None:
    workspace = Workspace(tmp_path)
    contract = workspace.contract()
    # Without paths of this machine, which would be warned of, too.
    (tmp_path / "server.py").write_bytes(SERVER.read_bytes())
    server = {"kind": "binary", "path": "python3", "args": ["server.py", "--writes"]}
    workspace.driver("echo-mcp", workspace.echoes(contract), server=server)

    config = workspace.config(verify="start", strict=strict)
    async with running(workspace, config) as node:
        await node.until(lambda: node.driver().verified, "the look at its tools")
        (binding,) = node.status().bindings
        told = binding.problems if strict else binding.warnings
        assert "readOnlyHint is false" in told[0]
        assert (node.status().state == "refused") is strict


async def test_limits_concurrent_startup_checks(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    for number in range(5):
        contract = workspace.contract(f"text.echo{number}")
        workspace.driver(f"echo{number}-mcp", workspace.echoes(contract))

    config = workspace.config(verify="start", max_processes=2)
    most = 0
    async with running(workspace, config) as node:
        drivers = node.drivers.lifecycle.drivers.values()

        def all_looked_at() -> bool:
            nonlocal most
            most = max(most, sum(driver.supervisor is not None for driver in drivers))
            return all(driver.verified for driver in drivers)

        await node.until(all_looked_at, "all of them")
        assert most <= 2
