"""`drivers check` and `check` report what a node would reject."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from interlock.contracts.accepted_contracts import AcceptedContractStore
from interlock.core.config import parse_config
from interlock.manifests.tool_reader import load_contract
from tests.cli.drivers_workspace import PATH_INPUT, contract, driver
from tests.support.command_line import DEMO, CommandLine

pytestmark = pytest.mark.feature("drivers")


def check_problems(world: CommandLine, *command: str) -> tuple[int, str]:
    result = world.run_here(*command, "--json")
    data = json.loads(result.stdout)
    assert data["ok"] is (result.returncode == 0)
    return result.returncode, json.dumps(data["problems"])


@pytest.mark.parametrize(
    ("settings", "manifest", "message"),
    [
        ({"trust": ["no/such.pem"]}, {}, "such.pem"),
        ({}, {"network": {"egress": ["*"]}}, "network.egress"),
        ({"pins": {"fs-raed": "files-mcp"}}, {}, "there is no contract fs-raed"),
        ({"pins": {"fs-read": "flies-mcp"}}, {}, "there is no driver flies-mcp"),
        ({"secrets": {"nobody": "${env:HOME}"}}, {}, "no inventory lists the secret nobody"),
        ({"contracts": ["tools", "contrats"]}, {}, "there is no folder contrats"),
    ],
)
def test_check_reports_what_node_would_reject(
    world: CommandLine, settings: dict[str, Any], manifest: dict[str, Any], message: str
) -> None:
    contract(world)
    driver(world, **manifest)
    world.config({"demo": DEMO}, drivers=settings)
    for command in (("drivers", "check"), ("check",)):
        code, told = check_problems(world, *command)
        assert code == 1
        assert message in told


def test_check_reports_unresolved_driver_secret(world: CommandLine) -> None:
    world.config({"demo": DEMO}, drivers={"secrets": {"key": "${env:NO_SUCH_VARIABLE}"}})
    code, told = check_problems(world, "check")
    assert code == 1
    assert "NO_SUCH_VARIABLE" in told


def test_check_warns_about_folder_without_manifest(world: CommandLine) -> None:
    contract(world)
    path = driver(world)
    path.rename(path.with_name("driver.md"))
    (world.cwd / ".drivers" / "empty").mkdir()
    world.config({"demo": DEMO})
    for command in (("drivers", "check"), ("check",)):
        result = world.run_here(*command)
        assert result.returncode == 0
        assert "driver.md is not read: rename it to DRIVER.md" in result.stderr
        assert "it contains no DRIVER.md" in result.stderr


def test_check_reports_contract_broken_since_acceptance(world: CommandLine) -> None:
    path = contract(world)
    driver(world)
    world.config({"demo": DEMO}, state_dir="state")
    config = parse_config("state_dir: state\n")
    accepted = load_contract(path).value
    assert accepted is not None
    AcceptedContractStore.from_config(config, os.environ, world.cwd).accept(accepted)
    assert check_problems(world, "drivers", "check") == (0, "[]")
    contract(world, inputs={**PATH_INPUT, "required": ["path", "mode"]})
    code, told = check_problems(world, "drivers", "check")
    assert code == 1
    assert "no new major version" in told
