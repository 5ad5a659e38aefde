"""Validation of the arguments of a call by the JSON Schema of its tool.

Schemas come from upstreams, so the work of a validation is limited (`protocol/schema_cost.py`).
Arguments beyond the limit are not validated here: the upstream validates its arguments anyway.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, Final

import jsonschema_rs
import msgspec

from interlock.core.call import EMPTY_OBJECT, Call
from interlock.core.catalog.offering import Tool
from interlock.errors import (
    HEADER_MISMATCH,
    INVALID_ARGUMENTS,
    INVALID_PARAMS,
    InterlockError,
    ProtocolError,
)
from interlock.protocol.headers import check_param_headers
from interlock.protocol.lookalike_members import has_lookalikes
from interlock.protocol.schema_cost import BACKTRACK_LIMIT, UNEXPLAINED, SchemaWork, collect_errors

_MAX_PROBLEMS: Final = 5
_MAX_TEXT_LENGTH: Final = 200
_MAX_FIELDS: Final = 20
_MAX_TOOL_BYTES: Final = 1024 * 1024
"""Maximum size of a tool with its schema: to decode and compile more takes too long."""
_PATTERNS: Final = jsonschema_rs.FancyRegexOptions(backtrack_limit=BACKTRACK_LIMIT)
_log = logging.getLogger("interlock.pipeline")
_decode = msgspec.json.Decoder().decode


class _AcceptsEverything:
    """A validator for an unusable schema: the upstream validates its own arguments."""

    def is_valid(self, instance: Any) -> bool:
        return True


_ACCEPTS_EVERYTHING: Final = _AcceptsEverything()


def validate_arguments(call: Call, tool: Tool, against_schema: bool = True) -> None:
    """Validate the arguments of a call by the schema of its tool, and check the headers."""
    try:
        arguments = _decode(call.arguments)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise InterlockError(INVALID_PARAMS, f"Cannot decode `arguments`: {exc}.") from None
    if type(arguments) is not dict:
        if arguments is not None:
            raise InterlockError(INVALID_PARAMS, "`arguments` must be an object.")
        # Some clients send null for no arguments.
        arguments = {}
        call.arguments = EMPTY_OBJECT
    call.decoded_arguments = arguments
    if tool.inspects_arguments:
        _check_headers_and_effect(call, tool, arguments)
    if not against_schema:
        return
    validator = tool.validator
    if validator is None:
        validator = _compile(tool)
    if len(call.arguments) > tool.unmeasured and not _can_be_validated(tool, arguments):
        return
    if not validator.is_valid(arguments):
        raise _validation_error(arguments, tool)


def _check_headers_and_effect(call: Call, tool: Tool, arguments: dict[str, Any]) -> None:
    """Check headers that mirror arguments, and set an effect that depends on arguments."""
    if tool.header_params and call.header_params is not None:
        mismatch = check_param_headers(tool.header_params, arguments, call.header_params)
        if mismatch is not None:
            raise InterlockError(HEADER_MISMATCH, mismatch)
    if tool.effect.choices:
        level = tool.effect.level_for(arguments)
        # With duplicate members, the server may read another one than the node.
        if level is not tool.effect.level and not has_lookalikes(bytes(call.arguments)):
            call.effect = level.label


def get_validator(tool: Tool) -> tuple[Any, frozenset[str]]:
    """Return the validator of a tool, and the names of its required arguments."""
    validator = tool.validator
    if validator is None:
        validator = _compile(tool)
    if validator is _ACCEPTS_EVERYTHING:
        return validator, frozenset()
    schema = tool.input_schema()
    # Next to a reference, other keywords may have no effect.
    if not isinstance(schema, dict) or "$ref" in schema:
        return validator, frozenset()
    required = schema.get("required")
    if not isinstance(required, list):
        return validator, frozenset()
    return validator, frozenset(name for name in required if isinstance(name, str))


def find_errors(tool: Tool, arguments: dict[str, Any], limit: int) -> list[Any] | None:
    """Return the first validation errors of arguments. None: the validation would take too long.
    Empty if the schema is unusable."""
    if tool.validator is None:
        _compile(tool)
    if not hasattr(tool.validator, "iter_errors"):
        return []
    work: SchemaWork | None = tool.schema_work
    if work is not None and not work.can_validate(arguments):
        return None
    return collect_errors(tool.validator, tool.input_schema(), arguments, limit)


def _compile(tool: Tool) -> Any:
    """Compile the validator of a tool, if compilation and validation are fast enough."""
    problem = ""
    tool.unmeasured, tool.schema_work, tool.validator = sys.maxsize, None, _ACCEPTS_EVERYTHING
    try:
        if len(tool.listed) > _MAX_TOOL_BYTES:
            problem = f"it is longer than {_MAX_TOOL_BYTES} bytes"
        else:
            schema = tool.input_schema()
            work = SchemaWork(schema)
            problem = work.problem
            if not problem:
                # The messages are journaled, so they must not contain values of arguments.
                tool.validator = jsonschema_rs.validator_for(
                    schema, retriever=_no_retrieval, mask="the value", pattern_options=_PATTERNS
                )
                tool.unmeasured, tool.schema_work = work.max_unmeasured_bytes, work
    except (jsonschema_rs.ValidationError, ValueError, ProtocolError) as exc:
        problem = str(exc).partition("\n")[0]
    if problem:
        _log.warning(
            "tool %s: unusable schema (%s). Its arguments are sent without validation",
            tool.canonical,
            problem[:_MAX_TEXT_LENGTH],
        )
    return tool.validator


def _can_be_validated(tool: Tool, arguments: dict[str, Any]) -> bool:
    work: SchemaWork | None = tool.schema_work
    if work is None or work.can_validate(arguments):
        return True
    if not tool.is_skip_logged:
        tool.is_skip_logged = True
        _log.warning(
            "tool %s: validating these arguments would take too long. "
            "Such arguments are sent without validation",
            tool.canonical,
        )
    return False


def _no_retrieval(uri: str) -> Any:
    # A schema of an upstream must not make the node fetch anything.
    raise ValueError(f"a schema must not refer to {uri}")


def _validation_error(arguments: dict[str, Any], tool: Tool) -> InterlockError:
    problems: list[dict[str, str]] = []
    errors = collect_errors(tool.validator, tool.input_schema(), arguments, _MAX_PROBLEMS)
    if errors is None:
        problems.append({"field": "arguments", "problem": UNEXPLAINED})
    unexpected: list[str] = []
    for error in errors or ():
        field = ".".join(str(step) for step in error.instance_path) or "arguments"
        problems.append({"field": _truncate(field), "problem": _truncate(error.message)})
        if not error.instance_path:
            unexpected += getattr(error.kind, "unexpected", ())
    sentence = "; ".join(f"{p['field']}: {p['problem']}" for p in problems)
    fields = _list_fields(tool)
    return InterlockError(
        INVALID_ARGUMENTS,
        f"Invalid arguments for {tool.canonical}. {sentence}."
        f"{_suggest(unexpected, fields)}{_describe_fields(fields)}",
        {"tool": tool.canonical, "problems": problems, "fields": list(fields)},
    )


def _suggest(unexpected: Iterable[str], fields: Iterable[str]) -> str:
    """Return ` Did you mean "timezone"?` for the first name that is similar to a field."""
    names = list(fields)
    for name in unexpected:
        if close := get_close_matches(name, names, 1, 0.5):
            return f' Did you mean "{_truncate(close[0])}"?'
    return ""


def _list_fields(tool: Tool) -> dict[str, bool]:
    """Return the names of a tool's arguments, and whether each is required. References are not
    followed."""
    schema = tool.input_schema()
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict):
        return {}
    required = schema.get("required")
    required_names = (
        {name for name in required if isinstance(name, str)} if isinstance(required, list) else ()
    )
    return {name: name in required_names for name in list(properties)[:_MAX_FIELDS]}


def _describe_fields(fields: dict[str, bool]) -> str:
    if not fields:
        return ""
    names = (
        f"{_truncate(name)}{' (required)' if needed else ''}" for name, needed in fields.items()
    )
    return f" Its fields: {', '.join(names)}."


def _truncate(text: str) -> str:
    return text if len(text) <= _MAX_TEXT_LENGTH else text[:_MAX_TEXT_LENGTH] + "…"
