"""Containment proofs: is every instance of one schema also an instance of another? The result is
yes only if that is proven.

A proof goes keyword by keyword. Where that fails, it separates the instances: by the branches of a
union, or by their kind. A pair of schemas that occurs again deeper in the instance counts as
proven: instances are finite, so this is induction. All work is counted, and the result is no when a
limit is reached.
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
    type_kinds,
)
from interlock.contracts.diff.known_facts import (
    UNBOUNDED,
    DeclaredNames,
    Premise,
    SchemaFacts,
    always_evaluated,
    find_declared_names,
    find_rest_schema,
)

# -- Proof rules for keywords of arrays.

# -- What has to be shown for words about arrays.


def _min_items(
    prover: Prover, premise: Premise, facts: SchemaFacts, goal: SchemaNode, level: int
) -> bool:
    return not facts.kinds & ARRAY or facts.min_items >= goal.keywords["minItems"]


def _max_items(
    prover: Prover, premise: Premise, facts: SchemaFacts, goal: SchemaNode, level: int
) -> bool:
    return not facts.kinds & ARRAY or facts.max_items <= goal.keywords["maxItems"]


def _unique_items(
    prover: Prover, premise: Premise, facts: SchemaFacts, goal: SchemaNode, level: int
) -> bool:
    if not facts.kinds & ARRAY or not goal.keywords["uniqueItems"] or facts.max_items <= 1:
        return True
    return any(node.keywords["uniqueItems"] for node in facts.nodes_with("uniqueItems"))


def _prefix_items(
    prover: Prover, premise: Premise, facts: SchemaFacts, goal: SchemaNode, level: int
) -> bool:
    if not facts.kinds & ARRAY:
        return True
    return all(
        facts.max_items <= index
        or prover.proves(
            prover.make_inner_premise(premise, facts.item_schemas(index)), item, level + 1
        )
        for index, item in enumerate(goal.subschemas("prefixItems"))
    )


def _items(
    prover: Prover, premise: Premise, facts: SchemaFacts, goal: SchemaNode, level: int
) -> bool:
    start = len(goal.keywords.get("prefixItems", ()))
    return _proves_items_from(start, goal.subschema("items"), prover, premise, facts, level)


def _unevaluated_items(
    prover: Prover, premise: Premise, facts: SchemaFacts, goal: SchemaNode, level: int
) -> bool:
    start = always_evaluated(goal).items
    if "items" in goal.keywords or start is None:
        return True
    return _proves_items_from(
        start, goal.subschema("unevaluatedItems"), prover, premise, facts, level
    )


def _proves_items_from(
    start: int, goal: SchemaNode, prover: Prover, premise: Premise, facts: SchemaFacts, level: int
) -> bool:
    """Return whether all items from a position on are instances of the goal."""
    if not facts.kinds & ARRAY:
        return True
    return all(
        facts.max_items <= index
        or prover.proves(
            prover.make_inner_premise(premise, facts.item_schemas(index)), goal, level + 1
        )
        for index in range(start, max(start, facts.prefix_length) + 1)
    )


def _contains(
    prover: Prover, premise: Premise, facts: SchemaFacts, goal: SchemaNode, level: int
) -> bool:
    if not facts.kinds & ARRAY:
        return True
    contained_schema = goal.subschema("contains")
    minimum = goal.keywords.get("minContains", 1)
    maximum = goal.keywords.get("maxContains", UNBOUNDED)
    return _has_min_contains(
        prover, premise, facts, contained_schema, minimum, level
    ) and _has_max_contains(prover, premise, facts, contained_schema, maximum, level)


def _has_min_contains(
    prover: Prover,
    premise: Premise,
    facts: SchemaFacts,
    contained_schema: SchemaNode,
    minimum: float,
    level: int,
) -> bool:
    if minimum == 0:
        return True
    for node in facts.nodes_with("contains"):
        if node.keywords.get("minContains", 1) >= minimum and prover.proves(
            prover.make_inner_premise(premise, [node.subschema("contains")]),
            contained_schema,
            level + 1,
        ):
            return True
    # Otherwise the array has enough items, and all of them match.
    return facts.min_items >= minimum and _proves_items_from(
        0, contained_schema, prover, premise, facts, level
    )


def _has_max_contains(
    prover: Prover,
    premise: Premise,
    facts: SchemaFacts,
    contained_schema: SchemaNode,
    maximum: float,
    level: int,
) -> bool:
    if facts.max_items <= maximum:
        return True
    return any(
        node.keywords.get("maxContains", UNBOUNDED) <= maximum
        and prover.proves(Premise((contained_schema,)), node.subschema("contains"), level + 1)
        for node in facts.nodes_with("contains")
    )


ARRAY_RULES: Final = {
    "minItems": _min_items,
    "maxItems": _max_items,
    "uniqueItems": _unique_items,
    "prefixItems": _prefix_items,
    "items": _items,
    "unevaluatedItems": _unevaluated_items,
    "contains": _contains,
}


# -- Proof rules for keywords that combine schemas or refer to them.


def _reference(
    prover: Prover, premise: Premise, facts: SchemaFacts, goal: SchemaNode, level: int
) -> bool:
    reference = goal.document.reference(goal)
    if reference is None:
        return True
    target, address = reference
    if target is not None:
        return prover.proves(premise, target, level)
    # An external reference: its target is the same for both.
    return any(node.document.reference(node) == (None, address) for node in facts.nodes)


def _all_of(
    prover: Prover, premise: Premise, facts: SchemaFacts, goal: SchemaNode, level: int
) -> bool:
    return all(prover.proves(premise, branch, level) for branch in goal.subschemas("allOf"))


def _any_of(
    prover: Prover, premise: Premise, facts: SchemaFacts, goal: SchemaNode, level: int
) -> bool:
    if _has_equal_keyword(prover, facts, goal, "anyOf"):
        return True
    # In a long list, find an equivalent branch without trying the others.
    branch_classes = prover.classes.keyword_values(goal).get("anyOf", ())
    if any(prover.classes.class_of(node) in branch_classes for node in facts.nodes):
        return True
    return any(prover.proves(premise, branch, level) for branch in goal.subschemas("anyOf"))


def _one_of(
    prover: Prover, premise: Premise, facts: SchemaFacts, goal: SchemaNode, level: int
) -> bool:
    if _has_equal_keyword(prover, facts, goal, "oneOf"):
        return True
    branches = goal.subschemas("oneOf")
    for index, branch in enumerate(branches):
        if prover.proves(premise, branch, level):
            other_branches = branches[:index] + branches[index + 1 :]
            if all(prover.are_disjoint(premise, other) for other in other_branches):
                return True
    return any(
        _have_equal_branches(prover, node.subschemas("oneOf"), branches, level)
        for node in facts.nodes_with("oneOf")
    )


def _have_equal_branches(
    prover: Prover, left: list[SchemaNode], right: list[SchemaNode], level: int
) -> bool:
    """Return whether two lists have equivalent branches in any order."""
    if len(left) != len(right):
        return False
    unmatched = list(right)
    for branch in sorted(left, key=prover.classes.class_of):
        for other in unmatched:
            if prover.proves(Premise((branch,)), other, level) and prover.proves(
                Premise((other,)), branch, level
            ):
                unmatched.remove(other)
                break
        else:
            return False
    return True


def _not_schema(
    prover: Prover, premise: Premise, facts: SchemaFacts, goal: SchemaNode, level: int
) -> bool:
    excluded = goal.subschema("not")
    for node in facts.nodes_with("not"):
        if prover.proves(Premise((excluded,)), node.subschema("not"), level):
            return True
    return prover.are_disjoint(premise, excluded)


def _if_then_else(
    prover: Prover, premise: Premise, facts: SchemaFacts, goal: SchemaNode, level: int
) -> bool:
    return _has_equal_keyword(prover, facts, goal, "if") or (
        _proves_then(prover, premise, facts, goal, level)
        and _proves_else(prover, premise, facts, goal, level)
    )


def _proves_then(
    prover: Prover, premise: Premise, facts: SchemaFacts, goal: SchemaNode, level: int
) -> bool:
    if goal.keywords.get("then", True) is True:
        return True
    condition, then = goal.subschema("if"), goal.subschema("then")
    if prover.proves(premise.with_nodes(condition), then, level):
        return True
    for node in facts.nodes_with("if"):
        if (
            "then" in node.keywords
            and prover.proves(Premise((condition,)), node.subschema("if"), level)
            and prover.proves(premise.with_nodes(condition, node.subschema("then")), then, level)
        ):
            return True
    return prover.are_disjoint(premise, condition)


def _proves_else(
    prover: Prover, premise: Premise, facts: SchemaFacts, goal: SchemaNode, level: int
) -> bool:
    if goal.keywords.get("else", True) is True:
        return True
    condition, otherwise = goal.subschema("if"), goal.subschema("else")
    if prover.proves(premise, otherwise, level) or prover.proves(premise, condition, level):
        return True
    return any(
        "else" in node.keywords
        and prover.proves(Premise((node.subschema("if"),)), condition, level)
        and prover.proves(premise.with_nodes(node.subschema("else")), otherwise, level)
        for node in facts.nodes_with("if")
    )


def _has_equal_keyword(prover: Prover, facts: SchemaFacts, goal: SchemaNode, keyword: str) -> bool:
    """Return whether one of the given schemas has an equal value for this keyword."""
    expected = prover.classes.keyword_values(goal).get(keyword)
    return any(
        prover.classes.keyword_values(node).get(keyword) == expected
        for node in facts.nodes_with(keyword)
    )


COMPOSITION_RULES: Final = {
    "$ref": _reference,
    "$dynamicRef": _reference,
    "$recursiveRef": _reference,
    "allOf": _all_of,
    "anyOf": _any_of,
    "oneOf": _one_of,
    "not": _not_schema,
    "if": _if_then_else,
}


# -- Proof rules for keywords of objects.


def _required(
    prover: Prover, premise: Premise, facts: SchemaFacts, goal: SchemaNode, level: int
) -> bool:
    return not facts.kinds & OBJECT or facts.required.issuperset(goal.keywords["required"])


def _min_properties(
    prover: Prover, premise: Premise, facts: SchemaFacts, goal: SchemaNode, level: int
) -> bool:
    return not facts.kinds & OBJECT or facts.min_properties >= goal.keywords["minProperties"]


def _max_properties(
    prover: Prover, premise: Premise, facts: SchemaFacts, goal: SchemaNode, level: int
) -> bool:
    return not facts.kinds & OBJECT or facts.max_properties <= goal.keywords["maxProperties"]


def _properties(
    prover: Prover, premise: Premise, facts: SchemaFacts, goal: SchemaNode, level: int
) -> bool:
    if not facts.kinds & OBJECT:
        return True
    return all(
        _proves_member(
            prover, premise, facts, name, goal.named_subschema("properties", name), level
        )
        for name in goal.keywords["properties"]
    )


def _proves_member(
    prover: Prover, premise: Premise, facts: SchemaFacts, name: str, goal: SchemaNode, level: int
) -> bool:
    """Return whether the member of this name, if present, is an instance of the goal."""
    if goal.value is True or not can_have_member(premise, facts, name):
        return True
    return prover.proves(
        prover.make_inner_premise(premise, facts.member_schemas(name)), goal, level + 1
    )


def can_have_member(premise: Premise, facts: SchemaFacts, name: str) -> bool:
    """Return whether an instance may have a member of this name."""
    if premise.declared_names is not None and not premise.declared_names.may_have(name):
        return False
    return not facts.is_absent(name)


def _pattern_properties(
    prover: Prover, premise: Premise, facts: SchemaFacts, goal: SchemaNode, level: int
) -> bool:
    if not facts.kinds & OBJECT:
        return True
    return all(
        _proves_pattern(prover, premise, facts, pattern, goal, level)
        for pattern in goal.keywords["patternProperties"]
    )


def _proves_pattern(
    prover: Prover, premise: Premise, facts: SchemaFacts, pattern: str, goal: SchemaNode, level: int
) -> bool:
    member = goal.named_subschema("patternProperties", pattern)
    if member.value is True:
        return True

    def matches(name: str) -> bool:
        return goal.document.matches(pattern, name) is not False

    if not _proves_named_members(prover, premise, facts, facts.names, matches, member, level):
        return False
    for node in facts.nodes_with("patternProperties"):
        if pattern in node.keywords["patternProperties"]:
            pattern_schema = node.named_subschema("patternProperties", pattern)
            if prover.proves(
                prover.make_inner_premise(premise, [pattern_schema]), member, level + 1
            ):
                return True
    if premise.declared_names is not None and not premise.declared_names.patterns:
        return _proves_named_members(
            prover, premise, facts, premise.declared_names.names, matches, member, level
        )
    return _proves_other_members(prover, premise, facts, matches, (), member, level)


def _additional_properties(
    prover: Prover, premise: Premise, facts: SchemaFacts, goal: SchemaNode, level: int
) -> bool:
    names = set(goal.keywords.get("properties", ()))
    patterns = list(goal.keywords.get("patternProperties", ()))
    rest = goal.subschema("additionalProperties")
    return _proves_rest(prover, premise, facts, names, patterns, goal, rest, level)


def _unevaluated_properties(
    prover: Prover, premise: Premise, facts: SchemaFacts, goal: SchemaNode, level: int
) -> bool:
    evaluated = always_evaluated(goal)
    if evaluated.names is None:
        return True
    rest = goal.subschema("unevaluatedProperties")
    return _proves_rest(
        prover, premise, facts, evaluated.names, evaluated.patterns, goal, rest, level
    )


def _proves_rest(
    prover: Prover,
    premise: Premise,
    facts: SchemaFacts,
    names: set[str],
    patterns: list[str],
    goal: SchemaNode,
    rest: SchemaNode,
    level: int,
) -> bool:
    """Return whether all members except these are instances of `rest`."""
    if not facts.kinds & OBJECT or rest.value is True:
        return True
    if prover.ignores_unknown and premise.declared_names is not None and rest.is_false:
        return True

    def applies(name: str) -> bool:
        return name not in names and not any(
            goal.document.matches(pattern, name) for pattern in patterns
        )

    if not _proves_named_members(prover, premise, facts, facts.names, applies, rest, level):
        return False
    return _proves_other_members(prover, premise, facts, applies, patterns, rest, level)


def _proves_named_members(
    prover: Prover,
    premise: Premise,
    facts: SchemaFacts,
    names: Iterable[str],
    applies: Callable[[str], bool],
    goal: SchemaNode,
    level: int,
) -> bool:
    return all(
        _proves_member(prover, premise, facts, name, goal, level) for name in names if applies(name)
    )


def _proves_other_members(
    prover: Prover,
    premise: Premise,
    facts: SchemaFacts,
    applies: Callable[[str], bool],
    exempt_patterns: Iterable[str],
    goal: SchemaNode,
    level: int,
) -> bool:
    """Return whether members without a subschema in `properties` are instances, by one schema
    alone.

    Args:
        exempt_patterns: patterns of names that are not considered.
    """
    if facts.max_properties == 0:
        return True
    return any(
        _node_proves_other_members(
            node, prover, premise, facts, applies, exempt_patterns, goal, level
        )
        for node in facts.nodes
    )


def _node_proves_other_members(
    node: SchemaNode,
    prover: Prover,
    premise: Premise,
    facts: SchemaFacts,
    applies: Callable[[str], bool],
    exempt_patterns: Iterable[str],
    goal: SchemaNode,
    level: int,
) -> bool:
    rest = find_rest_schema(node)
    if rest is None:
        return False
    names, patterns, rest_schema = rest
    own_patterns = node.keywords.get("patternProperties", ())
    for pattern in patterns:
        if pattern in exempt_patterns:
            continue
        # This schema does not constrain names that only one of its branches mentions.
        if pattern not in own_patterns or not prover.proves(
            prover.make_inner_premise(
                premise, [node.named_subschema("patternProperties", pattern)]
            ),
            goal,
            level + 1,
        ):
            return False
    if not _proves_named_members(prover, premise, facts, names - facts.names, applies, goal, level):
        return False
    return prover.proves(prover.make_inner_premise(premise, [rest_schema]), goal, level + 1)


def _property_names(
    prover: Prover, premise: Premise, facts: SchemaFacts, goal: SchemaNode, level: int
) -> bool:
    if not facts.kinds & OBJECT or facts.max_properties == 0:
        return True
    name_schema = goal.subschema("propertyNames")
    for node in facts.nodes_with("propertyNames"):
        name_premise = Premise((node.subschema("propertyNames"),), STRING)
        if prover.proves(name_premise, name_schema, level + 1):
            return True
    if name_schema.is_false:
        return False
    for node in facts.nodes:
        rest = find_rest_schema(node)
        if rest is not None and rest[2].is_false and not rest[1]:
            names = [name for name in rest[0] if can_have_member(premise, facts, name)]
            if all(goal.document.accepts(name_schema, name) for name in names):
                return True
    return prover.proves(Premise((), STRING), name_schema, level + 1)


def _dependent_required(
    prover: Prover, premise: Premise, facts: SchemaFacts, goal: SchemaNode, level: int
) -> bool:
    if not facts.kinds & OBJECT:
        return True
    for name, required_names in goal.keywords["dependentRequired"].items():
        if required_names and can_have_member(premise, facts, name):
            with_member = prover.facts(premise.with_nodes(goal.document.require_member(name)))
            if not with_member.required.issuperset(required_names):
                return False
    return True


def _dependent_schemas(
    prover: Prover, premise: Premise, facts: SchemaFacts, goal: SchemaNode, level: int
) -> bool:
    if not facts.kinds & OBJECT:
        return True
    objects = Premise(
        premise.nodes, premise.kinds & OBJECT, premise.split_unions, premise.declared_names
    )
    return all(
        not can_have_member(premise, facts, name)
        or prover.proves(
            objects.with_nodes(goal.document.require_member(name)),
            goal.named_subschema("dependentSchemas", name),
            level,
        )
        for name in goal.keywords["dependentSchemas"]
    )


def _dependencies(
    prover: Prover, premise: Premise, facts: SchemaFacts, goal: SchemaNode, level: int
) -> bool:
    """Prove a keyword that 2019-09 removed and that validators still apply: it must be
    satisfied, but premises may not rely on it."""
    if not facts.kinds & OBJECT:
        return True
    objects = Premise(
        premise.nodes, premise.kinds & OBJECT, premise.split_unions, premise.declared_names
    )
    for name, dependency in goal.keywords["dependencies"].items():
        if not can_have_member(premise, facts, name):
            continue
        with_member = objects.with_nodes(goal.document.require_member(name))
        if isinstance(dependency, list):
            if not prover.facts(with_member).required.issuperset(dependency):
                return False
        elif not prover.proves(with_member, goal.named_subschema("dependencies", name), level):
            return False
    return True


OBJECT_RULES: Final = {
    "required": _required,
    "minProperties": _min_properties,
    "maxProperties": _max_properties,
    "properties": _properties,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "unevaluatedProperties": _unevaluated_properties,
    "propertyNames": _property_names,
    "dependentRequired": _dependent_required,
    "dependentSchemas": _dependent_schemas,
    "dependencies": _dependencies,
}


# -- Proof rules for types, values, numbers and strings.

_MATCH_ALL_PATTERNS: Final = ("", ".*", "^", "$", "^.*", ".*$")


def _type(
    prover: Prover, premise: Premise, facts: SchemaFacts, goal: SchemaNode, level: int
) -> bool:
    return not facts.kinds & ~type_kinds(goal.keywords["type"])


def _enum_values(
    prover: Prover, premise: Premise, facts: SchemaFacts, goal: SchemaNode, level: int
) -> bool:
    # A few values are tried one by one. A long list is only compared with other lists.
    allowed = prover.classes.keyword_values(goal).get("enum", frozenset())
    return "const" not in goal.keywords and any(
        prover.classes.keyword_values(node)["enum"] <= allowed for node in facts.nodes_with("enum")
    )


def _minimum(
    prover: Prover, premise: Premise, facts: SchemaFacts, goal: SchemaNode, level: int
) -> bool:
    return not facts.kinds & NUMBER or facts.lowest >= goal.keywords["minimum"]


def _maximum(
    prover: Prover, premise: Premise, facts: SchemaFacts, goal: SchemaNode, level: int
) -> bool:
    return not facts.kinds & NUMBER or facts.highest <= goal.keywords["maximum"]


def _exclusive_minimum(
    prover: Prover, premise: Premise, facts: SchemaFacts, goal: SchemaNode, level: int
) -> bool:
    bound = goal.keywords["exclusiveMinimum"]
    if not facts.kinds & NUMBER or facts.lowest > bound:
        return True
    return bool(facts.kinds & FRACTION) and facts.lower == (bound, True)


def _exclusive_maximum(
    prover: Prover, premise: Premise, facts: SchemaFacts, goal: SchemaNode, level: int
) -> bool:
    bound = goal.keywords["exclusiveMaximum"]
    if not facts.kinds & NUMBER or facts.highest < bound:
        return True
    return bool(facts.kinds & FRACTION) and facts.upper == (bound, True)


def _multiple_of(
    prover: Prover, premise: Premise, facts: SchemaFacts, goal: SchemaNode, level: int
) -> bool:
    factor = goal.keywords["multipleOf"]
    if not facts.kinds & NUMBER or (factor == 1 and not facts.kinds & FRACTION):
        return True
    for node in facts.nodes_with("multipleOf"):
        known_factor = node.keywords["multipleOf"]
        # Validators divide fractions as floats, so only integers are exact.
        are_integers = isinstance(known_factor, int) and isinstance(factor, int)
        if known_factor == factor or (are_integers and known_factor % factor == 0):
            return True
    return False


def _minimum_rule(keyword: str) -> Callable[[Prover, Premise, SchemaFacts, SchemaNode, int], bool]:
    def rule(
        prover: Prover, premise: Premise, facts: SchemaFacts, goal: SchemaNode, level: int
    ) -> bool:
        return not facts.kinds & STRING or facts.minimum_of(keyword) >= goal.keywords[keyword]

    return rule


def _maximum_rule(keyword: str) -> Callable[[Prover, Premise, SchemaFacts, SchemaNode, int], bool]:
    def rule(
        prover: Prover, premise: Premise, facts: SchemaFacts, goal: SchemaNode, level: int
    ) -> bool:
        return not facts.kinds & STRING or facts.maximum_of(keyword) <= goal.keywords[keyword]

    return rule


def _string_pattern(
    prover: Prover, premise: Premise, facts: SchemaFacts, goal: SchemaNode, level: int
) -> bool:
    pattern = goal.keywords["pattern"]
    if not facts.kinds & STRING or pattern in _MATCH_ALL_PATTERNS:
        return True
    return any(node.keywords["pattern"] == pattern for node in facts.nodes_with("pattern"))


def _format(
    prover: Prover, premise: Premise, facts: SchemaFacts, goal: SchemaNode, level: int
) -> bool:
    if not goal.document.checks_formats or not facts.kinds & STRING:
        return True
    return any(
        node.keywords["format"] == goal.keywords["format"] and node.document.checks_formats
        for node in facts.nodes_with("format")
    )


def _content_rule(keyword: str) -> Callable[[Prover, Premise, SchemaFacts, SchemaNode, int], bool]:
    """Return the rule for a keyword that was an assertion up to draft 7, and is an annotation
    since."""

    def rule(
        prover: Prover, premise: Premise, facts: SchemaFacts, goal: SchemaNode, level: int
    ) -> bool:
        if goal.document.draft > 7 or not facts.kinds & STRING:
            return True
        return any(
            node.keywords[keyword] == goal.keywords[keyword] and node.document.draft <= 7
            for node in facts.nodes_with(keyword)
        )

    return rule


SCALAR_RULES: Final = {
    "type": _type,
    "enum": _enum_values,
    "const": _enum_values,
    "minimum": _minimum,
    "maximum": _maximum,
    "exclusiveMinimum": _exclusive_minimum,
    "exclusiveMaximum": _exclusive_maximum,
    "multipleOf": _multiple_of,
    "minLength": _minimum_rule("minLength"),
    "maxLength": _maximum_rule("maxLength"),
    "pattern": _string_pattern,
    "format": _format,
    "contentEncoding": _content_rule("contentEncoding"),
    "contentMediaType": _content_rule("contentMediaType"),
}


MAX_STEPS: Final = 8_000
"""The maximum number of steps in one direction of a comparison. Large schemas take more than one
step."""
_SIZE_PER_STEP: Final = 50
_MAX_DEPTH: Final = 60
_MAX_SHARED_REFERENCES: Final = 3_000
_MAX_SPLITS: Final = 3
_MAX_EMPTINESS_DEPTH: Final = 5
_UNION_KEYWORDS: Final = ("anyOf", "oneOf", "not", "if")


RULES: Final = {**SCALAR_RULES, **ARRAY_RULES, **OBJECT_RULES, **COMPOSITION_RULES}
"""The proof rule of each keyword. Keywords without a rule are not assertions."""
_KIND_GROUPS: Final = (NULL, BOOLEAN, OBJECT, ARRAY, STRING, NUMBER)


class Prover:
    """Proofs between the schemas of two documents, in one direction.

    Args:
        declared_only: members count only if the schema of the sender names them.
        ignores_unknown: readers skip unknown members, even if their own schema is closed.
    """

    def __init__(
        self,
        classes: EquivalenceClasses,
        *,
        declared_only: bool = False,
        ignores_unknown: bool = False,
    ) -> None:
        self.classes = classes
        self.declared_only = declared_only
        self.ignores_unknown = ignores_unknown
        self.is_exhausted = False
        self._steps = 0
        self._depth = 0
        self._results: dict[Any, bool] = {}
        self._in_progress: dict[Any, int] = {}
        self._assumed: set[Any] = set()
        self._proven: list[Any] = []
        self._facts: dict[Any, SchemaFacts] = {}
        self._declared_names: dict[frozenset[int], DeclaredNames | None] = {}
        # Keys contain object ids, so the objects must stay alive.
        self._keep_alive: list[Any] = []
        self._granted_pairs: set[Any] = set()
        self._granted_from_level = 0

    # -- premises

    def make_premise(self, nodes: Iterable[SchemaNode]) -> Premise:
        """Return the premise for instances at a new place."""
        resolved = _resolve_nodes(nodes)
        if not self.declared_only:
            return Premise(resolved)
        key = frozenset(map(id, resolved))
        if key not in self._declared_names:
            self._declared_names[key] = find_declared_names(resolved)
            self._keep_alive.append(resolved)
        return Premise(resolved, declared_names=self._declared_names[key])

    def make_inner_premise(self, outer: Premise, nodes: Iterable[SchemaNode]) -> Premise:
        """Return the premise for instances that are part of others."""
        return (
            Premise(_resolve_nodes(nodes))
            if outer.declared_names is None
            else self.make_premise(nodes)
        )

    def facts(self, premise: Premise) -> SchemaFacts:
        key = (frozenset(map(id, premise.nodes)), premise.kinds)
        facts = self._facts.get(key)
        if facts is None:
            facts = self._facts[key] = SchemaFacts(premise.nodes, premise.kinds)
            self._keep_alive.append(premise.nodes)
        return facts

    # -- proofs

    def proves_all(self, premise: Premise, goal: Iterable[SchemaNode]) -> bool:
        """Return whether all goals hold for every instance."""
        return all(self.proves(premise, node) for node in goal)

    def proves(self, premise: Premise, goal: SchemaNode, level: int = 0) -> bool:
        """Return whether every instance is an instance of the goal.

        Args:
            level: the number of steps into the instance.
        """
        goal = _resolve_node(goal)
        if goal.value is True or self._is_same_class(premise, goal):
            return True
        key = (premise.key, id(goal))
        if key in self._granted_pairs and level >= self._granted_from_level:
            return True
        result = self._results.get(key)
        if result is not None:
            return result
        start_level = self._in_progress.get(key)
        if start_level is not None:
            self._assumed.add(key)
            return start_level < level
        if not self._use_budget():
            return False
        self._keep_alive.append((premise, goal))
        self._in_progress[key] = level
        self._depth += 1
        mark = len(self._proven)
        try:
            is_proven = self._prove(premise, goal, level)
        finally:
            del self._in_progress[key]
            self._depth -= 1
        if not is_proven and key in self._assumed:
            # Results since then may depend on the failed assumption.
            for dependent in self._proven[mark:]:
                self._results.pop(dependent, None)
            del self._proven[mark:]
        self._assumed.discard(key)
        self._results[key] = is_proven
        if is_proven:
            self._proven.append(key)
        return is_proven

    def prove_shared_references(self, is_forward: bool) -> None:
        """Prove for references of the same name that one target is contained in the other.

        Each proof may assume all others for deeper levels of the instance; if all proofs succeed,
        all statements hold. This avoids a walk along every path through schemas that refer to each
        other.

        Args:
            is_forward: prove from the first document to the second.
        """
        shared = self.classes.shared
        if len(shared.changed_pairs) > _MAX_SHARED_REFERENCES:
            return
        pairs: dict[str, tuple[Premise, SchemaNode, Any]] = {}
        for name, (old, new) in shared.changed_pairs.items():
            source, target = (old, new) if is_forward else (new, old)
            premise = self.make_premise([source])
            pairs[name] = (premise, _resolve_node(target), (premise.key, id(_resolve_node(target))))
        self._keep_alive.append(pairs)
        self._granted_pairs = {key for _, _, key in pairs.values()}
        self._granted_from_level = 1
        unproven = dict.fromkeys(sorted(pairs))
        while unproven and self._steps <= MAX_STEPS:
            name = next(iter(unproven))
            del unproven[name]
            premise, goal, key = pairs[name]
            if key in self._granted_pairs and not self._prove(premise, goal, 0):
                self._granted_pairs.discard(key)
                # Results that used the failed statement must be proven again.
                self._results.clear()
                self._proven.clear()
                unproven |= self._find_dependents(name, pairs)
        if unproven:
            self._granted_pairs.clear()
        self._results.clear()
        self._proven.clear()
        self._granted_from_level = self._steps = 0
        self.is_exhausted = False

    def _find_dependents(self, name: str, pairs: dict[str, Any]) -> dict[str, None]:
        """Return pairs whose proof may have used this one, directly or through pairs that
        failed."""
        dependents: dict[str, None] = {}
        failed = [name]
        while failed:
            for other in sorted(self.classes.shared.referrers_of(failed.pop())):
                if other in pairs and other not in dependents:
                    dependents[other] = None
                    if pairs[other][2] not in self._granted_pairs:
                        failed.append(other)
        return dependents

    def _use_budget(self, steps: int = 1) -> bool:
        self._steps += steps
        if self._steps > MAX_STEPS or self._depth >= _MAX_DEPTH:
            self.is_exhausted = True
            return False
        return True

    def _is_same_class(self, premise: Premise, goal: SchemaNode) -> bool:
        number = self.classes.class_of(goal)
        return any(self.classes.class_of(node) == number for node in premise.nodes)

    def _prove(self, premise: Premise, goal: SchemaNode, level: int) -> bool:
        facts = self.facts(premise)
        if not facts.kinds:
            return True
        if not self._use_budget(goal.size // _SIZE_PER_STEP + facts.size // _SIZE_PER_STEP):
            return False
        if facts.values is not None:
            self._steps += len(facts.values) // _SIZE_PER_STEP
            return all(goal.document.accepts(goal, value) for value in facts.values)
        if goal.is_false:
            return self.is_empty(premise)
        number = self.classes.class_of(goal)
        if any(self.classes.class_of(node) == number for node in facts.nodes):
            return True
        if self._proves_keywords(premise, facts, goal, level):
            return True
        return self._proves_cases(premise, facts, goal, level)

    def _proves_keywords(
        self, premise: Premise, facts: SchemaFacts, goal: SchemaNode, level: int
    ) -> bool:
        for keyword in goal.keywords:
            rule = RULES.get(keyword)
            if rule is not None and not rule(self, premise, facts, goal, level):
                return False
        return True

    def _proves_cases(
        self, premise: Premise, facts: SchemaFacts, goal: SchemaNode, level: int
    ) -> bool:
        if len(premise.split_unions) < _MAX_SPLITS:
            goal_keywords = self.classes.keyword_values(goal)
            proven_classes = (
                goal_keywords["anyOf"] if goal_keywords.keys() == {"anyOf"} else frozenset()
            )
            for cases in self._split_by_unions(premise, facts, proven_classes):
                return all(self.proves(case, goal, level) for case in cases)
        if not any(keyword in goal.keywords for keyword in _UNION_KEYWORDS):
            return False
        groups = [facts.kinds & group for group in _KIND_GROUPS if facts.kinds & group]
        if len(groups) < 2:
            return False
        return all(
            self.proves(
                Premise(premise.nodes, group, premise.split_unions, premise.declared_names),
                goal,
                level,
            )
            for group in groups
        )

    def _split_by_unions(
        self, premise: Premise, facts: SchemaFacts, proven_classes: frozenset[int] = frozenset()
    ) -> Iterable[list[Premise]]:
        """Yield the premises of the branches of each union that applies to the instances.

        Args:
            proven_classes: the classes of branches that need no proof.
        """
        for node in facts.nodes:
            for keyword in ("anyOf", "oneOf"):
                if keyword in node.keywords and (id(node), keyword) not in premise.split_unions:
                    union = (id(node), keyword)
                    yield [
                        premise.with_nodes(branch, union=union)
                        for branch in node.subschemas(keyword)
                        if self.classes.class_of(branch) not in proven_classes
                    ]
            if "if" in node.keywords and (id(node), "if") not in premise.split_unions:
                condition = (id(node), "if")
                then_nodes = [
                    node.subschema(keyword)
                    for keyword in ("if", "then")
                    if keyword in node.keywords
                ]
                else_nodes = [node.subschema("else")] if "else" in node.keywords else []
                yield [
                    premise.with_nodes(*then_nodes, union=condition),
                    premise.with_nodes(*else_nodes, union=condition),
                ]

    # -- emptiness

    def are_disjoint(self, premise: Premise, node: SchemaNode, depth: int = 0) -> bool:
        """Return whether no instance is an instance of `node`, too."""
        return self.is_empty(Premise((*premise.nodes, node), premise.kinds), depth)

    def is_empty(self, premise: Premise, depth: int = 0) -> bool:
        """Return whether there is no instance."""
        if depth > _MAX_EMPTINESS_DEPTH or not self._use_budget():
            return False
        facts = self.facts(premise)
        if not facts.kinds:
            return True
        if facts.values is not None:
            return not facts.values
        if self._is_excluded(facts, depth) or self._has_no_branch(premise, facts, depth):
            return True
        return (
            (
                not facts.kinds & STRING
                or facts.minimum_of("minLength") > facts.maximum_of("maxLength")
            )
            and (not facts.kinds & NUMBER or _has_no_number(facts))
            and (not facts.kinds & ARRAY or self._has_no_array(facts, depth))
            and (not facts.kinds & OBJECT or self._has_no_object(facts, depth))
            and not facts.kinds & ~(STRING | NUMBER | ARRAY | OBJECT)
        )

    def _is_excluded(self, facts: SchemaFacts, depth: int) -> bool:
        """Return whether one of the schemas excludes what another requires."""
        for node in facts.nodes_with("not"):
            excluded = node.subschema("not")
            other_nodes = tuple(other for other in facts.nodes if other is not node)
            if excluded.value is True or (
                other_nodes and self._proves_in_emptiness(Premise(other_nodes), excluded, depth)
            ):
                return True
        return False

    def _proves_in_emptiness(self, premise: Premise, goal: SchemaNode, depth: int) -> bool:
        # A proof within a proof of emptiness has no level to count from.
        return depth < 2 and self.proves(premise, goal, -1)

    def _has_no_branch(self, premise: Premise, facts: SchemaFacts, depth: int) -> bool:
        if len(premise.split_unions) >= _MAX_SPLITS:
            return False
        return any(
            all(self.is_empty(case, depth + 1) for case in cases)
            for cases in self._split_by_unions(premise, facts)
        )

    def _has_no_array(self, facts: SchemaFacts, depth: int) -> bool:
        if facts.min_items > facts.max_items:
            return True
        return any(
            self.is_empty(Premise(tuple(facts.item_schemas(index))), depth + 1)
            for index in range(min(facts.min_items, facts.prefix_length + 1))
        )

    def _has_no_object(self, facts: SchemaFacts, depth: int) -> bool:
        if facts.min_properties > facts.max_properties:
            return True
        return any(
            facts.is_absent(name)
            or self.is_empty(Premise(tuple(facts.member_schemas(name))), depth + 1)
            for name in facts.required
        )


def _resolve_nodes(nodes: Iterable[SchemaNode]) -> tuple[SchemaNode, ...]:
    return tuple(dict.fromkeys(_resolve_node(node) for node in nodes))


def _resolve_node(node: SchemaNode) -> SchemaNode:
    """Resolve a schema that is only a reference."""
    while "$ref" in node.keywords and not any(
        keyword in RULES for keyword in node.keywords if keyword != "$ref"
    ):
        reference = node.document.reference(node)
        if reference is None or reference[0] is None:
            break
        node = reference[0]
    return node


def _has_no_number(facts: SchemaFacts) -> bool:
    low, high = facts.lowest, facts.highest
    if low > high:
        return True
    is_exclusive = facts.lower[1] or facts.upper[1]
    return low == high and is_exclusive and bool(facts.kinds & FRACTION)
