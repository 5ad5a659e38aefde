"""Tests that the search finds operations by a description of the task."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from interlock.aql.operations import OperationSnapshot
from interlock.aql.search.embeddings import create_searcher
from interlock.aql.search.searcher import LexicalSearcher
from interlock.aql.search.usage import NO_USAGE
from tests.aql.search.search_catalogs import SMALL, Described, names, operation_catalog


@pytest.fixture(scope="module")
def searcher() -> LexicalSearcher:
    shelf = operation_catalog(SMALL)
    return LexicalSearcher(lambda: shelf)


@pytest.mark.parametrize(
    ("wish", "operation"),
    [
        ("open a bug in github", "github.create_issue"),
        ("please get rid of that letter in my mailbox", "mail.delete_message"),
        ("could you let Clerk know that I'm late", "mail.send_email"),
        ("take a picture of the website", "browser.screenshot"),
        ("make a folder for the holiday photos", "files.create_directory"),
        ("book an appointment with the dentist", "calendar.create_event"),
        ("give the customer their money back", "stripe.create_refund"),
        ("which bills are there for this client", "stripe.list_invoices"),
        ("what changes were checked in lately", "github.list_commits"),
        ("land the PR", "github.merge_pull_request"),
        ("scrennshot", "browser.screenshot"),
        ("createDirectory", "files.create_directory"),
    ],
)
def test_finds_operation_for_wish(searcher: LexicalSearcher, wish: str, operation: str) -> None:
    assert operation in names(searcher.search(wish, None, 2))


def test_config_turns_embeddings_off() -> None:
    shelf = operation_catalog(SMALL)
    made = create_searcher(lambda: shelf, NO_USAGE, "off")
    assert isinstance(made, LexicalSearcher)
    assert names(made.search("make a folder", None, 1)) == ["files.create_directory"]
    made.close()


def crowded_catalog() -> OperationSnapshot:
    """Return the servers of the documented examples and forty servers with similar tools."""
    things = ("message", "channel", "text", "note", "team", "word", "site", "character")
    others: dict[str, list[Described]] = {
        f"vendor{number}": [
            (f"{verb}_{thing}", f"{verb.capitalize()} a {thing} of vendor {number}.")
            for verb in ("create", "list", "delete")
            for thing in things[number % 4 :: 2]
        ]
        for number in range(40)
    }
    documented: dict[str, list[Described]] = {
        "slack": [
            ("post_message", "Post a message to a channel.", {"channel_id": {}, "text": {}}),
            ("list_channels", "List the channels of the workspace."),
        ],
        "demo": [
            (
                "text_stats",
                "Counts the characters, words and lines of a text and finds its longest word.",
                {"text": {}},
            ),
            ("echo", "Returns the text that it is given.", {"text": {}}),
        ],
    }
    return operation_catalog({**others, **documented})


@pytest.mark.parametrize(
    ("page", "operation"),
    [("aql-search.md", "slack.post_message"), ("aql.md", "demo.text_stats")],
)
def test_documented_searches_find_operation_among_many_servers(page: str, operation: str) -> None:
    text = (Path(__file__).parents[3] / "docs" / page).read_text(encoding="utf-8")
    found = re.search(r'"search": "([^"]+)"', text)
    assert found is not None
    shelf = crowded_catalog()
    hits = names(LexicalSearcher(lambda: shelf).search(found[1], None, 5))
    assert hits[0] == operation


def test_named_product_raises_its_tools() -> None:
    alike: list[Described] = [("create_task", "Create a task."), ("list_tasks", "List tasks.")]
    shelf = operation_catalog(dict.fromkeys(("asana", "todoist", "zebra", "trello", "word"), alike))
    searcher = LexicalSearcher(lambda: shelf)
    for product in ("todoist", "zebra", "trello"):
        hits = names(searcher.search(f"create a task in {product}", None, 2))
        assert hits == [f"{product}.create_task", f"{product}.list_tasks"]


def test_common_word_is_no_server_name() -> None:
    said: list[Described] = [("count", "Count each word of the text.")]
    few = operation_catalog({"word": [("open", "Open a file.")], "zebra": said})
    many = operation_catalog(
        {"word": [("open", "Open a file.")], **{f"v{at}": said for at in range(5)}}
    )
    named = LexicalSearcher(lambda: few).prepare().server_names
    assert named["word"] == {"word"}
    # A name is said as it is spelled.
    assert "words" not in named
    assert "word" not in LexicalSearcher(lambda: many).prepare().server_names


def test_ignores_quoted_literals() -> None:
    shelf = operation_catalog(SMALL)
    searcher = LexicalSearcher(lambda: shelf)
    plain = searcher.search("open a bug in github", None, 5)
    quoted = searcher.search("open a bug in github: 'refund every customer invoice'", None, 5)
    assert names(quoted) == names(plain)
