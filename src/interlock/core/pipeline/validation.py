"""Validates the arguments of a call by the schema of its tool, field by field.

Schemas come from upstreams, so the work that they ask for is bounded (`protocol/schema_cost.py`).
What is beyond the bound is not validated here: the upstream validates its own arguments anyway.
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

_MOST_PROBLEMS: Final = 5
_MOST_CHARACTERS: Final = 200
_MOST_FIELDS: Final = 20
_MOST_BYTES: Final = 1024 * 1024
"""Of a tool, with its schema: to decode and compile more takes too long."""
_PATTERNS: Final = jsonschema_rs.FancyRegexOptions(backtrack_limit=BACKTRACK_LIMIT)
_log = logging.getLogger("interlock.pipeline")
_decode = msgspec.json.Decoder().decode


class _AcceptsEverything:
    """Stands in for a schema that cannot be used: the upstream checks its own arguments."""

    def is_valid(self, instance: Any) -> bool:
        return True


_ACCEPTS_EVERYTHING: Final = _AcceptsEverything()


def validate_arguments(call: Call, tool: Tool, against_schema: bool = True) -> None:
    """Check the call's arguments against the tool's schema, and its headers against both."""
    try:
        arguments = _decode(call.arguments)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise InterlockError(INVALID_PARAMS, f"`arguments` cannot be read: {exc}.") from None
    if type(arguments) is not dict:
        if arguments is not None:
            raise InterlockError(INVALID_PARAMS, "`arguments` must be an object.")
        # Some clients write out that they have none.
        arguments = {}
        call.arguments = EMPTY_OBJECT
    call.decoded_arguments = arguments
    if tool.inspects_arguments:
        _inspect(call, tool, arguments)
    if not against_schema:
        return
    validator = tool.validator
    if validator is None:
        validator = _compile(tool)
    if len(call.arguments) > tool.unmeasured and not _can_be_validated(tool, arguments):
        return
    if not validator.is_valid(arguments):
        raise _explain(arguments, tool)


def _inspect(call: Call, tool: Tool, arguments: dict[str, Any]) -> None:
    """What few tools need: headers that say the same, an effect that depends on arguments."""
    if tool.header_params and call.header_params is not None:
        mismatch = check_param_headers(tool.header_params, arguments, call.header_params)
        if mismatch is not None:
            raise InterlockError(HEADER_MISMATCH, mismatch)
    if tool.effect.choices:
        level = tool.effect.level_for(arguments)
        # The server may read another one of two members of the same name than we do.
        if level is not tool.effect.level and not has_lookalikes(bytes(call.arguments)):
            call.effect = level.label


def get_validator(tool: Tool) -> tuple[Any, frozenset[str]]:
    """What checks the arguments of a tool, and names without which it finds none good."""
    validator = tool.validator
    if validator is None:
        validator = _compile(tool)
    if validator is _ACCEPTS_EVERYTHING:
        return validator, frozenset()
    schema = tool.input_schema()
    # Beside a reference other words may mean nothing.
    if not isinstance(schema, dict) or "$ref" in schema:
        return validator, frozenset()
    required = schema.get("required")
    if not isinstance(required, list):
        return validator, frozenset()
    return validator, frozenset(one for one in required if isinstance(one, str))


def find_errors(tool: Tool, arguments: dict[str, Any], most: int) -> list[Any] | None:
    """The first errors of arguments, by the schema of a tool. None: to find them would take too
    long. There are none where the schema cannot be used."""
    if tool.validator is None:
        _compile(tool)
    if not hasattr(tool.validator, "iter_errors"):
        return []
    work: SchemaWork | None = tool.schema_work
    if work is not None and not work.can_validate(arguments):
        return None
    return collect_errors(tool.validator, tool.input_schema(), arguments, most)


def _compile(tool: Tool) -> Any:
    """Make the validator of a tool, if it can be made and asked in time."""
    problem = ""
    tool.unmeasured, tool.schema_work, tool.validator = sys.maxsize, None, _ACCEPTS_EVERYTHING
    try:
        if len(tool.listed) > _MOST_BYTES:
            problem = f"it is longer than {_MOST_BYTES} bytes"
        else:
            schema = tool.input_schema()
            work = SchemaWork(schema)
            problem = work.problem
            if not problem:
                # What was sent stays out of the messages: they are kept in the journal.
                tool.validator = jsonschema_rs.validator_for(
                    schema, retriever=_no_retrieval, mask="the value", pattern_options=_PATTERNS
                )
                tool.unmeasured, tool.schema_work = work.max_unmeasured_bytes, work
    except (jsonschema_rs.ValidationError, ValueError, ProtocolError) as exc:
        problem = str(exc).partition("\n")[0]
    if problem:
        _log.warning(
            "%s: its schema cannot be used (%s); arguments go to the upstream unchecked",
            tool.canonical,
            problem[:_MOST_CHARACTERS],
        )
    return tool.validator


def _can_be_validated(tool: Tool, arguments: dict[str, Any]) -> bool:
    work: SchemaWork | None = tool.schema_work
    if work is None or work.can_validate(arguments):
        return True
    if not tool.is_skip_logged:
        tool.is_skip_logged = True
        _log.warning(
            "%s: to validate these arguments by its schema would take too long; "
            "such arguments go to the upstream unchecked",
            tool.canonical,
        )
    return False


def _no_retrieval(uri: str) -> Any:
    # A schema from a stranger must not make the node fetch anything.
    raise ValueError(f"schemas may not refer to {uri}")


def _explain(arguments: dict[str, Any], tool: Tool) -> InterlockError:
    problems: list[dict[str, str]] = []
    errors = collect_errors(tool.validator, tool.input_schema(), arguments, _MOST_PROBLEMS)
    if errors is None:
        problems.append({"field": "arguments", "problem": UNEXPLAINED})
    unexpected: list[str] = []
    for error in errors or ():
        field = ".".join(str(step) for step in error.instance_path) or "arguments"
        problems.append({"field": _clip(field), "problem": _clip(error.message)})
        if not error.instance_path:
            unexpected += getattr(error.kind, "unexpected", ())
    sentence = "; ".join(f"{p['field']}: {p['problem']}" for p in problems)
    fields = _fields_of(tool)
    return InterlockError(
        INVALID_ARGUMENTS,
        f"The arguments do not fit {tool.canonical}. {sentence}."
        f"{_nearest(unexpected, fields)}{_fields_sentence(fields)}",
        {"tool": tool.canonical, "problems": problems, "fields": list(fields)},
    )


def _nearest(unexpected: Iterable[str], fields: Iterable[str]) -> str:
    """` Did you mean "timezone"?` for the first name that is close to a field of the tool."""
    names = list(fields)
    for name in unexpected:
        if close := get_close_matches(name, names, 1, 0.5):
            return f' Did you mean "{_clip(close[0])}"?'
    return ""


def _fields_of(tool: Tool) -> dict[str, bool]:
    """The names of a tool's arguments, and whether each is required. No reference is followed."""
    schema = tool.input_schema()
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict):
        return {}
    required = schema.get("required")
    wanted = {one for one in required if isinstance(one, str)} if isinstance(required, list) else ()
    return {name: name in wanted for name in list(properties)[:_MOST_FIELDS]}


def _fields_sentence(fields: dict[str, bool]) -> str:
    if not fields:
        return ""
    names = (f"{_clip(name)}{' (required)' if needed else ''}" for name, needed in fields.items())
    return f" Its fields: {', '.join(names)}."


def _clip(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else text[:_MOST_CHARACTERS] + "…"
