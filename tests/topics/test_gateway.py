"""Tests of all topics of a node: rooms and capability changes."""

from __future__ import annotations

import logging

import msgspec
import pytest

from interlock.core.call import Caller
from interlock.core.journal.audit import Audit
from interlock.core.ports import JournalEntry
from interlock.errors import InterlockError
from interlock.protocol.kinds import PROGRESSIVE_TRUST
from interlock.protocol.mcpx_terms import FORBIDDEN_CODE, SHUTTING_DOWN_CODE
from interlock.topics.config import ParticipantConfig, TopicConfig, TopicsConfig
from interlock.topics.gateway import Gateway
from interlock.topics.member import Member, MessageLoss, ParticipantProfile
from interlock.topics.room import Room
from tests.topics.memory_room import (
    FULL,
    NOBODY,
    NOW,
    ManualTurns,
    NumberedIds,
    RecordingSink,
    write_message,
)

PRIVATE = TopicConfig(access="private")
ROOMS = {"ops": PRIVATE, "team-*": PRIVATE, "open": TopicConfig(access="public")}


class MemoryJournal:
    """A journal in memory."""

    def __init__(self) -> None:
        self.entries: list[JournalEntry] = []

    def record(self, entry: JournalEntry) -> None:
        self.entries.append(entry)

    def record_durably(self, entry: JournalEntry, then: object) -> None:
        raise AssertionError("nothing here has to be on disk first")


class GatewayBench:
    """A gateway with recorded events."""

    def __init__(self, rooms: dict[str, TopicConfig] | None = None) -> None:
        self.turns = ManualTurns()
        self.opened: list[str] = []
        self.closed: list[str] = []
        self.inside: list[RecordingSink] = []
        self.journal = MemoryJournal()
        self.time = 0.0
        self.gateway = Gateway(
            TopicsConfig(rooms=ROOMS if rooms is None else rooms),
            call_soon=self.turns,
            new_id=NumberedIds(),
            now=lambda: NOW,
            on_open=self._opened,
            on_close=lambda room: self.closed.append(room.name),
            audit=Audit(self.journal, lambda: 0),
            clock=lambda: self.time,
        )
        self.gateway.start()

    def _opened(self, room: Room) -> None:
        self.opened.append(room.name)
        if room.settings.node is not None:
            ear = RecordingSink()
            self.inside.append(ear)
            node = ParticipantProfile(room.settings.node, FULL, "directed")
            caller = Caller(node.id, kind="node")
            self.gateway.add_member(
                room.name, node, ear, caller=caller, credentials=NOBODY, internal=True
            )

    def come(self, name: str | None, topic: str = "ops") -> tuple[Member, RecordingSink]:
        caller = None if name is None else Caller(name, kind="token")
        ear = RecordingSink()
        participant = self.gateway.admit(topic, caller)
        member = self.gateway.add_member(topic, participant, ear, caller=caller, credentials=NOBODY)
        self.turns.take()
        return member, ear


def get_error(house: GatewayBench, *arguments: object, **named: object) -> InterlockError:
    with pytest.raises(InterlockError) as caught:
        house.gateway.change_capabilities(*arguments, **{"topic": None, **named})  # type: ignore[arg-type]
    return caught.value


# --- rooms ---


@pytest.mark.spec("MX-2.2-4")
def test_messages_stay_in_room() -> None:
    house = GatewayBench()
    a, _ = house.come("a", "ops")
    _, to_b = house.come("b", "team-x")
    _, to_c = house.come("c", "team-y")
    here, to_here = house.come("b", "ops")
    # One who sits in two rooms speaks in one of them.
    _, also_to_a = house.come("a", "team-x")
    for ear in (to_b, to_c, to_here, also_to_a):
        ear.forget()
    house.gateway.send(a, write_message("a", id="all"))
    house.gateway.send(a, write_message("a", "chat", "b", "c", id="named"))
    house.turns.take()
    assert [message["id"] for message in to_here.heard] == ["all", "named"]
    house.gateway.leave(here)
    house.turns.take()
    assert to_b.texts == to_c.texts == also_to_a.texts == []


