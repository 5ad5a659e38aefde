"""Compiled rules of the policy: they match a caller and a request."""

from __future__ import annotations

import fnmatch
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec

from interlock.core.call import Caller
from interlock.core.config.conditions import Condition, UndecidableError, compile_condition
from interlock.core.config.trust import RuleConfig
from interlock.protocol.kinds import KindPattern, compile_pattern
from interlock.trust.policy.decision import ACTIONS, Decision, PolicyAction, make_decision

# -- Globs for sets of names: `*`, `?` and `[…]` as in a shell.
#
# Most globs are a name, or the beginning or the end of one, and need no regular expression.

GRAM_LENGTH: Final = 3
_WILDCARD: Final = re.compile(r"[*?\[]")


def is_literal(pattern: str) -> bool:
    return _WILDCARD.search(pattern) is None


def literal_prefix(pattern: str) -> str | None:
    """Return the prefix that a glob consists of: `github.` for `github.*`. None: it is not a
    prefix."""
    prefix = pattern.rstrip("*")
    return prefix if prefix != pattern and is_literal(prefix) else None


def pattern_grams(pattern: str) -> set[str]:
    """Return short texts that every name matching the glob contains."""
    chunks = re.split(r"[*?]+", pattern.partition("[")[0])
    return {gram for chunk in chunks for gram in split_grams(chunk)}


def split_grams(text: str) -> set[str]:
    return {text[start : start + GRAM_LENGTH] for start in range(len(text) - GRAM_LENGTH + 1)}


def compile_glob(pattern: str) -> Callable[[str], bool]:
    """Return a function that tests whether a name matches the glob."""
    if is_literal(pattern):
        return pattern.__eq__
    prefix = literal_prefix(pattern)
    if prefix is not None:
        return lambda name: name.startswith(prefix)
    if "?" in pattern or "[" in pattern:
        return _compile_expression(pattern)
    return _compile_stars(pattern)


def _compile_expression(pattern: str) -> Callable[[str], bool]:
    expression: re.Pattern[str] | None = None

    def matches(name: str) -> bool:
        # Compiled on first use: ten thousand of them would take a second.
        nonlocal expression
        if expression is None:
            expression = re.compile(fnmatch.translate(pattern))
        return expression.match(name) is not None

    return matches


def _compile_stars(pattern: str) -> Callable[[str], bool]:
    """Compile a glob with stars only: the literal parts must occur in this order."""
    first, *middle, last = pattern.split("*")
    parts = [part for part in middle if part]

    def matches(name: str) -> bool:
        if not (name.startswith(first) and name.endswith(last)):
            return False
        start, end = len(first), len(name) - len(last)
        for part in parts:
            start = name.find(part, start, end)
            if start < 0:
                return False
            start += len(part)
        return start <= end

    return matches


class Globs:
    """A list of globs. A name matches the list if it matches one of them."""

    __slots__ = ("_matchers", "patterns")

    def __init__(self, patterns: Sequence[str]) -> None:
        self.patterns = tuple(patterns)
        self._matchers = tuple(compile_glob(pattern) for pattern in self.patterns)

    def matches(self, name: str) -> bool:
        for matches in self._matchers:  # noqa: SIM110 - a generator costs more than the globs
            if matches(name):
                return True
        return False


NO_ANNOTATIONS: Mapping[str, Any] = {}
_ABSENT: Any = object()


class PolicyRequest(msgspec.Struct, frozen=True, gc=False):
    """The attributes of a request for rules."""

    kinds: tuple[tuple[str, ...], ...]
    """The kinds of the request, one entry for each name that its target may have. An entry has all
    spellings of its name: a rule that allows one spelling must allow all."""
    tool: str = ""
    """The canonical name of the tool. Empty: the request calls no tool."""
    effect: str = ""
    server: str = ""
    annotations: Mapping[str, Any] = NO_ANNOTATIONS
    """The members of the tool's annotations and capability."""


class CallCondition(Protocol):
    """A condition on a single call, besides caller and request. Its result is never cached."""

    @property
    def text(self) -> str:
        """The key and the text of the condition, for people."""
        ...

    def is_satisfied(self, attributes: Mapping[str, Any] | None) -> bool:
        """Return whether the condition is true. Raises UndecidableError.

        Args:
            attributes: the attributes of the call. None: its arguments are undecidable.
        """
        ...

    def explain_miss(self) -> str:
        """Return why the condition is not true, for people."""
        ...


class WhenCondition:
    """The condition `when`: an expression over the call."""

    __slots__ = ("_condition",)

    def __init__(self, expression: str) -> None:
        self._condition: Condition = compile_condition(expression)

    @property
    def text(self) -> str:
        return f"when: {self._condition.text}"

    def is_satisfied(self, attributes: Mapping[str, Any] | None) -> bool:
        if attributes is None:
            raise UndecidableError(
                "the arguments contain a value that a condition cannot represent", ""
            )
        return self._condition.matches(attributes)

    def explain_miss(self) -> str:
        return f"{self.text} is not true"


