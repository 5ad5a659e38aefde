"""`interlock operations`: listing, finding, explaining, exporting, counting."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from interlock.aql import bundle
from tests.support.command_line import DEMO, CommandLine
from tests.support.timeouts import HANG_TIMEOUT

pytestmark = pytest.mark.feature("aql")

PROGRAM = """
from interlock.app.features import load_features
from interlock.aql.commands.operations import operations
load_features()
operations()
"""


@pytest.fixture
def demo(world: CommandLine) -> CommandLine:
    world.config({"demo": DEMO})
    return world


def run(world: CommandLine, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        cwd=world.cwd,
        env=world.environ,
        capture_output=True,
        text=True,
        timeout=HANG_TIMEOUT,
        check=False,
    )


def told(world: CommandLine, *arguments: str) -> dict[str, Any]:
    done = run(world, *arguments)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.mark.spec("AQ-INT-6.3-1")
def test_operations_are_shown_by_endpoint_and_by_category(demo: CommandLine) -> None:
    done = run(demo, "list")
    assert done.returncode == 0, done.stderr
    assert "operations by endpoint" in done.stdout
    assert "operations by category" in done.stdout
    assert "mcp_aql_delete" in done.stdout
    assert "demo_notes_delete" in done.stdout
    semantic = told(demo, "list", "--view", "semantic", "--json")["operations"]
    assert {one["endpoint"] for one in semantic} <= {
        "mcp_aql_discover", "mcp_aql_query", "mcp_aql_manage", "mcp_aql_operate",
    }  # fmt: skip


def test_an_operation_is_found_in_other_words(demo: CommandLine) -> None:
    found = told(demo, "search", "throw a die for me", "--words", "--json")["found"]
    assert found[0]["name"] == "demo_roll_dice"
    assert 0 < found[0]["score"] <= 1
    nothing = run(demo, "search", "the of and", "--words")
    assert nothing.returncode == 1
    assert "No operation matches" in nothing.stderr


def test_an_operation_is_explained(demo: CommandLine) -> None:
    about = told(demo, "explain", "demo_notes_delete")
    assert about["semantic_category"] == "DELETE"
    assert about["origins"]["category"]
    assert about["input_schema"]["type"] == "object"
    wrong = run(demo, "explain", "demo_note_delete")
    assert wrong.returncode == 2
    assert "demo_notes_delete" in wrong.stderr


def test_a_bundle_is_written_and_can_be_read_again(demo: CommandLine) -> None:
    made = told(demo, "bundle", "demo")
    names = {one["operation_name"] for one in made["normalized_bundle"]["operations"]}
    assert "demo_roll_dice" in names
    assert {one.name for one in bundle.read_bundle(made).all()} == names
    wrong = run(demo, "bundle", "nobody")
    assert wrong.returncode == 2
    assert "unknown server 'nobody'" in wrong.stderr


def test_views_are_counted(demo: CommandLine) -> None:
    tokens = told(demo, "tokens", "--json")["tokens"]
    assert tokens["aql-single"] < tokens["aql"]
    assert tokens["plain"] > 0


def test_it_asks_the_node_that_runs(demo: CommandLine) -> None:
    node = demo.up()
    node.pids()
    found = told(demo, "list", "--json")["operations"]
    assert "demo_roll_dice" in {one["name"] for one in found}
    wrong = run(demo, "list", "--view", "nonsense")
    assert wrong.returncode == 2
    assert "unknown view 'nonsense'" in wrong.stderr


@pytest.mark.parametrize("running", [True, False])
def test_tools_in_camel_case_have_the_names_that_the_node_gives_them(
    world: CommandLine, running: bool
) -> None:
    schema = {"type": "object", "properties": {"path": {"type": "string"}}}
    names = ("readFile", "getURLOfPage", "plain", "write_file")
    tools = world.cwd / "tools.json"
    tools.write_text(json.dumps([{"name": name, "inputSchema": schema} for name in names]))
    server = Path(__file__).with_name("changing_server.py")
    world.config({"files": f"{sys.executable} {server} {tools}"})
    if running:
        world.up().pids()
    found = {one["name"] for one in told(world, "list", "--json")["operations"]}
    assert found == {"files_read_file", "files_get_url_of_page", "files_plain", "files_write_file"}
    explained = told(world, "explain", "files_read_file")
    assert explained["source"]["tool"] == "files.readfile"
