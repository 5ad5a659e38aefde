"""One accepted or suggested rule, compiled, and what it is held against: a call, or a decision of
the past as far as it is remembered."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from interlock.catalog.effects import EffectLevel
from interlock.config.automation import LearnedRule
from interlock.config.conditions import CannotJudge, Condition, compile_condition
from interlock.pipeline.automation.decision import Decided, is_hidden
from interlock.pipeline.policy.reading import DEEPEST

_IRREVERSIBLE: Final = EffectLevel.IRREVERSIBLE.word
_MEMBER: Final = re.compile(
    r"""args\s*(?:\.\s*([A-Za-z_]\w*)|\[\s*(?:"([^"\\]*)"|'([^'\\]*)')\s*\])"""
)
"""A member of the arguments that is named as it is."""
_NUL: Final = b"\\u0000"
_ANY_MEMBER: Final = re.compile(r"args\s*(?:\.|\[)")
_MACRO: Final = re.compile(r"args\s*\.\s*(?:all|exists|exists_one|filter|map|size)\s*\(")


def undoable(effect: str) -> bool:
    """Whether what has such an effect can be undone. Nobody knows: then it cannot."""
    return bool(effect) and effect != _IRREVERSIBLE


class Case(msgspec.Struct, frozen=True, eq=False):
    """A decision, read."""

    decided: Decided
    arguments: dict[str, Any] | None
    """None: they are beyond judgement."""
    hidden: frozenset[str] = frozenset()
    """Those of them of which something is not kept."""


def read_case(decided: Decided) -> Case:
    try:
        arguments = msgspec.json.decode(decided.arguments)
    except (msgspec.DecodeError, RecursionError):
        return Case(decided, None)
    if type(arguments) is not dict or _NUL in decided.arguments or _deeper(arguments, DEEPEST):
        # The policy judges no such call either.
        return Case(decided, None)
    hidden = frozenset(name for name, one in arguments.items() if is_hidden(one))
    return Case(decided, arguments, hidden)


def _deeper(value: Any, most: int) -> bool:
    if isinstance(value, dict | list):
        inside = value.values() if isinstance(value, dict) else value
        return most <= 0 or any(_deeper(one, most - 1) for one in inside)
    return False


class CompiledRule:
    """Asked whether it fits."""

    __slots__ = ("_callers", "_condition", "_named", "_tools", "_unnamed", "rule")

    def __init__(self, rule: LearnedRule) -> None:
        """Raises BadValue for a condition that the config itself would have refused."""
        self.rule = rule
        self._tools = frozenset(rule.tools)
        self._callers = frozenset(rule.callers)
        text = rule.when
        self._condition: Condition | None = None if text is None else compile_condition(text)
        found = [] if text is None else list(_MEMBER.finditer(_MACRO.sub("", text)))
        self._named = frozenset(next(name for name in one.groups() if name) for one in found)
        self._unnamed = text is not None and len(_ANY_MEMBER.findall(_MACRO.sub("", text))) > len(
            found
        )

    def fits(self, tool: str, caller: str, effect: str) -> bool:
        """All but its condition."""
        return (
            tool in self._tools
            and (not self._callers or caller in self._callers)
            and (self.rule.irreversible or undoable(effect))
        )

    def holds(self, about: Mapping[str, Any] | None) -> bool | None:
        """Whether its condition is true of a call. None: nobody can say, and a human is asked."""
        if self._condition is None:
            return True
        if about is None:
            return None
        try:
            return self._condition.holds(about)
        except CannotJudge:
            return None

    def covers(self, case: Case) -> bool | None:
        """The same of a decision of the past. None: too little of it is kept."""
        one = case.decided
        if not self.fits(one.tool, one.caller, one.effect):
            return False
        if self._condition is None:
            return True
        if case.hidden and (self._unnamed or not case.hidden.isdisjoint(self._named)):
            return None
        if case.arguments is None:
            return None
        # Roles, scopes and server are not kept: what asks for them cannot be judged.
        return self.holds(
            {
                "args": case.arguments,
                "tool": one.tool,
                "caller": one.caller,
                "effect": one.effect,
            }
        )
