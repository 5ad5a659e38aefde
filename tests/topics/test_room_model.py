"""Property tests of a room against a simple model."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.protocol.kinds import KindGrants
from interlock.topics.member import Member
from tests.topics.memory_room import MemoryRoom, RecordingSink, read_frames, write_message

IDS = ["a", "b", "c", "d"]
CAPABILITIES = [("mcp/*", "chat"), ("chat",), ("*",), ("mcp/proposal:*",), ()]
KINDS = ["chat", "mcp/request:tools/call:x", "mcp/proposal:ping", "system/welcome", "presence"]

ids = st.sampled_from(IDS)
steps = st.one_of(
    st.tuples(
        st.just("join"), ids, st.sampled_from(CAPABILITIES), st.sampled_from(["all", "directed"])
    ),
    st.tuples(st.just("leave"), ids),
    st.tuples(
        st.just("say"),
        ids,
        # Mostly in its own name: the rest of the room is not reached by a lie.
        st.sampled_from([None, None, None, *IDS]),
        st.sampled_from(KINDS),
        st.lists(ids, max_size=3),
        st.booleans(),
    ),
    st.tuples(st.just("noise"), ids, st.binary(max_size=20)),
    st.tuples(st.just("regrant"), ids, st.sampled_from(CAPABILITIES)),
    st.tuples(st.just("turn")),
)

# There is nothing to hear in a room that is empty.
begins = st.tuples(
    *[
        st.tuples(
            st.just("join"),
            st.just(id),
            st.sampled_from(CAPABILITIES),
            st.sampled_from(["all", "directed"]),
        )
        for id in IDS[:3]
    ],
    st.just(("turn",)),
)


class RoomModel:
    """A simple model of a room that sends one message at a time."""

    def __init__(self) -> None:
        self.present: dict[str, tuple[int, tuple[str, ...], str]] = {}
        self.heard: dict[int, list[str]] = {}

    def say(self, who: str, sender: str, kind: str, to: list[str], id: str) -> bool:
        _, capabilities, _ = self.present[who]
        reserved = kind.startswith("system/") or kind == "presence"
        if sender != who or reserved or not KindGrants(capabilities).grants(kind):
            return False
        for name, (seat, _, routing) in self.present.items():
            if name != who and (routing == "all" or not to or name in to):
                self.heard[seat].append(id)
        return True


class ModelRun:
    """A room and its model, which get the same steps."""

    def __init__(self) -> None:
        self.here = MemoryRoom()
        self.model = RoomModel()
        self.members: dict[str, Member] = {}
        self.ears: list[RecordingSink] = []
        self.texts: dict[str, bytes] = {}

    def take(self, step: tuple[Any, ...], number: int) -> None:
        what, who = step[0], step[1] if len(step) > 1 else ""
        room = self.here.room
        if what == "turn":
            self.here.turns.take()
        elif what == "join":
            self.members[who], ear = self.here.join(who, step[2], step[3])
            self.model.present[who] = len(self.ears), step[2], step[3]
            self.model.heard[len(self.ears)] = []
            self.ears.append(ear)
        elif who not in self.members:
            return
        elif what == "leave":
            room.leave(self.members.pop(who))
            del self.model.present[who]
        elif what == "regrant":
            room.change_capabilities(self.members[who], step[2])
            seat, _, routing = self.model.present[who]
            self.model.present[who] = seat, step[2], routing
        elif what == "noise":
            assert room.send(self.members[who], step[2]) is None
        else:
            _, _, sender, kind, to, spaced = step
            sender = sender or who
            id = f"said-{number}"
            text = write_message(sender, kind, *to, id=id)
            if spaced:
                text = json.dumps(json.loads(text), indent=1).encode()
            self.texts[id] = text
            passed = room.send(self.members[who], text) is not None
            assert passed == self.model.say(who, sender, kind, to, id)


@pytest.mark.spec(
    "MX-6.3a-3", "MX-8.1-13", "MX-8.1-14", "MX-8.1-15", "MX-3.4-5", "MX-6.4a-1",
    "MX-2.2-6",
)  # fmt: skip
@settings(max_examples=300)
@given(begins, st.lists(steps, max_size=40))
def test_room_matches_model(
    came: tuple[tuple[Any, ...], ...], taken: list[tuple[Any, ...]]
) -> None:
    played = ModelRun()
    for number, step in enumerate([*came, *taken]):
        played.take(step, number)
    played.here.turns.take()
    for seat, ear in enumerate(played.ears):
        from_others = [message for message in ear.heard if message["from"] != "system:gateway"]
        # The one who leaves within a turn is not sent the end of it.
        expected = played.model.heard[seat]
        heard = [message["id"] for message in from_others]
        present = any(seat == one for one, _, _ in played.model.present.values())
        assert heard == (expected if present else expected[: len(heard)])
        # Welcome first, and what is passed on is what was said.
        assert ear.kinds[0] == "system/welcome"
        assert all(text == played.texts[json.loads(text)["id"]] for text in ear.texts
                   if json.loads(text)["from"] != "system:gateway")  # fmt: skip
        for batch in ear.batches:
            assert read_frames(batch) == [*batch.texts]
            assert [head.id for head in batch.heads] == [json.loads(t)["id"] for t in batch.texts]
    _check_presence(played)


def _check_presence(played: ModelRun) -> None:
    """Assert that members know the others and their capabilities from welcome and presence."""
    truth = {id: [*member.capabilities] for id, member in played.members.items()}
    for id, member in played.members.items():
        ear = member.sink
        assert isinstance(ear, RecordingSink)
        known: dict[str, list[str]] = {}
        for message in ear.heard:
            payload = message["payload"]
            if message["kind"] == "system/welcome" and message["from"] == "system:gateway":
                known = {one["id"]: one["capabilities"] for one in payload["participants"]}
                known[id] = payload["you"]["capabilities"]
            elif message["kind"] == "system/presence":
                participant = payload["participant"]
                if payload["event"] == "join":
                    known[participant["id"]] = participant["capabilities"]
                else:
                    known.pop(participant["id"], None)
        assert known == truth
