"""Entries held against contracts, and servers' tools against both, before anybody calls."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from interlock.drivers.binding import check_binding, check_entry, check_listed, version_problem
from interlock.manifests.model import ArgumentMapping, ImplementedContract, ToolContract
from interlock.manifests.schema_view import SchemaView
from tests.drivers.making import READ, contract, entry
from tests.protocol import json_values

TOOL: dict[str, Any] = {
    "name": "make",
    "inputSchema": {
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "mode": {"type": "string"},
            "limit": {"type": "number"},
        },
        "required": ["path"],
        "additionalProperties": False,
    },
}


def problems(of: ToolContract = READ, **said: Any) -> list[str]:
    return check_entry(of, entry(**said))


# --- the two files ---


def test_an_entry_that_fits() -> None:
    assert problems() == []
    assert (
        problems(
            drop_inputs=("mode",),
            drop_outputs=("mime",),
            mapping={"limit": "lines"},
            argument_mapping={"path": "file", "lines": "n"},
            result_extract="$.contents",
        )
        == []
    )


@pytest.mark.spec("DR-30.implements-8")
@pytest.mark.parametrize(
    ("version", "wanted", "fits"),
    [
        ("1.4.2", "^1.0", True),
        ("2.0.0", "^1.0", False),
        ("1.1.0-beta", "^1.0.0", False),
        ("1.1.0-beta", "^1.1.0-alpha", True),
        ("1.4.2", "~1.4", True),
        ("1.5.0", "~1.4", False),
        ("1.4.2", "1.x", True),
        ("1.4.2", "1.2 - 1.4", True),
        ("1.5.0", "1.2 - 1.4", False),
        ("3.0.0", "^1 || ^3", True),
        ("1.4.2", ">=1.2 <1.4", False),
        ("0.3.0", "^0.2.1", False),
    ],
)
def test_the_contracts_version_is_in_the_range_or_the_entry_is_refused(
    version: str, wanted: str, fits: bool
) -> None:
    problem = version_problem(contract(version=version), entry(version=wanted))
    assert (not problem) is fits
    if not fits:
        assert version in problem
        assert wanted in problem
        assert check_entry(contract(version=version), entry(version=wanted)) == [problem]


def test_a_range_that_is_none_is_a_problem() -> None:
    assert len(problems(version="newest")) == 1


@pytest.mark.spec("DR-30.implements-4")
@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"drop_inputs": ("path",)}, "`drop_inputs` has 'path', which is required by"),
        ({"drop_inputs": ("paht",)}, "'paht', which is not among the contract's inputs"),
        ({"drop_outputs": ("contents",)}, "`drop_outputs` has 'contents', which is required"),
        ({"drop_outputs": ("size",)}, "'size', which is not among the contract's outputs"),
    ],
)
def test_only_what_is_optional_and_known_can_be_dropped(said: dict[str, Any], words: str) -> None:
    found = problems(**said)
    assert len(found) == 1
    assert words in found[0]


@pytest.mark.spec("DR-30.implements-5")
def test_a_transformer_must_be_there() -> None:
    using = entry(mapping={"path": ArgumentMapping("file", "upper")})
    missing = check_entry(READ, using)
    assert len(missing) == 1
    assert "'upper'" in missing[0]
    assert check_entry(READ, using, transforms={"upper"}) == []


def test_everything_that_is_wrong_with_an_entry_is_told() -> None:
    found = problems(
        drop_inputs=("path", "size"),
        mapping={"paht": "x", "mode": ArgumentMapping("m", "upper")},
        argument_mapping={"nobody": "a", "nothing": "b", "path": "limit"},
        result_extract="$[",
    )
    told = (
        "`drop_inputs` has 'path'",
        "`drop_inputs` has 'size'",
        "`mapping` has 'paht'",
        "transformer 'upper'",
        "`argument_mapping` has 'nobody'",
        "`argument_mapping` has 'nothing'",
        "`result_extract`: ",
    )
    assert [one for one in told if not any(one in sentence for sentence in found)] == []
    assert len(found) == len(told)
    found = problems(argument_mapping={"nobody": "a", "path": "limit"})
    assert len(found) == 2
    assert "'path' and 'limit' to the same name" in found[1]


@pytest.mark.spec("DR-32.pertool-6")
@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            {"argument_mapping": {"path": "x", "mode": "x"}},
            "'path' and 'mode' to the same name, 'x'",
        ),
        # An input that is not mentioned keeps its name.
        ({"argument_mapping": {"path": "mode"}}, "'path' and 'mode' to the same name, 'mode'"),
        ({"mapping": {"path": "mode"}}, "`mapping` maps 'path' and 'mode' to the same name"),
        ({"argument_mapping": {"paht": "x"}}, "'paht', which is not an input of the contract. Did"),
        ({"mapping": {"paht": "x"}}, "`mapping` has 'paht', which is not an input"),
        (
            {"mapping": {"path": "p"}, "argument_mapping": {"path": "x"}},
            "'path', which is not an input of the contract after `mapping`",
        ),
    ],
)
def test_names_that_collide_or_are_unknown(said: dict[str, Any], words: str) -> None:
    found = problems(**said)
    assert len(found) == 1, found
    assert words in found[0]


def test_two_inputs_may_change_places() -> None:
    assert problems(argument_mapping={"path": "mode", "mode": "path"}) == []
    # What is dropped is in nobody's way.
    assert problems(drop_inputs=("mode",), argument_mapping={"path": "mode"}) == []


@pytest.mark.spec("DR-32.pertool-5")
def test_every_entry_names_its_tool_unless_code_serves_it() -> None:
    without = ImplementedContract(tool="fs-read", version="^1.0.0")
    found = check_entry(READ, without)
    assert found == [
        "fs-read: `metadata.mcp.tool_name` is missing. Name the tool of the server that serves it."
    ]
    assert check_entry(READ, without, has_hook=True) == []


@pytest.mark.spec("DR-31.jsonpath-1")
@pytest.mark.parametrize("path", ["$..x", "$[0:2]", "contents"])
def test_a_path_that_is_none_is_told_at_registration(path: str) -> None:
    found = problems(result_extract=path)
    assert len(found) == 1
    assert found[0].startswith("fs-read: `result_extract`: ")


# --- the server's tool ---


def bound(definition: dict[str, Any] = TOOL, of: ToolContract = READ, **said: Any) -> list[str]:
    return list(check_binding(of, entry(**said), definition).errors)


def tool(**schema: Any) -> dict[str, Any]:
    return {**TOOL, "inputSchema": {**TOOL["inputSchema"], **schema}}


def test_a_tool_that_fits() -> None:
    findings = check_binding(READ, entry(), TOOL)
    assert findings.is_good
    assert findings.warnings == ()


@pytest.mark.spec("DR-32.pertool-1")
def test_a_tool_that_the_server_does_not_list() -> None:
    listed = {"read_file": {**TOOL, "name": "read_file"}, "write_file": TOOL}
    findings = check_listed(READ, entry("read_fiel"), listed)
    assert findings.errors == (
        "fs-read: the server has no tool 'read_fiel'. Did you mean 'read_file'?",
    )
    assert check_listed(READ, entry("read_file"), listed).is_good
    assert check_listed(READ, entry("fetch"), {}).errors == (
        "fs-read: the server has no tool 'fetch'.",
    )


@pytest.mark.spec("DR-32.security-2", "DR-32.security-6")
@pytest.mark.parametrize(
    ("definition", "said", "words"),
    [
        (
            tool(required=["path", "encoding"]),
            {},
            "'make' requires 'encoding', but no input of the contract is mapped to it.",
        ),
        (
            tool(required=["path", "mode"]),
            {},
            "'make' requires 'mode', which comes only from 'mode', an optional input",
        ),
        (
            TOOL,
            {"argument_mapping": {"path": "file"}},
            "'make' has no argument 'file', to which 'path' is mapped.",
        ),
        (
            tool(properties={**TOOL["inputSchema"]["properties"], "path": {"type": "array"}}),
            {},
            "the input 'path' is string, but the argument 'path' of 'make' is array.",
        ),
        (
            tool(required=["path", "mode"]),
            {"drop_inputs": ("mode",)},
            "'make' requires 'mode', but no input of the contract is mapped to it: the driver "
            "drops 'mode'.",
        ),
        (TOOL, {"drop_inputs": ("path",)}, "the driver drops the input 'path', which the contract"),
        (
            {
                **TOOL,
                "outputSchema": {
                    "type": "object",
                    "properties": {"content": {"type": "string"}},
                },
            },
            {"result_extract": "$.contents"},
            "`result_extract` ($.contents) does not fit the output of 'make': there is no member "
            "'contents' at `$`.",
        ),
    ],
)
def test_each_mismatch_has_a_name(
    definition: dict[str, Any], said: dict[str, Any], words: str
) -> None:
    found = bound(definition, **said)
    assert any(words in one for one in found), found
    assert all(one.startswith("fs-read: ") for one in found)


def test_both_mappings_are_followed() -> None:
    renamed = tool(properties={"f": {"type": "string"}, "m": {}, "limit": {}}, required=["f"])
    assert (
        bound(renamed, mapping={"path": "file", "mode": "m"}, argument_mapping={"file": "f"}) == []
    )


def test_a_transformed_input_may_be_of_another_type() -> None:
    numbers = tool(properties={**TOOL["inputSchema"]["properties"], "path": {"type": "integer"}})
    using = entry(mapping={"path": ArgumentMapping("path", "hash")})
    assert check_binding(READ, using, numbers).is_good
    assert bound(numbers) != []


def test_a_hook_makes_the_arguments_its_own_affair() -> None:
    strange = tool(required=["tenant"], properties={"tenant": {}})
    assert bound(strange) != []
    assert check_binding(READ, entry(), strange, has_hook=True).is_good


def test_an_open_tool_takes_what_it_does_not_mention_but_that_is_told() -> None:
    open_tool = {**TOOL, "inputSchema": {"type": "object", "properties": {"file": {}}}}
    findings = check_binding(READ, entry(argument_mapping={"path": "flie"}), open_tool)
    assert findings.is_good
    assert len(findings.warnings) == 1
    assert "Did you mean 'file'?" in findings.warnings[0]
    silent = {**TOOL, "inputSchema": {"type": "object"}}
    assert check_binding(READ, entry(argument_mapping={"path": "p"}), silent).warnings == ()


@pytest.mark.parametrize(
    ("schema", "path", "fits"),
    [
        ({"type": "object", "properties": {"contents": {"type": "string"}}}, "$.contents", True),
        ({"type": "object", "properties": {"contents": {"type": "string"}}}, "$", True),
        ({"type": "object"}, "$.contents", True),
        ({"type": "object", "additionalProperties": False}, "$.contents", False),
        ({"type": "object", "additionalProperties": {"type": "string"}}, "$.contents", True),
        ({"type": "object", "patternProperties": {"^con": {"type": "string"}}}, "$.contents", True),
        ({"type": "array"}, "$.contents", False),
        ({"type": "array", "items": {"type": "string"}}, "$[0]", True),
        ({"type": "array", "items": {"type": "object"}}, "$[0].contents", True),
        ({"type": "array", "items": {"type": "number"}}, "$[0].contents", False),
        ({"type": "array", "items": {"type": "number"}}, "$[-1].contents", True),
        ({"type": "object", "properties": {"n": {"type": "integer"}}}, "$.n", False),
        ({"anyOf": [{"type": "array"}, {"type": "object"}]}, "$.contents", True),
        ({"anyOf": [{"type": "array"}, {"type": "null"}]}, "$.contents", False),
        (
            {"$ref": "#/$defs/R", "$defs": {"R": {"properties": {"contents": {}}}}},
            "$.contents",
            True,
        ),
        ({"$ref": "#/$defs/R", "$defs": {"R": {"properties": {"x": {}}}}}, "$.contents", False),
        ({"$ref": "https://example.invalid/x"}, "$.contents", True),
        ({"type": "array", "items": {"type": "string"}}, "$[*]", False),
        (True, "$.contents", True),
    ],
)
def test_the_extract_path_in_an_output_schema(schema: Any, path: str, fits: bool) -> None:
    definition = {**TOOL, "outputSchema": schema}
    assert (not bound(definition, result_extract=path)) is fits


@pytest.mark.spec("DR-14.mutates-1")
@pytest.mark.parametrize(
    ("hints", "said", "warned"),
    [
        ({"readOnlyHint": False}, {}, True),
        ({"readOnlyHint": True}, {}, False),
        ({}, {}, False),
        (None, {}, False),
        ({"readOnlyHint": False}, {"mutates": ("fs:*",)}, False),
        ({"destructiveHint": True}, {"mutates": ("fs:*",), "risk_level": 2}, True),
        ({"destructiveHint": True}, {"mutates": ("fs:*",), "risk_level": 3}, False),
        ({"destructiveHint": True, "readOnlyHint": True}, {}, False),
    ],
)
def test_a_tool_that_does_more_than_its_contract_says(
    hints: Any, said: dict[str, Any], warned: bool
) -> None:
    of = contract("fs-read", inputs=READ.inputs, outputs=READ.outputs, **said)
    findings = check_binding(of, entry(), {**TOOL, "annotations": hints})
    assert findings.is_good
    assert len(findings.warnings) == warned


# --- strangers ---


@given(json_values.values, json_values.values)
def test_no_definition_of_a_server_breaks_the_check(schema: Any, answer: Any) -> None:
    definition = {"name": "make", "inputSchema": schema, "outputSchema": answer, "annotations": 3}
    findings = check_binding(READ, entry(result_extract="$.a[0].b"), definition)
    assert isinstance(findings.errors, tuple)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"allOf": [{"$ref": "#"}, {"$ref": "#"}]},
        {"anyOf": [{"$ref": "#"}] * 60},
        {"properties": {"path": {"$ref": "#"}}, "required": ["path"], "oneOf": [{"$ref": "#"}] * 9},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    ],
)
def test_a_schema_that_leads_back_to_itself_ends(schema: dict[str, Any]) -> None:
    assert isinstance(bound({"name": "make", "inputSchema": schema, "outputSchema": schema}), list)


def test_what_a_schema_says_on_the_face_of_it() -> None:
    view = SchemaView.of(
        {
            "allOf": [
                {"properties": {"a": {"type": ["string", "null"]}}, "required": ["a"]},
                {"$ref": "#/$defs/more"},
            ],
            "$defs": {"more": {"properties": {"a": {"enum": ["x", 1]}, "b": {"const": 1}}}},
        }
    )
    assert view.names == ("a", "b")
    assert view.required == {"a"}
    member = view.member("a")
    assert member is not None
    assert member.types == {"string"}
    other = view.member("b")
    assert other is not None
    assert other.types == {"integer", "number"}
    assert not view.closed
