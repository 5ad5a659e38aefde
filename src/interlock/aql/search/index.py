"""The search index: which operations have a word, with which weight, and how rare the word is.

Fields are weighed (BM25F): a tool's name tells more than the end of its description. Classes of
words are indexed like words, so that a synonym costs a search nothing. What a tool says is read
once for each Tool and kept; the rest is put together anew when the catalog changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import log
from typing import Any, Final, NamedTuple

from interlock.aql.operations import Operation
from interlock.aql.search.stems import stem
from interlock.aql.search.vocabulary import terms_of, vocabulary
from interlock.aql.search.words import STOP, first_sentence, trigrams, words_of
from interlock.errors import ProtocolError
from interlock.protocol.jsonrpc import decode_members, decode_value

NAME, SERVER, FIRST, REST, PARAMETERS, ENUM, ABOUT = range(7)
"""The fields: the operation's own name, its server's, the first sentence of its description and its
title, the rest, names of parameters, their descriptions and allowed values, and what is known of
the product."""
FIELD_WEIGHTS: Final = (4.0, 2.0, 2.0, 1.0, 1.0, 0.5, 0.7)
_FLATTENING: Final = (0.3, 0.0, 0.4, 0.6, 0.5, 0.6, 0.0)
"""How much of a long field's length is held against its words."""
_SATURATION: Final = 1.2
_MOST_PARAMETERS: Final = 40
_MOST_ALLOWED: Final = 20
_PART: Final = 0.4
_RARITY: Final = 0.6
"""How much it counts that few say a word: less than BM25 has it. A rare word of a wish is often
only what it is about today."""
_ALIKE: Final = 0.6
_MOST_NAMED: Final = 3
"""A word in the names of more servers, or said by more other servers, is no name (`mcp`)."""

Postings = list[tuple[int, float]]
"""Which documents have it, and how much it says of them."""


class ToolTerms(NamedTuple):
    """The terms of one tool, field by field: term → how often."""

    fields: tuple[dict[str, float], ...]
    lengths: tuple[float, ...]


def said_by(operation: Operation) -> ToolTerms:
    """Everything that a tool says of itself, and what is known of its product."""
    tool = operation.tool
    first, rest = first_sentence(tool.description or operation.description)
    title, names, details = _of_definition(operation)
    own = words_of(operation.local)
    server = words_of(operation.server)
    known = vocabulary().products
    about: list[str] = []
    for one in dict.fromkeys(term.term for term in terms_of([*server, *own])):
        about += known.get(one, ())
    fields = [
        _counted(own),
        _counted(server),
        _counted(words_of(f"{title} {first}")),
        _counted(words_of(rest)),
        _counted(words_of(names)),
        _counted(words_of(details)),
        dict.fromkeys(about, 1.0),
    ]
    return ToolTerms(tuple(fields), tuple(sum(field.values()) for field in fields))


def _of_definition(operation: Operation) -> tuple[str, str, str]:
    """Title, names of parameters, and what is said of them."""
    title = ""
    names: list[str] = []
    details: list[str] = []
    try:
        members = decode_members(b"{" + operation.tool.listed[1:])
        if "title" in members:
            title = str(decode_value(members["title"]))
        schema = decode_value(members["inputSchema"])
    except (ProtocolError, KeyError):
        schema = {}
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if isinstance(properties, dict):
        for name, about in list(properties.items())[:_MOST_PARAMETERS]:
            names.append(str(name))
            if isinstance(about, dict):
                details += _details(about)
    return title, " ".join(names), " ".join(details)


def _details(about: dict[str, Any]) -> list[str]:
    found = []
    description = about.get("description")
    if isinstance(description, str):
        found.append(description[:120])
    allowed = about.get("enum")
    if isinstance(allowed, list):
        found += [str(one)[:40] for one in allowed[:_MOST_ALLOWED] if isinstance(one, str)]
    return found


