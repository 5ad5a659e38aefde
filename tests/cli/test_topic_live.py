"""The screen of a topic and its participant, without a terminal."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace

from interlock.topics.client import Participant
from interlock.topics.commands.live import LiveScreen
from tests.topics.client.offline_membership import OfflineMembership

pytestmark = pytest.mark.feature("topics")


def create_participant(alone: OfflineMembership) -> Participant:
    """A participant whose place is that one."""
    participant = Participant("wss://n/ws", topic="ops")
    participant._membership = alone.place
    return participant


async def test_changed_proposal_is_not_fulfilled() -> None:
    alone = OfflineMembership()
    id = alone.propose("a", "pay", {"to": "the baker"})
    written: list[str] = []
    live = LiveScreen(create_participant(alone), write=written.append)
    live.draw()
    live.on_input(b"\ta")
    live.draw()
    assert "the baker" in written[-1]
    # Whatever let it come to that, between the last drawing and the key.
    kept: dict[str, Any] = alone.place.proposals._proposals._proposals
    kept[id] = replace(kept[id], params=Raw(b'{"name":"pay","arguments":{"to":"me"}}'))
    live.on_input(b"y")
    await asyncio.gather(*live._tasks)
    assert alone.said == []
    live.draw()
    assert "The proposal has changed" in written[-1]
    await live.end()


async def test_help_is_shown_and_not_sent() -> None:
    alone = OfflineMembership()
    written: list[str] = []
    live = LiveScreen(create_participant(alone), write=written.append)
    live.draw()
    live.on_input(b"/help\r")
    await asyncio.gather(*live._tasks)
    assert alone.said == []
    live.draw()
    assert "Tab moves to the proposals" in written[-1]
    await live.end()


async def test_rejecting_all_notifies_proposer() -> None:
    for count, told in (
        (3, ["It was rejected."] * 3),
        (50, ["50 proposals of yours were rejected"]),
    ):
        alone = OfflineMembership()
        ids = [alone.propose("a", "pay", {"sum": number}) for number in range(count)]
        alone.propose("b", "read")
        live = LiveScreen(create_participant(alone), write=lambda _: None)
        live.draw()
        live.on_input(b"\tR")
        # What was proposed after the question is not part of the answer.
        alone.propose("a", "pay", {"sum": -1})
        live.refresh()
        live.on_input(b"y")
        await asyncio.gather(*live._tasks)
        states = {item: tracked.status for item, tracked in live._participant.proposals.items()}
        assert {states[id] for id in ids} == {"rejected"}
        assert sum(state == "pending" for state in states.values()) == 2
        assert live.screen.lines[-1].text == f"rejects {count} proposals of a"
        assert [item["to"] for item in alone.said] == [["a"]] * len(told)
        for element, words in zip(alone.said, told, strict=True):
            assert element["payload"]["text"].startswith(words)
        # Each by what it is about, or all by the last of them.
        about = [item["correlation_id"] for item in alone.said]
        assert about == (ids if count == 3 else ids[-1:])
        await live.end()


async def test_question_shows_remark_of_target() -> None:
    alone = OfflineMembership()
    id = alone.propose("a", "notes_add", {"text": "x"})
    written: list[str] = []
    live = LiveScreen(create_participant(alone), write=written.append)
    message = "a human decides with `interlock approve 7f`."
    for sender, words in (("b", message), ("a", "never mind")):
        # Others, the proposer among them, cannot talk it away.
        alone.tell(sender, "chat", {"text": words, "format": "plain"}, correlation_id=id)
        live.on_event(alone.events[-1])
    live.draw()
    live.on_input(b"\ta")
    live.draw()
    assert f"Remark by b: {message}" in written[-1]
    assert "never mind" not in written[-1]
    await live.end()


async def test_unpermitted_participant_gets_no_question() -> None:
    alone = OfflineMembership(["chat", "mcp/proposal:*"])
    alone.propose("a", "pay")
    written: list[str] = []
    live = LiveScreen(create_participant(alone), write=written.append)
    live.draw()
    live.on_input(b"\ta")
    live.draw()
    assert "You cannot fulfil it: me may not send mcp/request:tools/call:pay." in written[-1]
    assert "y fulfil" not in written[-1]
    live.on_input(b"y")
    await asyncio.gather(*live._tasks)
    assert alone.said == []
    await live.end()


async def test_result_scrolls_to_end() -> None:
    alone = OfflineMembership()
    live = LiveScreen(create_participant(alone), write=lambda _: None)
    for number in range(100):
        live.note(f"message {number}")
    asking = asyncio.ensure_future(live._participant.request("b", "tools/list"))
    await asyncio.sleep(0)
    [asked] = alone.said
    live.on_input(b"\x1b[5~")
    assert live.screen.scrolled_lines
    # What others are answered moves nothing.
    result = {"jsonrpc": "2.0", "id": asked["payload"]["id"], "result": {"tools": []}}
    alone.tell("b", "mcp/response:tools/list", result, to=["a"], correlation_id="other")
    live.on_event(alone.events[-1])
    assert live.screen.scrolled_lines
    alone.tell("b", "mcp/response:tools/list", result, to=["me"], correlation_id=asked["id"])
    live.on_event(alone.events[-1])
    assert live.screen.scrolled_lines == 0
    await asking
    await live.end()


async def test_undrawn_proposal_is_not_fulfilled() -> None:
    """Keys that come in one go: whatever they were meant for, nobody has read the question."""

    alone = OfflineMembership()
    alone.propose("a", "pay", {"to": "the baker"})
    live = LiveScreen(create_participant(alone), write=lambda _: None)
    live.draw()
    live.on_input(b"\tay")
    await asyncio.gather(*live._tasks)
    assert alone.said == []
    live.draw()
    live.on_input(b"y")
    for _ in range(5):
        await asyncio.sleep(0)
    assert [item["kind"] for item in alone.said] == ["mcp/request:tools/call:pay"]
    await live.end()
