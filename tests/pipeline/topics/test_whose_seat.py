"""Whose a seat is: what somebody showed may be another's when the node looks again."""

from __future__ import annotations

import pytest

from interlock.call import Caller
from interlock.config.topics import SeatConfig, TopicConfig
from interlock.protocol.mcpx.words import NOT_WELCOME
from tests.pipeline.topics.test_gateway import House

SHARED = {"ops": TopicConfig(seats=[SeatConfig(callers=["*"], id="robot")])}


@pytest.mark.parametrize(
    ("now", "stays"),
    [
        (Caller("a", kind="token"), True),
        (Caller("a", kind="token", roles=("more",)), True),
        (Caller("b", kind="token"), False),
        (Caller("a", kind="jwt"), False),
        (Caller("a", kind="token", calls=False), False),
    ],
    ids=["the same", "with other roles", "another", "known otherwise", "may not call"],
)
def test_nobody_inherits_a_seat_while_it_sits_there(now: Caller, stays: bool) -> None:
    """Also where both would be called the same."""
    house = House(SHARED)
    member, ear = house.come("a")
    assert member.id == "robot"
    house.gateway.known_as(member, now)
    assert (house.gateway.member("ops", "robot") is member) == stays
    assert (ear.closed is None) == stays
    if ear.closed is not None:
        assert ear.closed[0] == NOT_WELCOME
