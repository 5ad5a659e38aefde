"""The lexical search: by words, related words, and usage.

A search reads one index, which is replaced as a whole when the catalog changes. Any query is
accepted: empty, a megabyte long, or in a script that no tool uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from interlock.aql.operations import Operation, OperationCatalog
from interlock.aql.search.index import Postings, SearchIndex, ToolTerms
from interlock.aql.search.stems import stem
from interlock.aql.search.usage import NO_USAGE, Usage
from interlock.aql.search.vocabulary import Term, extract_terms, to_term, vocabulary
from interlock.aql.search.words import WEAK, query_words
from interlock.protocol.aql_terms import Category

if TYPE_CHECKING:
    from interlock.core.catalog.offering import Tool


# The categories that a query may ask for, by its first verb: a query that wants to see something
# does not want to delete it. Later verbs are often nouns (`the open issues`, `a list of posts`).
#
# Pure functions. Categories only affect the order: operations of other categories are ranked lower.

_VERBS: Final = {
    Category.READ: """
get show list find search fetch read view see look check retrieve display browse look_up lookup
look_for inspect explore query tell describe count compare explanation which what who whose where
when how how_many how_much how_long how_far what_time analysis enumerate locate discover identify
monitor watch track know wonder figure_out find_out review summary preview examine
""",
    Category.CREATE: """
create make add new open file register upload write draft compose book schedule insert append
invite jot_down set_up generate build save store clone copy duplicate attach spin_up raise
remember start_new put_up plan arrange
""",
    Category.UPDATE: """
update edit change modify rename move set adjust replace mark assign tag label resolve close reopen
approve reject archive restore fix correct switch merge reschedule postpone turn tweak revise
complete pin star enable disable tick_off check_off
""",
    Category.DELETE: """
delete remove erase get_rid_of throw_away throw_out drop clear wipe purge trash discard cancel
uninstall unsubscribe clean_up empty revoke kick_out take_off chuck ditch unpin
""",
    Category.EXECUTE: """
