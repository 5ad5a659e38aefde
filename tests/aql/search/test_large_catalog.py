"""Tests of the search in catalogs of 200 and more tools."""

from __future__ import annotations

import socket

import pytest

from interlock.aql.search.searcher import LexicalSearcher
from tests.aql.search.search_catalogs import SMALL, Described, names, operation_catalog
from tests.support.line_count import count_lines_run

VERBS = ("create", "get", "list", "update", "delete", "search", "export", "archive")
THINGS = (
    "invoice", "folder", "contact", "deal", "ticket", "page", "report", "pipeline", "branch",
    "user", "group", "channel", "playlist", "device", "order", "coupon", "dashboard", "secret",
)  # fmt: skip
SERVERS = ("ledger", "crm", "helpdesk", "wiki", "shop")


def large_catalog(size: int) -> dict[str, list[Described]]:
    """Return a catalog of this size, which contains the small catalog."""
    found: dict[str, list[Described]] = {key: list(tools) for key, tools in SMALL.items()}
    count = sum(len(tools) for tools in found.values())
    for number in range(size - count):
        verb = VERBS[number % len(VERBS)]
        thing = THINGS[number // len(VERBS) % len(THINGS)]
        server = SERVERS[number // (len(VERBS) * len(THINGS)) % len(SERVERS)]
        line = f"{verb.capitalize()} {thing} records of the {server}, with filters and paging."
        found.setdefault(server, []).append(
            (f"{verb}_{thing}", line, {f"{thing}_id": {"description": f"Which {thing}"}})
        )
    return found


@pytest.mark.spec("ST-4.4.2-13")
def test_finds_issue_for_bug_in_github(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(*_: object, **__: object) -> None:
        raise AssertionError("a search needs no network")

    monkeypatch.setattr(socket, "socket", no_network)
    shelf = operation_catalog(large_catalog(200))
    assert len(shelf.all()) == 200
    found = LexicalSearcher(lambda: shelf).search("open a bug in github", None, 5)
    assert names(found)[0] == "github.create_issue"


@pytest.mark.spec("AQ-INT-8.3-2")
def test_search_limits_results() -> None:
    shelf = operation_catalog(large_catalog(500))
    assert len(shelf.all()) == 500
    found = LexicalSearcher(lambda: shelf).search("issue", None, 10)
    assert 0 < len(found) < 15
    assert names(found)[0] == "github.create_issue"


def test_search_of_large_catalog_runs_few_lines() -> None:
    shelf = operation_catalog(large_catalog(600))
    searcher = LexicalSearcher(lambda: shelf)
    searcher.prepare()
    wishes = [
        "please put the customer's latest invoice into the archive folder",
        "which devices did Clerk register last week?",
        "Retrieve all deals whose owner has left the company",
        "get rid of the playlist nobody listens to",
    ]
    for wish in wishes:
        searcher.search(wish, None, 10)
    # Few lines for each tool, whatever is asked for; `bench finding` has the time it takes.
    for wish in wishes:
        assert count_lines_run(lambda wish=wish: searcher.search(wish, None, 10)) < 40 * 600