def test_room_opens_with_first_and_closes_with_last_member() -> None:
    house = GatewayBench()
    assert house.opened == []
    a, to_a = house.come("a", "team-x")
    b, _ = house.come("b", "team-x")
    house.gateway.leave(a)
    house.gateway.leave(a)
    assert (house.opened, house.closed) == (["team-x"], [])
    house.gateway.leave(b)
    assert house.closed == ["team-x"]
    assert house.gateway.rooms == {}
    # What comes late from somebody who was there is nothing.
    assert house.gateway.send(b, write_message("b")) is None
    house.gateway.report_loss(b, MessageLoss(1))
    house.gateway.leave(b)
    assert to_a.closed is None


@pytest.mark.spec("MX-2.2-3")
def test_reopened_room_has_no_history() -> None:
    house = GatewayBench()
    a, _ = house.come("a")
    house.gateway.send(a, write_message("a"))
    house.gateway.leave(a)
    _, to_b = house.come("b")
    assert to_b.kinds == ["system/welcome", "system/presence"]
    assert to_b.heard[0]["payload"]["participants"] == []


def test_node_joins_rooms_with_exact_name() -> None:
    seat = TopicConfig(access="private", node="hub")
    house = GatewayBench({"ops": seat, "team-*": seat, "plain": PRIVATE})
    assert house.opened == ["ops"]
    a, to_a = house.come("a", "team-x")
    assert house.opened == ["ops", "team-x"]
    assert to_a.heard[0]["payload"]["participants"] == [{"id": "hub", "capabilities": [*FULL]}]
    house.gateway.leave(a)
    assert house.closed == ["team-x"]
    assert house.inside[1].closed == (SHUTTING_DOWN_CODE, "All participants have disconnected.")
    b, _ = house.come("b", "ops")
    house.gateway.leave(b)
    assert house.closed == ["team-x"]
    assert [*house.gateway.rooms["ops"].members] == ["hub"]
    # Nobody comes in as the node, and the node is no connection.
    with pytest.raises(InterlockError):
        house.gateway.admit("ops", Caller("hub"))
    assert house.gateway.list_connections() == []


def test_stop_closes_every_connection() -> None:
    house = GatewayBench()
    ears = [house.come("a")[1], house.come("b", "team-x")[1]]
    house.gateway.close()
    assert [ear.closed for ear in ears] == [(SHUTTING_DOWN_CODE, "The node stops.")] * 2
    assert house.closed == ["ops", "team-x"]
    assert house.gateway.rooms == {}


# --- who comes in ---


def test_guest_ids_are_unique() -> None:
    house = GatewayBench()
    guests = [house.come(None, "open")[0] for _ in range(50)]
    assert len({guest.id for guest in guests}) == 50
    assert all(guest.id.startswith("guest-") for guest in guests)
    assert all(guest.caller.kind == "guest" and not guest.caller.can_call for guest in guests)


def test_same_name_of_other_kind_is_rejected() -> None:
    house = GatewayBench()
    member, _ = house.come("a")
    with pytest.raises(InterlockError) as caught:
        house.gateway.admit("ops", Caller("a", kind="jwt"))
    assert caught.value.failure.http == 403
    assert house.come("a")[0] is not member


def test_full_room_rejects_before_upgrade() -> None:
    house = GatewayBench({"ops": TopicConfig(access="private", max_participants=1)})
    house.come("a")
    with pytest.raises(InterlockError) as caught:
        house.gateway.admit("ops", Caller("b", kind="token"))
    assert caught.value.failure.http == 503


def test_rejects_members_of_removed_topic() -> None:
    house = GatewayBench()
    with pytest.raises(InterlockError):
        house.gateway.add_member(
            "gone",
            ParticipantProfile("a", FULL),
            RecordingSink(),
            caller=Caller("a"),
            credentials=NOBODY,
        )


def test_revocation_disconnects_caller() -> None:
    house = GatewayBench()
    _, to_a = house.come("a")
    _, also = house.come("a", "team-x")
    _, to_b = house.come("b")
    guest, to_guest = house.come(None, "open")
    house.gateway.disconnect({"a", guest.id})
    house.turns.take()
    assert to_a.closed is not None
    assert to_a.closed[0] == FORBIDDEN_CODE
    assert also.closed is not None
    assert to_b.closed is to_guest.closed is None
    assert to_b.heard[-1]["payload"] == {"event": "leave", "participant": {"id": "a"}}
    assert {one.participant_id for one in house.gateway.list_connections()} == {"b", guest.id}


