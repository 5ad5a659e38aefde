"""Labelled changes of composed JSON Schemas: unions, references and conditions."""

from __future__ import annotations

from typing import Any

from tests.contracts.diff.schema_table import (
    AB,
    INTEGER,
    NULL,
    NUMBER,
    STRING,
    Row,
    array,
    closed_obj,
    integer,
    obj,
    text,
)


def any_of(*branches: Any) -> dict[str, Any]:
    return {"anyOf": list(branches)}


def one_of(*branches: Any) -> dict[str, Any]:
    return {"oneOf": list(branches)}


def variant(name: str, **more: Any) -> dict[str, Any]:
    """Return an object schema with a constant `kind`."""
    return obj({"kind": {"const": name}, **more}, required=["kind"])


def tree_schema(value: Any) -> dict[str, Any]:
    node = obj({"value": value, "kids": array(items={"$ref": "#/$defs/Node"})})
    return {"$ref": "#/$defs/Node", "$defs": {"Node": node}}


LONG, SHORT = text(minLength=3), text(maxLength=2)
CIRCLE, SQUARE = variant("circle", r=NUMBER), variant("square", side=NUMBER)
IF = {"if": {"required": ["a"]}, "then": {"required": ["b"]}}

UNIONS: list[Row] = [
    ("anyOf branch added", "input", any_of(LONG, INTEGER), any_of(LONG, INTEGER, obj({})),
     ("COMPOSITION_WIDENED /anyOf/2",)),
    ("anyOf branch added, read", "output", any_of(LONG, INTEGER), any_of(LONG, INTEGER, obj({})),
     ("!COMPOSITION_WIDENED /anyOf/2",)),
    ("anyOf branch added, stored", "both", any_of(LONG, INTEGER), any_of(LONG, INTEGER, obj({})),
     ("COMPOSITION_WIDENED /anyOf/2",)),
    ("anyOf branch removed", "input", any_of(LONG, INTEGER, obj({})), any_of(LONG, INTEGER),
     ("!COMPOSITION_NARROWED /anyOf/2",)),
    ("anyOf in another order", "input", any_of(LONG, INTEGER), any_of(INTEGER, LONG),
     ("REWRITTEN /",)),
    ("anyOf branch looser", "input", any_of(LONG, INTEGER), any_of(text(minLength=2), INTEGER),
     ("CONSTRAINT_LOOSENED /anyOf/0/minLength",)),
    ("anyOf branch tighter", "input", any_of(LONG, INTEGER), any_of(text(minLength=4), INTEGER),
     ("!CONSTRAINT_TIGHTENED /anyOf/0/minLength",)),
    ("anyOf branch that another one covers", "input", any_of(STRING, LONG), any_of(STRING),
     ("REWRITTEN /",)),
    ("type list as anyOf", "input", {"type": ["string", "null"]}, any_of(STRING, NULL),
     ("REWRITTEN /",)),
    ("anyOf as type list", "input", any_of(STRING, NULL), {"type": ["null", "string"]},
     ("REWRITTEN /",)),
    ("null by anyOf", "input", obj({"a": STRING}), obj({"a": any_of(STRING, NULL)}),
     ("FIELD_TYPE_WIDENED /properties/a",)),
    ("consts as enum", "input", any_of({"const": "a"}, {"const": "b"}), AB, ("REWRITTEN /",)),
    ("a range as enum", "input", integer(minimum=1, maximum=3), {"enum": [1, 2, 3]},
     ("REWRITTEN /",)),
    ("oneOf branch added, told apart", "input", one_of(CIRCLE, SQUARE),
     one_of(CIRCLE, SQUARE, variant("line")), ("COMPOSITION_WIDENED /oneOf/2",)),
    ("oneOf branch added that overlaps", "input", one_of(LONG, INTEGER),
     one_of(LONG, INTEGER, text(minLength=5)), ("!COMPOSITION_NARROWED /oneOf/2",)),
    ("oneOf branch removed", "input", one_of(CIRCLE, SQUARE), one_of(CIRCLE),
     ("!COMPOSITION_NARROWED /oneOf/1",)),
    ("oneOf in another order", "input", one_of(CIRCLE, SQUARE), one_of(SQUARE, CIRCLE),
     ("REWRITTEN /",)),
    ("field of a oneOf branch required", "input", one_of(CIRCLE, SQUARE),
     one_of(obj({"kind": {"const": "circle"}, "r": NUMBER}, required=["kind", "r"]), SQUARE),
     ("!REQUIRED_FIELD_ADDED /oneOf/0/properties/r",)),
    ("oneOf as anyOf", "input", one_of(CIRCLE, SQUARE), any_of(CIRCLE, SQUARE), ("REWRITTEN /",)),
    ("anyOf as oneOf, told apart", "input", any_of(CIRCLE, SQUARE), one_of(CIRCLE, SQUARE),
     ("REWRITTEN /",)),
    ("anyOf as oneOf, overlapping", "input", any_of(LONG, text(maxLength=5)),
     one_of(LONG, text(maxLength=5)), ("!COMPOSITION_NARROWED /oneOf",)),
]  # fmt: skip

