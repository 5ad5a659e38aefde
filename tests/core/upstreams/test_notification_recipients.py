"""Recipients of notifications of a subserver while calls are pending."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from interlock.core.upstreams import client as peer_module
from interlock.core.upstreams.client import NO_REQUEST, UNKNOWN_REQUEST, find_request_id
from interlock.core.upstreams.notification_limits import NotificationLimiter
from interlock.protocol.mcp import META_LOG_LEVEL
from tests.core.upstreams.node_chain import SESSION, STATELESS, NodeChain, run_on_loop, tool

LOG = "notifications/message"
LOST = "notifications/mcpax/subserver_lost"
ABOUT_NONE = {"x-mcpax-request": None}


def leaf_chain() -> NodeChain:
    return NodeChain(["leaf"], [tool("t")])


def broadcast_data(one: NodeChain) -> list[Any]:
    return [params.get("data") for _, params in one.root.notifications]


def caller_data(one: NodeChain) -> list[Any]:
    return [params.get("data") for _, params in one.caller_notifications]


@pytest.mark.parametrize("method", [LOG, "notifications/custom"])
@pytest.mark.parametrize("client", [SESSION, STATELESS])
@run_on_loop
def test_notifications_during_two_calls_reach_no_others(method: str, client: Any) -> None:
    chain = leaf_chain()
    chain.call("leaf.t", client=client, caller="operator", meta={})
    chain.call("leaf.t", client=client, caller="auditor", meta={})
    chain.send_notification(method, level="info", data="a row of one of them")
    assert chain.caller_notifications == chain.root.notifications == []


@run_on_loop
def test_notification_filtered_for_only_caller_reaches_nobody() -> None:
    chain = leaf_chain()
    chain.call("leaf.t", client=STATELESS, meta={})
    chain.send_notification(LOG, level="info", data=1)
    chain.send_notification("notifications/custom", data=2)
    assert chain.caller_notifications == chain.root.notifications == []
    chain.respond()
    chain.call("leaf.t", client=STATELESS, meta={META_LOG_LEVEL: "info"})
    chain.send_notification(LOG, level="info", data=3)
    assert caller_data(chain) == [3]
    assert chain.root.notifications == []


@pytest.mark.spec("AX-12-1")
@run_on_loop
def test_notifications_without_calls_reach_all() -> None:
    chain = leaf_chain()
    chain.send_notification(LOG, level="info", data=1)
    chain.call("leaf.t")
    chain.respond()
    # Its own requests are nobody's.
    chain.root.peer.request("tools/list")
    chain.send_notification(LOG, level="info", data=2)
    assert broadcast_data(chain) == [1, 2]


@run_on_loop
def test_cancelled_call_keeps_notifications_private_for_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chain = leaf_chain()
    call = chain.call("leaf.t", caller="operator")
    chain.root.pipeline.cancel(call)
    chain.send_notification(LOG, level="info", data="still at it")
    assert chain.caller_notifications == chain.root.notifications == []
    # The late answer says that it is over.
    chain.respond()
    chain.send_notification(LOG, level="info", data=1)
    assert broadcast_data(chain) == [1]
    call = chain.call("leaf.t", caller="operator")
    chain.root.pipeline.cancel(call)
    chain.send_notification(LOG, level="info", data=2)
    assert broadcast_data(chain) == [1]
    loop = asyncio.get_running_loop()
    now = loop.time() + peer_module._ABANDONED_SECONDS + 1
    monkeypatch.setattr(loop, "time", lambda: now)
    chain.send_notification(LOG, level="info", data=3)
    assert broadcast_data(chain) == [1, 3]


@pytest.mark.spec("AX-12-1")
@run_on_loop
def test_notification_without_call_reaches_all_during_calls() -> None:
    """An alarm of a leaf below the edge, where the root only sees the edge's channel."""
    chain = NodeChain(["edge", "leaf"], [tool("t")])
    edge = chain.nodes[1]
    edge.peer.on_notification = lambda method, params: edge.face.send_notification(method, params)
    chain.call("edge.leaf.t", caller="operator")
    chain.call("edge.leaf.t", caller="auditor")
    chain.send_notification(LOG, level="alert", data="hot", _meta=ABOUT_NONE)
    chain.send_notification(LOST, data="gone")
    assert broadcast_data(chain) == ["hot", "gone"]
    assert chain.caller_notifications == []
    # Nobody outside sees how nodes say that.
    for _, params in chain.root.notifications:
        assert params["_meta"] == {"x-mcpax-source": "edge.leaf"}
    # What could be about a call does not get past the edge.
    chain.send_notification(LOG, level="alert", data="whose?")
    assert broadcast_data(chain) == ["hot", "gone"]