@pytest.mark.spec("MX-10.1-1", "MX-2.1-5")
def test_describes_connections() -> None:
    house = GatewayBench()
    member, _ = house.come("a")
    house.gateway.send(member, write_message("a"))
    shown = msgspec.to_builtins(house.gateway.list_connections())
    assert shown == [
        {
            "connectionId": member.connection, "participantId": "a",
            "capabilities": ("mcp/proposal:*", "chat"), "connectedAt": NOW,
            "topic": "ops", "routing": "all",
        }
    ]  # fmt: skip
    other = ParticipantProfile("b", FULL, "directed")
    house.gateway.add_member("ops", other, RecordingSink(), caller=Caller("b"), credentials=NOBODY)
    assert [one.routing for one in house.gateway.list_connections()] == ["all", "directed"]
    house.turns.take()
    # And nothing else is kept: no message, no history.
    assert house.gateway.rooms["ops"]._messages == []
    assert {name for name, value in vars(house.gateway).items() if isinstance(value, dict)} == {
        "rooms", "_capability_changes",
    }  # fmt: skip


def test_logs_repeated_rejections(caplog: pytest.LogCaptureFixture) -> None:
    house = GatewayBench()
    member, _ = house.come("a")
    with caplog.at_level(logging.INFO):
        for _ in range(15):
            house.gateway.send(member, write_message("a", "mcp/request:\n"))
    lines = [record.getMessage() for record in caplog.records]
    assert [line.count("capability_violation") for line in lines] == [1, 1]
    assert not any("\n" in line for line in lines)
    assert house.gateway.rejected == member.rejected == 15


# --- capabilities ---


@pytest.mark.spec("MX-4.1-16", "MX-11.3-5")
def test_changes_capabilities_and_announces() -> None:
    house = GatewayBench()
    member, to_a = house.come("a")
    _, to_b = house.come("b")
    steps: list[tuple[list[str], list[str]]] = [
        (["mcp/request:resources/read"], []),
        (["mcp/request:tools/*"], []),
        (["mcp/*"], ["mcp/proposal:*", "mcp/request:resources/read", "mcp/request:tools/*"]),
    ]
    kinds = ["mcp/request:resources/read:x", "mcp/request:tools/call:x", "mcp/request:prompts/get"]

    def allowed() -> list[bool]:
        return [house.gateway.send(member, write_message("a", kind)) is not None for kind in kinds]

    assert {*member.capabilities} == {*PROGRESSIVE_TRUST[0]}
    assert allowed() == [False, False, False]
    for number, (add, remove) in enumerate(steps, 1):
        house.turns.take()
        to_a.forget()
        to_b.forget()
        change = house.gateway.change_capabilities("a", add, remove, by="admin", topic=None)
        house.turns.take()
        assert {*member.capabilities} == {*PROGRESSIVE_TRUST[number]}
        assert {*change.new_capabilities} == {*PROGRESSIVE_TRUST[number]}
        assert {*change.old_capabilities} == {*PROGRESSIVE_TRUST[number - 1]}
        assert to_a.heard[0]["payload"]["you"]["capabilities"] == [*member.capabilities]
        assert to_a.kinds == ["system/welcome"]
        assert to_b.heard[0]["payload"]["participant"]["capabilities"] == [*member.capabilities]
        assert allowed() == [place < number for place in range(3)]
    assert msgspec.to_builtins(change) == {
        "participantId": "a", "oldCapabilities": change.old_capabilities,
        "newCapabilities": change.new_capabilities, "modifiedBy": "admin", "modifiedAt": NOW,
    }  # fmt: skip
    rows = [entry for entry in house.journal.entries if entry[3] == "topics"]
    assert [(row[4], row[7]) for row in rows] == [("ops/a", "capabilities")] * 3
    assert all("by admin" in row[9] for row in rows)


def test_unchanged_capabilities_are_not_announced() -> None:
    house = GatewayBench()
    _, to_a = house.come("a")
    to_a.forget()
    change = house.gateway.change_capabilities("a", ["chat"], ["x"], by="admin", topic="ops")
    house.turns.take()
    assert change.new_capabilities == change.old_capabilities
    assert to_a.texts == []
    assert house.journal.entries == []


