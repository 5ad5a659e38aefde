"""Long streams: changes, progress, pings, cancellation and shutdown."""

from __future__ import annotations

from typing import Any

import pytest

from interlock.app import node as node_room
from interlock.core.catalog.offering import read_offering
from interlock.core.server.http import exchange as exchange_room
from interlock.core.server.mcp import change_notifications as listeners
from interlock.core.server.mcp import responder as answering
from interlock.protocol.jsonrpc import encode_value
from tests.support.http_client import META, HttpConnection
from tests.support.node import NodeThread, result_text
from tests.support.timeouts import HANG_TIMEOUT
from tests.support.tool_server import ToolServer, tool

CHANGED = "notifications/tools/list_changed"
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
WANTS_TOOLS = {"notifications": {"toolsListChanged": True}}


def listen(
    node: NodeThread, connection: HttpConnection, params: Any = WANTS_TOOLS, id: Any = "l"
) -> Any:
    """Open a subscription and return its acknowledgement."""
    connection.send(node.stateless("subscriptions/listen", params, id))
    read_stream_head(connection)
    first = connection.event()
    assert first["method"] == ACKNOWLEDGED
    return first["params"]


def read_stream_head(connection: HttpConnection) -> None:
    status, headers = connection.head()
    assert status == 200
    assert headers["content-type"] == "text/event-stream"
    assert headers["cache-control"] == "no-store"


def names(node: NodeThread) -> list[str]:
    tools = node.once(node.stateless("tools/list")).result["tools"]
    return [item["name"] for item in tools]


def publish_tools(node: NodeThread, *tools: str) -> None:
    """Publish another tool list, as a supervisor does."""
    server = node.node.config.servers["shop"]
    raw = [encode_value(tool(name)) for name in tools]
    node.node.catalog.publish(read_offering("shop", server, raw))


def assert_no_pending_change(node: NodeThread) -> None:
    assert node.do(lambda: node.node._change_listeners._change_timer) is None


# -- changes


@pytest.mark.parametrize("era", ["session", "stateless"])
def test_sends_upstream_change_to_both_generations(start_node: Any, era: str) -> None:
    shop = ToolServer(era)
    node = start_node(workshops={"shop": shop})
    shop.wait_for(lambda: shop._listening, "the node to listen")
    with node.connect() as get, node.connect() as subscribed:
        get.send(node.session().get())
        read_stream_head(get)
        listen(node, subscribed)
        for round in ("one", "two"):
            node.do(lambda tools=round: shop.offer(tools, "same"))
            assert get.event() == {"jsonrpc": "2.0", "method": CHANGED}
            assert subscribed.event() == {
                "jsonrpc": "2.0",
                "method": CHANGED,
                "params": {"_meta": {META + "subscriptionId": "l"}},
            }
            # Whoever was told finds the new list.
            assert sorted(names(node)) == sorted([f"shop__{round}", "shop__same"])
        assert_no_pending_change(node)
        get.expect_silence()
        subscribed.expect_silence()


def test_combines_burst_of_changes(start_node: Any) -> None:
    node = start_node()
    with node.connect() as get, node.connect() as subscribed:
        get.send(node.session().get())
        read_stream_head(get)
        listen(node, subscribed)

        def burst() -> None:
            for number in range(10):
                publish_tools(node, f"t{number}")
                node.node.catalog.withdraw("shop")
            publish_tools(node, "last")

        node.do(burst)
        assert get.event()["method"] == CHANGED
        assert names(node) == ["shop__last"]
        assert subscribed.event()["method"] == CHANGED
        assert_no_pending_change(node)
        get.expect_silence()
        subscribed.expect_silence()
        # The same list again is no change.
        node.do(lambda: publish_tools(node, "last"))
        assert_no_pending_change(node)


