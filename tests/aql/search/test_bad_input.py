"""Tests of the search with unusual queries and tools."""

from __future__ import annotations

import json
from typing import Any

import pytest

from interlock.aql.search.searcher import LexicalSearcher
from interlock.aql.search.words import STOP
from interlock.protocol.aql_terms import Category
from tests.aql.search.search_catalogs import SMALL, names, operation_catalog
from tests.support.offerings import merged, offer


@pytest.fixture(scope="module")
def searcher() -> LexicalSearcher:
    shelf = operation_catalog(SMALL)
    return LexicalSearcher(lambda: shelf)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \t\r\n ",
        "\0\x01\x1b[31m",
        ".*+?^$()[]{}|\\",
        "(((((",
        "the of and to",
        "\ud800 lone",
        "発票を送る",
        "отправить письмо",
        "🎉🎉",
        "__proto__ constructor",
        "a" * 1_048_576,
        "delete " * 150_000,
        " ".join(sorted(STOP)),
    ],
)
def test_limits_results_for_any_text(searcher: LexicalSearcher, text: str) -> None:
    found = searcher.search(text, None, 5)
    assert len(found) <= 5
    assert all(0 <= hit.score <= 1 for hit in found)


def test_finds_nothing_without_search_words(searcher: LexicalSearcher) -> None:
    for text in ("", "the of and to", ".*", "\0"):
        assert searcher.search(text, None, 5) == []


def test_finds_nothing_in_empty_catalog() -> None:
    shelf = operation_catalog({})
    assert LexicalSearcher(lambda: shelf).search("send mail", None, 5) == []


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": True},
        {"type": "object", "properties": {"": {}, "__proto__": True, "ключ": {"enum": [1, None]}}},
        {"type": "object", "properties": {f"p{n}": {"description": 7} for n in range(1_000)}},
        {"type": "object", "$ref": "#"},
    ],
)
def test_indexes_unusual_tools(schema: dict[str, Any]) -> None:
    odd = {"name": "send_mail", "description": "x" * 102_400, "inputSchema": schema, "title": 7}
    from interlock.aql.config import AqlConfig
    from interlock.aql.operations import OperationCatalogBuilder

    shelf = OperationCatalogBuilder(AqlConfig()).build(
        merged(offer("odd", [json.dumps(odd).encode()]))
    )
    assert names(LexicalSearcher(lambda: shelf).search("send mail", None, 1)) == ["odd.send_mail"]


def test_shows_only_visible_and_requested_operations(searcher: LexicalSearcher) -> None:
    text = "delete a message, a branch or a file"
    everything = names(searcher.search(text, None, 20))
    assert "mail.delete_message" in everything
    seen = names(searcher.search(text, lambda tool: tool.upstream != "mail", 20))
    assert seen
    assert not any(name.startswith("mail.") for name in seen)
    assert {name.split(".")[0] for name in names(searcher.search(text, None, 9, "mail"))} == {
        "mail"
    }
    for hit in searcher.search(text, None, 20, category=Category.DELETE):
        assert hit.operation.category is Category.DELETE


def test_names_matched_words(searcher: LexicalSearcher) -> None:
    hit = searcher.search("get rid of this branch", None, 1)[0]
    assert hit.operation.canonical == "github.delete_branch"
    assert "branch" in hit.matched_words
    assert "get rid of" in hit.matched_words


def test_searches_changed_catalog() -> None:
    catalog_builder = [operation_catalog({"a": [("send_mail", "Send mail")]})]
    searcher = LexicalSearcher(lambda: catalog_builder[-1])
    assert names(searcher.search("send mail", None, 5)) == ["a.send_mail"]
    catalog_builder.append(operation_catalog({"b": [("send_mail", "Send mail")]}))
    catalog_builder[-1].number = catalog_builder[0].number + 1
    assert names(searcher.search("send mail", None, 5)) == ["b.send_mail"]
