"""The merged introduction of many upstreams: capabilities, instructions and server info."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.core.catalog.server_info import UpstreamIntroduction, capabilities_for_session, merge
from tests.protocol import json_values

TASKS = "io.modelcontextprotocol/tasks"
UI = "io.modelcontextprotocol/ui"
TOOLS = {"tools": {"listChanged": True}}


def capabilities(*each: Any) -> dict[str, Any]:
    return merge(
        UpstreamIntroduction(f"s{number}", item) for number, item in enumerate(each)
    ).capabilities


@pytest.mark.parametrize(
    ("each", "union"),
    [
        ([], {}),
        ([{}], {}),
        ([{"tools": {}}], {}),
        ([{"prompts": {}}], {"prompts": {"listChanged": True}}),
        ([{"resources": {}}], {"resources": {"listChanged": True}}),
        (
            [{"resources": {"listChanged": True}}, {"resources": {"subscribe": True}}],
            {"resources": {"listChanged": True, "subscribe": True}},
        ),
        ([{"resources": {"subscribe": False}}], {"resources": {"listChanged": True}}),
        ([{"completions": {}}, {"logging": {}}], {"completions": {}, "logging": {}}),
        ([{"prompts": None, "logging": False, "resources": None, "extensions": None}], {}),
        ([{"tasks": {"list": {}}, "experimental": {"x": {}}, "new": {}}], {}),
        ([{"extensions": {}}], {}),
        (
            [{"extensions": {UI: {}}}, {"extensions": {TASKS: {"x": 1}}}],
            {"extensions": {UI: {}, TASKS: {"x": 1}}},
        ),
    ],
)
def test_merges_capabilities(each: list[Any], union: dict[str, Any]) -> None:
    assert capabilities(*each) == TOOLS | union


def test_merges_settings_of_extension() -> None:
    one = {"extensions": {UI: {"types": ["a", "b"], "deep": {"x": 1}, "first": 1}}}
    other = {"extensions": {UI: {"types": ["b", "c"], "deep": {"y": 2}, "first": 2, "new": 3}}}
    assert capabilities(one, other)["extensions"] == {
        UI: {"types": ["a", "b", "c"], "deep": {"x": 1, "y": 2}, "first": 1, "new": 3}
    }
    # Nobody's own words are changed by that.
    assert one["extensions"][UI]["types"] == ["a", "b"]


def test_omits_unsupported_extension() -> None:
    unknown = {"extensions": {"com.example/a": {"x": True}, UI: {}}}
    assert capabilities(unknown, {}) == TOOLS | {"extensions": {UI: {}}}
    assert capabilities(unknown) == TOOLS | {"extensions": {UI: {}}}
    only: dict[str, Any] = {"extensions": {"com.example/a": {}}}
    assert capabilities(only, {}) == TOOLS
    # What the node does not know it passes on to a server that is shown as itself.
    merged = merge(
        [UpstreamIntroduction("a", {}), UpstreamIntroduction("s", unknown, transparent=True)]
    )
    assert merged.capabilities == TOOLS | unknown
    other = merge(
        [UpstreamIntroduction("a", unknown), UpstreamIntroduction("s", {}, transparent=True)]
    )
    assert other.capabilities == TOOLS | {"extensions": {UI: {}}}


def test_orders_instructions_by_segment() -> None:
    voices = [
        UpstreamIntroduction("b", {}, "  Be brief.\n"),
        UpstreamIntroduction("a", {}, "Ask first."),
        UpstreamIntroduction("silent", {}, None),
        UpstreamIntroduction("empty", {}, " \n"),
    ]
    for order in permutations(voices):
        assert merge(order).instructions == "# a\n\nAsk first.\n\n# b\n\nBe brief."
    assert merge(voices[2:]).instructions is None
    assert merge([]).instructions is None


def test_transparent_server_keeps_introduction() -> None:
    capabilities_of_upstream = {
        "tools": {},
        "tasks": {"list": {}},
        "experimental": {"x": {}},
        "new": 1,
    }
    info = {"name": "everything", "version": "2", "icons": []}
    merged = merge(
        [
            UpstreamIntroduction(
                "s", capabilities_of_upstream, "  As it is.\n", info, transparent=True
            )
        ]
    )
    # But for the tasks of the session wire, which are between two neighbours.
    assert merged.capabilities == {"tools": {}, "experimental": {"x": {}}, "new": 1}
    assert merged.instructions == "  As it is.\n"
    assert merged.server_info == info


@pytest.mark.parametrize("transparent", [False, True])
def test_offers_tasks_where_upstream_has_tasks(transparent: bool) -> None:
    def offered(said: Any, *, sends_requests: bool) -> Any:
        voice = UpstreamIntroduction(
            "s", said, transparent=transparent, sends_requests=sends_requests
        )
        return merge([voice]).capabilities.get("extensions")

    tasks = "io.modelcontextprotocol/tasks"
    assert offered({}, sends_requests=False) is None
    assert offered({}, sends_requests=True) == {tasks: {}}
    assert offered({"extensions": None}, sends_requests=True) == {tasks: {}}
    others: dict[str, Any] = {"a": {}} if transparent else {}
    assert offered({"extensions": {"a": {}}}, sends_requests=True) == {**others, tasks: {}}
    assert offered({"extensions": {tasks: {"x": 1}}}, sends_requests=True) == {tasks: {"x": 1}}
    assert offered({"extensions": {tasks: {}}}, sends_requests=False) == {tasks: {}}


def test_hides_tasks_from_session_client() -> None:
    tasks = "io.modelcontextprotocol/tasks"
    extensions: Any
    for extensions in (None, {}, {"a": {}}):
        capabilities_of_upstream = {"tools": {}, "extensions": extensions}
        assert capabilities_for_session(capabilities_of_upstream) == capabilities_of_upstream
    assert capabilities_for_session({"tools": {}, "extensions": {tasks: {}}}) == {"tools": {}}
    both: dict[str, Any] = {"extensions": {tasks: {}, "a": {}}}
    assert capabilities_for_session(both) == {"extensions": {"a": {}}}
    assert tasks in both["extensions"]


def test_merges_transparent_introduction_with_others() -> None:
    merged = merge(
        [
            UpstreamIntroduction("a", {"prompts": {}}, "A.", {"name": "a"}),
            UpstreamIntroduction("z", {"logging": {}}, "Z.", {"name": "z"}, transparent=True),
        ]
    )
    assert merged.capabilities == TOOLS | {"prompts": {"listChanged": True}, "logging": {}}
    assert merged.instructions == "Z.\n\n# a\n\nA."
    assert merged.server_info is None


kinds = st.sampled_from(["tools", "prompts", "resources", "completions", "logging", "extensions"])


@given(st.lists(st.dictionaries(kinds | json_values.text, json_values.values, max_size=4)))
def test_invents_no_capability(each: list[dict[str, Any]]) -> None:
    union = capabilities(*each)
    for name in union.keys() - {"tools"}:
        assert any(item.get(name) not in (None, False) for item in each)