def test_stores_no_changes_without_listeners(start_node: Any) -> None:
    node = start_node()
    node.do(lambda: publish_tools(node, "alone"))
    assert_no_pending_change(node)
    with node.connect() as subscribed:
        listen(node, subscribed)
        node.do(lambda: publish_tools(node, "heard"))
        assert subscribed.event()["method"] == CHANGED
        assert_no_pending_change(node)
        subscribed.expect_silence()


def test_notifies_newest_stream_of_session(start_node: Any) -> None:
    # No message may be sent on two streams.
    node = start_node()
    session, other = node.session(), node.session()
    with node.connect() as older, node.connect() as newer, node.connect() as others:
        for connection, whose in ((older, session), (newer, session), (others, other)):
            connection.send(whose.get())
            read_stream_head(connection)
            connection.read_event_id()
        node.do(lambda: publish_tools(node, "one"))
        assert newer.event()["method"] == CHANGED
        assert others.event()["method"] == CHANGED
        older.expect_silence()
        newer.close()
        node.until(lambda: len(node.node._change_listeners) == 2)
        node.do(lambda: publish_tools(node, "two"))
        assert older.event()["method"] == CHANGED


# -- what is subscribed to


@pytest.mark.parametrize("id", [0, -5, "l", 'é\n"quoted"', 2**60])
def test_acknowledges_subscription_first_with_id(shared_node: NodeThread, id: Any) -> None:
    with shared_node.connect() as connection:
        acknowledged = listen(shared_node, connection, id=id)
        assert acknowledged == {
            "_meta": {META + "subscriptionId": id},
            "notifications": {"toolsListChanged": True},
        }
        assert type(acknowledged["_meta"][META + "subscriptionId"]) is type(id)


@pytest.mark.parametrize(
    ("requested", "accepted"),
    [
        ({}, {}),
        ({"toolsListChanged": False}, {}),
        ({"toolsListChanged": "yes"}, {}),
        ({"promptsListChanged": True, "resourceSubscriptions": ["x:y"]}, {}),
        ({"toolsListChanged": True, "madeUp": True}, {"toolsListChanged": True}),
    ],
)
def test_sends_only_requested_and_served_kinds(
    start_node: Any, requested: Any, accepted: Any
) -> None:
    node = start_node()
    with node.connect() as connection, node.connect() as all:
        assert listen(node, connection, {"notifications": requested})["notifications"] == accepted
        listen(node, all)
        node.do(lambda: publish_tools(node, "one"))
        assert all.event()["method"] == CHANGED
        if accepted:
            assert connection.event()["method"] == CHANGED
        connection.expect_silence()


@pytest.mark.parametrize(
    "params",
    [
        {},
        *({"notifications": broken} for broken in ([], "all", None, 5)),  # type: ignore[var-annotated]
        *({"notifications": {"resourceSubscriptions": broken}} for broken in ("x:y", [1], {})),  # type: ignore[var-annotated]
        {"notifications": {"resourceSubscriptions": ["x:y"] * 1_001}},
    ],
)
def test_rejects_invalid_filter(shared_node: NodeThread, params: Any) -> None:
    response = shared_node.once(shared_node.stateless("subscriptions/listen", params))
    assert (response.status, response.error["code"]) == (400, -32602)


# -- their ends


@pytest.mark.parametrize("kind", ["get", "listen"])
def test_removes_disconnected_listener(shared_node: NodeThread, kind: str) -> None:
    before = shared_node.do(lambda: len(shared_node.node._change_listeners))
    session = shared_node.session()
    for _ in range(3):
        with shared_node.connect() as connection:
            if kind == "get":
                connection.send(session.get())
                read_stream_head(connection)
            else:
                listen(shared_node, connection)
            shared_node.until(lambda: len(shared_node.node._change_listeners) == before + 1)
        shared_node.until(lambda: len(shared_node.node._change_listeners) == before, "an end")


