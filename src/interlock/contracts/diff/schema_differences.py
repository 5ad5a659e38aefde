"""The parts of a comparison of two schemas: annotations, types, values, bounds, members, items,
unions and conditions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from interlock.contracts.diff.containment import can_have_member
from interlock.contracts.diff.differences import Difference, DifferenceKind
from interlock.contracts.diff.documents import (
    LIST_KEYWORDS,
    MAP_KEYWORDS,
    SCHEMA_KEYWORDS,
    SchemaNode,
)
from interlock.contracts.diff.equivalence import (
    ANYTHING,
    INTEGER,
    KINDS,
    NUMBER,
    comparison_key,
    type_kinds,
)
from interlock.contracts.diff.known_facts import (
    Premise,
    SchemaFacts,
    find_mentioned_names,
    find_rest_schema,
)

if TYPE_CHECKING:
    from interlock.contracts.diff.schemas import Comparison


_DESCRIPTION_KEYWORDS: Final = ("title", "description", "$comment", "examples")
_NOT_ANNOTATIONS: Final = frozenset(
    {
        *LIST_KEYWORDS, *MAP_KEYWORDS, *SCHEMA_KEYWORDS, *_DESCRIPTION_KEYWORDS,
        "type", "enum", "const", "required", "minimum", "maximum",
        "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength", "pattern",
        "minItems", "maxItems", "uniqueItems", "minContains", "maxContains", "minProperties",
        "maxProperties", "dependentRequired", "dependencies", "additionalItems", "$ref",
        "$dynamicRef", "$recursiveRef", "$defs", "definitions", "$id", "$schema", "$anchor",
        "$dynamicAnchor", "$recursiveAnchor", "$vocabulary", "default", "format",
    }
)  # fmt: skip
_MINIMUM_KEYWORDS: Final = ("minLength", "minItems", "minProperties")
_MAXIMUM_KEYWORDS: Final = ("maxLength", "maxItems", "maxProperties")
_MAX_LISTED_VALUES: Final = 50
_UNSET: Final = msgspec.UNSET


class SchemaSide:
    """One side of a comparison at one place: the schemas as written, and their facts."""

    __slots__ = ("facts", "nodes")

    def __init__(self, nodes: tuple[SchemaNode, ...], facts: SchemaFacts) -> None:
        self.nodes = nodes
        self.facts = facts

    def keyword_value(self, keyword: str) -> Any:
        """Return the value of a keyword in the first schema that has it. UNSET: no schema has
        it."""
        return next((node.keywords[keyword] for node in self.facts.nodes_with(keyword)), _UNSET)


def find_path(old: SchemaSide, new: SchemaSide, *keywords: str) -> str:
    """Return the path of a keyword: on the new side if it is there."""
    for side in (new, old):
        for keyword in keywords:
            for node in side.facts.nodes_with(keyword):
                return node.pointer_to(keyword)
    return (new.nodes or old.nodes)[0].path


def root_path(old: SchemaSide, new: SchemaSide) -> str:
    return (new.nodes or old.nodes)[0].path


# -- annotations


def diff_annotations(old: SchemaSide, new: SchemaSide) -> list[Difference]:
    differences: list[Difference] = []
    if not old.nodes or not new.nodes:
        return differences
    all_keywords = {
        keyword for side in (old, new) for node in side.facts.nodes for keyword in node.keywords
    }
    for keyword in sorted(
        (all_keywords - _NOT_ANNOTATIONS)
        | (all_keywords & {*_DESCRIPTION_KEYWORDS, "default", "format"})
    ):
        before, after = old.keyword_value(keyword), new.keyword_value(keyword)
        if _are_equal(before, after):
            continue
        path = find_path(old, new, keyword)
        old_value, new_value = _value_or_none(before), _value_or_none(after)
        if keyword in _DESCRIPTION_KEYWORDS:
            # One difference per place is enough, whichever of these keywords changed.
            difference = Difference(
                DifferenceKind.DESCRIPTION, path, before=old_value, after=new_value, detail=keyword
            )
        elif keyword == "default":
            detail = "new" if before is _UNSET else ""
            difference = Difference(
                DifferenceKind.DEFAULT, path, before=old_value, after=new_value, detail=detail
            )
        elif keyword == "format":
            difference = _diff_format(old, new, path, old_value, new_value)
        else:
            difference = Difference(
                DifferenceKind.ANNOTATION, path, before=old_value, after=new_value, detail=keyword
            )
        differences.append(difference)
    return differences


def _diff_format(
    old: SchemaSide, new: SchemaSide, path: str, before: Any, after: Any
) -> Difference:
    is_checked = [
        any(node.document.checks_formats for node in side.facts.nodes_with("format"))
        for side in (old, new)
    ]
    if not any(is_checked):
        return Difference(DifferenceKind.FORMAT, path, before=before, after=after)
    return Difference(
        DifferenceKind.CONSTRAINT, path, is_checked[1], is_checked[0], before, after, "format"
    )


# -- types


def diff_types(old: SchemaSide, new: SchemaSide) -> tuple[list[Difference], bool]:
    """Return the difference of the types, and whether the types are disjoint."""
    old_value, new_value = _declared_kinds(old.facts), _declared_kinds(new.facts)
    if old_value == new_value:
        return [], False
    difference = Difference(
        DifferenceKind.TYPE,
        root_path(old, new),
        narrows=bool(old_value & ~new_value),
        widens=bool(new_value & ~old_value),
        before=_type_names(old_value),
        after=_type_names(new_value),
    )
    return [difference], not old_value & new_value


def _declared_kinds(facts: SchemaFacts) -> int:
    """Return the kinds that `type` allows, including a union of plain types."""
    declared = ANYTHING
    for node in facts.nodes:
        if node.is_false:
            return 0
        if "type" in node.keywords:
            declared &= type_kinds(node.keywords["type"])
        for keyword in ("anyOf", "oneOf"):
            if is_type_union(node, keyword):
                declared &= sum({type_kinds(branch["type"]) for branch in node.keywords[keyword]})
    return declared


def is_type_union(node: SchemaNode, keyword: str) -> bool:
    """Return whether all branches are plain types without duplicates."""
    branches = node.keywords.get(keyword)
    if not branches or not all(
        isinstance(branch, dict) and set(branch) == {"type"} for branch in branches
    ):
        return False
    masks = [type_kinds(branch["type"]) for branch in branches]
    return sum(masks) == _combine_kinds(masks)


def _combine_kinds(masks: Iterable[int]) -> int:
    union = 0
    for mask in masks:
        union |= mask
    return union


def _type_names(mask: int) -> list[str]:
    if mask == ANYTHING:
        return ["anything"]
    names = [name for name, kind in KINDS.items() if kind & mask == kind]
    if NUMBER & mask == NUMBER:
        names.remove("integer")
    elif mask & ~INTEGER & NUMBER:
        names.append("number")
    return names or ["nothing"]


# -- values


def diff_values(old: SchemaSide, new: SchemaSide) -> list[Difference]:
    old_value, new_value = _listed_values(old.facts), _listed_values(new.facts)
    path = find_path(old, new, "enum", "const")
    if old_value is None or new_value is None:
        if old_value is new_value:
            return []
        before = None if old_value is None else list(old_value.values())
        after = None if new_value is None else list(new_value.values())
        return [
            Difference(
                DifferenceKind.CONSTRAINT,
                path,
                old_value is None,
                new_value is None,
                before,
                after,
                "enum",
            )
        ]
    removed_values = [value for key, value in old_value.items() if key not in new_value]
    added_values = [value for key, value in new_value.items() if key not in old_value]
    return [
        *(
            Difference(
                DifferenceKind.VALUE_GONE,
                path,
                narrows=True,
                before=value,
                detail=_format_value(value),
            )
            for value in removed_values[:_MAX_LISTED_VALUES]
        ),
        *(
            Difference(
                DifferenceKind.VALUE_NEW,
                path,
                widens=True,
                after=value,
                detail=_format_value(value),
            )
            for value in added_values[:_MAX_LISTED_VALUES]
        ),
    ]


def _listed_values(facts: SchemaFacts) -> dict[Any, Any] | None:
    """Return the values that an `enum` or a `const` allows, by their comparison keys."""
    allowed: dict[Any, Any] | None = None
    for node in facts.nodes:
        for keyword in ("enum", "const"):
            if keyword in node.keywords:
                members = node.keywords[keyword] if keyword == "enum" else [node.keywords[keyword]]
                values = {comparison_key(value): value for value in members}
                if allowed is not None:
                    values = {key: value for key, value in allowed.items() if key in values}
                allowed = values
    return allowed


# -- bounds and other scalars


def diff_bounds(old: SchemaSide, new: SchemaSide) -> list[Difference]:
    differences: list[Difference] = []
    for keyword in (*_MINIMUM_KEYWORDS, *_MAXIMUM_KEYWORDS):
        old_value: float | None
        new_value: float | None
        if keyword in _MINIMUM_KEYWORDS:
            old_value, new_value = (
                old.facts.minimum_of(keyword) or None,
                new.facts.minimum_of(keyword) or None,
            )
            tighter = (new_value or 0) > (old_value or 0)
        else:
            old_value, new_value = (
                _finite_or_none(old.facts.maximum_of(keyword)),
                _finite_or_none(new.facts.maximum_of(keyword)),
            )
            tighter = new_value is not None and (old_value is None or new_value < old_value)
        if old_value != new_value:
            path = find_path(old, new, keyword)
            differences.append(
                Difference(
                    DifferenceKind.CONSTRAINT,
                    path,
                    tighter,
                    not tighter,
                    old_value,
                    new_value,
                    keyword,
                )
            )
    differences += _diff_number_bound(old, new, "minimum", "exclusiveMinimum")
    differences += _diff_number_bound(old, new, "maximum", "exclusiveMaximum")
    return differences


def _diff_number_bound(
    old: SchemaSide, new: SchemaSide, keyword: str, exclusive: str
) -> list[Difference]:
    lower = keyword == "minimum"
    old_value = old.facts.lower if lower else old.facts.upper
    new_value = new.facts.lower if lower else new.facts.upper
    if old_value == new_value:
        return []
    if old_value[0] is None or new_value[0] is None:
        tighter = old_value[0] is None
    elif old_value[0] == new_value[0]:
        tighter = new_value[1]
    else:
        tighter = (new_value[0] > old_value[0]) is lower
    path = find_path(old, new, exclusive if new_value[1] else keyword, keyword, exclusive)
    shown_keyword = (
        exclusive if new_value[1] or (new_value[0] is None and old_value[1]) else keyword
    )
    return [
        Difference(
            DifferenceKind.CONSTRAINT,
            path,
            tighter,
            not tighter,
            old_value[0],
            new_value[0],
            shown_keyword,
        )
    ]


def diff_scalars(old: SchemaSide, new: SchemaSide) -> list[Difference]:
    """Return differences of keywords that are only equal or not: pattern, multipleOf,
    uniqueItems."""
    differences: list[Difference] = []
    for keyword in ("pattern", "multipleOf", "uniqueItems"):
        old_value = {
            comparison_key(node.keywords[keyword])
            for node in old.facts.nodes_with(keyword)
            if node.keywords[keyword]
        }
        new_value = {
            comparison_key(node.keywords[keyword])
            for node in new.facts.nodes_with(keyword)
            if node.keywords[keyword]
        }
        if old_value != new_value:
            path = find_path(old, new, keyword)
            before, after = (
                _value_or_none(old.keyword_value(keyword)),
                _value_or_none(new.keyword_value(keyword)),
            )
            # Whether a multiple of 4 is a multiple of 2 is for the proof to decide.
            differences.append(
                Difference(
                    DifferenceKind.CONSTRAINT,
                    path,
                    bool(new_value - old_value),
                    bool(old_value - new_value),
                    before,
                    after,
                    keyword,
                )
            )
    return differences


def _finite_or_none(value: float) -> float | None:
    return None if value == float("inf") else value


def _value_or_none(value: Any) -> Any:
    return None if value is _UNSET else value


def _are_equal(left: Any, right: Any) -> bool:
    if left is _UNSET or right is _UNSET:
        return left is right
    return bool(comparison_key(left) == comparison_key(right))


def _format_value(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else f"{text[:60]}…"


# -- members of objects

_MAX_POSITIONS: Final = 50


def diff_objects(
    comparison: Comparison, old: SchemaSide, new: SchemaSide, outer_names: frozenset[str]
) -> list[Difference]:
    return [
        *_diff_fields(comparison, old, new, outer_names),
        *_diff_other_members(comparison, old, new),
        *_diff_patterns(comparison, old, new),
        *_diff_property_names(comparison, old, new),
        *_diff_dependencies(comparison, old, new),
    ]


def _diff_fields(
    comparison: Comparison, old: SchemaSide, new: SchemaSide, outer_names: frozenset[str]
) -> list[Difference]:
    old_value, new_value = _named_members(old.facts), _named_members(new.facts)
    added_names = new_value.keys() - old_value.keys() - find_mentioned_names(old.nodes).names
    removed_names = old_value.keys() - new_value.keys() - find_mentioned_names(new.nodes).names
    differences: list[Difference] = []
    # An empty new side has not removed anything.
    for name in sorted(removed_names - outer_names) if new.nodes else ():
        differences.append(
            Difference(
                DifferenceKind.FIELD_GONE, old_value[name].path, before=old_value[name].value
            )
        )
    for name in sorted(added_names):
        differences.append(_describe_new_field(comparison, old, new, name, new_value[name]))
    for name in sorted(old_value.keys() & new_value.keys()):
        differences += comparison.compare(
            tuple(old.facts.member_schemas(name)), tuple(new.facts.member_schemas(name))
        )
    for name in sorted(new.facts.required - old.facts.required - added_names):
        differences.append(
            Difference(
                DifferenceKind.REQUIRED_NEW, _member_path(new, old, name, new_value), narrows=True
            )
        )
    for name in sorted(old.facts.required - new.facts.required - removed_names):
        differences.append(
            Difference(
                DifferenceKind.REQUIRED_GONE, _member_path(old, new, name, old_value), widens=True
            )
        )
    return differences


def _named_members(facts: SchemaFacts) -> dict[str, SchemaNode]:
    """Return the members with a subschema of their own. A forbidden member has none."""
    return {
        name: node.named_subschema("properties", name)
        for node in reversed(facts.nodes)
        for name, subschema in node.keywords.get("properties", {}).items()
        if subschema is not False
    }


def _member_path(
    side: SchemaSide, other: SchemaSide, name: str, members: dict[str, SchemaNode]
) -> str:
    if name in members:
        return members[name].path
    for node in side.facts.nodes_with("required"):
        if name in node.keywords["required"]:
            return node.pointer_to("properties", name)
    return root_path(other, side)


def _describe_new_field(
    comparison: Comparison, old: SchemaSide, new: SchemaSide, name: str, node: SchemaNode
) -> Difference:
    if name in new.facts.required and name not in old.facts.required:
        return Difference(DifferenceKind.REQUIRED_NEW, node.path, narrows=True, after=node.value)
    forward, backward = comparison.forward, comparison.backward
    sender = forward.make_premise(old.nodes)
    member_premise = forward.make_inner_premise(sender, old.facts.member_schemas(name))
    is_claimed = can_have_member(sender, old.facts, name) and not forward.proves_all(
        member_premise, new.facts.member_schemas(name)
    )
    reader_schemas = [
        schema
        for schema in old.facts.member_schemas(name)
        if not (backward.ignores_unknown and schema.is_false)
    ]
    reader_premise = backward.make_inner_premise(
        backward.make_premise(new.nodes), new.facts.member_schemas(name)
    )
    return Difference(
        DifferenceKind.FIELD_NEW,
        node.path,
        is_claimed,
        not backward.proves_all(reader_premise, reader_schemas),
        after=node.value,
    )


def _diff_other_members(
    comparison: Comparison, old: SchemaSide, new: SchemaSide
) -> list[Difference]:
    old_value, new_value = _rest_schemas(old.facts), _rest_schemas(new.facts)
    closed, closes = (
        any(schema.is_false for schema in old_value),
        any(schema.is_false for schema in new_value),
    )
    if closed is closes:
        return (
            []
            if closed or not (old_value or new_value)
            else comparison.compare(tuple(old_value), tuple(new_value))
        )
    path = (new_value or old_value)[0].path
    before = old_value[0].value if old_value else None
    after = new_value[0].value if new_value else None
    detail = "additionalProperties"
    return [Difference(DifferenceKind.OTHER_MEMBERS, path, closes, closed, before, after, detail)]


def _rest_schemas(facts: SchemaFacts) -> list[SchemaNode]:
    rests = [find_rest_schema(node) for node in facts.nodes]
    return [rest[2] for rest in rests if rest is not None and rest[2].value is not True]


def _diff_patterns(comparison: Comparison, old: SchemaSide, new: SchemaSide) -> list[Difference]:
    old_value, new_value = (
        _subschemas_by_name(old.facts, "patternProperties"),
        _subschemas_by_name(new.facts, "patternProperties"),
    )
    differences: list[Difference] = []
    for pattern in sorted(old_value.keys() | new_value.keys()):
        before, after = tuple(old_value.get(pattern, ())), tuple(new_value.get(pattern, ()))
        if before and after:
            differences += comparison.compare(before, after)
            continue
        node = (before or after)[0]
        narrows, widens = comparison.differs(old, new, "patternProperties")
        values = (before[0].value if before else None, after[0].value if after else None)
        differences.append(
            Difference(
                DifferenceKind.CONSTRAINT, node.path, narrows, widens, *values, "patternProperties"
            )
        )
    return differences


def _subschemas_by_name(facts: SchemaFacts, keyword: str) -> dict[str, list[SchemaNode]]:
    subschemas: dict[str, list[SchemaNode]] = {}
    for node in facts.nodes_with(keyword):
        for name in node.keywords[keyword]:
            subschemas.setdefault(name, []).append(node.named_subschema(keyword, name))
    return subschemas


def _diff_property_names(
    comparison: Comparison, old: SchemaSide, new: SchemaSide
) -> list[Difference]:
    old_value = tuple(
        node.subschema("propertyNames") for node in old.facts.nodes_with("propertyNames")
    )
    new_value = tuple(
        node.subschema("propertyNames") for node in new.facts.nodes_with("propertyNames")
    )
    return comparison.compare(old_value, new_value) if old_value or new_value else []


def _diff_dependencies(
    comparison: Comparison, old: SchemaSide, new: SchemaSide
) -> list[Difference]:
    """Return the differences of `dependentRequired` and `dependentSchemas`."""
    differences: list[Difference] = []
    old_value, new_value = _dependent_names(old.facts), _dependent_names(new.facts)
    for name in sorted(old_value.keys() | new_value.keys()):
        before, after = old_value.get(name, set()), new_value.get(name, set())
        if before != after:
            path = f"{find_path(old, new, 'dependentRequired')}/{name}"
            values = (sorted(before) or None, sorted(after) or None)
            flags = (bool(after - before), bool(before - after))
            differences.append(
                Difference(DifferenceKind.CONSTRAINT, path, *flags, *values, "dependentRequired")
            )
    old_schemas, new_schemas = (
        _subschemas_by_name(side.facts, "dependentSchemas") for side in (old, new)
    )
    for name in sorted(old_schemas.keys() | new_schemas.keys()):
        differences += comparison.compare(
            tuple(old_schemas.get(name, ())), tuple(new_schemas.get(name, ()))
        )
    return differences


def _dependent_names(facts: SchemaFacts) -> dict[str, set[Any]]:
    dependencies: dict[str, set[Any]] = {}
    for node in facts.nodes_with("dependentRequired"):
        for name, required_names in node.keywords["dependentRequired"].items():
            dependencies.setdefault(name, set()).update(required_names)
    return dependencies


# -- arrays


def diff_arrays(comparison: Comparison, old: SchemaSide, new: SchemaSide) -> list[Difference]:
    differences: list[Difference] = []
    last = min(max(old.facts.prefix_length, new.facts.prefix_length), _MAX_POSITIONS)
    for index in range(last + 1):
        old_value, new_value = (
            tuple(old.facts.item_schemas(index)),
            tuple(new.facts.item_schemas(index)),
        )
        if old_value or new_value:
            differences += comparison.compare(old_value, new_value)
    old_contains, new_contains = (_contains_schemas(side.facts) for side in (old, new))
    if not comparison.classes.are_identical(old_contains, new_contains):
        narrows, widens = comparison.differs(old, new, "contains", "minContains", "maxContains")
        path = find_path(old, new, "contains")
        before, after = (
            nodes[0].value if nodes else None for nodes in (old_contains, new_contains)
        )
        differences.append(
            Difference(DifferenceKind.CONSTRAINT, path, narrows, widens, before, after, "contains")
        )
    return differences


def _contains_schemas(facts: SchemaFacts) -> list[SchemaNode]:
    return [
        node.restrict("contains", "minContains", "maxContains")
        for node in facts.nodes_with("contains")
    ]


# -- unions, negations, conditions and references

_MAX_CANDIDATES: Final = 30


def diff_unions(
    comparison: Comparison, old: SchemaSide, new: SchemaSide, outer_names: frozenset[str]
) -> list[Difference]:
    differences: list[Difference] = []
    mentioned = outer_names | find_mentioned_names(new.nodes).names
    for keyword in ("anyOf", "oneOf"):
        old_value, new_value = (
            _nodes_with_union(old.facts, keyword),
            _nodes_with_union(new.facts, keyword),
        )
        if comparison.classes.are_identical(
            _restrict(old_value, keyword), _restrict(new_value, keyword)
        ):
            continue
        narrows, widens = comparison.differs(old, new, keyword)
        part_differences: list[Difference] = []
        if len(old_value) == len(new_value) == 1:
            part_differences = _diff_branches(
                comparison, old_value[0], new_value[0], keyword, (narrows, widens), mentioned
            )
        if not part_differences and (narrows or widens):
            path = find_path(old, new, keyword)
            before, after = (
                nodes[0].keywords[keyword] if nodes else None for nodes in (old_value, new_value)
            )
            part_differences = [
                Difference(
                    DifferenceKind.COMPOSITION, path, narrows, widens, before, after, keyword
                )
            ]
        differences += part_differences
    return differences


def _nodes_with_union(facts: SchemaFacts, keyword: str) -> list[SchemaNode]:
    return [node for node in facts.nodes_with(keyword) if not is_type_union(node, keyword)]


def _restrict(nodes: list[SchemaNode], keyword: str) -> list[SchemaNode]:
    return [node.restrict(keyword) for node in nodes]


def _diff_branches(
    comparison: Comparison,
    old: SchemaNode,
    new: SchemaNode,
    keyword: str,
    directions: tuple[bool, bool],
    mentioned: frozenset[str],
) -> list[Difference]:
    """Return the changes of the branches of a union.

    Args:
        directions: whether all changes together narrow, and widen.
    """
    narrows, widens = directions
    removed_branches, added_branches, pairs = _match_branches(
        comparison, old.subschemas(keyword), new.subschemas(keyword)
    )
    differences: list[Difference] = []
    for old_branch, new_branch in pairs:
        differences += comparison.compare((old_branch,), (new_branch,), mentioned)
    is_explained = any(difference.narrows for difference in differences) or bool(removed_branches)
    detail = f"A branch of {keyword}"
    for node in removed_branches:
        differences.append(
            Difference(
                DifferenceKind.COMPOSITION, node.path, narrows, False, node.value, None, detail
            )
        )
    for node in added_branches:
        # A new branch of `oneOf` can also reject: a value that matches two branches is invalid.
        flags = (narrows and not is_explained, widens)
        differences.append(
            Difference(DifferenceKind.COMPOSITION, node.path, *flags, None, node.value, detail)
        )
    return differences


def _match_branches(
    comparison: Comparison, olds: list[SchemaNode], news: list[SchemaNode]
) -> tuple[list[SchemaNode], list[SchemaNode], list[tuple[SchemaNode, SchemaNode]]]:
    """Return the branches that only one side has, and the pairs that are versions of one branch."""
    meanings = comparison.classes
    unmatched_new: dict[int, list[SchemaNode]] = {}
    for node in news:
        unmatched_new.setdefault(meanings.class_of(node), []).append(node)
    unmatched_old: list[SchemaNode] = []
    pairs: list[tuple[SchemaNode, SchemaNode]] = []
    for node in olds:
        equivalents = unmatched_new.get(meanings.class_of(node))
        if equivalents:
            pairs.append((node, equivalents.pop(0)))
        else:
            unmatched_old.append(node)
    added_branches = [node for equivalents in unmatched_new.values() for node in equivalents]
    removed_branches: list[SchemaNode] = []
    for node in unmatched_old:
        similar = next(
            (
                candidate
                for candidate in added_branches[:_MAX_CANDIDATES]
                if _are_similar(comparison, node, candidate)
            ),
            None,
        )
        if similar is None:
            removed_branches.append(node)
        else:
            added_branches.remove(similar)
            pairs.append((node, similar))
    return removed_branches, added_branches, pairs


def _are_similar(comparison: Comparison, old_branch: SchemaNode, new_branch: SchemaNode) -> bool:
    """Return whether two schemas look like versions of one branch."""
    forward, backward = comparison.forward, comparison.backward
    if forward.are_disjoint(Premise((old_branch,)), new_branch):
        return False
    old_value, new_value = (
        forward.facts(Premise((old_branch,))).names,
        backward.facts(Premise((new_branch,))).names,
    )
    return bool(old_value & new_value) or not (old_value or new_value)


def diff_conditions(comparison: Comparison, old: SchemaSide, new: SchemaSide) -> list[Difference]:
    differences: list[Difference] = []
    for keywords in (("not",), ("if", "then", "else")):
        keyword = keywords[0]
        old_value, new_value = (list(side.facts.nodes_with(keyword)) for side in (old, new))
        parts = ([node.restrict(*keywords) for node in side] for side in (old_value, new_value))
        if comparison.classes.are_identical(*parts):
            continue
        narrows, widens = comparison.differs(old, new, *keywords)
        if narrows or widens:
            path = find_path(old, new, keyword)
            before, after = (
                nodes[0].keywords[keyword] if nodes else None for nodes in (old_value, new_value)
            )
            differences.append(
                Difference(
                    DifferenceKind.COMPOSITION, path, narrows, widens, before, after, keyword
                )
            )
    return differences


def diff_references(old: SchemaSide, new: SchemaSide) -> list[Difference]:
    """Return references that cannot be resolved, and that the old side does not have."""
    before = {address for _, address in _unresolved_references(old.facts)}
    return [
        Difference(DifferenceKind.REFERENCE, node.path, True, True, detail=address)
        for node, address in _unresolved_references(new.facts)
        if address not in before
    ]


def _unresolved_references(facts: SchemaFacts) -> list[tuple[SchemaNode, str]]:
    unresolved = []
    for node in facts.nodes:
        reference = node.document.reference(node)
        if reference is not None and reference[0] is None:
            unresolved.append((node, reference[1]))
    return unresolved
