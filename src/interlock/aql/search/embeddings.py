"""The search by meaning: vectors of tool descriptions, beside the search by words.

Only where the extra `embeddings` is installed. The vectors of a catalog are made in a thread and
kept; until they are there, words alone decide. Both ways of looking see what the other does not:
a tool's score is how near its vector is, and a share of how well its words fit.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final, Protocol

from interlock.aql.operations import Operation, OperationCatalog
from interlock.aql.search.index import SearchIndex
from interlock.aql.search.minilm import NAME, MiniLm, model_folder
from interlock.aql.search.searcher import (
    NATIVE,
    LexicalSearcher,
    SearchHit,
    SearchWeights,
    ToolFilter,
)
from interlock.aql.search.usage import Usage
from interlock.aql.search.words import first_sentence, split_names, without_literals
from interlock.primitives.bounded_dict import BoundedDict
from interlock.protocol.aql_terms import Category

_log = logging.getLogger("interlock.search")

_SHARES: Final = (0.4, 0.4, 0.2)
"""Of what a tool says of itself at length, of its server and its first sentence, of what it
takes."""
_WORDS: Final = 0.3
"""How much the search by words adds. A vector adds at most 1, and usually half of it."""
_MOST_QUERIES: Final = 512
_AT_ONCE: Final = 24
_LONGEST: Final = 500
_ASKED: Final = 1_000


class TextEncoder(Protocol):
    """Makes vectors of texts."""

    def vectors(self, texts: Sequence[str]) -> Any:
        """An array with a row of length 1 for each text."""


class VectorStore(Protocol):
    """Stores vectors by a digest of their text. It may lose them."""

    def vectors(self, digests: Iterable[str]) -> Mapping[str, bytes]: ...

    def keep_vectors(self, vectors: Mapping[str, bytes]) -> None: ...


class _Ready:
    """The vectors of one index, row by operation."""

    __slots__ = ("index", "matrix")

    def __init__(self, index: SearchIndex, matrix: Any) -> None:
        self.index = index
        self.matrix = matrix


class EmbeddingSearcher:
    """Searches by meaning and by words."""

    def __init__(
        self,
        lexical: LexicalSearcher,
        load: Callable[[], TextEncoder],
        store: VectorStore | None = None,
    ) -> None:
        """`load` makes the encoder, in the thread that needs it first."""
        self.lexical = lexical
        self._load = load
        self._store = store
        self._encoder: TextEncoder | None = None
        self._encoding = threading.Lock()
        self._ready: _Ready | None = None
        self._made: dict[str, bytes] = {}
        self._queries: BoundedDict[str, Any] = BoundedDict(_MOST_QUERIES)
        self._building: threading.Thread | None = None
        self._starting = threading.Lock()
        """Held while a thread is started, so that nobody joins one that is not running yet."""
        self._stopped = threading.Event()
        self.problem = ""
        """Why there will be no vectors. Empty: there are, or there will be."""

    # -- getting ready

    def prepare(self, operation_catalog: OperationCatalog | None = None) -> SearchIndex:
        """The index of the catalog as it is now. Vectors that are missing are begun."""
        index = self.lexical.prepare(operation_catalog)
        ready = self._ready
        if (ready is None or ready.index is not index) and not self.problem:
            self._begin(index)
        return index

    def _begin(self, index: SearchIndex) -> None:
        with self._starting:
            building = self._building
            if self._stopped.is_set() or (building is not None and building.is_alive()):
                return
            self._building = threading.Thread(
                target=self._build, args=(index,), name="aql-vectors", daemon=True
            )
            self._building.start()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the vectors of the catalog are there; whether they are."""
        index = self.prepare()
        building = self._building
        if building is not None:
            building.join(timeout)
        ready = self._ready
        return ready is not None and ready.index is index

    def close(self) -> None:
        """No more vectors are made."""
        self._stopped.set()
        with self._starting:
            building = self._building
        if building is not None:
            building.join(10.0)

    def _build(self, index: SearchIndex) -> None:
        try:
            self._ready = self._vectors_of(index)
        except (OSError, ValueError, ImportError, MemoryError) as exc:
            self.problem = f"{type(exc).__name__}: {exc}"
            _log.warning("Operations are found by words only: no vectors: %s", exc)

    def _vectors_of(self, index: SearchIndex) -> _Ready | None:
        import numpy

        wanted = {one: digest(texts) for one in index.operations for texts in (texts_of(one),)}
        missing = {key: one for one, key in wanted.items() if key not in self._made}
        if missing and self._store is not None:
            self._made.update(self._store.vectors(missing))
            missing = {key: one for key, one in missing.items() if key not in self._made}
        waiting = list(missing.items())
        while waiting:
            if self._stopped.is_set():
                return None
            some, waiting = waiting[:_AT_ONCE], waiting[_AT_ONCE:]
            made = self._encode(some)
            self._made.update(made)
            if self._store is not None:
                self._store.keep_vectors(made)
        rows = [numpy.frombuffer(self._made[wanted[one]], dtype="<f4") for one in index.operations]
        used = set(wanted.values())
        self._made = {key: made for key, made in self._made.items() if key in used}
        return _Ready(index, numpy.stack(rows)) if rows else None

    def _encode(self, some: list[tuple[str, Operation]]) -> dict[str, bytes]:
        texts = [text for _, one in some for text in texts_of(one)]
        with self._encoding:
            made = self._model().vectors(texts)
        many = len(_SHARES)
        return {
            key: sum(share * made[at * many + which] for which, share in enumerate(_SHARES))
            .astype("<f4")
            .tobytes()
            for at, (key, _) in enumerate(some)
        }

    def _model(self) -> TextEncoder:
        if self._encoder is None:
            self._encoder = self._load()
        return self._encoder

    # -- searching

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
        ready = self._ready
        if ready is None or ready.index is not index or not text.strip():
            return self.lexical.search(text, sees, most, namespace, category, caller)
        ranked, units = self.lexical.ranked(text, index)
        near = ready.matrix @ self._query(text)
        words = dict(ranked)
        best = ranked[0][1] if ranked else 1.0
        operations = index.operations
        scores = [
            (
                number,
                max(0.0, float(how)) * (1.0 if operations[number].native is None else NATIVE)
                + _WORDS * words.get(number, 0.0) / best,
            )
            for number, how in enumerate(near)
        ]
        whole = 1.0 + _WORDS
        scores.sort(key=lambda one: one[1], reverse=True)
        ranked = [(number, min(1.0, score / whole)) for number, score in scores[:200] if score > 0]
        return self.lexical.shown(ranked, units, index, sees, most, namespace, category, caller)

    def _query(self, text: str) -> Any:
        text = without_literals(text)[:_ASKED]
        kept = self._queries.get(text)
        if kept is None:
            with self._encoding:
                kept = self._model().vectors([text])[0]
            self._queries[text] = kept
        return kept


