"""Tests of a room: welcome, presence, errors and routing."""

from __future__ import annotations

import gc
import inspect
import json
import logging
from typing import Any

import pytest

from interlock.errors import InterlockError
from interlock.protocol.mcpx_terms import GUEST, REPLACED_CODE
from interlock.topics import gateway, room
from interlock.topics.config import TopicConfig
from interlock.topics.member import Batch, MessageLoss
from interlock.topics.rate_limits import MAX_FORMER_MEMBERS, RETENTION_SECONDS
from interlock.topics.room import MAX_MESSAGES_PER_TURN
from interlock.topics.wire.envelope import read_envelope
from interlock.topics.wire.payloads import PayloadError, ProposalPayload, read_content
from tests.topics.memory_room import FULL, MemoryRoom, RecordingSink, read_frames, write_message

PROPOSER = ("mcp/proposal:*", "chat")
SYSTEM = ("system/welcome", "system/presence", "system/error")


def list_errors(ear: RecordingSink) -> list[dict[str, Any]]:
    return [message for message in ear.heard if message["kind"] == "system/error"]


def single_error(ear: RecordingSink) -> dict[str, Any]:
    (found,) = list_errors(ear)
    assert found["from"] == "system:gateway"
    return found


def room_of_two(
    settings: TopicConfig | None = None,
) -> tuple[MemoryRoom, Any, RecordingSink, Any, RecordingSink]:
    """Return a room in which `a` may propose and `b` may do anything."""
    here = MemoryRoom(settings)
    (a, to_a), (b, to_b) = here.join("a", PROPOSER), here.join("b")
    here.turns.take()
    to_a.forget()
    to_b.forget()
    return here, a, to_a, b, to_b


# --- coming and going ---


@pytest.mark.spec(
    "MX-3.4-1", "MX-3.4-2", "MX-3.4-3", "MX-3.4-4", "MX-3.4-5", "MX-3.5.1-1", "MX-3.5.1-2",
    "MX-3.5.1-3", "MX-3.5.1-5", "MX-8.1-9", "MX-8.1-10",
)  # fmt: skip
def test_joins_are_welcomed_and_announced() -> None:
    here = MemoryRoom()
    a, to_a = here.join("a", PROPOSER)
    here.turns.take()
    assert to_a.kinds == ["system/welcome", "system/presence"]
    b, to_b = here.join("b")
    here.room.send(a, write_message("a"))
    here.turns.take()
    to_c = here.join("c", ("chat",))[1]
    here.turns.take()
    welcome, *rest = to_c.heard
    assert (welcome["to"], welcome["kind"]) == (["c"], "system/welcome")
    assert welcome["payload"] == {
        "you": {"id": "c", "capabilities": ["chat"]},
        "participants": [
            {"id": "a", "capabilities": [*a.capabilities]},
            {"id": "b", "capabilities": [*b.capabilities]},
        ],
    }
    assert [message["payload"] for message in rest] == [
        {"event": "join", "participant": {"id": "c", "capabilities": ["chat"]}}
    ]
    assert to_b.kinds == ["system/welcome", "system/presence", "chat", "system/presence"]
    # Nobody sees the welcome of another, in All mode either.
    assert to_a.kinds == ["system/welcome", *["system/presence"] * 3]
    here.room.leave(b)
    here.turns.take()
    gone = {"event": "leave", "participant": {"id": "b"}}
    assert to_a.heard[-1]["payload"] == to_c.heard[-1]["payload"] == gone
    assert {message["payload"]["event"] for message in to_a.heard[1:]} == {"join", "leave"}
    assert [*here.room.members] == ["a", "c"]


@pytest.mark.spec("MX-2.2-3")
def test_new_member_gets_no_history() -> None:
    here, a, _, b, _ = room_of_two()
    here.room.send(a, write_message("a", id="early"))
    to_c = here.join("c")[1]
    here.turns.take()
    assert to_c.kinds == ["system/welcome", "system/presence"]
    here.room.send(b, write_message("b", id="late"))
    here.turns.take()
    assert to_c.heard[-1]["id"] == "late"
    assert not any("early" in json.dumps(message) for message in to_c.heard)


