"""Contracts with a context and an approval: the driver receives the approved context."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.drivers.driver_workspace import ANY, Workspace, running
from tests.drivers.test_drivers_approvals import ALLOWED, Approver, assert_pending

pytestmark = pytest.mark.usefixtures("no_leaks")

CONTEXT, DRIVER = "dev.interlock/context", "dev.interlock/driver"
SCHEMA = {
    "type": "object",
    "properties": {"tenant": {"type": "string"}},
    "required": ["tenant"],
}
CODE = """
from interlock.drivers.folders import DriverFolders
from interlock.drivers.sdk import define_driver

def build_arguments(args):
    return {"tenant": args.context["tenant"]}

driver = define_driver(build_arguments=build_arguments)
"""
BLUE = {CONTEXT: {"tenant": "blue"}}


def tenant_workspace(folder: Path, *drivers: str) -> Workspace:
    workspace = Workspace(folder)
    contract = workspace.contract(
        "who.asks",
        inputs=ANY,
        outputs=ANY,
        approval="always",
        metadata={"contextSchema": SCHEMA},
    )
    for id in drivers:
        file = workspace.driver(id, workspace.serves(contract, "show"))
        (file.parent / "driver.py").write_text(CODE, encoding="utf-8")
    return workspace


def sent_contexts(workspace: Workspace) -> list[Any]:
    return [message["params"]["arguments"] for message in workspace.heard("tools/call")]


async def test_driver_receives_approved_context(tmp_path: Path) -> None:
    workspace, human = tenant_workspace(tmp_path, "who-mcp"), Approver(tmp_path)

    config = workspace.config(more=ALLOWED + human.config, allow_code=["who-mcp"])
    async with running(workspace, config) as node:
        blue = assert_pending(await node.result("who.asks", {}, meta=BLUE))
        assert blue["meta"] == BLUE
        green = assert_pending(
            await node.result("who.asks", {}, meta={CONTEXT: {"tenant": "green"}})
        )
        assert green["confirmation_id"] != blue["confirmation_id"]
        assert sent_contexts(workspace) == []
        await human.confirms(node, blue)
        assert sent_contexts(workspace) == [{"tenant": "blue"}]
        await human.confirms(node, green)
        assert sent_contexts(workspace) == [{"tenant": "blue"}, {"tenant": "green"}]


@pytest.mark.parametrize("meta", [None, {CONTEXT: {"tenant": 5}}], ids=["missing", "wrong"])
async def test_invalid_context_is_rejected_before_approval(
    tmp_path: Path, meta: dict[str, Any] | None
) -> None:
    workspace, human = tenant_workspace(tmp_path, "who-mcp"), Approver(tmp_path)

    config = workspace.config(more=ALLOWED + human.config, allow_code=["who-mcp"])
    async with running(workspace, config) as node:
        error = await node.refused("who.asks", meta)
        assert error.failure.name == "invalid_arguments"
        (problem,) = (error.data or {})["problems"]
        assert problem["field"].startswith("context")
        assert node.node.status().waiting == 0
        assert workspace.heard() == []


@pytest.mark.parametrize("pin", ["a-mcp", "b-mcp"])
async def test_pinned_driver_serves_approved_call(tmp_path: Path, pin: str) -> None:
    workspace, human = tenant_workspace(tmp_path, "a-mcp", "b-mcp"), Approver(tmp_path)

    config = workspace.config(more=ALLOWED + human.config, allow_code=["a-mcp", "b-mcp"])
    async with running(workspace, config) as node:
        waiting = assert_pending(await node.result("who.asks", {}, meta={**BLUE, DRIVER: pin}))
        assert waiting["meta"] == {**BLUE, DRIVER: pin}
        await human.confirms(node, waiting)
        assert sent_contexts(workspace) == [{"tenant": "blue"}]
        served = [item.id for item in node.drivers.status() if item.state == "running"]
        assert served == [pin]
