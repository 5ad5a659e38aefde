"""Conditions of the policy: CEL expressions over a call.

The only module that imports the CEL library, once a rule has a condition.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from interlock.core.config.problems import BadValue

VARIABLES: Final = ("args", "tool", "caller", "roles", "scopes", "effect", "server")
"""What an expression can speak of."""
_MOST_CHARACTERS: Final = 200


class UndecidableError(Exception):
    """The expression has no answer for this call, such as when an argument is not there.

    Made at calls, and read only when somebody asks why: the words are found then.
    """

    def __init__(self, complaint: str, expression: str) -> None:
        super().__init__(complaint, expression)
        self._complaint = complaint
        self._expression = expression

    def __str__(self) -> str:
        return _in_words(_first_line(self._complaint), self._expression)


class Condition:
    """One expression, compiled."""

    __slots__ = ("_evaluate", "text")

    def __init__(self, text: str, evaluate: Any) -> None:
        self.text = text
        self._evaluate = evaluate

    def holds(self, about: Mapping[str, Any]) -> bool:
        """Whether it is true of this call. Raises UndecidableError when it is neither."""
        try:
            value = self._evaluate(data=about).value()
        except (RuntimeError, TypeError, ValueError) as exc:
            raise UndecidableError(str(exc), self.text) from None
        if value is True or value is False:
            return bool(value)
        raise UndecidableError(str(value), self.text)


@lru_cache(maxsize=20_000)
def compile_condition(text: str) -> Condition:
    """Compile an expression. Raises BadValue for one that can never be used."""
    from cel_expr_python import cel  # type: ignore[import-untyped]

    try:
        expression = _environment().compile(text)
    except RuntimeError as exc:
        raise BadValue(*_explain(_complaint(str(exc)), text)) from None
    answers = expression.return_type()
    if answers not in (cel.Type.BOOL, cel.Type.DYN):
        raise BadValue(
            f"this expression gives {answers.name().lower()}, not true or false",
            "compare it with something",
        )
    return Condition(text, expression.eval)


@lru_cache(maxsize=1)
def _environment() -> Any:
    from cel_expr_python import cel

    words = cel.Type.List(cel.Type.STRING)
    return cel.NewEnv(
        variables={
            "args": cel.Type.Map(cel.Type.STRING, cel.Type.DYN),
            "tool": cel.Type.STRING,
            "caller": cel.Type.STRING,
            "roles": words,
            "scopes": words,
            "effect": cel.Type.STRING,
            "server": cel.Type.STRING,
        }
    )


_VARIABLES_HINT: Final = f"a condition can use {', '.join(VARIABLES)}"
_OTHER_OPERATORS: Final = {
    "=": "==", "=>": ">=", "=<": "<=", "<>": "!=", "===": "==", "and": "&&", "or": "||",
    "not": "!", "&": "&&", "|": "||",
}  # fmt: skip
"""What people write who know other languages."""
_PLACED: Final = re.compile(r"(\d+):(\d+): (?:Syntax error: )?(.*)", re.DOTALL)
_OPERATOR: Final = re.compile(r"[=<>!&|]+|\w+")


def _explain(complaint: str, text: str) -> tuple[str, str]:
    """What is wrong with an expression that cannot be compiled, in plain words, and a hint."""
    placed = _PLACED.fullmatch(complaint)
    if placed is None:
        return f"this is not a CEL expression: {complaint}", _VARIABLES_HINT
    line, column, what = int(placed[1]), int(placed[2]), placed[3]
    lines = text.splitlines() or [""]
    rest = lines[line - 1][column - 1 :] if line <= len(lines) else ""
    where = f"at character {column}" if len(lines) == 1 else f"at line {line}, character {column}"
    if unknown := re.match(r"undeclared reference to '([^']*)'", what):
        kind = "function" if rest.startswith("(") else "name"
        return f"unknown {kind} {unknown[1]} in this condition", _VARIABLES_HINT
    if overload := re.match(r"found no matching overload for '([^']*)' applied to '(.*)'", what):
        operator = overload[1].strip("_")
        return (
            f"{operator} {where} cannot be applied to {overload[2]}",
            "compare values of one type",
        )
    if closing := re.match(r"missing '(.)' at", what):
        return f"this condition lacks a closing {closing[1]}", f"add {closing[1]}"
    if "<EOF>' expecting" in what:
        return "this condition ends too early", "write what follows the last operator"
    if rest[:1] in ("'", '"'):
        return f"the text that begins {where} has no closing {rest[0]}", f"add {rest[0]}"
    found = _OPERATOR.match(rest)
    if found is not None and found[0] in _OTHER_OPERATORS:
        meant = _OTHER_OPERATORS[found[0]]
        return f"{found[0]} {where} is no operator of CEL", f"write {meant}"
    shown = rest[:20].strip()
    return f"this condition cannot be read {where}: {shown!r}", "see the CEL language definition"


def _complaint(text: str) -> str:
    """The library's sentence, without its codes and its drawing of the place."""
    line = _first_line(text)
    for noise in ("INVALID_ARGUMENT:", "ERROR:", "<input>:"):
        line = line.partition(noise)[2].strip() if noise in line else line
    return line


_MISSING: Final = re.compile(r'NOT_FOUND: Key not found in map : "?(.*?)"?')
_TYPES: Final = re.compile(r"UNKNOWN: No matching overloads found : (.*)")
_CODE: Final = re.compile(r"[A-Z_]+: ")
_NAMED: Final = {"int64": "int", "uint64": "uint", "null_type": "null", "map": "object"}


def _in_words(text: str, expression: str) -> str:
    """The library's sentence about one call, for people: what is missing, or does not fit."""
    if match := _MISSING.fullmatch(text):
        of_args = re.search(rf"\bargs(\.|\[['\"]){re.escape(match[1])}\b", expression)
        return f"{'args has' if of_args else 'there is'} no member {match[1]}"
    if match := _TYPES.fullmatch(text):
        operation = re.sub(r"\w+", lambda word: _NAMED.get(word[0], word[0]), match[1])
        if between := re.fullmatch(r"_([^\w(]+)_\((.*), (.*)\)", operation):
            return f"{between[2]} {between[1]} {between[3]} means nothing"
        return f"{operation} means nothing"
    return _CODE.sub("", text, count=1) if _CODE.match(text) else text


def _first_line(text: str) -> str:
    line = text.partition("\n")[0].strip()
    return line if len(line) <= _MOST_CHARACTERS else line[:_MOST_CHARACTERS] + "…"
