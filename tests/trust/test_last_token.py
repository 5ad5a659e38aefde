"""The cache of the last hop token: for the same call only, and for half its life."""

from __future__ import annotations

import pytest

from interlock.core.call import Call, Caller
from interlock.protocol.mcp import RESOURCES_READ
from interlock.trust.hop_tokens import MAX_TOKEN_SECONDS
from tests.support.calls import LOCAL, SESSION
from tests.trust.test_minting import OWNER, World, call_of, tool


@pytest.fixture
def world() -> World:
    return World()


def test_last_token_is_reused_for_same_call_only(world: World) -> None:
    stamp, other = world.stamp(), tool("github.close", mutable=True)
    guest = Caller("guest", kind="token", scopes=OWNER.scopes, id="tok2")
    reading = Call(RESOURCES_READ, "test", LOCAL, SESSION, "file:///x")
    reading.caller = OWNER
    calls = [
        call_of(),
        call_of(guest),
        call_of(route=other),
        call_of(guest, other),
        reading,
        call_of(route=None),
        call_of(deadline=520.0),
    ]
    first = [stamp(call) for call in calls]
    assert len(set(first)) == len(calls)
    for _ in range(2):
        for call, token in zip(calls, first, strict=True):
            shown, known = world.read(stamp(call).decode()), world.read(token.decode())
            assert shown is not None
            assert known is not None
            assert call.caller is not None
            assert (shown.parent_caller, shown.scopes) == (known.parent_caller, known.scopes)
            assert shown.parent_caller == call.caller.name


def test_last_token_is_renewed_at_half_life(world: World) -> None:
    stamp = world.stamp()
    one = call_of(deadline=0.0)
    first = stamp(one)
    assert stamp(one) is first
    world.clock.now += MAX_TOKEN_SECONDS / 2 + 1
    assert stamp(one) != first
    nobody = call_of(Caller(""))
    assert stamp(nobody) == b""
