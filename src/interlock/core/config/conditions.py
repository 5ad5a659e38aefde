"""Policy conditions: CEL expressions over a call.

Only this module imports the CEL library, and only when a rule has a condition.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from interlock.core.config.problems import InvalidValueError

VARIABLES: Final = ("args", "tool", "caller", "roles", "scopes", "effect", "server")
"""The variables of an expression."""
_MAX_MESSAGE_LENGTH: Final = 200


class UndecidableError(Exception):
    """An expression has no value for a call, for example because an argument is missing.

    Raised for calls and rarely displayed, so the message is only formatted on demand.
    """

    def __init__(self, message: str, expression: str) -> None:
        super().__init__(message, expression)
        self._message = message
        self._expression = expression

    def __str__(self) -> str:
        return _describe(_first_line(self._message), self._expression)


class Condition:
    """A compiled expression."""

    __slots__ = ("_evaluate", "text")

    def __init__(self, text: str, evaluate: Any) -> None:
        self.text = text
        self._evaluate = evaluate

    def matches(self, variables: Mapping[str, Any]) -> bool:
        """Return whether it is true for a call. Raises UndecidableError if it has no value."""
        try:
            value = self._evaluate(data=variables).value()
        except (RuntimeError, TypeError, ValueError) as exc:
            raise UndecidableError(str(exc), self.text) from None
        if value is True or value is False:
            return bool(value)
        raise UndecidableError(str(value), self.text)


@lru_cache(maxsize=20_000)
def compile_condition(text: str) -> Condition:
    """Compile an expression. Raises InvalidValueError if it is invalid."""
    from cel_expr_python import cel  # type: ignore[import-untyped]

    try:
        expression = _environment().compile(text)
    except RuntimeError as exc:
        raise InvalidValueError(*_describe_compile_error(_clean_message(str(exc)), text)) from None
    return_type = expression.return_type()
    if return_type not in (cel.Type.BOOL, cel.Type.DYN):
        raise InvalidValueError(
            f"this condition returns {return_type.name().lower()}, not true or false",
            "compare it with a value",
        )
    return Condition(text, expression.eval)


@lru_cache(maxsize=1)
def _environment() -> Any:
    from cel_expr_python import cel

    string_list = cel.Type.List(cel.Type.STRING)
    return cel.NewEnv(
        variables={
            "args": cel.Type.Map(cel.Type.STRING, cel.Type.DYN),
            "tool": cel.Type.STRING,
            "caller": cel.Type.STRING,
            "roles": string_list,
            "scopes": string_list,
            "effect": cel.Type.STRING,
            "server": cel.Type.STRING,
        }
    )


_VARIABLES_HINT: Final = f"a condition can use {', '.join(VARIABLES)}"
_OTHER_OPERATORS: Final = {
    "=": "==", "=>": ">=", "=<": "<=", "<>": "!=", "===": "==", "and": "&&", "or": "||",
    "not": "!", "&": "&&", "|": "||",
}  # fmt: skip
"""Operators of other languages, and those of CEL."""
_POSITION: Final = re.compile(r"(\d+):(\d+): (?:Syntax error: )?(.*)", re.DOTALL)
_OPERATOR: Final = re.compile(r"[=<>!&|]+|\w+")


def _describe_compile_error(message: str, text: str) -> tuple[str, str]:
    """Return a message about an expression that cannot be compiled, and a hint."""
    position = _POSITION.fullmatch(message)
    if position is None:
        return f"this is not a CEL expression: {message}", _VARIABLES_HINT
    line, column, error = int(position[1]), int(position[2]), position[3]
    lines = text.splitlines() or [""]
    rest = lines[line - 1][column - 1 :] if line <= len(lines) else ""
    location = (
        f"at character {column}" if len(lines) == 1 else f"at line {line}, character {column}"
    )
    if undeclared := re.match(r"undeclared reference to '([^']*)'", error):
        kind = "function" if rest.startswith("(") else "name"
        return f"unknown {kind} {undeclared[1]} in this condition", _VARIABLES_HINT
    if overload := re.match(r"found no matching overload for '([^']*)' applied to '(.*)'", error):
        operator = overload[1].strip("_")
        return (
            f"{operator} {location} cannot be applied to {overload[2]}",
            "use operands of one type",
        )
    if closing := re.match(r"missing '(.)' at", error):
        return f"this condition has no closing {closing[1]}", f"add {closing[1]}"
    if "<EOF>' expecting" in error:
        return "this condition is incomplete", "add the operand after the last operator"
    if rest[:1] in ("'", '"'):
        return f"the text {location} has no closing {rest[0]}", f"add {rest[0]}"
    operator_match = _OPERATOR.match(rest)
    if operator_match is not None and operator_match[0] in _OTHER_OPERATORS:
        correct_operator = _OTHER_OPERATORS[operator_match[0]]
        return f"{operator_match[0]} {location} is no operator of CEL", f"write {correct_operator}"
    excerpt = rest[:20].strip()
    return f"invalid condition {location}: {excerpt!r}", "see the CEL language definition"


def _clean_message(text: str) -> str:
    """Return the library's message without its codes and its drawing of the position."""
    line = _first_line(text)
    for noise in ("INVALID_ARGUMENT:", "ERROR:", "<input>:"):
        line = line.partition(noise)[2].strip() if noise in line else line
    return line


_MISSING: Final = re.compile(r'NOT_FOUND: Key not found in map : "?(.*?)"?')
_TYPES: Final = re.compile(r"UNKNOWN: No matching overloads found : (.*)")
_CODE: Final = re.compile(r"[A-Z_]+: ")
_TYPE_NAMES: Final = {"int64": "int", "uint64": "uint", "null_type": "null", "map": "object"}


def _describe(text: str, expression: str) -> str:
    """Return the library's message about a call in plain words."""
    if match := _MISSING.fullmatch(text):
        argument_match = re.search(rf"\bargs(\.|\[['\"]){re.escape(match[1])}\b", expression)
        return f"{'args has' if argument_match else 'there is'} no member {match[1]}"
    if match := _TYPES.fullmatch(text):
        operation = re.sub(
            r"\w+", lambda type_name: _TYPE_NAMES.get(type_name[0], type_name[0]), match[1]
        )
        if binary := re.fullmatch(r"_([^\w(]+)_\((.*), (.*)\)", operation):
            return f"{binary[2]} {binary[1]} {binary[3]} is not defined"
        return f"{operation} is not defined"
    return _CODE.sub("", text, count=1) if _CODE.match(text) else text


def _first_line(text: str) -> str:
    line = text.partition("\n")[0].strip()
    return line if len(line) <= _MAX_MESSAGE_LENGTH else line[:_MAX_MESSAGE_LENGTH] + "…"
