"""Tests of the distinction of prose and machine text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.automation.prose import is_machine_text, is_prose
from interlock.automation.suggestion import AnyText, find_alternatives, value_key

SAID = [
    "The deploy went fine, thanks to everybody.",
    "Meeting moved to 3/4/2024 at noon",
    "Hello Ada, could you look at the report? It is late; sorry.",
    "we met 3 people",
    "Wir haben heute 3 Leute getroffen",
    "Сегодня пришли три человека",
    "Das kostet $5 & mehr",
    "Note: the printer is broken (again) and/or out of paper",
    "# Monday\n\n* one of these\n* and another\n\nSome **bold** words - and a dash.\n",
    "> a line of mail that is answered\n\nIt's ready!",
    "Update: we met three people, all of them nice.",
]
RUN = [
    "rm -rf /",
    "ls /tmp/a",
    "git push origin main",
    "docker stop web",
    "systemctl restart nginx",
    "kill 1234",
    "cat notes.txt",
    "find . -name x",
    "make install",
    "deploy api to prod",
    "restart web in staging",
    "Stop-Computer now",
    "SHUTDOWN now",
    "reboot",
    "FOO=1 bar",
    "a && b",
    "foo | bar",
    "echo $(id)",
    "see /etc/passwd now",
    "open ../../x y",
    "C:\\windows calc",
    "look at https://a.example/b please",
    "select * from t",
    "DELETE FROM users",
    "drop table users",
    "with x as (select 1)",
    "MATCH (n) DETACH DELETE n",
    "import os\nos.remove('x')",
    "def f(x):\n    return x",
    '{"a": 1}',
    "<b>hi</b> you",
    "name: web\nport: 80\n",
    "The plan is fine.\nsudo rm x\n",
    "\uff52\uff4d file",
]
NEITHER = ["x", "ok", "frobnicate db primary", "text 7", "x" * 5_000, "a " + "x" * 100, ""]


@pytest.mark.parametrize("text", SAID)
def test_recognizes_prose(text: str) -> None:
    assert is_prose(text)
    assert not is_machine_text(text)


@pytest.mark.parametrize("text", RUN)
def test_recognizes_machine_text(text: str) -> None:
    assert is_machine_text(text)
    assert not is_prose(text)


@pytest.mark.parametrize("text", NEITHER, ids=lambda text: repr(text)[:20])
def test_unclear_text_is_no_prose(text: str) -> None:
    assert not is_prose(text)


@given(st.text() | st.text("abc /;|$()[]{}<>=-.\n'\"`"))
def test_text_is_prose_or_machine_text_or_neither(text: str) -> None:
    assert not (is_prose(text) and is_machine_text(text))
    if is_prose(text):
        assert len(text.split()) > 1


def is_open(texts: list[str]) -> bool:
    return find_alternatives("note", [(one, False) for one in texts], 3, 0) == [AnyText()]


def test_argument_is_open_if_nearly_all_values_are_prose() -> None:
    prose = [f"This is what we did on day {one}." for one in range(36)]
    assert is_open(prose)
    assert is_open([*prose, *RUN[:4]])
    assert not is_open([*prose, *RUN[:5]])
    # Single words are no sentences, and no commands either.
    assert is_open([*prose, *(f"word{one}" for one in range(12))])
    assert not is_open([*prose, *["reboot"] * 5])
    # What was masked may have been anything.
    masked = [("***", True)] * 5
    assert find_alternatives("note", [*((one, False) for one in prose), *masked], 3, 0) == []


def test_value_key_ignores_order_of_members() -> None:
    one, other = {"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"d": 3, "c": 2}, "a": 1}
    assert value_key(one) == value_key(other)
    assert value_key(one) != value_key({**one, "a": 2})
    assert value_key({"a": True}) != value_key({"a": 1})