def test_ending_session_ends_streams_and_calls(shared_node: NodeThread) -> None:
    session = shared_node.session()
    with shared_node.connect() as stream, shared_node.connect() as call:
        stream.send(session.get())
        read_stream_head(stream)
        stream.read_event_id()
        call.send(session.call("hold", {"text": "deleted"}))
        pending_call = shared_node.shop.wait_for_hold("deleted")
        assert shared_node.once(session.delete()).status == 200
        stream.stream_end()
        assert call.read_response().body == b""
        shared_node.shop.wait_for(
            lambda: shared_node.shop.find_received(
                "notifications/cancelled", requestId=pending_call
            )
        )
        # The connections outlive it.
        assert result_text(stream.request(shared_node.call("echo", {"text": "on"}))) == "on"


def test_shutdown_ends_streams(start_node: Any) -> None:
    node = start_node()
    session = node.session()
    with node.connect() as get, node.connect() as one, node.connect() as other:
        get.send(session.get())
        read_stream_head(get)
        get.read_event_id()
        listen(node, one, id="one")
        listen(node, other, {"notifications": {}}, id=2)
        node.stop()
        for connection, id in ((one, "one"), (other, 2)):
            assert connection.event() == {
                "jsonrpc": "2.0",
                "id": id,
                "result": {"resultType": "complete", "_meta": {META + "subscriptionId": id}},
            }
            connection.stream_end()
            connection.expect_closed()
        get.stream_end()
        get.expect_closed()


def test_shutdown_answers_pending_calls(start_node: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_room, "DRAIN_SECONDS", 0.05)
    node = start_node()
    session = node.session()
    with node.connect() as stateless, node.connect() as old, node.connect() as streaming:
        stateless.send(node.call("hold", {"text": "one"}, 1))
        old.send(session.call("hold", {"text": "two"}, 2))
        streaming.send(node.call("hold", {"text": "three"}, 3, more_meta={"progressToken": 0}))
        for text in ("one", "two"):
            node.shop.wait_for_hold(text)
        pending_call = node.shop.wait_for_hold("three")
        node.do(lambda: node.shop.progress(pending_call, 1))
        read_stream_head(streaming)
        assert streaming.event()["params"]["progress"] == 1
        node.stop()
        for connection, id, status in ((stateless, 1, 503), (old, 2, 200)):
            response = connection.read_response()
            assert (response.status, response.json["id"]) == (status, id)
            assert response.error["data"] == {"error": "shutting_down", "retryable": True}
            connection.expect_closed()
        assert streaming.event()["error"]["data"]["error"] == "shutting_down"
        streaming.stream_end()
        streaming.expect_closed()
    assert len(node.shop.find_received("notifications/cancelled")) == 3


def test_idle_connections_do_not_delay_shutdown(start_node: Any) -> None:
    node = start_node()
    with node.connect() as used, node.connect() as unused:
        assert used.request(node.call("echo", {"text": "x"})).status == 200
        node.stop()
        used.expect_closed()
        unused.expect_closed()


# -- signs of life


def test_pings_idle_streams(start_node: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners, "PING_EVERY", 0.02)
    node = start_node()
    with node.connect() as get, node.connect() as subscribed:
        get.send(node.session().get())
        read_stream_head(get)
        listen(node, subscribed)
        for _ in range(2):
            assert get.event() is None
            assert subscribed.event() is None


