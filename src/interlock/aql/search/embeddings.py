"""Semantic search: vectors of tool descriptions, combined with the lexical search.

It needs the extra `embeddings`. The vectors of a catalog are computed in a thread and stored. Until
they are available, only the lexical search is used. The two methods complement each other: a tool's
score is the similarity of its vector, plus a share of its lexical score.
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
    BUILTIN_FACTOR,
    LexicalSearcher,
    SearchHit,
    SearchWeights,
    ToolFilter,
)
from interlock.aql.search.usage import Usage
from interlock.aql.search.words import first_sentence, remove_literals, split_names
from interlock.primitives.bounded_dict import BoundedDict
from interlock.protocol.aql_terms import Category

_log = logging.getLogger("interlock.search")

_TEXT_SHARES: Final = (0.4, 0.4, 0.2)
"""The shares of: the description, the server with the first sentence, and the parameters."""
_LEXICAL_SHARE: Final = 0.3
"""The share of the lexical score. A vector adds at most 1, and usually half of that."""
_MAX_CACHED_QUERIES: Final = 512
_BATCH_SIZE: Final = 24
_MAX_DESCRIPTION: Final = 500
_MAX_QUERY: Final = 1_000


class TextEncoder(Protocol):
    """Computes vectors of texts."""

    def vectors(self, texts: Sequence[str]) -> Any:
        """Return an array with a row of length 1 for each text."""


class VectorStore(Protocol):
    """Stores vectors by a digest of their text. It may lose them."""

    def vectors(self, digests: Iterable[str]) -> Mapping[str, bytes]: ...

    def save_vectors(self, vectors: Mapping[str, bytes]) -> None: ...


class _VectorMatrix:
    """The vectors of an index, a row for each operation."""

    __slots__ = ("index", "matrix")

    def __init__(self, index: SearchIndex, matrix: Any) -> None:
        self.index = index
        self.matrix = matrix


class EmbeddingSearcher:
    """Searches by vectors and by words."""

    def __init__(
        self,
        lexical: LexicalSearcher,
        load: Callable[[], TextEncoder],
        store: VectorStore | None = None,
    ) -> None:
        """
        Args:
            load: loads the encoder, in the thread that needs it first.
        """
        self.lexical = lexical
        self._load = load
        self._store = store
        self._encoder: TextEncoder | None = None
        self._encoder_lock = threading.Lock()
        self._vectors: _VectorMatrix | None = None
        self._vectors_by_digest: dict[str, bytes] = {}
        self._queries: BoundedDict[str, Any] = BoundedDict(_MAX_CACHED_QUERIES)
        self._build_thread: threading.Thread | None = None
        self._start_lock = threading.Lock()
        """Held while a thread is started, so that no thread is joined before it runs."""
        self._stopped = threading.Event()
        self.problem = ""
        """Why there are no vectors. Empty: there are, or they are being computed."""

    # -- preparation

    def prepare(self, operation_catalog: OperationCatalog | None = None) -> SearchIndex:
        """Return the index of the current catalog. Starts the computation of missing vectors."""
        index = self.lexical.prepare(operation_catalog)
        vectors = self._vectors
        if (vectors is None or vectors.index is not index) and not self.problem:
            self._start_build(index)
        return index

    def _start_build(self, index: SearchIndex) -> None:
        with self._start_lock:
            build_thread = self._build_thread
            if self._stopped.is_set() or (build_thread is not None and build_thread.is_alive()):
                return
            self._build_thread = threading.Thread(
                target=self._build, args=(index,), name="aql-vectors", daemon=True
            )
            self._build_thread.start()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the vectors of the catalog. Returns True if they are available."""
        index = self.prepare()
        build_thread = self._build_thread
        if build_thread is not None:
            build_thread.join(timeout)
        vectors = self._vectors
        return vectors is not None and vectors.index is index

    def close(self) -> None:
        """Stop the computation of vectors."""
        self._stopped.set()
        with self._start_lock:
            build_thread = self._build_thread
        if build_thread is not None:
            build_thread.join(10.0)

    def _build(self, index: SearchIndex) -> None:
        try:
            self._vectors = self._load_vectors(index)
        except (OSError, ValueError, ImportError, MemoryError) as exc:
            self.problem = f"{type(exc).__name__}: {exc}"
            _log.warning("embeddings: unavailable, using the lexical search only: %s", exc)

    def _load_vectors(self, index: SearchIndex) -> _VectorMatrix | None:
        import numpy

        digests = {
            operation: digest_of_texts(texts)
            for operation in index.operations
            for texts in (texts_of(operation),)
        }
        missing = {
            key: operation
            for operation, key in digests.items()
            if key not in self._vectors_by_digest
        }
        if missing and self._store is not None:
            self._vectors_by_digest.update(self._store.vectors(missing))
            missing = {
                key: operation
                for key, operation in missing.items()
                if key not in self._vectors_by_digest
            }
        remaining = list(missing.items())
        while remaining:
            if self._stopped.is_set():
                return None
            batch, remaining = remaining[:_BATCH_SIZE], remaining[_BATCH_SIZE:]
            encoded = self._encode(batch)
            self._vectors_by_digest.update(encoded)
            if self._store is not None:
                self._store.save_vectors(encoded)
        rows = [
            numpy.frombuffer(self._vectors_by_digest[digests[operation]], dtype="<f4")
            for operation in index.operations
        ]
        used_digests = set(digests.values())
        self._vectors_by_digest = {
            key: encoded for key, encoded in self._vectors_by_digest.items() if key in used_digests
        }
        return _VectorMatrix(index, numpy.stack(rows)) if rows else None

    def _encode(self, batch: list[tuple[str, Operation]]) -> dict[str, bytes]:
        texts = [text for _, operation in batch for text in texts_of(operation)]
        with self._encoder_lock:
            rows = self._model().vectors(texts)
        share_count = len(_TEXT_SHARES)
        return {
            key: sum(
                share * rows[index * share_count + share_index]
                for share_index, share in enumerate(_TEXT_SHARES)
            )
            .astype("<f4")
            .tobytes()
            for index, (key, _) in enumerate(batch)
        }

    def _model(self) -> TextEncoder:
        if self._encoder is None:
            self._encoder = self._load()
        return self._encoder

    # -- search

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
        vectors = self._vectors
        if vectors is None or vectors.index is not index or not text.strip():
            return self.lexical.search(text, sees, limit, namespace, category, caller)
        ranked, matches = self.lexical.rank(text, index)
        similarities = vectors.matrix @ self._query_vector(text)
        lexical_scores = dict(ranked)
        best_lexical = ranked[0][1] if ranked else 1.0
        operations = index.operations
        scores = [
            (
                number,
                max(0.0, float(similarity))
                * (1.0 if operations[number].builtin is None else BUILTIN_FACTOR)
                + _LEXICAL_SHARE * lexical_scores.get(number, 0.0) / best_lexical,
            )
            for number, similarity in enumerate(similarities)
        ]
        max_score = 1.0 + _LEXICAL_SHARE
        scores.sort(key=lambda operation: operation[1], reverse=True)
        ranked = [
            (number, min(1.0, score / max_score)) for number, score in scores[:200] if score > 0
        ]
        return self.lexical.select_hits(
            ranked, matches, index, sees, limit, namespace, category, caller
        )

    def _query_vector(self, text: str) -> Any:
        text = remove_literals(text)[:_MAX_QUERY]
        vector = self._queries.get(text)
        if vector is None:
            with self._encoder_lock:
                vector = self._model().vectors([text])[0]
            self._queries[text] = vector
        return vector


