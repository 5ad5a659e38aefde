"""Subscriptions to resources: many subscribers share one subscription upstream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.core.call import Call
from interlock.core.catalog.catalog import Catalog
from interlock.core.pipeline.subscriptions import ResourceSubscriptions
from interlock.core.ports import Upstream
from interlock.errors import METHOD_NOT_FOUND, UPSTREAM_UNAVAILABLE, InterlockError
from interlock.protocol.mcp import SUBSCRIBE, UNSUBSCRIBE
from tests.core.pipeline.client_request_harness import (
    ClientRequestHarness,
    ScriptedSession,
    call_of,
    stateless,
)
from tests.support.clock import run_ready_tasks
from tests.support.offerings import offer

URI = "test://r"
CALL = call_of(stateless(), verb="subscriptions/listen")


class ScriptedServer:
    """An upstream that stores its subscription requests."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str]] = []
        self.subscribed_uris: set[str] = set()
        self.refuse = False
        self.gate: asyncio.Event | None = None
        """Closed: it takes its time to answer."""
        self.capabilities: dict[str, Any] = {"resources": {"subscribe": True}}

    def session_key(self, call: Call) -> object | None:
        return call.session

    async def subscribe(self, uri: str, call: Call | None) -> None:
        self.requests.append(("watch", uri))
        await self._wait_for_gate()
        if self.refuse:
            raise InterlockError(UPSTREAM_UNAVAILABLE, "no")
        assert uri not in self.subscribed_uris, "it is asked twice for the same"
        self.subscribed_uris.add(uri)

    async def unsubscribe(self, uri: str, call: Call | None) -> None:
        self.requests.append(("unwatch", uri))
        await self._wait_for_gate()
        self.subscribed_uris.remove(uri)

    async def _wait_for_gate(self) -> None:
        if self.gate is not None:
            await self.gate.wait()
        await asyncio.sleep(0)


class Subscriber:
    def __init__(self) -> None:
        self.updates: list[str] = []

    def send_resource_update(self, uri: str) -> None:
        self.updates.append(uri)


class SubscriptionHarness:
    def __init__(self, *uris: str) -> None:
        self.server = ScriptedServer()
        catalog = Catalog(server_info=b"{}")
        catalog.publish(offer("s", resources=uris or (URI,)))
        upstreams: dict[str, Upstream] = {"s": self.server}  # type: ignore[dict-item]
        self.subscriptions = ResourceSubscriptions(catalog, upstreams)

    def subscribe_client(
        self, follower: Subscriber, uri: str = URI, call: Call = CALL
    ) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(
            self.subscriptions.subscribe(follower, call, "s", uri)
        )

    async def unsubscribe_client(self, follower: Subscriber, uri: str = URI) -> None:
        await self.subscriptions.unsubscribe(follower, CALL, "s", uri)


@asynccontextmanager
async def open_harness(*uris: str) -> AsyncIterator[SubscriptionHarness]:
    scenario = SubscriptionHarness(*uris)
    yield scenario
    await run_ready_tasks()
    assert set(scenario.subscriptions.active_uris("s")) == scenario.server.subscribed_uris


# --- counted ---


async def test_subscribes_upstream_once() -> None:
    async with open_harness() as scenario:
        subscribers = [Subscriber() for _ in range(3)]
        for follower in subscribers:
            await scenario.subscribe_client(follower)
        assert scenario.server.requests == [("watch", URI)]
        scenario.subscriptions.on_resource_update("s", URI)
        assert [subscriber.updates for subscriber in subscribers] == [[URI]] * 3
        for follower in subscribers:
            await scenario.unsubscribe_client(follower)
        assert scenario.server.requests == [("watch", URI), ("unwatch", URI)]
        scenario.subscriptions.on_resource_update("s", URI)
        assert [len(subscriber.updates) for subscriber in subscribers] == [1, 1, 1]


async def test_repeated_subscription_counts_once() -> None:
    async with open_harness() as scenario:
        client = Subscriber()
        await scenario.subscribe_client(client)
        await scenario.subscribe_client(client)
        scenario.subscriptions.on_resource_update("s", URI)
        assert client.updates == [URI]
        await scenario.unsubscribe_client(client)
        assert scenario.server.subscribed_uris == set()


