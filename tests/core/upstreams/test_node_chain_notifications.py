"""Notifications and client requests of subservers through a chain of nodes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from interlock.core.call import Caller
from interlock.core.upstreams.notification_limits import NotificationLimiter
from interlock.protocol.mcp import META_LOG_LEVEL, Era
from tests.core.upstreams.node_chain import SESSION, STATELESS, NodeChain, run_on_loop, tool

LOG = "notifications/message"


# --- what is said on the way ---


@pytest.mark.spec("AX-12-1", "AX-12-10", "AX-12-8")
@run_on_loop
def test_prefixes_source_at_each_hop() -> None:
    chain = NodeChain(["edge", "leaf"], [tool("t")])
    edge, root = chain.nodes[1], chain.nodes[0]
    edge.peer.on_notification = lambda method, params: edge.face.send_notification(method, params)
    event = {"x-mcpax-event-id": "7d1f0f0e-0000-4000-8000-000000000002"}
    chain.send_notification(LOG, level="info", logger="x", data={"a": 1}, _meta={**event, "own": 1})
    chain.send_notification(LOG, level="info", data="y", _meta={"x-mcpax-causal-parent": None})
    chain.send_notification("notifications/custom", data=1)
    assert root.notifications == [
        (
            LOG,
            {
                "level": "info",
                "logger": "edge.leaf.x",
                "data": {"a": 1},
                "_meta": {**event, "own": 1, "x-mcpax-source": "edge.leaf"},
            },
        ),
        (
            LOG,
            {
                "level": "info",
                "data": "y",
                "logger": "edge.leaf",
                "_meta": {"x-mcpax-causal-parent": None, "x-mcpax-source": "edge.leaf"},
            },
        ),
        ("notifications/custom", {"data": 1, "_meta": {"x-mcpax-source": "edge.leaf"}}),
    ]


@run_on_loop
def test_empty_segment_adds_no_source() -> None:
    chain = NodeChain(["leaf"], [tool("t")])
    chain.root.peer.segment = ""
    chain.send_notification(LOG, level="info", logger="x", data=1)
    assert chain.root.notifications == [(LOG, {"level": "info", "logger": "x", "data": 1})]


@pytest.mark.spec("AX-12-10")
@run_on_loop
def test_notification_of_call_reaches_caller_through_all_nodes() -> None:
    """Two callers at the root, both behind the one parent that the edge knows."""
    chain = NodeChain(["edge", "leaf"], [tool("t")])
    chain.call("edge.leaf.t", meta={"progressToken": "mine"}, caller="operator")
    token = chain.nodes[-1].sent[0]["params"]["_meta"]["progressToken"]
    chain.send_notification("notifications/progress", progressToken=token, progress=1)
    assert chain.caller_notifications == [
        ("notifications/progress", {"progressToken": "mine", "progress": 1})
    ]
    # The edge knows one call only, so it can only be about that one.
    chain.send_notification(LOG, level="info", data="first")
    assert [params["data"] for _, params in chain.caller_notifications[1:]] == ["first"]
    [notification] = [json.loads(raw) for raw in chain.root.wire.up if b'"first"' in raw]
    request = notification["params"]["_meta"]["x-mcpax-request"]
    assert request == chain.root.sent[0]["id"]
    # The caller does not see what is between two nodes.
    assert "x-mcpax-request" not in chain.caller_notifications[1][1]["_meta"]
    chain.call("edge.leaf.t", caller="auditor")
    # Now it could be about either, so nobody hears it.
    chain.send_notification(LOG, level="info", data="second")
    assert [params["data"] for _, params in chain.caller_notifications[1:]] == ["first"]
    assert chain.nodes[1].notifications == chain.root.notifications == []


@run_on_loop
def test_leaf_names_request_of_notification() -> None:
    chain = NodeChain(["leaf"], [tool("t")])
    first = chain.call("leaf.t", caller="operator")
    chain.call("leaf.t", caller="auditor")
    ids = [sent["id"] for sent in chain.root.sent]
    received: list[Any] = []
    first.on_notification = lambda call, method, params: received.append(json.loads(bytes(params)))
    chain.send_notification(LOG, level="info", data=1, _meta={"x-mcpax-request": ids[0]})
    assert [params["data"] for params in received] == [1]
    assert chain.caller_notifications == []
    # What is over, what never was, and what no id of ours can be is about nobody.
    chain.respond(number=0)
    for request in (ids[0], 1, -1, -2, "1", "null", [1], {"a": 1}, 1.5, True):
        chain.send_notification(LOG, level="info", data=2, _meta={"x-mcpax-request": request})
    assert len(received) == 1
    assert chain.caller_notifications == chain.root.notifications == []


class RecordingSession:
    """A session that stores notifications."""

    client, owner, is_alive = SESSION, "operator", True
    log_level: str | None = None

    def __init__(self) -> None:
        self.caller_notifications: list[Any] = []

    def send_notification(self, method: str, params: Any) -> None:
        self.caller_notifications.append(json.loads(bytes(params))["data"])


def limit_rate(one: NodeChain, per_second: int = 2, kept: int = 3) -> NotificationLimiter:
    pace = one.root.peer.notification_limiter = NotificationLimiter(
        per_second=per_second, max_waiting=kept, clock=one.clock, call_later=one.clock.call_later
    )
    return pace


@pytest.mark.spec("AX-12-2", "AX-12-4")
@run_on_loop
def test_applies_rate_limit_to_notifications() -> None:
    chain = NodeChain(["leaf"], [tool("t")])
    pace = limit_rate(chain)
    updated: list[str] = []
    changed: list[str] = []
    chain.root.peer.on_updated = updated.append
    chain.root.peer.on_changed = changed.append
    for number in range(4):
        chain.send_notification(LOG, level="info", data=number)
    chain.send_notification("notifications/resources/updated", uri="file:///a")
    chain.send_notification(LOG, level="info", data=5)
    # A new list is told at once, however many wait.
    chain.send_notification("notifications/tools/list_changed")
    assert changed == ["tools"]
    assert updated == []
    assert [params["data"] for _, params in chain.root.notifications] == [0, 1]
    chain.clock.advance(5)
    assert [params["data"] for _, params in chain.root.notifications] == [0, 1, 3, 5]
    assert updated == ["file:///a"]
    assert pace.dropped == 1


@run_on_loop
def test_delayed_notification_reaches_only_lasting_client() -> None:
    """A client that stays is told all the same; for others there is nobody to tell."""
    chain = NodeChain(["leaf"], [tool("t")])
    pace = limit_rate(chain, per_second=1, kept=10)
    recording_session: Any = RecordingSession()
    chain.call("leaf.t", session=recording_session)
    for number in range(3):
        chain.send_notification(LOG, level="info", data=number)
    assert [params["data"] for _, params in chain.caller_notifications] == [0]
    chain.clock.advance(1)
    chain.respond()
    assert [params["data"] for _, params in chain.caller_notifications] == [0, 1]
    chain.clock.advance(1)
    assert recording_session.caller_notifications == [2]
    chain.call("leaf.t", client=STATELESS, meta={META_LOG_LEVEL: "info"})
    chain.send_notification(LOG, level="info", data=3)
    chain.respond()
    chain.clock.advance(3)
    assert recording_session.caller_notifications == [2]
    assert pace.dropped == 1


@pytest.mark.spec("AX-12-10")
@run_on_loop
def test_limits_progress_and_drops_it_after_result() -> None:
    chain = NodeChain(["leaf"], [tool("t")])
    pace = limit_rate(chain, per_second=2)
    chain.call("leaf.t", meta={"progressToken": 1})
    token = chain.root.sent[0]["params"]["_meta"]["progressToken"]
    for number in range(5):
        chain.send_notification("notifications/progress", progressToken=token, progress=number)
    chain.respond()
    chain.clock.advance(10)
    assert [params["progress"] for _, params in chain.caller_notifications] == [0, 1]
    assert pace.skipped_progress == 3


@run_on_loop
def test_counts_invalid_params_as_noise() -> None:
    chain = NodeChain(["leaf"], [tool("t")])
    for params in (b"[]", b"7", b'{"_meta":', b'{"logger":"\xff"}'):
        chain.root.wire.respond(
            b'{"jsonrpc":"2.0","method":"notifications/x","params":%b}' % params
        )
    assert chain.root.peer.noise == 4
    assert chain.root.notifications == []


# --- what it says as a subserver ---


@pytest.mark.parametrize("era", list(Era))
@run_on_loop
def test_receives_requests_of_subserver(era: Era) -> None:
    chain = NodeChain(["leaf"], [tool("t")], leaf_era=era)
    taken: list[Any] = []

    def take(method: str, id: bytes | None, params: Any) -> bool:
        taken.append((method, id))
        return method != "mcpax/other"

    def deliver_request(message: bytes) -> None:
        chain.root.wire.respond(b'{"jsonrpc":"2.0",' + message + b"}")

    chain.root.peer.on_ax = take
    deliver_request(b'"id":"mcpax-1","method":"mcpax/heartbeat","params":{}')
    deliver_request(b'"id":7,"method":"initialize","params":{}')
    deliver_request(b'"method":"mcpax/heartbeat"')
    deliver_request(b'"method":"notifications/initialized"')
    assert taken == [
        ("mcpax/heartbeat", b'"mcpax-1"'), ("initialize", b"7"), ("mcpax/heartbeat", None),
    ]  # fmt: skip
    assert chain.leaf_messages == []
    # What it does not take, and what is none of its business, goes the usual way.
    deliver_request(b'"id":8,"method":"mcpax/other"')
    deliver_request(b'"id":9,"method":"ping"')
    assert [message["id"] for message in chain.leaf_messages] == [8, 9]
    assert chain.leaf_messages[0]["error"]["code"] == -32601
    assert chain.root.notifications == []


@run_on_loop
def test_client_request_names_call() -> None:
    chain = NodeChain(["leaf"], [tool("t")])
    client_requests: list[Any] = []
    chain.root.pipeline.on_request = lambda ask, call, session: client_requests.append((call, ask))  # type: ignore[assignment, method-assign]
    first = chain.call("leaf.t", caller="operator")
    chain.call("leaf.t", caller="auditor")
    assert first.caller == Caller("operator")
    ids = [sent["id"] for sent in chain.root.sent]

    def deliver_request(id: int, request: int) -> None:
        meta = json.dumps({"_meta": {"x-mcpax-request": request}}).encode()
        chain.root.wire.respond(
            b'{"jsonrpc":"2.0","id":%d,"method":"roots/list","params":%b}' % (id, meta)
        )

    deliver_request(1, ids[0])
    [(call, client_request)] = client_requests
    assert call is first
    assert client_request.params == b"{}"
    # Of a request that is over.
    deliver_request(2, 1)
    assert len(client_requests) == 1
    assert chain.leaf_messages[-1]["error"]["code"] == -32601


@pytest.mark.spec("AX-12-9", "AX-12-8", "AX-12-2")
@run_on_loop
def test_relays_events_without_storing_them() -> None:
    """A child before its parent, a parent that never was: nobody here looks."""
    chain = NodeChain(["leaf"], [tool("t")])
    peer = chain.root.peer
    passed: list[Any] = []
    peer.on_notification = lambda method, params: passed.append(json.loads(params)["_meta"])
    state = {name: repr(value) for name, value in vars(peer).items() if name != "link"}
    number = 10_000
    for event in range(number):
        meta = {"x-mcpax-event-id": str(event), "x-mcpax-causal-parent": str(number - event)}
        peer.deliver(
            json.dumps(
                {"jsonrpc": "2.0", "method": LOG, "params": {"level": "info", "_meta": meta}}
            ).encode(),
            None,
        )
    assert [meta["x-mcpax-event-id"] for meta in passed] == [str(item) for item in range(number)]
    assert [meta["x-mcpax-causal-parent"] for meta in passed] == [
        str(number - item) for item in range(number)
    ]
    assert state == {name: repr(value) for name, value in vars(peer).items() if name != "link"}