def texts_of(operation: Operation) -> tuple[str, str, str]:
    """Return the texts that an operation's vector is computed from."""
    name, server = _spell_out(operation.local_name), _spell_out(operation.server)
    description = " ".join(operation.tool.description[: 4 * _MAX_DESCRIPTION].split())
    first_text = first_sentence(operation.tool.description)[0]
    parameters = ", ".join(_spell_out(operation) for operation in _parameter_names(operation))
    return (
        f"{name}: {description[:_MAX_DESCRIPTION]}",
        f"{server} {name}. {first_text[:200]}",
        f"{name} {parameters}",
    )


def _spell_out(name: str) -> str:
    return split_names(name[:200]).replace("-", " ").replace(".", " ").lower()


def _parameter_names(operation: Operation) -> list[str]:
    schema = operation.tool.input_schema()
    properties = schema.get("properties") if isinstance(schema, dict) else None
    return [str(name) for name in list(properties)[:15]] if isinstance(properties, dict) else []


def digest_of_texts(texts: Sequence[str]) -> str:
    """Return the digest of texts and the model's name."""
    content = "\0".join((NAME, *texts)).encode("utf-8", "surrogatepass")
    return blake2b(content, digest_size=16).hexdigest()


def find_model_loader() -> Callable[[], TextEncoder] | None:
    """Return a function that loads the model of the extra. None: it is not installed."""
    folder = model_folder()
    return None if folder is None else lambda: MiniLm(folder)


def create_searcher(
    operation_catalog: Callable[[], OperationCatalog],
    usage: Usage,
    embeddings: str,
    store: VectorStore | None = None,
    weights: SearchWeights | None = None,
) -> LexicalSearcher | EmbeddingSearcher:
    """Return the searcher for a config.

    It uses vectors if `embeddings` is `auto` and the extra is installed.
    """
    lexical = LexicalSearcher(operation_catalog, usage, weights)
    load = find_model_loader() if embeddings == "auto" else None
    return lexical if load is None else EmbeddingSearcher(lexical, load, store)
