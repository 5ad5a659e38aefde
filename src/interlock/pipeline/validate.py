"""Are the arguments what the tool asks for? Said field by field, before anything leaves."""

from __future__ import annotations

import logging
from typing import Any, Final

import jsonschema_rs
import msgspec

from interlock.call import EMPTY_OBJECT, Call
from interlock.catalog.offering import Tool
from interlock.errors import (
    HEADER_MISMATCH,
    INVALID_ARGUMENTS,
    INVALID_PARAMS,
    InterlockError,
    ProtocolError,
)
from interlock.protocol.headers import check_param_headers
from interlock.protocol.schema_effort import UNEXPLAINED, errors_of

_MOST_PROBLEMS: Final = 5
_MOST_CHARACTERS: Final = 200
_log = logging.getLogger("interlock.validate")
_decode = msgspec.json.Decoder().decode


class _AcceptsEverything:
    """Stands in for a schema that cannot be used: the upstream checks its own arguments."""

    def is_valid(self, instance: Any) -> bool:
        return True


_ACCEPTS_EVERYTHING: Final = _AcceptsEverything()


def validate(call: Call, tool: Tool, against_schema: bool = True) -> None:
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
    call.decoded = arguments
    if tool.header_params and call.header_params is not None:
        mismatch = check_param_headers(tool.header_params, arguments, call.header_params)
        if mismatch is not None:
            raise InterlockError(HEADER_MISMATCH, mismatch)
    if not against_schema:
        return
    validator = tool.validator
    if validator is None:
        validator = tool.validator = _compile(tool)
    if not validator.is_valid(arguments):
        raise _explain(validator, arguments, tool)


def validator_of(tool: Tool) -> tuple[Any, frozenset[str]]:
    """What checks the arguments of a tool, and names without which it finds none good."""
    validator = tool.validator
    if validator is None:
        validator = tool.validator = _compile(tool)
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


def _compile(tool: Tool) -> Any:
    try:
        # What was sent stays out of the sentences: they are kept in the journal.
        return jsonschema_rs.validator_for(
            tool.input_schema(), retriever=_no_retrieval, mask="the value"
        )
    except (jsonschema_rs.ValidationError, ValueError, ProtocolError) as exc:
        _log.warning(
            "%s: its schema cannot be used (%s); arguments go to the upstream unchecked",
            tool.canonical,
            str(exc).partition("\n")[0][:_MOST_CHARACTERS],
        )
        return _ACCEPTS_EVERYTHING


def _no_retrieval(uri: str) -> Any:
    # A schema from a stranger must not make the node fetch anything.
    raise ValueError(f"schemas may not refer to {uri}")


def _explain(validator: Any, arguments: dict[str, Any], tool: Tool) -> InterlockError:
    problems: list[dict[str, str]] = []
    errors = errors_of(validator, tool.input_schema(), arguments, _MOST_PROBLEMS)
    if errors is None:
        problems.append({"field": "arguments", "problem": UNEXPLAINED})
    for error in errors or ():
        field = ".".join(str(step) for step in error.instance_path) or "arguments"
        problems.append({"field": _clip(field), "problem": _clip(error.message)})
    sentence = "; ".join(f"{p['field']}: {p['problem']}" for p in problems)
    return InterlockError(
        INVALID_ARGUMENTS,
        f"The arguments do not fit {tool.canonical}. {sentence}.",
        {"tool": tool.canonical, "problems": problems},
    )


def _clip(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else text[:_MOST_CHARACTERS] + "…"
