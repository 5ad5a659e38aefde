"""`_meta` of a call: only described context reaches the code of a driver."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from interlock.drivers.resolver import SelectionPolicy as Rules
from tests.drivers.driver_decisions import candidate, decide
from tests.drivers.driver_workspace import ANY, Workspace, running

pytestmark = pytest.mark.usefixtures("no_leaks")

CODE = """
from interlock.drivers.sdk import define_driver

def build_arguments(args):
    return {"tenant": args.context.get("tenant")}

driver = define_driver(build_arguments=build_arguments)
"""
CONTEXT = "dev.interlock/context"
DRIVER = "dev.interlock/driver"


def tenant_workspace(folder: Path, **fields: Any) -> Workspace:
    workspace = Workspace(folder)
    contract = workspace.contract("who.asks", inputs=ANY, outputs=ANY, **fields)
    file = workspace.driver("who-mcp", workspace.serves(contract, "show"))
    (file.parent / "driver.py").write_text(CODE, encoding="utf-8")
    return workspace


@pytest.mark.parametrize("described", [True, False])
async def test_undeclared_context_reaches_no_hook(tmp_path: Path, described: bool) -> None:
    schema = {"type": "object", "properties": {"tenant": {"type": "string"}}}
    fields = {"metadata": {"contextSchema": schema}} if described else {}
    workspace = tenant_workspace(tmp_path, **fields)

    async with running(workspace, workspace.config(allow_code=["who-mcp"])) as node:
        await node.result("who.asks", {}, meta={CONTEXT: {"tenant": "another"}})
        (heard,) = workspace.heard("tools/call")
        wanted = "another" if described else None
        assert heard["params"]["arguments"] == {"tenant": wanted}


@pytest.mark.parametrize("pin", [["nobody"], 1, {}, "", False])
async def test_rejects_pin_that_is_not_text(tmp_path: Path, pin: Any) -> None:
    workspace = tenant_workspace(tmp_path)

    async with running(workspace, workspace.config(allow_code=["who-mcp"])) as node:
        error = await node.refused("who.asks", {DRIVER: pin})
        assert error.failure.name == "invalid_params"
        assert workspace.heard() == []


@pytest.mark.parametrize(
    ("fixed", "pinned", "chosen"),
    [
        ("a-mcp", "a-mcp@1", ["a-mcp@1"]),
        ("a-mcp@1", "a-mcp", ["a-mcp@1"]),
        ("a-mcp@1", "a-mcp@1", ["a-mcp@1"]),
        ("a-mcp@1", "a-mcp@2", []),
        ("a-mcp", "b-mcp@1", []),
        ("a", "a-mcp@1", []),
    ],
)
def test_compatible_pins_do_not_conflict(fixed: str, pinned: str, chosen: list[str]) -> None:
    made = [
        candidate("a-mcp", version="1.0.0"),
        candidate("a-mcp", version="2.0.0"),
        candidate("b-mcp", version="1.0.0"),
    ]
    decision = decide(*made, workspace=Rules(pins={"image.create": fixed}), pinned=pinned)
    assert [item.driver.key for item in decision.order] == chosen
    if not chosen:
        assert decision.failure is not None
        assert decision.failure.name == "policy_violation"
        assert pinned in decision.message
