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


def found(text: str, key: str = "demo") -> list[tuple[str, str]]:
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
def test_a_name_that_matches_is_right(name: str) -> None:
    assert found(effects(name)) == []
    assert found(rules(f"demo.{name.lower()}")) == []


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
def test_a_name_that_matches_no_tool_is_reported(name: str, hint: str) -> None:
    assert found(effects(name)) == [(f"{name} matches no tool of demo", hint)]


def test_rules_are_about_canonical_names() -> None:
    assert found(rules("demo.get_nte", "other.get_nte", "*.get_nte", "demo.below.get_nte")) == [
        ("demo.get_nte matches no tool of demo", 'did you mean "demo.get_note"?')
    ]


def test_what_the_config_leaves_out_is_not_reported() -> None:
    assert found(effects("wipe", deny=["wipe"])) == []
    assert found(effects("wipe_*", allow=["get_*"])) == []
    assert found(effects("get_nte", deny=["wipe"])) != []


def test_nothing_is_said_of_a_server_whose_tools_are_not_known() -> None:
    assert found(effects("get_nte"), key="other") == []
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


def test_doctor_and_tools_report_them(misspelled: CommandLine) -> None:
    done = misspelled.run_here("doctor")
    assert done.returncode == 0, done.stderr
    assert EFFECT in done.stdout
    assert f"policy.rules[0].tools[0]: {RULE}" in done.stdout
    told = json.loads(misspelled.run_here("doctor", "--json").stdout)
    assert len(told["upstreams"][0]["warnings"]) == 2
    listed = misspelled.run_here("tools")
    assert listed.returncode == 0
    assert EFFECT in listed.stderr
    assert RULE in listed.stderr


def test_a_node_logs_them_at_its_start_and_after_a_reload(misspelled: CommandLine) -> None:
    node = misspelled.up()
    node.wait_for_line(EFFECT)
    path = misspelled.cwd / "interlock.yaml"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("notes_lst", "notes_lits"), encoding="utf-8")
    node.wait_for_line(RULE.replace("notes_lst", "notes_lits"))
