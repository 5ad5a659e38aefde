"""One rule, compiled, and the two things it is held against: who asks, and what is asked."""

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
from interlock.trust.policy.decision import ACTIONS, Decision, PolicyAction, decision

# -- Globs, compiled: the words of the config for sets of names. `*`, `?` and `[…]` as in a shell.
#
# Most globs are a name, or the beginning or the end of one, and need no regular expression.

GRAM: Final = 3
_WILD: Final = re.compile(r"[*?\[]")


def is_literal(pattern: str) -> bool:
    return _WILD.search(pattern) is None


def prefix_of(pattern: str) -> str | None:
    """Of `github.*`: `github.`. None: it is not a beginning and nothing else."""
    fixed = pattern.rstrip("*")
    return fixed if fixed != pattern and is_literal(fixed) else None


def grams_of(pattern: str) -> set[str]:
    """Short pieces of text that every name has which fits the glob."""
    chunks = re.split(r"[*?]+", pattern.partition("[")[0])
    return {piece for chunk in chunks for piece in pieces(chunk)}


def pieces(text: str) -> set[str]:
    return {text[at : at + GRAM] for at in range(len(text) - GRAM + 1)}


def compile_glob(pattern: str) -> Callable[[str], bool]:
    """What tells whether a name fits the glob."""
    if is_literal(pattern):
        return pattern.__eq__
    prefix = prefix_of(pattern)
    if prefix is not None:
        return lambda name: name.startswith(prefix)
    if "?" in pattern or "[" in pattern:
        return _by_expression(pattern)
    return _by_pieces(pattern)


def _by_expression(pattern: str) -> Callable[[str], bool]:
    expression: re.Pattern[str] | None = None

    def fits(name: str) -> bool:
        # Ten thousand of them take a second to compile: each is, when it is first needed.
        nonlocal expression
        if expression is None:
            expression = re.compile(fnmatch.translate(pattern))
        return expression.match(name) is not None

    return fits


def _by_pieces(pattern: str) -> Callable[[str], bool]:
    """Only stars: the text between them must come in this order."""
    first, *middle, last = pattern.split("*")
    between = [piece for piece in middle if piece]

    def fits(name: str) -> bool:
        if not (name.startswith(first) and name.endswith(last)):
            return False
        at, end = len(first), len(name) - len(last)
        for piece in between:
            at = name.find(piece, at, end)
            if at < 0:
                return False
            at += len(piece)
        return at <= end

    return fits


class Globs:
    """Several globs, of which one must fit."""

    __slots__ = ("_fits", "patterns")

    def __init__(self, patterns: Sequence[str]) -> None:
        self.patterns = tuple(patterns)
        self._fits = tuple(compile_glob(pattern) for pattern in self.patterns)

    def fit(self, name: str) -> bool:
        for fits in self._fits:  # noqa: SIM110 - a generator costs more than the globs
            if fits(name):
                return True
        return False


NO_ANNOTATIONS: Mapping[str, Any] = {}
_ABSENT: Any = object()


class PolicyRequest(msgspec.Struct, frozen=True, gc=False):
    """A request, as rules see it."""

    kinds: tuple[tuple[str, ...], ...]
    """The kind of the request, once for each name under which it may be known. Each with the other
    spellings of that name: who allows one must mean all of them."""
    tool: str = ""
    """The canonical name. Empty: it is no call of a tool."""
    effect: str = ""
    server: str = ""
    annotations: Mapping[str, Any] = NO_ANNOTATIONS
    """Members of the tool's annotations and of its capability."""


class CallCondition(Protocol):
    """What a rule says of the single call, beyond who asks for what. Never remembered."""

    @property
    def text(self) -> str:
        """Its key and what it says, for people."""
        ...

    def holds(self, about: Mapping[str, Any] | None) -> bool:
        """Whether it is true of a call (None: its arguments are beyond judgement). Raises
        UndecidableError."""
        ...

    def why_not(self) -> str:
        """For people, after it was not true."""
        ...


class WhenCondition:
    """`when`: an expression over the call."""

    __slots__ = ("_condition",)

    def __init__(self, expression: str) -> None:
        self._condition: Condition = compile_condition(expression)

    @property
    def text(self) -> str:
        return f"when: {self._condition.text}"

    def holds(self, about: Mapping[str, Any] | None) -> bool:
        if about is None:
            raise UndecidableError("the arguments hold what a condition cannot see whole", "")
        return self._condition.matches(about)

    def why_not(self) -> str:
        return f"{self.text} is not true"


