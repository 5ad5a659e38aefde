"""Tests that run with the small gateway and with the gateway of the node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from interlock.core.call import Caller
from interlock.topics.client import Event, Events, Participant
from interlock.topics.config import ParticipantConfig, TopicConfig
from tests.topics.client.small_gateway import HANG_TIMEOUT, small_gateway
from tests.topics.topic_server import TopicServer

Seats = Mapping[str, Sequence[str]]


class GatewayUnderTest:
    """The gateway that participants join."""

    def __init__(self, url: str) -> None:
        self.url = url

    def participant(self, who: str, /, **more: Any) -> Participant:
        return Participant(self.url, **{"topic": "room", "token": f"t-{who}", **more})


@asynccontextmanager
async def stay_connected(participant: Participant) -> AsyncIterator[asyncio.Event]:
    """Join in a background task. The event is set after the join."""
    inside = asyncio.Event()

    async def stay() -> None:
        async with participant.connected():
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(stay())
    try:
        yield inside
    finally:
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()


async def wait_for_presence(*participants: Participant) -> None:
    """Wait until each participant knows all others."""
    for one in participants:
        events = one.events()
        others = {other.id for other in participants} - {one.id}
        while not others <= one.participants.keys():
            await anext(events)


async def wait_until(events: Events, wanted: Callable[[Event], bool]) -> Event:
    while not wanted(event := await anext(events)):
        pass
    return event


def run_with_both_gateways(
    test: Callable[[GatewayUnderTest], Awaitable[None]], seats: Seats
) -> None:
    """Run the test with each gateway. `seats`: the capabilities of each participant."""

    async def small() -> None:
        async with asyncio.timeout(HANG_TIMEOUT), small_gateway(seats) as made:
            await test(GatewayUnderTest(made.url))

    async def node() -> None:
        # The smallest profile there is: talk, and answer.
        config = TopicConfig(
            participants=[
                ParticipantConfig(callers=[name], profile="response_only", capabilities=list(may))
                for name, may in seats.items()
            ]
        )
        callers = [Caller(name, kind="token") for name in seats]
        async with asyncio.timeout(HANG_TIMEOUT), AsyncExitStack() as stack:
            rooms = TopicServer(rooms={"room": config}, callers=callers)
            await rooms.start()
            stack.push_async_callback(rooms.stop)
            await test(GatewayUnderTest(rooms.url().partition("?")[0]))

    asyncio.run(small())
    asyncio.run(node())
