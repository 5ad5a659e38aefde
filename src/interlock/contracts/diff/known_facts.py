"""What is known of an instance that several schemas hold true for at once.

Where a schema is only partly understood, less is known: facts never claim too much, which is what
a proof stands on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from math import ceil, floor
from typing import Any, Final

from msgspec import Struct

from interlock.contracts.diff.documents import SchemaNode, in_place
from interlock.contracts.diff.equivalence import (
    ANYTHING,
    BOOLEAN,
    FRACTION,
    INTEGER,
    NULL,
    OBJECT,
    kind_of,
    kinds_of,
)

# -- Which members and items of an instance a schema has looked at, for `unevaluatedProperties`
# and `unevaluatedItems`.
#
# That depends on the instance wherever one of several schemas may hold. So there are two answers:
# what is looked at in any case, and what could be. Whoever relies on the word takes the second,
# whoever has to fulfil it the first.

_SOMETIMES: Final = ("anyOf", "oneOf")
_ARMS: Final = ("if", "then", "else")
_MOST_STEPS: Final = 100


class EvaluatedMembers(Struct):
    """What was looked at. None: everything, or nobody knows."""

    names: set[str] | None
    patterns: list[str]
    items: int | None


def most_evaluated(node: SchemaNode) -> EvaluatedMembers:
    """All that may have been looked at by a schema and its parts, on some instance."""
    return _look(node, sometimes=True)


def least_evaluated(node: SchemaNode) -> EvaluatedMembers:
    """All that was looked at for certain, on every instance."""
    return _look(node, sometimes=False)


def _look(top: SchemaNode, *, sometimes: bool) -> EvaluatedMembers:
    found = EvaluatedMembers(set(), [], 0)
    seen: set[int] = set()
    waiting = [top]
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if len(seen) > _MOST_STEPS:
            return EvaluatedMembers(None, [], None) if sometimes else found
        _add(found, node, inside=node is not top, sometimes=sometimes)
        words = node.words
        reference = node.document.reference(node)
        if reference is not None:
            if reference[0] is not None:
                waiting.append(reference[0])
            elif sometimes:
                return EvaluatedMembers(None, [], None)
        if "allOf" in words:
            waiting += node.listed("allOf")
        if not sometimes:
            continue
        for word in _SOMETIMES:
            if word in words:
                waiting += node.listed(word)
        waiting += [node.one(word) for word in _ARMS if word in words]
        for word in ("dependentSchemas", "dependencies"):
            said = words.get(word, {})
            waiting += [node.named(word, one) for one in said if not isinstance(said[one], list)]
    return found


def _add(found: EvaluatedMembers, node: SchemaNode, *, inside: bool, sometimes: bool) -> None:
    words = node.words
    if found.names is not None:
        found.names.update(words.get("properties", ()))
        found.patterns.extend(words.get("patternProperties", ()))
        if "additionalProperties" in words or (inside and "unevaluatedProperties" in words):
            found.names = None
    if found.items is not None:
        found.items = max(found.items, len(words.get("prefixItems", ())))
        everything = "items" in words or (inside and "unevaluatedItems" in words)
        if everything or (sometimes and "contains" in words):
            found.items = None


_MOST_NODES: Final = 200
_MOST_VALUES: Final = 2_000
_MOST_INTEGERS: Final = 64
_MOST_UNIONS: Final = 3
UNBOUNDED: Final = float("inf")

RestSchema = tuple[set[str], list[str], SchemaNode]
"""Names and patterns that something else speaks of, and the schema for all other members."""


class SchemaFacts:
    """Everything that holds for an instance of all of these schemas."""

    def __init__(self, nodes: Iterable[SchemaNode], kinds: int = ANYTHING, unions: int = 0) -> None:
        self._unions = unions
        self.nodes = _expanded(nodes)
        self.kinds = kinds & self._kinds()
        while self.kinds == OBJECT:
            # What a member brings along holds for objects that are known to have it.
            more = _expanded([*self.nodes, *_brought(self.nodes)])
            if len(more) == len(self.nodes):
                break
            self.nodes = more
            self.kinds &= self._kinds()

    @cached_property
    def length(self) -> int:
        """How much there is to walk through."""
        return sum(node.length for node in self.nodes)

    def having(self, word: str) -> Iterator[SchemaNode]:
        """The schemas among them that use a word."""
        return (node for node in self.nodes if word in node.words)

    def _kinds(self) -> int:
        kinds = ANYTHING
        for node in self.nodes:
            words = node.words
            if node.never:
                return 0
            if "type" in words:
                kinds &= kinds_of(words["type"])
            if "const" in words:
                kinds &= kind_of(words["const"])
            if "enum" in words:
                kinds &= _union(kind_of(value) for value in words["enum"])
            refused = words.get("not")
            if isinstance(refused, dict) and refused.keys() == {"type"}:
                kinds &= ~kinds_of(refused["type"])
            if self._unions < _MOST_UNIONS:
                for word in ("anyOf", "oneOf"):
                    if word in words and len(words[word]) <= _MOST_NODES:
                        kinds &= _union(
                            _kinds_of_branch(branch, self._unions + 1)
                            for branch in node.listed(word)
                        )
        return kinds

    # -- finite sets

    @cached_property
    def values(self) -> list[Any] | None:
        """All instances that there are, where these can be counted; some may be no instances."""
        candidates = self._candidates()
        if candidates is None:
            return None
        return [
            value
            for value in candidates
            if kind_of(value) & self.kinds
            and not any(node.document.accepts(node, value) is False for node in self.nodes)
        ]

    def _candidates(self) -> list[Any] | None:
        lists: list[list[Any]] = []
        for node in self.nodes:
            if "const" in node.words:
                lists.append([node.words["const"]])
            if "enum" in node.words:
                lists.append(node.words["enum"])
        if lists:
            shortest = min(lists, key=len)
            return shortest if len(shortest) <= _MOST_VALUES else None
        if not self.kinds & ~(NULL | BOOLEAN):
            return [None, False, True]
        if not self.kinds & ~INTEGER:
            low, high = self.lowest, self.highest
            if high - low < _MOST_INTEGERS:
                return list(range(int(low), int(high) + 1))
        return None

    # -- numbers

    def _tightest(
        self, word: str, exclusive: str, pick: Callable[..., float]
    ) -> tuple[float | None, bool]:
        """The bound that counts, and whether the bound itself is out."""
        bounds = [(node.words[word], False) for node in self.having(word)]
        bounds += [(node.words[exclusive], True) for node in self.having(exclusive)]
        if not bounds:
            return None, False
        bound = pick(value for value, _ in bounds)
        return bound, any(out for value, out in bounds if value == bound)

    @cached_property
    def lower(self) -> tuple[float | None, bool]:
        return self._tightest("minimum", "exclusiveMinimum", max)

    @cached_property
    def upper(self) -> tuple[float | None, bool]:
        return self._tightest("maximum", "exclusiveMaximum", min)

    @cached_property
    def lowest(self) -> float:
        """The lowest number, or the lowest integer where all are integers; minus infinity."""
        bound, out = self.lower
        if bound is None:
            return -UNBOUNDED
        if self.kinds & FRACTION:
            return bound
        return floor(bound) + 1 if out else ceil(bound)

    @cached_property
    def highest(self) -> float:
        bound, out = self.upper
        if bound is None:
            return UNBOUNDED
        if self.kinds & FRACTION:
            return bound
        return ceil(bound) - 1 if out else floor(bound)

    # -- lengths

    def at_least(self, word: str) -> int:
        return max((int(node.words[word]) for node in self.having(word)), default=0)

    def at_most(self, word: str) -> float:
        return min((node.words[word] for node in self.having(word)), default=UNBOUNDED)

    @cached_property
    def min_items(self) -> int:
        least = self.at_least("minItems")
        for node in self.having("contains"):
            least = max(least, int(node.words.get("minContains", 1)))
        return least

    @cached_property
    def max_items(self) -> float:
        most = self.at_most("maxItems")
        for node in self.having("items"):
            if node.words["items"] is False:
                most = min(most, len(node.words.get("prefixItems", ())))
        return most

    @cached_property
    def min_properties(self) -> int:
        return max(self.at_least("minProperties"), len(self.required))

    @cached_property
    def max_properties(self) -> float:
        most = self.at_most("maxProperties")
        for node in self.nodes:
            rest = rest_of(node)
            if rest is not None and rest[2].never and not rest[1]:
                most = min(most, sum(not self.absent(name) for name in rest[0]))
        return most

    # -- members of an object

    @cached_property
    def required(self) -> frozenset[str]:
        return _required(self.nodes)

    @cached_property
    def names(self) -> set[str]:
        """Every name that one of them has a schema for."""
        return {name for node in self.having("properties") for name in node.words["properties"]}

    def under(self, name: str) -> list[SchemaNode]:
        """The schemas that hold for the member of this name."""
        found: list[SchemaNode] = []
        for node in self.nodes:
            matched, sure = _matching(node, name)
            found += matched
            rest = rest_of(node)
            if rest is None or not sure or name in rest[0]:
                continue
            hits = [node.document.matches(pattern, name) for pattern in rest[1]]
            if not any(hit is not False for hit in hits):
                found.append(rest[2])
        return found

    def absent(self, name: str) -> bool:
        """Whether no instance has a member of this name."""
        if any(node.never for node in self.under(name)):
            return True
        return any(
            node.document.accepts(node.one("propertyNames"), name) is False
            for node in self.having("propertyNames")
        )

    # -- items of an array

    @cached_property
    def prefix(self) -> int:
        """From this position on all items are told apart by nobody."""
        return max(
            (len(node.words["prefixItems"]) for node in self.having("prefixItems")), default=0
        )

    def item(self, at: int) -> list[SchemaNode]:
        """The schemas that hold for the item at a position."""
        found: list[SchemaNode] = []
        for node in self.nodes:
            prefix = node.words.get("prefixItems", ())
            if at < len(prefix):
                found.append(node.listed("prefixItems")[at])
            elif "items" in node.words:
                found.append(node.one("items"))
            elif "unevaluatedItems" in node.words:
                reached = most_evaluated(node).items
                if reached is not None and at >= reached:
                    found.append(node.one("unevaluatedItems"))
        return found


def rest_of(node: SchemaNode) -> RestSchema | None:
    """What a schema says of members that it does not name."""
    words = node.words
    if "additionalProperties" in words:
        names = set(words.get("properties", ()))
        return names, list(words.get("patternProperties", ())), node.one("additionalProperties")
    if "unevaluatedProperties" in words:
        seen = most_evaluated(node)
        if seen.names is not None:
            return seen.names, seen.patterns, node.one("unevaluatedProperties")
    return None


def _matching(node: SchemaNode, name: str) -> tuple[list[SchemaNode], bool]:
    """The schemas under `properties` and `patternProperties` for a name; whether that is sure."""
    found: list[SchemaNode] = []
    sure = True
    if name in node.words.get("properties", ()):
        found.append(node.named("properties", name))
    for pattern in node.words.get("patternProperties", ()):
        hit = node.document.matches(pattern, name)
        if hit:
            found.append(node.named("patternProperties", pattern))
        sure = sure and hit is not None
    return found, sure


def _expanded(nodes: Iterable[SchemaNode]) -> list[SchemaNode]:
    """The schemas with all that they refer to or consist of."""
    found: dict[int, SchemaNode] = {}
    waiting = list(nodes)[::-1]
    while waiting and len(found) < _MOST_NODES:
        node = waiting.pop()
        if id(node) in found:
            continue
        found[id(node)] = node
        reference = node.document.reference(node)
        if reference is not None and reference[0] is not None:
            waiting.append(reference[0])
        if "allOf" in node.words:
            waiting += node.listed("allOf")[::-1]
    return list(found.values())


def _brought(nodes: Iterable[SchemaNode]) -> list[SchemaNode]:
    required = _required(nodes)
    return [
        node.named("dependentSchemas", name)
        for node in nodes
        for name in node.words.get("dependentSchemas", ())
        if name in required
    ]


def _required(nodes: Iterable[SchemaNode]) -> frozenset[str]:
    """Names that every instance has, those that others bring along included."""
    required: set[str] = set()
    brought: dict[str, set[str]] = {}
    for node in nodes:
        required.update(node.words.get("required", ()))
        for name, others in node.words.get("dependentRequired", {}).items():
            brought.setdefault(name, set()).update(others)
    waiting = list(required)
    while waiting and brought:
        for other in brought.pop(waiting.pop(), ()):
            if other not in required:
                required.add(other)
                waiting.append(other)
    return frozenset(required)


def _kinds_of_branch(branch: SchemaNode, unions: int) -> int:
    if branch.kinds is None:
        branch.kinds = SchemaFacts([branch], unions=unions).kinds
    return branch.kinds


def _union(kinds: Iterable[int]) -> int:
    found = 0
    for one in kinds:
        found |= one
    return found


# -- What a proof starts from: instances of some schemas, and which of their members may be there.

_GIVEN_MOST_STEPS: Final = 400


class DeclaredNames:
    """The names that the schemas of one place speak of. Others are taken not to be sent."""

    __slots__ = ("names", "patterns")

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.patterns: list[tuple[SchemaNode, str]] = []

    def may_have(self, name: str) -> bool:
        return name in self.names or any(
            node.document.matches(pattern, name) is not False for node, pattern in self.patterns
        )


class Premise(Struct, frozen=True):
    """Instances about which something is to be shown: they hold for all of these schemas."""

    nodes: tuple[SchemaNode, ...]
    kinds: int = ANYTHING
    split: frozenset[tuple[int, str]] = frozenset()
    """Unions that were told apart already."""
    sent: DeclaredNames | None = None
    """Where only those members count that a schema names: which these are."""

    def also(self, *more: SchemaNode, split: tuple[int, str] | None = None) -> Premise:
        """Those of the instances that hold for these, too."""
        known = self.split if split is None else self.split | {split}
        return Premise((*self.nodes, *more), self.kinds, known, self.sent)

    @property
    def key(self) -> tuple[frozenset[int], int, frozenset[tuple[int, str]], int]:
        return (frozenset(map(id, self.nodes)), self.kinds, self.split, id(self.sent))


class MentionedNames(DeclaredNames):
    """What schemas say of names in whatever branch, and whether they let others in expressly."""

    __slots__ = ("lists", "open")

    def __init__(self) -> None:
        super().__init__()
        self.lists = False
        self.open = False


def spoken_of(nodes: Iterable[SchemaNode]) -> MentionedNames:
    """The names that schemas of one place speak of."""
    found = MentionedNames()
    seen: set[int] = set()
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        reference = node.document.reference(node)
        if len(seen) > _GIVEN_MOST_STEPS or (reference is not None and reference[0] is None):
            found.open = True
            break
        _given_add(found, node)
        waiting += in_place(node)
    return found


def _given_add(found: MentionedNames, node: SchemaNode) -> None:
    words = node.words
    found.lists = found.lists or "properties" in words
    # A member that may not be there is spoken of, but never sent.
    found.names.update(
        name for name, one in words.get("properties", {}).items() if one is not False
    )
    found.names.update(words.get("required", ()))
    found.names.update(words.get("dependentSchemas", ()))
    for name, others in words.get("dependentRequired", {}).items():
        found.names.update((name, *others))
    found.patterns += [(node, pattern) for pattern in words.get("patternProperties", ())]
    for word in ("additionalProperties", "unevaluatedProperties"):
        if word in words and words[word] is not False:
            found.open = True


def declared_in(nodes: Iterable[SchemaNode]) -> DeclaredNames | None:
    """The names that may be sent where schemas are taken at their word. None: any."""
    spoken = spoken_of(nodes)
    return spoken if spoken.lists and not spoken.open else None
