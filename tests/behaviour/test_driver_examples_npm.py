"""Public servers behind drivers for real: installed with npm, confined, reached through a node."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from interlock.manifests.workspace import load_workspace
from tests.behaviour.driver_examples import (
    EXAMPLES,
    call,
    confirm_call,
    copy_examples,
    install_drivers,
    names,
    read_journal,
    result,
    with_npm,
)
from tests.support.command_line import CommandLine
from tests.support.programs import requires_npm
from tests.support.waiting import wait_until

JOURNALLED = {"driver.resolved", "driver.invoked", "tool.invoked"}

pytestmark = [pytest.mark.feature("drivers"), pytest.mark.timeout(1800)]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[CommandLine]:
    one = CommandLine(tmp_path)
    # Where drivers are installed.
    one.environ["XDG_DATA_HOME"] = str(tmp_path / "data")
    try:
        yield one
    finally:
        one.close()


@requires_npm
@pytest.mark.spec("DR-32.compat-3", "DR-32.principles-2", "DR-32.principles-3")
def test_public_npm_servers_work(world: CommandLine) -> None:
    """As the README has it: check, install, try, run, read, list, and write with a human's yes."""
    copy_examples(world, EXAMPLES)
    before = world.run_here("drivers", "list", "--json")
    states = {driver["id"]: driver["state"] for driver in json.loads(before.stdout)["drivers"]}
    assert states["filesystem-mcp"] == "failing"
    install_drivers(world, "filesystem-mcp", "everything-mcp")
    live = world.run("drivers", "check", ".drivers/filesystem-mcp", "--live")
    assert live.returncode == 0, live.stdout + live.stderr
    assert "✓ filesystem-mcp: 4 of 4 contracts fit" in live.stdout
    tried = world.run("drivers", "test", "filesystem-mcp")
    assert tried.returncode == 0, tried.stdout + tried.stderr
    assert "✓ filesystem-mcp  fs-read: a greeting" in tried.stdout

    node = world.up()
    contracts = {contract.partition("@")[0] for contract in load_workspace(EXAMPLES).contracts}
    assert names(node) == contracts
    greeting = (EXAMPLES / "files/welcome.txt").read_text()
    assert result(world, "fs-read", "path=files/welcome.txt") == {"contents": greeting}
    assert result(world, "fs-list", "path=files") == {"listing": "[FILE] welcome.txt"}
    assert "welcome.txt" in result(world, "fs-search", "path=.", "pattern=**/*.txt")["found"]
    written = confirm_call(world, "fs-write", "path=files/note.txt", "content=hello")
    assert "note.txt" in written["message"]
    assert (world.cwd / "files/note.txt").read_text() == "hello"
    assert result(world, "demo.sum", "a=2", "b=3") == "The sum of 2 and 3 is 5."
    weather = result(world, "demo.weather", "city=Chicago")
    assert set(weather) == {"temperature", "conditions", "humidity"}
    # The server's own rule: nothing outside of its folder.
    outside = call(world, "fs-read", f"path={world.folder}/outside.txt")
    assert outside.returncode == 1

    rows = {driver["id"]: driver for driver in node.status()["drivers"]}
    assert {id for id, item in rows.items() if item["state"] == "running"} == {
        "filesystem-mcp",
        "everything-mcp",
    }
    outcome = world.run_here("drivers", "list")
    assert "filesystem-mcp" in outcome.stdout
    assert "running" in outcome.stdout
    pids = [rows[id]["pid"] for id in ("filesystem-mcp", "everything-mcp")]
    wait_until(
        "the calls in the journal",
        lambda: {row["verb"] for row in read_journal(world)} >= JOURNALLED,
    )
    node.end()
    for pid in pids:
        assert not Path(f"/proc/{pid}").exists()


@requires_npm
@pytest.mark.spec("DR-32.skill-1")
def test_new_driver_for_npm_package_works(world: CommandLine) -> None:
    """Kind, package and tools in; files out that validate as they are, and that work."""
    world.config()
    outcome = with_npm(
        world,
        *("drivers", "new", "npm", "@modelcontextprotocol/server-filesystem", "--yes"),
        *("--tools", "read_text_file:fs-read,list_directory:fs-list", "--", "."),
    )
    assert outcome.returncode == 0, outcome.stderr
    assert ".drivers/filesystem-mcp/DRIVER.md" in outcome.stdout
    checked = world.run("drivers", "check", "--live", "--strict")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    (world.cwd / "hello.txt").write_text("Hello.")
    node = world.up()
    wait_until("both contracts", lambda: names(node) == {"fs-read", "fs-list"})
    assert result(world, "fs-read", "path=hello.txt") == "Hello."
    node.end()
