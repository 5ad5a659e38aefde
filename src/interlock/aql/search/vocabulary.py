"""The word classes of the index: by stem, with phrases, and the topics of products.

The words are in `data/`, in English only. They are read and compiled at the first search.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Final, NamedTuple

from interlock.aql.search.stems import read_lines, stem
from interlock.aql.search.words import STOP

_MAX_PHRASE_WORDS: Final = 4
_MAX_PARTICLE_DISTANCE: Final = 4
PARTICLES: Final = frozenset(("away", "back", "down", "in", "know", "off", "on", "out", "up"))
"""Words that may be separated from their verb."""


class Vocabulary(NamedTuple):
    """The known words, independent of the catalog."""

    classes: dict[str, tuple[int, ...]]
    """The class numbers of a term."""
    members: list[tuple[str, ...]]
    """The terms of each class."""
    hints: dict[str, tuple[str, ...]]
    """Related terms that have another meaning."""
    products: dict[str, tuple[str, ...]]
    """The topics of a product."""
    verbs: frozenset[str]
    """Terms that are only verbs."""
    phrases: dict[str, tuple[tuple[str, ...], ...]]
    """Phrases by their first stem, longest first."""


def to_term(word: str) -> str:
    """Return a word or phrase of the tables as a term of the index."""
    return "_".join(stem(part) for part in word.split("_"))


def read_classes(*names: str) -> Iterator[tuple[list[str], list[str]]]:
    """Yield the words and the hinted words of each line of these tables."""
    for name in names:
        for line in read_lines(name):
            left, _, right = line.partition(">")
            yield (
                [to_term(word) for word in left.split()],
                [to_term(word) for word in right.split()],
            )


@cache
def vocabulary() -> Vocabulary:
    """Return the compiled word tables."""
    members: list[tuple[str, ...]] = []
    classes: dict[str, list[int]] = {}
    hints: dict[str, list[str]] = {}
    terms: set[str] = set()
    for words, hinted_words in read_classes("verbs", "nouns", "technical_nouns", "hints"):
        terms.update(words, hinted_words)
        if hinted_words:
            for word in words:
                hints.setdefault(word, []).extend(hinted_words)
            continue
        for word in words:
            classes.setdefault(word, []).append(len(members))
        members.append(tuple(words))
    products: dict[str, tuple[str, ...]] = {}
    for line in read_lines("products"):
        products_of_line, _, topic_words = line.partition(":")
        topics = tuple(to_term(topic) for topic in topic_words.split())
        terms.update(topics)
        for name in products_of_line.split():
            terms.add(to_term(name))
            products[to_term(name)] = topics
    return Vocabulary(
        {word: tuple(dict.fromkeys(numbers)) for word, numbers in classes.items()},
        members,
        {word: tuple(dict.fromkeys(hinted)) for word, hinted in hints.items()},
        products,
        _only_verbs(),
        _phrases_by_first_stem(terms),
    )


def _only_verbs() -> frozenset[str]:
    verbs = {word for words, _ in read_classes("verbs") for word in words}
    nouns = {word for words, _ in read_classes("nouns", "technical_nouns") for word in words}
    return frozenset(verbs - nouns)


def _phrases_by_first_stem(terms: Iterable[str]) -> dict[str, tuple[tuple[str, ...], ...]]:
    phrases: dict[str, list[tuple[str, ...]]] = {}
    for term_of_phrase in terms:
        parts = tuple(term_of_phrase.split("_"))
        if 1 < len(parts) <= _MAX_PHRASE_WORDS:
            phrases.setdefault(parts[0], []).append(parts)
    return {
        first: tuple(sorted(phrase_list, key=len, reverse=True))
        for first, phrase_list in phrases.items()
    }


class Term(NamedTuple):
    """A word or a phrase of a text."""

    term: str
    word: str
    """The original word, or the first word of a phrase."""
    parts: tuple[str, ...] = ()
    """The significant stems of a phrase."""


def extract_terms(words: Sequence[str], *, allow_gaps: bool = False) -> list[Term]:
    """Return the terms of a text: known phrases and significant words.

    Args:
        allow_gaps: True to find a verb and a separated particle, as in `turn the lights
            off`.
    """
    phrases = vocabulary().phrases
    stems = [stem(word) for word in words]
    terms: list[Term] = []
    used_positions: set[int] = set()
    position = 0
    while position < len(stems):
        if position in used_positions:
            position += 1
            continue
        positions = None
        for parts in phrases.get(stems[position], ()):
            positions = _match_phrase(parts, stems, position, allow_gaps=allow_gaps)
            if positions is not None:
                break
        if positions is None:
            word = words[position]
            if word not in STOP and (len(word) > 1 or not word.isascii()):
                terms.append(Term(stems[position], word))
        else:
            significant = tuple(stems[index] for index in positions if words[index] not in STOP)
            terms.append(Term("_".join(parts), words[position], significant))
            used_positions.update(positions)
        position += 1
    return terms


def _match_phrase(
    parts: tuple[str, ...], stems: list[str], position: int, *, allow_gaps: bool
) -> tuple[int, ...] | None:
    """Return the positions of a phrase's words if it begins here, else None."""
    size = len(parts)
    if stems[position : position + size] == list(parts):
        return tuple(range(position, position + size))
    if allow_gaps and size == 2 and parts[1] in PARTICLES:
        for index in range(position + 2, min(position + 2 + _MAX_PARTICLE_DISTANCE, len(stems))):
            if stems[index] == parts[1]:
                return (position, index)
    return None
