"""Two schemas side by side: their words for people, their types, values and bounds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from interlock.catalog.contracts.documents import Node
from interlock.catalog.contracts.drafts import LISTED, NAMED, SINGLE
from interlock.catalog.contracts.facts import Facts
from interlock.catalog.contracts.findings import Family, Finding
from interlock.catalog.contracts.meanings import ANYTHING, INTEGER, KINDS, NUMBER, as_key, kinds_of

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


class Side:
    """What holds at one place on one side: the schemas as written, and what they come to."""

    __slots__ = ("facts", "nodes")

    def __init__(self, nodes: tuple[Node, ...], facts: Facts) -> None:
        self.nodes = nodes
        self.facts = facts

    def said(self, word: str) -> Any:
        """What is said with a word, by the first that uses it; UNSET where nobody does."""
        return next((node.words[word] for node in self.facts.having(word)), _ABSENT)


def place_of(old: Side, new: Side, *words: str) -> str:
    """Where something stands: on the new side, if it is there."""
    for side in (new, old):
        for word in words:
            for node in side.facts.having(word):
                return node.place(word)
    return (new.nodes or old.nodes)[0].path


def top_of(old: Side, new: Side) -> str:
    return (new.nodes or old.nodes)[0].path


# -- words for people


def words_for_people(old: Side, new: Side) -> list[Finding]:
    found: list[Finding] = []
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
            kind = Finding(Family.DESCRIPTION, path, before=was, after=now, what=word)
        elif word == "default":
            what = "new" if before is _ABSENT else ""
            kind = Finding(Family.DEFAULT, path, before=was, after=now, what=what)
        elif word == "format":
            kind = _format(old, new, path, was, now)
        else:
            kind = Finding(Family.ANNOTATION, path, before=was, after=now, what=word)
        found.append(kind)
    return found


def _format(old: Side, new: Side, path: str, before: Any, after: Any) -> Finding:
    checked = [
        any(node.document.checks_formats for node in side.facts.having("format"))
        for side in (old, new)
    ]
    if not any(checked):
        return Finding(Family.FORMAT, path, before=before, after=after)
    return Finding(Family.CONSTRAINT, path, checked[1], checked[0], before, after, "format")


# -- types


def kinds(old: Side, new: Side) -> tuple[list[Finding], bool]:
    """A finding if the type is another; whether nothing can be of both."""
    was, now = _declared(old.facts), _declared(new.facts)
    if was == now:
        return [], False
    found = Finding(
        Family.TYPE,
        top_of(old, new),
        narrows=bool(was & ~now),
        widens=bool(now & ~was),
        before=_type_names(was),
        after=_type_names(now),
    )
    return [found], not was & now


def _declared(facts: Facts) -> int:
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


def is_plain_union(node: Node, word: str) -> bool:
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


def listed_values(old: Side, new: Side) -> list[Finding]:
    was, now = _listed(old.facts), _listed(new.facts)
    path = place_of(old, new, "enum", "const")
    if was is None or now is None:
        if was is now:
            return []
        before = None if was is None else list(was.values())
        after = None if now is None else list(now.values())
        return [Finding(Family.CONSTRAINT, path, was is None, now is None, before, after, "enum")]
    gone = [value for key, value in was.items() if key not in now]
    come = [value for key, value in now.items() if key not in was]
    return [
        *(
            Finding(Family.VALUE_GONE, path, narrows=True, before=value, what=_text(value))
            for value in gone[:_MOST_VALUES]
        ),
        *(
            Finding(Family.VALUE_NEW, path, widens=True, after=value, what=_text(value))
            for value in come[:_MOST_VALUES]
        ),
    ]


def _listed(facts: Facts) -> dict[Any, Any] | None:
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


def bounds(old: Side, new: Side) -> list[Finding]:
    found: list[Finding] = []
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
            found.append(Finding(Family.CONSTRAINT, path, tighter, not tighter, was, now, word))
    found += _number_bound(old, new, "minimum", "exclusiveMinimum")
    found += _number_bound(old, new, "maximum", "exclusiveMaximum")
    return found


def _number_bound(old: Side, new: Side, word: str, exclusive: str) -> list[Finding]:
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
    return [Finding(Family.CONSTRAINT, path, tighter, not tighter, was[0], now[0], said)]


def scalars(old: Side, new: Side) -> list[Finding]:
    """Words that are only equal or not: patterns, factors, uniqueness."""
    found: list[Finding] = []
    for word in ("pattern", "multipleOf", "uniqueItems"):
        was = {as_key(node.words[word]) for node in old.facts.having(word) if node.words[word]}
        now = {as_key(node.words[word]) for node in new.facts.having(word) if node.words[word]}
        if was != now:
            path = place_of(old, new, word)
            before, after = _or_none(old.said(word)), _or_none(new.said(word))
            # Whether a multiple of four is one of two is for the proof to say.
            found.append(
                Finding(
                    Family.CONSTRAINT, path, bool(now - was), bool(was - now), before, after, word
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