CONDITIONS: Final[Mapping[str, Callable[[Any], CallCondition]]] = {"when": WhenCondition}
"""Creates the conditions of a rule, by the key in the config."""


class Rule:
    """A rule of the config. A selector that it leaves out matches everything."""

    __slots__ = (
        "action",
        "annotations",
        "callers",
        "conditions",
        "decision",
        "effects",
        "kinds",
        "name",
        "number",
        "restricts",
        "roles",
        "scopes",
        "tools",
    )

    def __init__(self, config: RuleConfig, number: int) -> None:
        """Create the rule.

        Raises:
            InvalidValueError, ProtocolError: the config has an invalid value.
        """
        self.number = number
        self.name = config.name
        self.action: PolicyAction = ACTIONS[config.then]
        self.restricts = self.action is not PolicyAction.ALLOW
        names_tool = bool(config.tools) and all(_has_tool_name(glob) for glob in config.tools)
        self.decision: Decision = make_decision(
            self.action, config.name, config.reason, names_tool=names_tool
        )
        self.callers = Globs(config.callers) if config.callers else None
        self.roles = frozenset(config.roles) if config.roles else None
        self.scopes = frozenset(config.scopes) if config.scopes else None
        self.tools = Globs(config.tools) if config.tools else None
        self.effects = frozenset(config.effects) if config.effects else None
        self.annotations = tuple(config.annotations.items())
        self.kinds: tuple[KindPattern, ...] = tuple(compile_pattern(text) for text in config.kinds)
        selectors = config.selectors()
        self.conditions: tuple[CallCondition, ...] = tuple(
            create(selectors[key]) for key, create in CONDITIONS.items() if key in selectors
        )

    @property
    def selects_callers(self) -> bool:
        return bool(self.callers or self.roles or self.scopes)

    # -- Caller

    def fits_caller(self, caller: Caller) -> bool:
        if self.callers is not None and not self.matches_name(caller):
            return False
        if self.roles is not None and self.roles.isdisjoint(caller.roles):
            return False
        return self.scopes is None or not self.scopes.isdisjoint(caller.scopes or ())

    def matches_name(self, caller: Caller) -> bool:
        """Return whether the caller globs match.

        The parent node reports who called there. That report counts for a rule that restricts, not
        for a rule that allows.
        """
        assert self.callers is not None
        return self.callers.matches(caller.name) or (
            self.restricts
            and bool(caller.parent_caller)
            and self.callers.matches(caller.parent_caller)
        )

    # -- Request

    def fits(self, request: PolicyRequest) -> bool:
        if self.tools is not None and not (request.tool and self.tools.matches(request.tool)):
            return False
        if self.effects is not None and request.effect not in self.effects:
            return False
        if not (self.fits_kind(request) if self.kinds else request.tool):
            return False
        return not self.annotations or self.fits_annotations(request)

    def fits_kind(self, request: PolicyRequest) -> bool:
        if not self.kinds:
            # A rule without kinds is about tool calls.
            return bool(request.tool)
        if self.restricts:
            return any(self._grants(kind) for kinds in request.kinds for kind in kinds)
        return any(all(self._grants(kind) for kind in kinds) for kinds in request.kinds)

    def _grants(self, kind: str) -> bool:
        return any(pattern.grants(kind) for pattern in self.kinds)

    def fits_annotations(self, request: PolicyRequest) -> bool:
        if not self.annotations:
            return True
        return bool(request.tool) and all(
            is_same_value(request.annotations.get(member, _ABSENT), value)
            for member, value in self.annotations
        )

    # -- Conditions

    def is_satisfied(self, attributes: Mapping[str, Any] | None) -> bool:
        """Return whether the conditions are true of a call. An undecidable condition counts as true
        for a rule that restricts, and as false for a rule that allows."""
        for condition in self.conditions:
            try:
                if not condition.is_satisfied(attributes):
                    return False
            except UndecidableError:
                if not self.restricts:
                    return False
        return True


def is_same_value(first: Any, second: Any) -> bool:
    """Return whether two JSON values are the same. `true` is not 1."""
    return (isinstance(first, bool) is isinstance(second, bool)) and bool(first == second)


def _has_tool_name(glob: str) -> bool:
    """Return whether a glob has letters of a tool's name, and is not for all tools of a server."""
    return any(letter.isalnum() for letter in glob.rpartition(".")[2])


# -- An index that finds the rules that may match, among ten thousand.
#
# Every rule is indexed by one of its selectors: the one that the fewest other rules share. A lookup
# finds all rules that match, and some that do not.

Key = tuple[str, str]
"""The kind of match, and the text: the complete name, its prefix, or a part of it."""
_EXACT: Final = "="
_PREFIX: Final = "^"
_GRAM: Final = "~"


