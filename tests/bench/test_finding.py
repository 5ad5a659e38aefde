"""The finding benchmark: its calculations on a small catalog."""

from __future__ import annotations

from typing import Any

import pytest

from bench import finding
from bench.finding import Found, PlainBm25, book_of, judged, percent, right, shares
from bench.real_servers import Listed
from bench.task_sentences import TASKS, TaskSentence


def tool(name: str, description: str) -> dict[str, Any]:
    return {"name": name, "description": description, "inputSchema": {"type": "object"}}


SERVERS = [
    Listed("post", "post@1", [tool("sendMail", "Send mail"), tool("delete_mail", "Delete mail")]),
    Listed("disk", "disk@1", [tool("make-directory", "Create a directory")]),
]


def task(text: str, *right: str, kind: Any = "person", held_out: bool = False) -> TaskSentence:
    return TaskSentence(kind, text, right, held_out)


def test_has_enough_sentences_of_both_kinds() -> None:
    assert len(TASKS) >= 100
    people = sum(item.kind == "person" for item in TASKS)
    assert abs(people - (len(TASKS) - people)) <= 5
    assert sum(item.held_out for item in TASKS) >= 50
    assert len({item.text for item in TASKS}) == len(TASKS)
    assert all("." in glob for item in TASKS for glob in item.right)


def test_matches_right_tool_with_server() -> None:
    send, *_ = (item for item in book_of(SERVERS).all() if item.local_name == "send_mail")
    assert right(send, task("x", "post.sendMail"))
    assert right(send, task("x", "*.send*"))
    assert not right(send, task("x", "disk.sendMail", "post.delete_mail"))


def test_plain_bm25_finds_only_equal_words() -> None:
    book = book_of(SERVERS)
    find = PlainBm25(book.all()).find
    assert find("delete mail", 1)[0].local_name == "delete_mail"
    tasks = [task("delete mail", "post.delete_mail"), task("shred it", "nobody.knows")]
    assert [item.place for item in judged(find, book.all(), tasks)] == [0, None]


def test_counts_shares_by_kind_and_server() -> None:
    result = [
        Found(task("a", "post.x"), 0),
        Found(task("b", "post.y", kind="agent"), 4),
        Found(task("c", "disk.z", held_out=True), 5),
        Found(task("d", "disk.w", kind="agent"), None),
    ]
    figures = shares(result)
    assert figures["all"] == figures["person"] == figures["agent"] == 50.0
    assert figures["held_out"] == 0.0
    assert figures["first"] == 25.0
    assert figures["without_one_server"] == (0.0, 100.0)
    assert percent([]) == 0.0


def test_judges_small_catalog(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finding, "find_model_loader", lambda: None)
    tasks = [
        task("make a folder", "disk.*"),
        task("get rid of that letter", "post.delete_mail", kind="agent", held_out=True),
        task("not in this catalog", "other.*"),
    ]
    figures = finding.judge(SERVERS, tasks)
    assert (figures["tools"], figures["sentences"]) == (3, 2)
    assert figures["ways"]["words"]["all"] == 100.0
    assert [bar["met"] for bar in figures["bars"][:2]] == [True, True]
