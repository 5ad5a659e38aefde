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
from tests.core.server.test_sessions import ScriptedTransport

CHANGES = {"listChanged": True}
EVERYTHING = {
    "tools": CHANGES,
    "prompts": CHANGES,
    "resources": {**CHANGES, "subscribe": True},
}
ALL = frozenset({"tools", "prompts", "resources"})


class RecordingClient(ScriptedTransport):
    """A client that stores received messages."""

    def __init__(self) -> None:
        super().__init__(1)
        self.received: list[Any] = []
        self.is_closed = False

    def take(self, payload: bytes) -> None:
        self.received.append(json.loads(payload))

    def send(self, payload: bytes, call: Any, *, question: bool = False) -> bool:
        self.take(payload)
        return True

    def stop_listening(self) -> None:
        self.is_closed = True

    @property
    def methods(self) -> list[str]:
        return [message["method"].removeprefix("notifications/") for message in self.received]


class ScriptedSubscriptions:
    """Subscriptions that store which subscriber has which URIs."""

    def __init__(self) -> None:
        self.uris: dict[Any, list[str]] = {}
        self.confirmation = asyncio.Event()
        self.confirmation.set()
        self.refused: set[str] = set()

    async def subscribe_all(self, subscriber: Any, call: Call, uris: Iterable[str]) -> list[str]:
        self.uris[subscriber] = [uri for uri in uris if uri not in self.refused]
        await self.confirmation.wait()
        return self.uris[subscriber]

    def unsubscribe_all(self, subscriber: Any) -> None:
        self.uris.pop(subscriber, None)


LISTEN_CALL = Call(LISTEN, "test", Credentials("local"), Client(Era.STATELESS, LATEST_STATELESS))


def accepted_kinds(capabilities: Any = EVERYTHING, **requested: Any) -> dict[str, Any]:
    params = {"notifications": Raw(json.dumps(requested).encode())}
    return ChangeListeners.filter_subscription(params, capabilities)


def session(client_record: RecordingClient) -> Session:
    return Session("s", Client(Era.SESSION, LATEST_SESSION), "operator", 0.0, client_record)


def send_changes_now(listeners: ChangeListeners) -> None:
    """Send changes without waiting for the end of a burst."""
    assert listeners._change_timer is not None
    listeners._change_timer.cancel()
    listeners._send_changes()
    assert listeners._change_timer is None


# -- what is honoured


def test_accepts_requested_and_offered_kinds() -> None:
    requested = {
        "toolsListChanged": True,
        "promptsListChanged": True,
        "resourcesListChanged": True,
        "resourceSubscriptions": ["a:b", "c:d"],
    }
    assert accepted_kinds(**requested) == requested
    assert accepted_kinds(**requested, taskIds=["t"], more=True) == requested
    assert accepted_kinds({}, **requested) == {}
    assert accepted_kinds({"tools": {}, "resources": {"subscribe": False}}, **requested) == {}
    some = {"tools": CHANGES, "resources": {"subscribe": True}}
    assert set(accepted_kinds(some, **requested)) == {"toolsListChanged", "resourceSubscriptions"}


def test_accepts_empty_request() -> None:
    assert accepted_kinds() == {}
    assert accepted_kinds(toolsListChanged=False, resourceSubscriptions=[]) == {}


def test_rejects_invalid_filter() -> None:
    for params in ({}, {"notifications": Raw(b"[]")}, {"notifications": Raw(b"null")}):
        with pytest.raises(ProtocolError):
            ChangeListeners.filter_subscription(params, EVERYTHING)
    for uris in ("a:b", [1], {"a": 1}, ["a:b"] * 1_001):
        with pytest.raises(ProtocolError):
            accepted_kinds(resourceSubscriptions=uris)


# -- who is told


async def test_notifies_each_listener_once_per_kind() -> None:
    listeners = ChangeListeners()
    one, tools, prompts, nothing = (
        RecordingClient(),
        RecordingClient(),
        RecordingClient(),
        RecordingClient(),
    )
    listeners.add_session(session(one))
    for id, (client_record, requested) in enumerate(
        [
            (tools, {"toolsListChanged": True}),
            (prompts, {"promptsListChanged": True, "resourcesListChanged": True}),
            (nothing, {}),
        ]
    ):
        listeners.add_stateless(
            b"%d" % id,
            accepted_kinds(**requested),
            client_record.take,
            client_record.ping,
            client_record.stop_listening,
        )
        (acknowledged,) = client_record.received
        assert acknowledged["params"] == {
            "_meta": {META_SUBSCRIPTION: id},
            "notifications": requested,
        }
        client_record.received.clear()
    for _ in range(3):
        listeners.changed(frozenset({"tools"}))
        listeners.changed(frozenset({"resources", "prompts"}))
    send_changes_now(listeners)
    assert one.methods == [
        "tools/list_changed", "prompts/list_changed", "resources/list_changed",
    ]  # fmt: skip
    assert all("params" not in message for message in one.received)
    assert tools.methods == ["tools/list_changed"]
    assert prompts.methods == ["prompts/list_changed", "resources/list_changed"]
    assert prompts.received[0]["params"] == {"_meta": {META_SUBSCRIPTION: 1}}
    assert nothing.received == []
    listeners.changed(frozenset({"resources"}))
    send_changes_now(listeners)
    assert one.methods[3:] == ["resources/list_changed"]
    assert tools.methods == ["tools/list_changed"]
    assert len(listeners) == 4
    listeners.close()
    assert one.is_closed
    for client_record in (tools, prompts, nothing):
        assert client_record.received[-1]["result"]["resultType"] == "complete"
        assert client_record.is_closed
    assert len(listeners) == 0


