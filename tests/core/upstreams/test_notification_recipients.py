"""Recipients of notifications of a subserver while calls are pending."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from interlock.core.upstreams import client as peer_module
from interlock.core.upstreams.client import NO_REQUEST, UNKNOWN_REQUEST, find_request_id
from interlock.core.upstreams.notification_limits import NotificationLimiter
from interlock.protocol.mcp import META_LOG_LEVEL
from tests.core.upstreams.node_chain import SESSION, STATELESS, Row, on_a_loop, tool

LOG = "notifications/message"
LOST = "notifications/mcpax/subserver_lost"
ABOUT_NONE = {"x-mcpax-request": None}


def leaf() -> Row:
    return Row(["leaf"], [tool("t")])


def said(one: Row) -> list[Any]:
    return [params.get("data") for _, params in one.root.said]


def told(one: Row) -> list[Any]:
    return [params.get("data") for _, params in one.told]


@pytest.mark.parametrize("method", [LOG, "notifications/custom"])
@pytest.mark.parametrize("client", [SESSION, STATELESS])
@on_a_loop
def test_notifications_during_two_calls_reach_no_others(method: str, client: Any) -> None:
    one = leaf()
    one.call("leaf.t", client=client, caller="operator", meta={})
    one.call("leaf.t", client=client, caller="auditor", meta={})
    one.say(method, level="info", data="a row of one of them")
    assert one.told == one.root.said == []


@on_a_loop
def test_notification_filtered_for_only_caller_reaches_nobody() -> None:
    one = leaf()
    one.call("leaf.t", client=STATELESS, meta={})
    one.say(LOG, level="info", data=1)
    one.say("notifications/custom", data=2)
    assert one.told == one.root.said == []
    one.answer()
    one.call("leaf.t", client=STATELESS, meta={META_LOG_LEVEL: "info"})
    one.say(LOG, level="info", data=3)
    assert told(one) == [3]
    assert one.root.said == []


@pytest.mark.spec("AX-12-1")
@on_a_loop
def test_notifications_without_calls_reach_all() -> None:
    one = leaf()
    one.say(LOG, level="info", data=1)
    one.call("leaf.t")
    one.answer()
    # Its own requests are nobody's.
    one.root.peer.request("tools/list")
    one.say(LOG, level="info", data=2)
    assert said(one) == [1, 2]


@on_a_loop
def test_cancelled_call_keeps_notifications_private_for_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    one = leaf()
    call = one.call("leaf.t", caller="operator")
    one.root.pipeline.cancel(call)
    one.say(LOG, level="info", data="still at it")
    assert one.told == one.root.said == []
    # The late answer says that it is over.
    one.answer()
    one.say(LOG, level="info", data=1)
    assert said(one) == [1]
    call = one.call("leaf.t", caller="operator")
    one.root.pipeline.cancel(call)
    one.say(LOG, level="info", data=2)
    assert said(one) == [1]
    loop = asyncio.get_running_loop()
    now = loop.time() + peer_module._ABANDONED_SECONDS + 1
    monkeypatch.setattr(loop, "time", lambda: now)
    one.say(LOG, level="info", data=3)
    assert said(one) == [1, 3]


@pytest.mark.spec("AX-12-1")
@on_a_loop
def test_notification_without_call_reaches_all_during_calls() -> None:
    """An alarm of a leaf below the edge, where the root only sees the edge's channel."""
    one = Row(["edge", "leaf"], [tool("t")])
    edge = one.nodes[1]
    edge.peer.on_notification = lambda method, params: edge.face.announce(method, params)
    one.call("edge.leaf.t", caller="operator")
    one.call("edge.leaf.t", caller="auditor")
    one.say(LOG, level="alert", data="hot", _meta=ABOUT_NONE)
    one.say(LOST, data="gone")
    assert said(one) == ["hot", "gone"]
    assert one.told == []
    # Nobody outside sees how nodes say that.
    for _, params in one.root.said:
        assert params["_meta"] == {"x-mcpax-source": "edge.leaf"}
    # What could be about a call does not get past the edge.
    one.say(LOG, level="alert", data="whose?")
    assert said(one) == ["hot", "gone"]


@on_a_loop
def test_tree_event_belongs_to_no_call() -> None:
    one = leaf()
    one.call("leaf.t", client=SESSION)
    one.say(LOST, data=1)
    one.say("notifications/mcpax/notification_overflow", data=2)
    assert said(one) == [1, 2]
    assert one.told == []


@on_a_loop
def test_notification_about_node_request_reaches_nobody() -> None:
    one = leaf()
    own = one.root.peer.request("tools/list")
    one.say(LOG, level="info", data=1, _meta={"x-mcpax-request": own.id})
    assert one.root.said == []


@on_a_loop
def test_unheard_notification_uses_no_rate() -> None:
    one = leaf()
    pace = one.root.peer.notification_limiter = NotificationLimiter(
        per_second=1, max_waiting=1, clock=one.clock, call_later=one.clock.call_later
    )
    one.call("leaf.t", client=STATELESS, meta={})
    for _ in range(5):
        one.say(LOG, level="info", data="unheard")
    assert (pace.waiting, pace.dropped) == (0, 0)
    one.say(LOG, level="alert", data="hot", _meta=ABOUT_NONE)
    assert said(one) == ["hot"]


@pytest.mark.spec("AX-6.1-5")
@on_a_loop
def test_mute_subserver_sends_no_notifications() -> None:
    """It has said that it has no notifications. What its lists and calls need is none."""
    one = leaf()
    peer = one.root.peer
    peer.mute = True
    heard: list[str] = []
    peer.on_changed = heard.append
    peer.on_updated = heard.append
    one.say(LOG, level="info", data=1)
    one.call("leaf.t", meta={"progressToken": "p"})
    one.say(LOG, level="info", data=2)
    one.say(LOG, level="info", data=3, _meta={"x-mcpax-request": one.root.sent[0]["id"]})
    one.say(LOG, level="info", data=4, _meta=ABOUT_NONE)
    one.say("notifications/custom", data=5)
    one.say(LOST, data=6)
    assert one.told == one.root.said == []
    token = one.root.sent[0]["params"]["_meta"]["progressToken"]
    one.say("notifications/progress", progressToken=token, progress=1)
    one.say("notifications/tools/list_changed")
    one.say("notifications/resources/updated", uri="file:///a")
    assert [method for method, _ in one.told] == ["notifications/progress"]
    assert heard == ["tools", "file:///a"]


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
