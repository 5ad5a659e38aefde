"""The search without a model: by words, related words, and usage.

A search reads one index, which is swapped whole when the catalog changes. It never raises for what
it is asked, be it empty, a megabyte, or in a script that no tool is described in.
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
from interlock.aql.search.vocabulary import Term, term, terms_of, vocabulary
from interlock.aql.search.words import WEAK, wish_of
from interlock.protocol.aql_terms import Category

if TYPE_CHECKING:
    from interlock.core.catalog.offering import Tool


# -- What kind of operation a wish is for, by the verb that it begins with: who wants to see does
# not want to delete. A verb further on is often none (`the open issues`, `a list of posts`).
#
# Pure. Nothing is decided by it: an operation of another kind is only found later.

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
FITS: Final = 1.12
CONTRADICTS: Final = 0.86
_READING: Final = frozenset((Category.READ,))


def _by_verb() -> dict[str, frozenset[Category]]:
    found: dict[str, set[Category]] = {}
    for category, verbs in _VERBS.items():
        for verb in verbs.split():
            found.setdefault(term(verb), set()).add(category)
    return {verb: frozenset(kinds) for verb, kinds in found.items()}


_CATEGORIES: Final = _by_verb()
_BEFORE_NOUNS: Final = frozenset(
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
"""A wish that begins with one of these names a thing, and has no verb in front."""
_QUESTIONS: Final = frozenset(
    stem(word)
    for word in ("what", "which", "who", "where", "when", "how", "is", "are", "did", "does")
)


def wanted(words: list[str], terms: Iterable[Term]) -> frozenset[Category]:
    """The categories that a wish may be for. Empty: it does not say."""
    if words and words[0] in _BEFORE_NOUNS:
        return frozenset()
    first = next(iter(terms), None)
    kinds = None if first is None else _CATEGORIES.get(first.term)
    if kinds:
        return kinds
    if words and stem(words[0]) in _QUESTIONS:
        return frozenset((Category.READ,))
    return frozenset()


def worths(kinds: frozenset[Category]) -> dict[Category, float]:
    """What each category is worth to a wish: 1 is neither here nor there."""
    return {category: _worth(kinds, category) for category in Category}


def _worth(kinds: frozenset[Category], category: Category) -> float:
    if not kinds:
        return 1.0
    if category in kinds:
        return FITS
    if kinds == _READING:
        # Many servers do not say which of their tools only read.
        return 0.97 if category is Category.EXECUTE else CONTRADICTS
    if category is Category.READ:
        return CONTRADICTS
    return 0.8 if category is Category.DELETE else 0.97


ToolFilter = Callable[["Tool"], bool]
Ranked = list[tuple[int, float]]
"""Operations by number, with how well each fits, the best first."""

_KIN: Final = 0.6
_HINTED: Final = 0.4
_MISSPELT: Final = 0.3
_JOINED: Final = 0.8
_WEAK: Final = 0.35
_PART: Final = 0.5
_VERB: Final = 0.7
_SERVER: Final = 0.15
_NAMED: Final = 1.5
"""Operations of a server whose product the wish names."""
NATIVE: Final = 0.85
"""The node's own operations come after a server's that fits as well."""
_LEAST: Final = 0.25
_MOST_RANKED: Final = 200
_MOST_UNITS: Final = 24
_MOST_KEPT: Final = 4_096


class SearchHit(msgspec.Struct, frozen=True):
    """An operation that may be meant."""

    operation: Operation
    score: float
    """From 0 to 1."""
    why: tuple[str, ...] = ()
    """The words that led to it, the most telling first."""


class SearchWeights(msgspec.Struct, frozen=True):
    """What counts for how much: R = the sum of each times its weight, over the sum of weights."""

    similarity: float = 0.75
    frequency: float = 0.1
    recency: float = 0.05
    success: float = 0.1


class Searcher(Protocol):
    """Whoever finds operations."""

    def search(
        self,
        text: str,
        sees: ToolFilter | None,
        most: int,
        namespace: str = "",
        category: Category | None = None,
        caller: str = "",
    ) -> list[SearchHit]:
        """The operations that `text` may mean, the likeliest first. `sees`: None sees all."""


class TermMatches(msgspec.Struct, frozen=True, gc=False):
    """The operations that match one word of a query."""

    word: str
    postings: Postings
    most: float


class LexicalSearcher:
    """Searches by words."""

    def __init__(
        self,
        operation_catalog: Callable[[], OperationCatalog],
        usage: Usage = NO_USAGE,
        weights: SearchWeights | None = None,
    ) -> None:
        """`operation_catalog`: returns the current one."""
        self._operation_catalog = operation_catalog
        self.usage = usage
        self.weights = weights or SearchWeights()
        self._said: dict[Any, ToolTerms] = {}
        self._number: int | None = None
        self._index = SearchIndex((), {})
        self._units: dict[str, TermMatches | None] = {}

    def prepare(self, operation_catalog: OperationCatalog | None = None) -> SearchIndex:
        """The index of the catalog as it is now; made if it changed. May be called in a thread,
        with a catalog that was asked for outside of it."""
        operation_catalog = operation_catalog or self._operation_catalog()
        if operation_catalog.number != self._number:
            operations = operation_catalog.all()
            said = {one.tool: self._said[one.tool] for one in operations if one.tool in self._said}
            index = SearchIndex(operations, said)
            self._said, self._units = said, {}
            self._index, self._number = index, operation_catalog.number
        return self._index

    def close(self) -> None:
        """Nothing is under way that would have to end."""

    def search(
        self,
        text: str,
        sees: ToolFilter | None,
        most: int,
        namespace: str = "",
        category: Category | None = None,
        caller: str = "",
    ) -> list[SearchHit]:
        index = self.prepare()
        ranked, units = self.ranked(text, index)
        return self.shown(ranked, units, index, sees, most, namespace, category, caller)

    def shown(
        self,
        ranked: Ranked,
        units: list[TermMatches],
        index: SearchIndex,
        sees: ToolFilter | None,
        most: int,
        namespace: str = "",
        category: Category | None = None,
        caller: str = "",
    ) -> list[SearchHit]:
        """What of a ranking a caller sees and asks for, by what was used too."""
        found: list[SearchHit] = []
        for number, score in self._rated(ranked, index, caller):
            operation = index.operations[number]
            if namespace and operation.server != namespace:
                continue
            if category is not None and operation.category is not category:
                continue
            if sees is not None and not sees(operation.tool):
                continue
            found.append(SearchHit(operation, round(score, 4), _why(number, units)))
            if len(found) >= most:
                break
        return found

    def ranked(self, text: str, index: SearchIndex) -> tuple[Ranked, list[TermMatches]]:
        """Operations by number, with how well each fits, the best first; and what was asked."""
        words = wish_of(text)
        terms = terms_of(words, apart=True)
        units = self._units_of(terms, index)
        if not units:
            return [], units
        operations = index.operations
        scores = [0.0] * len(operations)
        ideal = 0.0
        for unit in units:
            ideal += unit.most
            for number, weight in unit.postings:
                scores[number] += weight
        least = _LEAST * max(scores)
        found = [number for number, score in enumerate(scores) if score >= least]
        best_of: dict[str, float] = {}
        for number in found:
            server = operations[number].server
            if scores[number] > best_of.get(server, 0.0):
                best_of[server] = scores[number]
        named = self._servers_named(words, index)
        worth = worths(wanted(words, terms))
        fitting = []
        for number in found:
            one = operations[number]
            score = scores[number] + _SERVER * best_of[one.server]
            score *= worth[one.category]
            if one.server in named:
                score *= _NAMED
            if one.native is not None:
                score *= NATIVE
            fitting.append((number, score / ideal))
        fitting.sort(key=itemgetter(1), reverse=True)
        del fitting[_MOST_RANKED:]
        # The server's share, its name and the verb may lift a perfect match over 1.
        over = max(1.0, fitting[0][1])
        return [(number, fits / over) for number, fits in fitting], units

    @staticmethod
    def _servers_named(words: list[str], index: SearchIndex) -> frozenset[str]:
        """The servers whose product a wish names. A name is said as it is spelled: `words` does not
        name the server `word`."""
        return frozenset[str]().union(*(index.named.get(word, ()) for word in words))

    def _rated(self, ranked: Ranked, index: SearchIndex, caller: str) -> Ranked:
        """Similarity, with what was used before and how that went."""
        weights, usage = self.weights, self.usage
        whole = (weights.similarity + weights.frequency + weights.recency + weights.success) or 1.0
        if not ranked or usage.is_empty:
            return ranked
        best = ranked[0][1]
        rated = []
        for number, fits in ranked:
            seen = usage.of(index.operations[number].canonical, caller)
            # What hardly fits is not lifted by having been used.
            gate = fits / best if fits >= 0.5 * best else 0.0
            rated.append(
                (
                    number,
                    (
                        weights.similarity * fits
                        + gate
                        * fits
                        * (
                            weights.frequency * seen.frequency
                            + weights.recency * seen.recency
                            + weights.success * seen.success
                        )
                    )
                    / (whole or 1.0),
                )
            )
        rated.sort(key=itemgetter(1), reverse=True)
        return rated

    # -- what a word says

    def _units_of(self, terms: list[Term], index: SearchIndex) -> list[TermMatches]:
        found: list[TermMatches] = []
        once: set[str] = set()
        for one in terms[: _MOST_UNITS * 2]:
            for key, factor in _asked(one):
                if key in once:
                    continue
                once.add(key)
                unit = self._unit(key, factor, index)
                if unit is not None:
                    found.append(unit)
        if len(found) > _MOST_UNITS:
            found.sort(key=lambda unit: unit.most, reverse=True)
            del found[_MOST_UNITS:]
        return found

    def _unit(self, key: str, factor: float, index: SearchIndex) -> TermMatches | None:
        kept = f"{key} {factor}"
        if kept in self._units:
            return self._units[kept]
        best: dict[int, float] = {}
        for postings, each in self._readings(key, index):
            each *= factor
            for number, weight in postings:
                weight *= each
                if weight > best.get(number, 0.0):
                    best[number] = weight
        unit = TermMatches(key, list(best.items()), max(best.values())) if best else None
        if len(self._units) >= _MOST_KEPT:
            self._units.clear()
        self._units[kept] = unit
        return unit

    def _readings(self, key: str, index: SearchIndex) -> list[tuple[Postings, float]]:
        """What a term may stand for, and how surely."""
        known = vocabulary()
        found: list[tuple[Postings, float]] = []
        if key in index.terms:
            found.append((index.terms[key], 1.0))
        for number in known.classes.get(key, ()):
            if number in index.classes:
                found.append((index.classes[number], _KIN))
        for hint in (*known.hints.get(key, ()), *known.products.get(key, ())):
            if hint in index.terms:
                found.append((index.terms[hint], _HINTED))
        if not found and len(key) >= 5:
            found += [
                (index.terms[near], _MISSPELT + 0.5 * max(0.0, how - 0.5))
                for near, how in index.alike(key)
            ]
        return found


def _asked(one: Term) -> list[tuple[str, float]]:
    factor = _WEAK if one.term in WEAK else _VERB if one.term in vocabulary().verbs else 1.0
    return [(one.term, factor), *((part, factor * _PART) for part in one.parts)]


def _why(number: int, units: list[TermMatches]) -> tuple[str, ...]:
    said = []
    for unit in units:
        for one, weight in unit.postings:
            if one == number:
                said.append((weight, unit.word))
                break
    said.sort(reverse=True)
    return tuple(word.replace("_", " ") for _, word in said[:4])


# -- The hits that are shown to a model before it asks: good enough, and within a budget of tokens.

_BYTES_PER_TOKEN = 4


def tokens_of(operation: Operation) -> int:
    """About what an operation's tool costs a model that is shown it."""
    tool = operation.tool
    return -(-(len(tool.upstream_name) + len(tool.listed)) // _BYTES_PER_TOKEN)


def prefill(
    hits: Iterable[SearchHit],
    threshold: float,
    budget: int,
    cost: Callable[[Operation], int] = tokens_of,
) -> list[SearchHit]:
    """The hits whose score reaches the threshold and that together cost no more than the budget.

    A hit that is too dear is passed over: a later one may still have room.
    """
    chosen = []
    for hit in hits:
        price = cost(hit.operation)
        if hit.score >= threshold and price <= budget:
            chosen.append(hit)
            budget -= price
    return chosen
