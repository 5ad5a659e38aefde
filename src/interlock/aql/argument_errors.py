"""Errors of the parameters of an operation: the first one, in the order of the draft.

Only asked when something is wrong. What is right is decided by the tool's own schema, once, in the
pipeline; this asks the same validator again, and says what it says in AQL's words and names.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, Final

from interlock.aql.language import errors
from interlock.aql.language.collections import ITEMS, SHAPING
from interlock.aql.language.errors import AqlError
from interlock.aql.language.request import OF_ALL, OF_BATCHES, OF_READERS
from interlock.aql.operations import INPUT, Operation, Parameter
from interlock.core.pipeline.validation import find_errors
from interlock.protocol.aql_terms import Category

_MOST_LOOKED_AT: Final = 100
_MOST_NAMED: Final = 20
_MOST_SHAPED: Final = 5
_OF_FOREIGN_READERS: Final = (
    *OF_ALL,
    *OF_READERS,
    *(f"_{name}" for name in (ITEMS, *sorted(SHAPING))),
)
_OF_ONE: Final = frozenset(_OF_FOREIGN_READERS)
_TYPES: Final = frozenset({"type", "anyOf", "oneOfNotValid", "oneOfMultipleValid"})
_RANGES: Final = {
    "minimum": "minimum",
    "maximum": "maximum",
    "exclusiveMinimum": "exclusive_minimum",
    "exclusiveMaximum": "exclusive_maximum",
    "multipleOf": "multiple_of",
    "minLength": "min_length",
    "maxLength": "max_length",
    "minItems": "min_items",
    "maxItems": "max_items",
    "minProperties": "min_properties",
    "maxProperties": "max_properties",
}


def missing(operation: Operation, parameter: Parameter, strangers: Iterable[str] = ()) -> AqlError:
    """`strangers`: what was given, and is no parameter: one of them may be meant."""
    name = f"input.{parameter.name}" if parameter.inside else parameter.name
    error = errors.missing(name, operation.name, parameter.type, parameter.description)
    spelled = {one[:100].lower(): one for one in strangers}
    near = get_close_matches(parameter.name.lower(), spelled, n=1, cutoff=0.6)
    if near:
        wrote = spelled[near[0]]
        error.message += (
            f" You wrote '{errors.shown(wrote)}'. Did you mean '{errors.shown(parameter.name)}'?"
        )
        assert error.data is not None
        error.data |= {"given": errors.short(wrote), "did_you_mean": parameter.name}
    return error


def no_input(operation: Operation, parts: list[str], flat: list[str]) -> AqlError:
    """For an UPDATE without `input`. `parts`: its members; `flat`: those that stand beside."""
    names = ", ".join(parts[:_MOST_NAMED])
    error = errors.missing(INPUT, operation.name, "object", f"what changes: {names}")
    if flat:
        error.message += f" {_into_input(operation, flat)}"
    assert error.data is not None
    error.data["expected_shape"] = _shape(operation, flat or parts)
    return error


def not_beside_input(operation: Operation, flat: list[str]) -> AqlError:
    """For members of `input` that stand beside it."""
    error = unknown(operation, flat)
    assert error.data is not None
    error.message = f"{_into_input(operation, flat)} Not beside it."
    error.data.pop("did_you_mean", None)
    error.data["expected_shape"] = _shape(operation, flat)
    return error


def unknown_inside(operation: Operation, names: list[str], parts: list[str]) -> AqlError:
    """For members of `input` that there are not."""
    error = errors.unknown_field(INPUT, names[:_MOST_NAMED], parts, _near(names[0], parts))
    beside_it = [one for one in names if one in operation.signature.names]
    if beside_it:
        error.message += f" Beside 'input', not in it: {errors.listed(beside_it)}."
    return error


def _into_input(operation: Operation, flat: list[str]) -> str:
    shape = json.dumps(_shape(operation, flat), ensure_ascii=False)
    return f"Put {errors.listed(flat)} into 'input': {errors.lawfully(shape)}."


def _shape(operation: Operation, names: list[str]) -> dict[str, Any]:
    """What the parameters of an update look like, with these members in `input`."""
    required = [one.name for one in operation.signature.parameters if _names_it(one)]
    inside = {errors.short(name): "…" for name in names[:_MOST_SHAPED]}
    return {**dict.fromkeys(required, "…"), INPUT: inside}


def _names_it(parameter: Parameter) -> bool:
    return parameter.required and not parameter.inside


def unknown(operation: Operation, names: list[str]) -> AqlError:
    """`names`: those that the operation does not have."""
    signature = operation.signature
    valid = [one.name for one in signature.parameters if not one.inside]
    valid += sorted(signature.names.difference(valid))
    valid += sorted(signature.features)
    plain = f"_{names[0][:100]}"
    near = plain if plain in beside(operation) else _near(names[0], valid)
    return errors.unknown(operation.name, names[:_MOST_NAMED], valid, near)


def beside(operation: Operation) -> tuple[str, ...]:
    """What may stand beside its parameters, and begins with an underscore."""
    if operation.category is not Category.READ:
        return OF_ALL
    return (*OF_ALL, *OF_READERS) if operation.native is not None else _OF_FOREIGN_READERS


def unknown_beside(operation: Operation, names: list[str], known: tuple[str, ...]) -> AqlError:
    """`names`: what begins with an underscore, and means nothing to this operation."""
    signature = operation.signature
    wanted = names[0][:100]
    others = [one.name for one in signature.parameters if not one.inside]
    own = next((one.name for one in signature.parameters if one.own == wanted), None)
    if own is None and wanted[1:] in (*others, *signature.features):
        own = wanted[1:]
    return errors.unknown(operation.name, names[:_MOST_NAMED], known, own or _near(wanted, known))


def not_of_batches(names: Iterable[str]) -> AqlError:
    """For what was said beside `operations`, and cannot be said of all of them together."""
    strange = [name for name in names if name not in OF_BATCHES]
    error = errors.unknown("operations", strange, OF_BATCHES, _near(strange[0], OF_BATCHES))
    if strange[0] in _OF_ONE:
        error.message += " Write it into each operation."
    return error


def _near(name: str, known: Iterable[str]) -> str | None:
    spelled = name[:100].lower().replace("-", "_")
    near = get_close_matches(spelled, known, n=1, cutoff=0.6)
    return near[0] if near else None


def wrong_type(operation: Operation, arguments: dict[str, Any]) -> AqlError | None:
    """The first parameter that has another type than it must have. None: there is none."""
    found = _faults(operation, arguments)
    return next((_explained(operation, arguments, one) for one in found if _is_type(one)), None)


def fault(operation: Operation, arguments: dict[str, Any]) -> AqlError | None:
    """Why these arguments of its tool do not fit. None: they do, or nobody can say why not."""
    found = sorted(_faults(operation, arguments), key=_rank)
    return _explained(operation, arguments, found[0]) if found else None


def _faults(operation: Operation, arguments: dict[str, Any]) -> list[Any]:
    tool = operation.tool
    # The pipeline's own: there is one schema, and one validator of it.
    return find_errors(tool, arguments, _MOST_LOOKED_AT) or []


def _is_type(error: Any) -> bool:
    return error.kind.name in _TYPES


def _rank(error: Any) -> int:
    kind = error.kind.name
    if kind == "required":
        return 0
    if kind in _TYPES:
        return 1
    return 2 if kind in ("additionalProperties", "unevaluatedProperties") else 3


def _explained(operation: Operation, arguments: dict[str, Any], error: Any) -> AqlError:
    kind = error.kind.name
    said: dict[str, Any] = error.kind.as_dict()
    path = list(error.instance_path)
    if kind == "required":
        missed = str(said.get("property", ""))
        parameter = _of(operation, missed) if not path else None
        if parameter is not None:
            return missing(operation, parameter)
        expected, about = _inner(operation, [*path, missed])
        return errors.missing(_named(operation, [*path, missed]), operation.name, expected, about)
    if kind in ("additionalProperties", "unevaluatedProperties"):
        strangers = [str(one) for one in said.get("unexpected", ())]
        if not path:
            return unknown(operation, strangers or ["?"])
        return errors.unknown_field(_named(operation, path), strangers[:_MOST_NAMED], ())
    name = _named(operation, path)
    called = errors.escaped(name)
    details: dict[str, Any] = {"param_name": name}
    if kind in _TYPES:
        types = said.get("types")
        expected = " or ".join(types) if isinstance(types, list) else _expected(operation, path)
        return errors.wrong_type(name, expected, _kind_of(_at(arguments, path)))
    if kind in ("enum", "constant"):
        options = said.get("options", [said["expected_value"]] if "expected_value" in said else [])
        one_of = ", ".join(errors.value(one) for one in options[:_MOST_NAMED])
        details["allowed"] = options[:_MOST_NAMED]
        return AqlError(
            "VALIDATION_INVALID_ENUM", f"Parameter '{called}' must be one of: {one_of}.", details
        )
    if kind in _RANGES:
        word = _RANGES[kind]
        limit = said.get("limit", said.get("multiple_of"))
        details[word] = limit
        return AqlError(
            "VALIDATION_OUT_OF_RANGE",
            f"Parameter '{called}' is out of range: {word} is {limit}.",
            details,
        )
    if kind in ("pattern", "format"):
        wanted = said.get(kind, "")
        details[kind] = wanted
        return AqlError(
            "VALIDATION_PATTERN_MISMATCH",
            f"Parameter '{called}' does not have the form {errors.value(str(wanted))}.",
            details,
        )
    details["constraint"] = kind
    return AqlError(
        "VALIDATION_INVALID_TYPE",
        f"Parameter '{called}' does not satisfy '{kind}' of its schema.",
        {**details, "expected_type": _expected(operation, path), "actual_type": "invalid"},
    )


def _of(operation: Operation, own: str) -> Parameter | None:
    """The parameter that the tool calls so."""
    return next((one for one in operation.signature.parameters if one.own == own), None)


def _named(operation: Operation, path: list[Any]) -> str:
    """A place in the arguments of the tool, as the caller of the operation knows it."""
    if not path:
        return "params"
    parameter = _of(operation, str(path[0]))
    first = str(path[0])
    if parameter is not None:
        first = f"input.{parameter.name}" if parameter.inside else parameter.name
    return ".".join((first, *(errors.short(str(step)) for step in path[1:])))


def _expected(operation: Operation, path: list[Any]) -> str:
    if len(path) > 1:
        return _inner(operation, path)[0]
    parameter = _of(operation, str(path[0])) if path else None
    return "value" if parameter is None else parameter.type


def _inner(operation: Operation, path: list[Any]) -> tuple[str, str]:
    """The type and the meaning of what stands deep in a parameter, as far as its schema says so
    plainly."""
    parameter = _of(operation, str(path[0]))
    schema: Any = None if parameter is None else parameter.schema
    for step in path[1:]:
        if not isinstance(schema, dict):
            break
        if isinstance(step, int):
            schema = schema.get("items")
        else:
            inner = schema.get("properties")
            schema = inner.get(step) if isinstance(inner, dict) else None
    if not isinstance(schema, dict):
        return "value", ""
    said = schema.get("type")
    kind = " or ".join(map(str, said)) if isinstance(said, list) else str(said or "value")
    return kind, str(schema.get("description") or "")


def _at(value: Any, path: list[Any]) -> Any:
    for step in path:
        value = value[step]
    return value


def _kind_of(value: Any) -> str:
    if value is None:
        return "null"
    for kind, name in (
        (bool, "boolean"),
        (str, "string"),
        (int, "integer"),
        (float, "number"),
        (list, "array"),
    ):
        if isinstance(value, kind):
            return name
    return "object"
