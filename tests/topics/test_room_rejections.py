"""Tests of rejected messages in a room."""

from __future__ import annotations

import json

import pytest

from interlock.protocol.kinds import KindGrants
from interlock.protocol.mcpx_terms import GUEST, SLOW_READER_CODE
from interlock.topics.config import TopicConfig
from interlock.topics.member import MessageLoss
from interlock.topics.rate_limits import RETENTION_SECONDS
from tests.topics.memory_room import FULL, NOW, MemoryRoom, write_message
from tests.topics.test_room import PROPOSER, SYSTEM, room_of_two, single_error


@pytest.mark.spec(
    "MX-3.5.2-1", "MX-3.5.2-2", "MX-3-11", "MX-4.2-1", "MX-6.4a-1", "MX-8.1-6", "MX-8.1-7",
    "MX-8.1-8",
)  # fmt: skip
def test_rejects_kind_without_capability() -> None:
    here, a, to_a, _, to_b = room_of_two()
    assert here.room.send(a, write_message("a", "mcp/request:tools/call", "b", id="bad")) is None
    here.turns.take()
    told = single_error(to_a)
    assert (told["to"], told["correlation_id"]) == (["a"], "bad")
    assert told["payload"] == {
        "error": "capability_violation",
        "message": "You lack capability for 'mcp/request:tools/call'",
        "attempted_kind": "mcp/request:tools/call",
        "your_capabilities": [*PROPOSER],
    }
    assert to_b.texts == []
    assert here.violations == [("a", "capability_violation", "mcp/request:tools/call")]
    assert a.rejected == 1
    # It stays, and what it may say it may still say, once.
    assert here.room.send(a, write_message("a", "mcp/proposal:tools/call:x", id="good")) is not None
    here.turns.take()
    assert [message["id"] for message in to_b.heard] == ["good"]


@pytest.mark.spec("MX-3-16")
def test_gateway_messages_have_timestamp() -> None:
    settings = TopicConfig(notice=True, messages_per_second=2)
    here = MemoryRoom(settings)
    ears = [here.join("a", PROPOSER)[1], here.join("hub", inside=True)[1]]
    a, ear = here.join("a", PROPOSER)
    ears.append(ear)
    b, ear = here.join("b")
    ears.append(ear)
    here.turns.take()
    for text in (b"nonsense", write_message("a", "mcp/request:x"), write_message("a")):
        here.room.send(a, text)
    here.time += 10.0
    here.room.send(a, write_message("b"))
    here.room.report_loss(a, MessageLoss(7, "t1", "t2", {"chat": 7}))
    here.room.change_capabilities(b, ("chat",))
    here.room.leave(b)
    here.turns.take()
    heard = [one for ear in ears for one in ear.heard]
    assert {one["kind"] for one in heard} == {"system/welcome", "system/presence", "system/error"}
    assert {one["payload"]["event"] for one in heard if "event" in one["payload"]} == {
        "join",
        "leave",
    }
    assert {one["payload"]["error"] for one in heard if "error" in one["payload"]} == {
        "malformed_envelope", "capability_violation", "rate_limited", "identity_mismatch",
        "messages_lost",
    }  # fmt: skip
    assert {one.get("ts") for one in heard} == {NOW}


@pytest.mark.spec("MX-8.1-6")
def test_checks_each_message_once() -> None:
    class Spy:
        def __init__(self, grants: KindGrants) -> None:
            self.asked: list[str] = []
            self._grants = grants

        def grants(self, kind: str) -> bool:
            self.asked.append(kind)
            return self._grants.grants(kind)

    here, a, _, b, _ = room_of_two()
    spies = [Spy(one.grants) for one in (a, b)]
    a.grants, b.grants = spies
    kinds = ["chat", "mcp/proposal:x", "mcp/request:x", "system/error", "chat"]
    for kind in kinds:
        here.room.send(a, write_message("a", kind))
    here.turns.take()
    assert [spy.asked for spy in spies] == [kinds, []]


@pytest.mark.spec("MX-4.1-1")
def test_members_have_separate_capabilities() -> None:
    here, a, _, b, _ = room_of_two()
    request = "mcp/request:tools/call:x"
    assert here.room.send(a, write_message("a", request)) is None
    assert here.room.send(b, write_message("b", request)) is not None


