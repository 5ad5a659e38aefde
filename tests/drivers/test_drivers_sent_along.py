"""A contract that asks for a context and for a human: the human sees the context, and the driver
gets the one that was approved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.drivers.driver_workspace import ANY, Workspace, running
from tests.drivers.test_drivers_approvals import ALLOWED, Human, held

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


def tenants(folder: Path, *drivers: str) -> Workspace:
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


def sent(workspace: Workspace) -> list[Any]:
    return [one["params"]["arguments"] for one in workspace.heard("tools/call")]


async def test_the_driver_gets_the_context_that_the_human_saw(tmp_path: Path) -> None:
    workspace, human = tenants(tmp_path, "who-mcp"), Human(tmp_path)

    config = workspace.config(more=ALLOWED + human.config, allow_code=["who-mcp"])
    async with running(workspace, config) as node:
        blue = held(await node.result("who.asks", {}, meta=BLUE))
        assert blue["meta"] == BLUE
        green = held(await node.result("who.asks", {}, meta={CONTEXT: {"tenant": "green"}}))
        assert green["confirmation_id"] != blue["confirmation_id"]
        assert sent(workspace) == []
        await human.confirms(node, blue)
        assert sent(workspace) == [{"tenant": "blue"}]
        await human.confirms(node, green)
        assert sent(workspace) == [{"tenant": "blue"}, {"tenant": "green"}]


@pytest.mark.parametrize("meta", [None, {CONTEXT: {"tenant": 5}}], ids=["missing", "wrong"])
async def test_no_human_is_asked_about_a_context_that_does_not_fit(
    tmp_path: Path, meta: dict[str, Any] | None
) -> None:
    workspace, human = tenants(tmp_path, "who-mcp"), Human(tmp_path)

    config = workspace.config(more=ALLOWED + human.config, allow_code=["who-mcp"])
    async with running(workspace, config) as node:
        error = await node.refused("who.asks", meta)
        assert error.failure.name == "invalid_arguments"
        (problem,) = (error.data or {})["problems"]
        assert problem["field"].startswith("context")
        assert node.node.status().waiting == 0
        assert workspace.heard() == []


@pytest.mark.parametrize("pin", ["a-mcp", "b-mcp"])
async def test_the_driver_that_the_call_asked_for_serves_it(tmp_path: Path, pin: str) -> None:
    workspace, human = tenants(tmp_path, "a-mcp", "b-mcp"), Human(tmp_path)

    config = workspace.config(more=ALLOWED + human.config, allow_code=["a-mcp", "b-mcp"])
    async with running(workspace, config) as node:
        waiting = held(await node.result("who.asks", {}, meta={**BLUE, DRIVER: pin}))
        assert waiting["meta"] == {**BLUE, DRIVER: pin}
        await human.confirms(node, waiting)
        assert sent(workspace) == [{"tenant": "blue"}]
        served = [one.id for one in node.drivers.status() if one.state == "running"]
        assert served == [pin]