def test_new_connection_of_participant_replaces_older() -> None:
    here, a, to_a, b, to_b = room_of_two()
    here.room.send(b, write_message("b", id="before"))
    again, to_again = here.join("a", PROPOSER)
    assert to_a.closed is not None
    assert to_a.closed[0] == REPLACED_CODE
    here.room.send(b, write_message("b", id="after"))
    # What the older connection still says or tells counts no more.
    assert here.room.send(a, write_message("a")) is None
    here.room.leave(a)
    here.room.report_loss(a, MessageLoss(1))
    here.room.change_capabilities(a, FULL)
    here.turns.take()
    assert [message["id"] for message in to_a.heard] == ["before"]
    assert to_again.kinds == ["system/welcome", "chat"]
    assert to_again.heard[-1]["id"] == "after"
    assert to_b.texts == []
    assert here.room.members["a"] is again


def test_node_is_told_of_replaced_connections() -> None:
    here, _, _, _, to_b = room_of_two()
    node, to_node = here.join("node", inside=True)
    here.turns.take()
    to_node.forget()
    to_b.forget()
    here.join("a", PROPOSER)
    here.turns.take()
    (told,) = to_node.heard
    assert (told["from"], told["kind"]) == ("system:gateway", "system/presence")
    participant = {"id": "a", "capabilities": [*PROPOSER]}
    assert told["payload"] == {"event": "join", "participant": participant}
    assert to_b.texts == []
    assert here.room.members["node"] is node


def test_changed_capabilities_are_announced_on_rejoin() -> None:
    here, _, _, _, to_b = room_of_two()
    here.join("a", FULL)
    here.turns.take()
    (told,) = to_b.heard
    assert told["payload"]["participant"] == {"id": "a", "capabilities": [*FULL]}


def test_participant_id_cannot_be_taken_over() -> None:
    here, a, _, _, _ = room_of_two()
    here.join("node", inside=True)
    for id in ("a", "node"):
        with pytest.raises(InterlockError) as caught:
            here.join(id, caller="stranger")
        assert caught.value.failure.http == 403
    with pytest.raises(InterlockError):
        here.join("node", inside=True)
    assert here.room.members["a"] is a


def test_full_room_accepts_only_node_and_members() -> None:
    here = MemoryRoom(TopicConfig(max_participants=2))
    here.join("a")
    here.join("b")
    with pytest.raises(InterlockError) as caught:
        here.join("c")
    assert caught.value.failure.http == 503
    here.join("a")
    here.join("node", inside=True)
    assert [*here.room.members] == ["a", "b", "node"]


# --- what is passed on ---


@pytest.mark.spec("MX-3-18", "MX-8.1-15", "MX-3-12")
def test_delivers_messages_byte_for_byte() -> None:
    here, a, to_a, _, to_b = room_of_two()
    odd = (
        b' {"x":[1, 2],"payload" : {"text":"caf\xc3\xa9 \\u00e9"},"kind":"chat","from":"a",'
        b'"to":[],"id":"1","correlation_id":"other","protocol":"mcpx/v0.1","ts":"never"} '
    )
    head = here.room.send(a, odd)
    assert head is not None
    assert head.correlation_id == "other"
    here.turns.take()
    assert to_b.texts == [odd]
    assert read_frames(to_b.batches[0]) == [odd]
    assert to_a.texts == []


@pytest.mark.spec(
    "MX-2.2-2", "MX-4.2-2", "MX-4.2-3", "MX-8.1-16", "MX-3-13",
)  # fmt: skip
@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        ("mcp/proposal:tools/call:safe", {"method": "x", "params": {"name": "danger"}}),
        ("mcp/proposal:tools/call", {"jsonrpc": "9"}),
        ("chat", {"no": ["text", {"at": "all"}]}),
        ("mcp/proposal:ping", {str(number): [[[number]]] for number in range(40_000)}),
        ("chat", {}),
    ],
)
def test_does_not_read_payloads(kind: str, payload: object) -> None:
    here, a, _, _, to_b = room_of_two()
    text = write_message("a", kind, payload=payload)
    assert here.room.send(a, text) is not None
    here.turns.take()
    assert to_b.texts == [text]


@pytest.mark.spec("MX-4.2-4")
def test_passes_false_kinds_to_receivers() -> None:
    here, a, _, _, to_b = room_of_two()
    lie = {"method": "tools/call", "params": {"name": "danger"}}
    truth = {"method": "tools/call", "params": {"name": "safe"}}
    for payload in (lie, truth):
        here.room.send(a, write_message("a", "mcp/proposal:tools/call:safe", payload=payload))
    here.turns.take()
    forged, honest = to_b.texts
    with pytest.raises(PayloadError):
        read_content(read_envelope(forged))
    assert isinstance(read_content(read_envelope(honest)), ProposalPayload)


