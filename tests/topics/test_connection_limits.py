"""Tests of the limits of connections per caller and in total."""

from __future__ import annotations

import pytest

from interlock.core.call import Caller
from interlock.errors import InterlockError
from interlock.topics.config import TopicConfig, TopicsConfig
from interlock.topics.connection_limits import MAX_CONNECTIONS_PER_CALLER
from tests.topics.test_gateway import GatewayBench

ROOMS = {"team-*": TopicConfig("private"), "open-*": TopicConfig("public")}


def get_message(house: GatewayBench, topic: str, name: str | None) -> str:
    caller = None if name is None else Caller(name, kind="token")
    with pytest.raises(InterlockError) as refused:
        house.gateway.admit(topic, caller)
    assert refused.value.failure.http == 503
    return refused.value.message


def test_limits_connections_per_caller() -> None:
    house = GatewayBench(ROOMS)
    members = [
        house.come("eve", f"team-{number}")[0] for number in range(MAX_CONNECTIONS_PER_CALLER)
    ]
    assert "Disconnect from one of them" in get_message(house, "team-more", "eve")
    # Another connection to where it is already takes the place of the older one.
    again, _ = house.come("eve", "team-0")
    assert len(house.gateway._connections) == MAX_CONNECTIONS_PER_CALLER
    house.come("ada", "team-more")
    house.gateway.leave(members[0])
    assert "Disconnect from one of them" in get_message(house, "team-more", "eve")
    house.gateway.leave(again)
    house.come("eve", "team-more")


def test_guests_cannot_use_all_connections() -> None:
    house = GatewayBench(ROOMS)
    house.gateway.configure(TopicsConfig(rooms=ROOMS, max_connections=10))
    for number in range(5):
        house.come(None, f"open-{number}")
    assert "Join with a token" in get_message(house, "open-more", None)
    for number in range(5):
        house.come(f"a{number}", "team-x")
    assert "which is the limit" in get_message(house, "team-x", "one-more")


def test_counts_disconnects() -> None:
    house = GatewayBench(ROOMS)
    census = house.gateway._connections
    member, _ = house.come("a", "team-x")
    house.come("b", "team-x")
    house.come(None, "open-x")
    assert len(census) == 3
    # As somebody else it does not stay, and is counted out as who it was.
    house.gateway.update_caller(member, Caller("other", kind="token"))
    assert len(census) == 2
    house.gateway.configure(TopicsConfig(rooms={"open-*": ROOMS["open-*"]}))
    assert len(census) == 1
    house.gateway.close()
    assert len(census) == 0
    assert census._counts == {}
