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


def ask(wire: HttpConnection, method: str, params: Any = None, id: Any = 1) -> Any:
    wire.send(message(method, params, id) + b"\n")
    return wire.line()


def call(tool: str, arguments: Any = None, id: Any = 1, **more: Any) -> bytes:
    """A stateless call."""
    params = {"name": f"shop.{tool}", "arguments": arguments or {}, "_meta": meta(**more)}
    return message("tools/call", params, id) + b"\n"


def session_call(tool: str, arguments: Any = None, id: Any = 1, **more: Any) -> bytes:
    params = {"name": f"shop.{tool}", "arguments": arguments or {}, **more}
    return message("tools/call", params, id) + b"\n"


def opened(wire: HttpConnection, version: str = SESSION) -> Any:
    answer = ask(wire, "initialize", initialize(version), "init")
    wire.send(message("notifications/initialized", id=None) + b"\n")
    assert ask(wire, "ping")["result"] == {}
    return answer["result"]


def code(answer: Any) -> int:
    number: int = answer["error"]["code"]
    return number


# -- both eras


def test_serves_session(shared_node: NodeThread) -> None:
    with shared_node.local() as wire:
        result = opened(wire)
        assert result["protocolVersion"] == SESSION
        assert result["serverInfo"]["name"] == "interlock"
        tools = ask(wire, "tools/list")["result"]
        assert set(tools) == {"tools"}
        wire.send(session_call("echo", {"text": "hi"}, "id"))
        answer = wire.line()
        assert answer["id"] == "id"
        assert answer["result"] == {"content": [{"type": "text", "text": "hi"}]}


def test_serves_requests_without_session(shared_node: NodeThread) -> None:
    with shared_node.local() as wire:
        assert ask(wire, "server/discover", {"_meta": meta()})["result"]["supportedVersions"]
        result = ask(wire, "tools/list", {"_meta": meta()})["result"]
        assert result["resultType"] == "complete"
        wire.send(call("echo", {"text": "hi"}))
        result = wire.line()["result"]
        assert result["resultType"] == "complete"
        assert result["_meta"][META + "serverInfo"]["name"] == "interlock"


def test_serves_both_generations_on_one_connection(shared_node: NodeThread) -> None:
    with shared_node.local() as wire:
        opened(wire)
        for _ in range(3):
            wire.send(call("echo", {"text": "new"}, 1) + session_call("echo", {"text": "old"}, 2))
            answers = {one["id"]: one["result"] for one in (wire.line(), wire.line())}
            assert "resultType" in answers[1]
            assert "resultType" not in answers[2]


def test_requires_initialize_before_session_requests(shared_node: NodeThread) -> None:
    with shared_node.local() as wire:
        assert ask(wire, "ping", id="p") == {"jsonrpc": "2.0", "id": "p", "result": {}}
        for method in ("tools/list", "tools/call", "server/discover", "subscriptions/listen"):
            answer = ask(wire, method, {"name": "x"}, "early")
            assert (answer["id"], code(answer)) == ("early", -32600)
            assert "initialize" in answer["error"]["message"]
        assert opened(wire)


def test_reads_lines_byte_by_byte_and_pipelined(shared_node: NodeThread) -> None:
    with shared_node.local() as wire:
        data = call("echo", {"text": "slowly"})
        wire.send(*(data[at : at + 1] for at in range(len(data))))
        assert result_text(wire.line()) == "slowly"
        wire.send(b"".join(call("echo", {"text": str(id)}, id) for id in range(300)))
        answers = [wire.line() for _ in range(300)]
        assert {one["id"]: result_text(one) for one in answers} == {
            id: str(id) for id in range(300)
        }


def test_returns_ids_unchanged(shared_node: NodeThread) -> None:
    with shared_node.local() as wire:
        for id in (b"0", b"-3", b"1" * 40, b'"a\\u00e9\\n\\""', '"é\u2028"'.encode()):
            data = call("echo", {"text": "x"}).replace(b'"id": 1', b'"id": ' + id)
            wire.send(data)
            assert wire.until(b"\n").startswith(b'{"jsonrpc":"2.0","id":%b,' % id)


