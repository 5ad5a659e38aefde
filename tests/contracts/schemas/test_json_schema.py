"""Tests that JSON of Protobuf libraries is valid by the generated JSON Schema."""

from __future__ import annotations

import json
from base64 import b64encode
from functools import cache
from importlib import import_module
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.contracts.schemas.json_schema import message_schema
from interlock.contracts.schemas.proto import ProtoFiles
from interlock.contracts.schemas.protobuf_compiler import compile_protos, descriptor_set

ALL = """
    syntax = "proto3";
    package every.kind;
    import "google/protobuf/any.proto";
    import "google/protobuf/duration.proto";
    import "google/protobuf/field_mask.proto";
    import "google/protobuf/struct.proto";
    import "google/protobuf/timestamp.proto";
    import "google/protobuf/wrappers.proto";

    message Every {
      double a_double = 1; float a_float = 2; int32 an_int32 = 3; int64 an_int64 = 4;
      uint32 a_uint32 = 5; uint64 a_uint64 = 6; sint32 a_sint32 = 7; sint64 a_sint64 = 8;
      fixed32 a_fixed32 = 9; fixed64 a_fixed64 = 10; sfixed32 a_sfixed32 = 11;
      sfixed64 a_sfixed64 = 12; bool a_bool = 13; string a_string = 14; bytes some_bytes = 15;
      Kind kind = 16; Every itself = 17; Deep.Deeper deeper = 18;
      repeated int64 many = 19; repeated Kind kinds = 20; repeated Deep deeps = 21;
      map<string, int64> by_name = 22; map<int32, Deep> by_number = 23;
      map<bool, string> by_truth = 24;
      optional int32 maybe = 25; optional Kind maybe_kind = 26; optional Deep maybe_deep = 27;
      oneof one { string this = 28; Deep that = 29; }
      google.protobuf.Timestamp at = 30; google.protobuf.Duration lasts = 31;
      google.protobuf.Struct free = 32; google.protobuf.Value anything = 33;
      google.protobuf.ListValue list = 34; google.protobuf.Int64Value wide = 35;
      google.protobuf.StringValue text = 36; google.protobuf.BoolValue truth = 37;
      google.protobuf.FieldMask mask = 38; google.protobuf.DoubleValue exact = 39;
      google.protobuf.NullValue nothing = 40;
    }
    message Deep { message Deeper { string name = 1; } string name = 1; }
    enum Kind { KIND_UNSPECIFIED = 0; KIND_A = 1; KIND_B = 2; }
"""
PLAIN = """
    syntax = "proto3";
    package plain.v1;
    import "google/api/field_behavior.proto";
    import "interlock/schema/options.proto";
    option (interlock.schema.json) = JSON_STYLE_PLAIN;
    message Node {
      option (interlock.schema.closed) = true;
      uint64 calls = 1;
      TreeState tree_state = 2 [json_name = "tree_state"];
      optional string problem = 3;
      string at = 4 [(google.api.field_behavior) = OPTIONAL];
      optional Node above = 5;
      repeated Node below = 6;
      string key = 7 [debug_redact = true];
    }
    enum TreeState { TREE_STATE_UNSPECIFIED = 0; TREE_STATE_READY = 1; TREE_STATE_HALF_OPEN = 2;
      TREE_STATE_GONE = 3 [(interlock.schema.word) = "gone-away"]; }
    message Choice {
      option (interlock.schema.inline) = true;
      oneof what { Node node = 1; Other other = 2; }
    }
    message Other { string name = 1; }
"""


@cache
def compile_every_kind() -> tuple[ProtoFiles, Any]:
    """Return the compiled file and the Protobuf class of its message."""
    data = descriptor_set({"every.proto": ALL})
    whole = import_module("google.protobuf.descriptor_pb2").FileDescriptorSet.FromString(data)
    pool = import_module("google.protobuf.descriptor_pool").DescriptorPool()
    for file in whole.file:
        pool.Add(file)
    factory = import_module("google.protobuf.message_factory")
    made = factory.GetMessageClass(pool.FindMessageTypeByName("every.kind.Every"))
    return compile_protos({"every.proto": ALL}), made


