"""Is every instance of one schema one of another, too? Yes is only said where it is proven.

What is to be shown is broken down word by word (`rules_*.py`), and where that fails, the instances
are: by the branches of a union, or by their kind. A pair of schemas that is met again further down
in the instance is taken to be proven: instances are finite, so that is induction. All work is
counted, and when there is too much of it the answer is no.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from interlock.catalog.contracts.documents import Node
from interlock.catalog.contracts.facts import Facts
from interlock.catalog.contracts.given import Declared, Given, declared_in
from interlock.catalog.contracts.meanings import (
    ARRAY,
    BOOLEAN,
    FRACTION,
    NULL,
    NUMBER,
    OBJECT,
    STRING,
    Meanings,
)
from interlock.catalog.contracts.rules_arrays import ARRAYS
from interlock.catalog.contracts.rules_composition import COMPOSITION
from interlock.catalog.contracts.rules_objects import OBJECTS
from interlock.catalog.contracts.rules_scalars import SCALARS

MOST_STEPS: Final = 8_000
"""How many steps one direction of a comparison may take; long schemas take more than one."""
_LONG: Final = 50
_DEEPEST: Final = 60
_MOST_GRANTED: Final = 3_000
_MOST_SPLITS: Final = 3
_EMPTY_DEPTH: Final = 5
_UNIONS: Final = ("anyOf", "oneOf", "not", "if")


RULES: Final = {**SCALARS, **ARRAYS, **OBJECTS, **COMPOSITION}
"""What has to be shown for each word; words that are not here are no assertions."""
_GROUPS: Final = (NULL, BOOLEAN, OBJECT, ARRAY, STRING, NUMBER)


class Prover:
    """Proofs between the schemas of two documents, in one direction.

    `as_declared`: members count only if the schema of who sends them names them. `ignoring`: who
    reads them skips what it does not know, even where its own schema is closed.
    """

    def __init__(
        self, meanings: Meanings, *, as_declared: bool = False, ignoring: bool = False
    ) -> None:
        self.meanings = meanings
        self.as_declared = as_declared
        self.ignoring = ignoring
        self.exhausted = False
        self._steps = 0
        self._depth = 0
        self._known: dict[Any, bool] = {}
        self._under_way: dict[Any, int] = {}
        self._relied: set[Any] = set()
        self._trail: list[Any] = []
        self._facts: dict[Any, Facts] = {}
        self._declared: dict[frozenset[int], Declared | None] = {}
        # Keys are made of identities, so what they are of must stay.
        self._kept: list[Any] = []
        self._granted: set[Any] = set()
        self._granted_from = 0

    # -- what is given

    def given(self, nodes: Iterable[Node]) -> Given:
        """Instances at a new place."""
        held = _through(nodes)
        if not self.as_declared:
            return Given(held)
        key = frozenset(map(id, held))
        if key not in self._declared:
            self._declared[key] = declared_in(held)
            self._kept.append(held)
        return Given(held, sent=self._declared[key])

    def inside(self, outer: Given, nodes: Iterable[Node]) -> Given:
        """Instances that are part of others."""
        return Given(_through(nodes)) if outer.sent is None else self.given(nodes)

    def facts(self, given: Given) -> Facts:
        key = (frozenset(map(id, given.nodes)), given.kinds)
        facts = self._facts.get(key)
        if facts is None:
            facts = self._facts[key] = Facts(given.nodes, given.kinds)
            self._kept.append(given.nodes)
        return facts

    # -- proofs

    def holds(self, given: Given, wanted: Iterable[Node]) -> bool:
        """Whether all of these hold for every instance."""
        return all(self.contained(given, node) for node in wanted)

    def contained(self, given: Given, wanted: Node, level: int = 0) -> bool:
        """Whether every instance is one of `wanted`. `level` counts the steps into the instance."""
        wanted = _target(wanted)
        if wanted.value is True or self._same(given, wanted):
            return True
        key = (given.key, id(wanted))
        if key in self._granted and level >= self._granted_from:
            return True
        known = self._known.get(key)
        if known is not None:
            return known
        began = self._under_way.get(key)
        if began is not None:
            self._relied.add(key)
            return began < level
        if not self._may_go_on():
            return False
        self._kept.append((given, wanted))
        self._under_way[key] = level
        self._depth += 1
        mark = len(self._trail)
        try:
            proven = self._prove(given, wanted, level)
        finally:
            del self._under_way[key]
            self._depth -= 1
        if not proven and key in self._relied:
            # Whatever was shown meanwhile may stand on this.
            for shown in self._trail[mark:]:
                self._known.pop(shown, None)
            del self._trail[mark:]
        self._relied.discard(key)
        self._known[key] = proven
        if proven:
            self._trail.append(key)
        return proven

    def grant(self, forth: bool) -> None:
        """Shows for schemas of the same name that the one is contained in the other.

        Each has to hold if all others do for whatever is deeper in the instance; then all hold.
        That spares a walk along every path through schemas that refer to each other. `forth`:
        from the first document to the second.
        """
        shared = self.meanings.shared
        if len(shared.changed) > _MOST_GRANTED:
            return
        pairs: dict[str, tuple[Given, Node, Any]] = {}
        for name, (old, new) in shared.changed.items():
            one, other = (old, new) if forth else (new, old)
            given = self.given([one])
            pairs[name] = (given, _target(other), (given.key, id(_target(other))))
        self._kept.append(pairs)
        self._granted = {key for _, _, key in pairs.values()}
        self._granted_from = 1
        waiting = dict.fromkeys(sorted(pairs))
        while waiting and self._steps <= MOST_STEPS:
            name = next(iter(waiting))
            del waiting[name]
            given, wanted, key = pairs[name]
            if key in self._granted and not self._prove(given, wanted, 0):
                self._granted.discard(key)
                # What was shown with its help has to be shown again.
                self._known.clear()
                self._trail.clear()
                waiting |= self._relying(name, pairs)
        if waiting:
            self._granted.clear()
        self._known.clear()
        self._trail.clear()
        self._granted_from = self._steps = 0
        self.exhausted = False

    def _relying(self, name: str, pairs: dict[str, Any]) -> dict[str, None]:
        """Pairs whose proof may have used this one, straight or through some that do not hold."""
        found: dict[str, None] = {}
        refused = [name]
        while refused:
            for other in sorted(self.meanings.shared.mentioned_by(refused.pop())):
                if other in pairs and other not in found:
                    found[other] = None
                    if pairs[other][2] not in self._granted:
                        refused.append(other)
        return found

    def _may_go_on(self, steps: int = 1) -> bool:
        self._steps += steps
        if self._steps > MOST_STEPS or self._depth >= _DEEPEST:
            self.exhausted = True
            return False
        return True

    def _same(self, given: Given, wanted: Node) -> bool:
        number = self.meanings.of(wanted)
        return any(self.meanings.of(node) == number for node in given.nodes)

    def _prove(self, given: Given, wanted: Node, level: int) -> bool:
        facts = self.facts(given)
        if not facts.kinds:
            return True
        if not self._may_go_on(wanted.length // _LONG + facts.length // _LONG):
            return False
        if facts.values is not None:
            self._steps += len(facts.values) // _LONG
            return all(wanted.document.accepts(wanted, value) for value in facts.values)
        if wanted.never:
            return self.empty(given)
        number = self.meanings.of(wanted)
        if any(self.meanings.of(node) == number for node in facts.nodes):
            return True
        if self._word_by_word(given, facts, wanted, level):
            return True
        return self._case_by_case(given, facts, wanted, level)

    def _word_by_word(self, given: Given, facts: Facts, wanted: Node, level: int) -> bool:
        for word in wanted.words:
            rule = RULES.get(word)
            if rule is not None and not rule(self, given, facts, wanted, level):
                return False
        return True

    def _case_by_case(self, given: Given, facts: Facts, wanted: Node, level: int) -> bool:
        if len(given.split) < _MOST_SPLITS:
            said = self.meanings.said(wanted)
            settled = said["anyOf"] if said.keys() == {"anyOf"} else frozenset()
            for cases in self._unions(given, facts, settled):
                return all(self.contained(case, wanted, level) for case in cases)
        if not any(word in wanted.words for word in _UNIONS):
            return False
        groups = [facts.kinds & group for group in _GROUPS if facts.kinds & group]
        if len(groups) < 2:
            return False
        return all(
            self.contained(Given(given.nodes, group, given.split, given.sent), wanted, level)
            for group in groups
        )

    def _unions(
        self, given: Given, facts: Facts, settled: frozenset[int] = frozenset()
    ) -> Iterable[list[Given]]:
        """The instances told apart by a union that holds for them, once for each such union.

        `settled`: what needs no further proof, by its meaning.
        """
        for node in facts.nodes:
            for word in ("anyOf", "oneOf"):
                if word in node.words and (id(node), word) not in given.split:
                    split = (id(node), word)
                    yield [
                        given.also(branch, split=split)
                        for branch in node.listed(word)
                        if self.meanings.of(branch) not in settled
                    ]
            if "if" in node.words and (id(node), "if") not in given.split:
                told = (id(node), "if")
                met = [node.one(word) for word in ("if", "then") if word in node.words]
                unmet = [node.one("else")] if "else" in node.words else []
                yield [given.also(*met, split=told), given.also(*unmet, split=told)]

    # -- emptiness

    def disjoint(self, given: Given, node: Node, depth: int = 0) -> bool:
        """Whether no instance is one of `node`, too."""
        return self.empty(Given((*given.nodes, node), given.kinds), depth)

    def empty(self, given: Given, depth: int = 0) -> bool:
        """Whether there is no instance at all."""
        if depth > _EMPTY_DEPTH or not self._may_go_on():
            return False
        facts = self.facts(given)
        if not facts.kinds:
            return True
        if facts.values is not None:
            return not facts.values
        if self._refused(facts, depth) or self._no_branch(given, facts, depth):
            return True
        return (
            (not facts.kinds & STRING or facts.at_least("minLength") > facts.at_most("maxLength"))
            and (not facts.kinds & NUMBER or _no_number(facts))
            and (not facts.kinds & ARRAY or self._no_array(facts, depth))
            and (not facts.kinds & OBJECT or self._no_object(facts, depth))
            and not facts.kinds & ~(STRING | NUMBER | ARRAY | OBJECT)
        )

    def _refused(self, facts: Facts, depth: int) -> bool:
        """Whether one of the schemas refuses what another asks for."""
        for node in facts.having("not"):
            refused = node.one("not")
            rest = tuple(other for other in facts.nodes if other is not node)
            if refused.value is True or (rest and self._surely(Given(rest), refused, depth)):
                return True
        return False

    def _surely(self, given: Given, wanted: Node, depth: int) -> bool:
        # A proof within a proof of emptiness has no place in the instance to count from.
        return depth < 2 and self.contained(given, wanted, -1)

    def _no_branch(self, given: Given, facts: Facts, depth: int) -> bool:
        if len(given.split) >= _MOST_SPLITS:
            return False
        return any(
            all(self.empty(case, depth + 1) for case in cases)
            for cases in self._unions(given, facts)
        )

    def _no_array(self, facts: Facts, depth: int) -> bool:
        if facts.min_items > facts.max_items:
            return True
        return any(
            self.empty(Given(tuple(facts.item(at))), depth + 1)
            for at in range(min(facts.min_items, facts.prefix + 1))
        )

    def _no_object(self, facts: Facts, depth: int) -> bool:
        if facts.min_properties > facts.max_properties:
            return True
        return any(
            facts.absent(name) or self.empty(Given(tuple(facts.under(name))), depth + 1)
            for name in facts.required
        )


def _through(nodes: Iterable[Node]) -> tuple[Node, ...]:
    return tuple(dict.fromkeys(_target(node) for node in nodes))


def _target(node: Node) -> Node:
    """What a schema stands for that is nothing but a reference."""
    while "$ref" in node.words and not any(word in RULES for word in node.words if word != "$ref"):
        reference = node.document.reference(node)
        if reference is None or reference[0] is None:
            break
        node = reference[0]
    return node


def _no_number(facts: Facts) -> bool:
    low, high = facts.lowest, facts.highest
    if low > high:
        return True
    out = facts.lower[1] or facts.upper[1]
    return low == high and out and bool(facts.kinds & FRACTION)
