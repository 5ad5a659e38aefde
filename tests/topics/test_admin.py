"""Tests of capability changes over HTTP."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import httpx2
import pytest

from interlock.core.call import Caller
from interlock.topics.config import ParticipantConfig, TopicConfig
from tests.topics.topic_server import TopicServer, run

ADD = {"add": ["mcp/request:tools/*"], "remove": []}
PATH = "/admin/participants/agent/capabilities"
SCOPED = [
    Caller("boss-jr", kind="jwt", scopes=("read", "write")),
    Caller("boss-sr", kind="jwt", scopes=("read", "admin")),
]
BOTH = {"room": TopicConfig(access="private"), "more": TopicConfig(access="private")}
ADMINS = ["boss*"]


async def send_admin_request(
    rooms: TopicServer,
    path: str = PATH,
    body: Any = ADD,
    token: str | None = "t-boss",
    method: str = "POST",
    **headers: str,
) -> httpx2.Response:
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    async with httpx2.AsyncClient(trust_env=False) as client:
        sent: dict[str, Any] = {}
        if method == "POST":
            headers.setdefault("Content-Type", "application/json")
            sent["content"] = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await client.request(method, rooms.address(path), headers=headers, **sent)


@pytest.mark.spec("MX-11.3-1")
def test_hidden_without_administrators() -> None:
    async def test(rooms: TopicServer) -> None:
        async with rooms.join("agent"):
            unknown = (
                await send_admin_request(rooms, "/nowhere", token=None, method="GET")
            ).content
            for token in ("t-boss", "t-agent", None):
                for method in ("POST", "GET"):
                    answer = await send_admin_request(rooms, token=token, method=method)
                    # As every path that is unknown.
                    assert (answer.status_code, answer.content) == (404, unknown)
            for path in ("/admin/participants", "/admin/topics"):
                assert (await send_admin_request(rooms, path, method="GET")).status_code == 404

    run(test)


@pytest.mark.spec("MX-11.3-1")
@pytest.mark.spec("MX-11.3-2")
@pytest.mark.spec("MX-11.3-3")
@pytest.mark.spec("MX-7.1-4")
def test_adds_and_removes_capabilities() -> None:
    async def test(rooms: TopicServer) -> None:
        async with rooms.join("agent", "human") as (agent, human):
            answer = await send_admin_request(rooms)
            assert answer.status_code == 200
            change = answer.json()
            assert set(change) == {
                "participantId", "oldCapabilities", "newCapabilities", "modifiedBy", "modifiedAt",
            }  # fmt: skip
            assert change["participantId"] == "agent"
            assert change["oldCapabilities"] == ["mcp/proposal:*", "chat"]
            assert change["newCapabilities"] == ["mcp/proposal:*", "chat", "mcp/request:tools/*"]
            assert change["modifiedBy"] == "boss"
            assert datetime.fromisoformat(change["modifiedAt"]).tzinfo is not None
            assert answer.headers["cache-control"] == "no-store"
            # It holds on this very connection, and everybody knows.
            welcome = await agent.until("system/welcome")
            assert welcome["payload"]["you"]["capabilities"] == change["newCapabilities"]
            said = await agent.say("mcp/request:tools/call")
            heard = await human.receive_until(said)
            assert heard[-1]["payload"]["participant"] == {
                "id": "agent",
                "capabilities": change["newCapabilities"],
            }
            # Who and when is written down.
            entry = rooms.journal[-1]
            assert (entry["verb"], entry["name"]) == ("topics", "room/agent")
            assert "by boss" in entry["detail"]
            assert entry["time_ns"] > 0
            taken = await send_admin_request(
                rooms, body={"remove": ["mcp/request:tools/*", "mcp/proposal:*"]}
            )
            assert taken.json()["newCapabilities"] == ["chat"]
            refused = await agent.say("mcp/request:tools/call")
            assert (await agent.read_rejection(refused))["error"] == "capability_violation"

    run(test, admins=ADMINS)


@pytest.mark.spec("MX-11.3-4")
def test_change_survives_reconnect() -> None:
    async def test(rooms: TopicServer) -> None:
        async with rooms.join("agent"):
            assert (await send_admin_request(rooms)).status_code == 200
        async with rooms.join("human", "agent") as (_, agent):
            assert agent.capabilities == ["mcp/proposal:*", "chat", "mcp/request:tools/*"]

    run(test, admins=ADMINS)


@pytest.mark.spec("MX-11.3-4")
def test_compares_capabilities_as_sets() -> None:
    async def test(rooms: TopicServer) -> None:
        async with rooms.join("agent"):
            body = {"add": ["chat", "x/1", "chat", "x/1", "x/2"], "remove": ["never-had", "x/2"]}
            change = (await send_admin_request(rooms, body=body)).json()
            assert change["newCapabilities"] == ["mcp/proposal:*", "chat", "x/1"]
            # Nothing new is no error.
            again = (await send_admin_request(rooms, body={"add": ["x/1"]})).json()
            assert again["newCapabilities"] == again["oldCapabilities"]

    run(test, admins=ADMINS)


@pytest.mark.spec("MX-11.3-4")
def test_rejects_invalid_requests() -> None:
    async def test(rooms: TopicServer) -> None:
        async with rooms.join("agent", "boss"), rooms.join("agent", topic="more"):
            one = f"{PATH}?topic=room"
            cases: list[tuple[int, dict[str, Any]]] = [
                (401, {"token": None}),
                (401, {"token": "wrong"}),
                (403, {"token": "t-agent"}),
                (403, {"token": "t-human"}),
                (403, {"token": "t-boss-jr"}),
                (404, {"path": "/admin/participants/nobody/capabilities"}),
                (404, {"path": f"{PATH}?topic=elsewhere"}),
                (404, {"path": "/admin/participants/agent"}),
                (404, {"path": "/admin/participants/agent/rights"}),
                (404, {"path": "/admin/participants//capabilities"}),
                (405, {"path": one, "method": "GET"}),
                (405, {"path": "/admin/participants"}),
                (409, {"path": PATH}),
                (400, {"path": one, "body": b"not JSON"}),
                (400, {"path": one, "body": []}),
                (400, {"path": one, "body": {}}),
                (400, {"path": one, "body": {"add": [], "remove": []}}),
                (400, {"path": one, "body": {"add": "chat"}}),
                (400, {"path": one, "body": {"add": [1]}}),
                (400, {"path": one, "body": {"grant": ["chat"]}}),
                (400, {"path": one, "body": {"add": ["system/*"]}}),
                (400, {"path": one, "body": {"add": ["system/welcome"]}}),
                (400, {"path": one, "body": {"add": [""]}}),
                (400, {"path": one, "body": {"add": ["x"] * 300}}),
                (400, {"path": one, "Content-Type": "text/plain"}),
                (400, {"path": f"{one}&topic=more"}),
                (400, {"path": f"{one}&token=t-boss"}),
                # Told before anything else: it was in a URL, whoever sent it.
                (400, {"path": f"{one}&token=t-boss", "token": None}),
                (413, {"path": one, "body": b" " * 70_000}),
                (403, {"path": one, "Origin": "https://evil.example"}),
                (403, {"path": one, "Host": "evil.example"}),
            ]
            before = rooms.gateway.list_connections()
            for status, asked in cases:
                answer = await send_admin_request(rooms, **asked)
                assert answer.status_code == status, asked
                told = answer.json()
                assert set(told) == {"error", "message"}
                assert told["message"].endswith(".")
                assert ("www-authenticate" in answer.headers) == (status == 401), asked
            assert rooms.gateway.list_connections() == before
            # Everybody who may not was written down.
            outcomes = [row["outcome"] for row in rooms.journal if row["verb"] == "topics/admin"]
            assert outcomes.count("unauthenticated") == 2
            assert outcomes.count("forbidden") == 3
            assert outcomes.count("foreign_origin") == 2
            assert "t-boss" not in repr([row["detail"] for row in rooms.journal])

    run(test, admins=ADMINS, callers=SCOPED, rooms=BOTH)


def test_several_topics_need_topic_parameter() -> None:
    async def test(rooms: TopicServer) -> None:
        async with rooms.join("agent"), rooms.join("agent", topic="more"):
            answer = await send_admin_request(rooms, f"{PATH}?topic=more", token="t-boss-sr")
            assert answer.status_code == 200
            granted = {one.topic: one.capabilities for one in rooms.gateway.list_connections()}
            assert "mcp/request:tools/*" in granted["more"]
            assert "mcp/request:tools/*" not in granted["room"]

    run(test, admins=ADMINS, callers=SCOPED, rooms=BOTH)


def test_rejects_change_of_own_capabilities() -> None:
    async def test(rooms: TopicServer) -> None:
        async with rooms.join("boss", "agent"):
            answer = await send_admin_request(rooms, "/admin/participants/chief/capabilities")
            assert answer.status_code == 403
            other = await send_admin_request(
                rooms, "/admin/participants/chief/capabilities", token="t-boss-sr"
            )
            assert other.status_code == 200

    seats = [ParticipantConfig(callers=["boss"], id="chief"), ParticipantConfig(callers=["*"])]
    run(test, admins=ADMINS, callers=SCOPED, rooms={"room": TopicConfig(participants=seats)})


def test_lists_participants() -> None:
    async def test(rooms: TopicServer) -> None:
        async with rooms.join("agent"), rooms.join("agent", "human", topic="more"):
            told = (await send_admin_request(rooms, "/admin/participants", method="GET")).json()[
                "participants"
            ]
            assert [(one["participantId"], one["topic"]) for one in told] == [
                ("agent", "room"),
                ("agent", "more"),
                ("human", "more"),
            ]
            path = "/admin/participants?topic=room"
            (one,) = (await send_admin_request(rooms, path, method="GET")).json()["participants"]
            assert set(one) == {
                "connectionId", "participantId", "capabilities", "connectedAt", "topic", "routing",
            }  # fmt: skip
            looks = [one for one in rooms.journal if one["verb"] == "topics/admin"]
            assert [(one["caller"], one["outcome"]) for one in looks] == [("boss", "ok")] * 2
            for token, status in (("t-agent", 403), (None, 401)):
                answer = await send_admin_request(
                    rooms, "/admin/participants", method="GET", token=token
                )
                assert answer.status_code == status

    run(test, admins=ADMINS, rooms=BOTH)


def test_lists_topics() -> None:
    async def test(rooms: TopicServer) -> None:
        assert await list_topics(rooms) == [
            ("ops", "ops", False, []),
            ("team-*", "team-*", False, []),
        ]
        async with (
            rooms.join("agent", "human", topic="team-a", more="&routing=directed") as (agent, _),
            rooms.join("agent", topic="ops"),
        ):
            refused = await agent.say("mcp/request:tools/call")
            await agent.read_rejection(refused)
            assert await list_topics(rooms) == [
                ("ops", "ops", True, ["agent"]),
                ("team-*", "team-*", False, []),
                ("team-a", "team-*", True, ["agent", "human"]),
            ]
            (one,) = await topics(rooms, "?topic=team-a")
            members = one.pop("members")
            assert one == {
                "name": "team-a", "entry": "team-*", "access": "private", "profile": "initial",
                "anonymous": "initial", "seats": 0, "node": None, "record": "off", "most": 7,
                "open": True, "refused": 1,
            }  # fmt: skip
            assert datetime.fromisoformat(members[0].pop("connectedAt")).tzinfo is not None
            assert members[0] == {
                "participantId": "agent", "capabilities": ["mcp/proposal:*", "chat"],
                "routing": "directed", "refused": 1, "inside": False,
            }  # fmt: skip
        # One that nobody is in, and one that cannot be.
        ((name, entry, is_open, _),) = await list_topics(rooms, "?topic=team-b")
        assert (name, entry, is_open) == ("team-b", "team-*", False)
        assert await list_topics(rooms, "?topic=nowhere") == []
        assert await list_topics(rooms, "?topic=team-*") == []

    seats = [ParticipantConfig(callers=["agent"], profile="full_access")]
    both = {
        "ops": TopicConfig(participants=seats),
        "team-*": TopicConfig(access="private", max_participants=7),
    }
    run(test, admins=ADMINS, rooms=both)


async def topics(rooms: TopicServer, query: str = "") -> list[dict[str, Any]]:
    answer = await send_admin_request(rooms, f"/admin/topics{query}", method="GET")
    assert answer.status_code == 200
    told: list[dict[str, Any]] = answer.json()["topics"]
    return told


async def list_topics(
    rooms: TopicServer, query: str = ""
) -> list[tuple[str, str, bool, list[str]]]:
    return [
        (
            one["name"],
            one["entry"],
            one["open"],
            [member["participantId"] for member in one["members"]],
        )
        for one in await topics(rooms, query)
    ]


def test_only_administrators_list_topics() -> None:
    async def test(rooms: TopicServer) -> None:
        path = "/admin/topics"
        for token, status in (("t-agent", 403), ("t-boss-jr", 403), ("wrong", 401), (None, 401)):
            answer = await send_admin_request(rooms, path, method="GET", token=token)
            assert answer.status_code == status
            assert "room" not in answer.text
        assert (await send_admin_request(rooms, path)).status_code == 405
        assert (
            await send_admin_request(rooms, f"{path}?topic=a&topic=b", method="GET")
        ).status_code == 400
        # It is there, and nowhere below participants.
        assert (
            await send_admin_request(rooms, f"/admin/participants{path}", method="GET")
        ).status_code == 404
        assert (await send_admin_request(rooms, path, method="GET")).status_code == 200
        outcomes = [(one["caller"], one["outcome"]) for one in rooms.journal]
        assert outcomes.count(("agent", "forbidden")) == 1
        assert outcomes[-1] == ("boss", "ok")

    run(test, admins=ADMINS, callers=SCOPED, rooms=BOTH)
