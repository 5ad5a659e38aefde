"""Which of ten thousand rules can fit at all? Looked up, not tried.

Every rule stands under one of its selectors: that which the fewest other rules share. Whoever asks
gets all rules that can fit, and some that do not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from interlock.call import Caller
from interlock.pipeline.policy.globs import grams_of, is_literal, pieces, prefix_of
from interlock.pipeline.policy.rule import Asked, Rule
from interlock.protocol.kinds import KindPattern

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
    if not pattern.fixed:
        return ()
    return ((_WHOLE if pattern.alone else _BEGINS, pattern.fixed),)


class Index:
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

    def for_asked(self, asked: Asked) -> list[Rule]:
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
        if caller.above:
            self._by_caller.find(caller.above, found)
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
