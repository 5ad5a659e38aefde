"""Entries compared with contracts, and tools of servers with both, before the first call."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from interlock.drivers.binding import check_binding, check_entry, check_listed, version_problem
from interlock.manifests.model import ArgumentMapping, ImplementedContract, ToolContract
from interlock.manifests.schema_view import SchemaView
from tests.drivers.driver_decisions import READ, contract, entry
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


def entry_problems(of: ToolContract = READ, **said: Any) -> list[str]:
    return check_entry(of, entry(**said))


# --- the two files ---


def test_valid_entry_has_no_problems() -> None:
    assert entry_problems() == []
    assert (
        entry_problems(
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
    ("version", "version_range", "fits"),
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
def test_contract_version_must_be_in_range(version: str, version_range: str, fits: bool) -> None:
    problem = version_problem(contract(version=version), entry(version=version_range))
    assert (not problem) is fits
    if not fits:
        assert version in problem
        assert version_range in problem
        assert check_entry(contract(version=version), entry(version=version_range)) == [problem]


def test_invalid_version_range_is_problem() -> None:
    assert len(entry_problems(version="newest")) == 1


@pytest.mark.spec("DR-30.implements-4")
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"drop_inputs": ("path",)}, "`drop_inputs` has 'path', which is required by"),
        ({"drop_inputs": ("paht",)}, "'paht', which is not among the contract's inputs"),
        ({"drop_outputs": ("contents",)}, "`drop_outputs` has 'contents', which is required"),
        ({"drop_outputs": ("size",)}, "'size', which is not among the contract's outputs"),
    ],
)
def test_drop_inputs_accepts_known_optional_inputs(fields: dict[str, Any], message: str) -> None:
    result = entry_problems(**fields)
    assert len(result) == 1
    assert message in result[0]


@pytest.mark.spec("DR-30.implements-5")
def test_transformer_must_exist() -> None:
    using = entry(mapping={"path": ArgumentMapping("file", "upper")})
    missing = check_entry(READ, using)
    assert len(missing) == 1
    assert "'upper'" in missing[0]
    assert check_entry(READ, using, transforms={"upper"}) == []


def test_all_entry_problems_are_reported() -> None:
    result = entry_problems(
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
    assert [item for item in told if not any(item in sentence for sentence in result)] == []
    assert len(result) == len(told)
    result = entry_problems(argument_mapping={"nobody": "a", "path": "limit"})
    assert len(result) == 2
    assert "'path' and 'limit' to the same name" in result[1]


@pytest.mark.spec("DR-32.pertool-6")
@pytest.mark.parametrize(
    ("fields", "message"),
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
def test_reports_colliding_and_unknown_names(fields: dict[str, Any], message: str) -> None:
    result = entry_problems(**fields)
    assert len(result) == 1, result
    assert message in result[0]


def test_inputs_may_exchange_names() -> None:
    assert entry_problems(argument_mapping={"path": "mode", "mode": "path"}) == []
    # What is dropped is in nobody's way.
    assert entry_problems(drop_inputs=("mode",), argument_mapping={"path": "mode"}) == []


@pytest.mark.spec("DR-32.pertool-5")
def test_entry_requires_tool_name_or_hook() -> None:
    without = ImplementedContract(tool="fs-read", version="^1.0.0")
    result = check_entry(READ, without)
    assert result == [
        "fs-read: `metadata.mcp.tool_name` is missing. Name the tool of the server that serves it."
    ]
    assert check_entry(READ, without, has_hook=True) == []


@pytest.mark.spec("DR-31.jsonpath-1")
@pytest.mark.parametrize("path", ["$..x", "$[0:2]", "contents"])
def test_invalid_extract_path_is_reported(path: str) -> None:
    result = entry_problems(result_extract=path)
    assert len(result) == 1
    assert result[0].startswith("fs-read: `result_extract`: ")


# --- the server's tool ---


def binding_errors(
    definition: dict[str, Any] = TOOL, of: ToolContract = READ, **said: Any
) -> list[str]:
    return list(check_binding(of, entry(**said), definition).errors)


def tool(**schema: Any) -> dict[str, Any]:
    return {**TOOL, "inputSchema": {**TOOL["inputSchema"], **schema}}


def test_matching_tool_has_no_findings() -> None:
    findings = check_binding(READ, entry(), TOOL)
    assert findings.is_good
    assert findings.warnings == ()


@pytest.mark.spec("DR-32.pertool-1")
def test_missing_tool_is_reported_with_suggestion() -> None:
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
    ("definition", "fields", "message"),
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
            "removes 'mode'.",
        ),
        (
            TOOL,
            {"drop_inputs": ("path",)},
            "the driver removes the input 'path', which the contract",
        ),
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
def test_reports_each_mismatch(
    definition: dict[str, Any], fields: dict[str, Any], message: str
) -> None:
    result = binding_errors(definition, **fields)
    assert any(message in item for item in result), result
    assert all(item.startswith("fs-read: ") for item in result)


def test_applies_both_mappings() -> None:
    renamed = tool(properties={"f": {"type": "string"}, "m": {}, "limit": {}}, required=["f"])
    assert (
        binding_errors(
            renamed, mapping={"path": "file", "mode": "m"}, argument_mapping={"file": "f"}
        )
        == []
    )


def test_transformed_input_may_have_other_type() -> None:
    numbers = tool(properties={**TOOL["inputSchema"]["properties"], "path": {"type": "integer"}})
    using = entry(mapping={"path": ArgumentMapping("path", "hash")})
    assert check_binding(READ, using, numbers).is_good
    assert binding_errors(numbers) != []


def test_hook_skips_argument_check() -> None:
    strange = tool(required=["tenant"], properties={"tenant": {}})
    assert binding_errors(strange) != []
    assert check_binding(READ, entry(), strange, has_hook=True).is_good


def test_unmentioned_argument_of_open_tool_is_warned() -> None:
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
def test_checks_extract_path_against_output_schema(schema: Any, path: str, fits: bool) -> None:
    definition = {**TOOL, "outputSchema": schema}
    assert (not binding_errors(definition, result_extract=path)) is fits


@pytest.mark.spec("DR-14.mutates-1")
@pytest.mark.parametrize(
    ("hints", "fields", "warned"),
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
def test_warns_when_tool_exceeds_declared_effect(
    hints: Any, fields: dict[str, Any], warned: bool
) -> None:
    of = contract("fs-read", inputs=READ.inputs, outputs=READ.outputs, **fields)
    findings = check_binding(of, entry(), {**TOOL, "annotations": hints})
    assert findings.is_good
    assert len(findings.warnings) == warned


# --- strangers ---


@given(json_values.values, json_values.values)
def test_check_survives_any_tool_definition(schema: Any, answer: Any) -> None:
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
def test_recursive_schema_terminates(schema: dict[str, Any]) -> None:
    assert isinstance(
        binding_errors({"name": "make", "inputSchema": schema, "outputSchema": schema}), list
    )


def test_schema_view_reads_properties_and_types() -> None:
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
