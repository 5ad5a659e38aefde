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
    AskingRig,
    ScriptedSession,
    call_of,
    stateless,
)
from tests.support.clock import run_ready_tasks
from tests.support.offerings import offer

URI = "test://r"
CALL = call_of(stateless(), verb="subscriptions/listen")


class Server:
    """An upstream that announces, and writes down what it was asked."""

    def __init__(self) -> None:
        self.said: list[tuple[str, str]] = []
        self.watched: set[str] = set()
        self.refuse = False
        self.gate: asyncio.Event | None = None
        """Closed: it takes its time to answer."""
        self.capabilities: dict[str, Any] = {"resources": {"subscribe": True}}

    def session_key(self, call: Call) -> object | None:
        return call.session

    async def subscribe(self, uri: str, call: Call | None) -> None:
        self.said.append(("watch", uri))
        await self._take_time()
        if self.refuse:
            raise InterlockError(UPSTREAM_UNAVAILABLE, "no")
        assert uri not in self.watched, "it is asked twice for the same"
        self.watched.add(uri)

    async def unsubscribe(self, uri: str, call: Call | None) -> None:
        self.said.append(("unwatch", uri))
        await self._take_time()
        self.watched.remove(uri)

    async def _take_time(self) -> None:
        if self.gate is not None:
            await self.gate.wait()
        await asyncio.sleep(0)


class Ears:
    def __init__(self) -> None:
        self.heard: list[str] = []

    def send_resource_update(self, uri: str) -> None:
        self.heard.append(uri)


class Scene:
    def __init__(self, *uris: str) -> None:
        self.server = Server()
        catalog = Catalog(server_info=b"{}")
        catalog.publish(offer("s", resources=uris or (URI,)))
        upstreams: dict[str, Upstream] = {"s": self.server}  # type: ignore[dict-item]
        self.all = ResourceSubscriptions(catalog, upstreams)

    def join(self, follower: Ears, uri: str = URI, call: Call = CALL) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(self.all.subscribe(follower, call, "s", uri))

    async def leave(self, follower: Ears, uri: str = URI) -> None:
        await self.all.unsubscribe(follower, CALL, "s", uri)


@asynccontextmanager
async def open_scene(*uris: str) -> AsyncIterator[Scene]:
    stage = Scene(*uris)
    yield stage
    await run_ready_tasks()
    assert set(stage.all.active_uris("s")) == stage.server.watched


# --- counted ---


async def test_subscribes_upstream_once() -> None:
    async with open_scene() as stage:
        followers = [Ears() for _ in range(3)]
        for follower in followers:
            await stage.join(follower)
        assert stage.server.said == [("watch", URI)]
        stage.all.on_resource_update("s", URI)
        assert [one.heard for one in followers] == [[URI]] * 3
        for follower in followers:
            await stage.leave(follower)
        assert stage.server.said == [("watch", URI), ("unwatch", URI)]
        stage.all.on_resource_update("s", URI)
        assert [len(one.heard) for one in followers] == [1, 1, 1]


async def test_repeated_subscription_counts_once() -> None:
    async with open_scene() as stage:
        ears = Ears()
        await stage.join(ears)
        await stage.join(ears)
        stage.all.on_resource_update("s", URI)
        assert ears.heard == [URI]
        await stage.leave(ears)
        assert stage.server.watched == set()


async def test_unsubscribing_unknown_subscriber_has_no_effect() -> None:
    async with open_scene() as stage:
        ears = Ears()
        await stage.leave(ears)
        await stage.join(ears)
        await stage.leave(Ears())
        assert stage.server.watched == {URI}


async def test_unsubscribe_all_removes_subscriber() -> None:
    async with open_scene("test://a", "test://b") as stage:
        stays, goes = Ears(), Ears()
        for uri in ("test://a", "test://b"):
            await stage.join(goes, uri)
        await stage.join(stays, "test://a")
        stage.all.unsubscribe_all(goes)
        await run_ready_tasks()
        assert stage.server.watched == {"test://a"}
        stage.all.on_resource_update("s", "test://a")
        assert (stays.heard, goes.heard) == (["test://a"], [])


async def test_private_connections_have_separate_subscriptions() -> None:
    async with open_scene() as stage:
        shared, own = Ears(), Ears()
        session = ScriptedSession()
        apart = call_of(session.client, session=session)
        await stage.join(shared)
        stage.server.watched.clear()
        await stage.join(own, call=apart)
        assert stage.server.said == [("watch", URI)] * 2
        assert stage.all.active_uris("s", session) == (URI,)
        stage.all.on_resource_update("s", URI, session)
        assert (shared.heard, own.heard) == ([], [URI])
        stage.all.on_resource_update("s", URI)
        assert (shared.heard, own.heard) == ([URI], [URI])


