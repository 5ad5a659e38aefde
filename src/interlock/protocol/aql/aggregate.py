"""Numbers about a collection instead of its items: how many, how much, by what."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import msgspec

from interlock.protocol.aql import faults
from interlock.protocol.aql.faults import AqlError

COUNT: Final = "count"
GROUP_BY: Final = "group_by"
FUNCTIONS: Final = (COUNT, GROUP_BY, "sum", "avg", "min", "max")
MOST_LABELS: Final = 20
MOST_GROUPS: Final = 1_000

Item = Mapping[str, Any]
_encode: Final = msgspec.json.Encoder(order="sorted").encode


def run(items: Sequence[Item], spec: Any, fields: Collection[str] | None = None) -> dict[str, Any]:
    """What `aggregate` asks for, by its labels. `fields`: those there are; None: any.

    Raises AqlError.
    """
    if not isinstance(spec, dict):
        raise faults.wrong_type("aggregate", "object", "another type")
    if not spec or len(spec) > MOST_LABELS:
        raise faults.wrong_type("aggregate", f"1 to {MOST_LABELS} labels", str(len(spec)))
    return {label: _one(items, label, wanted, fields) for label, wanted in spec.items()}


def support(fields: Collection[str]) -> dict[str, Any]:
    """What introspection says of it."""
    return {"functions": list(FUNCTIONS), "fields": sorted(fields)}


def _one(items: Sequence[Item], label: str, wanted: Any, fields: Collection[str] | None) -> Any:
    where = f"aggregate.{faults.short(label)}"
    if not isinstance(wanted, dict) or not wanted:
        raise faults.wrong_type(where, "an object such as {count: true}", "another type")
    strange = [name for name in wanted if name not in FUNCTIONS]
    if strange:
        raise faults.unknown_field(where, strange, FUNCTIONS)
    measures = [name for name in wanted if name != GROUP_BY]
    if len(measures) > 1:
        raise faults.wrong_type(where, "one function", f"{len(measures)} functions")
    function = measures[0] if measures else COUNT
    field = _field(where, function, wanted.get(function, True), fields)
    if GROUP_BY not in wanted:
        return _measure(function, field, items)
    by = _field(where, GROUP_BY, wanted[GROUP_BY], fields)
    groups: dict[str, list[Item]] = {}
    for item in items:
        groups.setdefault(_group(value_at(item, by)), []).append(item)
    if len(groups) > MOST_GROUPS:
        raise AqlError(
            "VALIDATION_OUT_OF_RANGE",
            f"Parameter '{faults.escaped(where)}' makes {len(groups)} groups, {MOST_GROUPS} are "
            "the most. Filter first, or group by something coarser.",
            {"param_name": where, "maximum": MOST_GROUPS},
        )
    return {name: _measure(function, field, group) for name, group in groups.items()}


def _field(where: str, function: str, field: Any, fields: Collection[str] | None) -> str:
    """The field that a function is about. Empty: items are counted."""
    if function == COUNT and field is True:
        return ""
    if not isinstance(field, str) or not field:
        raise faults.wrong_type(f"{where}.{function}", "the name of a field", "another type")
    if fields is not None and field.partition(".")[0] not in fields:
        raise faults.unknown_field(f"{where}.{function}", [field], sorted(fields))
    return field


def _measure(function: str, field: str, items: Sequence[Item]) -> Any:
    if function == COUNT:
        if not field:
            return len(items)
        return sum(1 for item in items if value_at(item, field) is not None)
    values = [value_at(item, field) for item in items]
    numbers = [one for one in values if isinstance(one, int | float) and not isinstance(one, bool)]
    if function in ("sum", "avg"):
        try:
            total = sum(numbers)
            if function == "sum":
                return total
            return total / len(numbers) if numbers else None
        except OverflowError:
            # Beyond what a float can hold: no number at all is better than a wrong one.
            return None
    choose: Callable[..., Any] = min if function == "min" else max
    if numbers:
        return choose(numbers)
    texts = [one for one in values if isinstance(one, str)]
    return choose(texts) if texts else None


def value_at(item: Any, path: str) -> Any:
    """What stands at a path such as `a.b`. None: nothing."""
    if isinstance(item, Mapping) and path in item:
        return item[path]
    for step in path.split("."):
        if not isinstance(item, Mapping):
            return None
        item = item.get(step)
    return item


def has_at(item: Any, path: str) -> bool:
    """Whether anything stands at a path, be it null."""
    if isinstance(item, Mapping) and path in item:
        return True
    for step in path.split("."):
        if not isinstance(item, Mapping) or step not in item:
            return False
        item = item[step]
    return True


def _group(value: Any) -> str:
    return value if isinstance(value, str) else _encode(value).decode()
