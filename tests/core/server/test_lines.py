"""MCP over lines on the local socket: both generations on one connection."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest

from interlock.app import node as node_room
from interlock.core.journal.reader import JournalReader
from interlock.core.server.mcp import conversation, stream
from tests.support.http_client import (
    META,
    SESSION,
    STATELESS,
    HttpConnection,
    initialize,
    message,
    meta,
)
from tests.support.node import NodeThread, result_text


def send_request(connection: HttpConnection, method: str, params: Any = None, id: Any = 1) -> Any:
    connection.send(message(method, params, id) + b"\n")
    return connection.line()


def call(tool: str, arguments: Any = None, id: Any = 1, **more: Any) -> bytes:
    """Return a stateless call."""
    params = {"name": f"shop.{tool}", "arguments": arguments or {}, "_meta": meta(**more)}
    return message("tools/call", params, id) + b"\n"


def session_call(tool: str, arguments: Any = None, id: Any = 1, **more: Any) -> bytes:
    params = {"name": f"shop.{tool}", "arguments": arguments or {}, **more}
    return message("tools/call", params, id) + b"\n"


def open_session(connection: HttpConnection, version: str = SESSION) -> Any:
    response = send_request(connection, "initialize", initialize(version), "init")
    connection.send(message("notifications/initialized", id=None) + b"\n")
    assert send_request(connection, "ping")["result"] == {}
    return response["result"]


def error_code(answer: Any) -> int:
    number: int = answer["error"]["code"]
    return number


# -- both eras


def test_serves_session(shared_node: NodeThread) -> None:
    with shared_node.local() as connection:
        result = open_session(connection)
        assert result["protocolVersion"] == SESSION
        assert result["serverInfo"]["name"] == "interlock"
        tools = send_request(connection, "tools/list")["result"]
        assert set(tools) == {"tools"}
        connection.send(session_call("echo", {"text": "hi"}, "id"))
        response = connection.line()
        assert response["id"] == "id"
        assert response["result"] == {"content": [{"type": "text", "text": "hi"}]}


def test_serves_requests_without_session(shared_node: NodeThread) -> None:
    with shared_node.local() as connection:
        assert send_request(connection, "server/discover", {"_meta": meta()})["result"][
            "supportedVersions"
        ]
        result = send_request(connection, "tools/list", {"_meta": meta()})["result"]
        assert result["resultType"] == "complete"
        connection.send(call("echo", {"text": "hi"}))
        result = connection.line()["result"]
        assert result["resultType"] == "complete"
        assert result["_meta"][META + "serverInfo"]["name"] == "interlock"


def test_serves_both_generations_on_one_connection(shared_node: NodeThread) -> None:
    with shared_node.local() as connection:
        open_session(connection)
        for _ in range(3):
            connection.send(
                call("echo", {"text": "new"}, 1) + session_call("echo", {"text": "old"}, 2)
            )
            responses = {
                item["id"]: item["result"] for item in (connection.line(), connection.line())
            }
            assert "resultType" in responses[1]
            assert "resultType" not in responses[2]


def test_requires_initialize_before_session_requests(shared_node: NodeThread) -> None:
    with shared_node.local() as connection:
        assert send_request(connection, "ping", id="p") == {
            "jsonrpc": "2.0",
            "id": "p",
            "result": {},
        }
        for method in ("tools/list", "tools/call", "server/discover", "subscriptions/listen"):
            response = send_request(connection, method, {"name": "x"}, "early")
            assert (response["id"], error_code(response)) == ("early", -32600)
            assert "initialize" in response["error"]["message"]
        assert open_session(connection)


def test_reads_lines_byte_by_byte_and_pipelined(shared_node: NodeThread) -> None:
    with shared_node.local() as connection:
        data = call("echo", {"text": "slowly"})
        connection.send(*(data[at : at + 1] for at in range(len(data))))
        assert result_text(connection.line()) == "slowly"
        connection.send(b"".join(call("echo", {"text": str(id)}, id) for id in range(300)))
        responses = [connection.line() for _ in range(300)]
        assert {response["id"]: result_text(response) for response in responses} == {
            id: str(id) for id in range(300)
        }


def test_returns_ids_unchanged(shared_node: NodeThread) -> None:
    with shared_node.local() as connection:
        for id in (b"0", b"-3", b"1" * 40, b'"a\\u00e9\\n\\""', '"é\u2028"'.encode()):
            data = call("echo", {"text": "x"}).replace(b'"id": 1', b'"id": ' + id)
            connection.send(data)
            assert connection.until(b"\n").startswith(b'{"jsonrpc":"2.0","id":%b,' % id)


def test_writes_response_as_one_line(shared_node: NodeThread) -> None:
    with shared_node.local() as connection:
        # The upstream's JSON may be written over many lines.
        connection.send(call("echo", {"text": "a\nb\r\n\u2028c"}))
        assert result_text(connection.line()) == "a\nb\r\n\u2028c"


# -- what is wrong


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"nonsense", -32700),
        (b"\xff\xfe", -32700),
        (b"{", -32700),
        (b"5", -32600),
        (b"{}", -32600),
        (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', -32600),
        (b"[]", -32600),
        (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":[]}', -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":5}}', -32602),
        (call("nope").strip(), -32602),
    ],
)
def test_answers_bad_line_and_continues(
    shared_node: NodeThread, line: bytes, expected: int
) -> None:
    with shared_node.local() as connection:
        connection.send(b"\n\r\n  \n" + line + b"\r\n" + call("echo", {"text": "next"}, 9))
        assert error_code(connection.line()) == expected
        response = connection.line()
        assert (response["id"], result_text(response)) == (9, "next")


def test_rejects_long_line(start_node: Any) -> None:
    node = start_node(limits={"body_bytes": 1_000})
    with node.local() as connection:
        connection.send(call("echo", {"text": "y" * 2_000}) + call("echo", {"text": "next"}, 2))
        response = connection.line()
        assert error_code(response) == -32600
        assert response["error"]["data"]["error"] == "payload_too_large"
        assert result_text(connection.line()) == "next"
        connection.send(*[b"y" * 100_000] * 20)
        assert error_code(connection.line()) == -32600
        connection.send(b"\n" + call("echo", {"text": "again"}))
        assert result_text(connection.line()) == "again"


def test_rejects_unknown_versions(shared_node: NodeThread) -> None:
    with shared_node.local() as connection:
        response = send_request(connection, "tools/list", {"_meta": meta("1999-01-01")})
        assert error_code(response) == -32022
        assert STATELESS in response["error"]["data"]["supported"]
        assert (
            error_code(send_request(connection, "tools/list", {"_meta": meta(SESSION)})) == -32022
        )
        broken = {META + "protocolVersion": STATELESS}
        assert error_code(send_request(connection, "tools/list", {"_meta": broken})) == -32602
        response = send_request(connection, "initialize", initialize("1999-01-01"))
        assert response["result"]["protocolVersion"] == SESSION
        assert error_code(send_request(connection, "initialize", {})) == -32602


@pytest.mark.parametrize("method", ["ping", "initialize", "logging/setLevel", "no/such"])
def test_rejects_removed_methods_of_stateless_protocol(
    shared_node: NodeThread, method: str
) -> None:
    with shared_node.local() as connection:
        assert error_code(send_request(connection, method, {"_meta": meta()})) == -32601


def test_rejects_stateless_methods_in_session(shared_node: NodeThread) -> None:
    with shared_node.local() as connection:
        open_session(connection)
        for method in ("subscriptions/listen", "notifications/cancelled", "no/such"):
            assert error_code(send_request(connection, method, {})) == -32601


def test_ignores_responses_and_unknown_notifications(shared_node: NodeThread) -> None:
    with shared_node.local() as connection:
        connection.send(
            b'{"jsonrpc":"2.0","id":1,"result":{}}\n',
            b'{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":""}}\n',
            message("notifications/made/up", id=None) + b"\n",
            message("notifications/cancelled", {"requestId": 5}, None) + b"\n",
            message("notifications/cancelled", {}, None) + b"\n",
            b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":[]}\n',
            message("notifications/initialized", id=None) + b"\n",
            call("echo", {"text": "next"}),
        )
        assert result_text(connection.line()) == "next"


def test_accepts_batches_in_one_revision_only(shared_node: NodeThread) -> None:
    batch = [
        json.loads(message("ping", id="p")),
        json.loads(session_call("echo", {"text": "b"}, 2)),
        {"jsonrpc": "2.0", "id": 3},
    ]
    with shared_node.local() as connection:
        open_session(connection, "2025-03-26")
        connection.send(json.dumps(batch).encode() + b"\n")
        responses = {item["id"]: item for item in (connection.line() for _ in range(3))}
        assert responses["p"]["result"] == {}
        assert result_text(responses[2]) == "b"
        assert error_code(responses[3]) == -32600
    with shared_node.local() as connection:
        open_session(connection, "2025-06-18")
        connection.send(json.dumps(batch).encode() + b"\n")
        assert error_code(connection.line()) == -32600


# -- calls that take their time


def test_sends_progress(shared_node: NodeThread) -> None:
    with shared_node.local() as connection:
        open_session(connection)
        for data in (
            call("report", {"steps": 2}, "r", progressToken="mine"),
            session_call("report", {"steps": 2}, "r", _meta={"progressToken": "mine"}),
        ):
            connection.send(data)
            for step in (1, 2):
                assert connection.line()["params"] == {
                    "progressToken": "mine",
                    "progress": step,
                    "total": 2,
                }
            assert connection.line()["id"] == "r"


@pytest.mark.parametrize("kind", ["stateless", "session"])
@pytest.mark.parametrize("id", [7, "seven"])
def test_cancels_calls(shared_node: NodeThread, kind: str, id: Any) -> None:
    text = f"lines {kind} {id}"
    make = call if kind == "stateless" else session_call
    with shared_node.local() as connection:
        open_session(connection)
        connection.send(make("hold", {"text": text}, id))
        pending_call = shared_node.shop.wait_for_hold(text)
        connection.send(message("notifications/cancelled", {"requestId": "other"}, None) + b"\n")
        assert send_request(connection, "ping")["result"] == {}
        assert not shared_node.shop.find_received("notifications/cancelled", requestId=pending_call)
        connection.send(message("notifications/cancelled", {"requestId": id}, None) + b"\n")
        shared_node.shop.wait_for(
            lambda: shared_node.shop.find_received(
                "notifications/cancelled", requestId=pending_call
            )
        )
        # It gets no answer, and its id is free.
        connection.send(make("echo", {"text": "again"}, id))
        assert result_text(connection.line()) == "again"


def test_rejects_duplicate_pending_id(shared_node: NodeThread) -> None:
    with shared_node.local() as connection:
        connection.send(call("hold", {"text": "twice"}, 1))
        pending_call = shared_node.shop.wait_for_hold("twice")
        connection.send(call("echo", {"text": "me too"}, 1))
        response = connection.line()
        assert (response["id"], error_code(response)) == (1, -32600)
        # The string "1" is another id.
        connection.send(call("echo", {"text": "me"}, "1"))
        assert result_text(connection.line()) == "me"
        shared_node.do(lambda: shared_node.shop.release(pending_call))
        assert result_text(connection.line()) == "released"


def test_answers_pending_calls_after_end_of_input(
    shared_node: NodeThread,
) -> None:
    with shared_node.local() as connection:
        connection.send(
            call("hold", {"text": "last words"}, 1), call("echo", {"text": "x"}, 2).strip()
        )
        connection.socket.shutdown(socket.SHUT_WR)
        pending_call = shared_node.shop.wait_for_hold("last words")
        # The last line needs no end.
        assert connection.line()["id"] == 2
        shared_node.do(lambda: shared_node.shop.release(pending_call))
        assert result_text(connection.line()) == "released"
        connection.expect_closed()


def test_disconnect_cancels_pending_calls(shared_node: NodeThread) -> None:
    for text, goodbye in (("gone", False), ("gone after all", True)):
        with shared_node.local() as connection:
            connection.send(call("hold", {"text": text}))
            pending_call = shared_node.shop.wait_for_hold(text)
            if goodbye:
                connection.send(b"half a li")
        shared_node.shop.wait_for(
            lambda id=pending_call: shared_node.shop.find_received(
                "notifications/cancelled", requestId=id
            ),
            text,
        )
    shared_node.until(lambda: not list(shared_node.node.pipeline.running_calls()))


def test_closes_connection_without_requests(shared_node: NodeThread) -> None:
    for _ in range(3):
        with shared_node.local() as connection:
            connection.socket.shutdown(socket.SHUT_WR)
            connection.expect_closed()
    shared_node.until(lambda: not shared_node.node.listeners._local_clients)


def test_closes_connection_of_client_that_does_not_read(
    shared_node: NodeThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "_MAX_UNREAD_BYTES", 1_000_000)
    with shared_node.local() as connection:
        connection.send(*(call("large", {"size": 500_000}, id) for id in range(10)))
        shared_node.until(lambda: not shared_node.node.listeners._local_clients, "the cut")
    assert shared_node.alive()


# -- hearing of changes


def listen(connection: HttpConnection, id: Any, requested: Any = None) -> Any:
    params = {"_meta": meta(), "notifications": requested or {"toolsListChanged": True}}
    connection.send(message("subscriptions/listen", params, id) + b"\n")
    acknowledged = connection.line()
    assert acknowledged["method"] == "notifications/subscriptions/acknowledged"
    return acknowledged["params"]


def test_sends_changes_to_both_generations(start_node: Any) -> None:
    node = start_node()
    with node.local() as connection:
        assert listen(connection, "a") == {
            "_meta": {META + "subscriptionId": "a"},
            "notifications": {"toolsListChanged": True},
        }
        assert listen(connection, 2, {"promptsListChanged": True})["notifications"] == {}
        listen(connection, 3)
        open_session(connection)
        node.do(lambda: node.shop.offer("other"))
        notifications = [connection.line() for _ in range(3)]
        assert {item["method"] for item in notifications} == {"notifications/tools/list_changed"}
        # The session itself, and two subscriptions.
        assert [item.get("params") for item in notifications] == [
            None,
            {"_meta": {META + "subscriptionId": "a"}},
            {"_meta": {META + "subscriptionId": 3}},
        ]
        tools = send_request(connection, "tools/list")["result"]["tools"]
        assert [tool["name"] for tool in tools] == ["shop__other"]


def test_cancels_subscription(start_node: Any) -> None:
    node = start_node()
    with node.local() as connection:
        listen(connection, "a")
        listen(connection, "b")
        connection.send(message("notifications/cancelled", {"requestId": "a"}, None) + b"\n")
        node.until(lambda: len(node.node._change_listeners) == 1)
        node.do(lambda: node.shop.offer("other"))
        notifications = connection.line()
        assert notifications["params"]["_meta"][META + "subscriptionId"] == "b"
        assert send_request(connection, "ping")["result"] == {}
        # The id can be used again.
        listen(connection, "a")


def test_rejects_subscription_with_duplicate_id(shared_node: NodeThread) -> None:
    before = shared_node.do(lambda: len(shared_node.node._change_listeners))
    with shared_node.local() as connection:
        listen(connection, "a")
        params = {"_meta": meta(), "notifications": {"toolsListChanged": True}}
        assert error_code(send_request(connection, "subscriptions/listen", params, "a")) == -32600
        connection.send(call("echo", {"text": "x"}, "a"))
        assert error_code(connection.line()) == -32600
        connection.send(call("hold", {"text": "taken"}, "b"))
        shared_node.shop.wait_for_hold("taken")
        assert error_code(send_request(connection, "subscriptions/listen", params, "b")) == -32600
    shared_node.until(lambda: len(shared_node.node._change_listeners) == before, "nobody left")


def test_rejects_invalid_filter(shared_node: NodeThread) -> None:
    with shared_node.local() as connection:
        params = {"_meta": meta(), "notifications": []}
        assert error_code(send_request(connection, "subscriptions/listen", params)) == -32602
        listen(connection, 1)


def test_limits_pending_requests(shared_node: NodeThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation.Conversation, "max_open_requests", 3)
    with shared_node.local() as connection:
        listen(connection, "a")
        listen(connection, "b")
        connection.send(call("hold", {"text": "third"}, "c"))
        pending_call = shared_node.shop.wait_for_hold("third")
        for data in (
            call("echo", {"text": "x"}, "d"),
            message("subscriptions/listen", {"notifications": {}, "_meta": meta()}, "e") + b"\n",
        ):
            connection.send(data)
            assert connection.line()["error"]["data"]["error"] == "too_busy"
        shared_node.do(lambda: shared_node.shop.release(pending_call))
        assert connection.line()["id"] == "c"
        connection.send(call("echo", {"text": "x"}, "d"))
        assert result_text(connection.line()) == "x"


def test_shutdown_ends_calls_and_subscriptions(
    start_node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_room, "DRAIN_SECONDS", 0.05)
    node = start_node()
    with node.local() as connection, node.local() as idle:
        listen(connection, "l")
        connection.send(call("hold", {"text": "stop"}, "c"))
        node.shop.wait_for_hold("stop")
        path = node.node.listeners._unix_path
        node.stop()
        assert connection.line() == {
            "jsonrpc": "2.0",
            "id": "l",
            "result": {"resultType": "complete", "_meta": {META + "subscriptionId": "l"}},
        }
        response = connection.line()
        assert (response["id"], response["error"]["data"]["error"]) == ("c", "shutting_down")
        connection.expect_closed()
        idle.expect_closed()
        assert not path.exists()


def test_local_connection_is_authenticated_as_local(start_node: Any) -> None:
    # Tokens are for those who come over the network.
    node = start_node(tokens={"clerk": "secret"})
    with node.local() as connection:
        connection.send(call("echo", {"text": "x"}))
        assert result_text(connection.line()) == "x"
    assert node.once(node.call("echo", {"text": "x"})).status == 401
    path = node.node.listeners._unix_path
    assert path.stat().st_mode & 0o777 == 0o600
    node.stop()
    entries = JournalReader(node.folder / "journal.db").tail(10)
    ended = [
        entry for entry in entries if entry.name == "shop.echo" and entry.outcome != "dispatching"
    ]
    assert [(item.face, item.caller) for item in ended] == [
        ("stream", "local"),
        ("http", ""),
    ]