def test_writes_response_as_one_line(shared_node: NodeThread) -> None:
    with shared_node.local() as wire:
        # The upstream's JSON may be written over many lines.
        wire.send(call("echo", {"text": "a\nb\r\n\u2028c"}))
        assert result_text(wire.line()) == "a\nb\r\n\u2028c"


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
    with shared_node.local() as wire:
        wire.send(b"\n\r\n  \n" + line + b"\r\n" + call("echo", {"text": "next"}, 9))
        assert code(wire.line()) == expected
        answer = wire.line()
        assert (answer["id"], result_text(answer)) == (9, "next")


def test_rejects_long_line(start_node: Any) -> None:
    node = start_node(limits={"body_bytes": 1_000})
    with node.local() as wire:
        wire.send(call("echo", {"text": "y" * 2_000}) + call("echo", {"text": "next"}, 2))
        answer = wire.line()
        assert code(answer) == -32600
        assert answer["error"]["data"]["error"] == "payload_too_large"
        assert result_text(wire.line()) == "next"
        wire.send(*[b"y" * 100_000] * 20)
        assert code(wire.line()) == -32600
        wire.send(b"\n" + call("echo", {"text": "again"}))
        assert result_text(wire.line()) == "again"


def test_rejects_unknown_versions(shared_node: NodeThread) -> None:
    with shared_node.local() as wire:
        answer = ask(wire, "tools/list", {"_meta": meta("1999-01-01")})
        assert code(answer) == -32022
        assert STATELESS in answer["error"]["data"]["supported"]
        assert code(ask(wire, "tools/list", {"_meta": meta(SESSION)})) == -32022
        broken = {META + "protocolVersion": STATELESS}
        assert code(ask(wire, "tools/list", {"_meta": broken})) == -32602
        answer = ask(wire, "initialize", initialize("1999-01-01"))
        assert answer["result"]["protocolVersion"] == SESSION
        assert code(ask(wire, "initialize", {})) == -32602


@pytest.mark.parametrize("method", ["ping", "initialize", "logging/setLevel", "no/such"])
def test_rejects_removed_methods_of_stateless_protocol(
    shared_node: NodeThread, method: str
) -> None:
    with shared_node.local() as wire:
        assert code(ask(wire, method, {"_meta": meta()})) == -32601


def test_rejects_stateless_methods_in_session(shared_node: NodeThread) -> None:
    with shared_node.local() as wire:
        opened(wire)
        for method in ("subscriptions/listen", "notifications/cancelled", "no/such"):
            assert code(ask(wire, method, {})) == -32601


def test_ignores_responses_and_unknown_notifications(shared_node: NodeThread) -> None:
    with shared_node.local() as wire:
        wire.send(
            b'{"jsonrpc":"2.0","id":1,"result":{}}\n',
            b'{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":""}}\n',
            message("notifications/made/up", id=None) + b"\n",
            message("notifications/cancelled", {"requestId": 5}, None) + b"\n",
            message("notifications/cancelled", {}, None) + b"\n",
            b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":[]}\n',
            message("notifications/initialized", id=None) + b"\n",
            call("echo", {"text": "next"}),
        )
        assert result_text(wire.line()) == "next"


def test_accepts_batches_in_one_revision_only(shared_node: NodeThread) -> None:
    batch = [
        json.loads(message("ping", id="p")),
        json.loads(session_call("echo", {"text": "b"}, 2)),
        {"jsonrpc": "2.0", "id": 3},
    ]
    with shared_node.local() as wire:
        opened(wire, "2025-03-26")
        wire.send(json.dumps(batch).encode() + b"\n")
        answers = {one["id"]: one for one in (wire.line() for _ in range(3))}
        assert answers["p"]["result"] == {}
        assert result_text(answers[2]) == "b"
        assert code(answers[3]) == -32600
    with shared_node.local() as wire:
        opened(wire, "2025-06-18")
        wire.send(json.dumps(batch).encode() + b"\n")
        assert code(wire.line()) == -32600


# -- calls that take their time


def test_sends_progress(shared_node: NodeThread) -> None:
    with shared_node.local() as wire:
        opened(wire)
        for data in (
            call("report", {"steps": 2}, "r", progressToken="mine"),
            session_call("report", {"steps": 2}, "r", _meta={"progressToken": "mine"}),
        ):
            wire.send(data)
            for step in (1, 2):
                assert wire.line()["params"] == {
                    "progressToken": "mine",
                    "progress": step,
                    "total": 2,
                }
            assert wire.line()["id"] == "r"


