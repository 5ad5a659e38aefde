"""The data of an answer as it was asked for: fewer fields, or a part of a list. Pure."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from interlock.pipeline.aql.asking import Asked, Warning
from interlock.pipeline.aql.warnings import truncated_warning
from interlock.protocol.aql import faults
from interlock.protocol.aql import fields as selecting
from interlock.protocol.aql.collection import ITEMS, Kind, shape
from interlock.protocol.aql.cursors import Cursors
from interlock.protocol.aql.envelope import Data
from interlock.protocol.aql.faults import AqlError

UNKNOWN_FIELD: Final = "VALIDATION_UNKNOWN_FIELD_WARNING"
_MOST_NAMED: Final = 20
_decode: Final = msgspec.json.Decoder().decode
_encode: Final = msgspec.json.Encoder().encode


def shaped(
    data: Data, asked: Asked, cursors: Cursors, *, page: int, most: int
) -> tuple[bytes, list[Warning]]:
    """JSON, and what is to be said about it. Raises AqlError."""
    warnings: list[Warning] = []
    value = _decode(data.raw) if data.json else None
    if asked.shaping is not None:
        return _encode(_part(value, asked, cursors, warnings, page, most)), warnings
    if value is None:
        # There are no fields in prose: it is given whole.
        if not asked.fields.everything:
            warnings.append(_no_fields(asked))
        return data.raw, warnings
    _look_for(selecting.items_of(value, asked.fields), asked, warnings)
    return _encode(selecting.apply(value, asked.fields)), warnings


def _part(
    value: Any, asked: Asked, cursors: Cursors, warnings: list[Warning], page: int, most: int
) -> Any:
    spec = asked.shaping or {}
    name = _list_of(value, asked)
    items = value if name is None else value[name]
    found = shape(items, spec, Kind(asked.operation.name), cursors, page=page, most=most)
    if found.clamped:
        warnings.append(truncated_warning("items", found.clamped, most, most))
    select = None
    fields = asked.fields
    if fields is not None:
        _look_for(items, asked, warnings)

        def select(one: Any) -> Any:
            return selecting.apply(one, fields)

    data = found.data(select)
    if name is None or found.only_numbers:
        return data
    # What the server said beside its list is still true.
    return {**{key: one for key, one in value.items() if key != name}, **data}


def _list_of(value: Any, asked: Asked) -> str | None:
    """The member of the data that is meant. None: the data is the list. Raises AqlError."""
    named = (asked.shaping or {}).get(ITEMS)
    if named is None and isinstance(value, list) and _are_objects(value):
        return None
    lists = selecting.lists_in(value) if isinstance(value, dict) else []
    if named is not None:
        if named in lists:
            return str(named)
        raise _no_list(asked, lists, f"gave no list of objects called '{faults.shown(named)}'")
    full = [name for name in lists if value[name]]
    if len(full) == 1 or len(lists) == 1:
        return (full or lists)[0]
    if lists:
        count = len(lists)
        raise _no_list(asked, lists, f"gave {count} lists: name one with '_{ITEMS}'")
    raise _no_list(asked, lists, "gave no list of objects")


def _are_objects(items: list[Any]) -> bool:
    return all(isinstance(one, dict) for one in items)


def _no_list(asked: Asked, lists: list[str], why: str) -> AqlError:
    given = ", ".join(f"'_{name}'" for name in sorted(asked.shaping or ()))
    reason = "several_collections" if len(lists) > 1 else "no_collection"
    details: dict[str, Any] = {"operation": asked.operation.name, "reason": reason}
    there = "Leave it out."
    if lists:
        details["lists"] = [faults.short(name) for name in lists[:_MOST_NAMED]]
        there = f"There are: {faults.listed(details['lists'])}."
    return AqlError(
        "VALIDATION_INVALID_STATE",
        f"The operation {why}, so {given} cannot be applied. {there}",
        details,
    )


# -- fields that are not there


def _look_for(items: Any, asked: Asked, warnings: list[Warning]) -> None:
    fields = asked.fields
    if fields is None or not fields.tree:
        return
    strange = selecting.absent(items, fields)
    if strange:
        known = sorted({str(name) for one in items if isinstance(one, dict) for name in one})
        shown = [faults.short(name) for name in strange[:_MOST_NAMED]]
        warnings.append(
            Warning(
                UNKNOWN_FIELD,
                f"Nothing in the answer has {faults.listed(shown)}.",
                {"unknown_fields": shown, "valid_fields": known[:_MOST_NAMED]},
            )
        )


def _no_fields(asked: Asked) -> Warning:
    return Warning(
        UNKNOWN_FIELD,
        "The answer is text without fields, and comes whole.",
        {"unknown_fields": [faults.short(name) for name in list(asked.fields.tree)[:_MOST_NAMED]]},
    )
