"""Pending proposals on the screen of a topic: list, selection and decisions."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.cells import cell_len

from interlock.topics.commands import screen as topic_screen
from interlock.topics.commands.keyboard import Key
from interlock.topics.commands.message_format import MessageLine
from interlock.topics.commands.pending_proposals import (
    HiddenProposals,
    PendingProposal,
    arrange_proposals,
    fold_proposals,
)
from interlock.topics.commands.screen import (
    Screen,
    ScreenAction,
    ScreenParticipant,
    handle_key,
    mark_drawn,
    resize,
    set_proposals,
)
from interlock.topics.commands.screen_view import draw_screen

pytestmark = pytest.mark.feature("topics")

EMPTY = Screen("ops", own_id="human", connected=True)


def proposal(id: str, by: str = "agent", path: str = "/a", **more: str) -> PendingProposal:
    params = json.dumps({"name": "write_file", "arguments": {"path": path}}).encode()
    return PendingProposal(id, by, "worker", "tools/call write_file", params, **more)  # type: ignore[arg-type]


def flood(count: int, by: str = "agent") -> list[PendingProposal]:
    return [proposal(f"{by}-{number}", by, f"/{number}") for number in range(count)]


def select_proposals(*waiting: PendingProposal) -> Screen:
    screen, _ = handle_key(set_proposals(EMPTY, waiting), Key("tab"))
    return screen


def press_keys(screen: Screen, *keys: str) -> tuple[Screen, ScreenAction | None]:
    """Keys by their names, or the characters themselves."""
    deed = None
    for key in keys:
        # It is drawn before the next key comes.
        screen, deed = handle_key(
            mark_drawn(screen), Key("text", key) if len(key) == 1 else Key(key)
        )
    return mark_drawn(screen), deed


def rows(screen: Screen) -> list[str]:
    return [row.plain.rstrip() for row in draw_screen(screen)]


def proposal_rows(screen: Screen) -> list[str]:
    """The proposals on the screen."""
    shown = rows(screen)
    first = next(at for at, row in enumerate(shown) if row.startswith("── proposals"))
    last = next(at for at, row in enumerate(shown) if row.startswith(">"))
    return shown[first:last]


# -- none at all


def test_late_participant_sees_qualified_empty_note() -> None:
    screen, _ = press_keys(EMPTY, "tab")
    assert not screen.in_proposals
    # More than a line of this screen: all of it is to be read.
    output = " ".join(" ".join(rows(screen)[-2:]).split())
    assert output.endswith(
        "No pending proposals since you joined. For calls of the node, see `interlock approvals`."
    )


def test_outdated_note_is_removed_when_proposal_arrives() -> None:
    screen, _ = press_keys(EMPTY, "tab")
    screen = set_proposals(screen, [proposal("p1")])
    assert screen.note == ""
    assert "No pending proposals" not in "\n".join(rows(screen))
    # And so does what was said when the last one had gone.
    screen, _ = press_keys(screen, "tab")
    screen = set_proposals(set_proposals(screen, []), [proposal("p2")])
    assert screen.note == ""
    # Nothing else is lost by that.
    screen = set_proposals(replace(screen, note="Nothing was done."), [proposal("p3")])
    assert screen.note == "Nothing was done."


def test_focus_stays_on_proposals_while_pending() -> None:
    screen = select_proposals(proposal("p1"), proposal("p2", path="/b"))
    screen = set_proposals(screen, [proposal("p2", path="/b")])
    assert screen.in_proposals
    screen, deed = press_keys(screen, "2", "a", "y")
    assert deed == ScreenAction("fulfil", "p2")
    assert screen.draft == ""


def test_focus_change_is_noted_after_last_proposal() -> None:
    screen = set_proposals(select_proposals(proposal("p1")), [])
    assert "No pending proposals" in rows(screen)[-1]
    screen, _ = press_keys(screen, "h", "i")
    assert screen.draft == "hi"
    # Who was writing all the while is told nothing.
    screen = set_proposals(set_proposals(EMPTY, [proposal("p1")]), [])
    assert screen.note == ""


# -- many


def test_proposals_are_grouped_by_proposer() -> None:
    screen = set_proposals(EMPTY, [*flood(1020), *flood(4, "other")])
    assert proposal_rows(screen) == [
        "── proposals: 1,024, by 2 ──",
        '   1 agent → worker: write_file {"path": "/0"}',
        '   2 agent → worker: write_file {"path": "/1"}',
        "     agent: 1,018 more",
        '1021 other → worker: write_file {"path": "/0"}',
        '1022 other → worker: write_file {"path": "/1"}',
        "     other: 2 more",
    ]


def test_selected_proposal_is_always_visible() -> None:
    screen = select_proposals(*flood(500), *flood(500, "other"))
    assert "agent: 498 more   (↓ show, → next proposer, G last)" in "\n".join(proposal_rows(screen))
    for _ in range(3):
        screen, _ = press_keys(screen, "down")
    assert proposal_rows(screen)[1:] == [
        '   1 agent → worker: write_file {"path": "/0"}',
        "     agent: 2 more   (↓ show, → next proposer, G last)",
        '   4 agent → worker: write_file {"path": "/3"}',
        "     agent: 496 more   (↓ show, → next proposer, G last)",
        ' 501 other → worker: write_file {"path": "/0"}',
        "     other: 499 more   (↓ show, → next proposer, G last)",
    ]


@pytest.mark.parametrize(
    ("keys", "chosen"),
    [
        (["right"], "other-0"),
        (["right", "right"], "third-0"),
        (["right", "right", "right"], "third-0"),
        (["right", "left"], "agent-0"),
        (["G"], "third-1"),
        (["end"], "third-1"),
        (["G", "g"], "agent-0"),
        (["end", "home"], "agent-0"),
        (["G", "up"], "third-0"),
        (["G", "left"], "other-0"),
    ],
)
def test_single_key_skips_proposer(keys: list[str], chosen: str) -> None:
    screen = select_proposals(*flood(300), *flood(300, "other"), *flood(2, "third"))
    screen, deed = press_keys(screen, *keys)
    assert (screen.selected_id, deed) == (chosen, None)


def test_several_digits_select_proposal() -> None:
    screen = select_proposals(*flood(25))
    screen, _ = press_keys(screen, "2")
    # 2, 20, 21...: nothing is chosen before it is known which.
    assert screen.selected_id == ""
    assert rows(screen)[-1].startswith(" 2…: another digit, or a, r, Enter")
    assert press_keys(screen, "3")[0].selected_id == "agent-22"
    assert "another digit · Esc" in rows(set_proposals(screen, flood(25)[5:]))[-1]
    assert press_keys(screen, "enter")[0].selected_id == "agent-1"
    assert press_keys(screen, "r")[1] == ScreenAction("reject", "agent-1")
    assert press_keys(screen, "a")[0].question_id == "agent-1"
    # The one of that number has gone meanwhile: no other is meant.
    without = set_proposals(screen, [item for item in flood(25) if item.id != "agent-1"])
    assert press_keys(without, "r")[1] is None
    after, _ = press_keys(screen, "9")
    assert (after.digits, after.note) == ("", "There is no proposal 29.")


def test_proposals_keep_their_numbers() -> None:
    before = arrange_proposals((), [proposal("p1"), proposal("p2", "other"), proposal("p3")], 0)
    assert [(item.id, item.number) for item in before] == [("p1", 1), ("p3", 3), ("p2", 2)]
    after = arrange_proposals(before, [proposal("p3"), proposal("p2", "other"), proposal("p4")], 3)
    assert [(item.id, item.number) for item in after] == [("p3", 3), ("p4", 4), ("p2", 2)]
    # Another one by the same id is another one.
    [another] = arrange_proposals(after, [proposal("p2", "other", "/etc")], 4)
    assert another.number == 5
    assert arrange_proposals((), [proposal("p5")], 0)[0].number == 1


def test_numbers_are_not_reused_while_proposals_are_pending() -> None:
    screen = select_proposals(proposal("p1"), proposal("p2", "other"), proposal("p3"))
    screen = set_proposals(screen, [proposal("p1"), proposal("p2", "other")])
    screen = set_proposals(
        screen, [proposal("p1"), proposal("p2", "other"), proposal("evil", "eve")]
    )
    assert {proposal.id: proposal.number for proposal in screen.proposals} == {
        "p1": 1,
        "p2": 2,
        "evil": 4,
    }
    # Keys for the third, which has gone, are about nothing.
    _, deed = press_keys(screen, "3", "r")
    assert deed is None
    screen = set_proposals(set_proposals(screen, []), [proposal("p9")])
    assert screen.proposals[0].number == 1


@given(
    counts=st.lists(st.integers(1, 30), min_size=1, max_size=8),
    at=st.integers(0, 300),
    most=st.integers(1, 6),
)
def test_every_row_shows_or_counts_proposals(counts: list[int], at: int, most: int) -> None:
    waiting = arrange_proposals(
        (), [item for by, count in enumerate(counts) for item in flood(count, str(by))], 0
    )
    chosen = waiting[at % len(waiting)].id
    listing = fold_proposals(waiting, chosen, most)
    assert len(listing) <= most
    assert chosen in [tool.id for tool in listing if isinstance(tool, PendingProposal)]
    if most >= 2 * len(counts) + 2:
        held = sum(tool.count if isinstance(tool, HiddenProposals) else 1 for tool in listing)
        assert held == len(waiting)


# -- all of one proposer


def test_rejecting_all_asks_once() -> None:
    screen = select_proposals(*flood(1020), *flood(4, "other"))
    screen, deed = press_keys(screen, "R")
    assert deed is None
    assert rows(screen)[-1] == " Reject all 1,020 proposals of agent? y reject · n cancel"
    # What comes while it is asked was not counted.
    more = [*flood(1021), *flood(4, "other")]
    screen, deed = press_keys(set_proposals(screen, more), "y")
    assert deed == ScreenAction(
        "reject_all", "agent", tuple(f"agent-{number}" for number in range(1020))
    )
    assert screen.reject_ids == ()


@pytest.mark.parametrize("key", ["n", "escape", "tab"])
def test_unconfirmed_rejection_rejects_nothing(key: str) -> None:
    screen, deed = press_keys(select_proposals(*flood(3)), "R", "r", "a", key)
    assert (screen.reject_ids, deed, screen.note) == ((), None, "Nothing was done.")
    assert screen.question_id == ""


def test_rejecting_all_skips_changed_proposals() -> None:
    screen, _ = press_keys(select_proposals(*flood(3)), "R")
    now = [proposal("agent-0", path="/etc"), flood(3)[1], proposal("agent-2", "other", "/2")]
    screen = set_proposals(screen, now)
    assert "Reject the one proposal of agent?" in rows(screen)[-1]
    assert press_keys(screen, "y")[1] == ScreenAction("reject_all", "agent", ("agent-1",))
    screen = set_proposals(screen, [proposal("p9")])
    assert "The proposal is no longer pending." in rows(screen)[-1]
    assert press_keys(screen, "y")[1] is None


@given(st.text())
def test_paste_rejects_nothing(text: str) -> None:
    screen, _ = press_keys(select_proposals(*flood(3)), "R")
    assert handle_key(screen, Key("paste", text)) == (screen, None)


# -- what is asked


def test_blocked_proposal_shows_reason() -> None:
    why = "You cannot fulfil it: boss may not send mcp/request:tools/call:write_file."
    screen, deed = press_keys(select_proposals(proposal("p1", blocked_reason=why)), "a")
    output = "\n".join(rows(screen))
    assert why in output
    assert "y fulfil" not in output
    # All of it can be looked at still, to know what to reject.
    assert '"path": "/a"' in output
    screen, deed = press_keys(screen, "y")
    assert (deed, screen.note, screen.question_id) == (None, why, "p1")
    # Somebody gave the right to do so meanwhile.
    screen = set_proposals(screen, [proposal("p1")])
    assert press_keys(screen, "y")[1] == ScreenAction("fulfil", "p1")


def test_question_shows_where_decision_is_made() -> None:
    words = "interlock: demo.notes_add waits for a human, who decides with `interlock approve 7f`."
    screen, _ = press_keys(select_proposals(proposal("p1", remark=words)), "a")
    asked = topic_screen.format_question(screen)
    assert asked[0] == "agent proposes to worker"
    output = " ".join(" ".join(asked[1:4]).split())
    assert output.startswith(f"Remark by {words}")
    # Whatever is said from now on moves nothing in it, and ends nothing.
    screen = set_proposals(screen, [proposal("p1", remark="interlock: " + "no " * 200)])
    assert topic_screen.format_question(screen) == asked
    assert press_keys(screen, "y")[1] == ScreenAction("fulfil", "p1")


@pytest.mark.parametrize("width", [60, 80, 100])
def test_proposal_row_shows_tool_arguments(width: int) -> None:
    one = PendingProposal(
        "p1", "agent", "interlock", "tools/call demo.notes_add",
        b'{"name":"demo.notes_add","arguments":{"text":"milk"}}',
    )  # fmt: skip
    screen = resize(set_proposals(EMPTY, [one]), width, 24)
    assert ' 1 agent → interlock: demo.notes_add {"text":"milk"}' in rows(screen)
    # What is no call of a tool is named.
    other = replace(one, call="resources/read file:///a", params=b'{"uri":"file:///a"}')
    screen = resize(set_proposals(EMPTY, [other]), 100, 24)
    assert ' 1 agent → interlock: resources/read file:///a {"uri":"file:///a"}' in rows(screen)


# -- what one does is answered where one looks


def test_response_scrolls_to_end() -> None:
    screen = EMPTY
    for number in range(100):
        screen = topic_screen.add_line(screen, MessageLine("", "agent", f"message {number}."))
    screen, _ = press_keys(screen, "page_up", "page_up")
    assert screen.scrolled_lines
    screen = topic_screen.add_line(screen, MessageLine("", "worker", "done"), scroll_to_end=True)
    assert screen.scrolled_lines == 0
    assert any("worker: done" in row for row in rows(screen))


def test_unknown_recipient_requires_confirmation() -> None:
    screen = replace(
        EMPTY, participants=(ScreenParticipant("agent", ""), ScreenParticipant("worker", ""))
    )
    screen, deed = press_keys(screen, *"@nobody", " ", *"hi", "enter")
    assert deed is None
    assert "There is no participant nobody. Enter again sends" in rows(screen)[-1]
    assert screen.draft == "@nobody hi"
    assert press_keys(screen, "enter")[1] == ScreenAction("say", "@nobody hi")
    # Who goes on writing is asked again.
    screen, deed = press_keys(screen, "!", "enter")
    assert deed is None
    for words in ("@agent hi", "@agent: hi", "@", "@ hi", "@nobody", "mail me@nobody now"):
        _, deed = press_keys(replace(screen, draft=words, cursor=0), "enter")
        assert deed == ScreenAction("say", words)


def test_note_keeps_screen_size() -> None:
    for width, height in ((20, 8), (30, 12), (80, 24)):
        screen = resize(replace(select_proposals(*flood(50)), note="word " * 100), width, height)
        for item in (screen, replace(screen, question_id="agent-0")):
            lines = draw_screen(item)
            assert len(lines) == height
            assert all(cell_len(row.plain) == width for row in lines)