@pytest.mark.spec("MX-4.1-9", "MX-4.1-10", "MX-8.1-12", "MX-3-15")
@pytest.mark.parametrize(
    "kind", [*SYSTEM, "system", "presence", "system:gateway", "system/", "system/anything"]
)
def test_rejects_gateway_kinds(kind: str) -> None:
    here = MemoryRoom()
    a, to_a = here.join("a", ("*",))
    to_b = here.join("b")[1]
    here.turns.take()
    to_b.forget()
    assert here.room.send(a, write_message("a", kind, id="forged")) is None
    here.turns.take()
    told = single_error(to_a)
    assert told["payload"]["error"] == "capability_violation"
    assert "reserved" in told["payload"]["message"]
    assert told["correlation_id"] == "forged"
    assert to_b.texts == []


@pytest.mark.spec("MX-3-17")
@pytest.mark.parametrize("sender", ["b", "A", "", "system:gateway", "nobody", "a "])
def test_rejects_false_sender(sender: str) -> None:
    here, a, to_a, _, to_b = room_of_two()
    assert here.room.send(a, write_message(sender, id="forged")) is None
    here.turns.take()
    told = single_error(to_a)
    assert (told["payload"]["error"], told["correlation_id"]) == ("identity_mismatch", "forged")
    assert to_b.texts == []


@pytest.mark.spec("MX-3-1", "MX-8.1-11", "MX-3-18")
@pytest.mark.parametrize(
    ("text", "about"),
    [
        (b"", None), (b"nonsense", None), (b"[]", None), (b'"text"', None), (b"{}", None),
        (b"\xff\xfe", None), (b"[" * 100_000, None),
        (write_message("a", id="x").replace(b'{"text": "hello"}', b'"text"'), "x"),
        (write_message("a", id="x").replace(b'"kind"', b'"Kind"'), "x"),
        (write_message("a", id="x")[:-1] + b',"kind":"mcp/request:x"}', "x"),
        (write_message("a", id="x")[:-1] + b',"to":"b"}', "x"),
    ],
)  # fmt: skip
def test_rejects_invalid_envelopes(text: bytes, about: str | None) -> None:
    here, a, to_a, _, to_b = room_of_two()
    assert here.room.send(a, text) is None
    here.turns.take()
    told = single_error(to_a)
    assert told["payload"]["error"] == "malformed_envelope"
    assert told.get("correlation_id") == about
    assert to_b.texts == []


@pytest.mark.spec("MX-3-2", "MX-6.1b-2", "MX-6.2b-1")
@pytest.mark.parametrize("version", ["mcpx/v0.2", "mcp-x/v0"])
def test_rejects_other_protocol_version(version: str) -> None:
    here, a, to_a, _, to_b = room_of_two()
    text = write_message("a", id="old").replace(b"mcpx/v0.1", version.encode())
    assert here.room.send(a, text) is None
    here.turns.take()
    told = single_error(to_a)
    assert told["payload"]["error"] == "protocol_mismatch"
    assert "mcpx/v0.1" in told["payload"]["message"]
    assert told["correlation_id"] == "old"
    assert to_b.texts == []


def test_reports_first_error() -> None:
    """Check the order: envelope, version, sender, kind."""
    here, a, to_a, _, _ = room_of_two()
    reserved = write_message("b", "system/error")
    version = reserved.replace(b"mcpx/v0.1", b"mcpx/v9")
    broken = version.replace(b'"payload":{', b'"payload":[')[:-2] + b"]}"
    for text in (
        broken,
        version,
        reserved,
        write_message("a", "system/error"),
        write_message("a", "mcp/request:x"),
    ):
        assert here.room.send(a, text) is None
    assert [message["payload"]["error"] for message in to_a.heard] == [
        "malformed_envelope", "protocol_mismatch", "identity_mismatch", "capability_violation",
        "capability_violation",
    ]  # fmt: skip


@pytest.mark.spec("MX-6.4a-2")
def test_announces_violations_only_if_configured() -> None:
    here, a, to_a, _, to_b = room_of_two(TopicConfig(notice=True))
    for _ in range(5):
        here.room.send(a, write_message("a", "mcp/request:x", id="bad"))
    here.turns.take()
    (notice,) = to_b.heard
    assert notice["kind"] == "system/error"
    assert "to" not in notice
    assert notice["correlation_id"] == "bad"
    assert notice["payload"] == {
        "error": "capability_violation",
        "message": "a lacks capability for 'mcp/request:x'",
        "attempted_kind": "mcp/request:x",
        "participant": "a",
    }
    assert len(to_a.heard) == 5
    here.time = 1.0
    here.room.send(a, write_message("a", "mcp/request:x", id="bad"))
    here.turns.take()
    assert len(to_b.heard) == 2
    quiet, one, _, _, to_other = room_of_two()
    quiet.room.send(one, write_message("a", "mcp/request:x"))
    quiet.turns.take()
    assert to_other.texts == []


