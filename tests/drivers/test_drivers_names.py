"""Names of contracts beside tools of servers: the tools of a server keep their names."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

import pytest

from tests.drivers.driver_workspace import ANY, SERVER, Running, Workspace, running
from tests.support.upstreams import run

pytestmark = pytest.mark.usefixtures("no_leaks")

MESSAGE_IN = {
    "type": "object",
    "properties": {"message": {"type": "string"}},
    "required": ["message"],
}


def server_and_contract(folder: Path, contract: str) -> tuple[Workspace, Path, str]:
    """A workspace with a contract, beside a server `bank` that writes down what it hears."""
    workspace = Workspace(folder)
    named = workspace.contract(contract, inputs=MESSAGE_IN, outputs=ANY)
    workspace.driver("other-mcp", workspace.serves(named, "echo"))
    heard = folder / "bank.jsonl"
    args = json.dumps([str(SERVER), "--heard", str(heard)])
    servers = f"servers:\n  bank: {{command: {sys.executable}, args: {args}}}\n"
    return workspace, heard, servers + "policy: {default: allow}\n"


async def until_bank(node: Running) -> None:
    await node.until(lambda: "bank.add" in node.tools, "the server's tools")


def test_contract_does_not_replace_tool_of_server(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    workspace, heard, more = server_and_contract(tmp_path, "bank.echo")

    async def body() -> None:
        async with running(workspace, workspace.config(more=more)) as node:
            await until_bank(node)
            for name in ("bank.echo", "bank__echo"):
                assert node.node.catalog.current.by_name[name].upstream == "bank"
                await node.result(name, {"message": "transfer"})
            assert workspace.heard() == []
            assert heard.read_text().count("tools/call") == 2
            (status,) = node.drivers.contract_status()
            assert status.names == []
            assert "the server bank has bank.echo" in status.problem

    with caplog.at_level(logging.WARNING):
        run(body)
    assert caplog.text.count("contract bank.echo: not offered") == 1


async def test_contract_with_free_name_is_offered(tmp_path: Path) -> None:
    workspace, _, more = server_and_contract(tmp_path, "bank.other")

    async with running(workspace, workspace.config(more=more)) as node:
        await until_bank(node)
        assert {"bank.echo", "bank.other"} <= set(node.tools)
        await node.result("bank__other", {"message": "x"})
        assert len(workspace.heard("tools/call")) == 1
        (status,) = node.drivers.contract_status()
        assert (status.names, status.problem) == (["bank.other"], "")


async def test_approval_of_shadowed_contract_does_not_apply_to_server(tmp_path: Path) -> None:
    workspace, heard, more = server_and_contract(tmp_path, "bank.echo")
    workspace.contract("bank.echo", inputs=MESSAGE_IN, outputs=ANY, approval="always")

    async with running(workspace, workspace.config(more=more)) as node:
        await until_bank(node)
        result = await node.result("bank.echo", {"message": "x"})
        assert "x-mcpax-status" not in result.get("_meta", {})
        assert "tools/call" in heard.read_text()


async def test_contract_name_is_reserved_until_server_is_ready(tmp_path: Path) -> None:
    """A node that starts knows its contracts at once, and what its servers have only later."""
    workspace, _, _ = server_and_contract(tmp_path, "bank.echo")
    free = workspace.contract("bank.free", inputs=MESSAGE_IN, outputs=ANY)
    workspace.driver("free-mcp", workspace.serves(free, "echo"))
    down = tmp_path / "down"
    down.write_text("", encoding="utf-8")
    args = json.dumps([str(SERVER), "--down", str(down)])
    more = f"servers:\n  bank: {{command: {sys.executable}, args: {args}}}\n"

    config = workspace.config(more=more)
    async with running(workspace, config) as node:
        for name in ("bank.echo", "bank__echo", "bank.free"):
            error = await node.refused(name, message="transfer")
            assert error.failure.name == "unknown_tool"
        assert node.tools == []
        problems = [item.problem for item in node.drivers.contract_status()]
        assert all("the server bank is not connected" in problem for problem in problems)
        down.unlink()
        await until_bank(node)
        assert node.node.catalog.current.by_name["bank.echo"].upstream == "bank"
        assert node.node.catalog.current.by_name["bank.free"].upstream == "drivers:"
        # Without the server in the config the names are anybody's.
        await node.node.apply(workspace.config())
        assert node.tools == ["bank.echo", "bank.free"]
        assert workspace.heard("tools/call") == []
