"""Listeners of changes: one notification per kind, for the listeners that may receive it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any

import pytest
from msgspec import Raw

from interlock.core.call import Call, Caller, Client, Credentials
from interlock.core.server.mcp.change_notifications import ChangeListeners
from interlock.core.server.mcp.sessions import Session
from interlock.errors import ProtocolError
from interlock.protocol.mcp import LATEST_SESSION, LATEST_STATELESS, LISTEN, META_SUBSCRIPTION, Era
from tests.core.server.test_sessions import Way

CHANGES = {"listChanged": True}
EVERYTHING = {
    "tools": CHANGES,
    "prompts": CHANGES,
    "resources": {**CHANGES, "subscribe": True},
}
ALL = frozenset({"tools", "prompts", "resources"})


class Ear(Way):
    """Hears what a client is sent."""

    def __init__(self) -> None:
        super().__init__(1)
        self.heard: list[Any] = []
        self.over = False

    def take(self, payload: bytes) -> None:
        self.heard.append(json.loads(payload))

    def send(self, payload: bytes, call: Any, *, question: bool = False) -> bool:
        self.take(payload)
        return True

    def stop_listening(self) -> None:
        self.over = True

    @property
    def methods(self) -> list[str]:
        return [one["method"].removeprefix("notifications/") for one in self.heard]


class Followed:
    """Notes who follows what."""

    def __init__(self) -> None:
        self.uris: dict[Any, list[str]] = {}
        self.agrees = asyncio.Event()
        self.agrees.set()
        self.refused: set[str] = set()

    async def subscribe_all(self, follower: Any, call: Call, uris: Iterable[str]) -> list[str]:
        self.uris[follower] = [uri for uri in uris if uri not in self.refused]
        await self.agrees.wait()
        return self.uris[follower]

    def unsubscribe_all(self, follower: Any) -> None:
        self.uris.pop(follower, None)


LISTEN_CALL = Call(LISTEN, "test", Credentials("local"), Client(Era.STATELESS, LATEST_STATELESS))


def honoured(capabilities: Any = EVERYTHING, **wanted: Any) -> dict[str, Any]:
    params = {"notifications": Raw(json.dumps(wanted).encode())}
    return ChangeListeners.honoured(params, capabilities)


def session(ear: Ear) -> Session:
    return Session("s", Client(Era.SESSION, LATEST_SESSION), "operator", 0.0, ear)


def tell_now(listeners: ChangeListeners) -> None:
    """Do not wait for the end of a burst."""
    assert listeners._change_timer is not None
    listeners._change_timer.cancel()
    listeners._send_changes()
    assert listeners._change_timer is None


# -- what is honoured


def test_accepts_requested_and_offered_kinds() -> None:
    wanted = {
        "toolsListChanged": True,
        "promptsListChanged": True,
        "resourcesListChanged": True,
        "resourceSubscriptions": ["a:b", "c:d"],
    }
    assert honoured(**wanted) == wanted
    assert honoured(**wanted, taskIds=["t"], more=True) == wanted
    assert honoured({}, **wanted) == {}
    assert honoured({"tools": {}, "resources": {"subscribe": False}}, **wanted) == {}
    some = {"tools": CHANGES, "resources": {"subscribe": True}}
    assert set(honoured(some, **wanted)) == {"toolsListChanged", "resourceSubscriptions"}


def test_accepts_empty_request() -> None:
    assert honoured() == {}
    assert honoured(toolsListChanged=False, resourceSubscriptions=[]) == {}


def test_rejects_invalid_filter() -> None:
    for params in ({}, {"notifications": Raw(b"[]")}, {"notifications": Raw(b"null")}):
        with pytest.raises(ProtocolError):
            ChangeListeners.honoured(params, EVERYTHING)
    for uris in ("a:b", [1], {"a": 1}, ["a:b"] * 1_001):
        with pytest.raises(ProtocolError):
            honoured(resourceSubscriptions=uris)


# -- who is told


async def test_notifies_each_listener_once_per_kind() -> None:
    listeners = ChangeListeners()
    one, tools, prompts, nothing = Ear(), Ear(), Ear(), Ear()
    listeners.add_session(session(one))
    for id, (ear, wanted) in enumerate(
        [
            (tools, {"toolsListChanged": True}),
            (prompts, {"promptsListChanged": True, "resourcesListChanged": True}),
            (nothing, {}),
        ]
    ):
        listeners.add_stateless(
            b"%d" % id, honoured(**wanted), ear.take, ear.ping, ear.stop_listening
        )
        (acknowledged,) = ear.heard
        assert acknowledged["params"] == {
            "_meta": {META_SUBSCRIPTION: id},
            "notifications": wanted,
        }
        ear.heard.clear()
    for _ in range(3):
        listeners.changed(frozenset({"tools"}))
        listeners.changed(frozenset({"resources", "prompts"}))
    tell_now(listeners)
    assert one.methods == [
        "tools/list_changed", "prompts/list_changed", "resources/list_changed",
    ]  # fmt: skip
    assert all("params" not in said for said in one.heard)
    assert tools.methods == ["tools/list_changed"]
    assert prompts.methods == ["prompts/list_changed", "resources/list_changed"]
    assert prompts.heard[0]["params"] == {"_meta": {META_SUBSCRIPTION: 1}}
    assert nothing.heard == []
    listeners.changed(frozenset({"resources"}))
    tell_now(listeners)
    assert one.methods[3:] == ["resources/list_changed"]
    assert tools.methods == ["tools/list_changed"]
    assert len(listeners) == 4
    listeners.close()
    assert one.over
    for ear in (tools, prompts, nothing):
        assert ear.heard[-1]["result"]["resultType"] == "complete"
        assert ear.over
    assert len(listeners) == 0


async def test_removed_listener_is_not_notified() -> None:
    listeners = ChangeListeners()
    one, other = Ear(), Ear()
    left = session(one)
    listeners.add_session(left)
    remove = listeners.add_stateless(
        b"1", honoured(toolsListChanged=True), other.take, other.ping, other.stop_listening
    )
    other.heard.clear()
    listeners.changed(ALL)
    listeners.remove_session(left)
    remove()
    tell_now(listeners)
    assert (one.heard, other.heard) == ([], [])
    listeners.close()


# -- resources that are followed


async def test_notifies_of_subscribed_resources() -> None:
    followed = Followed()
    listeners = ChangeListeners(followed)
    ear, plain = Ear(), Ear()
    wanted = {"resourceSubscriptions": ["a:b", "c:d"]}
    wanted["resourceSubscriptions"].append("refused:it")
    followed.agrees.clear()
    followed.refused.add("refused:it")
    remove = listeners.add_stateless(
        b'"x"', honoured(**wanted), ear.take, ear.ping, ear.stop_listening, LISTEN_CALL
    )
    listeners.add_stateless(b"2", {}, plain.take, plain.ping, plain.stop_listening)
    await asyncio.sleep(0)
    ((subscription, uris),) = followed.uris.items()
    assert uris == ["a:b", "c:d"]
    # Nothing is told before it is acknowledged, and that waits for the server.
    subscription.send_resource_update('a:b/"part"')
    assert ear.methods == []
    followed.agrees.set()
    for _ in range(3):
        await asyncio.sleep(0)
    assert ear.methods == ["subscriptions/acknowledged", "resources/updated"]
    agreed = ear.heard[0]["params"]["notifications"]
    assert agreed == {"resourceSubscriptions": ["a:b", "c:d"]}
    assert ear.heard[-1] == {
        "jsonrpc": "2.0",
        "method": "notifications/resources/updated",
        "params": {"uri": 'a:b/"part"', "_meta": {META_SUBSCRIPTION: "x"}},
    }
    remove()
    assert not followed.uris
    listeners.close()


async def test_removes_listeners_of_unknown_callers() -> None:
    followed = Followed()
    listeners = ChangeListeners(followed)
    known, gone, unsure = Ear(), Ear(), Ear()
    for ear, name in ((known, "operator"), (gone, "auditor")):
        call = Call(LISTEN, "test", Credentials("x"), LISTEN_CALL.client)
        call.caller = Caller(name)
        wanted = honoured(toolsListChanged=True)
        listeners.add_stateless(b"1", wanted, ear.take, ear.ping, ear.stop_listening, call)
    followed.agrees.clear()
    wanted = honoured(resourceSubscriptions=["a:b"])
    listeners.add_stateless(b"2", wanted, unsure.take, unsure.ping, unsure.stop_listening, call)
    listeners.retain_only({"operator"})
    assert (known.over, gone.over, unsure.over) == (False, True, True)
    # The acknowledgement comes first, even before an end.
    assert unsure.heard[0]["method"] == "notifications/subscriptions/acknowledged"
    assert not followed.uris
    listeners.close()


async def test_close_unsubscribes_resources() -> None:
    followed = Followed()
    listeners = ChangeListeners(followed)
    ear = Ear()
    wanted = honoured(resourceSubscriptions=["a:b"])
    listeners.add_stateless(b"1", wanted, ear.take, ear.ping, ear.stop_listening, LISTEN_CALL)
    await asyncio.sleep(0)
    assert followed.uris
    listeners.close()
    assert not followed.uris