CONDITIONS: Final[Mapping[str, Callable[[Any], CallCondition]]] = {"when": WhenCondition}
"""What makes the conditions of a rule, by the key of the config."""


class Rule:
    """A rule of the config. What it leaves out fits everybody and everything."""

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
        """Raises BadValue or ProtocolError for what `config` itself would have refused."""
        self.number = number
        self.name = config.name
        self.action: PolicyAction = ACTIONS[config.then]
        self.restricts = self.action is not PolicyAction.ALLOW
        named = bool(config.tools) and all(_names_something(glob) for glob in config.tools)
        self.decision: Decision = decision(
            self.action, config.name, config.reason, names_tool=named
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
            make(selectors[key]) for key, make in CONDITIONS.items() if key in selectors
        )

    @property
    def about_who(self) -> bool:
        return bool(self.callers or self.roles or self.scopes)

    # -- who

    def fits_caller(self, caller: Caller) -> bool:
        if self.callers is not None and not self.names(caller):
            return False
        if self.roles is not None and self.roles.isdisjoint(caller.roles):
            return False
        return self.scopes is None or not self.scopes.isdisjoint(caller.scopes or ())

    def names(self, caller: Caller) -> bool:
        """Whether its globs name the caller.

        Of a call from above, who called there is our parent's word. It is taken where it holds
        somebody back, not where it lets somebody through.
        """
        assert self.callers is not None
        return self.callers.fit(caller.name) or (
            self.restricts and bool(caller.parent_caller) and self.callers.fit(caller.parent_caller)
        )

    # -- what

    def fits(self, asked: PolicyRequest) -> bool:
        if self.tools is not None and not (asked.tool and self.tools.fit(asked.tool)):
            return False
        if self.effects is not None and asked.effect not in self.effects:
            return False
        if not (self.fits_kind(asked) if self.kinds else asked.tool):
            return False
        return not self.annotations or self.fits_annotations(asked)

    def fits_kind(self, asked: PolicyRequest) -> bool:
        if not self.kinds:
            # A rule that does not say what it is about is about calls of tools.
            return bool(asked.tool)
        if self.restricts:
            return any(self._grants(kind) for kinds in asked.kinds for kind in kinds)
        return any(all(self._grants(kind) for kind in kinds) for kinds in asked.kinds)

    def _grants(self, kind: str) -> bool:
        return any(pattern.grants(kind) for pattern in self.kinds)

    def fits_annotations(self, asked: PolicyRequest) -> bool:
        if not self.annotations:
            return True
        return bool(asked.tool) and all(
            same(asked.annotations.get(member, _ABSENT), value)
            for member, value in self.annotations
        )

    # -- when

    def holds(self, about: Mapping[str, Any] | None) -> bool:
        """Whether its conditions are true of the call, or must be taken to be: what cannot be
        judged holds back and lets nothing through."""
        for condition in self.conditions:
            try:
                if not condition.holds(about):
                    return False
            except UndecidableError:
                if not self.restricts:
                    return False
        return True


def same(one: Any, other: Any) -> bool:
    """Whether two JSON values are the same. `true` is not 1."""
    return (isinstance(one, bool) is isinstance(other, bool)) and bool(one == other)


def _names_something(glob: str) -> bool:
    """Whether a glob of tools says more than all of them, or all of a server: letters of a name."""
    return any(letter.isalnum() for letter in glob.rpartition(".")[2])


# -- Which of ten thousand rules can fit at all? Looked up, not tried.
#
# Every rule stands under one of its selectors: that which the fewest other rules share. Whoever
# asks gets all rules that can fit, and some that do not.

Key = tuple[str, str]
"""What a name must have to be found: the whole of it, its beginning, or a piece."""
_WHOLE: Final = "="
_BEGINS: Final = "^"
_HAS: Final = "~"


class NameTable:
    """Rules under globs, found by a name that could fit."""

    __slots__ = ("_begins", "_has", "_lengths", "_whole")

    def __init__(self) -> None:
        self._whole: dict[str, list[Rule]] = {}
        self._begins: dict[str, list[Rule]] = {}
        self._has: dict[str, list[Rule]] = {}
        self._lengths: tuple[int, ...] = ()

    def add(self, key: Key, rule: Rule) -> None:
        how, text = key
        table = {_WHOLE: self._whole, _BEGINS: self._begins, _HAS: self._has}[how]
        table.setdefault(text, []).append(rule)
        if how == _BEGINS and len(text) not in self._lengths:
            self._lengths = tuple(sorted((*self._lengths, len(text))))

    def find(self, name: str, found: dict[int, Rule]) -> None:
        """Add every rule that could fit the name, by its number."""
        for rule in self._whole.get(name, ()):
            found[rule.number] = rule
        for length in self._lengths:
            for rule in self._begins.get(name[:length], ()):
                found[rule.number] = rule
        has = self._has
        if has:
            for piece in has.keys() & pieces(name):
                for rule in has[piece]:
                    found[rule.number] = rule


