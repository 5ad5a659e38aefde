"""Tests of the inbox of the node in a room: order, limits and disconnects."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.core.call import Caller
from interlock.errors import CONFIRMATION_REQUIRED
from interlock.protocol.mcpx_terms import GATEWAY, GUEST, MAX_ENVELOPE_BYTES, SLOW_READER_CODE
from interlock.topics import node_participant as arrivals
from interlock.topics.member import Member
from interlock.topics.node_participant import (
    MAX_BYTES_PER_TURN,
    MAX_GUEST_MESSAGE_BYTES,
    MAX_MESSAGES_PER_TURN,
    NodeInbox,
    NodeMessage,
)
from interlock.topics.wire.envelope import EnvelopeHeader
from tests.support.clock import run_ready_tasks
from tests.topics.memory_room import MemoryRoom
from tests.topics.node.node_topic import NODE_ID, PROPOSES, NodeTopic

LONG = "x" * 200_000


def make_member(id: str) -> Member:
    return MemoryRoom().join(id)[0]


def node_message(id: str, member: Member | None, size: int = 10) -> NodeMessage:
    sender = GATEWAY if member is None else member.id
    return NodeMessage(member, EnvelopeHeader(id, "mcp/request:ping", sender), b"x" * size)


# -- the lines


def test_takes_one_message_per_sender_in_turn() -> None:
    ada, bob = make_member("ada"), make_member("bob")
    waiting = NodeInbox()
    for number in range(3):
        waiting.add("ada", node_message(f"a{number}", ada))
    waiting.add("bob", node_message("b0", bob))
    waiting.add("ada", node_message("left", None))
    waiting.add("bob", node_message("b1", bob))
    taken = []
    while waiting:
        taken.append(waiting.pop().head.id)
    assert taken == ["a0", "b0", "a1", "b1", "a2", "left"]
    assert (waiting.byte_count, waiting.message_count) == (0, 0)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.integers(0, 50)), max_size=40),
       st.lists(st.sampled_from(["take", "drop a", "drop b"]), max_size=40))  # fmt: skip
def test_counts_waiting_messages_and_bytes(
    said: list[tuple[str, bool, int]], deeds: list[str]
) -> None:
    members = {id: make_member(id) for id in "abc"}
    waiting = NodeInbox()
    held: list[NodeMessage] = []
    for number, (whose, by_gateway, size) in enumerate(said):
        one = node_message(f"{whose}{number}", None if by_gateway else members[whose], size)
        waiting.add(whose, one)
        held.append(one)
    for deed in deeds:
        if deed == "take" and waiting:
            held.remove(waiting.pop())
        elif deed.startswith("drop"):
            whose = deed[-1]
            waiting.remove_messages(whose)
            held = [one for one in held if one.member is not members[whose]]
        mine = [one for one in held if one.member is not None]
        assert waiting.byte_count == sum(one.weight for one in mine)
        assert waiting.message_count == len(mine)
    while waiting:
        held.remove(waiting.pop())
    assert held == []


# -- what is not kept at all


async def test_chat_does_not_wait(tmp_path: Path) -> None:
    table = NodeTopic(tmp_path)
    ada, eve = table.add_participant("ada", PROPOSES), table.add_participant("eve")
    for number in range(3 * MAX_MESSAGES_PER_TURN):
        ada.propose("s.write_file", {"path": str(number)})
        for kind, payload in (
            ("chat", {"text": LONG}),
            ("mcp/response:ping", {"jsonrpc": "2.0", "id": 1, "result": {"x": LONG}}),
        ):
            eve.say(kind, payload)
        eve.propose("s.write_file", {"text": LONG}, to=())
        eve.propose("s.write_file", {"text": LONG}, to=("ada",))
    table.room.flush()
    waiting = table.seat._inbox
    assert waiting.message_count == 3 * MAX_MESSAGES_PER_TURN
    assert waiting.byte_count < 200_000
    assert eve.closed is None
    table.close()


# -- how much may wait


async def test_flood_does_not_delay_others(tmp_path: Path) -> None:
    table = NodeTopic(tmp_path)
    ada, eve = table.add_participant("ada"), table.add_participant("eve")
    for number in range(10 * MAX_MESSAGES_PER_TURN):
        eve.request("ping", rpc=number)
    asked = ada.request("ping")
    table.room.flush()
    await run_ready_tasks(3)
    assert ada.list_responses(asked)
    assert len(eve.list_messages("mcp/response:")) < 5 * MAX_MESSAGES_PER_TURN
    table.close()


async def test_takes_one_long_message_per_turn(tmp_path: Path) -> None:
    table = NodeTopic(tmp_path)
    eve = table.add_participant("eve")
    for number in range(5):
        eve.request("ping", {"x": "x" * MAX_BYTES_PER_TURN}, rpc=number)
    table.room.flush()
    left = [5]
    while left[-1]:
        await run_ready_tasks(1)
        left.append(table.seat._inbox.message_count)
    assert max(before - after for before, after in pairwise(left)) == 1
    table.close()


async def test_disconnects_largest_sender_at_total_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrivals, "MAX_TOTAL_WAITING_BYTES", 4 * MAX_ENVELOPE_BYTES)

    table = NodeTopic(tmp_path)
    ada, eve = table.add_participant("ada"), table.add_participant("eve")
    mine = [ada.request("ping", {"x": LONG}, rpc=number) for number in range(3)]
    for number in range(30):
        if eve.closed is None:
            eve.request("ping", {"x": LONG}, rpc=number)
    table.room.flush()
    await ada.until(lambda: all(ada.list_responses(one) for one in mine))
    assert ada.closed is None
    assert eve.closed is not None
    assert eve.closed[0] == SLOW_READER_CODE
    assert table.seat._inbox.byte_count == 0
    table.close()


async def test_rejects_long_messages_of_guests(tmp_path: Path) -> None:
    table = NodeTopic(tmp_path)
    guest = table.add_participant("guest-a", bearer=None)
    guest.member.caller = Caller("guest-a", can_call=False, can_register=False, kind=GUEST)
    asked = guest.request("ping", rpc=7)
    assert (await guest.read_payload(asked))["result"] == {}
    long = guest.request("ping", {"x": "x" * MAX_GUEST_MESSAGE_BYTES}, rpc=8)
    answer = await guest.read_payload(long)
    assert "guests" in answer["error"]["message"]
    table.close()


# -- lies


@pytest.mark.spec("MX-7.1-5", "MX-4.3-3")
async def test_journals_and_rejects_false_kinds(tmp_path: Path) -> None:
    table = NodeTopic(tmp_path)
    eve = table.add_participant("eve")
    asked = eve.request("tools/list", rpc="mine", kind="mcp/request:ping")
    answer = await eve.read_payload(asked)
    assert answer["id"] == "mine"
    assert "tools/list" in answer["error"]["message"]
    await table.run_until_idle()
    [row] = table.list_entries("topics/say")
    assert (row["outcome"], row["name"]) == ("malformed_envelope", table.room.name)
    assert "mcp/request:ping" in row["detail"]
    assert eve.member.rejected == 1
    table.close()


async def test_disconnects_sender_of_only_false_kinds(tmp_path: Path) -> None:
    table = NodeTopic(tmp_path, stands_still=True)
    eve = table.add_participant("eve")
    for number in range(500):
        if eve.closed is None:
            eve.request("tools/list", rpc=number, kind="mcp/request:ping")
            await run_ready_tasks(2)
    assert eve.closed is not None
    assert eve.closed[0] == SLOW_READER_CODE
    assert NODE_ID in table.room.members
    table.close()


# -- who is quicker than the node


@pytest.mark.parametrize(("before", "size"), [(3, 100_000), (2 * MAX_MESSAGES_PER_TURN, 10)])
async def test_unhandled_proposal_cannot_be_fulfilled(
    before: int, size: int, tmp_path: Path
) -> None:
    table = NodeTopic(tmp_path)
    ada, bob = table.add_participant("ada", PROPOSES), table.add_participant("bob")
    file = {"path": "a.txt"}
    for number in range(before):
        ada.propose("s.write_file", {"path": str(number), "text": "x" * size})
    proposal = ada.propose("s.write_file", file)
    table.room.flush()
    asked = bob.call("s.write_file", file, correlation_id=proposal)
    answer = await bob.read_payload(asked)
    assert answer["error"]["code"] == CONFIRMATION_REQUIRED.code
    await ada.chat(proposal)
    assert table.gated.upstream.started == []
    assert table.seat._unhandled_proposals == {}
    table.close()


async def test_disconnect_removes_all_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrivals, "MAX_WAITING_MESSAGES", 5)

    table = NodeTopic(tmp_path)
    for _ in range(3):
        eve = table.add_participant("eve", PROPOSES)
        for number in range(10):
            eve.propose("s.write_file", {"path": str(number)})
        # Another connection takes its place before it is let go.
        table.add_participant("eve", PROPOSES)
        await table.run_until_idle()
    assert table.seat._disconnecting == set()
    assert table.seat._unhandled_proposals == {}
    table.close()