# --- while the server is being asked ---


async def test_concurrent_subscribers_wait_for_upstream() -> None:
    async with open_scene() as stage:
        stage.server.gate = asyncio.Event()
        first, second = stage.join(Ears()), stage.join(Ears())
        await run_ready_tasks()
        assert not first.done()
        assert not second.done()
        stage.server.gate.set()
        await asyncio.gather(first, second)
        assert stage.server.said == [("watch", URI)]


async def test_rejection_by_upstream_removes_subscribers() -> None:
    async with open_scene() as stage:
        stage.server.gate = asyncio.Event()
        stage.server.refuse = True
        ears = [Ears(), Ears()]
        tasks = [stage.join(one) for one in ears]
        await run_ready_tasks()
        stage.server.gate.set()
        said = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(one) for one in said] == [InterlockError, InterlockError]
        stage.all.on_resource_update("s", URI)
        assert [one.heard for one in ears] == [[], []]
        stage.server.refuse = False
        await stage.join(ears[0])
        assert stage.server.watched == {URI}


async def test_cancelled_subscriber_does_not_affect_other() -> None:
    async with open_scene() as stage:
        stage.server.gate = asyncio.Event()
        impatient, patient = Ears(), Ears()
        first, second = stage.join(impatient), stage.join(patient)
        await run_ready_tasks()
        first.cancel()
        await run_ready_tasks()
        stage.server.gate.set()
        await second
        stage.all.on_resource_update("s", URI)
        assert (impatient.heard, patient.heard) == ([], [URI])


async def test_unsubscribing_before_confirmation_unsubscribes_upstream() -> None:
    async with open_scene() as stage:
        stage.server.gate = asyncio.Event()
        ears = Ears()
        joined = stage.join(ears)
        await run_ready_tasks()
        stage.all.unsubscribe_all(ears)
        await run_ready_tasks()
        stage.server.gate.set()
        await joined
        await run_ready_tasks()
        assert stage.server.said == [("watch", URI), ("unwatch", URI)]
        assert stage.server.watched == set()


async def test_subscribing_during_unsubscribe_waits() -> None:
    async with open_scene() as stage:
        first, second = Ears(), Ears()
        await stage.join(first)
        stage.server.gate = asyncio.Event()
        leaving = asyncio.get_running_loop().create_task(stage.leave(first))
        await run_ready_tasks()
        joined = stage.join(second)
        await run_ready_tasks()
        assert stage.server.said == [("watch", URI), ("unwatch", URI)]
        stage.server.gate.set()
        await asyncio.gather(leaving, joined)
        assert stage.server.said[-1] == ("watch", URI)
        assert stage.server.watched == {URI}


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from("+-x~")), max_size=25))
async def test_upstream_is_subscribed_while_subscribers_exist(moves: list[tuple[int, str]]) -> None:
    """In the end the server is watched if, and only if, somebody follows."""

    async with open_scene() as stage:
        followers = [Ears() for _ in range(3)]
        tasks: list[asyncio.Task[None]] = []
        wants = [False] * 3
        for who, move in moves:
            follower = followers[who]
            if move == "+":
                tasks.append(stage.join(follower))
                await asyncio.sleep(0)
                wants[who] = True
            elif move == "-":
                stage.all.unsubscribe_all(follower)
                await asyncio.sleep(0)
                wants[who] = False
            elif move == "x":
                await run_ready_tasks(10)
            else:
                await asyncio.sleep(0)
        await asyncio.gather(*tasks, return_exceptions=True)
        await run_ready_tasks(20)
        assert stage.server.watched == ({URI} if any(wants) else set())
        stage.all.on_resource_update("s", URI)
        assert [bool(one.heard) for one in followers] == wants


# --- what is announced ---


@pytest.mark.parametrize(
    ("followed", "announced", "heard"),
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
    followed: str, announced: str, heard: bool
) -> None:
    async with open_scene(followed) as stage:
        ears = Ears()
        await stage.join(ears, followed)
        stage.all.on_resource_update("s", announced)
        assert ears.heard == ([announced] if heard else [])
        stage.all.on_resource_update("another", announced)
        assert len(ears.heard) <= 1


async def test_notifies_once_for_whole_and_part() -> None:
    async with open_scene("test://a", "test://a/b") as stage:
        ears = Ears()
        await stage.join(ears, "test://a")
        await stage.join(ears, "test://a/b")
        stage.all.on_resource_update("s", "test://a/b")
        assert ears.heard == ["test://a/b"]


