"""A learned or suggested rule, compiled, and its match with a call or a stored decision."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from interlock.automation.decision import HumanDecision, is_hidden, is_long_text, without_secrets
from interlock.core.catalog.effects import EffectLevel
from interlock.core.config import LearnedRule
from interlock.core.config.conditions import Condition, UndecidableError, compile_condition
from interlock.core.redaction import is_secret_key
from interlock.trust.policy.attributes import DEEPEST

_IRREVERSIBLE: Final = EffectLevel.IRREVERSIBLE.label
_TEXT: Final = r"""(?:[rR](?:"[^"]*"|'[^']*')|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')"""
_MACRO: Final = r"\bargs\s*\.\s*(?:all|exists|exists_one|filter|map|size)\s*\("
_SPOKEN: Final = re.compile(
    rf"(?P<macro>{_MACRO})|\bargs\s*(?:\.\s*(?P<name>[A-Za-z_]\w*)|\[\s*(?P<text>{_TEXT})\s*\]"
    rf"|(?P<other>\[))|{_TEXT}|//[^\n]*",
    re.DOTALL,
)
"""Where a condition speaks of a member of the arguments; and texts and
remarks, in which it does not."""
_ESCAPED: Final = re.compile(
    r"""\\(?:(["'\\])|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))""", re.DOTALL
)
_NUL: Final = b"\\u0000"


def undoable(effect: str) -> bool:
    """Whether what has such an effect can be undone. Nobody knows: then it cannot."""
    return bool(effect) and effect != _IRREVERSIBLE


class DecisionCase(msgspec.Struct, frozen=True, eq=False):
    """A decision with its arguments decoded."""

    decided: HumanDecision
    arguments: dict[str, Any] | None
    """None: they are beyond judgement."""
    hidden: frozenset[str] = frozenset()
    """Those of them of which something is not kept."""


def read_case(decided: HumanDecision) -> DecisionCase:
    try:
        arguments = msgspec.json.decode(decided.arguments)
    except (msgspec.DecodeError, RecursionError):
        return DecisionCase(decided, None)
    if type(arguments) is not dict or _NUL in decided.arguments or _deeper(arguments, DEEPEST):
        # The policy judges no such call either.
        return DecisionCase(decided, None)
    hidden = frozenset(name for name, one in arguments.items() if is_hidden(one))
    return DecisionCase(decided, arguments, hidden)


def _deeper(value: Any, most: int) -> bool:
    if isinstance(value, dict | list):
        inside = value.values() if isinstance(value, dict) else value
        return most <= 0 or any(_deeper(one, most - 1) for one in inside)
    return False


class CompiledRule:
    """Asked whether it fits."""

    __slots__ = ("_callers", "_condition", "_named", "_open", "_tools", "_unnamed", "rule")

    def __init__(self, rule: LearnedRule) -> None:
        """Raises BadValue for a condition that the config itself would have refused."""
        self.rule = rule
        self._tools = frozenset(rule.tools)
        self._callers = frozenset(rule.callers)
        text = rule.when
        self._condition: Condition | None = None if text is None else compile_condition(text)
        self._named, self._unnamed = _spoken_of(text or "")
        # What is a secret by its name was never looked at, and is left to nobody.
        self._open = frozenset(one for one in rule.open if not is_secret_key(one))

    def fits(self, tool: str, caller: str, effect: str) -> bool:
        """All but its condition."""
        return (
            tool in self._tools
            and (not self._callers or caller in self._callers)
            and (self.rule.irreversible or undoable(effect))
        )

    def holds(self, about: Mapping[str, Any] | None) -> bool | None:
        """Whether its condition is true of a call. None: nobody can say, and a human is asked."""
        if about is None:
            return None
        found = self._judged(about)
        if found and self.rule.then == "allow" and without_secrets(about["args"]) != about["args"]:
            # What would be masked in the record was never looked at as it is.
            return False
        return found

    def _judged(self, about: Mapping[str, Any]) -> bool | None:
        if self.rule.then == "allow" and not self._speaks_of_all(about["args"]):
            return False
        if self._condition is None:
            return True
        try:
            return self._condition.matches(about)
        except UndecidableError:
            return None

    def _speaks_of_all(self, arguments: Mapping[str, Any]) -> bool:
        """Whether every argument is in its condition, or a text that may be any."""
        return all(
            isinstance(value, str) if name in self._open else name in self._named
            for name, value in arguments.items()
        )

    def covers(self, case: DecisionCase) -> bool | None:
        """The same of a decision of the past. None: too little of it is kept."""
        one = case.decided
        if not self.fits(one.tool, one.caller, one.effect):
            return False
        if case.arguments is None:
            return None
        if case.hidden and (self._unnamed or not case.hidden.isdisjoint(self._named)):
            return None
        # Roles, scopes and server are not kept: what asks for them cannot be judged.
        found = self._judged(
            {
                "args": {**case.arguments, **dict.fromkeys(case.hidden & self._open, "")},
                "tool": one.tool,
                "caller": one.caller,
                "effect": one.effect,
            }
        )
        hidden = [case.arguments[name] for name in case.hidden & self._open]
        if found and self.rule.then == "allow" and not all(map(is_long_text, hidden)):
            # All the rest fits: what is hidden decides.
            return None
        return found


def _spoken_of(condition: str) -> tuple[frozenset[str], bool]:
    """The arguments that a condition names, and whether it may speak of others, too."""
    named: set[str] = set()
    unnamed = False
    for one in _SPOKEN.finditer(condition):
        name = one["name"]
        if one["text"] is not None:
            name = _meant(one["text"])
            unnamed = unnamed or name is None
        if name is not None:
            named.add(name)
        unnamed = unnamed or one["other"] is not None
    return frozenset(named), unnamed


def _meant(quoted: str) -> str | None:
    """The text that stands in quotes. None: it is written in a way that we do not write."""
    if quoted[0] in "rR" or any(one[4] for one in _ESCAPED.finditer(quoted)):
        return None

    def character(match: re.Match[str]) -> str:
        return match[1] or chr(int(match[2] or match[3], 16))

    return _ESCAPED.sub(character, quoted[1:-1])
