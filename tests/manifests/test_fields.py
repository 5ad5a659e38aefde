"""Schemas of structs, and structs built from values."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import jsonschema_rs
import msgspec
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct, field

from interlock.core.config.problems import InvalidValueError
from interlock.manifests.fields import (
    DURATION,
    NOT_IN_FILE,
    FieldFault,
    ManifestBlock,
    build,
    converter,
    derive_object_schema,
    derive_schema,
    explicit_schema,
    items,
    key_path,
    number,
    schema_patch,
    text,
)
from interlock.manifests.model import (
    Auth,
    HealthCheck,
    ImplementedContract,
    Login,
    SecretEntry,
    ServerBlock,
    ToolContract,
)


def _only_even(value: int) -> int:
    if value % 2:
        raise InvalidValueError("this is odd", "write an even number")
    return value


class Inner(ManifestBlock, frozen=True):
    word: Annotated[str, text("a word", "write letters", pattern="^[a-z]+$", secret=True)]
    number: Annotated[int, number(0, 10), converter(_only_even)] = 0


class Outer(Struct, frozen=True):
    kind: Literal["b", "a"]
    renamed: Annotated[str, key_path("else")] = ""
    first: Annotated[tuple[str, ...], key_path("deep", "first")] = ()
    second: Annotated[bool, key_path("deep", "second")] = False
    inner: Inner | None = None
    many: Annotated[tuple[Inner, ...], items(1, 3)] = ()
    named: dict[str, str | Inner] = field(default_factory=dict)
    every: Annotated[float, DURATION] = 60.0
    free: Annotated[dict[str, Any], schema_patch({"properties": {"known": str}})] = field(
        default_factory=dict
    )
    other: Annotated[
        str, explicit_schema({"anyOf": [str, {"type": "null"}]}), converter(lambda v: v or "")
    ] = ""
    line: Annotated[int, NOT_IN_FILE] = 0


def test_derives_schema_from_struct() -> None:
    result = derive_schema(Inner)
    assert result == {
        "type": "object",
        "properties": {
            "word": {
                "type": "string",
                "title": "a word",
                "description": "write letters",
                "pattern": "^[a-z]+$",
                "writeOnly": True,
            },
            "number": {"type": "integer", "minimum": 0, "maximum": 10},
        },
        "required": ["word"],
        "additionalProperties": False,
    }


def test_orders_schema_fields_like_file() -> None:
    result = derive_object_schema(Outer, more={"extra": {"type": "array", "items": Inner}})
    properties = result["properties"]
    assert set(properties) == {
        "kind", "else", "deep", "inner", "many", "named", "every", "free", "other", "extra",
    }  # fmt: skip
    assert properties["deep"]["additionalProperties"] is False
    assert set(properties["deep"]["properties"]) == {"first", "second"}
    assert properties["kind"] == {"enum": ["b", "a"]}, "choices are in the order they are declared"
    assert (properties["many"]["minItems"], properties["many"]["maxItems"]) == (1, 3)
    assert properties["named"]["additionalProperties"] == {
        "anyOf": [{"type": "string"}, derive_schema(Inner)]
    }
    assert properties["free"] == {"type": "object", "properties": {"known": {"type": "string"}}}
    assert properties["extra"]["items"] == derive_schema(Inner)
    assert result["required"] == ["kind"]
    assert "additionalProperties" not in result
    assert set(derive_object_schema(Outer, ["kind"])["properties"]) == {"kind"}


def test_builds_struct_from_values() -> None:
    faults: list[FieldFault] = []
    result = build(
        Outer,
        {
            "kind": "a",
            "else": "x",
            "deep": {"first": ["y", "z"]},
            "inner": {"word": "w"},
            "many": [{"word": "v", "number": 4}],
            "named": {"plain": "t", "block": {"word": "u"}},
            "every": "PT5M",
            "other": None,
            "line": 9,
            "unknown": 1,
        },
        faults,
        line=3,
    )
    assert result == Outer(
        kind="a",
        renamed="x",
        first=("y", "z"),
        inner=Inner("w"),
        many=(Inner("v", 4),),
        named={"plain": "t", "block": Inner("u")},
        every=300.0,
        line=3,
    )
    assert not faults


def test_reports_faults_with_paths() -> None:
    faults: list[FieldFault] = []
    values = {"kind": "a", "many": [{"word": "a"}, {"word": "b", "number": 3}], "every": "0s"}
    result = build(Outer, values, faults, ("top",))
    assert [path for path, _ in faults] == [("top", "many", 1, "number"), ("top", "every")]
    assert faults[0][1].message == "this is odd"
    assert (result.every, result.many[1].number) == (60.0, 0)


def test_skipped_field_keeps_default() -> None:
    assert build(Outer, {"kind": "a", "else": "x"}, [], skip=("renamed",)) == Outer(kind="a")


WHOLE: dict[type[Struct], dict[str, Any]] = {
    Auth: {
        "ref": "SECRETS.md",
        "state": {"paths": ["a"], "env": ["A"]},
        "login": {"cmd": "x", "completes_when": {"http": {"url": "https://a"}}},
        "refresh": {"every": "1h"},
        "expiry": {"detect": "http_status:401"},
    },
    HealthCheck: {
        "method": "http",
        "cmd": "x",
        "http": {"url": "https://a", "method": "HEAD"},
        "expect_exit": 1,
        "every": "5m",
        "timeout_ms": 100,
    },
    ImplementedContract: {
        "tool": "a",
        "version": "^1",
        "schema_narrowing": {"drop_inputs": ["a"], "drop_outputs": ["b"]},
        "mapping": {"a": "b", "c": {"from": "d"}},
        "cost_override": {"cost_units_per_call": 1.5},
        "timeout_override_ms": 100,
        "retry_override": {"max_attempts": 2},
        "metadata": {"x": 1},
    },
}


@given(st.sampled_from(list(WHOLE)), st.data())
def test_builds_every_value_accepted_by_schema(struct: type[Struct], data: st.DataObject) -> None:
    whole = WHOLE[struct]
    values = {key: whole[key] for key in data.draw(st.sets(st.sampled_from(list(whole))))}
    derived = derive_object_schema(struct)
    lawful = jsonschema_rs.validator_for(derived).is_valid(values)
    assert lawful is (set(derived.get("required", ())) <= values.keys())
    if lawful:
        faults: list[FieldFault] = []
        assert isinstance(build(struct, values, faults), struct)
        assert not faults


def test_derived_schemas_are_valid() -> None:
    structs: list[type[Any]] = [*WHOLE, ToolContract, SecretEntry]
    for struct in structs:
        jsonschema_rs.meta.validate(derive_object_schema(struct))


def test_struct_survives_round_trip() -> None:
    """What is kept of a driver is held against its next version."""
    made = Auth(login=Login(cmd="x"))
    assert msgspec.json.decode(msgspec.json.encode(made), type=Auth) == made
    made_server = ServerBlock("npm", package="x")
    assert msgspec.json.decode(msgspec.json.encode(made_server), type=ServerBlock) == made_server
