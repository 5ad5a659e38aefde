"""Prompts, resources and templates of one upstream: names, members and invalid entries."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.core.catalog.definitions import MAX_LISTED_REASONS
from interlock.core.catalog.offering import MAX_URI_LENGTH, Offering, read_offering
from interlock.protocol.mcp import PROMPTS_LIST, RESOURCES_LIST, TEMPLATES_LIST, Era
from tests.protocol import json_values
from tests.support.offerings import (
    definition,
    merged,
    offer,
    prompt,
    resource,
    server,
    shown,
    template,
    without_node_members,
)


def rejected_names(offering: Offering) -> list[tuple[str, str]]:
    return [(rejection.kind, rejection.name) for rejection in offering.rejected]


# --- prompts are named like tools ---


def test_names_prompts_like_tools_separately() -> None:
    names = ["getUser", "getuser", "a.b", "x" * 70]
    offering = offer("s", names, prompts=names, root="r")
    assert [
        (item.canonical, item.safe_name, item.transparent_name) for item in offering.prompts
    ] == [(tool.canonical, tool.safe_name, tool.transparent_name) for tool in offering.tools]
    snapshot = merged(offering)
    for tool, listed in zip(snapshot.tools, snapshot.prompts, strict=True):
        assert snapshot.resolve(tool.canonical) is tool
        assert snapshot.prompt(listed.canonical) is listed
        assert snapshot.prompt(listed.safe_name) is listed
        assert listed.upstream_name == tool.upstream_name
        assert json.loads(listed.upstream_name_json) == listed.upstream_name
    assert snapshot.prompt("r.s.getUser") is snapshot.prompt("r.s.getuser_2")
    assert snapshot.prompt("nobody") is None


def test_transparent_prompts_keep_names() -> None:
    snapshot = merged(offer("s", prompts=["Zeta", "a.b"], expose="transparent"))
    assert [entry["name"] for entry in shown(snapshot, verb=PROMPTS_LIST)] == ["Zeta", "a.b"]
    assert [entry["name"] for entry in shown(snapshot, "safe", verb=PROMPTS_LIST)] == [
        "Zeta",
        "a_b",
    ]
    for name in ("a.b", "a_b", "s.a_b"):
        result = snapshot.prompt(name)
        assert result is not None
        assert (result.upstream, result.upstream_name) == ("s", "a.b")


def test_unlisted_prompt_reaches_transparent_server() -> None:
    snapshot = merged(offer("t", ["tool"], expose="transparent"), offer("a", prompts=["p"]))
    result = snapshot.prompt("secret")
    assert result is not None
    assert (result.upstream, result.upstream_name) == ("t", "secret")
    listed = snapshot.prompt("a.p")
    assert listed is not None
    assert listed.upstream == "a"
    assert len(snapshot.prompts) == 1
    assert snapshot.prompt("") is None
    assert snapshot.prompt("x" * 1025) is None
    assert merged(offer("a", prompts=["p"])).prompt("p") is None


def test_tool_settings_do_not_affect_prompts() -> None:
    offering = offer(
        "s", ["a"], prompts=["a", "b"], deny=["a"], allow=["c"], rename={"b": "c"},
        descriptions={"b": "x"},
    )  # fmt: skip
    assert not offering.tools
    assert [item.canonical for item in offering.prompts] == ["s.a", "s.b"]
    assert b"description" not in offering.prompts[1].listed


def test_rejects_prompt_with_too_long_name() -> None:
    offering = offer("s", prompts=["x" * 63, "fits"], root=".".join(["r" * 63] * 3))
    assert [item.upstream_name for item in offering.prompts] == ["fits"]
    assert rejected_names(offering) == [("prompt", "x" * 63)]


# --- entries stay as they came ---


def test_relays_every_member() -> None:
    more = {
        "title": "T", "description": "D", "icons": [{"src": "data:x", "sizes": ["any"]}],
        "_meta": {"k": 1.5}, "new": [],
    }  # fmt: skip
    arguments = [{"name": "x", "title": "X", "description": "d", "required": True, "new": 1}]
    about = {"mimeType": "text/plain", "annotations": {"audience": ["user"], "priority": 0.5}}
    offering = offer(
        "s",
        prompts=[prompt("p", arguments=arguments, **more)],
        resources=[resource("r:1", size=5, **about, **more)],
        templates=[template("r:{x}", **about, **more)],
    )
    for era in Era:
        snapshot = merged(offering)
        assert shown(snapshot, era=era, verb=PROMPTS_LIST) == [
            {"name": "s.p", "arguments": arguments, **more}
        ]
        assert shown(snapshot, era=era, verb=RESOURCES_LIST) == [
            {"uri": "r:1", "name": "r", "size": 5, **about, **more}
        ]
        assert shown(snapshot, era=era, verb=TEMPLATES_LIST) == [
            {"uriTemplate": "r:{x}", "name": "t", **about, **more}
        ]


def test_omits_null_members() -> None:
    arguments = [{"name": "x", "description": None, "required": None}, {"name": "null"}]
    offering = offer(
        "s",
        prompts=[prompt("p", title=None, arguments=arguments), prompt("q", arguments=None)],
        resources=[resource("r:1", size=None, mimeType=None, annotations=None)],
    )
    snapshot = merged(offering)
    assert shown(snapshot, verb=PROMPTS_LIST) == [
        {"name": "s.p", "arguments": [{"name": "x"}, {"name": "null"}]},
        {"name": "s.q"},
    ]
    assert shown(snapshot, verb=RESOURCES_LIST) == [{"uri": "r:1", "name": "r"}]


# --- entries that cannot be used ---

BAD_PROMPTS = [
    b"null", b"[]", b"{", b"{}", prompt(None), prompt(5), prompt(""), prompt("x" * 1025),
    prompt("p", description=5), prompt("p", title=[]), prompt("p", arguments={}),
    prompt("p", arguments=[5]), prompt("p", arguments=[{}]), prompt("p", arguments=[{"name": 5}]),
    prompt("p", arguments=[{"name": "x", "required": "yes"}]), prompt("before"),
    b'{"name":"p","x":"\xff"}',
]  # fmt: skip
BAD_RESOURCES = [
    b"null", b"{}", resource(None), resource(5), resource(""), resource("x" * (MAX_URI_LENGTH + 1)),
    resource("r:1", name=None), resource("r:1", name=5), resource("r:1", description=[]),
    resource("r:1", mimeType=5), resource("r:1", size="big"), resource("r:1", annotations=[]),
    resource("before"), b'{"uri":"r:1"}', b'{"uri":"r:\xff","name":"r"}',
]  # fmt: skip
BAD_TEMPLATES = [
    b"null", b"{}", template(None), template(""), template("x" * (MAX_URI_LENGTH + 1)),
    template("t:1", name=None), template("t:1", mimeType=5), template("before"),
    b'{"uri":"t:1","name":"t"}',
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "invalid"),
    [("prompt", item) for item in BAD_PROMPTS]
    + [("resource", item) for item in BAD_RESOURCES]
    + [("template", item) for item in BAD_TEMPLATES],
)
def test_rejects_invalid_entry_without_affecting_others(kind: str, invalid: bytes) -> None:
    entries: dict[str, list[str | bytes]] = {
        f"{item}s": ["before", invalid, "later"] if item == kind else ["before", "later"]
        for item in ("prompt", "resource", "template")
    }
    offering = offer("s", ["tool"], **entries)  # type: ignore[arg-type]
    assert len(offering.tools) == 1
    assert [item.upstream_name for item in offering.prompts] == ["before", "later"]
    assert [item.uri for item in offering.resources] == ["before", "later"]
    assert [item.uri for item in offering.templates] == ["before", "later"]
    [one] = offering.rejected
    assert one.kind == kind
    assert one.reason


def test_limits_number_of_entries_per_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("interlock.core.catalog.definitions.MAX_ENTRIES", 10)
    offering = offer(
        "s", ["t"], prompts=["p"], templates=["t"],
        resources=[f"r:{number:03}" for number in range(10 + MAX_LISTED_REASONS + 7)],
    )  # fmt: skip
    assert len(offering.resources) == 10
    assert (len(offering.tools), len(offering.prompts), len(offering.templates)) == (1, 1, 1)
    assert len(offering.rejected) == MAX_LISTED_REASONS + 1
    assert {rejection.kind for rejection in offering.rejected} == {"resource"}


fields = st.sampled_from(
    ["name", "uri", "uriTemplate", "arguments", "annotations", "_meta", "description", "size"]
)
entries = st.dictionaries(fields | json_values.text, json_values.values, max_size=6)
lists = st.lists((json_values.values | entries).map(json.dumps).map(str.encode), max_size=6)
any_json = lists | st.lists(st.binary(max_size=30), max_size=3)


@given(any_json, any_json, any_json)
def test_lists_or_rejects_any_entry(
    prompts: list[bytes], resources: list[bytes], templates: list[bytes]
) -> None:
    offering = read_offering(
        "s", server(segment="s"), [], prompts=prompts, resources=resources, templates=templates
    )
    kept = len(offering.prompts) + len(offering.resources) + len(offering.templates)
    assert kept + len(offering.rejected) == len(prompts) + len(resources) + len(templates)
    snapshot = merged(offering)
    for verb in (PROMPTS_LIST, RESOURCES_LIST, TEMPLATES_LIST):
        shown(snapshot, verb=verb)


# --- tools, by era ---


@pytest.mark.parametrize(
    ("schema", "in_session", "in_stateless"),
    [
        ({"type": "object", "properties": {}}, True, True),
        ({"type": "array"}, False, True),
        ({"type": "string"}, False, True),
        ({"type": ["object", "null"]}, False, True),
        ({}, False, True),
        ({"anyOf": [{"type": "object"}]}, False, True),
        (True, False, False),
        ([], False, False),
        ("object", False, False),
    ],
)
def test_omits_output_schema_by_protocol_generation(
    schema: Any, in_session: bool, in_stateless: bool
) -> None:
    snapshot = merged(offer("s", [definition("a", outputSchema=schema, title="T")]))
    for era, is_shown in ((Era.SESSION, in_session), (Era.STATELESS, in_stateless)):
        tool = without_node_members(*shown(snapshot, era=era))
        assert tool.pop("outputSchema", None) == (schema if is_shown else None)
        assert tool == {"name": "s.a", "inputSchema": {"type": "object"}, "title": "T"}


def test_shows_execution_only_to_session_clients() -> None:
    snapshot = merged(offer("s", [definition("a", execution={"taskSupport": "optional"})]))
    [tool] = shown(snapshot, era=Era.SESSION)
    assert tool["execution"] == {"taskSupport": "optional"}
    [tool] = shown(snapshot, era=Era.STATELESS)
    assert "execution" not in tool
