"""Labelled changes of JSON Schemas with their expected name, path and role.

A row is a name, the side from which the schema is seen, what it was, what it is, and every change
that has to be reported: `CLASS path`, with `!` in front where it breaks somebody.
"""

from __future__ import annotations

from typing import Any

Row = tuple[str, str, Any, Any, tuple[str, ...]]

STRING: dict[str, Any] = {"type": "string"}
INTEGER: dict[str, Any] = {"type": "integer"}
NUMBER: dict[str, Any] = {"type": "number"}
NULL: dict[str, Any] = {"type": "null"}


def obj(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, **more}


def closed_obj(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    return obj(properties, additionalProperties=False, **more)


def array(**more: Any) -> dict[str, Any]:
    return {"type": "array", **more}


def text(**more: Any) -> dict[str, Any]:
    return {"type": "string", **more}


def integer(**more: Any) -> dict[str, Any]:
    return {"type": "integer", **more}


ONE, TWO = obj({"a": STRING}), obj({"a": STRING, "b": STRING})
AB, AC = {"enum": ["a", "b"]}, {"enum": ["a", "c"]}

# The classes of the specification, for a stored type.
CLASSES: list[Row] = [
    ("field removed", "both", TWO, ONE, ("!FIELD_REMOVED /properties/b",)),
    ("field type changed", "both", ONE, obj({"a": INTEGER}),
     ("!FIELD_TYPE_CHANGED /properties/a",)),
    ("required field added", "both", ONE, {**TWO, "required": ["b"]},
     ("!REQUIRED_FIELD_ADDED /properties/b",)),
    ("field made required", "both", ONE, {**ONE, "required": ["a"]},
     ("!REQUIRED_FIELD_ADDED /properties/a",)),
    ("enum value removed", "both", obj({"a": AB}), obj({"a": {"enum": ["a"]}}),
     ("!ENUM_VALUE_REMOVED /properties/a/enum",)),
    ("optional field added", "both", ONE, TWO, ("FIELD_ADDED_OPTIONAL /properties/b",)),
    ("enum value added", "both", obj({"a": {"enum": ["a"]}}), obj({"a": AB}),
     ("ENUM_VALUE_ADDED /properties/a/enum",)),
    ("description changed", "both", obj({"a": text(description="x")}),
     obj({"a": text(description="y")}), ("DESCRIPTION_CHANGED /properties/a/description",)),
]  # fmt: skip

# The same changes, seen by who sends and by who reads.
SIDES: list[Row] = [
    ("removed, sent", "input", TWO, ONE, ("!FIELD_REMOVED /properties/b",)),
    ("removed, read", "output", TWO, ONE, ("!FIELD_REMOVED /properties/b",)),
    ("removed from closed, sent", "input", closed_obj({"a": STRING, "b": STRING}),
     closed_obj({"a": STRING}), ("!FIELD_REMOVED /properties/b",)),
    ("type changed, sent", "input", ONE, obj({"a": INTEGER}),
     ("!FIELD_TYPE_CHANGED /properties/a",)),
    ("type wider, sent", "input", obj({"a": INTEGER}), obj({"a": NUMBER}),
     ("FIELD_TYPE_WIDENED /properties/a",)),
    ("type wider, read", "output", obj({"a": INTEGER}), obj({"a": NUMBER}),
     ("!FIELD_TYPE_WIDENED /properties/a",)),
    ("type wider, stored", "both", obj({"a": INTEGER}), obj({"a": NUMBER}),
     ("!FIELD_TYPE_CHANGED /properties/a",)),
    ("type narrower, sent", "input", obj({"a": NUMBER}), obj({"a": INTEGER}),
     ("!FIELD_TYPE_NARROWED /properties/a",)),
    ("type narrower, read", "output", obj({"a": NUMBER}), obj({"a": INTEGER}),
     ("FIELD_TYPE_NARROWED /properties/a",)),
    ("null allowed, sent", "input", ONE, obj({"a": {"type": ["string", "null"]}}),
     ("FIELD_TYPE_WIDENED /properties/a",)),
    ("null allowed, read", "output", ONE, obj({"a": {"type": ["string", "null"]}}),
     ("!FIELD_TYPE_WIDENED /properties/a",)),
    ("null refused, sent", "input", obj({"a": {"type": ["string", "null"]}}), ONE,
     ("!FIELD_TYPE_NARROWED /properties/a",)),
    ("required, sent", "input", ONE, {**ONE, "required": ["a"]},
     ("!REQUIRED_FIELD_ADDED /properties/a",)),
    ("required, read", "output", ONE, {**ONE, "required": ["a"]},
     ("REQUIRED_FIELD_ADDED /properties/a",)),
    ("no longer required, sent", "input", {**ONE, "required": ["a"]}, ONE,
     ("REQUIRED_FIELD_DROPPED /properties/a",)),
    ("no longer required, read", "output", {**ONE, "required": ["a"]}, ONE,
     ("!REQUIRED_FIELD_DROPPED /properties/a",)),
    ("no longer required, stored", "both", {**ONE, "required": ["a"]}, ONE,
     ("!REQUIRED_FIELD_DROPPED /properties/a",)),
    ("optional field of an open object, sent", "input", ONE, TWO,
     ("!FIELD_CLAIMED /properties/b",)),
    ("optional field of a closed object, sent", "input", closed_obj({"a": STRING}),
     closed_obj({"a": STRING, "b": STRING}), ("FIELD_ADDED_OPTIONAL /properties/b",)),
    ("any value under a new name, sent", "input", ONE, obj({"a": STRING, "b": {}}),
     ("FIELD_ADDED_OPTIONAL /properties/b",)),
    ("optional field of an open object, read", "output", ONE, TWO,
     ("FIELD_ADDED_OPTIONAL /properties/b",)),
    ("optional field of a closed object, read", "output", closed_obj({"a": STRING}),
     closed_obj({"a": STRING, "b": STRING}), ("!FIELD_ADDED_TO_CLOSED /properties/b",)),
    ("enum, sent", "input", AB, AC, ("!ENUM_VALUE_REMOVED /enum", "ENUM_VALUE_ADDED /enum")),
    ("enum, read", "output", AB, AC, ("ENUM_VALUE_REMOVED /enum", "!ENUM_VALUE_ADDED /enum")),
    ("const is an enum of one", "input", {"const": 1}, {"enum": [1, 2]},
     ("ENUM_VALUE_ADDED /enum",)),
    ("enum where everything was allowed", "input", STRING, text(enum=["a"]),
     ("!CONSTRAINT_TIGHTENED /enum",)),
    ("enum taken away", "input", text(enum=["a"]), STRING, ("CONSTRAINT_LOOSENED /enum",)),
    ("field forbidden", "input", TWO, obj({"a": STRING, "b": False}),
     ("!FIELD_REMOVED /properties/b",)),
]  # fmt: skip

BOUNDS: list[Row] = [
    ("minLength up", "input", text(minLength=1), text(minLength=2),
     ("!CONSTRAINT_TIGHTENED /minLength",)),
    ("minLength down", "input", text(minLength=2), text(minLength=1),
     ("CONSTRAINT_LOOSENED /minLength",)),
    ("minLength down, read", "output", text(minLength=2), text(minLength=1),
     ("!CONSTRAINT_LOOSENED /minLength",)),
    ("maxLength new", "input", STRING, text(maxLength=9), ("!CONSTRAINT_TIGHTENED /maxLength",)),
    ("maxLength gone", "input", text(maxLength=9), STRING, ("CONSTRAINT_LOOSENED /maxLength",)),
    ("minimum up", "input", integer(minimum=1), integer(minimum=2),
     ("!CONSTRAINT_TIGHTENED /minimum",)),
    ("maximum up", "input", integer(maximum=1), integer(maximum=2),
     ("CONSTRAINT_LOOSENED /maximum",)),
    ("exclusive for integers says the same", "input",
     integer(minimum=3), integer(exclusiveMinimum=2),
     ("REWRITTEN /",)),
    ("exclusive for numbers does not", "input", {"type": "number", "minimum": 3},
     {"type": "number", "exclusiveMinimum": 3}, ("!CONSTRAINT_TIGHTENED /exclusiveMinimum",)),
    ("multipleOf a divisor", "input", integer(multipleOf=4), integer(multipleOf=2),
     ("CONSTRAINT_LOOSENED /multipleOf",)),
    ("multipleOf something else", "input", integer(multipleOf=4), integer(multipleOf=3),
     ("!CONSTRAINT_CHANGED /multipleOf",)),
    ("pattern changed", "input", text(pattern="^a"), text(pattern="^b"),
     ("!CONSTRAINT_CHANGED /pattern",)),
    ("pattern new", "input", STRING, text(pattern="^a"), ("!CONSTRAINT_TIGHTENED /pattern",)),
    ("pattern gone", "input", text(pattern="^a"), STRING, ("CONSTRAINT_LOOSENED /pattern",)),
    ("values that fit a new pattern", "input", {"enum": ["ab", "ac"]},
     {"enum": ["ab", "ac"], "pattern": "^a"}, ("REWRITTEN /",)),
    ("minItems up", "input", array(), array(minItems=1), ("!CONSTRAINT_TIGHTENED /minItems",)),
    ("maxItems up", "input", array(maxItems=1), array(maxItems=2),
     ("CONSTRAINT_LOOSENED /maxItems",)),
    ("unique now", "input", array(), array(uniqueItems=True),
     ("!CONSTRAINT_TIGHTENED /uniqueItems",)),
    ("no longer unique", "input", array(uniqueItems=True), array(),
     ("CONSTRAINT_LOOSENED /uniqueItems",)),
    ("minProperties up", "input", obj({}), obj({}, minProperties=1),
     ("!CONSTRAINT_TIGHTENED /minProperties",)),
    ("maxProperties gone", "input", obj({}, maxProperties=3), obj({}),
     ("CONSTRAINT_LOOSENED /maxProperties",)),
    ("a bound of zero says nothing", "input", text(minLength=0), STRING, ("REWRITTEN /",)),
    ("1.0 is 1", "input", integer(minimum=1.0), integer(minimum=1), ("REWRITTEN /",)),
]  # fmt: skip

MEMBERS: list[Row] = [
    ("closed", "input", ONE, closed_obj({"a": STRING}),
     ("!ADDITIONAL_PROPERTIES_CLOSED /additionalProperties",)),
    ("closed, read", "output", ONE, closed_obj({"a": STRING}),
     ("ADDITIONAL_PROPERTIES_CLOSED /additionalProperties",)),
    ("closed, stored", "both", ONE, closed_obj({"a": STRING}),
     ("!ADDITIONAL_PROPERTIES_CLOSED /additionalProperties",)),
    ("opened", "input", closed_obj({"a": STRING}), ONE,
     ("ADDITIONAL_PROPERTIES_OPENED /additionalProperties",)),
    ("opened, read", "output", closed_obj({"a": STRING}), ONE,
     ("!ADDITIONAL_PROPERTIES_OPENED /additionalProperties",)),
    ("open is open", "input", ONE, obj({"a": STRING}, additionalProperties=True),
     ("REWRITTEN /",)),
    ("a map of something else", "input", obj({}, additionalProperties=STRING),
     obj({}, additionalProperties=INTEGER), ("!FIELD_TYPE_CHANGED /additionalProperties",)),
    ("a map of more", "input", obj({}, additionalProperties=INTEGER),
     obj({}, additionalProperties=NUMBER), ("FIELD_TYPE_WIDENED /additionalProperties",)),
    ("patternProperties new", "input", {"type": "object"},
     {"type": "object", "patternProperties": {"^x": STRING}},
     ("!CONSTRAINT_TIGHTENED /patternProperties/^x",)),
    ("patternProperties gone", "input", {"type": "object", "patternProperties": {"^x": STRING}},
     {"type": "object"}, ("CONSTRAINT_LOOSENED /patternProperties/^x",)),
    ("patternProperties looser", "input",
     {"type": "object", "patternProperties": {"^x": text(minLength=2)}},
     {"type": "object", "patternProperties": {"^x": STRING}},
     ("CONSTRAINT_LOOSENED /patternProperties/^x/minLength",)),
    ("propertyNames tighter", "input", {"type": "object"},
     {"type": "object", "propertyNames": {"maxLength": 3}},
     ("!CONSTRAINT_TIGHTENED /propertyNames/maxLength",)),
    ("propertyNames that all names fit", "input", closed_obj({"a": STRING}),
     closed_obj({"a": STRING}, propertyNames={"maxLength": 3}), ("REWRITTEN /",)),
    ("dependentRequired new", "input", TWO, {**TWO, "dependentRequired": {"a": ["b"]}},
     ("!CONSTRAINT_TIGHTENED /dependentRequired/a",)),
    ("dependentRequired gone", "input", {**TWO, "dependentRequired": {"a": ["b"]}}, TWO,
     ("CONSTRAINT_LOOSENED /dependentRequired/a",)),
    ("dependentRequired of what is required anyway", "input", {**TWO, "required": ["b"]},
     {**TWO, "required": ["b"], "dependentRequired": {"a": ["b"]}}, ("REWRITTEN /",)),
    ("dependentSchemas new", "input", TWO,
     {**TWO, "dependentSchemas": {"a": {"required": ["b"]}}},
     ("!REQUIRED_FIELD_ADDED /dependentSchemas/a/properties/b",)),
    ("unevaluatedProperties as additionalProperties", "input", closed_obj({"a": STRING}),
     obj({"a": STRING}, unevaluatedProperties=False), ("REWRITTEN /",)),
    ("unevaluatedProperties over allOf", "input", closed_obj({"a": STRING, "b": INTEGER}),
     {"type": "object", "allOf": [obj({"a": STRING}), obj({"b": INTEGER})],
      "unevaluatedProperties": False}, ("REWRITTEN /",)),
    ("items narrower", "input", array(items=NUMBER), array(items=INTEGER),
     ("!FIELD_TYPE_NARROWED /items",)),
    ("items new", "input", array(), array(items=STRING), ("!FIELD_TYPE_NARROWED /items",)),
    ("a tuple gets another place", "input", array(prefixItems=[STRING]),
     array(prefixItems=[STRING, INTEGER]), ("!FIELD_TYPE_NARROWED /prefixItems/1",)),
    ("a tuple loses its last place", "input", array(prefixItems=[STRING, INTEGER]),
     array(prefixItems=[STRING]), ("FIELD_TYPE_WIDENED /prefixItems/1",)),
    ("contains new", "input", array(), array(contains=STRING),
     ("!CONSTRAINT_TIGHTENED /contains",)),
    ("contains where every item is one", "input", array(items=STRING, minItems=1),
     array(items=STRING, minItems=1, contains=STRING), ("REWRITTEN /",)),
    ("minContains up", "input", array(contains=STRING), array(contains=STRING, minContains=2),
     ("!CONSTRAINT_TIGHTENED /contains",)),
    ("maxContains gone", "input", array(contains=STRING, maxContains=2), array(contains=STRING),
     ("CONSTRAINT_LOOSENED /contains",)),
]  # fmt: skip

NOTES: list[Row] = [
    ("title", "input", {"title": "x"}, {"title": "y"}, ("DESCRIPTION_CHANGED /title",)),
    ("examples", "input", {"examples": [1]}, {"examples": [2]}, ("DESCRIPTION_CHANGED /examples",)),
    ("default of another value", "input", integer(default=1), integer(default=2),
     ("!DEFAULT_CHANGED /default",)),
    ("default, read", "output", integer(default=1), integer(default=2),
     ("DEFAULT_CHANGED /default",)),
    ("default where there was none", "input", integer(), integer(default=2),
     ("DEFAULT_ADDED /default",)),
    ("format is a note", "input", text(format="date"), text(format="email"),
     ("FORMAT_CHANGED /format",)),
    ("format is checked in draft 7", "input",
     {"$schema": "http://json-schema.org/draft-07/schema#", **text(format="date")},
     {"$schema": "http://json-schema.org/draft-07/schema#", **text(format="email")},
     ("!CONSTRAINT_CHANGED /format",)),
    ("a word of somebody's own", "input", {"x-order": 1}, {"x-order": 2},
     ("ANNOTATION_CHANGED /x-order",)),
    ("deprecated", "input", obj({"a": STRING}), obj({"a": text(deprecated=True)}),
     ("ANNOTATION_CHANGED /properties/a/deprecated",)),
]  # fmt: skip
