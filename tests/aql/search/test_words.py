"""Tests of stems, split names, phrases and filler words."""

from __future__ import annotations

import pytest

from interlock.aql.search.searcher import query_categories
from interlock.aql.search.stems import stem
from interlock.aql.search.vocabulary import extract_terms, vocabulary
from interlock.aql.search.words import first_sentence, query_words, split_words
from interlock.protocol.aql_terms import Category


@pytest.mark.parametrize(
    "forms",
    [
        "create creates created creating",
        "delete deletes deleted deletion",
        "send sent sending",
        "query queries",
        "branch branches",
        "tag tagging tagged",
        "translate translation",
        "repository repositories repo",
        "subscribe subscription subscriptions",
        "message messages msg",
        "database db",
    ],
)
def test_stems_forms_of_one_word_equally(forms: str) -> None:
    assert len({stem(form) for form in forms.split()}) == 1


@pytest.mark.parametrize(("one", "other"), [("page", "pay"), ("file", "fill"), ("read", "ready")])
def test_stems_different_words_differently(one: str, other: str) -> None:
    assert stem(one) != stem(other)


def test_splits_names() -> None:
    assert split_words("createIssue list_openPRs HTTPServer") == [
        "create", "issue", "list", "open", "p", "rs", "http", "server",
    ]  # fmt: skip


def test_removes_filler_words() -> None:
    assert query_words("Could you please help me to send a fax?") == ["send", "a", "fax"]


def test_finds_phrases_with_and_without_gaps() -> None:
    assert [one.term for one in extract_terms(split_words("get rid of it"))] == ["get_rid_of"]
    apart = [one.term for one in extract_terms(split_words("turn the lights off"), allow_gaps=True)]
    assert apart == ["turn_off", "light"]


def test_splits_first_sentence_of_description() -> None:
    assert first_sentence("Sends mail. Needs a key.\nMore") == ("Sends mail.", "Needs a key.\nMore")
    assert first_sentence("") == ("", "")


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ("open https://example.com/delete/issue?id=4 now", ["open", "url", "now"]),
        ("summarize /srv/pdf/send-mail.docx please", ["summarize", "docx"]),
        ("read ~/notes/delete.txt", ["read", "txt"]),
        ("create issue 'delete the repository'", ["create", "issue"]),
        ('title it "send mail"', ["title", "it"]),
        ("save it as `report.xlsx`", ["save", "it", "as", "xlsx"]),
        ("post to #delete-logs", ["post", "to"]),
        ("write to delete.repo@example.org", ["write", "to"]),
        # Not literals: an apostrophe, a fraction, a language, a bare name.
        ("don't list bob's issues", ["don't", "list", "bob", "issues"]),
        ("read and/or write", ["read", "and", "or", "write"]),
        ("compile C# code", ["compile", "c", "code"]),
        # There is nothing else to look for.
        ('"delete repository"', ["delete", "repository"]),
    ],
)
def test_removes_literals_from_query(wish: str, words: list[str]) -> None:
    assert query_words(wish) == words


@pytest.mark.parametrize(
    ("wish", "category"),
    [
        ("show me the open tickets", Category.READ),
        ("what is in the folder", Category.READ),
        ("get rid of the folder", Category.DELETE),
        ("rename the folder", Category.UPDATE),
        ("make a folder", Category.CREATE),
        ("restart the server", Category.EXECUTE),
    ],
)
def test_finds_categories_of_verbs(wish: str, category: Category) -> None:
    words = query_words(wish)
    assert category in query_categories(words, extract_terms(words, allow_gaps=True))


@pytest.mark.parametrize("wish", ["the open issues", "my list of posts", "yesterday's run"])
def test_ignores_verbs_used_as_nouns(wish: str) -> None:
    words = query_words(wish)
    assert query_categories(words, extract_terms(words, allow_gaps=True)) == frozenset()


def test_vocabulary_is_large_and_valid() -> None:
    known = vocabulary()
    assert len(known.members) > 500
    assert len(known.hints) > 200
    assert len(known.products) > 150
    assert all(len(members) > 1 for members in known.members)
    assert all(things for things in known.products.values())
