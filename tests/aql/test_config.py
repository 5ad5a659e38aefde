"""The settings of AQL, as the config says them: the words for mistakes."""

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
        "interlock.yaml:1:7: aql.danger: this key was removed; what waits for approval is the same "
        "in every view now: delete the line, and choose with `unannotated`, `effects` of a server "
        "and `policy`"
    ),
    "aql: {view: aqll}": 'aql.view: there is no view "aqll"',
    "aql: {clients: [{view: nobody}]}": 'aql.clients[0].view: there is no view "nobody"',
    "aql: {limits: {request_bytes: 1KiB}}": "aql.limits.request_bytes: it must be 64KiB to 10MiB",
    "aql: {channels: [{kind: command}]}": "a channel of the kind command has a command",
    "aql: {channels: [{kind: page, command: [x]}]}": "and no other has",
    "aql: {quotas: [{metric: cost_per_day, warn: 3, pause: 2}]}": "warn must come before pause",
    "aql: {api_limits: [{limit: 1, scope: endpoint}]}": "endpoint goes with scope: endpoint",
    "aql: {api_limits: [{limit: 1, category: READ}]}": "category goes with scope: category",
    "aql: {profiles: {mine: {families: {all: {categories: [READ]}}}}}": "CREATE is in none of",
    "aql: {profiles: {semantic: {families: {}}}}": '"semantic" is a view already',
    "aql: {quotas: [{metric: cost_per_day, warn: 5m, pause: 2}]}": "expected a number",
    "aql: {safety_only: true}\nservers: {a: 'http://127.0.0.1:9/mcp'}": "has no servers",
    "aql: {prefix: Home}": "aql.prefix",
    "aql: {limits: {depth: 65}}": "aql.limits.depth: this must be at most 64",
    "aql: {limits: {array_elements: 99}}": "this must be at least 100",
    "aql: {safety: {stages: [9]}}": "this must be at most 5",
    "aql: {quotas: [{metric: cost_per_day, warn: 0, pause: 2}]}": "more than 0",
    "aql: {limits: {page: 200}}": "it is more than limits.most_page, which is 100",
    "aql: {operations: {a.b: {name: introspect}}}": '"introspect" is the node\'s own',
    "aql: {operations: {a.b: {name: x}, a.c: {name: x}}}": '"a.b" has this name already',
    "aql: {operations: {'a.*': {name: x}}}": "a name is for one tool",
    "aql: {plain: deny, view: plain}": "aql.view: the plain view is denied",
    "aql: {plain: deny, clients: [{view: plain}]}": "the plain view is denied by aql.plain",
    "servers: {aql: 'http://127.0.0.1:9/mcp'}": 'the segment "aql" is taken',
}


def test_all_of_it_is_read() -> None:
    config = parse_config(WHOLE, "interlock.yaml").section(AqlConfig)
    assert config.clients[1].view == "office"
    assert config.profiles["office"].families["change"].operations == ["*_archive"]
    assert config.operations["github.*"].danger == "reversible"
    assert config.quotas[0].hard_stop == 3
    assert config.limits.request_bytes == 2 * 1024 * 1024


@pytest.mark.parametrize("text", MISTAKES)
def test_the_words_for_a_mistake(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, "interlock.yaml")
    assert MISTAKES[text] in str(caught.value)


def test_lists_that_are_there_from_the_start_are_shown() -> None:
    page = config_reference()
    for name, values in (
        ("deny", SafetyConfig().deny),
        ("requires_approval", SafetyConfig().requires_approval),
        ("auto_approve", SafetyConfig().auto_approve),
    ):
        shown = ", ".join(f"`{one}`" for one in values)
        assert f"| `{name}` | list of text | {shown} |" in page
