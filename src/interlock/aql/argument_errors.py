"""Errors of the parameters of an operation. The first error in the order of the draft is reported.

This module runs only for invalid parameters. The pipeline validates arguments with the tool's
schema. This module runs the same validator again, and reports its errors with AQL's codes and
names.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, Final

from interlock.aql.language import errors
from interlock.aql.language.collections import ITEMS, SHAPING_NAMES
from interlock.aql.language.errors import AqlError
from interlock.aql.language.request import BATCH_OPTIONS, COMMON_OPTIONS, READ_OPTIONS
from interlock.aql.operations import INPUT, Operation, Parameter
from interlock.core.pipeline.validation import find_errors
from interlock.protocol.aql_terms import Category

_MAX_CHECKED_ERRORS: Final = 100
_MAX_NAMED: Final = 20
_MAX_SHAPE_MEMBERS: Final = 5
_TOOL_READ_OPTIONS: Final = (
    *COMMON_OPTIONS,
    *READ_OPTIONS,
    *(f"_{name}" for name in (ITEMS, *sorted(SHAPING_NAMES))),
)
_SINGLE_OPTIONS: Final = frozenset(_TOOL_READ_OPTIONS)
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


def missing_parameter(
    operation: Operation, parameter: Parameter, unknown_names: Iterable[str] = ()
) -> AqlError:
    """Return the error for a missing parameter.

    Args:
        unknown_names: unknown parameters of the request. One of them may be a misspelling.
    """
    name = f"input.{parameter.name}" if parameter.in_input else parameter.name
    error = errors.missing_parameter(name, operation.name, parameter.type, parameter.description)
    name_by_lower_case = {name[:100].lower(): name for name in unknown_names}
    matches = get_close_matches(parameter.name.lower(), name_by_lower_case, n=1, cutoff=0.6)
    if matches:
        sent_name = name_by_lower_case[matches[0]]
        error.message += (
            f" You sent '{errors.quotable(sent_name)}'."
            f" Did you mean '{errors.quotable(parameter.name)}'?"
        )
        assert error.data is not None
        error.data |= {"given": errors.shorten(sent_name), "did_you_mean": parameter.name}
    return error


def missing_input(operation: Operation, input_names: list[str], flat_names: list[str]) -> AqlError:
    """Return the error for an UPDATE without `input`.

    Args:
        input_names: the members of `input`.
        flat_names: members that the request has beside `input`.
    """
    names = ", ".join(input_names[:_MAX_NAMED])
    error = errors.missing_parameter(INPUT, operation.name, "object", f"the changes: {names}")
    if flat_names:
        error.message += f" {_move_into_input_hint(operation, flat_names)}"
    assert error.data is not None
    error.data["expected_shape"] = _expected_shape(operation, flat_names or input_names)
    return error


def input_member_outside(operation: Operation, flat_names: list[str]) -> AqlError:
    """Return the error for members of `input` that stand beside it."""
    error = unknown_parameters(operation, flat_names)
    assert error.data is not None
    error.message = (
        f"{_move_into_input_hint(operation, flat_names)} They are not accepted beside it."
    )
    error.data.pop("did_you_mean", None)
    error.data["expected_shape"] = _expected_shape(operation, flat_names)
    return error


def unknown_input_members(
    operation: Operation, names: list[str], input_names: list[str]
) -> AqlError:
    """Return the error for unknown members of `input`."""
    error = errors.unknown_field(
        INPUT, names[:_MAX_NAMED], input_names, _find_similar(names[0], input_names)
    )
    misplaced = [name for name in names if name in operation.signature.names]
    if misplaced:
        error.message += f" These belong beside 'input': {errors.format_names(misplaced)}."
    return error


def _move_into_input_hint(operation: Operation, flat_names: list[str]) -> str:
    shape = json.dumps(_expected_shape(operation, flat_names), ensure_ascii=False)
    return (
        f"Move {errors.format_names(flat_names)} into 'input': {errors.escape_stack_traces(shape)}."
    )


def _expected_shape(operation: Operation, names: list[str]) -> dict[str, Any]:
    """Return the expected parameters of an update, with these members in `input`."""
    required = [
        parameter.name
        for parameter in operation.signature.parameters
        if _is_required_outside_input(parameter)
    ]
    input_members = {errors.shorten(name): "…" for name in names[:_MAX_SHAPE_MEMBERS]}
    return {**dict.fromkeys(required, "…"), INPUT: input_members}


def _is_required_outside_input(parameter: Parameter) -> bool:
    return parameter.required and not parameter.in_input


def unknown_parameters(operation: Operation, names: list[str]) -> AqlError:
    """Return the error for unknown parameters."""
    signature = operation.signature
    valid = [parameter.name for parameter in signature.parameters if not parameter.in_input]
    valid += sorted(signature.names.difference(valid))
    valid += sorted(signature.features)
    option_name = f"_{names[0][:100]}"
    suggestion = (
        option_name
        if option_name in accepted_options(operation)
        else _find_similar(names[0], valid)
    )
    return errors.unknown_parameters(operation.name, names[:_MAX_NAMED], valid, suggestion)


def accepted_options(operation: Operation) -> tuple[str, ...]:
    """Return the options with an underscore that an operation accepts beside its parameters."""
    if operation.category is not Category.READ:
        return COMMON_OPTIONS
    return (*COMMON_OPTIONS, *READ_OPTIONS) if operation.builtin is not None else _TOOL_READ_OPTIONS


def unknown_options(operation: Operation, names: list[str], options: tuple[str, ...]) -> AqlError:
    """Return the error for unknown options with an underscore."""
    signature = operation.signature
    sent_name = names[0][:100]
    parameter_names = [
        parameter.name for parameter in signature.parameters if not parameter.in_input
    ]
    suggestion = next(
        (
            parameter.name
            for parameter in signature.parameters
            if parameter.upstream_name == sent_name
        ),
        None,
    )
    if suggestion is None and sent_name[1:] in (*parameter_names, *signature.features):
        suggestion = sent_name[1:]
    return errors.unknown_parameters(
        operation.name, names[:_MAX_NAMED], options, suggestion or _find_similar(sent_name, options)
    )


def unsupported_batch_options(names: Iterable[str]) -> AqlError:
    """Return the error for options beside `operations` that do not apply to a whole batch."""
    unsupported = [name for name in names if name not in BATCH_OPTIONS]
    error = errors.unknown_parameters(
        "operations", unsupported, BATCH_OPTIONS, _find_similar(unsupported[0], BATCH_OPTIONS)
    )
    if unsupported[0] in _SINGLE_OPTIONS:
        error.message += " Put it into each operation."
    return error


def _find_similar(name: str, candidates: Iterable[str]) -> str | None:
    normalized = name[:100].lower().replace("-", "_")
    matches = get_close_matches(normalized, candidates, n=1, cutoff=0.6)
    return matches[0] if matches else None


def wrong_type_error(operation: Operation, arguments: dict[str, Any]) -> AqlError | None:
    """Return the error of the first parameter with a wrong type. None: all types are right."""
    schema_errors = _find_schema_errors(operation, arguments)
    return next(
        (
            _explain(operation, arguments, schema_error)
            for schema_error in schema_errors
            if _is_type_error(schema_error)
        ),
        None,
    )


def explain_error(operation: Operation, arguments: dict[str, Any]) -> AqlError | None:
    """Return the error of invalid arguments. None: they are valid, or the reason is unknown."""
    schema_errors = sorted(_find_schema_errors(operation, arguments), key=_rank)
    return _explain(operation, arguments, schema_errors[0]) if schema_errors else None


def _find_schema_errors(operation: Operation, arguments: dict[str, Any]) -> list[Any]:
    tool = operation.tool
    # Use the pipeline's schema and validator.
    return find_errors(tool, arguments, _MAX_CHECKED_ERRORS) or []


def _is_type_error(error: Any) -> bool:
    return error.kind.name in _TYPES


def _rank(error: Any) -> int:
    kind = error.kind.name
    if kind == "required":
        return 0
    if kind in _TYPES:
        return 1
    return 2 if kind in ("additionalProperties", "unevaluatedProperties") else 3


def _explain(operation: Operation, arguments: dict[str, Any], error: Any) -> AqlError:
    kind = error.kind.name
    attributes: dict[str, Any] = error.kind.as_dict()
    path = list(error.instance_path)
    if kind == "required":
        missing_key = str(attributes.get("property", ""))
        parameter = _find_parameter(operation, missing_key) if not path else None
        if parameter is not None:
            return missing_parameter(operation, parameter)
        expected, description = _nested_schema(operation, [*path, missing_key])
        return errors.missing_parameter(
            _parameter_path(operation, [*path, missing_key]), operation.name, expected, description
        )
    if kind in ("additionalProperties", "unevaluatedProperties"):
        unexpected = [str(key) for key in attributes.get("unexpected", ())]
        if not path:
            return unknown_parameters(operation, unexpected or ["?"])
        return errors.unknown_field(_parameter_path(operation, path), unexpected[:_MAX_NAMED], ())
    param_name = _parameter_path(operation, path)
    escaped_name = errors.escape(param_name)
    details: dict[str, Any] = {"param_name": param_name}
    if kind in _TYPES:
        types = attributes.get("types")
        expected = (
            " or ".join(types) if isinstance(types, list) else _expected_type(operation, path)
        )
        return errors.wrong_type(param_name, expected, _json_type(_value_at(arguments, path)))
    if kind in ("enum", "constant"):
        options = attributes.get(
            "options", [attributes["expected_value"]] if "expected_value" in attributes else []
        )
        allowed = ", ".join(errors.quote_value(option) for option in options[:_MAX_NAMED])
        details["allowed"] = options[:_MAX_NAMED]
        return AqlError(
            "VALIDATION_INVALID_ENUM",
            f"Parameter '{escaped_name}' must be one of: {allowed}.",
            details,
        )
    if kind in _RANGES:
        constraint = _RANGES[kind]
        limit = attributes.get("limit", attributes.get("multiple_of"))
        details[constraint] = limit
        return AqlError(
            "VALIDATION_OUT_OF_RANGE",
            f"Parameter '{escaped_name}' is out of range: {constraint} is {limit}.",
            details,
        )
    if kind in ("pattern", "format"):
        pattern = attributes.get(kind, "")
        details[kind] = pattern
        return AqlError(
            "VALIDATION_PATTERN_MISMATCH",
            f"Parameter '{escaped_name}' does not match {errors.quote_value(str(pattern))}.",
            details,
        )
    details["constraint"] = kind
    return AqlError(
        "VALIDATION_INVALID_TYPE",
        f"Parameter '{escaped_name}' does not meet '{kind}' of its schema.",
        {**details, "expected_type": _expected_type(operation, path), "actual_type": "invalid"},
    )


def _find_parameter(operation: Operation, upstream_name: str) -> Parameter | None:
    """Return the parameter with this upstream name."""
    return next(
        (
            parameter
            for parameter in operation.signature.parameters
            if parameter.upstream_name == upstream_name
        ),
        None,
    )


def _parameter_path(operation: Operation, path: list[Any]) -> str:
    """Return a path in the tool's arguments, as the caller of the operation knows it."""
    if not path:
        return "params"
    parameter = _find_parameter(operation, str(path[0]))
    first_part = str(path[0])
    if parameter is not None:
        first_part = f"input.{parameter.name}" if parameter.in_input else parameter.name
    return ".".join((first_part, *(errors.shorten(str(step)) for step in path[1:])))


def _expected_type(operation: Operation, path: list[Any]) -> str:
    if len(path) > 1:
        return _nested_schema(operation, path)[0]
    parameter = _find_parameter(operation, str(path[0])) if path else None
    return "value" if parameter is None else parameter.type


def _nested_schema(operation: Operation, path: list[Any]) -> tuple[str, str]:
    """Return the type and description of a nested value, if its schema is simple."""
    parameter = _find_parameter(operation, str(path[0]))
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
    declared = schema.get("type")
    kind = (
        " or ".join(map(str, declared)) if isinstance(declared, list) else str(declared or "value")
    )
    return kind, str(schema.get("description") or "")


def _value_at(value: Any, path: list[Any]) -> Any:
    for step in path:
        value = value[step]
    return value


def _json_type(value: Any) -> str:
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