@pytest.mark.spec("MX-2.2-6")
def test_room_code_contains_no_methods() -> None:
    for module in (room, gateway):
        source = inspect.getsource(module)
        for word in ("tools/", "resources/", "prompts/", "jsonrpc", "mcp/request", "params"):
            assert word not in source, f"{module.__name__} knows {word}"


@pytest.mark.spec("MX-3-7")
def test_passes_unknown_kind_with_capability() -> None:
    here = MemoryRoom()
    a = here.join("a", ("x/*",))[0]
    to_b = here.join("b")[1]
    assert here.room.send(a, write_message("a", "x/y")) is not None
    here.turns.take()
    assert to_b.kinds[-1] == "x/y"


# --- who is sent what ---


@pytest.mark.spec(
    "MX-6.3a-1", "MX-6.3a-2", "MX-6.3a-3", "MX-6.3a-4", "MX-8.1-13", "MX-8.1-14", "MX-3-6",
)  # fmt: skip
def test_routes_broadcast_and_directed_messages() -> None:
    here = MemoryRoom()
    sender, to_sender = here.join("sender")
    ears = {
        "all": here.join("all")[1],
        "meant": here.join("meant", routing="directed")[1],
        "other": here.join("other", routing="directed")[1],
    }
    here.turns.take()
    for ear in (to_sender, *ears.values()):
        ear.forget()
    here.room.send(sender, write_message("sender", "chat", id="broadcast"))
    here.room.send(sender, write_message("sender", "chat", "meant", id="one"))
    here.room.send(sender, write_message("sender", "chat", "nobody", id="none"))
    here.room.send(
        sender, write_message("sender", "chat", *map(str, range(20)), "other", id="many")
    )
    here.turns.take()
    heard = {name: [message["id"] for message in ear.heard] for name, ear in ears.items()}
    assert heard == {
        "all": ["broadcast", "one", "none", "many"],
        "meant": ["broadcast", "one"],
        "other": ["broadcast", "many"],
    }
    assert to_sender.texts == []


def test_sends_one_batch_per_turn() -> None:
    here, a, to_a, b, to_b = room_of_two()
    to_c, to_d = here.join("c")[1], here.join("d", routing="directed")[1]
    here.turns.take()
    for ear in (to_a, to_b, to_c, to_d):
        ear.forget()
    for number in range(5):
        here.room.send(a, write_message("a", id=f"a{number}"))
    assert to_c.batches == []
    here.turns.take()
    assert [len(ear.batches) for ear in (to_a, to_b, to_c, to_d)] == [0, 1, 1, 1]
    assert to_b.batches[0] is to_c.batches[0] is to_d.batches[0]
    assert [head.id for head in to_b.batches[0].heads] == [f"a{number}" for number in range(5)]
    here.room.send(a, write_message("a", id="from-a"))
    here.room.send(b, write_message("b", id="from-b"))
    here.turns.take()
    assert [message["id"] for message in to_c.heard[5:]] == ["from-a", "from-b"]
    assert [message["id"] for message in to_a.heard] == ["from-b"]
    assert to_b.heard[-1]["id"] == "from-a"


def test_simultaneous_joins_are_announced_together() -> None:
    here, a, to_a, _, _ = room_of_two()
    here.room.send(a, write_message("a", id="before"))
    ears = [here.join(f"x{number}")[1] for number in range(20)]
    here.room.send(a, write_message("a", id="after"))
    here.turns.take()
    assert len(to_a.batches) == 1
    assert to_a.kinds == ["system/presence"] * 20
    for number, ear in enumerate(ears):
        assert len(ear.batches) == 2
        welcome, *rest = ear.heard
        assert len(welcome["payload"]["participants"]) == 2 + number
        told = [one["payload"]["participant"]["id"] for one in rest[:-1]]
        assert told == [f"x{later}" for later in range(number, 20)]
        assert rest[-1]["id"] == "after"


def test_long_turn_is_split() -> None:
    here, a, _, _, to_b = room_of_two()
    for number in range(MAX_MESSAGES_PER_TURN + 1):
        here.room.send(a, write_message("a", id=str(number)))
    assert len(to_b.texts) == MAX_MESSAGES_PER_TURN + 1
    to_b.forget()
    big = write_message("a", payload={"text": "x" * 100_000})
    for _ in range(3):
        here.room.send(a, big)
    assert to_b.texts == [big] * 3
    here.turns.take()
    assert len(to_b.texts) == 3


