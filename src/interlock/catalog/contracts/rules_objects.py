"""What has to be shown for words about objects and their members."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from interlock.catalog.contracts.documents import Node
from interlock.catalog.contracts.evaluated import least_evaluated
from interlock.catalog.contracts.facts import Facts, rest_of
from interlock.catalog.contracts.given import Given
from interlock.catalog.contracts.meanings import OBJECT, STRING

if TYPE_CHECKING:
    from interlock.catalog.contracts.containment import Prover


def _required(prover: Prover, given: Given, facts: Facts, wanted: Node, level: int) -> bool:
    return not facts.kinds & OBJECT or facts.required.issuperset(wanted.words["required"])


def _min_properties(prover: Prover, given: Given, facts: Facts, wanted: Node, level: int) -> bool:
    return not facts.kinds & OBJECT or facts.min_properties >= wanted.words["minProperties"]


def _max_properties(prover: Prover, given: Given, facts: Facts, wanted: Node, level: int) -> bool:
    return not facts.kinds & OBJECT or facts.max_properties <= wanted.words["maxProperties"]


def _properties(prover: Prover, given: Given, facts: Facts, wanted: Node, level: int) -> bool:
    if not facts.kinds & OBJECT:
        return True
    return all(
        _member(prover, given, facts, name, wanted.named("properties", name), level)
        for name in wanted.words["properties"]
    )


def _member(
    prover: Prover, given: Given, facts: Facts, name: str, wanted: Node, level: int
) -> bool:
    """Whether the member of this name, if there is one, is an instance."""
    if wanted.value is True or not may_be_there(given, facts, name):
        return True
    return prover.contained(prover.inside(given, facts.under(name)), wanted, level + 1)


def may_be_there(given: Given, facts: Facts, name: str) -> bool:
    """Whether an instance can have a member of this name."""
    if given.sent is not None and not given.sent.may_have(name):
        return False
    return not facts.absent(name)


def _patterns(prover: Prover, given: Given, facts: Facts, wanted: Node, level: int) -> bool:
    if not facts.kinds & OBJECT:
        return True
    return all(
        _pattern(prover, given, facts, pattern, wanted, level)
        for pattern in wanted.words["patternProperties"]
    )


def _pattern(
    prover: Prover, given: Given, facts: Facts, pattern: str, wanted: Node, level: int
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


def _additional(prover: Prover, given: Given, facts: Facts, wanted: Node, level: int) -> bool:
    names = set(wanted.words.get("properties", ()))
    patterns = list(wanted.words.get("patternProperties", ()))
    rest = wanted.one("additionalProperties")
    return _rest(prover, given, facts, names, patterns, wanted, rest, level)


def _unevaluated(prover: Prover, given: Given, facts: Facts, wanted: Node, level: int) -> bool:
    seen = least_evaluated(wanted)
    if seen.names is None:
        return True
    rest = wanted.one("unevaluatedProperties")
    return _rest(prover, given, facts, seen.names, seen.patterns, wanted, rest, level)


def _rest(
    prover: Prover,
    given: Given,
    facts: Facts,
    names: set[str],
    patterns: list[str],
    wanted: Node,
    rest: Node,
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
    given: Given,
    facts: Facts,
    names: Iterable[str],
    meant: Callable[[str], bool],
    wanted: Node,
    level: int,
) -> bool:
    return all(_member(prover, given, facts, name, wanted, level) for name in names if meant(name))


def _unnamed(
    prover: Prover,
    given: Given,
    facts: Facts,
    meant: Callable[[str], bool],
    exempt: Iterable[str],
    wanted: Node,
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
    node: Node,
    prover: Prover,
    given: Given,
    facts: Facts,
    meant: Callable[[str], bool],
    exempt: Iterable[str],
    wanted: Node,
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


def _names(prover: Prover, given: Given, facts: Facts, wanted: Node, level: int) -> bool:
    if not facts.kinds & OBJECT or facts.max_properties == 0:
        return True
    naming = wanted.one("propertyNames")
    for node in facts.having("propertyNames"):
        known = Given((node.one("propertyNames"),), STRING)
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
    return prover.contained(Given((), STRING), naming, level + 1)


def _brings_names(prover: Prover, given: Given, facts: Facts, wanted: Node, level: int) -> bool:
    if not facts.kinds & OBJECT:
        return True
    for name, others in wanted.words["dependentRequired"].items():
        if others and may_be_there(given, facts, name):
            having = prover.facts(given.also(wanted.document.demanding(name)))
            if not having.required.issuperset(others):
                return False
    return True


def _brings_schemas(prover: Prover, given: Given, facts: Facts, wanted: Node, level: int) -> bool:
    if not facts.kinds & OBJECT:
        return True
    objects = Given(given.nodes, given.kinds & OBJECT, given.split, given.sent)
    return all(
        not may_be_there(given, facts, name)
        or prover.contained(
            objects.also(wanted.document.demanding(name)),
            wanted.named("dependentSchemas", name),
            level,
        )
        for name in wanted.words["dependentSchemas"]
    )


def _dependencies(prover: Prover, given: Given, facts: Facts, wanted: Node, level: int) -> bool:
    """A word that is gone since 2019, and that validators still obey: it has to be fulfilled, but
    nobody can rely on it."""
    if not facts.kinds & OBJECT:
        return True
    objects = Given(given.nodes, given.kinds & OBJECT, given.split, given.sent)
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
    "unevaluatedProperties": _unevaluated,
    "propertyNames": _names,
    "dependentRequired": _brings_names,
    "dependentSchemas": _brings_schemas,
    "dependencies": _dependencies,
}
