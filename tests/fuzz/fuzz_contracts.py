"""Contracts: any two texts are schemas or not, and what is called compatible takes what it took."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import msgspec

from interlock.contracts.diff.changes import breaking
from interlock.contracts.diff.protobuf import diff_descriptors
from interlock.contracts.diff.schemas import diff_schemas
from interlock.errors import InterlockError

SEEDS = [
    b'{"type":"string"}\n{"type":["string","null"]}',
    b'{"type":"object","properties":{"a":{"enum":[1,"a"]}},"required":["a"]}\n{"properties":{"a":{}}}',
    b'{"anyOf":[{"type":"string","minLength":1},{"const":0}]}\n{"oneOf":[{"type":"string"},{"const":0}]}',
    b'{"items":{"$ref":"#"},"minItems":1}\n{"items":{"$ref":"#"}}',
    b'{"$ref":"#/$defs/a","$defs":{"a":{"not":{"type":"array"}}}}\n{"not":{"minItems":2}}',
    b'{"if":{"type":"integer"},"then":{"minimum":1},"else":false}\n{"type":"integer","maximum":9}',
    b'{"additionalProperties":false,"patternProperties":{"^a":true}}\n{"propertyNames":{"maxLength":1}}',
    b'{"$schema":"http://json-schema.org/draft-07/schema#","items":[true,false]}\n{"maxItems":1}',
    b"true\nfalse",
    b"\n\x0b\n\x01x\x12\x01p\x22\x03\n\x01M",
    b"\n\x0b\n\x01x\n\x01\xcf\x22\x03\n\x01M",
    b"\n\x10\n\x01x\x22\x0b\n\x01M\x12\x06\n\x01a\x18\x01 \x01",
]
VALUES: list[Any] = [
    None, True, False, 0, 1, 2, -1, 1.5, "", "a", "ab", [], [1], ["a", 1], [[]], {}, {"a": 1},
    {"a": "a", "b": 1}, {"b": None}, {"a": {"a": "a"}},
]  # fmt: skip


def TestOneInput(data: bytes) -> None:
    """Two lines are two schemas; the whole is a descriptor set, if it is one."""
    try:
        found = diff_descriptors(data, data)
    except InterlockError:
        found = []
    assert found == []
    first, _, second = data.partition(b"\n")
    try:
        old, new = msgspec.json.decode(first), msgspec.json.decode(second)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return
    assert diff_schemas(old, old, "input") == []
    changes = diff_schemas(old, new, "input")
    if breaking(changes):
        return
    try:
        before, after = jsonschema_rs.validator_for(old), jsonschema_rs.validator_for(new)
    except (ValueError, jsonschema_rs.ReferencingError):
        return
    for value in VALUES:
        assert after.is_valid(value) or not before.is_valid(value), value