def _keys(pattern: str) -> tuple[Key, ...]:
    """The keys under which a glob can stand: one of them is enough. None: it must be tried."""
    if is_literal(pattern):
        return ((_WHOLE, pattern),)
    prefix = prefix_of(pattern)
    if prefix is not None:
        return ((_BEGINS, prefix),) if prefix else ()
    return tuple((_HAS, gram) for gram in sorted(grams_of(pattern)))


def _kind_keys(pattern: KindPattern) -> tuple[Key, ...]:
    if not pattern.prefix:
        return ()
    return ((_WHOLE if pattern.is_exact else _BEGINS, pattern.prefix),)


class RuleIndex:
    """All rules of one sort: about calls of tools, or about any other request."""

    __slots__ = ("_by_caller", "_by_kind", "_by_role", "_by_scope", "_by_tool", "_everywhere")

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._by_tool, self._by_kind, self._by_caller = NameTable(), NameTable(), NameTable()
        self._by_role: dict[str, list[Rule]] = {}
        self._by_scope: dict[str, list[Rule]] = {}
        self._everywhere: list[Rule] = []
        shared: dict[str, Counter[Key]] = {}
        choices = [(rule, _choices(rule)) for rule in rules]
        for _, selectors in choices:
            for where, alternatives in selectors:
                counter = shared.setdefault(where, Counter())
                for keys in alternatives:
                    counter.update(keys)
        for rule, selectors in choices:
            best: tuple[int, str, set[Key]] | None = None
            for where, alternatives in selectors:
                counter = shared[where]
                rarest = {min(keys, key=counter.__getitem__) for keys in alternatives}
                crowd = sum(counter[key] for key in rarest)
                if best is None or crowd < best[0]:
                    best = (crowd, where, rarest)
            if best is None:
                self._everywhere.append(rule)
            else:
                for key in best[2]:
                    self._put(best[1], key, rule)

    def _put(self, where: str, key: Key, rule: Rule) -> None:
        if where == "role":
            self._by_role.setdefault(key[1], []).append(rule)
        elif where == "scope":
            self._by_scope.setdefault(key[1], []).append(rule)
        else:
            table = {"tool": self._by_tool, "kind": self._by_kind, "caller": self._by_caller}
            table[where].add(key, rule)

    def for_asked(self, asked: PolicyRequest) -> list[Rule]:
        """Rules found by what is asked for, and those that can only be tried."""
        found: dict[int, Rule] = {rule.number: rule for rule in self._everywhere}
        if asked.tool:
            self._by_tool.find(asked.tool, found)
        for kinds in asked.kinds:
            for kind in kinds:
                self._by_kind.find(kind, found)
        return list(found.values())

    def for_caller(self, caller: Caller) -> list[Rule]:
        """Rules found by who asks. No rule is among both."""
        found: dict[int, Rule] = {}
        self._by_caller.find(caller.name, found)
        if caller.parent_caller:
            self._by_caller.find(caller.parent_caller, found)
        for table, words in ((self._by_role, caller.roles), (self._by_scope, caller.scopes or ())):
            for word in words:
                for rule in table.get(word, ()):
                    found[rule.number] = rule
        return list(found.values())


def _choices(rule: Rule) -> list[tuple[str, list[tuple[Key, ...]]]]:
    """The selectors under which the rule can stand, each with the keys of all its alternatives."""
    choices: list[tuple[str, list[tuple[Key, ...]]]] = []
    if rule.tools is not None:
        choices.append(("tool", [_keys(pattern) for pattern in rule.tools.patterns]))
    if rule.callers is not None:
        choices.append(("caller", [_keys(pattern) for pattern in rule.callers.patterns]))
    if rule.roles is not None:
        choices.append(("role", [((_WHOLE, role),) for role in rule.roles]))
    if rule.scopes is not None:
        choices.append(("scope", [((_WHOLE, scope),) for scope in rule.scopes]))
    if rule.kinds:
        choices.append(("kind", [_kind_keys(pattern) for pattern in rule.kinds]))
    return [(where, keys) for where, keys in choices if all(keys)]