def test_rejects_forbidden_capability_changes() -> None:
    house = GatewayBench({**ROOMS, "hubs": TopicConfig(access="private", node="hub")})
    house.come("a")
    assert get_error(house, "x", [], [], by="admin").failure.http == 404
    assert get_error(house, "a", [], [], by="admin", topic="team-x").failure.http == 404
    assert get_error(house, "a", ["mcp/*"], [], by="a").failure.http == 403
    of_the_node = get_error(house, "hub", [], ["chat"], by="admin")
    assert of_the_node.failure.http == 403
    assert "the node itself" in of_the_node.message
    for pattern in ("system/*", "", "a b", "presence"):
        assert get_error(house, "a", [pattern], [], by="admin").failure.http == 400
    many = [f"x/{number}" for number in range(100)]
    assert get_error(house, "a", many, [], by="admin").failure.http == 400
    house.come("a", "team-x")
    conflict = get_error(house, "a", ["mcp/*"], [], by="admin")
    assert conflict.failure.http == 409
    assert "ops, team-x" in conflict.message
    house.gateway.change_capabilities("a", ["mcp/*"], [], by="admin", topic="team-x")
    here, there = (house.gateway.find_member(topic, "a") for topic in ("ops", "team-x"))
    assert here is not None
    assert there is not None
    assert "mcp/*" not in here.capabilities
    assert "mcp/*" in there.capabilities


def test_capability_change_survives_reconnect_but_not_config_change() -> None:
    house = GatewayBench()
    member, _ = house.come("a")
    house.gateway.change_capabilities("a", ["mcp/*"], [], by="admin", topic=None)
    house.gateway.leave(member)
    member, to_a = house.come("a")
    assert "mcp/*" in to_a.heard[0]["payload"]["you"]["capabilities"]
    house.gateway.leave(member)
    # It is away, and what it was given can be taken from it.
    house.gateway.change_capabilities("a", [], ["mcp/*"], by="admin", topic="ops")
    assert get_error(house, "a", ["mcp/*"], [], by="a").failure.http == 403
    assert "mcp/*" not in house.gateway.admit("ops", Caller("a", kind="token")).capabilities
    house.gateway.change_capabilities("a", ["mcp/*"], [], by="admin", topic="ops")
    # Somebody else of that name has not earned it.
    assert "mcp/*" not in house.gateway.admit("ops", Caller("a", kind="jwt")).capabilities
    assert "mcp/*" in house.gateway.admit("ops", Caller("a", kind="token")).capabilities
    house.gateway.configure(TopicsConfig(rooms={"ops": TopicConfig("private", profile="none")}))
    assert house.gateway.admit("ops", Caller("a", kind="token")).capabilities == ()


@pytest.mark.parametrize(
    "between",
    [
        Caller("a", kind="jwt"),
        Caller("a", kind="token", roles=("other",)),
        Caller("b", kind="token", roles=("twin",)),
    ],
    ids=lambda caller: f"{caller.name}-{caller.kind}-{caller.roles}",
)
def test_removed_capability_stays_removed_after_reconnect(between: Caller) -> None:
    seats = [
        ParticipantConfig(roles=["other"], id="a", profile="none"),
        ParticipantConfig(callers=["a"], id="a", profile="full_access"),
        ParticipantConfig(roles=["twin"], id="a", profile="full_access"),
    ]
    house = GatewayBench({"ops": TopicConfig(participants=seats)})
    member, _ = house.come("a")
    house.gateway.change_capabilities("a", [], ["mcp/*"], by="admin", topic=None)
    house.gateway.leave(member)
    participant = house.gateway.admit("ops", between)
    other = house.gateway.add_member(
        "ops", participant, RecordingSink(), caller=between, credentials=NOBODY
    )
    house.gateway.leave(other)
    member, _ = house.come("a")
    assert member.capabilities == ("chat",)


def test_limits_remembered_capability_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("interlock.topics.gateway.MAX_CAPABILITY_CHANGES", 2)
    house = GatewayBench()
    for place, name in enumerate(("a", "b", "a", "c")):
        member, _ = house.come(name)
        house.gateway.change_capabilities(
            name, [f"x/{name}", f"y/{place}"], [], by="admin", topic=None
        )
        house.gateway.leave(member)
    kept = [name for name in "abc" if f"x/{name}" in house.come(name)[0].capabilities]
    # The oldest was forgotten; whoever is changed again is the newest.
    assert kept == ["a", "c"]


