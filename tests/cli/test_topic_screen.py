"""The screen of a topic: keys, layout, and safe display of foreign text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from interlock.terminal.safe_text import wrap_text
from interlock.topics.commands import screen as topic_screen
from interlock.topics.commands.keyboard import Key
from interlock.topics.commands.message_format import (
    MessageLine,
    format_message,
    format_params,
    put_on_one_line,
)
from interlock.topics.commands.pending_proposals import PendingProposal
from interlock.topics.commands.screen import (
    Screen,
    ScreenAction,
    ScreenParticipant,
    format_question,
    handle_key,
    mark_drawn,
    resize,
    set_proposals,
)
from interlock.topics.commands.screen_view import draw_screen
from interlock.topics.wire.envelope import EnvelopeHeader, read_envelope, write_envelope
from interlock.topics.wire.payloads import Content, read_content

pytestmark = pytest.mark.feature("topics")

WRITE = PendingProposal("p1", "agent", "worker", "tools/call write_file", b'{"path":"/a"}')
READ = PendingProposal("p2", "other", "worker", "tools/call read_file", b'{"path":"/b"}')
OWN = PendingProposal("p3", "human", "worker", "tools/call x", b"{}", is_own=True)
SCREEN = set_proposals(Screen("ops", own_id="human", connected=True), [WRITE, READ])


def type_text(screen: Screen, text: str) -> tuple[Screen, ScreenAction | None]:
    """Every character, and the last deed."""
    deed = None
    for character in text:
        # It is drawn before the next key comes.
        screen, deed = handle_key(mark_drawn(screen), Key("text", character))
    return mark_drawn(screen), deed


def press_keys(screen: Screen, *names: str) -> tuple[Screen, ScreenAction | None]:
    deed = None
    for name in names:
        screen, deed = handle_key(mark_drawn(screen), Key(name))
    return mark_drawn(screen), deed


def draw_text(screen: Screen) -> str:
    return "\n".join(line.plain for line in draw_screen(screen))


# -- writing


def test_enter_sends_draft() -> None:
    screen, deed = type_text(SCREEN, "hallo ")
    assert deed is None
    screen, deed = press_keys(screen, "enter")
    assert deed == ScreenAction("say", "hallo")
    assert (screen.draft, screen.cursor) == ("", 0)
    assert press_keys(screen, "enter")[1] is None


def test_keys_edit_draft_at_cursor() -> None:
    screen, _ = type_text(SCREEN, "one two")
    screen, _ = press_keys(screen, "home", "delete", "right", "backspace", "end", "word")
    assert (screen.draft, screen.cursor) == ("e ", 2)
    screen, _ = press_keys(screen, "clear")
    assert screen.draft == ""


@given(
    st.lists(
        st.one_of(
            st.sampled_from(
                ["left", "right", "home", "end", "delete", "backspace", "word", "clear", "up"]
            ).map(Key),
            st.text(st.characters(categories=["L", "Zs", "So"]), max_size=8).map(
                lambda text: Key("paste", text)
            ),
        ),
        max_size=30,
    )
)
def test_cursor_stays_inside_draft(given_keys: list[Key]) -> None:
    screen = SCREEN
    for key in given_keys:
        screen, deed = handle_key(screen, key)
        assert deed is None
        assert 0 <= screen.cursor <= len(screen.draft)
        assert all(cell_len(line.plain) == 80 for line in draw_screen(screen))


def test_truncated_paste_is_noted_before_sending() -> None:
    screen, _ = handle_key(SCREEN, Key("paste", "x" * 5_000))
    assert screen.note == ""
    for _ in range(2):
        # A long paste comes in pieces.
        screen, _ = handle_key(screen, Key("paste", "y" * 5_000))
        assert "The limit is 8,000 characters" in draw_text(screen)
    screen, deed = press_keys(screen, "enter")
    assert deed is None
    assert "The end of the text is missing" in draw_text(screen)
    assert press_keys(screen, "clear", "enter")[1] is None
    screen, deed = press_keys(screen, "enter")
    assert deed is not None
    assert len(deed.text) == 8_000
    # What is written next has nothing to do with it.
    assert press_keys(type_text(screen, "hi")[0], "enter")[1] == ScreenAction("say", "hi")


def test_cleared_draft_is_not_truncated() -> None:
    screen, _ = handle_key(SCREEN, Key("paste", "x" * 9_000))
    screen, _ = press_keys(screen, "clear")
    assert press_keys(type_text(screen, "hi")[0], "enter")[1] == ScreenAction("say", "hi")


def test_unsent_draft_is_restored() -> None:
    screen = topic_screen.restore_draft(type_text(SCREEN, "later")[0], "first")
    assert (screen.draft, screen.cursor) == ("first later", 11)
    screen = topic_screen.restore_draft(SCREEN, "first")
    assert (screen.draft, screen.cursor) == ("first", 5)


# -- deciding


def test_fulfilling_asks_for_confirmation() -> None:
    screen, _ = press_keys(SCREEN, "tab")
    assert screen.in_proposals
    screen, deed = type_text(screen, "a")
    assert deed is None
    text = draw_text(screen)
    assert "agent proposes to worker" in text
    assert "tools/call write_file with these exact params:" in text
    assert '"path": "/a"' in text
    screen, deed = type_text(screen, "y")
    assert deed == ScreenAction("fulfil", "p1")
    assert screen.question_id == ""


@pytest.mark.parametrize("key", [Key("text", "n"), Key("escape"), Key("tab")])
def test_any_other_key_cancels_confirmation(key: Key) -> None:
    screen, _ = press_keys(SCREEN, "tab")
    screen, _ = type_text(screen, "a")
    screen, deed = handle_key(screen, key)
    assert (screen.question_id, deed, screen.note) == ("", None, "Nothing was done.")


def test_rejecting_needs_no_confirmation() -> None:
    screen, _ = press_keys(SCREEN, "tab", "down")
    assert type_text(screen, "r")[1] == ScreenAction("reject", "p2")


def test_own_proposal_cannot_be_fulfilled() -> None:
    screen, _ = press_keys(set_proposals(SCREEN, [OWN]), "tab")
    screen, deed = type_text(screen, "a")
    assert (screen.question_id, deed) == ("", None)
    assert "your own" in screen.note


def test_selection_follows_proposal() -> None:
    screen, _ = press_keys(SCREEN, "tab", "down")
    new = replace(WRITE, id="p0", proposer="intruder")
    screen = set_proposals(screen, [new, WRITE, READ])
    screen, _ = type_text(screen, "a")
    assert screen.question_id == "p2"
    # Another one comes while the question is read: the answer is still about the same.
    screen = set_proposals(screen, [replace(new, id="p9"), new, WRITE, READ])
    assert type_text(screen, "y")[1] == ScreenAction("fulfil", "p2")


def test_withdrawn_proposal_is_not_fulfilled() -> None:
    screen, _ = press_keys(SCREEN, "tab")
    screen, _ = type_text(screen, "a")
    screen = set_proposals(screen, [READ])
    assert (screen.question_id, screen.selected_id) == ("", "")
    assert "Nothing was done." in screen.note
    # The y that was on its way is no answer to anything.
    assert type_text(screen, "y")[1] is None


def test_replaced_proposal_is_not_fulfilled() -> None:
    screen, _ = press_keys(SCREEN, "tab")
    screen, _ = type_text(screen, "a")
    screen = set_proposals(screen, [replace(WRITE, params=b'{"path":"/etc"}'), READ])
    assert (screen.question_id, screen.selected_id) == ("", "")
    assert type_text(screen, "y")[1] is None


def test_removed_selection_selects_no_neighbour() -> None:
    screen, _ = press_keys(SCREEN, "tab")
    screen = set_proposals(screen, [READ])
    for key in "rRa":
        after, deed = type_text(screen, key)
        assert (deed, after.question_id, after.reject_ids, after.selected_id) == (None, "", (), "")
        assert "Select a proposal first" in draw_text(after)
    assert press_keys(screen, "down")[0].selected_id == "p2"
    assert press_keys(screen, "up")[0].selected_id == "p2"
    # It keeps its number, and nobody gets one that another had.
    assert type_text(screen, "1")[0].selected_id == ""
    assert type_text(screen, "2")[0].selected_id == "p2"
    assert type_text(screen, "\u00b2")[0] == screen


def test_digit_selects_proposal() -> None:
    screen, _ = press_keys(SCREEN, "tab")
    screen, _ = type_text(screen, "2")
    assert screen.selected_id == "p2"
    assert type_text(screen, "9")[0].selected_id == ""


def test_fulfilling_requires_seeing_all_lines() -> None:
    long = json.dumps({f"key{number}": number for number in range(60)}).encode()
    screen = set_proposals(SCREEN, [replace(WRITE, params=long)])
    screen, _ = press_keys(screen, "tab")
    screen, _ = type_text(screen, "a")
    assert "more lines" in draw_text(screen)
    seen = draw_text(screen)
    screen, deed = type_text(screen, "y")
    assert deed is None
    assert "Read all of it" in screen.note
    for _ in range(3):
        screen, deed = press_keys(screen, "page_down")
        seen += draw_text(screen)
        if type_text(screen, "y")[1] is not None:
            break
    assert all(f'"key{number}": {number}' in seen for number in range(60))
    assert type_text(screen, "y")[1] == ScreenAction("fulfil", "p1")
    # In a smaller window one begins anew.
    assert type_text(resize(screen, 80, 12), "y")[1] is None


@given(
    moves=st.lists(st.sampled_from(["up", "down", "page_up", "page_down"]), max_size=20),
    lines=st.integers(1, 60),
    height=st.integers(8, 30),
)
def test_confirmation_requires_every_line_on_screen(
    moves: list[str], lines: int, height: int
) -> None:
    params = json.dumps(list(range(lines))).encode()
    screen = resize(set_proposals(SCREEN, [replace(WRITE, params=params)]), 60, height)
    screen, _ = press_keys(screen, "tab")
    screen, _ = type_text(screen, "a")
    on_screen = set()
    for move in ["", *moves]:
        if move:
            screen, _ = press_keys(screen, move)
        room = topic_screen.count_question_lines(screen)
        on_screen |= set(
            range(screen.offset, min(screen.offset + room, len(format_question(screen))))
        )
        visible = draw_text(screen)
        for line in format_question(screen)[screen.offset : screen.offset + room]:
            assert line in visible
    fulfilled = type_text(screen, "y")[1] is not None
    assert fulfilled == (on_screen == set(range(len(format_question(screen)))))


@given(st.text())
def test_paste_decides_nothing(text: str) -> None:
    screen, _ = press_keys(SCREEN, "tab")
    for state in (screen, type_text(screen, "a")[0]):
        after, deed = handle_key(state, Key("paste", text))
        assert deed is None
        assert after == state


def test_leave_key_always_works() -> None:
    asking = type_text(press_keys(SCREEN, "tab")[0], "a")[0]
    for screen in (SCREEN, press_keys(SCREEN, "tab")[0], asking):
        assert press_keys(screen, "leave")[1] == ScreenAction("leave")


# -- what is drawn

FOREIGN = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)


@given(
    text=FOREIGN,
    who=FOREIGN,
    params=FOREIGN,
    width=st.integers(20, 200),
    height=st.integers(8, 60),
    asking=st.booleans(),
)
def test_foreign_text_keeps_screen_layout(
    text: str, who: str, params: str, width: int, height: int, asking: bool
) -> None:
    wild = replace(WRITE, proposer=who, call=text, params=json.dumps({"x": params}).encode())
    screen = Screen(
        "ops",
        own_id="human",
        participants=(ScreenParticipant(who, text, 3),) * 40,
        proposals=(wild,),
        selected_id="p1",
        in_proposals=True,
        question_id="p1" if asking else "",
    )
    screen = topic_screen.add_line(
        screen, MessageLine("12:00:00", put_on_one_line(who), put_on_one_line(text))
    )
    rows = draw_screen(resize(screen, width, height))
    assert len(rows) == height
    for row in rows:
        assert cell_len(row.plain) == width
        assert row.plain.isprintable()


def test_screen_shows_participants_and_proposals() -> None:
    people = (
        ScreenParticipant("agent", "mcp/proposal:*", 2),
        ScreenParticipant("worker", "mcp/response:*"),
    )
    screen = replace(SCREEN, participants=people)
    screen = topic_screen.add_line(screen, MessageLine("12:00:00", "agent", "hello"))
    rows = [row.plain for row in draw_screen(screen)]
    assert rows[0].startswith(" ops · you are human · 3 here")
    assert any(row.rstrip().endswith("│ agent !2") for row in rows)
    assert any("12:00:00 agent: hello" in row for row in rows)
    assert "── proposals: 2 ──" in "\n".join(rows)
    assert rows[-4].startswith(' 1 agent → worker: write_file {"path":"/a"}')
    assert rows[-2].startswith("> ")
    # Drawn with colours it is still so many lines.
    console = Console(width=80, height=24, force_terminal=True, color_system="truecolor")
    with console.capture() as capture:
        console.print(Text("\n").join(draw_screen(screen)), end="")
    assert capture.get().count("\n") == 23


def test_connection_problems_are_in_title() -> None:
    words = draw_text(replace(SCREEN, connected=False, lost_count=12))
    assert words.startswith(" ops · you are human · 1 here · 12 messages lost · not connected")


def test_wrapped_line_is_indented() -> None:
    fake = "x" * 60 + " 12:00:01 gateway: you are promoted"
    screen = topic_screen.add_line(
        replace(SCREEN, proposals=()), MessageLine("12:00:00", "agent", fake)
    )
    rows = [row.plain.partition("│")[0] for row in draw_screen(screen) if row.plain.strip()]
    assert not any(row.startswith("12:00:01") for row in rows)


@given(FOREIGN.map(lambda text: text.replace("\u200d", "")), st.integers(10, 60))
def test_wrapping_loses_nothing(text: str, width: int) -> None:
    text = put_on_one_line(text, 1000)
    first, *rest = wrap_text(text, width)
    assert all(cell_len(piece) <= width for piece in (first, *rest))
    assert all(piece.startswith("  ") for piece in rest)
    assert first + "".join(piece[2:] for piece in rest) == text


def test_scrolling_back_keeps_position() -> None:
    screen = SCREEN
    for number in range(100):
        screen = topic_screen.add_line(
            screen, MessageLine("12:00:00", "agent", f"message {number}.")
        )
    screen, _ = press_keys(screen, "page_up")
    before = draw_text(screen)
    assert "message 99." not in before
    # How much there is to be read further down is there to be seen.
    assert "↓ 12 newer: PgDn" in before
    screen = topic_screen.add_line(screen, MessageLine("12:00:00", "agent", "message 100."))
    assert draw_text(screen) == before.replace("↓ 12 newer", "↓ 13 newer")
    screen, _ = press_keys(screen, "page_down", "page_down")
    assert "message 100." in draw_text(screen)
    assert "newer" not in draw_text(screen)


def test_message_lines_are_limited() -> None:
    screen = SCREEN
    for number in range(topic_screen.MAX_LINES + 10):
        screen = topic_screen.add_line(screen, MessageLine("", "", str(number)))
    assert len(screen.lines) == topic_screen.MAX_LINES
    assert screen.lines[-1].text == str(topic_screen.MAX_LINES + 9)


# -- in words


def content(kind: str, payload: Any, **more: Any) -> tuple[EnvelopeHeader, Content]:
    text = write_envelope(
        id="env-1234567890",
        sender=more.pop("sender", "agent"),
        kind=kind,
        payload=json.dumps(payload).encode(),
        **more,
    )
    envelope = read_envelope(text)
    return envelope.head, read_content(envelope)


CALL = {"name": "write_file", "arguments": {"path": "/a"}}
ASKED = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": CALL}
DONE = {"jsonrpc": "2.0", "id": 1, "result": {"content": [{"type": "text", "text": "written"}]}}


@pytest.mark.parametrize(
    ("kind", "payload", "extra", "message"),
    [
        ("chat", {"text": "hello\nworld"}, {}, "12:00:00 agent: hello world"),
        ("chat", {"text": "psst"}, {"to": ["b"]}, "12:00:00 agent: psst (to b)"),
        (
            "mcp/proposal:tools/call:write_file",
            {"method": "tools/call", "params": CALL},
            {"to": ["worker"]},
            '12:00:00 agent: proposes to worker: tools/call write_file {"path": "/a"}  [env-1234]',
        ),
        (
            "mcp/request:tools/call:write_file",
            ASKED,
            {"to": ["worker"]},
            '12:00:00 agent: requests worker: tools/call write_file {"path": "/a"}',
        ),
        (
            "mcp/request:tools/call:write_file",
            ASKED,
            {"to": ["worker"], "correlation_id": "env-0"},
            '12:00:00 agent: fulfils [env-0] worker: tools/call write_file {"path": "/a"}',
        ),
        (
            "mcp/response:tools/call:write_file",
            DONE,
            {"correlation_id": "env-0"},
            "12:00:00 agent: responds: tools/call write_file: written",
        ),
        (
            "mcp/response:tools/call:write_file",
            {"jsonrpc": "2.0", "id": 1, "error": {"code": 1, "message": "no\x1b[2J"}},
            {"correlation_id": "env-0", "to": ["a", "b"]},
            "12:00:00 agent: responds to a, b: tools/call write_file failed: no\ufffd[2J",
        ),
        (
            "system/presence",
            {"event": "join", "participant": {"id": "b", "capabilities": ["chat"]}},
            {"sender": "system:gateway"},
            "12:00:00 * b joined and may send chat",
        ),
        (
            "system/presence",
            {"event": "leave", "participant": {"id": "b"}},
            {"sender": "system:gateway"},
            "12:00:00 * b left",
        ),
        (
            "system/error",
            {"error": "capability_violation", "message": "You may not."},
            {"sender": "system:gateway"},
            "12:00:00 * capability_violation: You may not.",
        ),
        (
            "system/welcome",
            {"you": {"id": "me", "capabilities": ["chat"]}, "participants": [{"id": "b"}]},
            {"sender": "system:gateway"},
            "12:00:00 * you are me and may send chat; participants: b",
        ),
        ("vote", {"for": "it"}, {}, '12:00:00 agent: vote {"for": "it"}'),
        (
            "mcp/response:tools/list",
            {
                "jsonrpc": "2.0",
                "id": 1,
                "result": {"tools": [{"name": "add", "inputSchema": {}}, {"name": "echo"}]},
            },
            {"to": ["b"], "correlation_id": "r"},
            "12:00:00 agent: responds to b: tools/list: 2 tools: add, echo",
        ),
    ],
)
def test_formats_messages(
    kind: str, payload: dict[str, Any], extra: dict[str, Any], message: str
) -> None:
    line = format_message(*content(kind, payload, **extra), time="12:00:00")
    assert line is not None
    assert line.format_plain() == message


@given(FOREIGN)
def test_params_are_formatted_exactly(text: str) -> None:
    params = json.dumps({"text": text, "n": 1.0}, ensure_ascii=False).encode()
    lines = format_params(Raw(params))
    assert all(line.isprintable() for line in lines)
    assert json.loads("\n".join(lines)) == {"text": text, "n": 1.0}


@given(FOREIGN)
def test_text_is_put_on_one_line(text: str) -> None:
    line = put_on_one_line(text, 50)
    assert line.isprintable()
    assert len(line) <= 50
