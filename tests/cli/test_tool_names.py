"""Names of tools in the config that match no tool of their server."""

from __future__ import annotations

import json
from typing import Any

import pytest

from interlock.cli.tool_names import KnownTool, find_unmatched_names
from interlock.core.config.load import parse_config
from tests.support.command_line import DEMO, CommandLine

TOOLS = [
    KnownTool("get_note", "get_note", irreversible=False),
    KnownTool("addNote", "addnote", irreversible=False),
    KnownTool("delete_note", "delete_note", irreversible=True),
]


def find_unmatched(text: str, key: str = "demo") -> list[tuple[str, str]]:
    config = parse_config(text)
    return [
        (f"{message}", hint) for _, message, hint in find_unmatched_names(config, [(key, TOOLS)])
    ]


def effects(name: str, **more: Any) -> str:
    server = {"command": "x", "effects": {name: "irreversible"}, **more}
    return json.dumps({"servers": {"demo": server}})


def rules(*tools: str) -> str:
    rule = {"name": "r", "then": "allow", "tools": list(tools)}
    return json.dumps({"servers": {"demo": "x"}, "policy": {"rules": [rule]}})


@pytest.mark.parametrize("name", ["get_note", "addNote", "addnote", "*_note", "delete_*", "*"])
def test_matching_tool_name_is_accepted(name: str) -> None:
    assert find_unmatched(effects(name)) == []
    assert find_unmatched(rules(f"demo.{name.lower()}")) == []


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("get_nte", 'did you mean "get_note"?'),
        ("addNotes", 'did you mean "addNote"?'),
        ("delete_nte", 'did you mean "delete_note"?'),
        # From a name that looks harmless nobody is led to a destructive tool.
        ("dlete_note", "correct it, or remove it"),
        ("wholly_other", "correct it, or remove it"),
        ("move_*", "correct it, or remove it"),
    ],
)
def test_unmatched_tool_name_is_reported(name: str, hint: str) -> None:
    assert find_unmatched(effects(name)) == [(f"{name} matches no tool of demo", hint)]


def test_policy_rules_use_canonical_names() -> None:
    assert find_unmatched(
        rules("demo.get_nte", "other.get_nte", "*.get_nte", "demo.below.get_nte")
    ) == [("demo.get_nte matches no tool of demo", 'did you mean "demo.get_note"?')]


def test_excluded_tools_are_not_reported() -> None:
    assert find_unmatched(effects("wipe", deny=["wipe"])) == []
    assert find_unmatched(effects("wipe_*", allow=["get_*"])) == []
    assert find_unmatched(effects("get_nte", deny=["wipe"])) != []


def test_server_with_unknown_tools_is_not_reported() -> None:
    assert find_unmatched(effects("get_nte"), key="other") == []
    config = parse_config(effects("get_nte"))
    assert find_unmatched_names(config, [("demo", [])]) == []


# -- the program


@pytest.fixture
def misspelled(world: CommandLine) -> CommandLine:
    world.config(
        {"demo": {"command": DEMO, "effects": {"notes_ad": "irreversible"}}},
        policy={"rules": [{"name": "r", "then": "confirm", "tools": ["demo.notes_lst"]}]},
    )
    return world


EFFECT = (
    'servers.demo.effects.notes_ad: notes_ad matches no tool of demo; did you mean "notes_add"?'
)
RULE = 'demo.notes_lst matches no tool of demo; did you mean "demo.notes_list"?'


def test_doctor_and_tools_report_unmatched_names(misspelled: CommandLine) -> None:
    result = misspelled.run_here("doctor")
    assert result.returncode == 0, result.stderr
    assert EFFECT in result.stdout
    assert f"policy.rules[0].tools[0]: {RULE}" in result.stdout
    data = json.loads(misspelled.run_here("doctor", "--json").stdout)
    assert len(data["upstreams"][0]["warnings"]) == 2
    outcome = misspelled.run_here("tools")
    assert outcome.returncode == 0
    assert EFFECT in outcome.stderr
    assert RULE in outcome.stderr


def test_node_logs_unmatched_names_at_start_and_reload(misspelled: CommandLine) -> None:
    node = misspelled.up()
    node.wait_for_line(EFFECT)
    path = misspelled.cwd / "interlock.yaml"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("notes_lst", "notes_lits"), encoding="utf-8")
    node.wait_for_line(RULE.replace("notes_lst", "notes_lits"))
