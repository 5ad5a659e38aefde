"""The cost of explaining a validation error, estimated before it is spent."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest

from interlock.protocol.schema_cost import (
    MAX_VISITS,
    _TooManyVisitsError,
    _VisitCounter,
    can_be_explained,
    collect_errors,
)

HERE = {"$ref": "#"}
IN_EVERY_WAY: dict[str, dict[str, Any]] = {
    "all of": {"type": "object", "properties": {"n": {"allOf": [HERE, HERE]}}},
    "any of": {"type": "object", "properties": {"n": {"anyOf": [HERE, HERE]}}},
    "one of": {"type": "object", "properties": {"n": {"oneOf": [HERE, {"allOf": [HERE]}]}}},
    "by pattern": {
        "type": "object", "properties": {"n": HERE}, "patternProperties": {"^n": HERE},
    },
    "by an anchor": {
        "$ref": "#it",
        "$defs": {"a": {"$anchor": "it", "type": "object", "properties": {
            "n": {"allOf": [{"$ref": "#it"}, {"$ref": "#it"}]}}}},
    },
    "by an id": {
        "$id": "https://schemas.example/tree", "type": "object",
        "properties": {"n": {"allOf": [{"$ref": "tree"}, {"$ref": "#"}]}},
    },
    "when": {"type": "object", "properties": {"n": {"if": HERE, "then": HERE, "else": HERE}}},
}  # fmt: skip


def nest(levels: int, end: Any = 5) -> Any:
    value = end
    for _ in range(levels):
        value = {"n": value}
    return value


@pytest.mark.parametrize("how", IN_EVERY_WAY)
def test_does_not_explain_exponential_error(how: str) -> None:
    schema = IN_EVERY_WAY[how]
    validator = jsonschema_rs.validator_for(schema)
    for levels in (60, 300):
        assert collect_errors(validator, schema, nest(levels), 5) is None
    # Whether it fits is known all the same.
    assert not validator.is_valid(nest(60))
    result = collect_errors(validator, schema, nest(2), 5)
    assert result, "what is flat is explained"


def test_does_not_explain_doubled_references() -> None:
    twice = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}
    schema = {
        "properties": {"a": {"$ref": "#/$defs/d0"}},
        "$defs": {**twice, "d40": {"type": "string"}},
    }
    assert not can_be_explained(schema, {"a": 1})
    assert not can_be_explained(schema, {"a": {}})
    assert can_be_explained(schema, {"b": 1})


def test_explains_large_value_of_ordinary_schema() -> None:
    tree = {
        "type": "object",
        "properties": {
            "name": {"$ref": "#/$defs/name"},
            "left": HERE,
            "right": HERE,
            "children": {"type": "array", "items": HERE},
        },
        "additionalProperties": False,
        "$defs": {"name": {"type": "string"}},
    }
    leaves = [{"name": "same", "left": {"name": "same"}} for _ in range(2_000)]
    value = {"children": [*leaves, {"name": 7}]}
    validator = jsonschema_rs.validator_for(tree)
    (error,) = collect_errors(validator, tree, value, 5) or []
    assert error.instance_path == ["children", 2_000, "name"]
    deep: dict[str, Any] = {"name": 7}
    for _ in range(80):
        deep = {"left": deep, "right": {"name": "x"}}
    (error,) = collect_errors(validator, tree, deep, 5) or []
    assert error.instance_path == ["left"] * 80 + ["name"]


def test_explains_recursive_conditions() -> None:
    """What filters look like: each of its branches refers to the whole again."""
    either = [
        {
            "type": "object",
            "properties": {word: {"type": "array", "items": {"$ref": "#/$defs/filter"}}},
            "required": [word],
        }
        for word in ("and", "or")
    ]
    equals = {"type": "object", "properties": {"eq": {"type": "string"}}, "required": ["eq"]}
    schema = {"$ref": "#/$defs/filter", "$defs": {"filter": {"anyOf": [*either, equals]}}}
    value: dict[str, Any] = {"eq": 5}
    for _ in range(12):
        value = {"and": [value, {"eq": "x"}]}
    assert collect_errors(jsonschema_rs.validator_for(schema), schema, value, 5)


@pytest.mark.parametrize(
    "schema",
    [True, None, [], HERE, {"allOf": [HERE]}, {"$ref": 7}, {"$ref": "#/nowhere"}, {"items": [HERE]},
     {"$ref": "https://elsewhere.example/"}, {"properties": 1, "allOf": {}, "$ref": "#x"}],
    ids=str,
)  # fmt: skip
def test_estimate_of_any_schema_ends(schema: Any) -> None:
    assert isinstance(can_be_explained(schema, {"a": [1, {"b": "x"}]}), bool)


def test_does_not_explain_uncountable_value() -> None:
    schema = {"type": "array", "items": {"$ref": "#/$defs/x"}, "$defs": {"x": {"type": "object"}}}
    assert can_be_explained(schema, [{} for _ in range(1_000)])
    assert not can_be_explained(schema, [{} for _ in range(MAX_VISITS)])


def test_counts_property_names() -> None:
    twice = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}
    schema = {
        "propertyNames": {"$ref": "#/$defs/d0"},
        "$defs": {**twice, "d40": {"maxLength": 0}},
    }
    assert collect_errors(jsonschema_rs.validator_for(schema), schema, {"a": 1}, 5) is None
    assert can_be_explained(schema, {})


class _Untouched:
    """A validator that must not collect errors."""

    def __init__(self, schema: Any) -> None:
        self.validate = jsonschema_rs.validator_for(schema).validate


TEXTS = {"type": "array", "items": {"type": "string"}}


@pytest.mark.parametrize(
    ("schema", "value", "where"),
    [
        (TEXTS, [*range(MAX_VISITS)], [0]),
        ({"items": {"required": [f"n{n}" for n in range(100)]}}, [{} for _ in range(1_000)], [0]),
        (
            {"patternProperties": {f"^n{n}": {"type": "string"} for n in range(300)}},
            {f"n9{n}": n for n in range(1_000)},
            ["n90"],
        ),
    ],
    ids=["a long list", "much that is missing", "many patterns"],
)
def test_collects_only_first_errors(schema: Any, value: Any, where: list[Any]) -> None:
    """All of it would be collected before the first is told, which takes seconds."""
    (error,) = collect_errors(_Untouched(schema), schema, value, 5) or []
    assert error.instance_path == where
    # Each branch would have all of it.
    assert collect_errors(_Untouched(schema), {"anyOf": [schema, schema]}, value, 5) is None


def test_limits_cost_of_estimate() -> None:
    """Each of these has all that come after it below itself."""
    spine = {
        f"d{n}": {
            "allOf": [*({"type": "string"} for _ in range(100)), {"$ref": f"#/$defs/d{n + 1}"}]
        }
        for n in range(300)
    }
    schema = {"properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": {**spine, "d300": True}}
    looks = _VisitCounter(schema)
    with pytest.raises(_TooManyVisitsError):
        looks.count(schema, {"a": 1})
    assert not can_be_explained(schema, {"a": 1})