async def test_removed_listener_is_not_notified() -> None:
    listeners = ChangeListeners()
    one, other = RecordingClient(), RecordingClient()
    remaining = session(one)
    listeners.add_session(remaining)
    remove = listeners.add_stateless(
        b"1", accepted_kinds(toolsListChanged=True), other.take, other.ping, other.stop_listening
    )
    other.received.clear()
    listeners.changed(ALL)
    listeners.remove_session(remaining)
    remove()
    send_changes_now(listeners)
    assert (one.received, other.received) == ([], [])
    listeners.close()


# -- resources that are followed


async def test_notifies_of_subscribed_resources() -> None:
    subscriptions = ScriptedSubscriptions()
    listeners = ChangeListeners(subscriptions)
    client_record, plain = RecordingClient(), RecordingClient()
    requested = {"resourceSubscriptions": ["a:b", "c:d"]}
    requested["resourceSubscriptions"].append("refused:it")
    subscriptions.confirmation.clear()
    subscriptions.refused.add("refused:it")
    remove = listeners.add_stateless(
        b'"x"',
        accepted_kinds(**requested),
        client_record.take,
        client_record.ping,
        client_record.stop_listening,
        LISTEN_CALL,
    )
    listeners.add_stateless(b"2", {}, plain.take, plain.ping, plain.stop_listening)
    await asyncio.sleep(0)
    ((subscription, uris),) = subscriptions.uris.items()
    assert uris == ["a:b", "c:d"]
    # Nothing is told before it is acknowledged, and that waits for the server.
    subscription.send_resource_update('a:b/"part"')
    assert client_record.methods == []
    subscriptions.confirmation.set()
    for _ in range(3):
        await asyncio.sleep(0)
    assert client_record.methods == ["subscriptions/acknowledged", "resources/updated"]
    agreed = client_record.received[0]["params"]["notifications"]
    assert agreed == {"resourceSubscriptions": ["a:b", "c:d"]}
    assert client_record.received[-1] == {
        "jsonrpc": "2.0",
        "method": "notifications/resources/updated",
        "params": {"uri": 'a:b/"part"', "_meta": {META_SUBSCRIPTION: "x"}},
    }
    remove()
    assert not subscriptions.uris
    listeners.close()


async def test_removes_listeners_of_unknown_callers() -> None:
    subscriptions = ScriptedSubscriptions()
    listeners = ChangeListeners(subscriptions)
    known, gone, unsure = RecordingClient(), RecordingClient(), RecordingClient()
    for client_record, name in ((known, "operator"), (gone, "auditor")):
        call = Call(LISTEN, "test", Credentials("x"), LISTEN_CALL.client)
        call.caller = Caller(name)
        requested = accepted_kinds(toolsListChanged=True)
        listeners.add_stateless(
            b"1",
            requested,
            client_record.take,
            client_record.ping,
            client_record.stop_listening,
            call,
        )
    subscriptions.confirmation.clear()
    requested = accepted_kinds(resourceSubscriptions=["a:b"])
    listeners.add_stateless(b"2", requested, unsure.take, unsure.ping, unsure.stop_listening, call)
    listeners.retain_only({"operator"})
    assert (known.is_closed, gone.is_closed, unsure.is_closed) == (False, True, True)
    # The acknowledgement comes first, even before an end.
    assert unsure.received[0]["method"] == "notifications/subscriptions/acknowledged"
    assert not subscriptions.uris
    listeners.close()


async def test_close_unsubscribes_resources() -> None:
    subscriptions = ScriptedSubscriptions()
    listeners = ChangeListeners(subscriptions)
    client_record = RecordingClient()
    requested = accepted_kinds(resourceSubscriptions=["a:b"])
    listeners.add_stateless(
        b"1",
        requested,
        client_record.take,
        client_record.ping,
        client_record.stop_listening,
        LISTEN_CALL,
    )
    await asyncio.sleep(0)
    assert subscriptions.uris
    listeners.close()
    assert not subscriptions.uris
