"""Who is let into a topic, over real connections."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.typing import Subprotocol

from interlock.call import Caller
from interlock.config.topics import SeatConfig, TopicConfig
from interlock.errors import FORBIDDEN, InterlockError
from interlock.faces.topics import socket
from interlock.pipeline.authenticate import Known, Unsettled
from interlock.pipeline.topics.gateway import Gateway
from interlock.protocol.websocket import text_frame
from tests.faces.topics.peers import Peer, joined
from tests.faces.topics.rooms import Rooms, run
from tests.faces.topics.wires import MASK
from tests.pipeline.rig import turns

PUBLIC = {"room": TopicConfig(access="public")}
RESTRICTED = {
    "room": TopicConfig(
        seats=[
            SeatConfig(callers=["agent"], id="robot-alpha", profile="proposal_only"),
            SeatConfig(callers=["hum*"], profile="full_access"),
            SeatConfig(roles=["ops"], capabilities=["x/*"]),
        ]
    ),
    "other": TopicConfig(seats=[SeatConfig(callers=["boss"])]),
}


class Refused:
    """How a request was answered that opened nothing."""

    def __init__(self, refusal: InvalidStatus) -> None:
        response = refusal.response
        self.status = response.status_code
        self.headers = response.headers
        body = bytes(response.body or b"")
        self.sentence = str(json.loads(body)["error"]["message"])


async def refused(
    url: str, token: str | None = None, *headers: tuple[str, str], **options: Any
) -> Refused:
    sent = list(headers)
    if token is not None:
        sent.append(("Authorization", f"Bearer {token}"))
    with pytest.raises(InvalidStatus) as caught:
        async with connect(url, additional_headers=sent, proxy=None, **options):
            raise AssertionError("it was let in")
    return Refused(caught.value)


async def until(condition: Callable[[], bool]) -> None:
    """What happens on its own, in this very loop."""
    while not condition():
        await turns(1)


# -- coming in


@pytest.mark.spec("MX-6.2a-1")
@pytest.mark.spec("MX-8.1-1")
def test_a_topic_is_joined_at_its_path_and_nowhere_else() -> None:
    async def test(rooms: Rooms) -> None:
        async with rooms.join("agent") as (agent,):
            assert agent.socket.response is not None
            assert agent.socket.response.status_code == 101
        for path in ("/other?topic=room", "/ws/room?topic=room", "/"):
            with pytest.raises(InvalidStatus) as caught:
                async with connect(rooms.address(path).replace("http", "ws"), proxy=None):
                    raise AssertionError("it was let in")
            assert caught.value.response.status_code == 404

    run(test)


@pytest.mark.spec("MX-6.2a-3")
def test_the_welcome_comes_first_and_says_what_holds() -> None:
    async def test(rooms: Rooms) -> None:
        async with rooms.join("human", "agent") as (human, agent):
            assert agent.id == "robot-alpha"
            assert agent.capabilities == ["mcp/proposal:*", "mcp/response:*", "chat"]
            assert agent.welcome["payload"]["participants"] == [
                {"id": "human", "capabilities": ["mcp/*", "chat"]}
            ]
            assert agent.welcome["to"] == ["robot-alpha"]
            # Then everybody hears who came, the newcomer too; it is not told of those before it.
            for peer in (agent, human):
                joined_by = await peer.until("system/presence")
                if peer is human:
                    joined_by = await peer.until("system/presence")
                assert joined_by["payload"] == {
                    "event": "join",
                    "participant": {"id": "robot-alpha", "capabilities": agent.capabilities},
                }

    run(test, rooms=RESTRICTED)


@pytest.mark.spec("MX-6.2a-2")
@pytest.mark.spec("MX-8.1-3")
def test_the_same_token_is_the_same_participant() -> None:
    async def test(rooms: Rooms) -> None:
        for _ in range(2):
            async with rooms.join("agent") as (agent,):
                assert agent.id == "robot-alpha"
            await until(lambda: rooms.present == [])

    run(test, rooms=RESTRICTED)


@pytest.mark.spec("MX-5.1-1")
def test_capabilities_by_token_and_by_role() -> None:
    async def test(rooms: Rooms) -> None:
        async with rooms.join("agent", "human", "operator") as (agent, human, operator):
            # Whose token it is, a pattern of names, or what it is.
            assert agent.capabilities == ["mcp/proposal:*", "mcp/response:*", "chat"]
            assert human.capabilities == ["mcp/*", "chat"]
            assert operator.capabilities == ["mcp/proposal:*", "chat", "x/*"]
            assert (await refused(rooms.url(), "t-worker")).status == 403

    run(test, rooms=RESTRICTED, callers=[Caller("operator", kind="jwt", roles=("ops",))])


@pytest.mark.spec("MX-6.2a-5")
def test_nobody_chooses_its_own_id() -> None:
    async def test(rooms: Rooms) -> None:
        hints = "&id=boss&participant=boss&from=boss&name=boss"
        headers = {"Authorization": "Bearer t-agent", "X-Participant-Id": "boss"}
        url = rooms.url(more=hints)
        async with connect(url, additional_headers=headers, proxy=None) as client:
            assert (await Peer(client).begin()).id == "agent"

    run(test)


@pytest.mark.spec("MX-8.1-4")
def test_one_record_for_each_who_is_there() -> None:
    async def test(rooms: Rooms) -> None:
        async with rooms.join("agent", "human"), rooms.join("agent", topic="more") as (again,):
            records = rooms.gateway.connections()
            assert [(one.participant_id, one.topic) for one in records] == [
                ("agent", "room"),
                ("human", "room"),
                ("agent", "more"),
            ]
            assert len({one.connection_id for one in records}) == 3
            await again.socket.close()
            await until(lambda: len(rooms.gateway.connections()) == 2)
        await until(lambda: rooms.gateway.connections() == [])
        assert rooms.gateway.rooms == {}

    both = TopicConfig(access="private")
    run(test, rooms={"room": both, "more": both})


def test_what_came_in_the_same_packet_as_the_request() -> None:
    async def test(rooms: Rooms) -> None:
        async with rooms.join("human") as (human,):
            reader, writer = await asyncio.open_connection("127.0.0.1", rooms.http.port)
            head = (
                "GET /ws?topic=room HTTP/1.1", f"Host: 127.0.0.1:{rooms.http.port}",
                "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13",
                "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Authorization: Bearer t-agent",
                "", "",
            )  # fmt: skip
            said = {"protocol": "mcpx/v0.1", "id": "early", "from": "agent", "kind": "chat"}
            frame = text_frame(json.dumps({**said, "payload": {"text": "hi"}}).encode(), MASK)
            writer.write("\r\n".join(head).encode() + frame)
            assert (await human.until("early"))["from"] == "agent"
            writer.close()
            left = await human.until(lambda one: one["payload"].get("event") == "leave")
            assert left["payload"]["participant"]["id"] == "agent"
            del reader

    run(test)


def test_what_it_wants_to_be_sent() -> None:
    async def test(rooms: Rooms) -> None:
        async with (
            rooms.join("agent", "human") as (agent, human),
            rooms.join("worker", more="&routing=directed") as (worker,),
        ):
            for_human = await agent.chat(to=["human"])
            for_worker = await agent.chat(to=["worker"])
            last = await agent.chat()

            async def chats(peer: Peer) -> list[str]:
                heard = await peer.all_until(last)
                return [one["id"] for one in heard if one["kind"] == "chat"]

            assert await chats(worker) == [for_worker]
            assert await chats(human) == [for_human, for_worker]

    run(test)


# -- being refused


REFUSALS = [
    ("", "t-human", 400),
    ("?topic=", "t-human", 400),
    ("?topic=a/b", "t-human", 400),
    ("?topic=" + "x" * 129, "t-human", 400),
    ("?topic=room&topic=room", "t-human", 400),
    ("?topic=room&routing=some", "t-human", 400),
    ("?topic=room&token=t-human", None, 400),
    ("?topic=room&access_token=t-human", "t-human", 400),
    ("?topic=room", None, 401),
    ("?topic=nowhere", None, 401),
    ("?topic=room", "t-nobody", 401),
    ("?topic=nowhere", "t-nobody", 401),
    ("?topic=nowhere", "t-human", 403),
    ("?topic=other", "t-human", 403),
]
OUTCOMES = {400: "invalid_request", 401: "unauthenticated", 403: "forbidden"}


@pytest.mark.spec("MX-6.2a-7")
def test_refusals() -> None:
    async def test(rooms: Rooms) -> None:
        for query, token, status in REFUSALS:
            answer = await refused(rooms.address(f"/ws{query}").replace("http", "ws"), token)
            assert answer.status == status, query
            assert ("WWW-Authenticate" in answer.headers) == (status == 401)
            assert answer.sentence.endswith(".")
            # Each is written down, once, and opened nothing.
            entry = rooms.journal.pop()
            assert rooms.journal == []
            assert (entry["verb"], entry["face"]) == ("topics/join", "topic")
            assert entry["outcome"] == OUTCOMES[status]
        assert rooms.present == []
        assert rooms.door.connections == 0

    run(test, rooms=RESTRICTED)


@pytest.mark.spec("MX-8.1-2")
def test_a_wrong_token_is_refused_and_a_good_one_is_not() -> None:
    async def test(rooms: Rooms) -> None:
        answer = await refused(rooms.url(), "wrong")
        assert answer.status == 401
        assert answer.headers["WWW-Authenticate"].startswith("Bearer")
        async with rooms.join("human") as (human,):
            assert human.id == "human"

    run(test)


def test_nobody_learns_which_topics_there_are() -> None:
    async def test(rooms: Rooms) -> None:
        denied = await refused(rooms.url("other"), "t-human")
        unknown = await refused(rooms.url("no-such"), "t-human")
        assert denied.sentence.replace("other", "T") == unknown.sentence.replace("no-such", "T")

    run(test, rooms=RESTRICTED)


@pytest.mark.spec("MX-6.2a-7")
def test_a_token_in_the_url_is_written_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    secret = "hJ3kq8-very-secret"

    async def test(rooms: Rooms) -> None:
        for query in (f"room&token={secret}", f"room&auth={secret}", f"room&x=Bearer%20{secret}"):
            answer = await refused(rooms.url(query), "t-human")
            assert answer.status == 400
            assert secret not in answer.sentence
        # Nor one that somebody took for the name of a topic.
        assert (await refused(rooms.url(secret), "t-human")).status == 403
        assert len(rooms.journal) == 4
        assert secret not in repr(rooms.journal)

    caplog.set_level(logging.DEBUG, "interlock")
    run(test)
    assert secret not in "".join(record.getMessage() for record in caplog.records)


def test_pages_of_strangers_are_kept_out() -> None:
    async def test(rooms: Rooms) -> None:
        for header, value in (
            ("Origin", "https://evil.example"),
            ("Origin", "null"),
            ("Host", "evil.example"),
        ):
            assert (await refused(rooms.url(), "t-human", (header, value))).status == 403
            assert rooms.journal.pop()["outcome"] == "foreign_origin"

    run(test)


def test_a_page_of_this_machine() -> None:
    async def test(rooms: Rooms) -> None:
        origin = f"http://localhost:{rooms.http.port}"
        async with joined(rooms.url(), "t-human", origin=origin) as human:
            assert human.id == "human"

    run(test)


def test_who_may_not_call_may_not_come() -> None:
    async def test(rooms: Rooms) -> None:
        answer = await refused(rooms.url(), "t-viewer")
        assert answer.status == 403
        assert [entry["outcome"] for entry in rooms.journal] == ["forbidden"]

    run(test, callers=[Caller("viewer", calls=False, approves=True, kind="token")])


def test_a_full_topic() -> None:
    async def test(rooms: Rooms) -> None:
        async with rooms.join("agent", "human"):
            answer = await refused(rooms.url(), "t-worker")
            assert answer.status == 503
            assert answer.headers["Retry-After"] == "1"
            # Who is in already may come by another connection.
            async with rooms.join("human") as (human,):
                assert human.id == "human"

    run(test, rooms={"room": TopicConfig(access="private", most=2)})


def test_a_node_that_stops_takes_nobody() -> None:
    async def test(rooms: Rooms) -> None:
        rooms.rig.pipeline.enter.closed = True
        for token in ("t-human", None):
            assert (await refused(rooms.url(), token)).status == 503

    run(test, rooms=PUBLIC)


class Asks:
    """Tokens that somebody else has to be asked about."""

    demands = True

    def __init__(self) -> None:
        self.asked = 0

    def find(self, bearer: str) -> Known | None:
        if bearer != "opaque":
            return None
        if not self.asked:
            raise Unsettled(self._settle)
        return Known(Caller("stranger", kind="introspection"))

    async def _settle(self) -> None:
        self.asked += 1


def test_a_token_that_somebody_else_knows() -> None:
    async def test(rooms: Rooms) -> None:
        answer = await refused(rooms.url(), "opaque")
        assert answer.status == 503
        assert answer.headers["Retry-After"] == "1"
        assert rooms.journal == []
        async with joined(rooms.url(), "opaque") as stranger:
            assert stranger.id == "stranger"

    source = Asks()

    async def fresh(rooms: Rooms) -> None:
        source.asked = 0
        await test(rooms)

    run(fresh, sources=[source])


# -- browsers


@pytest.mark.spec("MX-6.2a-7")
def test_a_browser_shows_its_token_as_a_subprotocol() -> None:
    async def test(rooms: Rooms) -> None:
        for offered, chosen in (
            (["mcpx", "mcpx.bearer.t-human"], "mcpx"),
            (["mcpx.bearer.t-human"], "mcpx.bearer.t-human"),
        ):
            protocols = [Subprotocol(one) for one in offered]
            async with joined(rooms.url(), subprotocols=protocols) as human:
                assert human.id == "human"
                assert human.socket.subprotocol == chosen
        protocols = [Subprotocol("mcpx"), Subprotocol("mcpx.bearer.wrong")]
        assert (await refused(rooms.url(), subprotocols=protocols)).status == 401
        protocols = [Subprotocol("mcpx"), Subprotocol("mcpx.bearer.t-human")]
        assert (await refused(rooms.url(), "t-human", subprotocols=protocols)).status == 400

    run(test)


# -- guests


@pytest.mark.spec("MX-6.2a-7")
@pytest.mark.spec("MX-5.1-1")
def test_a_public_topic_takes_guests() -> None:
    async def test(rooms: Rooms) -> None:
        async with joined(rooms.url()) as one, joined(rooms.url()) as other:
            assert one.id.startswith("guest-")
            assert one.id != other.id
            assert one.capabilities == ["mcp/proposal:*", "chat"]
            assert [(entry["caller"], entry["outcome"]) for entry in rooms.journal] == [
                ("", "ok"),
                ("", "ok"),
            ]
            assert one.id in rooms.journal[0]["detail"]
        # But nobody who shows something that is not good.
        assert (await refused(rooms.url(), "wrong")).status == 401
        basic = ("Authorization", "Basic dTpw")
        assert (await refused(rooms.url(), None, basic)).status == 401
        # And who is known comes as who it is.
        async with rooms.join("human") as (human,):
            assert human.id == "human"

    run(test, rooms=PUBLIC)


# -- twice


@pytest.mark.spec("MX-6.2a-8")
def test_the_newest_connection_of_a_participant_counts() -> None:
    async def test(rooms: Rooms) -> None:
        async with rooms.join("human", "agent") as (human, older), rooms.join("agent") as (newer,):
            code, reason = await older.closed()
            assert code == 4009
            assert "another connection" in reason
            assert rooms.present == ["agent", "human"]
            said = await newer.chat()
            events = [one["payload"]["event"] for one in (await human.all_until(said))]
            # Its own, and the first connection of the other.
            assert events == ["join", "join"]
        await until(lambda: rooms.present == [])

    run(test)


def test_nobody_takes_the_place_of_another() -> None:
    async def test(rooms: Rooms) -> None:
        async with rooms.join("human") as (human,):
            answer = await refused(rooms.url(), "t-other")
            assert answer.status == 403
            said = await human.chat()
            assert said
            assert rooms.present == ["human"]

    seats = [SeatConfig(callers=["other"], id="human"), SeatConfig(callers=["human"])]
    run(
        test,
        rooms={"room": TopicConfig(seats=seats)},
        callers=[Caller("other", kind="token")],
    )


# -- leaving


def test_a_token_that_runs_out() -> None:
    now = 1000.0

    async def test(rooms: Rooms) -> None:
        async with rooms.join("human", "brief") as (human, brief):
            code, reason = await brief.closed()
            assert code == 4003
            assert "fresh" in reason
            left = await human.until(lambda one: one["payload"].get("event") == "leave")
            assert left["payload"]["participant"]["id"] == "brief"
            assert rooms.present == ["human"]

    run(
        test,
        callers=[Caller("brief", kind="jwt", expires=now + 0.05)],
        wall_clock=lambda: now,
    )


def test_a_token_that_does_not_count_any_more() -> None:
    async def test(rooms: Rooms) -> None:
        async with rooms.join("agent", "human") as (agent, human):
            rooms.gateway.end_of({"agent"})
            assert (await agent.closed())[0] == 4003
            assert rooms.present == ["human"]
            await human.chat()

    run(test)


def test_the_node_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "CLOSING", 0.2)

    async def test(rooms: Rooms) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", rooms.http.port)
        writer.write(
            b"GET /ws?topic=room HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nUpgrade: websocket\r\n"
            b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nAuthorization: Bearer t-agent\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n" % rooms.http.port
        )
        await reader.readuntil(b"\r\n\r\n")
        async with rooms.join("human") as (human,):
            # One agrees to be closed, the other never does.
            rooms.gateway.close()
            await rooms.door.close()
            assert (await human.closed())[0] == 1001
            assert rooms.door.connections == 0
        writer.close()

    run(test)


def test_the_sentence_of_a_refusal_after_the_upgrade(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last look at a room is in `enter`: what it refuses can only be told by closing."""

    def enter(*_: Any, **__: Any) -> None:
        raise InterlockError(FORBIDDEN, "There is no topic room any more.")

    async def test(rooms: Rooms) -> None:
        headers = {"Authorization": "Bearer t-human"}
        async with connect(rooms.url(), additional_headers=headers, proxy=None) as client:
            assert await Peer(client).closed() == (4003, "There is no topic room any more.")

    monkeypatch.setattr(Gateway, "enter", enter)
    run(test)