async def test_unsubscribing_unknown_subscriber_has_no_effect() -> None:
    async with open_harness() as scenario:
        client = Subscriber()
        await scenario.unsubscribe_client(client)
        await scenario.subscribe_client(client)
        await scenario.unsubscribe_client(Subscriber())
        assert scenario.server.subscribed_uris == {URI}


async def test_unsubscribe_all_removes_subscriber() -> None:
    async with open_harness("test://a", "test://b") as scenario:
        stays, goes = Subscriber(), Subscriber()
        for uri in ("test://a", "test://b"):
            await scenario.subscribe_client(goes, uri)
        await scenario.subscribe_client(stays, "test://a")
        scenario.subscriptions.unsubscribe_all(goes)
        await run_ready_tasks()
        assert scenario.server.subscribed_uris == {"test://a"}
        scenario.subscriptions.on_resource_update("s", "test://a")
        assert (stays.updates, goes.updates) == (["test://a"], [])


async def test_private_connections_have_separate_subscriptions() -> None:
    async with open_harness() as scenario:
        shared, own = Subscriber(), Subscriber()
        session = ScriptedSession()
        apart = call_of(session.client, session=session)
        await scenario.subscribe_client(shared)
        scenario.server.subscribed_uris.clear()
        await scenario.subscribe_client(own, call=apart)
        assert scenario.server.requests == [("watch", URI)] * 2
        assert scenario.subscriptions.active_uris("s", session) == (URI,)
        scenario.subscriptions.on_resource_update("s", URI, session)
        assert (shared.updates, own.updates) == ([], [URI])
        scenario.subscriptions.on_resource_update("s", URI)
        assert (shared.updates, own.updates) == ([URI], [URI])


# --- while the server is being asked ---


async def test_concurrent_subscribers_wait_for_upstream() -> None:
    async with open_harness() as scenario:
        scenario.server.gate = asyncio.Event()
        first, second = (
            scenario.subscribe_client(Subscriber()),
            scenario.subscribe_client(Subscriber()),
        )
        await run_ready_tasks()
        assert not first.done()
        assert not second.done()
        scenario.server.gate.set()
        await asyncio.gather(first, second)
        assert scenario.server.requests == [("watch", URI)]


async def test_rejection_by_upstream_removes_subscribers() -> None:
    async with open_harness() as scenario:
        scenario.server.gate = asyncio.Event()
        scenario.server.refuse = True
        client = [Subscriber(), Subscriber()]
        tasks = [scenario.subscribe_client(subscriber) for subscriber in client]
        await run_ready_tasks()
        scenario.server.gate.set()
        text = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(message) for message in text] == [InterlockError, InterlockError]
        scenario.subscriptions.on_resource_update("s", URI)
        assert [subscriber.updates for subscriber in client] == [[], []]
        scenario.server.refuse = False
        await scenario.subscribe_client(client[0])
        assert scenario.server.subscribed_uris == {URI}


async def test_cancelled_subscriber_does_not_affect_other() -> None:
    async with open_harness() as scenario:
        scenario.server.gate = asyncio.Event()
        impatient, patient = Subscriber(), Subscriber()
        first, second = scenario.subscribe_client(impatient), scenario.subscribe_client(patient)
        await run_ready_tasks()
        first.cancel()
        await run_ready_tasks()
        scenario.server.gate.set()
        await second
        scenario.subscriptions.on_resource_update("s", URI)
        assert (impatient.updates, patient.updates) == ([], [URI])


async def test_unsubscribing_before_confirmation_unsubscribes_upstream() -> None:
    async with open_harness() as scenario:
        scenario.server.gate = asyncio.Event()
        client = Subscriber()
        joined = scenario.subscribe_client(client)
        await run_ready_tasks()
        scenario.subscriptions.unsubscribe_all(client)
        await run_ready_tasks()
        scenario.server.gate.set()
        await joined
        await run_ready_tasks()
        assert scenario.server.requests == [("watch", URI), ("unwatch", URI)]
        assert scenario.server.subscribed_uris == set()


