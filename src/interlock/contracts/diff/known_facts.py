"""Facts about an instance for which several schemas hold at once.

Where a schema is understood only in part, fewer facts are known. A fact never claims too much,
because proofs rely on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from math import ceil, floor
from typing import Any, Final

from msgspec import Struct

from interlock.contracts.diff.documents import SchemaNode, iterate_in_place
from interlock.contracts.diff.equivalence import (
    ANYTHING,
    BOOLEAN,
    FRACTION,
    INTEGER,
    NULL,
    OBJECT,
    type_kinds,
    value_kind,
)

# -- The members and items of an instance that a schema evaluates, for `unevaluatedProperties` and
# `unevaluatedItems`.
#
# This depends on the instance wherever one of several schemas may apply. So there are two results:
# what is always evaluated, and what may be evaluated. A premise uses the second, a goal of a proof
# the first.

_CHOICE_KEYWORDS: Final = ("anyOf", "oneOf")
_CONDITION_KEYWORDS: Final = ("if", "then", "else")
_MAX_EVALUATION_STEPS: Final = 100


class EvaluatedMembers(Struct):
    """Evaluated members and items. None: all of them, or unknown."""

    names: set[str] | None
    patterns: list[str]
    items: int | None


def possibly_evaluated(node: SchemaNode) -> EvaluatedMembers:
    """Return everything that a schema and its parts may evaluate on some instance."""
    return _find_evaluated(node, include_possible=True)


def always_evaluated(node: SchemaNode) -> EvaluatedMembers:
    """Return everything that a schema evaluates on every instance."""
    return _find_evaluated(node, include_possible=False)


def _find_evaluated(top: SchemaNode, *, include_possible: bool) -> EvaluatedMembers:
    evaluated = EvaluatedMembers(set(), [], 0)
    visited: set[int] = set()
    unvisited = [top]
    while unvisited:
        node = unvisited.pop()
        if id(node) in visited:
            continue
        visited.add(id(node))
        if len(visited) > _MAX_EVALUATION_STEPS:
            return EvaluatedMembers(None, [], None) if include_possible else evaluated
        _add_evaluated(
            evaluated, node, is_nested=node is not top, include_possible=include_possible
        )
        keywords = node.keywords
        reference = node.document.reference(node)
        if reference is not None:
            if reference[0] is not None:
                unvisited.append(reference[0])
            elif include_possible:
                return EvaluatedMembers(None, [], None)
        if "allOf" in keywords:
            unvisited += node.subschemas("allOf")
        if not include_possible:
            continue
        for keyword in _CHOICE_KEYWORDS:
            if keyword in keywords:
                unvisited += node.subschemas(keyword)
        unvisited += [
            node.subschema(keyword) for keyword in _CONDITION_KEYWORDS if keyword in keywords
        ]
        for keyword in ("dependentSchemas", "dependencies"):
            dependencies = keywords.get(keyword, {})
            unvisited += [
                node.named_subschema(keyword, name)
                for name in dependencies
                if not isinstance(dependencies[name], list)
            ]
    return evaluated


def _add_evaluated(
    evaluated: EvaluatedMembers, node: SchemaNode, *, is_nested: bool, include_possible: bool
) -> None:
    keywords = node.keywords
    if evaluated.names is not None:
        evaluated.names.update(keywords.get("properties", ()))
        evaluated.patterns.extend(keywords.get("patternProperties", ()))
        if "additionalProperties" in keywords or (
            is_nested and "unevaluatedProperties" in keywords
        ):
            evaluated.names = None
    if evaluated.items is not None:
        evaluated.items = max(evaluated.items, len(keywords.get("prefixItems", ())))
        has_all_items = "items" in keywords or (is_nested and "unevaluatedItems" in keywords)
        if has_all_items or (include_possible and "contains" in keywords):
            evaluated.items = None


_MAX_NODES: Final = 200
_MAX_VALUES: Final = 2_000
_MAX_INTEGERS: Final = 64
_MAX_UNION_DEPTH: Final = 3
UNBOUNDED: Final = float("inf")

RestSchema = tuple[set[str], list[str], SchemaNode]
"""Names and patterns that are described elsewhere, and the schema for all other members."""


class SchemaFacts:
    """All facts about an instance for which all of these schemas hold."""

    def __init__(
        self, nodes: Iterable[SchemaNode], kinds: int = ANYTHING, union_depth: int = 0
    ) -> None:
        self._union_depth = union_depth
        self.nodes = _expand(nodes)
        self.kinds = kinds & self._find_kinds()
        while self.kinds == OBJECT:
            # Dependent schemas apply to objects that surely have the member.
            expanded = _expand([*self.nodes, *_dependent_schemas(self.nodes)])
            if len(expanded) == len(self.nodes):
                break
            self.nodes = expanded
            self.kinds &= self._find_kinds()

    @cached_property
    def size(self) -> int:
        """The amount of work to walk through the schemas."""
        return sum(node.size for node in self.nodes)

    def nodes_with(self, keyword: str) -> Iterator[SchemaNode]:
        """Yield the schemas that have a keyword."""
        return (node for node in self.nodes if keyword in node.keywords)

    def _find_kinds(self) -> int:
        kinds = ANYTHING
        for node in self.nodes:
            keywords = node.keywords
            if node.is_false:
                return 0
            if "type" in keywords:
                kinds &= type_kinds(keywords["type"])
            if "const" in keywords:
                kinds &= value_kind(keywords["const"])
            if "enum" in keywords:
                kinds &= _combine_kinds(value_kind(value) for value in keywords["enum"])
            excluded = keywords.get("not")
            if isinstance(excluded, dict) and excluded.keys() == {"type"}:
                kinds &= ~type_kinds(excluded["type"])
            if self._union_depth < _MAX_UNION_DEPTH:
                for keyword in ("anyOf", "oneOf"):
                    if keyword in keywords and len(keywords[keyword]) <= _MAX_NODES:
                        kinds &= _combine_kinds(
                            _branch_kinds(branch, self._union_depth + 1)
                            for branch in node.subschemas(keyword)
                        )
        return kinds

    # -- finite sets

    @cached_property
    def values(self) -> list[Any] | None:
        """A list with all instances, if they can be counted. It may contain values that are no
        instances."""
        candidates = self._candidates()
        if candidates is None:
            return None
        return [
            value
            for value in candidates
            if value_kind(value) & self.kinds
            and not any(node.document.accepts(node, value) is False for node in self.nodes)
        ]

    def _candidates(self) -> list[Any] | None:
        lists: list[list[Any]] = []
        for node in self.nodes:
            if "const" in node.keywords:
                lists.append([node.keywords["const"]])
            if "enum" in node.keywords:
                lists.append(node.keywords["enum"])
        if lists:
            shortest = min(lists, key=len)
            return shortest if len(shortest) <= _MAX_VALUES else None
        if not self.kinds & ~(NULL | BOOLEAN):
            return [None, False, True]
        if not self.kinds & ~INTEGER:
            low, high = self.lowest, self.highest
            if high - low < _MAX_INTEGERS:
                return list(range(int(low), int(high) + 1))
        return None

    # -- numbers

    def _tightest(
        self, keyword: str, exclusive: str, select: Callable[..., float]
    ) -> tuple[float | None, bool]:
        """Return the effective bound, and whether the bound itself is excluded."""
        bounds = [(node.keywords[keyword], False) for node in self.nodes_with(keyword)]
        bounds += [(node.keywords[exclusive], True) for node in self.nodes_with(exclusive)]
        if not bounds:
            return None, False
        bound = select(value for value, _ in bounds)
        return bound, any(is_exclusive for value, is_exclusive in bounds if value == bound)

    @cached_property
    def lower(self) -> tuple[float | None, bool]:
        return self._tightest("minimum", "exclusiveMinimum", max)

    @cached_property
    def upper(self) -> tuple[float | None, bool]:
        return self._tightest("maximum", "exclusiveMaximum", min)

    @cached_property
    def lowest(self) -> float:
        """The lowest number, or the lowest integer if all numbers are integers; possibly minus
        infinity."""
        bound, is_exclusive = self.lower
        if bound is None:
            return -UNBOUNDED
        if self.kinds & FRACTION:
            return bound
        return floor(bound) + 1 if is_exclusive else ceil(bound)

    @cached_property
    def highest(self) -> float:
        bound, is_exclusive = self.upper
        if bound is None:
            return UNBOUNDED
        if self.kinds & FRACTION:
            return bound
        return ceil(bound) - 1 if is_exclusive else floor(bound)

    # -- lengths

    def minimum_of(self, keyword: str) -> int:
        return max((int(node.keywords[keyword]) for node in self.nodes_with(keyword)), default=0)

    def maximum_of(self, keyword: str) -> float:
        return min((node.keywords[keyword] for node in self.nodes_with(keyword)), default=UNBOUNDED)

    @cached_property
    def min_items(self) -> int:
        minimum = self.minimum_of("minItems")
        for node in self.nodes_with("contains"):
            minimum = max(minimum, int(node.keywords.get("minContains", 1)))
        return minimum

    @cached_property
    def max_items(self) -> float:
        maximum = self.maximum_of("maxItems")
        for node in self.nodes_with("items"):
            if node.keywords["items"] is False:
                maximum = min(maximum, len(node.keywords.get("prefixItems", ())))
        return maximum

    @cached_property
    def min_properties(self) -> int:
        return max(self.minimum_of("minProperties"), len(self.required))

    @cached_property
    def max_properties(self) -> float:
        maximum = self.maximum_of("maxProperties")
        for node in self.nodes:
            rest_schema = find_rest_schema(node)
            if rest_schema is not None and rest_schema[2].is_false and not rest_schema[1]:
                maximum = min(maximum, sum(not self.is_absent(name) for name in rest_schema[0]))
        return maximum

    # -- members of an object

    @cached_property
    def required(self) -> frozenset[str]:
        return _required_names(self.nodes)

    @cached_property
    def names(self) -> set[str]:
        """All names for which one of the schemas has a subschema."""
        return {
            name for node in self.nodes_with("properties") for name in node.keywords["properties"]
        }

    def member_schemas(self, name: str) -> list[SchemaNode]:
        """Return the schemas that apply to the member of this name."""
        schemas: list[SchemaNode] = []
        for node in self.nodes:
            matching_schemas, is_certain = _matching_schemas(node, name)
            schemas += matching_schemas
            rest_schema = find_rest_schema(node)
            if rest_schema is None or not is_certain or name in rest_schema[0]:
                continue
            matches = [node.document.matches(pattern, name) for pattern in rest_schema[1]]
            if not any(match is not False for match in matches):
                schemas.append(rest_schema[2])
        return schemas

    def is_absent(self, name: str) -> bool:
        """Return whether no instance has a member of this name."""
        if any(node.is_false for node in self.member_schemas(name)):
            return True
        return any(
            node.document.accepts(node.subschema("propertyNames"), name) is False
            for node in self.nodes_with("propertyNames")
        )

    # -- items of an array

    @cached_property
    def prefix_length(self) -> int:
        """From this position on, all items have the same schemas."""
        return max(
            (len(node.keywords["prefixItems"]) for node in self.nodes_with("prefixItems")),
            default=0,
        )

    def item_schemas(self, index: int) -> list[SchemaNode]:
        """Return the schemas that apply to the item at an index."""
        schemas: list[SchemaNode] = []
        for node in self.nodes:
            prefix = node.keywords.get("prefixItems", ())
            if index < len(prefix):
                schemas.append(node.subschemas("prefixItems")[index])
            elif "items" in node.keywords:
                schemas.append(node.subschema("items"))
            elif "unevaluatedItems" in node.keywords:
                evaluated_items = possibly_evaluated(node).items
                if evaluated_items is not None and index >= evaluated_items:
                    schemas.append(node.subschema("unevaluatedItems"))
        return schemas


def find_rest_schema(node: SchemaNode) -> RestSchema | None:
    """Return what a schema demands of members that it does not name."""
    keywords = node.keywords
    if "additionalProperties" in keywords:
        names = set(keywords.get("properties", ()))
        return (
            names,
            list(keywords.get("patternProperties", ())),
            node.subschema("additionalProperties"),
        )
    if "unevaluatedProperties" in keywords:
        evaluated = possibly_evaluated(node)
        if evaluated.names is not None:
            return evaluated.names, evaluated.patterns, node.subschema("unevaluatedProperties")
    return None


def _matching_schemas(node: SchemaNode, name: str) -> tuple[list[SchemaNode], bool]:
    """Return the schemas under `properties` and `patternProperties` for a name, and whether they
    are certain."""
    schemas: list[SchemaNode] = []
    is_certain = True
    if name in node.keywords.get("properties", ()):
        schemas.append(node.named_subschema("properties", name))
    for pattern in node.keywords.get("patternProperties", ()):
        match = node.document.matches(pattern, name)
        if match:
            schemas.append(node.named_subschema("patternProperties", pattern))
        is_certain = is_certain and match is not None
    return schemas, is_certain


def _expand(nodes: Iterable[SchemaNode]) -> list[SchemaNode]:
    """Return the schemas with all schemas that they refer to or contain in `allOf`."""
    expanded: dict[int, SchemaNode] = {}
    unvisited = list(nodes)[::-1]
    while unvisited and len(expanded) < _MAX_NODES:
        node = unvisited.pop()
        if id(node) in expanded:
            continue
        expanded[id(node)] = node
        reference = node.document.reference(node)
        if reference is not None and reference[0] is not None:
            unvisited.append(reference[0])
        if "allOf" in node.keywords:
            unvisited += node.subschemas("allOf")[::-1]
    return list(expanded.values())


def _dependent_schemas(nodes: Iterable[SchemaNode]) -> list[SchemaNode]:
    required = _required_names(nodes)
    return [
        node.named_subschema("dependentSchemas", name)
        for node in nodes
        for name in node.keywords.get("dependentSchemas", ())
        if name in required
    ]


def _required_names(nodes: Iterable[SchemaNode]) -> frozenset[str]:
    """Return the names that every instance has, including dependent members."""
    required: set[str] = set()
    dependencies: dict[str, set[str]] = {}
    for node in nodes:
        required.update(node.keywords.get("required", ()))
        for name, required_names in node.keywords.get("dependentRequired", {}).items():
            dependencies.setdefault(name, set()).update(required_names)
    unvisited = list(required)
    while unvisited and dependencies:
        for other in dependencies.pop(unvisited.pop(), ()):
            if other not in required:
                required.add(other)
                unvisited.append(other)
    return frozenset(required)


def _branch_kinds(branch: SchemaNode, union_depth: int) -> int:
    if branch.kinds is None:
        branch.kinds = SchemaFacts([branch], union_depth=union_depth).kinds
    return branch.kinds


def _combine_kinds(kinds: Iterable[int]) -> int:
    combined = 0
    for kind in kinds:
        combined |= kind
    return combined


# -- The premise of a proof: instances of some schemas, and the members that they may have.

_MAX_NAME_STEPS: Final = 400


class DeclaredNames:
    """The names that the schemas of one place mention. Other names count as not sent."""

    __slots__ = ("names", "patterns")

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.patterns: list[tuple[SchemaNode, str]] = []

    def may_have(self, name: str) -> bool:
        return name in self.names or any(
            node.document.matches(pattern, name) is not False for node, pattern in self.patterns
        )


class Premise(Struct, frozen=True):
    """The instances of a proof: all of these schemas hold for them."""

    nodes: tuple[SchemaNode, ...]
    kinds: int = ANYTHING
    split_unions: frozenset[tuple[int, str]] = frozenset()
    """Unions whose cases are already separated."""
    declared_names: DeclaredNames | None = None
    """The members that count, if only members that a schema names do."""

    def with_nodes(self, *nodes: SchemaNode, union: tuple[int, str] | None = None) -> Premise:
        """Return the premise for the instances for which these schemas hold, too."""
        split_unions = self.split_unions if union is None else self.split_unions | {union}
        return Premise((*self.nodes, *nodes), self.kinds, split_unions, self.declared_names)

    @property
    def key(self) -> tuple[frozenset[int], int, frozenset[tuple[int, str]], int]:
        return (
            frozenset(map(id, self.nodes)),
            self.kinds,
            self.split_unions,
            id(self.declared_names),
        )


class MentionedNames(DeclaredNames):
    """The names that schemas mention in any branch, and whether they explicitly allow others."""

    __slots__ = ("has_properties", "is_open")

    def __init__(self) -> None:
        super().__init__()
        self.has_properties = False
        self.is_open = False


def find_mentioned_names(nodes: Iterable[SchemaNode]) -> MentionedNames:
    """Return the names that the schemas of one place mention."""
    mentioned = MentionedNames()
    visited: set[int] = set()
    unvisited = list(nodes)
    while unvisited:
        node = unvisited.pop()
        if id(node) in visited:
            continue
        visited.add(id(node))
        reference = node.document.reference(node)
        if len(visited) > _MAX_NAME_STEPS or (reference is not None and reference[0] is None):
            mentioned.is_open = True
            break
        _add_mentioned_names(mentioned, node)
        unvisited += iterate_in_place(node)
    return mentioned


def _add_mentioned_names(mentioned: MentionedNames, node: SchemaNode) -> None:
    keywords = node.keywords
    mentioned.has_properties = mentioned.has_properties or "properties" in keywords
    # A forbidden member is mentioned, but never sent.
    mentioned.names.update(
        name for name, subschema in keywords.get("properties", {}).items() if subschema is not False
    )
    mentioned.names.update(keywords.get("required", ()))
    mentioned.names.update(keywords.get("dependentSchemas", ()))
    for name, required_names in keywords.get("dependentRequired", {}).items():
        mentioned.names.update((name, *required_names))
    mentioned.patterns += [(node, pattern) for pattern in keywords.get("patternProperties", ())]
    for keyword in ("additionalProperties", "unevaluatedProperties"):
        if keyword in keywords and keywords[keyword] is not False:
            mentioned.is_open = True


def find_declared_names(nodes: Iterable[SchemaNode]) -> DeclaredNames | None:
    """Return the names that may be sent if only named members count. None: any name."""
    mentioned = find_mentioned_names(nodes)
    return mentioned if mentioned.has_properties and not mentioned.is_open else None