_names = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=5)
_i32 = st.integers(-(2**31), 2**31 - 1)
_u32 = st.integers(0, 2**32 - 1)
_i64 = st.integers(-(2**63), 2**63 - 1)
_u64 = st.integers(0, 2**64 - 1)
_finite = st.floats(allow_nan=False, allow_infinity=False, width=32)
_kind = st.sampled_from(["KIND_UNSPECIFIED", "KIND_A", "KIND_B"])
_deep = st.fixed_dictionaries({}, optional={"name": _names})
_free = st.recursive(
    st.none() | st.booleans() | _finite | _names,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_names, inner, max_size=2),
    max_leaves=4,
)
_fields: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(("aDouble", "aFloat", "exact"), _finite),
    **dict.fromkeys(("anInt32", "aSint32", "aSfixed32", "maybe"), _i32),
    **dict.fromkeys(("anInt64", "aSint64", "aSfixed64", "wide"), _i64.map(str)),
    **dict.fromkeys(("aUint32", "aFixed32"), _u32),
    **dict.fromkeys(("aUint64", "aFixed64"), _u64.map(str)),
    **dict.fromkeys(("aBool", "truth"), st.booleans()),
    **dict.fromkeys(("aString", "text"), _names),
    **dict.fromkeys(("kind", "maybeKind"), _kind),
    "someBytes": st.binary(max_size=5).map(lambda data: b64encode(data).decode()),
    "deeper": _deep,
    "maybeDeep": _deep,
    "many": st.lists(_i64.map(str), max_size=3),
    "kinds": st.lists(_kind, max_size=3),
    "deeps": st.lists(_deep, max_size=3),
    "byName": st.dictionaries(_names, _i64.map(str), max_size=3),
    "byNumber": st.dictionaries(_i32.map(str), _deep, max_size=3),
    "byTruth": st.dictionaries(st.sampled_from(["true", "false"]), _names, max_size=2),
    "at": st.just("2026-05-01T12:00:00.25Z"),
    "lasts": st.sampled_from(["1s", "-3.5s", "0.000000001s"]),
    "free": st.dictionaries(_names, _free, max_size=3),
    "anything": _free,
    "list": st.lists(_free, max_size=3),
    "mask": st.sampled_from(["a,b.c", "", "someBytes"]),
}
_message = st.fixed_dictionaries({}, optional=_fields)


@given(_message, _message)
def test_accepts_protobuf_json(value: dict[str, Any], inside: dict[str, Any]) -> None:
    json_format = import_module("google.protobuf.json_format")
    protos, made = compile_every_kind()
    schema = message_schema(protos, protos.messages["every.kind.Every"])
    validator = jsonschema_rs.validator_for(schema, validate_formats=True)
    message = json_format.ParseDict({**value, "itself": inside}, made())
    for always in (True, False):
        written = json_format.MessageToDict(message, always_print_fields_with_no_presence=always)
        validator.validate(json.loads(json.dumps(written)))


@pytest.mark.parametrize(
    "wrong",
    [
        {"aDouble": "1"},
        {"anInt32": 1.5},
        {"anInt64": "x"},
        {"aUint64": "-1"},
        {"aBool": 0},
        {"aString": 1},
        {"kind": "KIND_C"},
        {"deeper": {"name": 1}},
        {"many": "1"},
        {"byName": {"a": True}},
        {"byNumber": {"x": {}}},
        {"byTruth": {"maybe": "x"}},
        {"at": 5},
        {"lasts": "5 minutes"},
        {"free": []},
        {"list": {}},
        {"itself": {"aString": 1}},
    ],
)
def test_rejects_other_values(wrong: dict[str, Any]) -> None:
    protos, _ = compile_every_kind()
    schema = message_schema(protos, protos.messages["every.kind.Every"])
    assert not jsonschema_rs.validator_for(schema).is_valid(wrong)


def test_writes_plain_style() -> None:
    protos = compile_protos({"plain.proto": PLAIN})
    schema = message_schema(protos, protos.messages["plain.v1.Node"])
    assert schema["required"] == ["calls", "tree_state", "problem", "above", "below", "key"]
    assert schema["properties"]["calls"] == {"type": "integer", "format": "uint64", "minimum": 0}
    assert schema["properties"]["problem"]["type"] == ["string", "null"]
    assert schema["properties"]["at"] == {"type": "string"}
    assert schema["properties"]["key"] == {"type": "string", "format": "password"}
    assert schema["additionalProperties"] is False
    assert schema["$defs"]["TreeState"]["enum"] == ["ready", "half_open", "gone-away"]
    # It speaks of itself, so it stands among its definitions.
    assert set(schema["$defs"]) == {"Node", "TreeState"}
    node = {"calls": 2**60, "tree_state": "ready", "problem": None, "above": None, "key": ""}
    good = {**node, "below": [{**node, "below": []}]}
    validator = jsonschema_rs.validator_for(schema)
    validator.validate(good)
    for bad in ({**good, "calls": "1"}, {**good, "at": None}, {**good, "more": 1}, node):
        assert not validator.is_valid(bad)
    choice = message_schema(protos, protos.messages["plain.v1.Choice"])
    assert choice["anyOf"] == [{"$ref": "#/$defs/Node"}, {"$ref": "#/$defs/Other"}]
    assert jsonschema_rs.validator_for(choice).is_valid({"name": "x"})
    assert not jsonschema_rs.validator_for(choice).is_valid({"name": 1})


def test_every_schema_is_valid_and_self_contained() -> None:
    protos, _ = compile_every_kind()
    for name in ("every.kind.Every", "every.kind.Deep"):
        schema = message_schema(protos, protos.messages[name])
        assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
        jsonschema_rs.meta.validate(schema)
        jsonschema_rs.Draft202012Validator(schema)
    assert "$defs" not in message_schema(protos, protos.messages["every.kind.Deep"])
