"""Is every instance of one schema one of another, too? Yes is only said where it is proven.

What is to be shown is broken down keyword by keyword, and where that fails, the instances
are: by the branches of a union, or by their kind. A pair of schemas that is met again further down
in the instance is taken to be proven: instances are finite, so that is induction. All work is
counted, and when there is too much of it the answer is no.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from interlock.contracts.diff.documents import SchemaNode
from interlock.contracts.diff.equivalence import (
    ARRAY,
    BOOLEAN,
    FRACTION,
    NULL,
    NUMBER,
    OBJECT,
    STRING,
    EquivalenceClasses,
    kinds_of,
)
from interlock.contracts.diff.known_facts import (
    UNBOUNDED,
    DeclaredNames,
    Premise,
    SchemaFacts,
    declared_in,
    least_evaluated,
    rest_of,
)

# -- What has to be shown for words about arrays.


def _min_items(
    prover: Prover, given: Premise, facts: SchemaFacts, wanted: SchemaNode, level: int
) -> bool:
    return not facts.kinds & ARRAY or facts.min_items >= wanted.words["minItems"]


def _max_items(
    prover: Prover, given: Premise, facts: SchemaFacts, wanted: SchemaNode, level: int
) -> bool:
    return not facts.kinds & ARRAY or facts.max_items <= wanted.words["maxItems"]


def _unique(
    prover: Prover, given: Premise, facts: SchemaFacts, wanted: SchemaNode, level: int
) -> bool:
    if not facts.kinds & ARRAY or not wanted.words["uniqueItems"] or facts.max_items <= 1:
        return True
    return any(node.words["uniqueItems"] for node in facts.having("uniqueItems"))


def _prefix(
    prover: Prover, given: Premise, facts: SchemaFacts, wanted: SchemaNode, level: int
) -> bool:
    if not facts.kinds & ARRAY:
        return True
    return all(
        facts.max_items <= at
        or prover.contained(prover.inside(given, facts.item(at)), item, level + 1)
        for at, item in enumerate(wanted.listed("prefixItems"))
    )


def _items(
    prover: Prover, given: Premise, facts: SchemaFacts, wanted: SchemaNode, level: int
) -> bool:
    start = len(wanted.words.get("prefixItems", ()))
    return _from(start, wanted.one("items"), prover, given, facts, level)


def _unevaluated(
    prover: Prover, given: Premise, facts: SchemaFacts, wanted: SchemaNode, level: int
) -> bool:
    start = least_evaluated(wanted).items
    if "items" in wanted.words or start is None:
        return True
    return _from(start, wanted.one("unevaluatedItems"), prover, given, facts, level)


def _from(
    start: int, wanted: SchemaNode, prover: Prover, given: Premise, facts: SchemaFacts, level: int
) -> bool:
    """Whether all items from a position on are instances."""
    if not facts.kinds & ARRAY:
        return True
    return all(
        facts.max_items <= at
        or prover.contained(prover.inside(given, facts.item(at)), wanted, level + 1)
        for at in range(start, max(start, facts.prefix) + 1)
    )


def _contains(
    prover: Prover, given: Premise, facts: SchemaFacts, wanted: SchemaNode, level: int
) -> bool:
    if not facts.kinds & ARRAY:
        return True
    sought = wanted.one("contains")
    least = wanted.words.get("minContains", 1)
    most = wanted.words.get("maxContains", UNBOUNDED)
    return _enough(prover, given, facts, sought, least, level) and _few(
        prover, given, facts, sought, most, level
    )


def _enough(
    prover: Prover, given: Premise, facts: SchemaFacts, sought: SchemaNode, least: float, level: int
) -> bool:
    if least == 0:
        return True
    for node in facts.having("contains"):
        if node.words.get("minContains", 1) >= least and prover.contained(
            prover.inside(given, [node.one("contains")]), sought, level + 1
        ):
            return True
    # Or there are enough items, and every one of them is what is sought.
    return facts.min_items >= least and _from(0, sought, prover, given, facts, level)


def _few(
    prover: Prover, given: Premise, facts: SchemaFacts, sought: SchemaNode, most: float, level: int
) -> bool:
    if facts.max_items <= most:
        return True
    return any(
        node.words.get("maxContains", UNBOUNDED) <= most
        and prover.contained(Premise((sought,)), node.one("contains"), level + 1)
        for node in facts.having("contains")
    )


ARRAYS: Final = {
    "minItems": _min_items,
    "maxItems": _max_items,
    "uniqueItems": _unique,
    "prefixItems": _prefix,
    "items": _items,
    "unevaluatedItems": _unevaluated,
    "contains": _contains,
}


# -- What has to be shown for words that put schemas together, or lead to another one.


def _reference(
    prover: Prover, given: Premise, facts: SchemaFacts, wanted: SchemaNode, level: int
) -> bool:
    reference = wanted.document.reference(wanted)
    if reference is None:
        return True
    target, address = reference
    if target is not None:
        return prover.contained(given, target, level)
    # It leads out of the document. Whatever is there, it is the same for both.
    return any(node.document.reference(node) == (None, address) for node in facts.nodes)


def _all(
    prover: Prover, given: Premise, facts: SchemaFacts, wanted: SchemaNode, level: int
) -> bool:
    return all(prover.contained(given, branch, level) for branch in wanted.listed("allOf"))


def _any(
    prover: Prover, given: Premise, facts: SchemaFacts, wanted: SchemaNode, level: int
) -> bool:
    if _said(prover, facts, wanted, "anyOf"):
        return True
    # In a long list the one that says the same is found without trying the others.
    meant = prover.meanings.said(wanted).get("anyOf", ())
    if any(prover.meanings.of(node) in meant for node in facts.nodes):
        return True
    return any(prover.contained(given, branch, level) for branch in wanted.listed("anyOf"))


def _one(
    prover: Prover, given: Premise, facts: SchemaFacts, wanted: SchemaNode, level: int
) -> bool:
    if _said(prover, facts, wanted, "oneOf"):
        return True
    branches = wanted.listed("oneOf")
    for at, branch in enumerate(branches):
        if prover.contained(given, branch, level):
            others = branches[:at] + branches[at + 1 :]
            if all(prover.disjoint(given, other) for other in others):
                return True
    return any(
        _each_the_same(prover, node.listed("oneOf"), branches, level)
        for node in facts.having("oneOf")
    )


def _each_the_same(
    prover: Prover, ours: list[SchemaNode], theirs: list[SchemaNode], level: int
) -> bool:
    """Whether two lists say the same, branch by branch, in whatever order."""
    if len(ours) != len(theirs):
        return False
    left = list(theirs)
    for branch in sorted(ours, key=prover.meanings.of):
        for other in left:
            if prover.contained(Premise((branch,)), other, level) and prover.contained(
                Premise((other,)), branch, level
            ):
                left.remove(other)
                break
        else:
            return False
    return True


def _not(
    prover: Prover, given: Premise, facts: SchemaFacts, wanted: SchemaNode, level: int
) -> bool:
    refused = wanted.one("not")
    for node in facts.having("not"):
        if prover.contained(Premise((refused,)), node.one("not"), level):
            return True
    return prover.disjoint(given, refused)


def _if(prover: Prover, given: Premise, facts: SchemaFacts, wanted: SchemaNode, level: int) -> bool:
    return _said(prover, facts, wanted, "if") or (
        _when_met(prover, given, facts, wanted, level)
        and _when_unmet(prover, given, facts, wanted, level)
    )


def _when_met(
    prover: Prover, given: Premise, facts: SchemaFacts, wanted: SchemaNode, level: int
) -> bool:
    if wanted.words.get("then", True) is True:
        return True
    condition, then = wanted.one("if"), wanted.one("then")
    if prover.contained(given.also(condition), then, level):
        return True
    for node in facts.having("if"):
        if (
            "then" in node.words
            and prover.contained(Premise((condition,)), node.one("if"), level)
            and prover.contained(given.also(condition, node.one("then")), then, level)
        ):
            return True
    return prover.disjoint(given, condition)


def _when_unmet(
    prover: Prover, given: Premise, facts: SchemaFacts, wanted: SchemaNode, level: int
) -> bool:
    if wanted.words.get("else", True) is True:
        return True
    condition, otherwise = wanted.one("if"), wanted.one("else")
    if prover.contained(given, otherwise, level) or prover.contained(given, condition, level):
        return True
    return any(
        "else" in node.words
        and prover.contained(Premise((node.one("if"),)), condition, level)
        and prover.contained(given.also(node.one("else")), otherwise, level)
        for node in facts.having("if")
    )


def _said(prover: Prover, facts: SchemaFacts, wanted: SchemaNode, word: str) -> bool:
    """Whether one of the schemas that hold says the very same with this word."""
    meant = prover.meanings.said(wanted).get(word)
    return any(prover.meanings.said(node).get(word) == meant for node in facts.having(word))


COMPOSITION: Final = {
    "$ref": _reference,
    "$dynamicRef": _reference,
    "$recursiveRef": _reference,
    "allOf": _all,
    "anyOf": _any,
    "oneOf": _one,
    "not": _not,
    "if": _if,
}


# -- What has to be shown for words about objects and their members.


def _required(
    prover: Prover, given: Premise, facts: SchemaFacts, wanted: SchemaNode, level: int
) -> bool:
    return not facts.kinds & OBJECT or facts.required.issuperset(wanted.words["required"])


def _min_properties(
    prover: Prover, given: Premise, facts: SchemaFacts, wanted: SchemaNode, level: int
) -> bool:
    return not facts.kinds & OBJECT or facts.min_properties >= wanted.words["minProperties"]


def _max_properties(
    prover: Prover, given: Premise, facts: SchemaFacts, wanted: SchemaNode, level: int
) -> bool:
    return not facts.kinds & OBJECT or facts.max_properties <= wanted.words["maxProperties"]


def _properties(
    prover: Prover, given: Premise, facts: SchemaFacts, wanted: SchemaNode, level: int
) -> bool:
    if not facts.kinds & OBJECT:
        return True
    return all(
        _member(prover, given, facts, name, wanted.named("properties", name), level)
        for name in wanted.words["properties"]
    )


def _member(
    prover: Prover, given: Premise, facts: SchemaFacts, name: str, wanted: SchemaNode, level: int
) -> bool:
    """Whether the member of this name, if there is one, is an instance."""
    if wanted.value is True or not may_be_there(given, facts, name):
        return True
    return prover.contained(prover.inside(given, facts.under(name)), wanted, level + 1)


def may_be_there(given: Premise, facts: SchemaFacts, name: str) -> bool:
    """Whether an instance can have a member of this name."""
    if given.sent is not None and not given.sent.may_have(name):
        return False
    return not facts.absent(name)


def _patterns(
    prover: Prover, given: Premise, facts: SchemaFacts, wanted: SchemaNode, level: int
) -> bool:
    if not facts.kinds & OBJECT:
        return True
    return all(
        _pattern(prover, given, facts, pattern, wanted, level)
        for pattern in wanted.words["patternProperties"]
    )


def _pattern(
    prover: Prover, given: Premise, facts: SchemaFacts, pattern: str, wanted: SchemaNode, level: int
) -> bool:
    member = wanted.named("patternProperties", pattern)
    if member.value is True:
        return True

    def meant(name: str) -> bool:
        return wanted.document.matches(pattern, name) is not False

    if not _named(prover, given, facts, facts.names, meant, member, level):
        return False
    for node in facts.having("patternProperties"):
        if pattern in node.words["patternProperties"]:
            known = node.named("patternProperties", pattern)
            if prover.contained(prover.inside(given, [known]), member, level + 1):
                return True
    if given.sent is not None and not given.sent.patterns:
        return _named(prover, given, facts, given.sent.names, meant, member, level)
    return _unnamed(prover, given, facts, meant, (), member, level)


def _additional(
    prover: Prover, given: Premise, facts: SchemaFacts, wanted: SchemaNode, level: int
) -> bool:
    names = set(wanted.words.get("properties", ()))
    patterns = list(wanted.words.get("patternProperties", ()))
    rest = wanted.one("additionalProperties")
    return _rest(prover, given, facts, names, patterns, wanted, rest, level)


def _rules_objects_unevaluated(
    prover: Prover, given: Premise, facts: SchemaFacts, wanted: SchemaNode, level: int
) -> bool:
    seen = least_evaluated(wanted)
    if seen.names is None:
        return True
    rest = wanted.one("unevaluatedProperties")
    return _rest(prover, given, facts, seen.names, seen.patterns, wanted, rest, level)


def _rest(
    prover: Prover,
    given: Premise,
    facts: SchemaFacts,
    names: set[str],
    patterns: list[str],
    wanted: SchemaNode,
    rest: SchemaNode,
    level: int,
) -> bool:
    """Whether all members but these are instances of `rest`."""
    if not facts.kinds & OBJECT or rest.value is True:
        return True
    if prover.ignoring and given.sent is not None and rest.never:
        return True

    def meant(name: str) -> bool:
        return name not in names and not any(
            wanted.document.matches(pattern, name) for pattern in patterns
        )

    if not _named(prover, given, facts, facts.names, meant, rest, level):
        return False
    return _unnamed(prover, given, facts, meant, patterns, rest, level)


def _named(
    prover: Prover,
    given: Premise,
    facts: SchemaFacts,
    names: Iterable[str],
    meant: Callable[[str], bool],
    wanted: SchemaNode,
    level: int,
) -> bool:
    return all(_member(prover, given, facts, name, wanted, level) for name in names if meant(name))


def _unnamed(
    prover: Prover,
    given: Premise,
    facts: SchemaFacts,
    meant: Callable[[str], bool],
    exempt: Iterable[str],
    wanted: SchemaNode,
    level: int,
) -> bool:
    """Whether members that no `properties` speaks of are instances, by one schema alone.

    `exempt`: patterns whose names are not meant.
    """
    if facts.max_properties == 0:
        return True
    return any(
        _by(node, prover, given, facts, meant, exempt, wanted, level) for node in facts.nodes
    )


def _by(
    node: SchemaNode,
    prover: Prover,
    given: Premise,
    facts: SchemaFacts,
    meant: Callable[[str], bool],
    exempt: Iterable[str],
    wanted: SchemaNode,
    level: int,
) -> bool:
    rest = rest_of(node)
    if rest is None:
        return False
    names, patterns, others = rest
    own = node.words.get("patternProperties", ())
    for pattern in patterns:
        if pattern in exempt:
            continue
        # A name that only some branch speaks of is left open by this schema.
        if pattern not in own or not prover.contained(
            prover.inside(given, [node.named("patternProperties", pattern)]), wanted, level + 1
        ):
            return False
    if not _named(prover, given, facts, names - facts.names, meant, wanted, level):
        return False
    return prover.contained(prover.inside(given, [others]), wanted, level + 1)


def _names(
    prover: Prover, given: Premise, facts: SchemaFacts, wanted: SchemaNode, level: int
) -> bool:
    if not facts.kinds & OBJECT or facts.max_properties == 0:
        return True
    naming = wanted.one("propertyNames")
    for node in facts.having("propertyNames"):
        known = Premise((node.one("propertyNames"),), STRING)
        if prover.contained(known, naming, level + 1):
            return True
    if naming.never:
        return False
    for node in facts.nodes:
        rest = rest_of(node)
        if rest is not None and rest[2].never and not rest[1]:
            there = [name for name in rest[0] if may_be_there(given, facts, name)]
            if all(wanted.document.accepts(naming, name) for name in there):
                return True
    return prover.contained(Premise((), STRING), naming, level + 1)


def _brings_names(
    prover: Prover, given: Premise, facts: SchemaFacts, wanted: SchemaNode, level: int
) -> bool:
    if not facts.kinds & OBJECT:
        return True
    for name, others in wanted.words["dependentRequired"].items():
        if others and may_be_there(given, facts, name):
            having = prover.facts(given.also(wanted.document.demanding(name)))
            if not having.required.issuperset(others):
                return False
    return True


def _brings_schemas(
    prover: Prover, given: Premise, facts: SchemaFacts, wanted: SchemaNode, level: int
) -> bool:
    if not facts.kinds & OBJECT:
        return True
    objects = Premise(given.nodes, given.kinds & OBJECT, given.split, given.sent)
    return all(
        not may_be_there(given, facts, name)
        or prover.contained(
            objects.also(wanted.document.demanding(name)),
            wanted.named("dependentSchemas", name),
            level,
        )
        for name in wanted.words["dependentSchemas"]
    )


def _dependencies(
    prover: Prover, given: Premise, facts: SchemaFacts, wanted: SchemaNode, level: int
) -> bool:
    """A word that is gone since 2019, and that validators still obey: it has to be fulfilled, but
    nobody can rely on it."""
    if not facts.kinds & OBJECT:
        return True
    objects = Premise(given.nodes, given.kinds & OBJECT, given.split, given.sent)
    for name, brought in wanted.words["dependencies"].items():
        if not may_be_there(given, facts, name):
            continue
        having = objects.also(wanted.document.demanding(name))
        if isinstance(brought, list):
            if not prover.facts(having).required.issuperset(brought):
                return False
        elif not prover.contained(having, wanted.named("dependencies", name), level):
            return False
    return True


OBJECTS: Final = {
    "required": _required,
    "minProperties": _min_properties,
    "maxProperties": _max_properties,
    "properties": _properties,
    "patternProperties": _patterns,
    "additionalProperties": _additional,
    "unevaluatedProperties": _rules_objects_unevaluated,
    "propertyNames": _names,
    "dependentRequired": _brings_names,
    "dependentSchemas": _brings_schemas,
    "dependencies": _dependencies,
}


# -- What has to be shown for words about types, values, numbers and strings.

_EVERY_TEXT: Final = ("", ".*", "^", "$", "^.*", ".*$")


def _type(
    prover: Prover, given: Premise, facts: SchemaFacts, wanted: SchemaNode, level: int
) -> bool:
    return not facts.kinds & ~kinds_of(wanted.words["type"])


def _values(
    prover: Prover, given: Premise, facts: SchemaFacts, wanted: SchemaNode, level: int
) -> bool:
    # Few values are tried one by one; of many it is only seen whether they are the same ones.
    meant = prover.meanings.said(wanted).get("enum", frozenset())
    return "const" not in wanted.words and any(
        prover.meanings.said(node)["enum"] <= meant for node in facts.having("enum")
    )


def _minimum(
    prover: Prover, given: Premise, facts: SchemaFacts, wanted: SchemaNode, level: int
) -> bool:
    return not facts.kinds & NUMBER or facts.lowest >= wanted.words["minimum"]


def _maximum(
    prover: Prover, given: Premise, facts: SchemaFacts, wanted: SchemaNode, level: int
) -> bool:
    return not facts.kinds & NUMBER or facts.highest <= wanted.words["maximum"]


def _above(
    prover: Prover, given: Premise, facts: SchemaFacts, wanted: SchemaNode, level: int
) -> bool:
    bound = wanted.words["exclusiveMinimum"]
    if not facts.kinds & NUMBER or facts.lowest > bound:
        return True
    return bool(facts.kinds & FRACTION) and facts.lower == (bound, True)


def _beneath(
    prover: Prover, given: Premise, facts: SchemaFacts, wanted: SchemaNode, level: int
) -> bool:
    bound = wanted.words["exclusiveMaximum"]
    if not facts.kinds & NUMBER or facts.highest < bound:
        return True
    return bool(facts.kinds & FRACTION) and facts.upper == (bound, True)


def _multiple(
    prover: Prover, given: Premise, facts: SchemaFacts, wanted: SchemaNode, level: int
) -> bool:
    factor = wanted.words["multipleOf"]
    if not facts.kinds & NUMBER or (factor == 1 and not facts.kinds & FRACTION):
        return True
    for node in facts.having("multipleOf"):
        known = node.words["multipleOf"]
        # Validators divide fractions as floats: only what is exact is believed.
        whole = isinstance(known, int) and isinstance(factor, int)
        if known == factor or (whole and known % factor == 0):
            return True
    return False


def _at_least(word: str) -> Callable[[Prover, Premise, SchemaFacts, SchemaNode, int], bool]:
    def rule(
        prover: Prover, given: Premise, facts: SchemaFacts, wanted: SchemaNode, level: int
    ) -> bool:
        return not facts.kinds & STRING or facts.at_least(word) >= wanted.words[word]

    return rule


def _at_most(word: str) -> Callable[[Prover, Premise, SchemaFacts, SchemaNode, int], bool]:
    def rule(
        prover: Prover, given: Premise, facts: SchemaFacts, wanted: SchemaNode, level: int
    ) -> bool:
        return not facts.kinds & STRING or facts.at_most(word) <= wanted.words[word]

    return rule


def _rules_scalars_pattern(
    prover: Prover, given: Premise, facts: SchemaFacts, wanted: SchemaNode, level: int
) -> bool:
    pattern = wanted.words["pattern"]
    if not facts.kinds & STRING or pattern in _EVERY_TEXT:
        return True
    return any(node.words["pattern"] == pattern for node in facts.having("pattern"))


def _format(
    prover: Prover, given: Premise, facts: SchemaFacts, wanted: SchemaNode, level: int
) -> bool:
    if not wanted.document.checks_formats or not facts.kinds & STRING:
        return True
    return any(
        node.words["format"] == wanted.words["format"] and node.document.checks_formats
        for node in facts.having("format")
    )


def _content(word: str) -> Callable[[Prover, Premise, SchemaFacts, SchemaNode, int], bool]:
    """Words that were assertions up to draft 7, and are notes since."""

    def rule(
        prover: Prover, given: Premise, facts: SchemaFacts, wanted: SchemaNode, level: int
    ) -> bool:
        if wanted.document.draft > 7 or not facts.kinds & STRING:
            return True
        return any(
            node.words[word] == wanted.words[word] and node.document.draft <= 7
            for node in facts.having(word)
        )

    return rule


SCALARS: Final = {
    "type": _type,
    "enum": _values,
    "const": _values,
    "minimum": _minimum,
    "maximum": _maximum,
    "exclusiveMinimum": _above,
    "exclusiveMaximum": _beneath,
    "multipleOf": _multiple,
    "minLength": _at_least("minLength"),
    "maxLength": _at_most("maxLength"),
    "pattern": _rules_scalars_pattern,
    "format": _format,
    "contentEncoding": _content("contentEncoding"),
    "contentMediaType": _content("contentMediaType"),
}


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
        self, meanings: EquivalenceClasses, *, as_declared: bool = False, ignoring: bool = False
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
        self._facts: dict[Any, SchemaFacts] = {}
        self._declared: dict[frozenset[int], DeclaredNames | None] = {}
        # Keys are made of identities, so what they are of must stay.
        self._kept: list[Any] = []
        self._granted: set[Any] = set()
        self._granted_from = 0

    # -- what is given

    def given(self, nodes: Iterable[SchemaNode]) -> Premise:
        """Instances at a new place."""
        held = _through(nodes)
        if not self.as_declared:
            return Premise(held)
        key = frozenset(map(id, held))
        if key not in self._declared:
            self._declared[key] = declared_in(held)
            self._kept.append(held)
        return Premise(held, sent=self._declared[key])

    def inside(self, outer: Premise, nodes: Iterable[SchemaNode]) -> Premise:
        """Instances that are part of others."""
        return Premise(_through(nodes)) if outer.sent is None else self.given(nodes)

    def facts(self, given: Premise) -> SchemaFacts:
        key = (frozenset(map(id, given.nodes)), given.kinds)
        facts = self._facts.get(key)
        if facts is None:
            facts = self._facts[key] = SchemaFacts(given.nodes, given.kinds)
            self._kept.append(given.nodes)
        return facts

    # -- proofs

    def holds(self, given: Premise, wanted: Iterable[SchemaNode]) -> bool:
        """Whether all of these hold for every instance."""
        return all(self.contained(given, node) for node in wanted)

    def contained(self, given: Premise, wanted: SchemaNode, level: int = 0) -> bool:
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
        pairs: dict[str, tuple[Premise, SchemaNode, Any]] = {}
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

    def _same(self, given: Premise, wanted: SchemaNode) -> bool:
        number = self.meanings.of(wanted)
        return any(self.meanings.of(node) == number for node in given.nodes)

    def _prove(self, given: Premise, wanted: SchemaNode, level: int) -> bool:
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

    def _word_by_word(
        self, given: Premise, facts: SchemaFacts, wanted: SchemaNode, level: int
    ) -> bool:
        for word in wanted.words:
            rule = RULES.get(word)
            if rule is not None and not rule(self, given, facts, wanted, level):
                return False
        return True

    def _case_by_case(
        self, given: Premise, facts: SchemaFacts, wanted: SchemaNode, level: int
    ) -> bool:
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
            self.contained(Premise(given.nodes, group, given.split, given.sent), wanted, level)
            for group in groups
        )

    def _unions(
        self, given: Premise, facts: SchemaFacts, settled: frozenset[int] = frozenset()
    ) -> Iterable[list[Premise]]:
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

    def disjoint(self, given: Premise, node: SchemaNode, depth: int = 0) -> bool:
        """Whether no instance is one of `node`, too."""
        return self.empty(Premise((*given.nodes, node), given.kinds), depth)

    def empty(self, given: Premise, depth: int = 0) -> bool:
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

    def _refused(self, facts: SchemaFacts, depth: int) -> bool:
        """Whether one of the schemas refuses what another asks for."""
        for node in facts.having("not"):
            refused = node.one("not")
            rest = tuple(other for other in facts.nodes if other is not node)
            if refused.value is True or (rest and self._surely(Premise(rest), refused, depth)):
                return True
        return False

    def _surely(self, given: Premise, wanted: SchemaNode, depth: int) -> bool:
        # A proof within a proof of emptiness has no place in the instance to count from.
        return depth < 2 and self.contained(given, wanted, -1)

    def _no_branch(self, given: Premise, facts: SchemaFacts, depth: int) -> bool:
        if len(given.split) >= _MOST_SPLITS:
            return False
        return any(
            all(self.empty(case, depth + 1) for case in cases)
            for cases in self._unions(given, facts)
        )

    def _no_array(self, facts: SchemaFacts, depth: int) -> bool:
        if facts.min_items > facts.max_items:
            return True
        return any(
            self.empty(Premise(tuple(facts.item(at))), depth + 1)
            for at in range(min(facts.min_items, facts.prefix + 1))
        )

    def _no_object(self, facts: SchemaFacts, depth: int) -> bool:
        if facts.min_properties > facts.max_properties:
            return True
        return any(
            facts.absent(name) or self.empty(Premise(tuple(facts.under(name))), depth + 1)
            for name in facts.required
        )


def _through(nodes: Iterable[SchemaNode]) -> tuple[SchemaNode, ...]:
    return tuple(dict.fromkeys(_target(node) for node in nodes))


def _target(node: SchemaNode) -> SchemaNode:
    """What a schema stands for that is nothing but a reference."""
    while "$ref" in node.words and not any(word in RULES for word in node.words if word != "$ref"):
        reference = node.document.reference(node)
        if reference is None or reference[0] is None:
            break
        node = reference[0]
    return node


def _no_number(facts: SchemaFacts) -> bool:
    low, high = facts.lowest, facts.highest
    if low > high:
        return True
    out = facts.lower[1] or facts.upper[1]
    return low == high and out and bool(facts.kinds & FRACTION)
