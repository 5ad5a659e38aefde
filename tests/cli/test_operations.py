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


def run_operations(world: CommandLine, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        cwd=world.cwd,
        env=world.environ,
        capture_output=True,
        text=True,
        timeout=HANG_TIMEOUT,
        check=False,
    )


def run_json(world: CommandLine, *arguments: str) -> dict[str, Any]:
    result = run_operations(world, *arguments)
    assert result.returncode == 0, result.stderr
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


@pytest.mark.spec("AQ-INT-6.3-1")
def test_lists_operations_by_endpoint_and_category(demo: CommandLine) -> None:
    result = run_operations(demo, "list")
    assert result.returncode == 0, result.stderr
    assert "operations by endpoint" in result.stdout
    assert "operations by category" in result.stdout
    assert "mcp_aql_delete" in result.stdout
    assert "demo_notes_delete" in result.stdout
    semantic = run_json(demo, "list", "--view", "semantic", "--json")["operations"]
    assert {item["endpoint"] for item in semantic} <= {
        "mcp_aql_discover", "mcp_aql_query", "mcp_aql_manage", "mcp_aql_operate",
    }  # fmt: skip


def test_search_finds_operation_by_words(demo: CommandLine) -> None:
    found = run_json(demo, "search", "throw a die for me", "--words", "--json")["found"]
    assert found[0]["name"] == "demo_roll_dice"
    assert 0 < found[0]["score"] <= 1
    nothing = run_operations(demo, "search", "the of and", "--words")
    assert nothing.returncode == 1
    assert "No operation matches" in nothing.stderr


def test_explains_operation(demo: CommandLine) -> None:
    about = run_json(demo, "explain", "demo_notes_delete")
    assert about["semantic_category"] == "DELETE"
    assert about["origins"]["category"]
    assert about["input_schema"]["type"] == "object"
    result = run_operations(demo, "explain", "demo_note_delete")
    assert result.returncode == 2
    assert "demo_notes_delete" in result.stderr


def test_exports_readable_bundle(demo: CommandLine) -> None:
    made = run_json(demo, "bundle", "demo")
    names = {operation["operation_name"] for operation in made["normalized_bundle"]["operations"]}
    assert "demo_roll_dice" in names
    assert {operator.name for operator in bundle.read_bundle(made).all()} == names
    result = run_operations(demo, "bundle", "nobody")
    assert result.returncode == 2
    assert "unknown server 'nobody'" in result.stderr


def test_counts_tokens_per_view(demo: CommandLine) -> None:
    tokens = run_json(demo, "tokens", "--json")["tokens"]
    assert tokens["aql-single"] < tokens["aql"]
    assert tokens["plain"] > 0


def test_uses_running_node(demo: CommandLine) -> None:
    node = demo.up()
    node.pids()
    operations = run_json(demo, "list", "--json")["operations"]
    assert "demo_roll_dice" in {item["name"] for item in operations}
    result = run_operations(demo, "list", "--view", "nonsense")
    assert result.returncode == 2
    assert "unknown view 'nonsense'" in result.stderr


@pytest.mark.parametrize("running", [True, False])
def test_camel_case_tools_have_same_names_as_in_node(world: CommandLine, running: bool) -> None:
    schema = {"type": "object", "properties": {"path": {"type": "string"}}}
    names = ("readFile", "getURLOfPage", "plain", "write_file")
    tools = world.cwd / "tools.json"
    tools.write_text(json.dumps([{"name": name, "inputSchema": schema} for name in names]))
    server = Path(__file__).with_name("changing_server.py")
    world.config({"files": f"{sys.executable} {server} {tools}"})
    if running:
        world.up().pids()
    actual = {operation["name"] for operation in run_json(world, "list", "--json")["operations"]}
    assert actual == {"files_read_file", "files_get_url_of_page", "files_plain", "files_write_file"}
    explained = run_json(world, "explain", "files_read_file")
    assert explained["source"]["tool"] == "files.readfile"
