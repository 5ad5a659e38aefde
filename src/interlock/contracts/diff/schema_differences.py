"""Two schemas side by side: their words for people, their types, values and bounds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from interlock.contracts.diff.containment import may_be_there
from interlock.contracts.diff.differences import Difference, DifferenceKind
from interlock.contracts.diff.documents import LISTED, NAMED, SINGLE, SchemaNode
from interlock.contracts.diff.equivalence import ANYTHING, INTEGER, KINDS, NUMBER, as_key, kinds_of
from interlock.contracts.diff.known_facts import Premise, SchemaFacts, rest_of, spoken_of

if TYPE_CHECKING:
    from interlock.contracts.diff.schemas import Comparison


_DESCRIBING: Final = ("title", "description", "$comment", "examples")
_STRUCTURE: Final = frozenset(
    {
        *LISTED, *NAMED, *SINGLE, "type", "enum", "const", "required", "minimum", "maximum",
        "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength", "pattern",
        "minItems", "maxItems", "uniqueItems", "minContains", "maxContains", "minProperties",
        "maxProperties", "dependentRequired", "dependencies", "additionalItems", "$ref",
        "$dynamicRef", "$recursiveRef", "$defs", "definitions", "$id", "$schema", "$anchor",
        "$dynamicAnchor", "$recursiveAnchor", "$vocabulary", "default", "format", *_DESCRIBING,
    }
)  # fmt: skip
_LEAST: Final = ("minLength", "minItems", "minProperties")
_MOST: Final = ("maxLength", "maxItems", "maxProperties")
_MOST_VALUES: Final = 50
_ABSENT: Final = msgspec.UNSET


class SchemaSide:
    """What holds at one place on one side: the schemas as written, and what they come to."""

    __slots__ = ("facts", "nodes")

    def __init__(self, nodes: tuple[SchemaNode, ...], facts: SchemaFacts) -> None:
        self.nodes = nodes
        self.facts = facts

    def said(self, word: str) -> Any:
        """What is said with a word, by the first that uses it; UNSET where nobody does."""
        return next((node.words[word] for node in self.facts.having(word)), _ABSENT)


def place_of(old: SchemaSide, new: SchemaSide, *words: str) -> str:
    """Where something stands: on the new side, if it is there."""
    for side in (new, old):
        for word in words:
            for node in side.facts.having(word):
                return node.place(word)
    return (new.nodes or old.nodes)[0].path


def top_of(old: SchemaSide, new: SchemaSide) -> str:
    return (new.nodes or old.nodes)[0].path


# -- words for people


def words_for_people(old: SchemaSide, new: SchemaSide) -> list[Difference]:
    found: list[Difference] = []
    if not old.nodes or not new.nodes:
        return found
    notes = {word for side in (old, new) for node in side.facts.nodes for word in node.words}
    for word in sorted((notes - _STRUCTURE) | (notes & {*_DESCRIBING, "default", "format"})):
        before, after = old.said(word), new.said(word)
        if _same(before, after):
            continue
        path = place_of(old, new, word)
        was, now = _or_none(before), _or_none(after)
        if word in _DESCRIBING:
            # One finding for a place is enough, whichever of its words are others.
            kind = Difference(DifferenceKind.DESCRIPTION, path, before=was, after=now, what=word)
        elif word == "default":
            what = "new" if before is _ABSENT else ""
            kind = Difference(DifferenceKind.DEFAULT, path, before=was, after=now, what=what)
        elif word == "format":
            kind = _format(old, new, path, was, now)
        else:
            kind = Difference(DifferenceKind.ANNOTATION, path, before=was, after=now, what=word)
        found.append(kind)
    return found


def _format(old: SchemaSide, new: SchemaSide, path: str, before: Any, after: Any) -> Difference:
    checked = [
        any(node.document.checks_formats for node in side.facts.having("format"))
        for side in (old, new)
    ]
    if not any(checked):
        return Difference(DifferenceKind.FORMAT, path, before=before, after=after)
    return Difference(
        DifferenceKind.CONSTRAINT, path, checked[1], checked[0], before, after, "format"
    )


# -- types


def kinds(old: SchemaSide, new: SchemaSide) -> tuple[list[Difference], bool]:
    """A finding if the type is another; whether nothing can be of both."""
    was, now = _declared(old.facts), _declared(new.facts)
    if was == now:
        return [], False
    found = Difference(
        DifferenceKind.TYPE,
        top_of(old, new),
        narrows=bool(was & ~now),
        widens=bool(now & ~was),
        before=_type_names(was),
        after=_type_names(now),
    )
    return [found], not was & now


def _declared(facts: SchemaFacts) -> int:
    """The kinds that the word `type` allows, also in a plain union of types."""
    declared = ANYTHING
    for node in facts.nodes:
        if node.never:
            return 0
        if "type" in node.words:
            declared &= kinds_of(node.words["type"])
        for word in ("anyOf", "oneOf"):
            if is_plain_union(node, word):
                declared &= sum({kinds_of(one["type"]) for one in node.words[word]})
    return declared


def is_plain_union(node: SchemaNode, word: str) -> bool:
    """Whether all branches are nothing but types, none of them twice."""
    branches = node.words.get(word)
    if not branches or not all(isinstance(one, dict) and set(one) == {"type"} for one in branches):
        return False
    masks = [kinds_of(one["type"]) for one in branches]
    return sum(masks) == _union(masks)


def _union(masks: Iterable[int]) -> int:
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


def listed_values(old: SchemaSide, new: SchemaSide) -> list[Difference]:
    was, now = _listed(old.facts), _listed(new.facts)
    path = place_of(old, new, "enum", "const")
    if was is None or now is None:
        if was is now:
            return []
        before = None if was is None else list(was.values())
        after = None if now is None else list(now.values())
        return [
            Difference(
                DifferenceKind.CONSTRAINT, path, was is None, now is None, before, after, "enum"
            )
        ]
    gone = [value for key, value in was.items() if key not in now]
    come = [value for key, value in now.items() if key not in was]
    return [
        *(
            Difference(
                DifferenceKind.VALUE_GONE, path, narrows=True, before=value, what=_text(value)
            )
            for value in gone[:_MOST_VALUES]
        ),
        *(
            Difference(DifferenceKind.VALUE_NEW, path, widens=True, after=value, what=_text(value))
            for value in come[:_MOST_VALUES]
        ),
    ]


def _listed(facts: SchemaFacts) -> dict[Any, Any] | None:
    """The values that an `enum` or a `const` leaves, by what they are compared by."""
    listed: dict[Any, Any] | None = None
    for node in facts.nodes:
        for word in ("enum", "const"):
            if word in node.words:
                said = node.words[word] if word == "enum" else [node.words[word]]
                values = {as_key(value): value for value in said}
                if listed is not None:
                    values = {key: value for key, value in listed.items() if key in values}
                listed = values
    return listed


# -- bounds and other scalars


def bounds(old: SchemaSide, new: SchemaSide) -> list[Difference]:
    found: list[Difference] = []
    for word in (*_LEAST, *_MOST):
        was: float | None
        now: float | None
        if word in _LEAST:
            was, now = old.facts.at_least(word) or None, new.facts.at_least(word) or None
            tighter = (now or 0) > (was or 0)
        else:
            was, now = _finite(old.facts.at_most(word)), _finite(new.facts.at_most(word))
            tighter = now is not None and (was is None or now < was)
        if was != now:
            path = place_of(old, new, word)
            found.append(
                Difference(DifferenceKind.CONSTRAINT, path, tighter, not tighter, was, now, word)
            )
    found += _number_bound(old, new, "minimum", "exclusiveMinimum")
    found += _number_bound(old, new, "maximum", "exclusiveMaximum")
    return found


def _number_bound(old: SchemaSide, new: SchemaSide, word: str, exclusive: str) -> list[Difference]:
    lower = word == "minimum"
    was = old.facts.lower if lower else old.facts.upper
    now = new.facts.lower if lower else new.facts.upper
    if was == now:
        return []
    if was[0] is None or now[0] is None:
        tighter = was[0] is None
    elif was[0] == now[0]:
        tighter = now[1]
    else:
        tighter = (now[0] > was[0]) is lower
    path = place_of(old, new, exclusive if now[1] else word, word, exclusive)
    said = exclusive if now[1] or (now[0] is None and was[1]) else word
    return [Difference(DifferenceKind.CONSTRAINT, path, tighter, not tighter, was[0], now[0], said)]


def scalars(old: SchemaSide, new: SchemaSide) -> list[Difference]:
    """Words that are only equal or not: patterns, factors, uniqueness."""
    found: list[Difference] = []
    for word in ("pattern", "multipleOf", "uniqueItems"):
        was = {as_key(node.words[word]) for node in old.facts.having(word) if node.words[word]}
        now = {as_key(node.words[word]) for node in new.facts.having(word) if node.words[word]}
        if was != now:
            path = place_of(old, new, word)
            before, after = _or_none(old.said(word)), _or_none(new.said(word))
            # Whether a multiple of four is one of two is for the proof to say.
            found.append(
                Difference(
                    DifferenceKind.CONSTRAINT,
                    path,
                    bool(now - was),
                    bool(was - now),
                    before,
                    after,
                    word,
                )
            )
    return found


def _finite(value: float) -> float | None:
    return None if value == float("inf") else value


def _or_none(value: Any) -> Any:
    return None if value is _ABSENT else value


def _same(one: Any, other: Any) -> bool:
    if one is _ABSENT or other is _ABSENT:
        return one is other
    return bool(as_key(one) == as_key(other))


def _text(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else f"{text[:60]}…"


# -- Two schemas side by side: the members of objects and the items of arrays.

_MOST_POSITIONS: Final = 50


def objects(
    comparison: Comparison, old: SchemaSide, new: SchemaSide, around: frozenset[str]
) -> list[Difference]:
    return [
        *_fields(comparison, old, new, around),
        *_other_members(comparison, old, new),
        *_patterns(comparison, old, new),
        *_names(comparison, old, new),
        *_brought(comparison, old, new),
    ]


def _fields(
    comparison: Comparison, old: SchemaSide, new: SchemaSide, around: frozenset[str]
) -> list[Difference]:
    was, now = _named(old.facts), _named(new.facts)
    came = now.keys() - was.keys() - spoken_of(old.nodes).names
    gone = was.keys() - now.keys() - spoken_of(new.nodes).names
    found: list[Difference] = []
    # Where the new side says nothing at all, nothing was taken out of it.
    for name in sorted(gone - around) if new.nodes else ():
        found.append(Difference(DifferenceKind.FIELD_GONE, was[name].path, before=was[name].value))
    for name in sorted(came):
        found.append(_new_field(comparison, old, new, name, now[name]))
    for name in sorted(was.keys() & now.keys()):
        found += comparison.compare(tuple(old.facts.under(name)), tuple(new.facts.under(name)))
    for name in sorted(new.facts.required - old.facts.required - came):
        found.append(
            Difference(DifferenceKind.REQUIRED_NEW, _place(new, old, name, now), narrows=True)
        )
    for name in sorted(old.facts.required - new.facts.required - gone):
        found.append(
            Difference(DifferenceKind.REQUIRED_GONE, _place(old, new, name, was), widens=True)
        )
    return found


def _named(facts: SchemaFacts) -> dict[str, SchemaNode]:
    """The members that have a schema of their own. A member that may not be there has none."""
    return {
        name: node.named("properties", name)
        for node in reversed(facts.nodes)
        for name, said in node.words.get("properties", {}).items()
        if said is not False
    }


def _place(side: SchemaSide, other: SchemaSide, name: str, named: dict[str, SchemaNode]) -> str:
    if name in named:
        return named[name].path
    for node in side.facts.having("required"):
        if name in node.words["required"]:
            return node.place("properties", name)
    return top_of(other, side)


def _new_field(
    comparison: Comparison, old: SchemaSide, new: SchemaSide, name: str, node: SchemaNode
) -> Difference:
    if name in new.facts.required and name not in old.facts.required:
        return Difference(DifferenceKind.REQUIRED_NEW, node.path, narrows=True, after=node.value)
    forward, backward = comparison.forward, comparison.backward
    sent = forward.given(old.nodes)
    holds = forward.inside(sent, old.facts.under(name))
    claimed = may_be_there(sent, old.facts, name) and not forward.holds(
        holds, new.facts.under(name)
    )
    known = [one for one in old.facts.under(name) if not (backward.ignoring and one.never)]
    read = backward.inside(backward.given(new.nodes), new.facts.under(name))
    return Difference(
        DifferenceKind.FIELD_NEW,
        node.path,
        claimed,
        not backward.holds(read, known),
        after=node.value,
    )


def _other_members(comparison: Comparison, old: SchemaSide, new: SchemaSide) -> list[Difference]:
    was, now = _rests(old.facts), _rests(new.facts)
    closed, closes = any(one.never for one in was), any(one.never for one in now)
    if closed is closes:
        return [] if closed or not (was or now) else comparison.compare(tuple(was), tuple(now))
    path = (now or was)[0].path
    before = was[0].value if was else None
    after = now[0].value if now else None
    what = "additionalProperties"
    return [Difference(DifferenceKind.OTHER_MEMBERS, path, closes, closed, before, after, what)]


def _rests(facts: SchemaFacts) -> list[SchemaNode]:
    rests = [rest_of(node) for node in facts.nodes]
    return [rest[2] for rest in rests if rest is not None and rest[2].value is not True]


def _patterns(comparison: Comparison, old: SchemaSide, new: SchemaSide) -> list[Difference]:
    was, now = _by_name(old.facts, "patternProperties"), _by_name(new.facts, "patternProperties")
    found: list[Difference] = []
    for pattern in sorted(was.keys() | now.keys()):
        before, after = tuple(was.get(pattern, ())), tuple(now.get(pattern, ()))
        if before and after:
            found += comparison.compare(before, after)
            continue
        node = (before or after)[0]
        narrows, widens = comparison.differs(old, new, "patternProperties")
        shown = (before[0].value if before else None, after[0].value if after else None)
        found.append(
            Difference(
                DifferenceKind.CONSTRAINT, node.path, narrows, widens, *shown, "patternProperties"
            )
        )
    return found


def _by_name(facts: SchemaFacts, word: str) -> dict[str, list[SchemaNode]]:
    found: dict[str, list[SchemaNode]] = {}
    for node in facts.having(word):
        for name in node.words[word]:
            found.setdefault(name, []).append(node.named(word, name))
    return found


def _names(comparison: Comparison, old: SchemaSide, new: SchemaSide) -> list[Difference]:
    was = tuple(node.one("propertyNames") for node in old.facts.having("propertyNames"))
    now = tuple(node.one("propertyNames") for node in new.facts.having("propertyNames"))
    return comparison.compare(was, now) if was or now else []


def _brought(comparison: Comparison, old: SchemaSide, new: SchemaSide) -> list[Difference]:
    """What a member brings along: other members, or a schema for the whole."""
    found: list[Difference] = []
    was, now = _bringing(old.facts), _bringing(new.facts)
    for name in sorted(was.keys() | now.keys()):
        before, after = was.get(name, set()), now.get(name, set())
        if before != after:
            path = f"{place_of(old, new, 'dependentRequired')}/{name}"
            shown = (sorted(before) or None, sorted(after) or None)
            flags = (bool(after - before), bool(before - after))
            found.append(
                Difference(DifferenceKind.CONSTRAINT, path, *flags, *shown, "dependentRequired")
            )
    whole, whole_now = (_by_name(side.facts, "dependentSchemas") for side in (old, new))
    for name in sorted(whole.keys() | whole_now.keys()):
        found += comparison.compare(tuple(whole.get(name, ())), tuple(whole_now.get(name, ())))
    return found


def _bringing(facts: SchemaFacts) -> dict[str, set[Any]]:
    found: dict[str, set[Any]] = {}
    for node in facts.having("dependentRequired"):
        for name, others in node.words["dependentRequired"].items():
            found.setdefault(name, set()).update(others)
    return found


# -- arrays


def arrays(comparison: Comparison, old: SchemaSide, new: SchemaSide) -> list[Difference]:
    found: list[Difference] = []
    last = min(max(old.facts.prefix, new.facts.prefix), _MOST_POSITIONS)
    for at in range(last + 1):
        was, now = tuple(old.facts.item(at)), tuple(new.facts.item(at))
        if was or now:
            found += comparison.compare(was, now)
    was_in, now_in = (_containing(side.facts) for side in (old, new))
    if not comparison.meanings.alike(was_in, now_in):
        narrows, widens = comparison.differs(old, new, "contains", "minContains", "maxContains")
        path = place_of(old, new, "contains")
        before, after = (one[0].value if one else None for one in (was_in, now_in))
        found.append(
            Difference(DifferenceKind.CONSTRAINT, path, narrows, widens, before, after, "contains")
        )
    return found


def _containing(facts: SchemaFacts) -> list[SchemaNode]:
    return [
        node.part("contains", "minContains", "maxContains") for node in facts.having("contains")
    ]


# -- Two schemas side by side: unions, negations, conditions, and references that lead nowhere.

_MOST_TRIED: Final = 30


def unions(
    comparison: Comparison, old: SchemaSide, new: SchemaSide, around: frozenset[str]
) -> list[Difference]:
    found: list[Difference] = []
    spoken = around | spoken_of(new.nodes).names
    for word in ("anyOf", "oneOf"):
        was, now = _using(old.facts, word), _using(new.facts, word)
        if comparison.meanings.alike(_parts(was, word), _parts(now, word)):
            continue
        narrows, widens = comparison.differs(old, new, word)
        inside: list[Difference] = []
        if len(was) == len(now) == 1:
            inside = _branches(comparison, was[0], now[0], word, (narrows, widens), spoken)
        if not inside and (narrows or widens):
            path = place_of(old, new, word)
            before, after = (one[0].words[word] if one else None for one in (was, now))
            inside = [
                Difference(DifferenceKind.COMPOSITION, path, narrows, widens, before, after, word)
            ]
        found += inside
    return found


def _using(facts: SchemaFacts, word: str) -> list[SchemaNode]:
    return [node for node in facts.having(word) if not is_plain_union(node, word)]


def _parts(nodes: list[SchemaNode], word: str) -> list[SchemaNode]:
    return [node.part(word) for node in nodes]


def _branches(
    comparison: Comparison,
    old: SchemaNode,
    new: SchemaNode,
    word: str,
    directions: tuple[bool, bool],
    spoken: frozenset[str],
) -> list[Difference]:
    """What became of each branch. `directions`: whether all together narrows, and widens."""
    narrows, widens = directions
    gone, came, pairs = _matched(comparison, old.listed(word), new.listed(word))
    found: list[Difference] = []
    for one, other in pairs:
        found += comparison.compare((one,), (other,), spoken)
    explained = any(finding.narrows for finding in found) or bool(gone)
    what = f"A branch of {word}"
    for node in gone:
        found.append(
            Difference(
                DifferenceKind.COMPOSITION, node.path, narrows, False, node.value, None, what
            )
        )
    for node in came:
        # A new branch of `oneOf` can also refuse: what fits it and another one fits two.
        flags = (narrows and not explained, widens)
        found.append(
            Difference(DifferenceKind.COMPOSITION, node.path, *flags, None, node.value, what)
        )
    return found


def _matched(
    comparison: Comparison, olds: list[SchemaNode], news: list[SchemaNode]
) -> tuple[list[SchemaNode], list[SchemaNode], list[tuple[SchemaNode, SchemaNode]]]:
    """Branches that only one side has, and pairs that are versions of one branch."""
    meanings = comparison.meanings
    left_over: dict[int, list[SchemaNode]] = {}
    for node in news:
        left_over.setdefault(meanings.of(node), []).append(node)
    gone: list[SchemaNode] = []
    pairs: list[tuple[SchemaNode, SchemaNode]] = []
    for node in olds:
        same = left_over.get(meanings.of(node))
        if same:
            pairs.append((node, same.pop(0)))
        else:
            gone.append(node)
    came = [node for same in left_over.values() for node in same]
    left: list[SchemaNode] = []
    for node in gone:
        near = next((one for one in came[:_MOST_TRIED] if _akin(comparison, node, one)), None)
        if near is None:
            left.append(node)
        else:
            came.remove(near)
            pairs.append((node, near))
    return left, came, pairs


def _akin(comparison: Comparison, one: SchemaNode, other: SchemaNode) -> bool:
    """Whether they look like two versions of one branch."""
    forward, backward = comparison.forward, comparison.backward
    if forward.disjoint(Premise((one,)), other):
        return False
    was, now = forward.facts(Premise((one,))).names, backward.facts(Premise((other,))).names
    return bool(was & now) or not (was or now)


def conditions(comparison: Comparison, old: SchemaSide, new: SchemaSide) -> list[Difference]:
    found: list[Difference] = []
    for words in (("not",), ("if", "then", "else")):
        word = words[0]
        was, now = (list(side.facts.having(word)) for side in (old, new))
        parts = ([node.part(*words) for node in side] for side in (was, now))
        if comparison.meanings.alike(*parts):
            continue
        narrows, widens = comparison.differs(old, new, *words)
        if narrows or widens:
            path = place_of(old, new, word)
            before, after = (one[0].words[word] if one else None for one in (was, now))
            found.append(
                Difference(DifferenceKind.COMPOSITION, path, narrows, widens, before, after, word)
            )
    return found


def astray(old: SchemaSide, new: SchemaSide) -> list[Difference]:
    """References that lead out of the document, or to nothing, and did not before."""
    before = {address for _, address in _dangling(old.facts)}
    return [
        Difference(DifferenceKind.REFERENCE, node.path, True, True, what=address)
        for node, address in _dangling(new.facts)
        if address not in before
    ]


def _dangling(facts: SchemaFacts) -> list[tuple[SchemaNode, str]]:
    found = []
    for node in facts.nodes:
        reference = node.document.reference(node)
        if reference is not None and reference[0] is None:
            found.append((node, reference[1]))
    return found