run execute start stop restart send post publish deploy trigger call click press type fill navigate
pay charge refund play pause notify reply respond let_know tell kill reboot launch invoke log_in
sign_in scroll drag turn_on turn_off switch_on switch_off message ping open visit go_to take
""",
}
MATCHING_CATEGORY_FACTOR: Final = 1.12
OPPOSITE_CATEGORY_FACTOR: Final = 0.86
_READING: Final = frozenset((Category.READ,))


def _categories_by_verb() -> dict[str, frozenset[Category]]:
    categories: dict[str, set[Category]] = {}
    for category, verbs in _VERBS.items():
        for verb in verbs.split():
            categories.setdefault(to_term(verb), set()).add(category)
    return {verb: frozenset(kinds) for verb, kinds in categories.items()}


_CATEGORIES: Final = _categories_by_verb()
_DETERMINERS: Final = frozenset(
    [
        "the",
        "a",
        "an",
        "my",
        "our",
        "your",
        "his",
        "her",
        "their",
        "this",
        "that",
        "these",
        "those",
        "some",
        "any",
        "every",
        "each",
        "all",
    ]
)
"""A query with one of these first names a thing and has no leading verb."""
_QUESTIONS: Final = frozenset(
    stem(word)
    for word in ("what", "which", "who", "where", "when", "how", "is", "are", "did", "does")
)


def query_categories(words: list[str], terms: Iterable[Term]) -> frozenset[Category]:
    """Return the categories that a query may ask for. Empty: unknown."""
    if words and words[0] in _DETERMINERS:
        return frozenset()
    first = next(iter(terms), None)
    kinds = None if first is None else _CATEGORIES.get(first.term)
    if kinds:
        return kinds
    if words and stem(words[0]) in _QUESTIONS:
        return frozenset((Category.READ,))
    return frozenset()


def category_factors(kinds: frozenset[Category]) -> dict[Category, float]:
    """Return the factor of each category for a query. 1 is neutral."""
    return {category: _category_factor(kinds, category) for category in Category}


def _category_factor(kinds: frozenset[Category], category: Category) -> float:
    if not kinds:
        return 1.0
    if category in kinds:
        return MATCHING_CATEGORY_FACTOR
    if kinds == _READING:
        # Many servers do not declare which tools only read.
        return 0.97 if category is Category.EXECUTE else OPPOSITE_CATEGORY_FACTOR
    if category is Category.READ:
        return OPPOSITE_CATEGORY_FACTOR
    return 0.8 if category is Category.DELETE else 0.97


ToolFilter = Callable[["Tool"], bool]
Ranked = list[tuple[int, float]]
"""Operations by number with their scores, best first."""

_CLASS_FACTOR: Final = 0.6
_HINT_FACTOR: Final = 0.4
_MISSPELLED_FACTOR: Final = 0.3
_JOINED: Final = 0.8
_WEAK_FACTOR: Final = 0.35
_PART_FACTOR: Final = 0.5
_VERB_FACTOR: Final = 0.7
_SERVER_FACTOR: Final = 0.15
_NAMED_SERVER_FACTOR: Final = 1.5
"""The factor of operations of a server whose product the query names."""
BUILTIN_FACTOR: Final = 0.85
"""The factor of built-in operations: equally good operations of servers come first."""
_MIN_RELATIVE_SCORE: Final = 0.25
_MAX_RANKED: Final = 200
_MAX_MATCHES: Final = 24
_MAX_CACHED_MATCHES: Final = 4_096


class SearchHit(msgspec.Struct, frozen=True):
    """An operation found by a search."""

    operation: Operation
    score: float
    """From 0 to 1."""
    matched_words: tuple[str, ...] = ()
    """The words that matched, most significant first."""


class SearchWeights(msgspec.Struct, frozen=True):
    """The weights of the score: the weighted mean of these values."""

    similarity: float = 0.75
    frequency: float = 0.1
    recency: float = 0.05
    success: float = 0.1


class Searcher(Protocol):
    """Finds operations for a query."""

    def search(
        self,
        text: str,
        sees: ToolFilter | None,
        limit: int,
        namespace: str = "",
        category: Category | None = None,
        caller: str = "",
    ) -> list[SearchHit]:
        """Return the operations that match the text, best first.

        Args:
            sees: returns True for the tools that the caller sees. None: all tools.
        """


class TermMatches(msgspec.Struct, frozen=True, gc=False):
    """The operations that match one term of a query."""

    word: str
    postings: Postings
    max_score: float


class LexicalSearcher:
    """Searches by words."""

    def __init__(
        self,
        operation_catalog: Callable[[], OperationCatalog],
        usage: Usage = NO_USAGE,
        weights: SearchWeights | None = None,
    ) -> None:
        """
        Args:
            operation_catalog: returns the current operation catalog.
        """
        self._operation_catalog = operation_catalog
        self.usage = usage
        self.weights = weights or SearchWeights()
        self._terms_by_tool: dict[Any, ToolTerms] = {}
        self._number: int | None = None
        self._index = SearchIndex((), {})
        self._matches: dict[str, TermMatches | None] = {}

    def prepare(self, operation_catalog: OperationCatalog | None = None) -> SearchIndex:
        """Return the index of the current catalog, and build it if the catalog has changed.

        May be called in a thread, with a catalog that the event loop's thread has read.
        """
        operation_catalog = operation_catalog or self._operation_catalog()
        if operation_catalog.number != self._number:
            operations = operation_catalog.all()
            terms_by_tool = {
                operation.tool: self._terms_by_tool[operation.tool]
                for operation in operations
                if operation.tool in self._terms_by_tool
            }
            index = SearchIndex(operations, terms_by_tool)
            self._terms_by_tool, self._matches = terms_by_tool, {}
            self._index, self._number = index, operation_catalog.number
        return self._index

    def close(self) -> None:
        """Do nothing: there is no background work."""

    def search(
        self,
        text: str,
        sees: ToolFilter | None,
        limit: int,
        namespace: str = "",
        category: Category | None = None,
        caller: str = "",
    ) -> list[SearchHit]:
        index = self.prepare()
        ranked, matches = self.rank(text, index)
        return self.select_hits(ranked, matches, index, sees, limit, namespace, category, caller)

    def select_hits(
        self,
        ranked: Ranked,
        matches: list[TermMatches],
        index: SearchIndex,
        sees: ToolFilter | None,
        limit: int,
        namespace: str = "",
        category: Category | None = None,
        caller: str = "",
    ) -> list[SearchHit]:
        """Select the operations that the caller sees and requests, with usage in their scores."""
        hits: list[SearchHit] = []
        for number, score in self._apply_usage(ranked, index, caller):
            operation = index.operations[number]
            if namespace and operation.server != namespace:
                continue
            if category is not None and operation.category is not category:
                continue
            if sees is not None and not sees(operation.tool):
                continue
            hits.append(SearchHit(operation, round(score, 4), _matched_words(number, matches)))
            if len(hits) >= limit:
                break
        return hits

    def rank(self, text: str, index: SearchIndex) -> tuple[Ranked, list[TermMatches]]:
        """Return the scores of operations, best first, and the matches of the query's terms."""
        words = query_words(text)
        terms = extract_terms(words, allow_gaps=True)
        matches = self._match_terms(terms, index)
        if not matches:
            return [], matches
        operations = index.operations
        scores = [0.0] * len(operations)
        max_total = 0.0
        for match in matches:
            max_total += match.max_score
            for number, weight in match.postings:
                scores[number] += weight
        min_score = _MIN_RELATIVE_SCORE * max(scores)
        candidates = [number for number, score in enumerate(scores) if score >= min_score]
        best_by_server: dict[str, float] = {}
        for number in candidates:
            server = operations[number].server
            if scores[number] > best_by_server.get(server, 0.0):
                best_by_server[server] = scores[number]
        named_servers = self._find_named_servers(words, index)
        factors = category_factors(query_categories(words, terms))
        ranking = []
        for number in candidates:
            operation = operations[number]
            score = scores[number] + _SERVER_FACTOR * best_by_server[operation.server]
            score *= factors[operation.category]
            if operation.server in named_servers:
                score *= _NAMED_SERVER_FACTOR
            if operation.builtin is not None:
                score *= BUILTIN_FACTOR
            ranking.append((number, score / max_total))
        ranking.sort(key=itemgetter(1), reverse=True)
        del ranking[_MAX_RANKED:]
        # The shares of the server, its name and the verb may raise a perfect match above 1.
        scale = max(1.0, ranking[0][1])
        return [
            (number, score_of_operation / scale) for number, score_of_operation in ranking
        ], matches

    @staticmethod
    def _find_named_servers(words: list[str], index: SearchIndex) -> frozenset[str]:
        """Return the servers whose product the query names. Names are not stemmed: `words` does not
        name the server `word`.
        """
        return frozenset[str]().union(*(index.server_names.get(word, ()) for word in words))

    def _apply_usage(self, ranked: Ranked, index: SearchIndex, caller: str) -> Ranked:
        """Combine similarity with usage."""
        weights, usage = self.weights, self.usage
        weight_sum = (
            weights.similarity + weights.frequency + weights.recency + weights.success
        ) or 1.0
        if not ranked or usage.is_empty:
            return ranked
        best = ranked[0][1]
        result = []
        for number, similarity in ranked:
            usage_score = usage.score_of(index.operations[number].canonical, caller)
            # Usage must not raise operations that hardly match.
            usage_factor = similarity / best if similarity >= 0.5 * best else 0.0
            result.append(
                (
                    number,
                    (
                        weights.similarity * similarity
                        + usage_factor
                        * similarity
                        * (
                            weights.frequency * usage_score.frequency
                            + weights.recency * usage_score.recency
                            + weights.success * usage_score.success
                        )
                    )
                    / (weight_sum or 1.0),
                )
            )
        result.sort(key=itemgetter(1), reverse=True)
        return result

    # -- term matches

    def _match_terms(self, terms: list[Term], index: SearchIndex) -> list[TermMatches]:
        matches: list[TermMatches] = []
        seen_keys: set[str] = set()
        for term in terms[: _MAX_MATCHES * 2]:
            for key, factor in _weighted_terms(term):
                if key in seen_keys:
                    continue
                seen_keys.add(key)
                match = self._match_term(key, factor, index)
                if match is not None:
                    matches.append(match)
        if len(matches) > _MAX_MATCHES:
            matches.sort(key=lambda match: match.max_score, reverse=True)
            del matches[_MAX_MATCHES:]
        return matches

    def _match_term(self, key: str, factor: float, index: SearchIndex) -> TermMatches | None:
        cache_key = f"{key} {factor}"
        if cache_key in self._matches:
            return self._matches[cache_key]
        weights: dict[int, float] = {}
        for postings, factor_of_postings in self._expand_term(key, index):
            factor_of_postings *= factor
            for number, weight in postings:
                weight *= factor_of_postings
                if weight > weights.get(number, 0.0):
                    weights[number] = weight
        match = TermMatches(key, list(weights.items()), max(weights.values())) if weights else None
        if len(self._matches) >= _MAX_CACHED_MATCHES:
            self._matches.clear()
        self._matches[cache_key] = match
        return match

    def _expand_term(self, key: str, index: SearchIndex) -> list[tuple[Postings, float]]:
        """Return the postings that a term may stand for, with a factor for each."""
        words = vocabulary()
        expansions: list[tuple[Postings, float]] = []
        if key in index.terms:
            expansions.append((index.terms[key], 1.0))
        for number in words.classes.get(key, ()):
            if number in index.classes:
                expansions.append((index.classes[number], _CLASS_FACTOR))
        for hint in (*words.hints.get(key, ()), *words.products.get(key, ())):
            if hint in index.terms:
                expansions.append((index.terms[hint], _HINT_FACTOR))
        if not expansions and len(key) >= 5:
            expansions += [
                (index.terms[similar], _MISSPELLED_FACTOR + 0.5 * max(0.0, similarity - 0.5))
                for similar, similarity in index.find_similar(key)
            ]
        return expansions