@run_on_loop
def test_tree_event_belongs_to_no_call() -> None:
    chain = leaf_chain()
    chain.call("leaf.t", client=SESSION)
    chain.send_notification(LOST, data=1)
    chain.send_notification("notifications/mcpax/notification_overflow", data=2)
    assert broadcast_data(chain) == [1, 2]
    assert chain.caller_notifications == []


@run_on_loop
def test_notification_about_node_request_reaches_nobody() -> None:
    chain = leaf_chain()
    own = chain.root.peer.request("tools/list")
    chain.send_notification(LOG, level="info", data=1, _meta={"x-mcpax-request": own.id})
    assert chain.root.notifications == []


@run_on_loop
def test_unheard_notification_uses_no_rate() -> None:
    chain = leaf_chain()
    pace = chain.root.peer.notification_limiter = NotificationLimiter(
        per_second=1, max_waiting=1, clock=chain.clock, call_later=chain.clock.call_later
    )
    chain.call("leaf.t", client=STATELESS, meta={})
    for _ in range(5):
        chain.send_notification(LOG, level="info", data="unheard")
    assert (pace.waiting, pace.dropped) == (0, 0)
    chain.send_notification(LOG, level="alert", data="hot", _meta=ABOUT_NONE)
    assert broadcast_data(chain) == ["hot"]


@pytest.mark.spec("AX-6.1-5")
@run_on_loop
def test_mute_subserver_sends_no_notifications() -> None:
    """It has said that it has no notifications. What its lists and calls need is none."""
    chain = leaf_chain()
    peer = chain.root.peer
    peer.drops_notifications = True
    received: list[str] = []
    peer.on_changed = received.append
    peer.on_updated = received.append
    chain.send_notification(LOG, level="info", data=1)
    chain.call("leaf.t", meta={"progressToken": "p"})
    chain.send_notification(LOG, level="info", data=2)
    chain.send_notification(
        LOG, level="info", data=3, _meta={"x-mcpax-request": chain.root.sent[0]["id"]}
    )
    chain.send_notification(LOG, level="info", data=4, _meta=ABOUT_NONE)
    chain.send_notification("notifications/custom", data=5)
    chain.send_notification(LOST, data=6)
    assert chain.caller_notifications == chain.root.notifications == []
    token = chain.root.sent[0]["params"]["_meta"]["progressToken"]
    chain.send_notification("notifications/progress", progressToken=token, progress=1)
    chain.send_notification("notifications/tools/list_changed")
    chain.send_notification("notifications/resources/updated", uri="file:///a")
    assert [method for method, _ in chain.caller_notifications] == ["notifications/progress"]
    assert received == ["tools", "file:///a"]


@pytest.mark.parametrize(
    ("params", "request_"),
    [
        (b"{}", None),
        (b'{"_meta":{}}', None),
        (b'{"_meta":{"x-mcpax-request":7}}', 7),
        (b'{"_meta":{"x-mcpax-request":null}}', NO_REQUEST),
        (b'{"\\u005fmeta":{"x-mcpax-reques\\u0074":null}}', NO_REQUEST),
        (b'{"_meta":{"x-mcpax-request":-1}}', UNKNOWN_REQUEST),
        (b'{"_meta":{"x-mcpax-request":-2}}', UNKNOWN_REQUEST),
        (b'{"_meta":{"x-mcpax-request":"null"}}', UNKNOWN_REQUEST),
        (b'{"_meta":{"x-mcpax-request":true}}', UNKNOWN_REQUEST),
        (b'{"_meta":{"x-mcpax-request":1e99}}', UNKNOWN_REQUEST),
        (b'{"data":"x-mcpax-request"}', None),
    ],
)
def test_finds_request_id(params: bytes, request_: int | None) -> None:
    assert find_request_id(params) == request_