@pytest.mark.parametrize("kind", ["stateless", "session"])
@pytest.mark.parametrize("id", [7, "seven"])
def test_cancels_calls(shared_node: NodeThread, kind: str, id: Any) -> None:
    text = f"lines {kind} {id}"
    make = call if kind == "stateless" else session_call
    with shared_node.local() as wire:
        opened(wire)
        wire.send(make("hold", {"text": text}, id))
        held = shared_node.shop.wait_for_hold(text)
        wire.send(message("notifications/cancelled", {"requestId": "other"}, None) + b"\n")
        assert ask(wire, "ping")["result"] == {}
        assert not shared_node.shop.heard_of("notifications/cancelled", requestId=held)
        wire.send(message("notifications/cancelled", {"requestId": id}, None) + b"\n")
        shared_node.shop.wait_for(
            lambda: shared_node.shop.heard_of("notifications/cancelled", requestId=held)
        )
        # It gets no answer, and its id is free.
        wire.send(make("echo", {"text": "again"}, id))
        assert result_text(wire.line()) == "again"


def test_rejects_duplicate_pending_id(shared_node: NodeThread) -> None:
    with shared_node.local() as wire:
        wire.send(call("hold", {"text": "twice"}, 1))
        held = shared_node.shop.wait_for_hold("twice")
        wire.send(call("echo", {"text": "me too"}, 1))
        answer = wire.line()
        assert (answer["id"], code(answer)) == (1, -32600)
        # The string "1" is another id.
        wire.send(call("echo", {"text": "me"}, "1"))
        assert result_text(wire.line()) == "me"
        shared_node.do(lambda: shared_node.shop.release(held))
        assert result_text(wire.line()) == "released"


def test_answers_pending_calls_after_end_of_input(
    shared_node: NodeThread,
) -> None:
    with shared_node.local() as wire:
        wire.send(call("hold", {"text": "last words"}, 1), call("echo", {"text": "x"}, 2).strip())
        wire.socket.shutdown(socket.SHUT_WR)
        held = shared_node.shop.wait_for_hold("last words")
        # The last line needs no end.
        assert wire.line()["id"] == 2
        shared_node.do(lambda: shared_node.shop.release(held))
        assert result_text(wire.line()) == "released"
        wire.closed()


def test_disconnect_cancels_pending_calls(shared_node: NodeThread) -> None:
    for text, goodbye in (("gone", False), ("gone after all", True)):
        with shared_node.local() as wire:
            wire.send(call("hold", {"text": text}))
            held = shared_node.shop.wait_for_hold(text)
            if goodbye:
                wire.send(b"half a li")
        shared_node.shop.wait_for(
            lambda id=held: shared_node.shop.heard_of("notifications/cancelled", requestId=id), text
        )
    shared_node.until(lambda: not list(shared_node.node.pipeline.running_calls()))


def test_closes_connection_without_requests(shared_node: NodeThread) -> None:
    for _ in range(3):
        with shared_node.local() as wire:
            wire.socket.shutdown(socket.SHUT_WR)
            wire.closed()
    shared_node.until(lambda: not shared_node.node.listeners._local_clients)


def test_closes_connection_of_client_that_does_not_read(
    shared_node: NodeThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "_MOST_UNREAD", 1_000_000)
    with shared_node.local() as wire:
        wire.send(*(call("large", {"size": 500_000}, id) for id in range(10)))
        shared_node.until(lambda: not shared_node.node.listeners._local_clients, "the cut")
    assert shared_node.alive()


# -- hearing of changes


def listen(wire: HttpConnection, id: Any, wanted: Any = None) -> Any:
    params = {"_meta": meta(), "notifications": wanted or {"toolsListChanged": True}}
    wire.send(message("subscriptions/listen", params, id) + b"\n")
    acknowledged = wire.line()
    assert acknowledged["method"] == "notifications/subscriptions/acknowledged"
    return acknowledged["params"]


def test_sends_changes_to_both_generations(start_node: Any) -> None:
    node = start_node()
    with node.local() as wire:
        assert listen(wire, "a") == {
            "_meta": {META + "subscriptionId": "a"},
            "notifications": {"toolsListChanged": True},
        }
        assert listen(wire, 2, {"promptsListChanged": True})["notifications"] == {}
        listen(wire, 3)
        opened(wire)
        node.do(lambda: node.shop.offer("other"))
        told = [wire.line() for _ in range(3)]
        assert {one["method"] for one in told} == {"notifications/tools/list_changed"}
        # The session itself, and two subscriptions.
        assert [one.get("params") for one in told] == [
            None,
            {"_meta": {META + "subscriptionId": "a"}},
            {"_meta": {META + "subscriptionId": 3}},
        ]
        tools = ask(wire, "tools/list")["result"]["tools"]
        assert [one["name"] for one in tools] == ["shop__other"]