def _weighted_terms(term: Term) -> list[tuple[str, float]]:
    factor = (
        _WEAK_FACTOR
        if term.term in WEAK
        else _VERB_FACTOR
        if term.term in vocabulary().verbs
        else 1.0
    )
    return [(term.term, factor), *((part, factor * _PART_FACTOR) for part in term.parts)]


def _matched_words(number: int, matches: list[TermMatches]) -> tuple[str, ...]:
    weighted_words = []
    for match in matches:
        for operation_number, weight in match.postings:
            if operation_number == number:
                weighted_words.append((weight, match.word))
                break
    weighted_words.sort(reverse=True)
    return tuple(word.replace("_", " ") for _, word in weighted_words[:4])


# The hits that a model is shown in advance: above a threshold, and within a budget of tokens.

_BYTES_PER_TOKEN = 4


def estimate_tokens(operation: Operation) -> int:
    """Return about how many tokens an operation's tool costs a model."""
    tool = operation.tool
    return -(-(len(tool.upstream_name) + len(tool.listed)) // _BYTES_PER_TOKEN)


def prefill(
    hits: Iterable[SearchHit],
    threshold: float,
    budget: int,
    cost: Callable[[Operation], int] = estimate_tokens,
) -> list[SearchHit]:
    """Return the hits above the threshold that fit into the budget together.

    A hit that is too expensive is skipped: a later one may still fit.
    """
    selected = []
    for hit in hits:
        tokens = cost(hit.operation)
        if hit.score >= threshold and tokens <= budget:
            selected.append(hit)
            budget -= tokens
    return selected