ALL_AND_NOT: list[Row] = [
    ("allOf branch removed", "input", {"allOf": [STRING, {"minLength": 2}]}, {"allOf": [STRING]},
     ("CONSTRAINT_LOOSENED /allOf/1/minLength",)),
    ("allOf branch added", "input", {"allOf": [STRING]}, {"allOf": [STRING, {"minLength": 2}]},
     ("!CONSTRAINT_TIGHTENED /allOf/1/minLength",)),
    ("allOf folded", "input", {"allOf": [obj({"a": STRING}), obj({"b": INTEGER})]},
     obj({"a": STRING, "b": INTEGER}), ("REWRITTEN /",)),
    ("allOf unfolded", "output", obj({"a": STRING, "b": INTEGER}, required=["a"]),
     {"allOf": [obj({"a": STRING}, required=["a"]), obj({"b": INTEGER})]}, ("REWRITTEN /",)),
    ("not less", "input", {"not": STRING}, {"not": LONG}, ("COMPOSITION_WIDENED /not",)),
    ("not more", "input", {"not": LONG}, {"not": STRING}, ("!COMPOSITION_NARROWED /not",)),
    ("not new", "input", {}, {"not": {"required": ["x"]}}, ("!COMPOSITION_NARROWED /not",)),
    ("not gone", "input", {"not": {"required": ["x"]}}, {}, ("COMPOSITION_WIDENED /not",)),
    ("not what cannot be", "input", STRING, text(**{"not": INTEGER}), ("REWRITTEN /",)),
    ("everything is allowed now", "input", STRING, True, ("FIELD_TYPE_WIDENED /",)),
    ("nothing is allowed now", "input", obj({"a": STRING}), False, ("!FIELD_TYPE_NARROWED /",)),
    ("true is the empty schema", "input", {"items": True}, {"items": {}}, ("REWRITTEN /",)),
]  # fmt: skip

CONDITIONS: list[Row] = [
    ("if new", "input", obj({}), obj({}, **IF), ("!COMPOSITION_NARROWED /if",)),
    ("if gone", "input", obj({}, **IF), obj({}), ("COMPOSITION_WIDENED /if",)),
    ("then looser", "input", {"if": STRING, "then": {"minLength": 3}},
     {"if": STRING, "then": {"minLength": 2}}, ("COMPOSITION_WIDENED /if",)),
    ("then tighter", "input", {"if": STRING, "then": {"minLength": 3}},
     {"if": STRING, "then": {"minLength": 4}}, ("!COMPOSITION_NARROWED /if",)),
    ("else tighter", "input", {"if": STRING, "else": NUMBER}, {"if": STRING, "else": INTEGER},
     ("!COMPOSITION_NARROWED /if",)),
    ("a condition that is never met", "input", INTEGER,
     integer(**{"if": STRING, "then": {"minLength": 3}}), ("REWRITTEN /",)),
    ("a condition on a value", "input",
     obj({"a": AB}, **{"if": obj({"a": {"const": "a"}}), "then": {"required": ["x"]}}),
     obj({"a": AB}, **{"if": obj({"a": {"const": "a"}}), "then": {"required": ["x", "y"]}}),
     ("!COMPOSITION_NARROWED /if",)),
]  # fmt: skip

