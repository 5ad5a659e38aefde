"""Tests of topics on a complete node: revoked tokens, config changes and stops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from interlock.core.config import IdentityConfig
from interlock.topics.config import TopicsConfig
from interlock.trust.identity.token_store import AccessStore
from tests.support.node import NodeThread
from tests.topics.peers import HANG_TIMEOUT, join_topic

TOKENS = {"agent": "t-agent-1", "human": "t-human-1"}


def topics(*seats: dict[str, Any], **more: Any) -> TopicsConfig:
    room = {"participants": list(seats) or [{"callers": ["*"]}], **more}
    return msgspec.convert({"rooms": {"room": room}}, TopicsConfig)


def run_test(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(HANG_TIMEOUT):
            await test()

    asyncio.run(main())


def topic_url(node: NodeThread, topic: str = "room") -> str:
    return f"ws://127.0.0.1:{node.port}/ws?topic={topic}"


async def status_of(address: str, token: str | None = None) -> int:
    """Return the status of a rejected join."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    with pytest.raises(InvalidStatus) as refused:
        async with connect(address, additional_headers=headers, proxy=None):
            raise AssertionError("it was let in")
    return refused.value.response.status_code


async def test_revoked_token_ends_connection(start_node: Any, tmp_path: Path) -> None:
    store = AccessStore(tmp_path / "0" / "access.db")
    node = start_node(identity=IdentityConfig(revocation_seconds=0.1), topics=topics())
    made, shown = store.create("agent")
    _, kept = store.create("human")
    node.until(lambda: "human" in node.node.trust.identity, "the tokens to be seen")

    async with (
        join_topic(topic_url(node), kept) as human,
        join_topic(topic_url(node), shown) as agent,
    ):
        store.revoke([made.id])
        assert (await agent.wait_closed())[0] == 4003
        left = await human.until(lambda one: one["payload"].get("event") == "leave")
        assert left["payload"]["participant"]["id"] == "agent"
        assert await status_of(topic_url(node), shown) == 401
        await (await human.socket.ping())


async def test_config_change_applies_to_connections(start_node: Any) -> None:
    node = start_node(tokens=TOKENS, topics=topics({"callers": ["*"]}))

    def apply(new: TopicsConfig) -> None:
        node.wait(node.node.apply(node.config(topics=new)))

    async with (
        join_topic(topic_url(node), TOKENS["agent"]) as agent,
        join_topic(topic_url(node), TOKENS["human"]) as human,
    ):
        # One may say more, and hears of it where it is.
        more = {"callers": ["agent"], "profile": "full_access"}
        await asyncio.to_thread(apply, topics(more, {"callers": ["*"]}))
        welcome = await agent.until("system/welcome")
        assert welcome["payload"]["you"]["capabilities"] == ["mcp/*", "chat"]
        said = await agent.say("mcp/request:tools/list")
        assert (await human.until(said))["from"] == "agent"
        # Who has no seat any more has to go; nobody else notices.
        await asyncio.to_thread(apply, topics({"callers": ["human"]}))
        code, reason = await agent.wait_closed()
        assert code == 4003
        assert "not a participant" in reason
        await human.until(lambda one: one["payload"].get("event") == "leave")
        assert await status_of(topic_url(node), TOKENS["agent"]) == 403
        # No topics, no door.
        await asyncio.to_thread(apply, TopicsConfig())
        assert (await human.wait_closed())[0] == 4003
        assert await status_of(topic_url(node), TOKENS["human"]) == 404


async def test_node_stop_closes_connections(start_node: Any) -> None:
    node = start_node(tokens=TOKENS, topics=topics())

    async with join_topic(topic_url(node), TOKENS["agent"]) as agent:
        stopping = asyncio.create_task(asyncio.to_thread(node.stop))
        assert (await agent.wait_closed())[0] == 1001
        await stopping


@pytest.mark.spec("MX-11.3-1")
@pytest.mark.spec("MX-8.1-4", "MX-7.1-5")
async def test_node_reports_topics(start_node: Any) -> None:
    async def answer(node: NodeThread, path: str) -> httpx2.Response:
        headers = {"Authorization": f"Bearer {TOKENS['human']}"}
        async with httpx2.AsyncClient(trust_env=False) as client:
            return await client.get(f"http://127.0.0.1:{node.port}{path}", headers=headers)

    plain = start_node(tokens=TOKENS, topics=topics())
    settings = msgspec.structs.replace(topics(), admins=["human"])
    administered = start_node(tokens=TOKENS, topics=settings)
    async with (
        join_topic(topic_url(plain), TOKENS["agent"]) as agent,
        join_topic(topic_url(plain), TOKENS["human"]),
    ):
        assert (await answer(plain, "/status")).json()["topics"] == {
            "room": {"members": 2, "refused": 0}
        }
        await agent.say("system/error")
        await agent.until("system/error")
        told = (await answer(plain, "/status")).json()["topics"]
        assert told == {"room": {"members": 2, "refused": 1}}
        # Without administrators, its path is one that nobody knows.
        unknown = await answer(plain, "/admin/nothing")
        admin = await answer(plain, "/admin/participants")
        assert admin.status_code == unknown.status_code == 404
        assert admin.json() == unknown.json()
    async with join_topic(topic_url(administered), TOKENS["agent"]) as agent:
        told = (await answer(administered, "/admin/participants")).json()["participants"]
        assert [one["participantId"] for one in told] == ["agent"]
        await agent.socket.close()
    while (await answer(administered, "/admin/participants")).json()["participants"]:
        continue


async def test_node_without_tokens_has_one_local_caller(start_node: Any) -> None:
    node = start_node(topics=topics())

    async with join_topic(topic_url(node)) as first, join_topic(topic_url(node)) as second:
        assert first.id == second.id == "local"
        code, reason = await first.wait_closed()
        assert code == 4009
        assert "token" in reason