def test_failing_connection_does_not_affect_others(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(RecordingSink):
        def deliver(self, batch: Batch) -> None:
            raise OSError("broken")

    here, a, _, _, _ = room_of_two()
    here.room.members["a"].sink = Broken()
    b = here.room.members["b"]
    to_c = here.join("c")[1]
    with caplog.at_level(logging.ERROR):
        here.room.send(b, write_message("b"))
        here.turns.take()
    assert to_c.kinds[-1] == "chat"
    assert "topic ops: cannot send messages to a" in caplog.text
    assert here.room.send(a, write_message("a")) is not None


def test_responses_during_delivery_wait_for_next_turn() -> None:
    here, a, to_a, b, _ = room_of_two()

    class Answering(RecordingSink):
        def deliver(self, batch: Batch) -> None:
            super().deliver(batch)
            for head in batch.heads:
                if head.sender == "a":
                    here.room.send(b, write_message("b", id=f"re-{head.id}"))
                    here.room.flush()

    b.sink = Answering()
    to_c = here.join("c")[1]
    here.turns.take()
    here.room.send(a, write_message("a", id="q"))
    here.turns.take()
    assert [message["id"] for message in to_c.heard[-2:]] == ["q", "re-q"]
    assert to_a.heard[-1]["id"] == "re-q"


def test_leave_during_delivery_does_not_affect_others() -> None:
    here, a, _, b, _ = room_of_two()

    class Leaving(RecordingSink):
        def deliver(self, batch: Batch) -> None:
            here.room.leave(b)

    b.sink = Leaving()
    to_c = here.join("c")[1]
    here.turns.take()
    to_c.forget()
    here.room.send(a, write_message("a", id="q"))
    here.turns.take()
    assert [message["kind"] for message in to_c.heard] == ["chat"]
    assert "b" not in here.room.members


# --- what a change of capabilities tells ---


@pytest.mark.spec("MX-11.3-5")
def test_capability_change_is_announced() -> None:
    here, a, to_a, _, to_b = room_of_two()
    assert here.room.send(a, write_message("a", "mcp/request:tools/call:x")) is None
    to_a.forget()
    here.room.change_capabilities(a, FULL)
    here.turns.take()
    assert to_a.kinds == ["system/welcome"]
    assert to_a.heard[0]["payload"]["you"] == {"id": "a", "capabilities": [*FULL]}
    (told,) = to_b.heard
    assert told["payload"] == {
        "event": "join", "participant": {"id": "a", "capabilities": [*FULL]},
    }  # fmt: skip
    assert here.room.send(a, write_message("a", "mcp/request:tools/call:x")) is not None


def test_reports_loss_and_presence_to_slow_member() -> None:
    here, a, to_a, _, to_b = room_of_two()
    here.room.report_loss(a, MessageLoss(7, "t1", "t2", {"chat": 7}))
    here.turns.take()
    assert to_a.kinds == ["system/error", "system/welcome"]
    told = to_a.heard[0]
    assert told["to"] == ["a"]
    assert told["payload"].pop("message")
    assert told["payload"] == {
        "error": "messages_lost", "lost": 7, "first": "t1", "last": "t2", "kinds": {"chat": 7},
    }  # fmt: skip
    assert to_b.texts == []


# --- nothing is kept ---


@pytest.mark.spec("MX-2.1-5")
def test_ten_thousand_joins_leave_no_state() -> None:
    here, a, to_a, _, to_b = room_of_two(TopicConfig(notice=True, messages_per_second=100))

    def come_and_go(times: int) -> int:
        for number in range(times):
            member, _ = here.join(f"x{number}", PROPOSER)
            here.room.send(member, write_message(member.id))
            here.room.send(member, b"nonsense")
            here.room.send(member, write_message(member.id, "mcp/request:x"))
            here.room.leave(member)
            if not number % 100:
                here.turns.take()
                to_a.forget()
                to_b.forget()
                here.violations.clear()
        here.turns.take()
        to_a.forget()
        to_b.forget()
        here.violations.clear()
        gc.collect()
        return len(gc.get_objects())

    before = come_and_go(1_000)
    after = come_and_go(9_000)
    assert after - before < 100
    # What the last of them had said is known for a moment, of so many and no more.
    assert len(here.room._rate_limits) == MAX_FORMER_MEMBERS
    here.time += RETENTION_SECONDS
    here.room.leave(here.join("guest-1", PROPOSER, kind=GUEST)[0])
    here.turns.take()
    assert [*here.room.members] == ["a", "b"]
    assert a.rejected == 0
    state = [one for one in vars(here.room).values() if isinstance(one, dict | list)]
    assert [len(one) for one in state if one is not here.room.members] == [0] * (len(state) - 1)
    assert len(here.room._rate_limits) == 0
