"""Commands report what is assumed of tools without annotations, and which settings change it."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from interlock.core.catalog.effect_inference import EffectChoice
from interlock.core.catalog.effects import Effect, EffectLevel
from interlock.terminal.assumed_effects import describe_assumed
from tests.support.command_line import CommandLine

WEATHER = Path(__file__).parents[1] / "behaviour" / "servers" / "weather.py"
SETTINGS = ("servers.NAME.effects", "servers.NAME.unannotated", "unannotated: confirm")
COUNTS = [5, 1, 3, 1, 2]
"""Tools, servers, held, held by arguments, running."""


def numbers(line: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", line)]


def effect(level: EffectLevel, source: str = "inferred", **more: Any) -> Effect:
    return Effect(level, False, source, **more)


@pytest.fixture
def weather(world: CommandLine) -> CommandLine:
    server = {"command": sys.executable, "args": [str(WEATHER), str(world.cwd / "ledger")]}
    world.config({"weather": server})
    return world


def test_counts_pending_running_and_conditional_tools() -> None:
    choice = EffectChoice("action", frozenset({"list"}))
    tools = [
        ("a", effect(EffectLevel.IRREVERSIBLE)),
        ("a", effect(EffectLevel.IRREVERSIBLE, choices=(choice,))),
        ("b", effect(EffectLevel.MUTATING)),
        ("b", effect(EffectLevel.MUTATING, "default")),
        ("b", effect(EffectLevel.IRREVERSIBLE, "annotations")),
        ("c", effect(EffectLevel.IRREVERSIBLE, "config")),
    ]
    first, *others = describe_assumed(tools)
    assert numbers(first) == [4, 2, 2, 1, 2]
    assert all(name in " ".join(others) for name in SETTINGS)


def test_counts_ignored_hints_separately() -> None:
    ignored = effect(EffectLevel.MUTATING, is_hint_ignored=True)
    first, second, *_ = describe_assumed([("a", ignored), ("b", effect(EffectLevel.MUTATING))])
    assert numbers(first)[:2] == [1, 1]
    assert numbers(second) == [1, 1]


def test_reports_nothing_where_every_tool_has_annotations() -> None:
    said = [("a", effect(EffectLevel.READ_ONLY, "annotations"))]
    assert describe_assumed(said) == []


def test_tools_lists_irreversible_tools_with_reason(weather: CommandLine) -> None:
    result = weather.run_here("tools")
    (counted,) = (line for line in result.stdout.splitlines() if numbers(line) == COUNTS)
    assert counted
    assert all(name in result.stdout for name in SETTINGS)
    tools = json.loads(weather.run_here("tools", "--json").stdout)["tools"]
    actual = {
        tool["name"].removeprefix("weather").lstrip("._"): (
            tool["effect"],
            tool["effect_source"],
            tool["effect_reason"],
        )
        for tool in tools
    }
    assert actual == {
        "add": ("mutating", "inferred", "`add` in its name"),
        "get_forecast": ("mutating", "inferred", "`get` in its name"),
        "delete_station": ("irreversible", "inferred", "`delete` in its name"),
        "drop_stations": ("irreversible", "inferred", "`drop` in its name"),
        "manage_stations": ("irreversible", "inferred", "`delete` among the values of `action`"),
    }
    for level, _, reason in actual.values():
        shown = [line for line in result.stdout.splitlines() if line.endswith(reason)]
        assert bool(shown) == (level == "irreversible")


def test_doctor_reports_the_same_counts(weather: CommandLine) -> None:
    data = json.loads(weather.run_here("doctor", "--json").stdout)
    (upstream,) = data["upstreams"]
    assert numbers(upstream["assumed"][0]) == COUNTS
    assert all(name in " ".join(upstream["assumed"]) for name in SETTINGS)


@pytest.mark.parametrize("setting", ["infer", "confirm", "allow"])
def test_check_names_unannotated_setting(world: CommandLine, setting: str) -> None:
    world.config({"weather": f"{sys.executable} {WEATHER}"}, unannotated=setting)
    assert f"unannotated: {setting}" in world.run_here("check").stdout


def test_import_names_settings_only_with_servers(world: CommandLine) -> None:
    client = world.cwd / "mcp.json"
    client.write_text(json.dumps({"mcpServers": {"weather": {"command": "weather"}}}))
    result = world.run_here("import", str(client))
    assert result.returncode == 0, result.stderr
    assert all(name in result.stderr for name in SETTINGS)
    client.write_text(json.dumps({"mcpServers": {}}))
    assert not any(name in world.run_here("import", str(client)).stderr for name in SETTINGS)