class NameTable:
    """Rules by globs of names."""

    __slots__ = ("_by_gram", "_by_name", "_by_prefix", "_prefix_lengths")

    def __init__(self) -> None:
        self._by_name: dict[str, list[Rule]] = {}
        self._by_prefix: dict[str, list[Rule]] = {}
        self._by_gram: dict[str, list[Rule]] = {}
        self._prefix_lengths: tuple[int, ...] = ()

    def add(self, key: Key, rule: Rule) -> None:
        kind, text = key
        table = {_EXACT: self._by_name, _PREFIX: self._by_prefix, _GRAM: self._by_gram}[kind]
        table.setdefault(text, []).append(rule)
        if kind == _PREFIX and len(text) not in self._prefix_lengths:
            self._prefix_lengths = tuple(sorted((*self._prefix_lengths, len(text))))

    def find(self, name: str, candidates: dict[int, Rule]) -> None:
        """Add every rule that may match the name, by its number."""
        for rule in self._by_name.get(name, ()):
            candidates[rule.number] = rule
        for length in self._prefix_lengths:
            for rule in self._by_prefix.get(name[:length], ()):
                candidates[rule.number] = rule
        by_gram = self._by_gram
        if by_gram:
            for gram in by_gram.keys() & split_grams(name):
                for rule in by_gram[gram]:
                    candidates[rule.number] = rule


def _glob_keys(pattern: str) -> tuple[Key, ...]:
    """Return keys for a glob, of which one is enough. Empty: every name must be tried."""
    if is_literal(pattern):
        return ((_EXACT, pattern),)
    prefix = literal_prefix(pattern)
    if prefix is not None:
        return ((_PREFIX, prefix),) if prefix else ()
    return tuple((_GRAM, gram) for gram in sorted(pattern_grams(pattern)))


def _kind_keys(pattern: KindPattern) -> tuple[Key, ...]:
    if not pattern.prefix:
        return ()
    return ((_EXACT if pattern.is_exact else _PREFIX, pattern.prefix),)


class RuleIndex:
    """An index of rules about tool calls, or of rules about all other requests."""

    __slots__ = ("_by_caller", "_by_kind", "_by_role", "_by_scope", "_by_tool", "_unindexed")

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._by_tool, self._by_kind, self._by_caller = NameTable(), NameTable(), NameTable()
        self._by_role: dict[str, list[Rule]] = {}
        self._by_scope: dict[str, list[Rule]] = {}
        self._unindexed: list[Rule] = []
        counts: dict[str, Counter[Key]] = {}
        choices = [(rule, _index_choices(rule)) for rule in rules]
        for _, selectors in choices:
            for selector, alternatives in selectors:
                counter = counts.setdefault(selector, Counter())
                for keys in alternatives:
                    counter.update(keys)
        for rule, selectors in choices:
            best: tuple[int, str, set[Key]] | None = None
            for selector, alternatives in selectors:
                counter = counts[selector]
                rarest = {min(keys, key=counter.__getitem__) for keys in alternatives}
                sharers = sum(counter[key] for key in rarest)
                if best is None or sharers < best[0]:
                    best = (sharers, selector, rarest)
            if best is None:
                self._unindexed.append(rule)
            else:
                for key in best[2]:
                    self._add(best[1], key, rule)

    def _add(self, selector: str, key: Key, rule: Rule) -> None:
        if selector == "role":
            self._by_role.setdefault(key[1], []).append(rule)
        elif selector == "scope":
            self._by_scope.setdefault(key[1], []).append(rule)
        else:
            table = {"tool": self._by_tool, "kind": self._by_kind, "caller": self._by_caller}
            table[selector].add(key, rule)

    def for_request(self, request: PolicyRequest) -> list[Rule]:
        """Return the rules that may match the request, by its tool and kinds."""
        candidates: dict[int, Rule] = {rule.number: rule for rule in self._unindexed}
        if request.tool:
            self._by_tool.find(request.tool, candidates)
        for kinds in request.kinds:
            for kind in kinds:
                self._by_kind.find(kind, candidates)
        return list(candidates.values())

    def for_caller(self, caller: Caller) -> list[Rule]:
        """Return the rules that may match the caller. No rule is in both results."""
        candidates: dict[int, Rule] = {}
        self._by_caller.find(caller.name, candidates)
        if caller.parent_caller:
            self._by_caller.find(caller.parent_caller, candidates)
        for table, names in ((self._by_role, caller.roles), (self._by_scope, caller.scopes or ())):
            for name in names:
                for rule in table.get(name, ()):
                    candidates[rule.number] = rule
        return list(candidates.values())


def _index_choices(rule: Rule) -> list[tuple[str, list[tuple[Key, ...]]]]:
    """Return the selectors by which a rule can be indexed, each with the keys of its
    alternatives."""
    choices: list[tuple[str, list[tuple[Key, ...]]]] = []
    if rule.tools is not None:
        choices.append(("tool", [_glob_keys(pattern) for pattern in rule.tools.patterns]))
    if rule.callers is not None:
        choices.append(("caller", [_glob_keys(pattern) for pattern in rule.callers.patterns]))
    if rule.roles is not None:
        choices.append(("role", [((_EXACT, role),) for role in rule.roles]))
    if rule.scopes is not None:
        choices.append(("scope", [((_EXACT, scope),) for scope in rule.scopes]))
    if rule.kinds:
        choices.append(("kind", [_kind_keys(pattern) for pattern in rule.kinds]))
    return [(selector, keys) for selector, keys in choices if all(keys)]