async def test_subscribing_during_unsubscribe_waits() -> None:
    async with open_harness() as scenario:
        first, second = Subscriber(), Subscriber()
        await scenario.subscribe_client(first)
        scenario.server.gate = asyncio.Event()
        leaving = asyncio.get_running_loop().create_task(scenario.unsubscribe_client(first))
        await run_ready_tasks()
        joined = scenario.subscribe_client(second)
        await run_ready_tasks()
        assert scenario.server.requests == [("watch", URI), ("unwatch", URI)]
        scenario.server.gate.set()
        await asyncio.gather(leaving, joined)
        assert scenario.server.requests[-1] == ("watch", URI)
        assert scenario.server.subscribed_uris == {URI}


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from("+-x~")), max_size=25))
async def test_upstream_is_subscribed_while_subscribers_exist(moves: list[tuple[int, str]]) -> None:
    """In the end the server is watched if, and only if, somebody follows."""

    async with open_harness() as scenario:
        subscribers = [Subscriber() for _ in range(3)]
        tasks: list[asyncio.Task[None]] = []
        wants = [False] * 3
        for who, move in moves:
            follower = subscribers[who]
            if move == "+":
                tasks.append(scenario.subscribe_client(follower))
                await asyncio.sleep(0)
                wants[who] = True
            elif move == "-":
                scenario.subscriptions.unsubscribe_all(follower)
                await asyncio.sleep(0)
                wants[who] = False
            elif move == "x":
                await run_ready_tasks(10)
            else:
                await asyncio.sleep(0)
        await asyncio.gather(*tasks, return_exceptions=True)
        await run_ready_tasks(20)
        assert scenario.server.subscribed_uris == ({URI} if any(wants) else set())
        scenario.subscriptions.on_resource_update("s", URI)
        assert [bool(subscriber.updates) for subscriber in subscribers] == wants


# --- what is announced ---


@pytest.mark.parametrize(
    ("followed", "announced", "is_notified"),
    [
        ("test://a", "test://a", True),
        ("test://a", "test://a/b", True),
        ("test://a/", "test://a/b", True),
        ("test://a/", "test://a/", True),
        ("test://a", "test://ab", False),
        ("test://a/b", "test://a", False),
        ("test://a", "other://a", False),
    ],
)
async def test_notifies_of_part_of_subscribed_resource(
    followed: str, announced: str, is_notified: bool
) -> None:
    async with open_harness(followed) as scenario:
        client = Subscriber()
        await scenario.subscribe_client(client, followed)
        scenario.subscriptions.on_resource_update("s", announced)
        assert client.updates == ([announced] if is_notified else [])
        scenario.subscriptions.on_resource_update("another", announced)
        assert len(client.updates) <= 1


async def test_notifies_once_for_whole_and_part() -> None:
    async with open_harness("test://a", "test://a/b") as scenario:
        client = Subscriber()
        await scenario.subscribe_client(client, "test://a")
        await scenario.subscribe_client(client, "test://a/b")
        scenario.subscriptions.on_resource_update("s", "test://a/b")
        assert client.updates == ["test://a/b"]


async def test_failing_subscriber_does_not_affect_others() -> None:
    class FailingSubscriber(Subscriber):
        def send_resource_update(self, uri: str) -> None:
            raise RuntimeError("gone")

    async with open_harness() as scenario:
        subscribers = [FailingSubscriber(), Subscriber(), FailingSubscriber(), Subscriber()]
        for item in subscribers:
            await scenario.subscribe_client(item)
        scenario.subscriptions.on_resource_update("s", URI)
        assert [len(subscriber.updates) for subscriber in subscribers] == [0, 1, 0, 1]


# --- by the URIs that clients know ---


