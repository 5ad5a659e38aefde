"""Tests of callers that change while a participant is connected."""

from __future__ import annotations

import pytest

from interlock.core.call import Caller
from interlock.protocol.mcpx_terms import FORBIDDEN_CODE
from interlock.topics.config import ParticipantConfig, TopicConfig, TopicsConfig
from tests.topics.test_gateway import GatewayBench

SHARED = {"ops": TopicConfig(participants=[ParticipantConfig(callers=["*"], id="robot")])}


@pytest.mark.parametrize(
    ("now", "stays"),
    [
        (Caller("a", kind="token"), True),
        (Caller("a", kind="token", roles=("more",)), True),
        (Caller("b", kind="token"), False),
        (Caller("a", kind="jwt"), False),
        (Caller("a", kind="token", can_call=False), False),
    ],
    ids=["same caller", "other roles", "other caller", "other kind", "no call permission"],
)
def test_changed_caller_keeps_or_loses_membership(now: Caller, stays: bool) -> None:
    house = GatewayBench(SHARED)
    member, ear = house.come("a")
    assert member.id == "robot"
    house.gateway.update_caller(member, now)
    assert (house.gateway.find_member("ops", "robot") is member) == stays
    assert (ear.closed is None) == stays
    if ear.closed is not None:
        assert ear.closed[0] == FORBIDDEN_CODE


@pytest.mark.spec("MX-11.3-4")
@pytest.mark.parametrize("there", [True, False], ids=["there", "away"])
def test_capability_change_does_not_return_with_older_config(there: bool) -> None:
    first, second = TopicConfig("private"), TopicConfig("private", profile="none")
    house = GatewayBench({"ops": first})
    member, _ = house.come("a")
    given = member.capabilities
    house.gateway.change_capabilities("a", ["mcp/request:tools/*"], [], by="admin", topic=None)
    assert member.capabilities == (*given, "mcp/request:tools/*")
    if not there:
        house.gateway.leave(member)
    house.gateway.configure(TopicsConfig(rooms={"ops": second}))
    house.gateway.configure(TopicsConfig(rooms={"ops": first}))
    again = member if there else house.come("a")[0]
    assert again.capabilities == given


def test_capability_change_survives_other_config_changes() -> None:
    house = GatewayBench({"ops": TopicConfig("private")})
    member, _ = house.come("a")
    house.gateway.change_capabilities("a", ["mcp/request:tools/*"], [], by="admin", topic=None)
    house.gateway.leave(member)
    house.gateway.configure(
        TopicsConfig(
            rooms={"ops": TopicConfig("private", max_participants=7), "more": TopicConfig()}
        )
    )
    assert "mcp/request:tools/*" in house.come("a")[0].capabilities
