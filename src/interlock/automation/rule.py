"""Compiled learned rules: matching against calls and against stored decisions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from interlock.automation.decision import HumanDecision, is_hidden, is_long_text, mask_secrets
from interlock.core.catalog.effects import EffectLevel
from interlock.core.config import LearnedRule
from interlock.core.config.conditions import Condition, UndecidableError, compile_condition
from interlock.core.redaction import is_secret_key
from interlock.trust.policy.attributes import MAX_DEPTH

_IRREVERSIBLE: Final = EffectLevel.IRREVERSIBLE.label
_STRING_LITERAL: Final = r"""(?:[rR](?:"[^"]*"|'[^']*')|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')"""
_MACRO_CALL: Final = r"\bargs\s*\.\s*(?:all|exists|exists_one|filter|map|size)\s*\("
_ARGUMENT_REFERENCE: Final = re.compile(
    rf"(?P<macro>{_MACRO_CALL})|\bargs\s*(?:\.\s*(?P<name>[A-Za-z_]\w*)|\[\s*(?P<text>{_STRING_LITERAL})\s*\]"
    rf"|(?P<other>\[))|{_STRING_LITERAL}|//[^\n]*",
    re.DOTALL,
)
"""References to members of the arguments in a condition. Also matches string literals and comments,
so that text inside them is not taken for a reference.
"""
_ESCAPE_SEQUENCE: Final = re.compile(
    r"""\\(?:(["'\\])|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))""", re.DOTALL
)
_ESCAPED_NUL: Final = b"\\u0000"


def is_reversible(effect: str) -> bool:
    """Return whether an effect can be undone. An unknown effect counts as irreversible."""
    return bool(effect) and effect != _IRREVERSIBLE


class DecisionCase(msgspec.Struct, frozen=True, eq=False):
    """A decision with decoded arguments."""

    decision: HumanDecision
    arguments: dict[str, Any] | None
    """None: the arguments cannot be judged."""
    hidden: frozenset[str] = frozenset()
    """The names of arguments of which a part is not stored."""


def read_case(decision: HumanDecision) -> DecisionCase:
    try:
        arguments = msgspec.json.decode(decision.arguments)
    except (msgspec.DecodeError, RecursionError):
        return DecisionCase(decision, None)
    if (
        type(arguments) is not dict
        or _ESCAPED_NUL in decision.arguments
        or _is_deeper_than(arguments, MAX_DEPTH)
    ):
        # The policy cannot judge such a call either.
        return DecisionCase(decision, None)
    hidden = frozenset(name for name, value in arguments.items() if is_hidden(value))
    return DecisionCase(decision, arguments, hidden)


def _is_deeper_than(value: Any, max_depth: int) -> bool:
    if isinstance(value, dict | list):
        children = value.values() if isinstance(value, dict) else value
        return max_depth <= 0 or any(_is_deeper_than(child, max_depth - 1) for child in children)
    return False


class CompiledRule:
    """A learned rule with a compiled condition."""

    __slots__ = (
        "_callers",
        "_condition",
        "_has_dynamic_references",
        "_named_arguments",
        "_open_arguments",
        "_tools",
        "rule",
    )

    def __init__(self, rule: LearnedRule) -> None:
        """Compile the rule. Raises InvalidValueError for a condition that the config would reject,
        too."""
        self.rule = rule
        self._tools = frozenset(rule.tools)
        self._callers = frozenset(rule.callers)
        text = rule.when
        self._condition: Condition | None = None if text is None else compile_condition(text)
        self._named_arguments, self._has_dynamic_references = _referenced_arguments(text or "")
        # An argument whose name marks it as a secret was never shown, so it must not be left open.
        self._open_arguments = frozenset(name for name in rule.open if not is_secret_key(name))

    def matches_call(self, tool: str, caller: str, effect: str) -> bool:
        """Return whether a call matches everything except the condition."""
        return (
            tool in self._tools
            and (not self._callers or caller in self._callers)
            and (self.rule.irreversible or is_reversible(effect))
        )

    def is_true_for(self, context: Mapping[str, Any] | None) -> bool | None:
        """Return whether the condition is true for a call. None: undecidable, so an operator
        decides."""
        if context is None:
            return None
        result = self._evaluate(context)
        if (
            result
            and self.rule.then == "allow"
            and mask_secrets(context["args"]) != context["args"]
        ):
            # A value that is masked in records was never shown to an operator.
            return False
        return result

    def _evaluate(self, context: Mapping[str, Any]) -> bool | None:
        if self.rule.then == "allow" and not self._covers_all_arguments(context["args"]):
            return False
        if self._condition is None:
            return True
        try:
            return self._condition.matches(context)
        except UndecidableError:
            return None

    def _covers_all_arguments(self, arguments: Mapping[str, Any]) -> bool:
        """Return whether each argument is in the condition, or is an open text."""
        return all(
            isinstance(value, str)
            if name in self._open_arguments
            else name in self._named_arguments
            for name, value in arguments.items()
        )

    def matches_decision(self, case: DecisionCase) -> bool | None:
        """Return whether the rule matches a stored decision. None: too little of it is stored."""
        decision = case.decision
        if not self.matches_call(decision.tool, decision.caller, decision.effect):
            return False
        if case.arguments is None:
            return None
        if case.hidden and (
            self._has_dynamic_references or not case.hidden.isdisjoint(self._named_arguments)
        ):
            return None
        # Roles, scopes and server are not stored: conditions about them cannot be judged.
        result = self._evaluate(
            {
                "args": {**case.arguments, **dict.fromkeys(case.hidden & self._open_arguments, "")},
                "tool": decision.tool,
                "caller": decision.caller,
                "effect": decision.effect,
            }
        )
        hidden = [case.arguments[name] for name in case.hidden & self._open_arguments]
        if result and self.rule.then == "allow" and not all(map(is_long_text, hidden)):
            # Everything else matches: the hidden part decides.
            return None
        return result


def _referenced_arguments(condition: str) -> tuple[frozenset[str], bool]:
    """Return the arguments that a condition names, and whether it may refer to others."""
    names: set[str] = set()
    has_dynamic = False
    for match in _ARGUMENT_REFERENCE.finditer(condition):
        name = match["name"]
        if match["text"] is not None:
            name = _unquote(match["text"])
            has_dynamic = has_dynamic or name is None
        if name is not None:
            names.add(name)
        has_dynamic = has_dynamic or match["other"] is not None
    return frozenset(names), has_dynamic


def _unquote(literal: str) -> str | None:
    """Return the value of a string literal. None: it uses an escape that generated conditions do
    not use."""
    if literal[0] in "rR" or any(escape[4] for escape in _ESCAPE_SEQUENCE.finditer(literal)):
        return None

    def character(match: re.Match[str]) -> str:
        return match[1] or chr(int(match[2] or match[3], 16))

    return _ESCAPE_SEQUENCE.sub(character, literal[1:-1])
