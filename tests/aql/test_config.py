"""Tests of the AQL settings and of the errors for mistakes."""

from __future__ import annotations

import pytest

from interlock.aql.config import AqlConfig, SafetyConfig
from interlock.core.config import ConfigError, parse_config
from interlock.core.config.reference import config_reference

WHOLE = """
aql:
  view: auto
  clients: [{clients: ["claude*"], view: aql-single}, {callers: [ci], view: office}]
  profiles:
    office:
      families:
        look: {categories: [READ]}
        change: {categories: [CREATE, UPDATE, DELETE], operations: ["*_archive"]}
        run: {categories: [EXECUTE]}
  prefix: home_
  operations:
    "github.*": {danger: reversible, confirmation_message: "Really {title}?"}
  quotas: [{metric: cost_per_day, warn: 1.5, pause: 2, hard_stop: 3}]
  api_limits: [{limit: 5, window: second, scope: category, category: DELETE}]
  channels: [{kind: command, command: [notify-send, Interlock]}]
  limits: {request_bytes: 2MiB}
servers: {github: "http://127.0.0.1:9/mcp"}
"""

MISTAKES = {
    "aql: {danger: views}": (
        "interlock.yaml:1:7: aql.danger: this key was removed; the need for approval no longer "
        "depends on the view: delete this line, and use `unannotated`, `effects` of a server, or "
        "`policy`"
    ),
    "aql: {view: aqll}": 'aql.view: unknown view "aqll"',
    "aql: {clients: [{view: nobody}]}": 'aql.clients[0].view: unknown view "nobody"',
    "aql: {limits: {request_bytes: 1KiB}}": "aql.limits.request_bytes: must be 64KiB to 10MiB",
    "aql: {channels: [{kind: command}]}": "`command` is required for kind command",
    "aql: {channels: [{kind: page, command: [x]}]}": "not allowed for others",
    "aql: {quotas: [{metric: cost_per_day, warn: 3, pause: 2}]}": "must be in ascending order",
    "aql: {api_limits: [{limit: 1, scope: endpoint}]}": "endpoint requires scope: endpoint",
    "aql: {api_limits: [{limit: 1, category: READ}]}": "category requires scope: category",
    "aql: {profiles: {mine: {families: {all: {categories: [READ]}}}}}": "CREATE is in none of",
    "aql: {profiles: {semantic: {families: {}}}}": '"semantic" is a built-in view',
    "aql: {quotas: [{metric: cost_per_day, warn: 5m, pause: 2}]}": "expected a number",
    "aql: {safety_only: true}\nservers: {a: 'http://127.0.0.1:9/mcp'}": "serves no servers",
    "aql: {prefix: Home}": "aql.prefix",
    "aql: {limits: {depth: 65}}": "aql.limits.depth: this must be at most 64",
    "aql: {limits: {array_elements: 99}}": "this must be at least 100",
    "aql: {safety: {stages: [9]}}": "this must be at most 5",
    "aql: {quotas: [{metric: cost_per_day, warn: 0, pause: 2}]}": "more than 0",
    "aql: {limits: {page: 200}}": "must not exceed limits.max_page, which is 100",
    "aql: {operations: {a.b: {name: introspect}}}": '"introspect" is a built-in operation',
    "aql: {operations: {a.b: {name: x}, a.c: {name: x}}}": '"a.b" already has this name',
    "aql: {operations: {'a.*': {name: x}}}": "a name can be set for one tool only",
    "aql: {plain: deny, view: plain}": "aql.view: the plain view is denied",
    "aql: {plain: deny, clients: [{view: plain}]}": "the plain view is denied by aql.plain",
    "servers: {aql: 'http://127.0.0.1:9/mcp'}": 'the segment "aql" is reserved',
}


def test_reads_complete_config() -> None:
    config = parse_config(WHOLE, "interlock.yaml").section(AqlConfig)
    assert config.clients[1].view == "office"
    assert config.profiles["office"].families["change"].operations == ["*_archive"]
    assert config.operations["github.*"].danger == "reversible"
    assert config.quotas[0].hard_stop == 3
    assert config.limits.request_bytes == 2 * 1024 * 1024


@pytest.mark.parametrize("text", MISTAKES)
def test_reports_config_mistakes(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, "interlock.yaml")
    assert MISTAKES[text] in str(caught.value)


@pytest.mark.spec("AQ-6.2-1")
@pytest.mark.parametrize(
    ("families", "problem"),
    [
        ("look: {categories: [READ]}", "CREATE is in none of"),
        (
            "look: {categories: [READ]}, "
            "all: {categories: [CREATE, READ, UPDATE, DELETE, EXECUTE]}",
            "READ is in 2 of",
        ),
    ],
)
def test_rejects_category_that_is_not_in_exactly_one_family(families: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse_config(f"aql: {{profiles: {{mine: {{families: {{{families}}}}}}}}}", "interlock.yaml")


@pytest.mark.spec("AQ-8.5.2-1")
@pytest.mark.parametrize("name", ["createIssue", "create-issue", "_create", "2create", ""])
def test_rejects_operation_name_that_is_not_snake_case(name: str) -> None:
    with pytest.raises(ConfigError, match="operations"):
        parse_config(f"aql: {{operations: {{a.b: {{name: '{name}'}}}}}}", "interlock.yaml")


def test_reference_shows_default_lists() -> None:
    page = config_reference()
    for name, values in (
        ("deny", SafetyConfig().deny),
        ("requires_approval", SafetyConfig().requires_approval),
        ("auto_approve", SafetyConfig().auto_approve),
    ):
        shown = ", ".join(f"`{one}`" for one in values)
        assert f"| `{name}` | list of text | {shown} |" in page