def test_limits_messages_per_second() -> None:
    here, a, to_a, _, to_b = room_of_two(TopicConfig(messages_per_second=3))
    node, _ = here.join("node", FULL, inside=True)
    here.turns.take()
    to_a.forget()
    to_b.forget()
    assert [here.room.send(a, write_message("a", id=str(n))) is not None for n in range(5)] == [
        True, True, True, False, False,
    ]  # fmt: skip
    assert [message["payload"]["error"] for message in to_a.heard] == ["rate_limited"] * 2
    assert to_a.heard[0]["correlation_id"] == "3"
    here.time = 0.4
    assert here.room.send(a, write_message("a")) is not None
    assert here.room.send(a, write_message("a")) is None
    here.time = 100.0
    assert [here.room.send(a, write_message("a")) is not None for _ in range(4)] == [
        True,
        True,
        True,
        False,
    ]
    # The node answers as often as it is asked.
    assert all(here.room.send(node, write_message("node")) is not None for _ in range(20))
    here.turns.take()
    assert sum(message["from"] == "a" for message in to_b.heard) == 7


NOTHING = (
    b"x", write_message("b"), write_message("a", "mcp/request:x"),
    write_message("a").replace(b"v0.1", b"v9"),
)  # fmt: skip


@pytest.mark.parametrize("text", NOTHING)
def test_rejected_messages_count_against_limit(text: bytes) -> None:
    here, a, to_a, _, to_b = room_of_two(TopicConfig(messages_per_second=5))
    for _ in range(5):
        here.room.send(a, text)
    assert here.room.send(a, write_message("a")) is None
    for _ in range(100):
        here.room.send(a, text)
    told = [message["payload"]["error"] for message in to_a.heard]
    # It hears so often that this is too much; the rest is dropped, and counted all the same.
    assert (len(told), told.count("rate_limited")) == (15, 10)
    assert a.rejected == len(here.violations) == 106
    assert to_a.closed is None
    here.time = 1.0
    assert here.room.send(a, write_message("a")) is not None
    here.turns.take()
    assert len(to_b.heard) == 1


@pytest.mark.parametrize("rate", [None, 5])
@pytest.mark.parametrize("text", NOTHING)
def test_disconnects_after_too_many_rejections(text: bytes, rate: int | None) -> None:
    here, a, to_a, _, to_b = room_of_two(TopicConfig(messages_per_second=rate))
    for _ in range(10):
        here.time += 1.0
        for _ in range(100):
            here.room.send(a, text)
    assert to_a.closed is None
    for _ in range(2_000):
        here.room.send(a, text)
    here.turns.take()
    assert to_a.closed is not None
    assert to_a.closed[0] == SLOW_READER_CODE
    assert a.rejected < 1_300
    assert to_b.heard[-1]["payload"] == {"event": "leave", "participant": {"id": "a"}}
    # It may come back, and goes on where it was: the next one too many, and it is gone again.
    hasty, to_hasty = here.join("a", PROPOSER)
    here.room.send(hasty, text)
    assert to_hasty.closed is not None
    here.time += 1.0
    again, _ = here.join("a", PROPOSER)
    assert here.room.send(again, write_message("a")) is not None


def test_reconnecting_does_not_reset_rate_limit() -> None:
    here, a, _, _, to_b = room_of_two(TopicConfig(messages_per_second=3))
    taken = 0
    for _ in range(10):
        taken += sum(here.room.send(a, write_message("a")) is not None for _ in range(5))
        here.room.leave(a)
        a, _ = here.join("a", PROPOSER)
    assert taken == 3
    here.turns.take()
    assert sum(message["from"] == "a" for message in to_b.heard) == 3
    # Nothing is known of who was away for long enough, and of a guest when it has left.
    here.room.leave(a)
    here.time += RETENTION_SECONDS
    guest, _ = here.join("guest-1", PROPOSER, kind=GUEST)
    here.room.send(guest, write_message("guest-1"))
    here.room.leave(guest)
    assert len(here.room._rate_limits) == 0


def test_node_is_never_disconnected() -> None:
    here = MemoryRoom()
    node, to_node = here.join("node", ("chat",), inside=True)
    for _ in range(1_000):
        here.room.send(node, write_message("node", "mcp/request:x"))
    assert to_node.closed is None


def test_limits_length_of_rejection() -> None:
    here, a, to_a, _, _ = room_of_two()
    for text in (
        write_message("a", "k" * 4_096, id="i" * 256),
        write_message("x" * 500_000),
        json.dumps({"x" * 500_000: 1}).encode(),
        b"{" + b'"' * 900_000,
    ):
        here.room.send(a, text)
    assert max(map(len, to_a.texts)) < 10_000