@pytest.mark.parametrize("kind", ["stateless", "session"])
def test_long_call_becomes_stream_with_pings(
    start_node: Any, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(answering, "QUIET", 0.03)
    node = start_node()
    make: Any = node.call if kind == "stateless" else node.session().call
    with node.connect() as connection:
        connection.send(make("hold", {"text": "long"}, "l"))
        pending_call = node.shop.wait_for_hold("long")
        read_stream_head(connection)
        assert connection.event() is None
        assert connection.event() is None
        node.do(lambda: node.shop.release(pending_call))
        while (last := connection.event()) is None:
            pass
        assert (last["id"], result_text(last)) == ("l", "released")
        connection.stream_end()
        # And it is a connection like any other. On a busy machine the next call takes long, too.
        monkeypatch.setattr(answering, "QUIET", HANG_TIMEOUT)
        assert result_text(connection.request(make("echo", {"text": "next"}))) == "next"


def test_long_call_without_stream_support_stays_silent(
    start_node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answering, "QUIET", 0.03)
    node = start_node()
    data = node.call("hold", {"text": "plain"})
    data = data.replace(b"application/json, text/event-stream", b"application/json")
    with node.connect() as connection, node.connect() as other:
        other.send(node.call("hold", {"text": "witness"}))
        connection.send(data)
        pending_call = node.shop.wait_for_hold("plain")
        witness = node.shop.wait_for_hold("witness")
        read_stream_head(other)
        assert [other.event(), other.event()] == [None, None]
        connection.expect_silence()
        node.do(lambda: node.shop.release(pending_call))
        response = connection.read_response()
        assert response.headers["content-type"] == "application/json"
        assert result_text(response) == "released"
        node.do(lambda: node.shop.release(witness))


# -- progress and logs


@pytest.mark.parametrize("era", ["session", "stateless"])
@pytest.mark.parametrize("kind", ["stateless", "session"])
@pytest.mark.parametrize("token", [0, "my token", 2**60])
def test_sends_progress(start_node: Any, era: str, kind: str, token: Any) -> None:
    node = start_node(workshops={"shop": ToolServer(era)})
    if kind == "stateless":
        data = node.call("report", {"steps": 3}, "r", more_meta={"progressToken": token})
    else:
        data = node.session().call("report", {"steps": 3}, "r", _meta={"progressToken": token})
    with node.connect() as connection:
        connection.send(data)
        read_stream_head(connection)
        for step in (1, 2, 3):
            assert connection.event() == {
                "jsonrpc": "2.0",
                "method": "notifications/progress",
                "params": {"progressToken": token, "progress": step, "total": 3},
            }
        last = connection.event()
        assert (last["id"], result_text(last)) == ("r", "reported")
        connection.stream_end()
        assert result_text(connection.request(node.call("echo", {"text": "next"}))) == "next"


def test_omits_progress_without_token(shared_node: NodeThread) -> None:
    for data in (
        shared_node.call("report", {"steps": 3}),
        shared_node.session().call("report", {"steps": 3}),
    ):
        response = shared_node.once(data)
        assert response.headers["content-type"] == "application/json"
        assert result_text(response) == "reported"


def test_sends_logs_to_requesting_clients(shared_node: NodeThread) -> None:
    notification = {"method": "notifications/message", "params": {"level": "info", "data": "hello"}}
    with shared_node.connect() as connection:
        # The stateless wire forbids them unless a level was given.
        connection.send(shared_node.call("say", notification, 1, more_meta={"progressToken": 1}))
        assert result_text(connection.read_response()) == "said"
        level = {"progressToken": 1, META + "logLevel": "info"}
        for data in (
            shared_node.call("say", notification, 1, more_meta=level),
            shared_node.session().call("say", notification, 1, _meta={"progressToken": 1}),
        ):
            connection.send(data)
            read_stream_head(connection)
            assert connection.event() == {"jsonrpc": "2.0", **notification}
            assert result_text(connection.event()) == "said"
            connection.stream_end()


# -- cancelling


@pytest.mark.parametrize("era", ["session", "stateless"])
def test_disconnect_cancels_stateless_call(start_node: Any, era: str) -> None:
    shop = ToolServer(era)
    node = start_node(workshops={"shop": shop})
    for more_meta in ({}, {"progressToken": 1}):
        with node.connect() as connection:
            connection.send(
                node.call("hold", {"text": f"up {len(more_meta)}"}, 1, more_meta=more_meta)
            )
            pending_call = shop.wait_for_hold(f"up {len(more_meta)}")
        if era == "session":
            shop.wait_for(
                lambda id=pending_call: shop.find_received("notifications/cancelled", requestId=id)
            )
        else:
            shop.wait_for(lambda id=pending_call: id in shop.hung_up)
    node.until(lambda: not list(node.node.pipeline.running_calls()))
    assert node.alive()


def test_disconnect_does_not_cancel_session_call(start_node: Any) -> None:
    node = start_node()
    session = node.session()
    with node.connect() as connection:
        connection.send(session.call("hold", {"text": "kept"}, 5))
        pending_call = node.shop.wait_for_hold("kept")
    node.until(
        lambda: all(
            connection.peer
            for connection in node.node.listeners._http._server.server_state.connections
        )
    )
    node.until(
        lambda: not node.node.listeners._http._server.server_state.connections,
        "the connection's end",
    )
    assert node.alive()
    assert not node.shop.find_received("notifications/cancelled")
    # It can still be cancelled by its id, and otherwise it comes to its end.
    node.do(lambda: node.shop.release(pending_call))
    node.until(lambda: not list(node.node.pipeline.running_calls()))


def test_rejects_duplicate_pending_id(start_node: Any) -> None:
    node = start_node()
    session = node.session()
    with node.connect() as connection:
        connection.send(session.call("hold", {"text": "first"}, 5))
        pending_call = node.shop.wait_for_hold("first")
        caught = node.once(session.call("echo", {"text": "second"}, 5))
        assert caught.json["id"] == 5
        assert caught.json["error"]["code"] == -32600
        node.do(lambda: node.shop.release(pending_call))
        assert "result" in connection.read_response().json
    assert "result" in node.once(session.call("echo", {"text": "third"}, 5)).json


@pytest.mark.parametrize("era", ["session", "stateless"])
@pytest.mark.parametrize("id", [7, "7", "é\n"])
def test_session_cancels_with_notification(start_node: Any, era: str, id: Any) -> None:
    shop = ToolServer(era)
    node = start_node(workshops={"shop": shop})
    session = node.session()
    with node.connect() as connection:
        connection.send(session.call("hold", {"text": "c"}, id))
        pending_call = shop.wait_for_hold("c")
        # Somebody else's id, or one of another type, is not this one.
        for other in ("other", 8, str(id) if isinstance(id, int) else 7):
            data = session.request("notifications/cancelled", {"requestId": other}, None)
            assert node.once(data).status == 202
        unauthenticated = node.session()
        data = unauthenticated.request("notifications/cancelled", {"requestId": id}, None)
        assert node.once(data).status == 202
        assert node.alive()
        connection.expect_silence()
        data = session.request("notifications/cancelled", {"requestId": id, "reason": "x"}, None)
        assert node.once(data).status == 202
        # No answer, only an end.
        response = connection.read_response()
        assert (response.status, response.body) == (200, b"")
        assert response.headers["content-type"] == "text/event-stream"
        if era == "session":
            shop.wait_for(
                lambda: shop.find_received("notifications/cancelled", requestId=pending_call)
            )
        else:
            shop.wait_for(lambda: pending_call in shop.hung_up)
        # Its id is free again.
        assert (
            result_text(connection.request(session.call("echo", {"text": "again"}, id))) == "again"
        )


def test_closes_connection_of_slow_reader(start_node: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange_room, "_MAX_UNREAD_BYTES", 200_000)
    node = start_node()
    with node.connect(receive=4_096) as connection:
        connection.send(
            node.call("hold", {"text": "slow"}, 1, more_meta={"progressToken": "p" * 50_000})
        )
        pending_call = node.shop.wait_for_hold("slow")

        def more() -> bool:
            if pending_call in node.shop._held:
                node.shop.progress(pending_call, 1)
            return bool(node.shop.find_received("notifications/cancelled", requestId=pending_call))

        node.until(more, "the cut")
        try:
            assert not connection.rest().endswith(b"\r\n0\r\n\r\n")
        except ConnectionResetError:
            pass  # just as well
    assert node.alive()
