"""`interlock drivers check`: every problem with its place, warnings, and servers that differ."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from tests.cli.drivers_workspace import STAND_IN, contract, driver, entry, secrets
from tests.support.command_line import CommandLine

pytestmark = pytest.mark.feature("drivers")


def checked(world: CommandLine, *more: str) -> dict[str, Any]:
    done = world.run_here("drivers", "check", "--json", *more)
    assert "Traceback" not in done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    assert told["ok"] is (done.returncode == 0)
    return told


def test_all_is_well(world: CommandLine) -> None:
    contract(world)
    driver(world, server={"kind": "binary", "path": "files"})
    done = world.run_here("drivers", "check")
    assert done.returncode == 0
    assert done.stdout == "1 driver, 1 contract: no problems.\n"
    assert done.stderr == ""


def test_problems_have_a_place_and_a_hint(world: CommandLine) -> None:
    contract(world)
    path = driver(world, regoin=["eu"], transport="ws", version="1")
    done = world.run_here("drivers", "check")
    assert done.returncode == 1
    first, *_ = done.stderr.splitlines()
    assert first.startswith(".drivers/files-mcp/DRIVER.md:")
    assert 'did you mean "region"?' in done.stderr
    assert "stdio" in done.stderr
    assert done.stdout == "0 drivers, 1 contract: 2 problems, 1 warning.\n"
    told = checked(world)
    assert all(one["file"] == str(path) and one["line"] > 0 for one in told["problems"])


def test_a_broken_file_takes_only_itself_out(world: CommandLine) -> None:
    contract(world)
    driver(world)
    broken = driver(world, "other-mcp")
    broken.write_text("---\nname: [\n---\n")
    told = checked(world)
    assert told["drivers"] == 1
    assert [one["file"] for one in told["problems"]] == [str(broken)]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"implements": [entry("fs-nothing")]}, "there is no contract fs-nothing"),
        ({"implements": [entry(mcp={"argument_mapping": {"pth": "path"}})]}, "did you mean"),
        ({"implements": [entry(mcp={"result_extract": "$..x"})]}, "result_extract"),
        ({"implements": [entry(version="^2.0.0")]}, "but fs-read is"),
        ({"implements": [entry(schema_narrowing={"drop_inputs": ["path"]})]}, "is required"),
        ({"server": {"kind": "binary", "path": "x", "env": {"A": "${secrets.A_B}"}}}, "A_B"),
    ],
)
def test_what_does_not_fit_together_is_found_without_a_server(
    world: CommandLine, change: dict[str, Any], words: str
) -> None:
    contract(world)
    path = driver(world, **change)
    told = checked(world)
    [problem, *_] = told["problems"]
    assert problem["file"] == str(path)
    assert words in f"{problem['message']} {problem['hint']}".replace("Did", "did")


def test_warnings_count_when_they_are_to(world: CommandLine) -> None:
    contract(world, timeout_ms=1000)
    driver(world, "odd", timeout_override_ms=5000)
    done = world.run_here("drivers", "check")
    assert done.returncode == 0
    assert "Warning: .drivers/odd/DRIVER.md" in done.stderr
    assert "-mcp" in done.stderr
    assert "timeout_override_ms 5000 exceeds timeout_ms of the contract" in done.stderr
    assert world.run_here("drivers", "check", "--strict").returncode == 1


def test_a_server_is_held_against_its_driver(world: CommandLine) -> None:
    contract(world)
    contract(world, "fs-other")
    path = driver(
        world,
        implements=[entry(), entry("fs-other", "read_fil")],
        prompts=[{"name": "nothing", "integrate_as": "raw"}],
    )
    assert world.run_here("drivers", "check").returncode == 0
    done = world.run_here("drivers", "check", "--live")
    assert done.returncode == 1
    assert "✗ files-mcp: the server's tools do not fit the contracts, stand-in 3.2.1" in done.stdout
    assert "the server has no tool 'read_fil'. Did you mean 'read_file'?" in done.stderr
    assert "the server offers no prompt nothing" in done.stderr
    told = checked(world, "--live")
    [problem] = told["problems"]
    line = next(
        number
        for number, text in enumerate(path.read_text().splitlines(), 1)
        if text.strip() == "- tool: fs-other"
    )
    assert (problem["driver"], problem["line"]) == ("files-mcp", line)


def test_a_server_that_cannot_be_reached_has_its_own_code(world: CommandLine) -> None:
    contract(world)
    driver(world, server={"kind": "binary", "path": "not-there"})
    driver(world, "fine-mcp", server={"kind": "binary", "path": sys.executable, "args": [STAND_IN]})
    done = world.run_here("drivers", "check", "--live")
    assert done.returncode == 4
    assert "✗ files-mcp" in done.stdout
    assert "✓ fine-mcp: 1 of 1 contracts fit" in done.stdout


def test_paths_are_what_a_person_would_name(world: CommandLine) -> None:
    contract(world)
    one = driver(world)
    driver(world, "other-mcp").write_text("nothing")
    secrets(world, "files-mcp", "a-key")
    for path in (".drivers/files-mcp", ".drivers/files-mcp/DRIVER.md", str(one.parent)):
        told = checked(world, path)
        assert (told["drivers"], told["problems"]) == (1, []), path
    assert checked(world, "tools/fs-read/TOOL.md")["contracts"] == 1
    assert checked(world, ".drivers/files-mcp/SECRETS.md")["ok"]
    assert len(checked(world, ".")["problems"]) == 1
    assert len(checked(world, ".drivers")["problems"]) == 1
    missing = world.run_here("drivers", "check", "nowhere")
    assert missing.returncode == 3
    assert "there is no such file or folder" in missing.stderr
    (world.cwd / "README.md").write_text("x")
    other = world.run_here("drivers", "check", "README.md")
    assert other.returncode == 3
    assert "this is not a manifest" in other.stderr


def test_a_value_in_an_inventory_is_refused_and_not_repeated(world: CommandLine) -> None:
    contract(world)
    driver(world, auth={"ref": "./SECRETS.md"})
    path = secrets(world, "files-mcp", "a-key")
    path.write_text(path.read_text().replace("name: a-key", "name: a-key\n    value: hush-hush"))
    done = world.run_here("drivers", "check")
    assert done.returncode == 1
    assert "SECRETS.md:" in done.stderr
    assert "hush" not in done.stderr + done.stdout


def test_the_config_says_where_drivers_are(world: CommandLine) -> None:
    world.config(drivers={"folders": ["servers"], "contracts": ["tools"]})
    contract(world)
    path = driver(world)
    path.parent.rename(world.cwd / "moved")
    (world.cwd / "servers").mkdir()
    (world.cwd / "moved").rename(world.cwd / "servers" / "files-mcp")
    assert checked(world)["drivers"] == 1
    world.config(drivers={"foldrs": ["servers"]})
    assert world.run_here("drivers", "check").returncode == 3


def test_an_empty_folder_is_no_mistake(world: CommandLine) -> None:
    assert checked(world) == {
        "ok": True,
        "drivers": 0,
        "contracts": 0,
        "problems": [],
        "warnings": [],
    }
