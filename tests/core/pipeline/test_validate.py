"""Validation of arguments by the schema of a tool, and unusable schemas."""

from __future__ import annotations

import logging
import socket
from typing import Any

import pytest
from hypothesis import given

from interlock.core.pipeline.validation import validate_arguments
from interlock.errors import HEADER_MISMATCH, INVALID_ARGUMENTS, INVALID_PARAMS, InterlockError
from tests.protocol import json_values
from tests.support.calls import tool_call, tool_with

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 2},
        "age": {"type": "integer", "minimum": 0},
        "color": {"enum": ["red", "green"]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "home": {"type": "object", "properties": {"zip": {"type": "string"}}},
    },
    "required": ["name"],
    "additionalProperties": False,
}


def reject(schema: Any, arguments: Any, **fields: Any) -> InterlockError:
    with pytest.raises(InterlockError) as caught:
        validate_arguments(tool_call(arguments=arguments, **fields), tool_with(schema))
    return caught.value


def problems(schema: Any, arguments: Any) -> dict[str, str]:
    error = reject(schema, arguments)
    assert error.failure is INVALID_ARGUMENTS
    assert error.data is not None
    assert error.data["tool"] == "s.t"
    result = {item["field"]: item["problem"] for item in error.data["problems"]}
    # The sentence says the same as the data, for whoever reads only that.
    assert error.message.startswith("Invalid arguments for s.t. ")
    for field, problem in result.items():
        assert f"{field}: {problem}" in error.message
    return result


# --- arguments ---


def test_accepts_valid_arguments() -> None:
    call = tool_call(arguments={"name": "Ada", "age": 36, "home": {"zip": "1"}})
    validate_arguments(call, tool_with(PERSON))
    assert call.decoded_arguments == {"name": "Ada", "age": 36, "home": {"zip": "1"}}


def test_treats_absent_arguments_as_empty_object() -> None:
    call = tool_call()
    validate_arguments(call, tool_with({"type": "object"}))
    assert call.decoded_arguments == {}
    assert problems(PERSON, None) == {"arguments": '"name" is a required property'}


@pytest.mark.parametrize(
    ("arguments", "field", "problem"),
    [
        ({"name": "Ada", "age": "old"}, "age", 'not of type "integer"'),
        ({"name": "Ada", "age": -1}, "age", "less than the minimum of 0"),
        ({"name": "Ada", "age": 1.5}, "age", 'not of type "integer"'),
        ({"name": "A"}, "name", "shorter than 2 characters"),
        ({"name": None}, "name", 'not of type "string"'),
        ({"name": "Ada", "color": "blue"}, "color", 'not one of "red" or "green"'),
        ({"name": "Ada", "tags": ["a", 5]}, "tags.1", 'not of type "string"'),
        ({"name": "Ada", "home": {"zip": 5}}, "home.zip", 'not of type "string"'),
        ({"name": "Ada", "home": []}, "home", 'not of type "object"'),
        ({"age": 1}, "arguments", '"name" is a required property'),
        ({"name": "Ada", "nmae": 1}, "arguments", "'nmae' was unexpected"),
    ],
)
def test_names_invalid_field_with_reason(
    arguments: dict[str, Any], field: str, problem: str
) -> None:
    result = problems(PERSON, arguments)
    assert list(result) == [field]
    assert problem in result[field]


def test_names_limited_number_of_invalid_fields() -> None:
    assert set(problems(PERSON, {"name": 1, "age": "x", "color": 2})) == {"name", "age", "color"}
    many = {"type": "object", "additionalProperties": {"type": "string"}}
    assert len(problems(many, {f"f{number}": number for number in range(50)})) == 5


def test_error_does_not_repeat_arguments() -> None:
    # The sentence goes to the journal, and the value may be a password put into the wrong field.
    error = reject(PERSON, {"name": "Ada", "age": "hunter2", "color": "hunter2"})
    assert "hunter2" not in error.message
    assert "hunter2" not in repr(error.data)


def test_limits_error_length() -> None:
    error = reject(PERSON, {"name": "Ada", "x" * 100_000: 1, "tags": ["y" * 100_000] * 3 + [1]})
    assert len(error.message) < 1_000
    deep = {"type": "object", "additionalProperties": {"type": "integer"}}
    assert len(reject(deep, {"k" * 100_000: "x"}).message) < 1_000


def test_treats_null_arguments_as_empty_object() -> None:
    call = tool_call(arguments=b"null")
    validate_arguments(call, tool_with({"type": "object"}))
    assert call.decoded_arguments == {}
    # The upstream gets what it expects, too.
    assert bytes(call.arguments) == b"{}"


