"""The classes of words as the index uses them: by stem, with phrases, and what products are about.

The words are in `data/`, English only. They are read and compiled once, at the first search.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Final, NamedTuple

from interlock.aql.search.stems import read_lines, stem
from interlock.aql.search.words import STOP

_MOST_OF_PHRASE: Final = 4
_FARTHEST: Final = 4
PARTICLES: Final = frozenset(("away", "back", "down", "in", "know", "off", "on", "out", "up"))
"""Words that may stand far behind the verb that they belong to."""


class Vocabulary(NamedTuple):
    """What is known of words, whatever is in the catalog."""

    classes: dict[str, tuple[int, ...]]
    """A term's classes, by number."""
    members: list[tuple[str, ...]]
    """The terms of each class."""
    hints: dict[str, tuple[str, ...]]
    """What may be meant by a term, but does not mean it."""
    products: dict[str, tuple[str, ...]]
    """What a product is about."""
    verbs: frozenset[str]
    """Terms that only say what is done, not with what."""
    phrases: dict[str, tuple[tuple[str, ...], ...]]
    """Phrases by their first stem, the longest first."""


def term(word: str) -> str:
    """A word or a phrase of the lists as a term of the index."""
    return "_".join(stem(part) for part in word.split("_"))


def read_classes(*names: str) -> Iterator[tuple[list[str], list[str]]]:
    """The words of each line of these tables, and what they hint at."""
    for name in names:
        for line in read_lines(name):
            left, _, right = line.partition(">")
            yield [term(word) for word in left.split()], [term(word) for word in right.split()]


@cache
def vocabulary() -> Vocabulary:
    """Everything that is known of words."""
    members: list[tuple[str, ...]] = []
    classes: dict[str, list[int]] = {}
    hints: dict[str, list[str]] = {}
    known: set[str] = set()
    for left, right in read_classes("verbs", "nouns", "technical_nouns", "hints"):
        known.update(left, right)
        if right:
            for one in left:
                hints.setdefault(one, []).extend(right)
            continue
        for one in left:
            classes.setdefault(one, []).append(len(members))
        members.append(tuple(left))
    products: dict[str, tuple[str, ...]] = {}
    for line in read_lines("products"):
        names, _, things = line.partition(":")
        about = tuple(term(thing) for thing in things.split())
        known.update(about)
        for name in names.split():
            known.add(term(name))
            products[term(name)] = about
    return Vocabulary(
        {one: tuple(dict.fromkeys(numbers)) for one, numbers in classes.items()},
        members,
        {one: tuple(dict.fromkeys(meant)) for one, meant in hints.items()},
        products,
        _only_verbs(),
        _by_first(known),
    )


def _only_verbs() -> frozenset[str]:
    verbs = {one for left, _ in read_classes("verbs") for one in left}
    nouns = {one for left, _ in read_classes("nouns", "technical_nouns") for one in left}
    return frozenset(verbs - nouns)


def _by_first(known: Iterable[str]) -> dict[str, tuple[tuple[str, ...], ...]]:
    found: dict[str, list[tuple[str, ...]]] = {}
    for one in known:
        parts = tuple(one.split("_"))
        if 1 < len(parts) <= _MOST_OF_PHRASE:
            found.setdefault(parts[0], []).append(parts)
    return {first: tuple(sorted(some, key=len, reverse=True)) for first, some in found.items()}


class Term(NamedTuple):
    """A word or a phrase of a text."""

    term: str
    word: str
    """As it was said; the first word of a phrase."""
    parts: tuple[str, ...] = ()
    """Of a phrase: those of its stems that say something by themselves."""


def terms_of(words: Sequence[str], *, apart: bool = False) -> list[Term]:
    """The terms of a text: phrases that are known, and words that say something.

    `apart`: a verb and its particle may have words between them, as in `turn the lights off`.
    """
    phrases = vocabulary().phrases
    stems = [stem(word) for word in words]
    found: list[Term] = []
    used: set[int] = set()
    at = 0
    while at < len(stems):
        if at in used:
            at += 1
            continue
        ends = None
        for parts in phrases.get(stems[at], ()):
            ends = _ends(parts, stems, at, apart=apart)
            if ends is not None:
                break
        if ends is None:
            word = words[at]
            if word not in STOP and (len(word) > 1 or not word.isascii()):
                found.append(Term(stems[at], word))
        else:
            telling = tuple(stems[one] for one in ends if words[one] not in STOP)
            found.append(Term("_".join(parts), words[at], telling))
            used.update(ends)
        at += 1
    return found


def _ends(
    parts: tuple[str, ...], stems: list[str], at: int, *, apart: bool
) -> tuple[int, ...] | None:
    """Where the words of a phrase stand that begins here. None: it does not."""
    size = len(parts)
    if stems[at : at + size] == list(parts):
        return tuple(range(at, at + size))
    if apart and size == 2 and parts[1] in PARTICLES:
        for far in range(at + 2, min(at + 2 + _FARTHEST, len(stems))):
            if stems[far] == parts[1]:
                return (at, far)
    return None
