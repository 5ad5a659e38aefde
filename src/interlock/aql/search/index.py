"""The search index: the operations that contain a word, its weight in each, and its rarity.

Fields have weights (BM25F): a tool's name is more significant than the end of its description. Word
classes are indexed like words, so that synonyms do not slow a search down. The terms of a tool are
computed once and cached. The rest is rebuilt when the catalog changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import log
from typing import Any, Final, NamedTuple

from interlock.aql.operations import Operation
from interlock.aql.search.stems import stem
from interlock.aql.search.vocabulary import extract_terms, vocabulary
from interlock.aql.search.words import STOP, first_sentence, split_words, trigrams
from interlock.errors import ProtocolError
from interlock.protocol.jsonrpc import decode_members, decode_value

NAME, SERVER, FIRST, REST, PARAMETERS, ENUM, ABOUT = range(7)
"""The fields: the operation's name, the server's name, the first sentence of the description with
the title, the rest of the description, names of parameters, their descriptions and allowed values,
and topics of the product."""
FIELD_WEIGHTS: Final = (4.0, 2.0, 2.0, 1.0, 1.0, 0.5, 0.7)
_LENGTH_PENALTIES: Final = (0.3, 0.0, 0.4, 0.6, 0.5, 0.6, 0.0)
"""The degree to which the length of a field reduces the weight of its words."""
_SATURATION: Final = 1.2
_MAX_PARAMETERS: Final = 40
_MAX_ALLOWED_VALUES: Final = 20
_PHRASE_PART_WEIGHT: Final = 0.4
_RARITY_EXPONENT: Final = 0.6
"""The weight of rarity, lower than in BM25: a rare word of a query is often only its object."""
_MIN_SIMILARITY: Final = 0.6
_MAX_SERVERS_OF_NAME: Final = 3
"""Words in the names of more servers, or in texts of more other servers, are no names (`mcp`)."""

Postings = list[tuple[int, float]]
"""The documents with a term, and the weight of the term in each."""


class ToolTerms(NamedTuple):
    """The terms of one tool by field, with their counts."""

    fields: tuple[dict[str, float], ...]
    lengths: tuple[float, ...]


def read_tool_terms(operation: Operation) -> ToolTerms:
    """Return the terms of an operation and of its product."""
    tool = operation.tool
    first_part, rest = first_sentence(tool.description or operation.description)
    title, names, details = _read_definition(operation)
    name_words = split_words(operation.local_name)
    server_words = split_words(operation.server)
    products = vocabulary().products
    topics: list[str] = []
    for term_text in dict.fromkeys(
        term.term for term in extract_terms([*server_words, *name_words])
    ):
        topics += products.get(term_text, ())
    fields = [
        _count_terms(name_words),
        _count_terms(server_words),
        _count_terms(split_words(f"{title} {first_part}")),
        _count_terms(split_words(rest)),
        _count_terms(split_words(names)),
        _count_terms(split_words(details)),
        dict.fromkeys(topics, 1.0),
    ]
    return ToolTerms(tuple(fields), tuple(sum(field.values()) for field in fields))


def _read_definition(operation: Operation) -> tuple[str, str, str]:
    """Return the title, the names of parameters, and their descriptions."""
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
        for name, definition in list(properties.items())[:_MAX_PARAMETERS]:
            names.append(str(name))
            if isinstance(definition, dict):
                details += _parameter_details(definition)
    return title, " ".join(names), " ".join(details)


def _parameter_details(definition: dict[str, Any]) -> list[str]:
    details = []
    description = definition.get("description")
    if isinstance(description, str):
        details.append(description[:120])
    allowed = definition.get("enum")
    if isinstance(allowed, list):
        details += [
            str(value)[:40] for value in allowed[:_MAX_ALLOWED_VALUES] if isinstance(value, str)
        ]
    return details


def _count_terms(words: Sequence[str]) -> dict[str, float]:
    counts: dict[str, float] = {}
    for term in extract_terms(words):
        counts[term.term] = counts.get(term.term, 0.0) + 1.0
        for part in term.parts:
            # A part of a phrase counts less: `pull` alone rarely means a pull request.
            counts[part] = counts.get(part, 0.0) + _PHRASE_PART_WEIGHT
    return counts


class SearchIndex:
    """An index of operations."""

    def __init__(
        self, operations: Iterable[Operation], terms_by_tool: dict[Any, ToolTerms]
    ) -> None:
        """
        Args:
            terms_by_tool: cached terms by tool. New ones are added.
        """
        self.operations: tuple[Operation, ...] = tuple(operations)
        tool_terms_list = []
        for operation in self.operations:
            tool_terms = terms_by_tool.get(operation.tool)
            if tool_terms is None:
                tool_terms = terms_by_tool[operation.tool] = read_tool_terms(operation)
            tool_terms_list.append(tool_terms)
        self.terms: dict[str, Postings] = {}
        self.classes: dict[int, Postings] = {}
        self.server_names: dict[str, frozenset[str]] = _find_server_names(
            self.operations, tool_terms_list
        )
        """Names of products and servers, with the servers that have this name."""
        self._build(tool_terms_list)
        self._by_trigram: dict[str, list[str]] | None = None

    def _build(self, tool_terms_list: list[ToolTerms]) -> None:
        count = max(1, len(tool_terms_list))
        average_lengths = [
            max(1.0, sum(tool_terms.lengths[field_index] for tool_terms in tool_terms_list) / count)
            for field_index in range(7)
        ]
        classes_of = vocabulary().classes
        terms: dict[str, Postings] = {}
        classes: dict[int, Postings] = {}
        for number, tool_terms in enumerate(tool_terms_list):
            frequencies: dict[str, float] = {}
            for field_index, field in enumerate(tool_terms.fields):
                if not field:
                    continue
                penalty = _LENGTH_PENALTIES[field_index]
                weight = FIELD_WEIGHTS[field_index] / (
                    1
                    - penalty
                    + penalty * tool_terms.lengths[field_index] / average_lengths[field_index]
                )
                for term, count_in_field in field.items():
                    frequencies[term] = frequencies.get(term, 0.0) + weight * count_in_field
            class_frequencies: dict[int, float] = {}
            for term, frequency in frequencies.items():
                terms.setdefault(term, []).append((number, frequency))
                for class_number in classes_of.get(term, ()):
                    if frequency > class_frequencies.get(class_number, 0.0):
                        class_frequencies[class_number] = frequency
            for class_number, frequency in class_frequencies.items():
                classes.setdefault(class_number, []).append((number, frequency))
        self.terms = {term: _weight_postings(postings, count) for term, postings in terms.items()}
        self.classes = {
            class_number: _weight_postings(postings, count)
            for class_number, postings in classes.items()
        }

    def find_similar(self, term: str, limit: int = 3) -> list[tuple[str, float]]:
        """Return terms with a similar spelling, with their similarity."""
        if self._by_trigram is None:
            by_trigram: dict[str, list[str]] = {}
            for indexed_term in self.terms:
                if 4 <= len(indexed_term) <= 24:
                    for trigram in trigrams(indexed_term):
                        by_trigram.setdefault(trigram, []).append(indexed_term)
            self._by_trigram = by_trigram
        trigrams_of_term = trigrams(term[:24])
        shared: dict[str, int] = {}
        for trigram in trigrams_of_term:
            for indexed_term in self._by_trigram.get(trigram, ()):
                shared[indexed_term] = shared.get(indexed_term, 0) + 1
        letters = sorted(term)
        similar = []
        for indexed_term, count in shared.items():
            similarity = 2 * count / (len(trigrams_of_term) + len(indexed_term))
            if count >= 2 and indexed_term[0] == term[0] and sorted(indexed_term) == letters:
                # Transposed letters leave few trigrams unchanged.
                similarity = max(similarity, 0.8)
            if similarity >= _MIN_SIMILARITY:
                similar.append((similarity, indexed_term))
        return [
            (indexed_term, similarity)
            for similarity, indexed_term in sorted(similar, reverse=True)[:limit]
        ]


def _find_server_names(
    operations: Sequence[Operation], tool_terms_list: Sequence[ToolTerms]
) -> dict[str, frozenset[str]]:
    """Return the words that name servers: names of known products, or words without another
    meaning.

    Few other servers may use such a word: `weather` in a query names no server.
    """
    words_known = vocabulary()
    servers_by_name: dict[str, set[str]] = {}
    servers_by_term: dict[str, set[str]] = {}
    for operation, tool_terms in zip(operations, tool_terms_list, strict=True):
        server = operation.server
        if not server:
            continue
        for word in split_words(server):
            term = stem(word)
            if word not in STOP and (
                term in words_known.products or term not in words_known.classes
            ):
                servers_by_name.setdefault(word, set()).add(server)
        for field in (NAME, FIRST, REST):
            for term in tool_terms.fields[field]:
                servers_by_term.setdefault(term, set()).add(server)
    return {
        word: frozenset(servers)
        for word, servers in servers_by_name.items()
        if len(servers) <= _MAX_SERVERS_OF_NAME
        and len(servers_by_term.get(stem(word), servers) - servers) <= _MAX_SERVERS_OF_NAME
    }


def _weight_postings(postings: Postings, total: int) -> Postings:
    """Return postings weighted by the frequency and the rarity of a term."""
    matching = len(postings)
    rarity = log(1 + (total - matching + 0.5) / (matching + 0.5)) ** _RARITY_EXPONENT
    return [
        (number, rarity * frequency / (_SATURATION + frequency)) for number, frequency in postings
    ]