@pytest.mark.parametrize("raw", [b"[]", b"[1]", b'"x"', b"1", b"true"], ids=bytes.decode)
def test_rejects_arguments_that_are_not_object(raw: bytes) -> None:
    error = reject({"type": "object"}, raw)
    assert error.failure is INVALID_PARAMS
    assert error.message == "`arguments` must be an object."


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b'{"a":1e999}', b'{"a":' + b"9" * 5_000 + b"}", b'{"a":"\xff"}',
     b'{"a":' * 5_000 + b"1" + b"}" * 5_000],
    ids=["nothing", "half", "infinite number", "too many digits", "no UTF-8", "deep"],
)  # fmt: skip
def test_rejects_undecodable_arguments(raw: bytes) -> None:
    error = reject({"type": "object"}, raw)
    assert error.failure is INVALID_PARAMS
    assert error.message.startswith("Cannot decode `arguments`")


def test_checks_large_numbers_exactly() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 10**30}}}
    validate_arguments(tool_call(arguments=b'{"n":%d}' % 10**29), tool_with(schema))
    assert "n" in problems(schema, b'{"n":%d}' % 10**31)


def test_checks_deeply_nested_arguments() -> None:
    schema = {"type": "object", "properties": {"a": {"$ref": "#"}, "n": {"type": "integer"}}}
    deep = b'{"a":' * 400 + b'{"n":"x"}' + b"}" * 400
    assert reject(schema, deep).failure is INVALID_ARGUMENTS


@given(json_values.objects)
def test_open_schema_accepts_any_object(arguments: dict[str, Any]) -> None:
    call = tool_call(arguments=arguments)
    validate_arguments(call, tool_with({"type": "object"}))
    assert call.decoded_arguments == arguments


# --- schemas ---


def test_compiles_schema_once() -> None:
    tool = tool_with(PERSON)
    validate_arguments(tool_call(arguments={"name": "Ada"}), tool)
    compiled = tool.validator
    validate_arguments(tool_call(arguments={"name": "Ada"}), tool)
    assert tool.validator is compiled


@pytest.mark.parametrize(
    ("dialect", "schema", "valid", "invalid"),
    [
        # In draft 7 a list under `items` is one schema per place.
        (
            "http://json-schema.org/draft-07/schema#",
            {"items": [{"type": "string"}], "additionalItems": False},
            ["x"],
            ["x", 1],
        ),
        ("http://json-schema.org/draft-07/schema", {"items": [{"type": "string"}]}, ["x"], [1]),
        # In draft 4 `exclusiveMaximum` is a yes or no.
        (
            "http://json-schema.org/draft-04/schema#",
            {"maximum": 3, "exclusiveMaximum": True},
            2,
            3,
        ),
        # 2020-12, said or not
        (
            "https://json-schema.org/draft/2020-12/schema",
            {"prefixItems": [{"type": "string"}], "items": False},
            ["x"],
            ["x", 1],
        ),
        (None, {"prefixItems": [{"type": "string"}], "items": False}, ["x"], ["x", 1]),
        # `exclusiveMaximum` beside `$ref` counts in 2020-12 and is passed over in draft 7.
        (None, {"$ref": "#/$defs/n", "maximum": 3}, 3, 4),
    ],
)
def test_applies_dialect_of_schema(
    dialect: str | None, schema: dict[str, Any], valid: Any, invalid: Any
) -> None:
    whole: dict[str, Any] = {
        "type": "object",
        "properties": {"a": schema},
        "$defs": {"n": {"type": "integer"}},
    }
    if dialect is not None:
        whole["$schema"] = dialect
    validate_arguments(tool_call(arguments={"a": valid}), tool_with(whole))
    assert any(field.startswith("a") for field in problems(whole, {"a": invalid}))


def test_follows_local_references() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"$ref": "#/definitions/name"}},
        "definitions": {"name": {"type": "string"}},
    }
    assert list(problems(schema, {"a": 1})) == ["a"]


BROKEN: dict[str, Any] = {
    "no such type": {"type": "object", "properties": {"a": {"type": "strnig"}}},
    "a pattern that is none": {"type": "object", "properties": {"a": {"pattern": "("}}},
    "a reference to nothing": {"type": "object", "$ref": "#/$defs/nothing"},
    "an old form without its dialect": {"type": "object", "properties": {"a": {"items": [{}]}}},
    "an unknown dialect": {"type": "object", "$schema": "https://example.org/mine"},
    "a dialect that is no text": {"type": "object", "$schema": 5},
    "properties that are none": {"type": "object", "properties": 5},
    "required that is none": {"type": "object", "required": "a"},
    "a reference to the web": {"type": "object", "$ref": "http://example.invalid/schema.json"},
    "a reference to a file": {"type": "object", "$ref": "file:///etc/hostname"},
    "a relative reference": {"type": "object", "$id": "http://example.invalid/", "$ref": "x"},
}