async def test_failing_subscriber_does_not_affect_others() -> None:
    class Deaf(Ears):
        def send_resource_update(self, uri: str) -> None:
            raise RuntimeError("gone")

    async with open_scene() as stage:
        followers = [Deaf(), Ears(), Deaf(), Ears()]
        for one in followers:
            await stage.join(one)
        stage.all.on_resource_update("s", URI)
        assert [len(one.heard) for one in followers] == [0, 1, 0, 1]


# --- by the URIs that clients know ---


async def test_subscribes_only_to_announced_resources() -> None:
    async with open_scene() as stage:
        ears = Ears()
        assert await stage.all.subscribe_all(ears, CALL, [URI]) == [URI]
        stage.server.capabilities = {"resources": {}}
        assert await stage.all.subscribe_all(Ears(), CALL, [URI]) == []
        stage.server.capabilities = {}
        assert await stage.all.subscribe_all(Ears(), CALL, [URI]) == []


async def test_failed_subscription_does_not_affect_others() -> None:
    async with open_scene("test://a", "test://b") as stage:
        stage.server.refuse = True
        ears = Ears()
        assert await stage.all.subscribe_all(ears, CALL, ["test://a"]) == []
        stage.server.refuse = False
        assert await stage.all.subscribe_all(ears, CALL, ["test://a", "test://b"]) == [
            "test://a",
            "test://b",
        ]


async def test_notifies_with_uri_of_client() -> None:
    catalog = Catalog(server_info=b"{}")
    servers: dict[str, Any] = {"one": Server(), "two": Server()}
    for key in servers:
        catalog.publish(offer(key, resources=[URI]))
    everything = ResourceSubscriptions(catalog, servers)
    ears = Ears()
    asked = ["test://nothing", URI, f"interlock:two:{URI}"]
    assert await everything.subscribe_all(ears, CALL, asked) == [f"interlock:two:{URI}"]
    assert servers["two"].watched == {URI}
    assert servers["one"].watched == set()
    everything.on_resource_update("one", URI)
    assert ears.heard == []
    everything.on_resource_update("two", URI)
    assert ears.heard == [f"interlock:two:{URI}"]


# --- through the pipeline ---


def subscribing(session: ScriptedSession, verb: str = SUBSCRIBE, uri: str = URI) -> Call:
    return call_of(session.client, uri, verb=verb, session=session)


async def test_subscribes_and_unsubscribes_session() -> None:
    rig, session = AskingRig(), ScriptedSession()
    rig.begin(subscribing(session))
    await run_ready_tasks()
    assert rig.last_result == {}
    assert rig.s.watches == [URI]
    rig.pipeline.subscriptions.on_resource_update("s", URI)
    assert session.updates == [URI]
    rig.begin(subscribing(session, UNSUBSCRIBE))
    await run_ready_tasks()
    assert rig.s.watches == []
    assert rig.journalled() == [(SUBSCRIBE, "ok"), (UNSUBSCRIBE, "ok")]


async def test_rejects_subscription_without_capability() -> None:
    rig, session = AskingRig(), ScriptedSession()
    rig.s.capabilities = {"resources": {}}
    assert rig.refused(subscribing(session)).failure is METHOD_NOT_FOUND


async def test_relays_rejection_of_subscription() -> None:
    rig, session = AskingRig(), ScriptedSession()

    async def refuse(uri: str, call: Call) -> None:
        raise InterlockError(UPSTREAM_UNAVAILABLE, "no")

    rig.s.subscribe = refuse  # type: ignore[assignment, method-assign]
    rig.begin(subscribing(session))
    await run_ready_tasks()
    assert rig.last_error.message == "no"
    rig.pipeline.subscriptions.on_resource_update("s", URI)
    assert session.updates == []


def test_subscription_requires_session() -> None:
    call = call_of(stateless(), URI, verb=SUBSCRIBE)
    assert AskingRig().refused(call).failure is METHOD_NOT_FOUND


async def test_subscribes_with_upstream_uri() -> None:
    rig = AskingRig(offer("s", resources=[URI]), offer("z", resources=[URI]))
    session = ScriptedSession()
    rig.begin(subscribing(session, uri=f"interlock:z:{URI}"))
    await run_ready_tasks()
    assert rig.upstreams["z"].watches == [URI]
    assert rig.s.watches == []
    rig.pipeline.subscriptions.on_resource_update("z", URI)
    assert session.updates == [f"interlock:z:{URI}"]
