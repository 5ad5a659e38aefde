"""The tools of one upstream: filters, names, descriptions, effects and invalid entries."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.core.catalog.definitions import MAX_LISTED_REASONS
from interlock.core.catalog.effects import EffectLevel
from interlock.core.catalog.offering import Offering, read_offering
from tests.protocol import json_values
from tests.support.offerings import definition, offer, server, without_node_members


def canonical(offering: Offering) -> dict[str, str]:
    """Return the canonical name of each tool by its upstream name."""
    return {tool.upstream_name: tool.canonical for tool in offering.tools}


def reasons(offering: Offering) -> list[tuple[str, str]]:
    return [(rejection.name, rejection.reason) for rejection in offering.rejected]


# --- names ---


@pytest.mark.spec("AX-4.1-1", "AX-4.1-5")
def test_prefixes_names_with_segment_and_root() -> None:
    assert canonical(offer("jira", ["create_issue"])) == {"create_issue": "jira.create_issue"}
    assert canonical(offer("edge", ["x"], root="infra")) == {"x": "infra.edge.x"}
    assert canonical(offer("key", ["x"], segment="other")) == {"x": "other.x"}


def test_corrects_invalid_name_and_keeps_upstream_name() -> None:
    [tool] = offer("seg", ["getUser"]).tools
    assert tool.canonical == "seg.getuser"
    assert tool.upstream_name == "getUser"
    assert json.loads(tool.upstream_name_json) == "getUser"


@pytest.mark.spec("AX-4.1-3", "AX-4.1-6")
def test_omits_name_longer_than_255_characters() -> None:
    root = ".".join(["r" * 63] * 3)  # 191 characters; with ".s." 194, so 61 are left
    fits, too_long = "x" * 61, "y" * 62
    offering = offer("s", [too_long, fits, "good"], root=root)
    assert [len(tool.canonical) for tool in offering.tools] == [198, 255]
    assert canonical(offering).keys() == {fits, "good"}
    assert reasons(offering) == [(too_long, "Its full name is longer than 255 characters.")]


@pytest.mark.parametrize("turned", [False, True])
def test_name_clash_result_is_independent_of_order(turned: bool) -> None:
    tools = ["getUser", "getuser", "get.user", "get_user", "GET_USER"]
    offering = offer("s", reversed(tools) if turned else tools)
    assert canonical(offering) == {
        "getuser": "s.getuser",
        "getUser": "s.getuser_2",
        "get_user": "s.get_user",
        "GET_USER": "s.get_user_2",
        "get.user": "s.get_user_3",
    }
    safe = {tool.upstream_name: tool.safe_name for tool in offering.tools}
    # Who can keep its name keeps it.
    assert [safe[name] for name in ("getuser", "getUser", "get_user", "GET_USER")] == [
        "s__getuser", "s__getUser", "s__get_user", "s__GET_USER"
    ]  # fmt: skip
    assert safe["get.user"].startswith("s__get_user_")


@given(st.lists(json_values.text.filter(bool), unique=True, max_size=8), st.randoms())
def test_names_are_independent_of_order(tools: list[str], chance: Any) -> None:
    def given_out(listed: list[str]) -> set[tuple[str, str, str]]:
        return {
            (tool.upstream_name, tool.canonical, tool.safe_name)
            for tool in offer("s", listed).tools
        }

    shuffled = tools.copy()
    chance.shuffle(shuffled)
    assert given_out(tools) == given_out(shuffled)


def test_renames_tool() -> None:
    offering = offer("s", ["a", "b"], rename={"a": "better", "gone": "x"})
    assert canonical(offering) == {"a": "s.better", "b": "s.b"}
    assert {tool.upstream_name: tool.safe_name for tool in offering.tools}["a"] == "s__better"


def test_numbers_tools_renamed_to_same_name() -> None:
    offering = offer("s", ["a", "b"], rename={"a": "same", "b": "same"})
    assert canonical(offering) == {"a": "s.same", "b": "s.same_2"}
    assert len({tool.safe_name for tool in offering.tools}) == 2


def test_renamed_tool_wins_over_original_name() -> None:
    # The operator chose: so who asks for `pay` gets what the operator calls `pay`.
    offering = offer("s", ["pay", "pay_safely"], rename={"pay_safely": "pay"})
    assert canonical(offering) == {"pay_safely": "s.pay", "pay": "s.pay_2"}


def test_swaps_two_names() -> None:
    offering = offer("s", ["a", "b"], rename={"a": "b", "b": "a"})
    assert canonical(offering) == {"a": "s.b", "b": "s.a"}


# --- order ---


def test_orders_tools_by_name() -> None:
    tools = ["zeta", "Beta", "alpha", "beta_1"]
    names = [tool.canonical for tool in offer("s", tools).tools]
    assert names == sorted(names)
    assert names == [tool.canonical for tool in offer("s", reversed(tools)).tools]


def test_transparent_upstream_keeps_order_and_names() -> None:
    offering = offer("s", ["zeta", "Beta", "a.b"], expose="transparent")
    assert [tool.upstream_name for tool in offering.tools] == ["zeta", "Beta", "a.b"]
    assert [tool.name_in_list("dotted") for tool in offering.tools] == ["zeta", "Beta", "a.b"]
    assert [tool.name_in_list("safe") for tool in offering.tools] == ["zeta", "Beta", "a_b"]
    assert [tool.canonical for tool in offering.tools] == ["s.zeta", "s.beta", "s.a_b"]


def test_prefixes_duplicate_transparent_name() -> None:
    offering = offer("s", ["a", "b"], expose="transparent", rename={"b": "a"})
    assert {tool.upstream_name: tool.name_in_list("dotted") for tool in offering.tools} == {
        "b": "a", "a": "s.a_2"
    }  # fmt: skip
    assert {tool.upstream_name: tool.name_in_list("safe") for tool in offering.tools} == {
        "b": "a", "a": "s__a"
    }  # fmt: skip


# --- filters ---


@pytest.mark.parametrize(
    ("allow", "deny", "remaining"),
    [
        ([], [], {"read_a", "read_b", "write_a", "Read_c"}),
        (["read_*"], [], {"read_a", "read_b"}),
        (["read_*", "write_?"], [], {"read_a", "read_b", "write_a"}),
        ([], ["write_*"], {"read_a", "read_b", "Read_c"}),
        (["*"], ["*_a"], {"read_b", "Read_c"}),
        (["read_a"], ["read_a"], set()),
        (["nothing"], [], set()),
        (["[rR]ead_[bc]"], [], {"read_b", "Read_c"}),
    ],
)
def test_filters_tools(allow: list[str], deny: list[str], remaining: set[str]) -> None:
    tools = ["read_a", "read_b", "write_a", "Read_c"]
    offering = offer("s", tools, allow=allow, deny=deny)
    assert canonical(offering).keys() == remaining
    # What the operator left out is no problem to report.
    assert offering.rejected == ()


def test_filters_by_upstream_name() -> None:
    offering = offer("s", ["a", "b"], rename={"a": "b2", "b": "a2"}, deny=["a"])
    assert canonical(offering) == {"b": "s.a2"}


# --- descriptions, effects ---


def test_config_description_replaces_upstream_description() -> None:
    tools: list[str | bytes] = [
        definition("a", description="own"),
        definition("b", description="own"),
        "c",
    ]
    offering = offer("s", tools, descriptions={"a": 'better "quoted"', "c": "", "gone": "x"})
    described = {tool.upstream_name: tool.description for tool in offering.tools}
    assert described == {"a": 'better "quoted"', "b": "own", "c": ""}
    written = {
        tool.upstream_name: json.loads(b"{" + tool.listed[1:])["description"]
        for tool in offering.tools
    }
    assert written == described


def test_classifies_effects_by_upstream_name() -> None:
    tools = [definition("look", annotations={"readOnlyHint": True, "title": "Look"}), "wipe"]
    offering = offer("s", tools, effects={"wip*": "irreversible"}, rename={"wipe": "look2"})  # type: ignore[arg-type]
    effects = {tool.upstream_name: tool.effect.level for tool in offering.tools}
    assert effects == {"look": EffectLevel.READ_ONLY, "wipe": EffectLevel.IRREVERSIBLE}
    [distrusted, _] = offer("s", tools, trust_annotations=False).tools  # type: ignore[arg-type]
    assert distrusted.effect.level is EffectLevel.MUTATING


# --- definitions stay as they came ---


def test_relays_unread_members_byte_by_byte() -> None:
    raw = (
        b'{"title":"T\\u00e9", "name":"a","inputSchema":{"type" :"object","x":1e3,"$ref":"#"},'
        b'"outputSchema":{"type":"object"},"annotations":{"title":"x","new":[]},"icons":[],'
        b'"execution":{"taskSupport":"optional"},"_meta":{"k":1.50}}'
    )
    own = (
        b',"title":"T\\u00e9","inputSchema":{"type" :"object","x":1e3,"$ref":"#"},'
        b'"outputSchema":{"type":"object"},"annotations":{"title":"x","new":[]},"icons":[],'
        b'"execution":{"taskSupport":"optional"},"_meta":{"k":1.50'
    )
    [as_itself] = offer("s", [raw], expose="transparent").tools
    assert as_itself.listed == own + b"}}"
    [tool] = offer("s", [raw]).tools
    assert tool.listed.startswith(own + b',"x-mcpax-')
    assert tool.input_schema() == {"type": "object", "x": 1000.0, "$ref": "#"}


def test_omits_null_members() -> None:
    raw = definition("a", description=None, title=None, annotations=None, outputSchema=None)
    [tool] = offer("s", [raw]).tools
    assert without_node_members(json.loads(b"{" + tool.listed[1:])) == {
        "inputSchema": {"type": "object"}
    }


@pytest.mark.parametrize(
    ("schema", "shown"),
    [
        ({}, {"type": "object"}),
        ({"properties": {}}, {"type": "object", "properties": {}}),
        ({"type": ["object", "null"]}, {"type": "object"}),
        ({"type": "object", "type ": 1}, {"type": "object", "type ": 1}),
    ],
)
def test_adds_object_type_to_schema(schema: dict[str, Any], shown: dict[str, Any]) -> None:
    [tool] = offer("s", [definition("a", inputSchema=schema)]).tools
    assert tool.input_schema() == shown
    assert json.loads(b"{" + tool.listed[1:])["inputSchema"] == shown


# --- entries that cannot be used ---


@pytest.mark.parametrize(
    ("raw", "name", "reason"),
    [
        (b"null", "?", "The entry is not an object."),
        (b"[]", "?", "The entry is not an object."),
        (b'"tool"', "?", "The entry is not an object."),
        (b"{", "?", "The entry is not an object."),
        (b"{}", "?", "missing required field `name`"),
        (definition(None), "?", "Expected `str`"),
        (definition(5), "?", "Expected `str`"),
        (definition(["a"]), "?", "Expected `str`"),
        (definition(""), "?", "`name` is empty."),
        (definition("x" * 1025), "x" * 100 + "…", "`name` is longer than 1024 characters."),
        (b'{"name":"a"}', "a", "missing required field `inputSchema`"),
        (definition("a", inputSchema=None), "a", "not an object"),
        (definition("a", inputSchema=[]), "a", "`inputSchema` is not an object."),
        (definition("a", inputSchema=True), "a", "`inputSchema` is not an object."),
        (definition("a", inputSchema="object"), "a", "`inputSchema` is not an object."),
        (definition("a", inputSchema={"type": "string"}), "a", "must have `type: object`"),
        (definition("a", inputSchema={"type": ["null"]}), "a", "must have `type: object`"),
        (definition("a", inputSchema={"type": None}), "a", "must have `type: object`"),
        (definition("a", description=5), "a", "Expected `str"),
        (definition("a", annotations=[]), "a", "Expected `object"),
        (definition("a", annotations={"readOnlyHint": "yes"}), "a", "Expected `bool"),
        (b'{"name":"a","inputSchema":{"type":"object"},"x":"\xff"}', "a", "Invalid definition"),
        (b'{"name":"a","x":' + b"[" * 50_000 + b"]" * 50_000 + b"}", "?", "not an object"),
    ],
)  # fmt: skip
@pytest.mark.spec("AX-4.1-6")
def test_rejects_invalid_entry_without_affecting_others(raw: bytes, name: str, reason: str) -> None:
    offering = offer("s", ["before", raw, "later"])
    assert canonical(offering).keys() == {"before", "later"}
    [aside] = offering.rejected
    assert aside.name == name
    assert reason in aside.reason


def test_uses_first_of_duplicate_names() -> None:
    first = definition("a", description="first")
    offering = offer("s", [first, "b", definition("a", description="second")])
    assert [tool.description for tool in offering.tools] == ["first", ""]
    assert reasons(offering) == [("a", "The upstream lists this name more than once.")]


def test_removes_duplicate_name_member() -> None:
    raw = b'{"name":"a","inputSchema":{"type":"object"},"name":"b"}'
    [tool] = offer("s", [raw]).tools
    assert tool.upstream_name == "b"
    assert b'"name"' not in tool.listed


def test_keeps_large_description() -> None:
    big = "x" * 10_000_000
    offering = offer("s", [definition("a", description=big), "b"])
    assert [len(tool.description) for tool in offering.tools] == [len(big), 0]


def test_limits_number_of_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("interlock.core.catalog.definitions.MAX_ENTRIES", 10)
    offering = offer("s", [f"t{number:03}" for number in range(10 + MAX_LISTED_REASONS + 7)])
    assert [tool.upstream_name for tool in offering.tools] == [f"t{n:03}" for n in range(10)]
    assert len(offering.rejected) == MAX_LISTED_REASONS + 1
    assert offering.rejected[0].reason == "The upstream lists more than 10 entries of this kind."
    assert offering.rejected[-1].reason == "7 more, for similar reasons."


def test_limit_ignores_filtered_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("interlock.core.catalog.definitions.MAX_ENTRIES", 2)
    offering = offer("s", ["no1", "no2", "a", "b"], deny=["no*"])
    assert canonical(offering).keys() == {"a", "b"}


# --- headers ---

HEADER = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}
BAD_HEADER = {"type": "object", "properties": {"a": {"type": "object", "x-mcp-header": "A"}}}


def test_reads_header_parameters() -> None:
    [tool] = offer("s", [definition("a", inputSchema=HEADER)], http=True).tools
    assert [param.header for param in tool.header_params] == ["Mcp-Param-Region"]


def test_rejects_invalid_header_annotation_only_over_http() -> None:
    invalid = definition("bad", inputSchema=BAD_HEADER)
    over_http = offer("s", [invalid, "good"], http=True)
    assert canonical(over_http).keys() == {"good"}
    [aside] = over_http.rejected
    assert aside.name == "bad"
    assert "x-mcp-header" in aside.reason
    over_stdio = offer("s", [invalid, "good"])
    assert canonical(over_stdio).keys() == {"bad", "good"}
    assert over_stdio.tools[0].header_params == ()


@pytest.mark.parametrize("http", [True, False])
def test_unreadable_header_schema_does_not_affect_others(http: bool) -> None:
    raw = (
        b'{"name":"bad","inputSchema":{"type":"object","properties":'
        b'{"a":{"type":"string","x-mcp-header":"A","maxLength":1e999}}}}'
    )
    offering = offer("s", [raw, "good"], http=http)
    assert "good" in canonical(offering)


# --- whatever comes ---

fields = st.sampled_from(["name", "inputSchema", "description", "annotations", "type", "_meta"])
entries = st.dictionaries(fields | json_values.text, json_values.values, max_size=6)


@given(st.lists((json_values.values | entries).map(json.dumps), max_size=8), st.booleans())
def test_reads_or_rejects_any_json(raws: list[str], http: bool) -> None:
    definitions = [definition("good"), *(raw.encode() for raw in raws)]
    offering = read_offering("s", server(segment="s"), definitions, http=http)
    assert "good" in canonical(offering)
    assert len(offering.tools) + len(offering.rejected) == len(definitions)
    for tool in offering.tools:
        json.loads(b"{" + tool.listed[1:])


@given(st.lists(st.binary(max_size=40), max_size=5))
def test_reads_or_rejects_any_bytes(raws: list[bytes]) -> None:
    offering = read_offering("s", server(segment="s"), [definition("good"), *raws])
    assert canonical(offering)["good"] == "s.good"