REFERENCES: list[Row] = [
    ("reference written out", "input", {"$ref": "#/$defs/A", "$defs": {"A": LONG}}, LONG,
     ("REWRITTEN /",)),
    ("reference put in", "output", obj({"a": LONG}),
     obj({"a": {"$ref": "#/$defs/A"}}, **{"$defs": {"A": LONG}}), ("REWRITTEN /",)),
    ("definition renamed", "input", obj({"a": {"$ref": "#/$defs/A"}}, **{"$defs": {"A": LONG}}),
     obj({"a": {"$ref": "#/definitions/B"}}, definitions={"B": LONG}), ("REWRITTEN /",)),
    ("what it leads to is tighter", "input",
     obj({"a": {"$ref": "#/$defs/A"}}, **{"$defs": {"A": STRING}}),
     obj({"a": {"$ref": "#/$defs/A"}}, **{"$defs": {"A": LONG}}),
     ("!CONSTRAINT_TIGHTENED /$defs/A/minLength",)),
    ("an unused definition", "input", {**STRING, "$defs": {"A": STRING}},
     {**STRING, "$defs": {"A": INTEGER}}, ("REWRITTEN /",)),
    ("a tree looser", "input", tree_schema(text(minLength=2)), tree_schema(text(minLength=1)),
     ("CONSTRAINT_LOOSENED /$defs/Node/properties/value/minLength",)),
    ("a tree tighter", "input", tree_schema(text(minLength=2)), tree_schema(text(minLength=3)),
     ("!CONSTRAINT_TIGHTENED /$defs/Node/properties/value/minLength",)),
    ("a tree unrolled once", "input", tree_schema(STRING),
     {**obj({"value": STRING, "kids": array(items={"$ref": "#/$defs/Node"})}),
      "$defs": tree_schema(STRING)["$defs"]}, ("REWRITTEN /",)),
    ("a tree by an anchor", "input",
     {"$anchor": "n", **obj({"kids": array(items={"$ref": "#n"}), "v": LONG})},
     {"$anchor": "n", **obj({"kids": array(items={"$ref": "#n"}), "v": STRING})},
     ("CONSTRAINT_LOOSENED /properties/v/minLength",)),
    ("a tree by $dynamicRef", "input",
     {"$dynamicAnchor": "n", **obj({"kids": array(items={"$dynamicRef": "#n"}), "v": STRING})},
     {"$dynamicAnchor": "n", **obj({"kids": array(items={"$dynamicRef": "#n"}), "v": LONG})},
     ("!CONSTRAINT_TIGHTENED /properties/v/minLength",)),
    ("a resource of its own", "input",
     obj({"a": {"$ref": "https://x.test/a"}},
         **{"$defs": {"A": {"$id": "https://x.test/a", **LONG}}}),
     obj({"a": {"$ref": "https://x.test/a"}},
         **{"$defs": {"A": {"$id": "https://x.test/a", **STRING}}}),
     ("CONSTRAINT_LOOSENED /$defs/A/minLength",)),
    ("the same address outside", "input", obj({"a": {"$ref": "https://x.test/a"}, "b": LONG}),
     obj({"a": {"$ref": "https://x.test/a"}, "b": STRING}),
     ("CONSTRAINT_LOOSENED /properties/b/minLength",)),
    ("another address outside", "input", obj({"a": {"$ref": "https://x.test/a"}}),
     obj({"a": {"$ref": "https://x.test/b"}}), ("!REFERENCE_UNRESOLVED /properties/a",)),
    ("leads to nothing now", "input", obj({"a": {"$ref": "#/$defs/A"}}, **{"$defs": {"A": LONG}}),
     obj({"a": {"$ref": "#/$defs/A"}}), ("!REFERENCE_UNRESOLVED /properties/a",)),
]  # fmt: skip

DRAFTS: list[Row] = [
    ("a tuple of draft 7 is prefixItems", "input",
     {"$schema": "http://json-schema.org/draft-07/schema#", "items": [STRING],
      "additionalItems": False},
     {"prefixItems": [STRING], "items": False}, ("REWRITTEN /",)),
    ("beside a reference draft 7 sees nothing", "input",
     {"$schema": "http://json-schema.org/draft-07/schema#", "definitions": {"A": STRING},
      "properties": {"a": {"$ref": "#/definitions/A", "minLength": 3}}},
     {"properties": {"a": text(minLength=3)}},
     ("!CONSTRAINT_TIGHTENED /properties/a/minLength",)),
    ("dependencies of draft 7", "input",
     {"$schema": "http://json-schema.org/draft-07/schema#", "dependencies": {"a": ["b"]}},
     {"dependentRequired": {"a": ["b"]}}, ("REWRITTEN /",)),
    ("minContains of draft 7 says nothing", "input",
     {"$schema": "http://json-schema.org/draft-07/schema#", "contains": STRING, "minContains": 2},
     {"contains": STRING, "minContains": 2}, ("!CONSTRAINT_TIGHTENED /contains",)),
]  # fmt: skip

# What is not decided is breaking, and says so.
UNDECIDED: list[Row] = [
    ("patterns are not compared", "input", text(pattern="^ab$"), text(pattern="^a"),
     ("!CONSTRAINT_CHANGED /pattern",)),
    ("a schema about itself", "input", STRING, {"not": {"$ref": "#"}}, ("!UNREADABLE /",)),
    ("no schema", "input", STRING, {"type": 3}, ("!UNREADABLE /",)),
    ("a draft that nobody knows", "input", STRING, {"$schema": "https://x.test/own"},
     ("!UNREADABLE /",)),
    ("unevaluatedProperties beside a union", "input",
     closed_obj({"a": STRING, "b": STRING}),
     {"type": "object", "unevaluatedProperties": False,
      "anyOf": [obj({"a": STRING}), obj({"b": STRING})]},
     ("!UNDECIDED /",)),
]  # fmt: skip
