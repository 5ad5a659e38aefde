"""The data of an answer as it was asked for: fewer fields, or a part of a list. Pure."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from interlock.pipeline.aql.asking import Asked, Warning
from interlock.pipeline.aql.warnings import truncated_warning
from interlock.protocol.aql import fields as selecting
from interlock.protocol.aql.collection import Kind, shape
from interlock.protocol.aql.cursors import Cursors
from interlock.protocol.aql.envelope import Data
from interlock.protocol.aql.faults import AqlError

_decode: Final = msgspec.json.Decoder().decode
_encode: Final = msgspec.json.Encoder().encode


def shaped(
    data: Data, asked: Asked, cursors: Cursors, *, page: int, most: int
) -> tuple[bytes, list[Warning]]:
    """JSON, and what is to be said about it. Raises AqlError."""
    warnings: list[Warning] = []
    value = _decode(data.raw) if data.json else None
    if asked.shaping is not None:
        value = _part(value, asked, cursors, warnings, page, most)
    if value is None:
        # There are no fields in prose: it is given whole.
        return data.raw, warnings
    if asked.fields is not None:
        value = selecting.apply(value, asked.fields)
    return _encode(value), warnings


def _part(
    value: Any, asked: Asked, cursors: Cursors, warnings: list[Warning], page: int, most: int
) -> Any:
    items = value
    if isinstance(value, dict):
        name = selecting.list_in(value)
        items = None if name is None else value[name]
    if not isinstance(items, list) or not all(isinstance(one, dict) for one in items):
        given = ", ".join(f"'_{name}'" for name in sorted(asked.shaping or ()))
        raise AqlError(
            "VALIDATION_INVALID_STATE",
            f"The operation gave no list of objects, so {given} cannot be applied. Leave it out.",
            {"operation": asked.operation.name, "reason": "no_collection"},
        )
    kind = Kind(asked.operation.name)
    found = shape(items, asked.shaping or {}, kind, cursors, page=page, most=most)
    if found.clamped:
        warnings.append(truncated_warning("items", found.clamped, most, most))
    return found.data()
