"""Operations are found by what is wanted, in other words than theirs."""

from __future__ import annotations

import pytest

from interlock.catalog.aql.search.embeddings import searcher_for
from interlock.catalog.aql.search.searcher import LexicalSearcher
from interlock.catalog.aql.search.usage import NO_USAGE
from tests.catalog.aql.search.shelf import SMALL, book, names


@pytest.fixture(scope="module")
def searcher() -> LexicalSearcher:
    shelf = book(SMALL)
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
def test_it_finds_what_is_meant(searcher: LexicalSearcher, wish: str, operation: str) -> None:
    assert operation in names(searcher.search(wish, None, 2))


def test_a_config_may_leave_it_at_words() -> None:
    shelf = book(SMALL)
    made = searcher_for(lambda: shelf, NO_USAGE, "off")
    assert isinstance(made, LexicalSearcher)
    assert names(made.search("make a folder", None, 1)) == ["files.create_directory"]
    made.close()