def _counted(words: Sequence[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for one in terms_of(words):
        found[one.term] = found.get(one.term, 0.0) + 1.0
        for part in one.parts:
            # Whoever says `pull` does not mean a pull request, mostly.
            found[part] = found.get(part, 0.0) + _PART
    return found


class SearchIndex:
    """An index over a set of operations."""

    def __init__(self, operations: Iterable[Operation], said: dict[Any, ToolTerms]) -> None:
        """`said`: what is known already, by tool; what is new is added."""
        self.operations: tuple[Operation, ...] = tuple(operations)
        texts = []
        for operation in self.operations:
            known = said.get(operation.tool)
            if known is None:
                known = said[operation.tool] = said_by(operation)
            texts.append(known)
        self.terms: dict[str, Postings] = {}
        self.classes: dict[int, Postings] = {}
        self.named: dict[str, frozenset[str]] = _named(self.operations, texts)
        """Names of products and servers → the servers that are called so."""
        self._fill(texts)
        self._by_trigram: dict[str, list[str]] | None = None

    def _fill(self, texts: list[ToolTerms]) -> None:
        many = max(1, len(texts))
        usual = [max(1.0, sum(text.lengths[at] for text in texts) / many) for at in range(7)]
        classes_of = vocabulary().classes
        terms: dict[str, Postings] = {}
        classes: dict[int, Postings] = {}
        for number, text in enumerate(texts):
            loud: dict[str, float] = {}
            for at, field in enumerate(text.fields):
                if not field:
                    continue
                flat = _FLATTENING[at]
                each = FIELD_WEIGHTS[at] / (1 - flat + flat * text.lengths[at] / usual[at])
                for term, times in field.items():
                    loud[term] = loud.get(term, 0.0) + each * times
            in_class: dict[int, float] = {}
            for term, volume in loud.items():
                terms.setdefault(term, []).append((number, volume))
                for one in classes_of.get(term, ()):
                    if volume > in_class.get(one, 0.0):
                        in_class[one] = volume
            for one, volume in in_class.items():
                classes.setdefault(one, []).append((number, volume))
        self.terms = {term: _weighed(some, many) for term, some in terms.items()}
        self.classes = {one: _weighed(some, many) for one, some in classes.items()}

    def alike(self, term: str, most: int = 3) -> list[tuple[str, float]]:
        """Terms that are spelled nearly so, with how near they are."""
        if self._by_trigram is None:
            by_trigram: dict[str, list[str]] = {}
            for known in self.terms:
                if 4 <= len(known) <= 24:
                    for one in trigrams(known):
                        by_trigram.setdefault(one, []).append(known)
            self._by_trigram = by_trigram
        wanted = trigrams(term[:24])
        shared: dict[str, int] = {}
        for one in wanted:
            for known in self._by_trigram.get(one, ()):
                shared[known] = shared.get(known, 0) + 1
        letters = sorted(term)
        near = []
        for known, count in shared.items():
            how = 2 * count / (len(wanted) + len(known))
            if count >= 2 and known[0] == term[0] and sorted(known) == letters:
                # Letters that changed places leave few trigrams as they were.
                how = max(how, 0.8)
            if how >= _ALIKE:
                near.append((how, known))
        return [(known, how) for how, known in sorted(near, reverse=True)[:most]]


def _named(
    operations: Sequence[Operation], texts: Sequence[ToolTerms]
) -> dict[str, frozenset[str]]:
    """The words by which servers are called, as far as they are names: of known products, or words
    with no other meaning, that hardly another server says. `weather` in a wish names no server."""
    known = vocabulary()
    called: dict[str, set[str]] = {}
    saying: dict[str, set[str]] = {}
    for operation, text in zip(operations, texts, strict=True):
        server = operation.server
        if not server:
            continue
        for word in words_of(server):
            term = stem(word)
            if word not in STOP and (term in known.products or term not in known.classes):
                called.setdefault(word, set()).add(server)
        for at in (NAME, FIRST, REST):
            for term in text.fields[at]:
                saying.setdefault(term, set()).add(server)
    return {
        word: frozenset(some)
        for word, some in called.items()
        if len(some) <= _MOST_NAMED and len(saying.get(stem(word), some) - some) <= _MOST_NAMED
    }


def _weighed(postings: Postings, many: int) -> Postings:
    """How loudly each says it, times how telling it is that it is said."""
    have = len(postings)
    telling = log(1 + (many - have + 0.5) / (have + 0.5)) ** _RARITY
    return [(number, telling * loud / (_SATURATION + loud)) for number, loud in postings]