async def test_subscribes_only_to_announced_resources() -> None:
    async with open_harness() as scenario:
        client = Subscriber()
        assert await scenario.subscriptions.subscribe_all(client, CALL, [URI]) == [URI]
        scenario.server.capabilities = {"resources": {}}
        assert await scenario.subscriptions.subscribe_all(Subscriber(), CALL, [URI]) == []
        scenario.server.capabilities = {}
        assert await scenario.subscriptions.subscribe_all(Subscriber(), CALL, [URI]) == []


async def test_failed_subscription_does_not_affect_others() -> None:
    async with open_harness("test://a", "test://b") as scenario:
        scenario.server.refuse = True
        client = Subscriber()
        assert await scenario.subscriptions.subscribe_all(client, CALL, ["test://a"]) == []
        scenario.server.refuse = False
        assert await scenario.subscriptions.subscribe_all(
            client, CALL, ["test://a", "test://b"]
        ) == [
            "test://a",
            "test://b",
        ]


async def test_notifies_with_uri_of_client() -> None:
    catalog = Catalog(server_info=b"{}")
    servers: dict[str, Any] = {"one": ScriptedServer(), "two": ScriptedServer()}
    for key in servers:
        catalog.publish(offer(key, resources=[URI]))
    everything = ResourceSubscriptions(catalog, servers)
    client = Subscriber()
    uris = ["test://nothing", URI, f"interlock:two:{URI}"]
    assert await everything.subscribe_all(client, CALL, uris) == [f"interlock:two:{URI}"]
    assert servers["two"].subscribed_uris == {URI}
    assert servers["one"].subscribed_uris == set()
    everything.on_resource_update("one", URI)
    assert client.updates == []
    everything.on_resource_update("two", URI)
    assert client.updates == [f"interlock:two:{URI}"]


# --- through the pipeline ---


def subscribe_call(session: ScriptedSession, verb: str = SUBSCRIBE, uri: str = URI) -> Call:
    return call_of(session.client, uri, verb=verb, session=session)


async def test_subscribes_and_unsubscribes_session() -> None:
    harness, session = ClientRequestHarness(), ScriptedSession()
    harness.begin(subscribe_call(session))
    await run_ready_tasks()
    assert harness.last_result == {}
    assert harness.s.subscribed_uris == [URI]
    harness.pipeline.subscriptions.on_resource_update("s", URI)
    assert session.updates == [URI]
    harness.begin(subscribe_call(session, UNSUBSCRIBE))
    await run_ready_tasks()
    assert harness.s.subscribed_uris == []
    assert harness.list_outcomes() == [(SUBSCRIBE, "ok"), (UNSUBSCRIBE, "ok")]


async def test_rejects_subscription_without_capability() -> None:
    harness, session = ClientRequestHarness(), ScriptedSession()
    harness.s.capabilities = {"resources": {}}
    assert harness.refused(subscribe_call(session)).failure is METHOD_NOT_FOUND


async def test_relays_rejection_of_subscription() -> None:
    harness, session = ClientRequestHarness(), ScriptedSession()

    async def refuse(uri: str, call: Call) -> None:
        raise InterlockError(UPSTREAM_UNAVAILABLE, "no")

    harness.s.subscribe = refuse  # type: ignore[assignment, method-assign]
    harness.begin(subscribe_call(session))
    await run_ready_tasks()
    assert harness.last_error.message == "no"
    harness.pipeline.subscriptions.on_resource_update("s", URI)
    assert session.updates == []


def test_subscription_requires_session() -> None:
    call = call_of(stateless(), URI, verb=SUBSCRIBE)
    assert ClientRequestHarness().refused(call).failure is METHOD_NOT_FOUND


async def test_subscribes_with_upstream_uri() -> None:
    harness = ClientRequestHarness(offer("s", resources=[URI]), offer("z", resources=[URI]))
    session = ScriptedSession()
    harness.begin(subscribe_call(session, uri=f"interlock:z:{URI}"))
    await run_ready_tasks()
    assert harness.upstreams["z"].subscribed_uris == [URI]
    assert harness.s.subscribed_uris == []
    harness.pipeline.subscriptions.on_resource_update("z", URI)
    assert session.updates == [f"interlock:z:{URI}"]
