"""Tests of the search by embeddings, and of the search by words until vectors are ready."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest

from interlock.aql.search.embeddings import EmbeddingSearcher, find_model_loader, texts_of
from interlock.aql.search.minilm import MiniLm, model_folder
from interlock.aql.search.searcher import LexicalSearcher
from interlock.aql.search.words import split_words
from interlock.protocol.aql_terms import Category
from tests.aql.operation_catalogs import builtin_operation
from tests.aql.operation_catalogs import operation_catalog as book_with
from tests.aql.search.search_catalogs import SMALL, names, operation_catalog, tool
from tests.support.offerings import offer
from tests.support.timeouts import HANG_TIMEOUT

numpy: Any = pytest.importorskip("numpy", reason="the extra `embeddings` is not installed")


class LetterEncoder:
    """An encoder without a model. Texts with the same letters have similar vectors."""

    def __init__(self) -> None:
        self.encoded: list[str] = []
        self.let_go = threading.Event()
        self.let_go.set()

    def vectors(self, texts: Sequence[str]) -> Any:
        assert self.let_go.wait(HANG_TIMEOUT)
        self.encoded += texts
        made = numpy.zeros((len(texts), 64), dtype=numpy.float32)
        for row, text in enumerate(texts):
            for word in split_words(text):
                made[row, zlib.crc32(word.encode()) % 64] += 1
        return made / numpy.maximum(numpy.linalg.norm(made, axis=1, keepdims=True), 1e-9)


class VectorStore:
    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}

    def vectors(self, digests: Iterable[str]) -> Mapping[str, bytes]:
        return {key: self.kept[key] for key in digests if key in self.kept}

    def save_vectors(self, vectors: Mapping[str, bytes]) -> None:
        self.kept.update(vectors)


def test_searches_by_words_until_vectors_are_ready() -> None:
    shelf, letters = operation_catalog(SMALL), LetterEncoder()
    letters.let_go.clear()
    searcher = EmbeddingSearcher(LexicalSearcher(lambda: shelf), lambda: letters)
    wish = "make a folder"
    assert names(searcher.search(wish, None, 1)) == ["files.create_directory"]
    assert letters.encoded == []
    letters.let_go.set()
    assert searcher.wait(HANG_TIMEOUT)
    assert "files.create_directory" in names(searcher.search(wish, None, 3))
    assert wish in letters.encoded
    searcher.close()


def test_stores_vectors_and_encodes_only_new_operations() -> None:
    kept, first, second = VectorStore(), LetterEncoder(), LetterEncoder()
    catalog_builder = [operation_catalog(SMALL)]
    searcher = EmbeddingSearcher(LexicalSearcher(lambda: catalog_builder[-1]), lambda: first, kept)
    assert searcher.wait(HANG_TIMEOUT)
    assert len(first.encoded) == 3 * len(catalog_builder[0].all())
    searcher.close()
    again = EmbeddingSearcher(LexicalSearcher(lambda: catalog_builder[-1]), lambda: second, kept)
    assert again.wait(HANG_TIMEOUT)
    assert second.encoded == []
    catalog_builder.append(operation_catalog({**SMALL, "new": [("wave", "Wave a hand")]}))
    catalog_builder[-1].number = catalog_builder[0].number + 1
    assert again.wait(HANG_TIMEOUT)
    new = catalog_builder[-1].find("new_wave")
    assert new is not None
    assert second.encoded == list(texts_of(new))
    again.close()


def test_shows_only_visible_operations() -> None:
    shelf = operation_catalog(SMALL)
    searcher = EmbeddingSearcher(LexicalSearcher(lambda: shelf), LetterEncoder)
    assert searcher.wait(HANG_TIMEOUT)
    found = searcher.search("delete a message", lambda tool: tool.upstream != "mail", 20)
    assert found
    assert all(hit.operation.server != "mail" for hit in found)
    assert all(0 <= hit.score <= 1 for hit in found)
    for odd in ("", "\0", "(((", "x" * 1_048_576, "\ud800"):
        assert len(searcher.search(odd, None, 5)) <= 5
    searcher.close()


def test_searches_by_words_without_model() -> None:
    def broken() -> LetterEncoder:
        raise OSError("no such file")

    shelf = operation_catalog(SMALL)
    searcher = EmbeddingSearcher(LexicalSearcher(lambda: shelf), broken)
    assert not searcher.wait(HANG_TIMEOUT)
    assert "no such file" in searcher.problem
    assert names(searcher.search("make a folder", None, 1)) == ["files.create_directory"]


@pytest.mark.skipif(model_folder() is None, reason="the extra `embeddings` is not installed")
def test_model_rates_similar_sentences_higher() -> None:
    folder = model_folder()
    assert folder is not None
    model = MiniLm(folder)
    made = model.vectors(
        ["A cat sits on the mat.", "A kitten rests on a rug.", "Quarterly revenue grew.", "", "é"]
    )
    assert made.shape == (5, 384)
    assert numpy.allclose(numpy.linalg.norm(made, axis=1), 1.0, atol=1e-4)
    assert made[0] @ made[1] > 0.5 > made[0] @ made[2]
    # A text is what it is, whoever stands beside it in a batch.
    assert numpy.allclose(model.vectors(["A cat sits on the mat."])[0], made[0], atol=1e-4)
    # Its own words for "hello world!": marks around three tokens.
    assert model.tokens("Hello, wörld") == [101, 7592, 1010, 2088, 102]


@pytest.mark.skipif(find_model_loader() is None, reason="the extra `embeddings` is not installed")
def test_finds_operation_by_meaning() -> None:
    load = find_model_loader()
    assert load is not None
    shelf = operation_catalog(SMALL)
    searcher = EmbeddingSearcher(LexicalSearcher(lambda: shelf), load)
    assert searcher.wait(50)
    found = searcher.search("reimburse the shopper", None, 2)
    assert "stripe.create_refund" in names(found)
    searcher.close()


def test_ranks_builtin_operations_after_servers() -> None:
    class Alike:
        def vectors(self, texts: Sequence[str]) -> Any:
            return numpy.ones((len(texts), 1), dtype=numpy.float32)

    natives = (builtin_operation("send_greeting", Category.EXECUTE),)
    shelf = book_with(offer("mail", [tool("send_greeting", "Send.")]), natives=natives)
    searcher = EmbeddingSearcher(LexicalSearcher(lambda: shelf), Alike)
    assert searcher.wait(HANG_TIMEOUT)
    # No word of it is known, and all vectors are the same: nothing else tells them apart.
    found = searcher.search("qqqq", None, 5)
    assert [hit.operation.builtin is not None for hit in found] == [False, True]
    assert found[1].score < found[0].score


def test_close_waits_for_starting_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = operation_catalog(SMALL)
    searcher = EmbeddingSearcher(LexicalSearcher(lambda: shelf), LetterEncoder)
    starting, go_on = threading.Event(), threading.Event()
    start = threading.Thread.start

    def slow_start(thread: threading.Thread) -> None:
        if thread.name == "aql-vectors":
            starting.set()
            assert go_on.wait(HANG_TIMEOUT)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", slow_start)
    problems: list[BaseException] = []

    def close() -> None:
        try:
            searcher.close()
        except RuntimeError as problem:
            problems.append(problem)

    preparing = threading.Thread(target=searcher.prepare)
    closing = threading.Thread(target=close)
    preparing.start()
    assert starting.wait(HANG_TIMEOUT)
    closing.start()
    # Without the lock it joins at once, and fails; with it, it waits for the start.
    closing.join(0.2)
    go_on.set()
    preparing.join(HANG_TIMEOUT)
    closing.join(HANG_TIMEOUT)
    assert not closing.is_alive()
    assert problems == []
