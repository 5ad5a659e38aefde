"""`interlock drivers check`: problems with their place, warnings, and differences from live
servers."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from tests.cli.drivers_workspace import STAND_IN, contract, driver, entry, secrets
from tests.support.command_line import CommandLine

pytestmark = pytest.mark.feature("drivers")


def check_drivers(world: CommandLine, *more: str) -> dict[str, Any]:
    result = world.run_here("drivers", "check", "--json", *more)
    assert "Traceback" not in result.stderr
    data: dict[str, Any] = json.loads(result.stdout)
    assert data["ok"] is (result.returncode == 0)
    return data


def test_check_accepts_valid_drivers(world: CommandLine) -> None:
    contract(world)
    driver(world, server={"kind": "binary", "path": "files"})
    result = world.run_here("drivers", "check")
    assert result.returncode == 0
    assert result.stdout == "1 driver, 1 contract: no problems.\n"
    assert result.stderr == ""


def test_problems_have_place_and_hint(world: CommandLine) -> None:
    contract(world)
    path = driver(world, regoin=["eu"], transport="ws", version="1")
    result = world.run_here("drivers", "check")
    assert result.returncode == 1
    first, *_ = result.stderr.splitlines()
    assert first.startswith(".drivers/files-mcp/DRIVER.md:")
    assert 'did you mean "region"?' in result.stderr
    assert "stdio" in result.stderr
    assert result.stdout == "0 drivers, 1 contract: 2 problems, 1 warning.\n"
    response = check_drivers(world)
    assert all(
        problem["file"] == str(path) and problem["line"] > 0 for problem in response["problems"]
    )


def test_invalid_file_does_not_affect_others(world: CommandLine) -> None:
    contract(world)
    driver(world)
    broken = driver(world, "other-mcp")
    broken.write_text("---\nname: [\n---\n")
    response = check_drivers(world)
    assert response["drivers"] == 1
    assert [problem["file"] for problem in response["problems"]] == [str(broken)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"implements": [entry("fs-nothing")]}, "there is no contract fs-nothing"),
        ({"implements": [entry(mcp={"argument_mapping": {"pth": "path"}})]}, "did you mean"),
        ({"implements": [entry(mcp={"result_extract": "$..x"})]}, "result_extract"),
        ({"implements": [entry(version="^2.0.0")]}, "but fs-read is"),
        ({"implements": [entry(schema_narrowing={"drop_inputs": ["path"]})]}, "is required"),
        ({"server": {"kind": "binary", "path": "x", "env": {"A": "${secrets.A_B}"}}}, "A_B"),
    ],
)
def test_finds_mismatches_without_starting_server(
    world: CommandLine, change: dict[str, Any], message: str
) -> None:
    contract(world)
    path = driver(world, **change)
    response = check_drivers(world)
    [problem, *_] = response["problems"]
    assert problem["file"] == str(path)
    assert message in f"{problem['message']} {problem['hint']}".replace("Did", "did")


def test_strict_check_fails_on_warnings(world: CommandLine) -> None:
    contract(world, timeout_ms=1000)
    driver(world, "odd", timeout_override_ms=5000)
    result = world.run_here("drivers", "check")
    assert result.returncode == 0
    assert "Warning: .drivers/odd/DRIVER.md" in result.stderr
    assert "-mcp" in result.stderr
    assert "timeout_override_ms 5000 exceeds timeout_ms of the contract" in result.stderr
    assert world.run_here("drivers", "check", "--strict").returncode == 1


def test_live_check_compares_server_with_driver(world: CommandLine) -> None:
    contract(world)
    contract(world, "fs-other")
    path = driver(
        world,
        implements=[entry(), entry("fs-other", "read_fil")],
        prompts=[{"name": "nothing", "integrate_as": "raw"}],
    )
    assert world.run_here("drivers", "check").returncode == 0
    result = world.run_here("drivers", "check", "--live")
    assert result.returncode == 1
    assert (
        "✗ files-mcp: the server's tools do not fit the contracts, stand-in 3.2.1" in result.stdout
    )
    assert "the server has no tool 'read_fil'. Did you mean 'read_file'?" in result.stderr
    assert "the server offers no prompt nothing" in result.stderr
    response = check_drivers(world, "--live")
    [problem] = response["problems"]
    line = next(
        number
        for number, text in enumerate(path.read_text().splitlines(), 1)
        if text.strip() == "- tool: fs-other"
    )
    assert (problem["driver"], problem["line"]) == ("files-mcp", line)


def test_unreachable_server_has_own_exit_code(world: CommandLine) -> None:
    contract(world)
    driver(world, server={"kind": "binary", "path": "not-there"})
    driver(world, "fine-mcp", server={"kind": "binary", "path": sys.executable, "args": [STAND_IN]})
    result = world.run_here("drivers", "check", "--live")
    assert result.returncode == 4
    assert "✗ files-mcp" in result.stdout
    assert "✓ fine-mcp: 1 of 1 contracts fit" in result.stdout


def test_check_accepts_paths(world: CommandLine) -> None:
    contract(world)
    one = driver(world)
    driver(world, "other-mcp").write_text("nothing")
    secrets(world, "files-mcp", "a-key")
    for path in (".drivers/files-mcp", ".drivers/files-mcp/DRIVER.md", str(one.parent)):
        response = check_drivers(world, path)
        assert (response["drivers"], response["problems"]) == (1, []), path
    assert check_drivers(world, "tools/fs-read/TOOL.md")["contracts"] == 1
    assert check_drivers(world, ".drivers/files-mcp/SECRETS.md")["ok"]
    assert len(check_drivers(world, ".")["problems"]) == 1
    assert len(check_drivers(world, ".drivers")["problems"]) == 1
    missing = world.run_here("drivers", "check", "nowhere")
    assert missing.returncode == 3
    assert "there is no such file or folder" in missing.stderr
    (world.cwd / "README.md").write_text("x")
    other = world.run_here("drivers", "check", "README.md")
    assert other.returncode == 3
    assert "this is not a manifest" in other.stderr


def test_rejects_secret_value_without_printing_it(world: CommandLine) -> None:
    contract(world)
    driver(world, auth={"ref": "./SECRETS.md"})
    path = secrets(world, "files-mcp", "a-key")
    path.write_text(path.read_text().replace("name: a-key", "name: a-key\n    value: hush-hush"))
    result = world.run_here("drivers", "check")
    assert result.returncode == 1
    assert "SECRETS.md:" in result.stderr
    assert "hush" not in result.stderr + result.stdout


def test_check_reads_driver_folders_of_config(world: CommandLine) -> None:
    world.config(drivers={"folders": ["servers"], "contracts": ["tools"]})
    contract(world)
    path = driver(world)
    path.parent.rename(world.cwd / "moved")
    (world.cwd / "servers").mkdir()
    (world.cwd / "moved").rename(world.cwd / "servers" / "files-mcp")
    assert check_drivers(world)["drivers"] == 1
    world.config(drivers={"foldrs": ["servers"]})
    assert world.run_here("drivers", "check").returncode == 3


def test_empty_folder_is_valid(world: CommandLine) -> None:
    assert check_drivers(world) == {
        "ok": True,
        "drivers": 0,
        "contracts": 0,
        "problems": [],
        "warnings": [],
    }