def texts_of(operation: Operation) -> tuple[str, str, str]:
    """What is made into an operation's vector."""
    name, server = _spoken(operation.local), _spoken(operation.server)
    description = " ".join(operation.tool.description[: 4 * _LONGEST].split())
    first = first_sentence(operation.tool.description)[0]
    parameters = ", ".join(_spoken(one) for one in _parameters(operation))
    return (
        f"{name}: {description[:_LONGEST]}",
        f"{server} {name}. {first[:200]}",
        f"{name} {parameters}",
    )


def _spoken(name: str) -> str:
    return split_names(name[:200]).replace("-", " ").replace(".", " ").lower()


def _parameters(operation: Operation) -> list[str]:
    schema = operation.tool.input_schema()
    properties = schema.get("properties") if isinstance(schema, dict) else None
    return [str(name) for name in list(properties)[:15]] if isinstance(properties, dict) else []


def digest(texts: Sequence[str]) -> str:
    """Of what a vector is made of, and by what."""
    said = "\0".join((NAME, *texts)).encode("utf-8", "surrogatepass")
    return blake2b(said, digest_size=16).hexdigest()


def installed() -> Callable[[], TextEncoder] | None:
    """What loads the model of the extra. None: it is not installed."""
    folder = model_folder()
    return None if folder is None else lambda: MiniLm(folder)


def searcher_for(
    operation_catalog: Callable[[], OperationCatalog],
    usage: Usage,
    embeddings: str,
    store: VectorStore | None = None,
    weights: SearchWeights | None = None,
) -> LexicalSearcher | EmbeddingSearcher:
    """The searcher that a config asks for: by meaning too, where `embeddings` is `auto` and the
    extra is installed."""
    lexical = LexicalSearcher(operation_catalog, usage, weights)
    load = installed() if embeddings == "auto" else None
    return lexical if load is None else EmbeddingSearcher(lexical, load, store)
