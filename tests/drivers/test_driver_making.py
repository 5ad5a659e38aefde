"""Drivers made from manifests, and contracts that cannot be used."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from interlock.drivers.component import create_driver
from interlock.drivers.contract_shape import ContractShape
from interlock.drivers.driver import Driver
from interlock.errors import TOOL_UNAVAILABLE, InterlockError
from interlock.manifests.model import ToolContract
from interlock.manifests.workspace import load_workspace
from tests.drivers.driver_workspace import Workspace, running

pytestmark = pytest.mark.usefixtures("no_leaks")

UNUSABLE = "text.bad: `outputs` cannot be used."


def shape_of(contract: ToolContract) -> ContractShape:
    """As the node's own, which finds something wrong that reading the file did not."""
    if contract.id == "text.bad":
        raise InterlockError(TOOL_UNAVAILABLE, UNUSABLE)
    return ContractShape(contract)


@pytest.mark.parametrize("alone", [False, True], ids=["one-of-two", "the-only-one"])
@pytest.mark.parametrize("strict", [False, True], ids=["lenient", "strict"])
async def test_unusable_contract_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, alone: bool, strict: bool
) -> None:
    workspace = Workspace(tmp_path)
    ids = ["text.bad"] if alone else ["text.bad", "text.echo"]
    entries = [workspace.echoes(workspace.contract(id)) for id in ids]
    # Nobody starts it.
    workspace.driver("echo-mcp", *entries, server={"kind": "binary", "path": "echo-server"})
    files = load_workspace(tmp_path)

    async def made() -> Driver:
        async with running(workspace) as node:
            drivers = node.drivers
            with caplog.at_level(logging.WARNING):
                return create_driver(
                    files.drivers["echo-mcp@1"],
                    files,
                    config=workspace.config(strict=strict),
                    base_dir=tmp_path,
                    allowed=drivers.contracts.workspace,
                    host=drivers.lifecycle,
                    shape_of=shape_of,
                    inspect=lambda code: None,
                )

    driver = await made()
    assert list(driver.warnings) == [UNUSABLE]
    assert list(driver.bindings) == ([] if alone else ["text.echo@1"])
    assert bool(driver.condition.rejection) is (alone or strict)
    assert caplog.text.count(f"echo-mcp: {UNUSABLE}") == 1
    if driver.condition.rejection:
        assert driver.condition.rejection.startswith(UNUSABLE)
