"""Tests of config changes that change the rule of a connected caller."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from interlock.core.pipeline.authentication import PendingIdentity
from interlock.topics.component import Topics
from interlock.topics.config import TopicsConfig
from tests.support.node import NodeThread
from tests.topics.peers import join_topic
from tests.topics.test_node import TOKENS, topic_url, topics

BOSSES = topics({"roles": ["boss"], "profile": "full_access"}, {"callers": ["human"]})
OPEN = topics({"roles": ["boss"], "profile": "full_access"}, {"callers": ["*"]})
AGENT = {"name": "agent", "token": "${env:T_agent}", "roles": ["boss"]}
HUMAN = {"name": "human", "token": "${env:T_human}"}


def apply_config(node: NodeThread, rooms: TopicsConfig, **agent: Any) -> None:
    tokens = [{**AGENT, **agent}, HUMAN]
    node.wait(node.node.apply(node.config(topics=rooms, tokens=tokens)))


@pytest.mark.parametrize(
    "agent", [{"roles": ["nothing"]}, {"may": ["register"]}, {"name": "mallory"}]
)
async def test_disconnects_caller_without_matching_rule(start_node: Any, agent: Any) -> None:
    node = start_node(tokens=TOKENS, topics=BOSSES)
    apply_config(node, BOSSES)

    async with (
        join_topic(topic_url(node), TOKENS["agent"]) as gone,
        join_topic(topic_url(node), TOKENS["human"]) as human,
    ):
        await asyncio.to_thread(apply_config, node, BOSSES, **agent)
        assert (await gone.wait_closed())[0] == 4003
        left = await human.until(lambda one: one["payload"].get("event") == "leave")
        assert left["payload"]["participant"]["id"] == "agent"


async def test_announces_changed_capabilities(start_node: Any) -> None:
    node = start_node(tokens=TOKENS, topics=OPEN)
    apply_config(node, OPEN)

    async with join_topic(topic_url(node), TOKENS["agent"]) as agent:
        await asyncio.to_thread(apply_config, node, OPEN, roles=[])
        welcome = await agent.until("system/welcome")
        assert welcome["payload"]["you"]["capabilities"] == ["mcp/proposal:*", "chat"]


@pytest.mark.parametrize("settles", [True, False])
async def test_checks_caller_again_after_token_lookup(
    start_node: Any, monkeypatch: pytest.MonkeyPatch, settles: bool
) -> None:
    node = start_node(tokens=TOKENS, topics=OPEN)
    apply_config(node, OPEN)

    async with join_topic(topic_url(node), TOKENS["agent"]) as agent:
        enter = node.node.pipeline.admission
        asked: list[str] = []

        async def settle() -> None:
            asked.append("settled")

        def apply_unsettled() -> None:
            async def run() -> None:
                await node.node.apply(node.config(topics=OPEN, tokens=[AGENT, HUMAN]))
                known = enter.authenticate

                def authenticate(credentials: Any) -> Any:
                    if not (asked and settles):
                        raise PendingIdentity(settle)
                    return known(credentials)

                monkeypatch.setattr(enter, "authenticate", authenticate)
                await node.node.component(Topics).apply(node.node.config, node.config(topics=OPEN))

            node.wait(run())

        await asyncio.to_thread(apply_unsettled)
        await asyncio.to_thread(node.until, lambda: asked == ["settled"], "it to be asked")
        if settles:
            assert node.node.component(Topics).gateway.connected_members() != []
        else:
            assert (await agent.wait_closed())[0] == 4003