@pytest.mark.spec("ST-4.4.2-14")
@pytest.mark.parametrize("reason", BROKEN)
def test_broken_schema_accepts_calls_and_warns_once(
    reason: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_network(*args: Any, **named: Any) -> Any:
        raise AssertionError("a schema made the node look for something")

    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    monkeypatch.setattr(socket.socket, "connect", no_network)
    tool = tool_with(BROKEN[reason])
    with caplog.at_level(logging.WARNING, "interlock.pipeline"):
        for arguments in ({}, {"a": 1}, {"a": "x"}):
            validate_arguments(tool_call(arguments=arguments), tool)
    [warning] = caplog.records
    assert warning.getMessage().startswith("tool s.t: unusable schema (")
    assert "without validation" in warning.getMessage()
    assert len(warning.getMessage()) < 400
    assert "\n" not in warning.getMessage()


def test_infinite_number_in_schema_accepts_calls() -> None:
    raw = b'{"name":"t","inputSchema":{"type":"object","properties":{"a":{"maximum":1e999}}}}'
    validate_arguments(tool_call(arguments={"a": 1}), tool_with(raw))


@pytest.mark.parametrize("uri", ["http://127.0.0.1:{port}/schema.json", "file://{path}"])
def test_schema_cannot_fetch_references(uri: str, tmp_path: Any) -> None:
    secret = tmp_path / "schema.json"
    secret.write_text('{"type": "object", "required": ["must-not-be-read"]}')
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        where = uri.format(port=listener.getsockname()[1], path=secret)
        # Had it been read, the call would be refused.
        validate_arguments(tool_call(arguments={}), tool_with({"type": "object", "$ref": where}))
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_ignores_formats() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "format": "email"}}}
    validate_arguments(tool_call(arguments={"a": "no address"}), tool_with(schema))


# --- headers ---

HEADER = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}


def test_checks_header_parameters_against_arguments() -> None:
    tool = tool_with(HEADER, http=True)
    sent = [(b"mcp-param-region", b"us")]
    validate_arguments(tool_call(arguments={"region": "us"}, header_params=sent), tool)
    with pytest.raises(InterlockError, match="Mcp-Param-Region") as caught:
        validate_arguments(tool_call(arguments={"region": "eu"}, header_params=sent), tool)
    assert caught.value.failure is HEADER_MISMATCH
    with pytest.raises(InterlockError, match="missing"):
        validate_arguments(tool_call(arguments={"region": "eu"}, header_params=[]), tool)


def test_transport_without_headers_skips_header_check() -> None:
    validate_arguments(tool_call(arguments={"region": "eu"}), tool_with(HEADER, http=True))


# --- schemas that ask for too much work ---

DOUBLED = {
    "$ref": "#/$defs/d0",
    "$defs": {
        **{f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)},
        "d40": {"type": "object"},
    },
}


def test_slow_schema_is_not_used(caplog: pytest.LogCaptureFixture) -> None:
    tool = tool_with(DOUBLED)
    for _ in range(2):
        call = tool_call(arguments={"a": "hello"})
        validate_arguments(call, tool)
        assert call.decoded_arguments == {"a": "hello"}
    # Said once, not with every call.
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 1


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"pattern": "(.{0,100}){100}x"}}},
        {"properties": {"a": {"anyOf": [{"pattern": r"^(a|aa)+\1x$"}] * 200}}},
        {"properties": {f"p{number}": {} for number in range(20_000)}},
        {"properties": {"a": {"enum": ["x" * 2_000_000]}}},
    ],
)
def test_skips_validation_above_complexity_limit(schema: Any) -> None:
    validate_arguments(
        tool_call(arguments={"a": "a" * 100}), tool_with({"type": "object", **schema})
    )


def test_accepts_few_lookaround_patterns() -> None:
    schema = {"properties": {"a": {"pattern": r"^(?!.*\.\.)[a-z.]+$"}}}
    validate_arguments(tool_call(arguments={"a": "a.b"}), tool_with(schema))
    assert set(problems(schema, {"a": "a..b"})) == {"a"}


def test_error_lists_known_fields() -> None:
    error = reject(PERSON, {"name": "Jo", "colour": "red"})
    assert error.data is not None
    assert error.data["fields"] == ["name", "age", "color", "tags", "home"]
    assert 'Did you mean "color"?' in error.message
    assert "name (required)" in error.message
    missing = reject(PERSON, {})
    assert "Did you mean" not in missing.message
    assert "name (required)" in missing.message
    # A schema without names has none to list.
    bare = reject({"type": "object", "minProperties": 1}, {})
    assert bare.data is not None
    assert bare.data["fields"] == []