def test_cancels_subscription(start_node: Any) -> None:
    node = start_node()
    with node.local() as wire:
        listen(wire, "a")
        listen(wire, "b")
        wire.send(message("notifications/cancelled", {"requestId": "a"}, None) + b"\n")
        node.until(lambda: len(node.node._change_listeners) == 1)
        node.do(lambda: node.shop.offer("other"))
        told = wire.line()
        assert told["params"]["_meta"][META + "subscriptionId"] == "b"
        assert ask(wire, "ping")["result"] == {}
        # The id can be used again.
        listen(wire, "a")


def test_rejects_subscription_with_duplicate_id(shared_node: NodeThread) -> None:
    before = shared_node.do(lambda: len(shared_node.node._change_listeners))
    with shared_node.local() as wire:
        listen(wire, "a")
        params = {"_meta": meta(), "notifications": {"toolsListChanged": True}}
        assert code(ask(wire, "subscriptions/listen", params, "a")) == -32600
        wire.send(call("echo", {"text": "x"}, "a"))
        assert code(wire.line()) == -32600
        wire.send(call("hold", {"text": "taken"}, "b"))
        shared_node.shop.wait_for_hold("taken")
        assert code(ask(wire, "subscriptions/listen", params, "b")) == -32600
    shared_node.until(lambda: len(shared_node.node._change_listeners) == before, "nobody left")


def test_rejects_invalid_filter(shared_node: NodeThread) -> None:
    with shared_node.local() as wire:
        params = {"_meta": meta(), "notifications": []}
        assert code(ask(wire, "subscriptions/listen", params)) == -32602
        listen(wire, 1)


def test_limits_pending_requests(
    shared_node: NodeThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversation.Conversation, "most_under_way", 3)
    with shared_node.local() as wire:
        listen(wire, "a")
        listen(wire, "b")
        wire.send(call("hold", {"text": "third"}, "c"))
        held = shared_node.shop.wait_for_hold("third")
        for data in (
            call("echo", {"text": "x"}, "d"),
            message("subscriptions/listen", {"notifications": {}, "_meta": meta()}, "e") + b"\n",
        ):
            wire.send(data)
            assert wire.line()["error"]["data"]["error"] == "too_busy"
        shared_node.do(lambda: shared_node.shop.release(held))
        assert wire.line()["id"] == "c"
        wire.send(call("echo", {"text": "x"}, "d"))
        assert result_text(wire.line()) == "x"


def test_shutdown_ends_calls_and_subscriptions(start_node: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_room, "DRAIN_SECONDS", 0.05)
    node = start_node()
    with node.local() as wire, node.local() as idle:
        listen(wire, "l")
        wire.send(call("hold", {"text": "stop"}, "c"))
        node.shop.wait_for_hold("stop")
        path = node.node.listeners._unix_path
        node.stop()
        assert wire.line() == {
            "jsonrpc": "2.0",
            "id": "l",
            "result": {"resultType": "complete", "_meta": {META + "subscriptionId": "l"}},
        }
        answer = wire.line()
        assert (answer["id"], answer["error"]["data"]["error"]) == ("c", "shutting_down")
        wire.closed()
        idle.closed()
        assert not path.exists()


def test_local_connection_is_authenticated_as_local(start_node: Any) -> None:
    # Tokens are for those who come over the network.
    node = start_node(tokens={"clerk": "secret"})
    with node.local() as wire:
        wire.send(call("echo", {"text": "x"}))
        assert result_text(wire.line()) == "x"
    assert node.once(node.call("echo", {"text": "x"})).status == 401
    path = node.node.listeners._unix_path
    assert path.stat().st_mode & 0o777 == 0o600
    node.stop()
    entries = JournalReader(node.folder / "journal.db").tail(10)
    ended = [one for one in entries if one.name == "shop.echo" and one.outcome != "dispatching"]
    assert [(one.face, one.caller) for one in ended] == [
        ("stream", "local"),
        ("http", ""),
    ]