def test_next_guest_does_not_inherit_capabilities() -> None:
    house = GatewayBench()
    guest, _ = house.come(None, "open")
    house.gateway.change_capabilities(guest.id, ["mcp/*"], [], by="admin", topic=None)
    assert "mcp/*" in guest.capabilities
    house.gateway.leave(guest)
    assert get_error(house, guest.id, [], [], by="admin").failure.http == 404


# --- another config ---


def topic_with_seats(*capabilities: str, **more: object) -> TopicConfig:
    return TopicConfig(
        participants=[ParticipantConfig(callers=["a"], capabilities=[*capabilities])],
        **more,  # type: ignore[arg-type]
    )


def test_config_change_is_announced_to_affected_participants() -> None:
    house = GatewayBench({"ops": topic_with_seats(access="private"), "x": PRIVATE, "y-*": PRIVATE})
    a, to_a = house.come("a")
    _, to_b = house.come("b")
    _, to_x = house.come("a", "x")
    _, to_y = house.come("a", "y-1")
    house.gateway.change_capabilities("a", ["mcp/*"], [], by="admin", topic="ops")
    house.turns.take()
    for ear in (to_a, to_b):
        ear.forget()
    house.gateway.configure(TopicsConfig(rooms={"ops": topic_with_seats("x/*"), "x": PRIVATE}))
    house.turns.take()
    # The seat is another one now, so what an admin made of the old one is forgotten.
    assert a.capabilities == ("mcp/proposal:*", "chat", "x/*")
    assert to_a.kinds == ["system/welcome", "system/presence"]
    assert to_b.closed is not None
    assert to_b.closed[0] == FORBIDDEN_CODE
    assert to_y.closed is not None
    assert to_y.closed[0] == FORBIDDEN_CODE
    assert to_x.closed is None
    assert sorted(house.gateway.rooms) == ["ops", "x"]


def test_unchanged_config_keeps_capability_changes() -> None:
    house = GatewayBench({"ops": topic_with_seats()})
    _, to_a = house.come("a")
    house.gateway.change_capabilities("a", ["mcp/*"], [], by="admin", topic="ops")
    house.turns.take()
    to_a.forget()
    house.gateway.configure(TopicsConfig(rooms={"ops": topic_with_seats()}))
    house.turns.take()
    assert to_a.texts == []
    assert "mcp/*" in house.gateway.admit("ops", Caller("a", kind="token")).capabilities


def test_changed_participant_id_ends_connection() -> None:
    house = GatewayBench({"ops": PRIVATE})
    _, to_a = house.come("a")
    seat = ParticipantConfig(callers=["a"], id="planner")
    house.gateway.configure(TopicsConfig(rooms={"ops": TopicConfig(participants=[seat])}))
    assert to_a.closed is not None
    assert "planner" in to_a.closed[1]
    assert house.come("a")[0].id == "planner"


def test_closing_public_access_disconnects_guests() -> None:
    house = GatewayBench()
    _, to_guest = house.come(None, "open")
    house.gateway.configure(TopicsConfig(rooms={"open": PRIVATE}))
    assert to_guest.closed is not None
    assert house.gateway.rooms == {}


def test_removing_node_closes_empty_room() -> None:
    house = GatewayBench({"hubs": TopicConfig(access="private", node="hub")})
    assert list(house.gateway.rooms) == ["hubs"]
    house.gateway.configure(TopicsConfig(rooms={"hubs": PRIVATE}))
    assert house.gateway.rooms == {}


def test_config_change_adds_node_to_rooms() -> None:
    house = GatewayBench({"ops": PRIVATE})
    a, to_a = house.come("a")
    with_node = TopicConfig(access="private", node="hub")
    house.gateway.configure(TopicsConfig(rooms={"ops": with_node}))
    house.turns.take()
    assert to_a.heard[-1]["payload"]["participant"]["id"] == "hub"
    house.gateway.configure(
        TopicsConfig(rooms={"ops": TopicConfig(access="private", node="other")})
    )
    house.turns.take()
    assert [message["payload"]["event"] for message in to_a.heard[-2:]] == ["leave", "join"]
    assert house.inside[0].closed is not None
    assert {*house.gateway.rooms["ops"].members} == {"a", "other"}
    house.gateway.configure(TopicsConfig(rooms={"ops": PRIVATE, "new": with_node}))
    assert {*house.gateway.rooms} == {"ops", "new"}
    assert [*house.gateway.rooms["ops"].members] == ["a"]
    assert house.gateway.find_member("ops", "a") is a
