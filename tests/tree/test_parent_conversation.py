"""Tests of the responses of a node to its parent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from interlock.core.call import Call, Client, UpstreamResponseError
from interlock.core.server.mcp.responses import write_error
from interlock.errors import DEADLINE_EXCEEDED, UNKNOWN_TOOL, UPSTREAM_UNAVAILABLE, InterlockError
from interlock.protocol import mcpax as ax
from interlock.protocol.mcp import Era
from interlock.tree.parent_conversation import AxConversation, add_request_id
from interlock.tree.registrant import ParentRejectionError
from tests.support.http_client import SESSION, initialize, message, meta
from tests.support.node import NodeThread

IDENTITY = ax.SubserverIdentity("550e8400-e29b-41d4-a716-446655440000", None, "aggregator")


class ParentEnd:
    """The parent end of a conversation with a node."""

    def __init__(self, running: NodeThread, tree: Any = None) -> None:
        self.running = running
        self.calls: list[Call] = []
        self.sent: list[Any] = []
        self._said = asyncio.Event()
        self.conversation: AxConversation = running.do(lambda: self._open(tree))

    def _open(self, tree: Any) -> AxConversation:
        node = self.running.node
        return AxConversation(
            pipeline=node.pipeline,
            server_info=node.introduction.server_info,
            listeners=node._change_listeners,
            send=lambda data: self.sent.append(json.loads(data)),
            peer="loopback",
            identify=lambda: IDENTITY,
            tree=tree,
        )

    def say(self, method: str, params: Any = None, id: Any = None) -> None:
        self.running.do(lambda: self.conversation.process_message(message(method, params, id)))

    def ask(self, method: str, params: Any = None, id: Any = 1) -> Any:
        self.say(method, params, id)
        return self.answer(id)

    def answer(self, id: Any) -> Any:
        found: list[Any] = []

        def look() -> bool:
            found[:] = [one for one in self.sent if one.get("id") == id and "method" not in one]
            return bool(found)

        self.running.until(look, f"an answer to {id}")
        return found[-1]

    def close(self) -> None:
        self.running.do(self.conversation.closed)


@pytest.fixture
def parent(shared_node: NodeThread) -> Iterator[Callable[..., ParentEnd]]:
    made: list[ParentEnd] = []

    def make(**more: Any) -> ParentEnd:
        made.append(ParentEnd(shared_node, **more))
        return made[-1]

    yield make
    for one in made:
        one.close()


def call_params(tool: str, arguments: Any = None, **more: Any) -> dict[str, Any]:
    return {"name": f"shop.{tool}", "arguments": arguments or {}, "_meta": meta(**more)}


# -- who it is


@pytest.mark.spec("AX-13.4-4", "AX-13.4-6")
def test_identifies_before_initialize(parent: Callable[..., ParentEnd]) -> None:
    answer = parent().ask("mcpax/identify", {})
    assert answer["result"] == {
        "subserver_id": IDENTITY.subserver_id,
        "parent_id": None,
        "role": "aggregator",
        "tree_id": None,
    }


def test_returns_subtree(parent: Callable[..., ParentEnd]) -> None:
    async def later(_: Any) -> Any:
        await asyncio.sleep(0)
        return {"children": []}

    def broken(_: Any) -> Any:
        raise ZeroDivisionError

    def refused(_: Any) -> Any:
        raise InterlockError(UPSTREAM_UNAVAILABLE, "Not now.")

    assert parent(tree=lambda _: {"name": "x"}).ask("mcpax/tree")["result"] == {"name": "x"}
    assert parent(tree=later).ask("mcpax/tree")["result"] == {"children": []}
    assert parent(tree=broken).ask("mcpax/tree")["error"]["code"] == -32603
    assert parent(tree=refused).ask("mcpax/tree")["error"]["message"] == "tool_degraded"
    assert parent().ask("mcpax/tree", {"_meta": meta()})["error"]["code"] == -32601


def test_limits_concurrent_tree_requests(parent: Callable[..., ParentEnd]) -> None:
    waiting: list[asyncio.Future[Any]] = []

    async def later(_: Any) -> Any:
        waiting.append(asyncio.get_running_loop().create_future())
        return await waiting[-1]

    one = parent(tree=later)
    for id in range(4):
        one.say("mcpax/tree", None, id)
    one.running.until(lambda: len(waiting) == 4, "four looks")
    error = one.ask("mcpax/tree", None, 4)["error"]
    assert (error["code"], error["data"]["error"]) == (-31026, "too_busy")
    one.running.do(lambda: waiting[0].set_result({}))
    assert one.answer(0)["result"] == {}
    one.say("mcpax/tree", None, 5)
    one.running.until(lambda: len(waiting) == 5, "another look")


def test_rejects_registration_at_child(parent: Callable[..., ParentEnd]) -> None:
    assert parent().ask("mcpax/register", {"_meta": meta()})["error"]["code"] == -32601
    assert parent().ask("mcpax/register", {})["error"]["code"] == -32600


# -- what it asks


def test_matches_responses_to_own_requests(
    shared_node: NodeThread, parent: Callable[..., ParentEnd]
) -> None:
    one = parent()

    async def asked() -> tuple[bytes, BaseException | None, BaseException | None]:
        first = one.conversation.request("mcpax/heartbeat", b'{"session_id":"x"}')
        second = one.conversation.request("mcpax/heartbeat", b"{}")
        third = one.conversation.request("mcpax/heartbeat", b"{}")
        assert [m["id"] for m in one.sent[-3:]] == ["mcpax-1", "mcpax-2", "mcpax-3"]
        one.conversation.process_message(
            b'{"jsonrpc":"2.0","id":"mcpax-1","result":{"status":"ok"}}'
        )
        error = b'{"code":-31011,"message":"unknown_session","data":{"detail":"Who?"}}'
        one.conversation.process_message(b'{"jsonrpc":"2.0","id":"mcpax-2","error":%b}' % error)
        # Nobody asked this, or not any more.
        one.conversation.process_message(b'{"jsonrpc":"2.0","id":"mcpax-1","result":{}}')
        one.conversation.process_message(b'{"jsonrpc":"2.0","id":7,"result":{}}')
        one.conversation.closed()
        return await first, second.exception(), third.exception()

    result, refused, gone = shared_node.wait(asked())
    assert json.loads(result) == {"status": "ok"}
    assert isinstance(refused, ParentRejectionError)
    assert (refused.code, refused.symbol, refused.message) == (-31011, "unknown_session", "Who?")
    assert isinstance(gone, InterlockError)


@pytest.mark.parametrize(
    ("params", "symbol"),
    [
        ({"code": -31002, "message": "cycle_detected", "detail": "A loop."}, "cycle_detected"),
        ({"message": "whatever"}, None),
        ({"message": 5, "detail": []}, None),
        ([], None),
        (None, None),
    ],
)
def test_records_reason_of_session_end(
    parent: Callable[..., ParentEnd], params: Any, symbol: str | None
) -> None:
    one = parent()
    one.say("notifications/mcpax/session_ended", params)
    ended = one.conversation.ended_by
    assert (None if ended is None else ended.symbol) == symbol
    assert one.sent == []


# -- MCP


@pytest.mark.spec("AX-0-2")
def test_supports_both_protocol_generations(parent: Callable[..., ParentEnd]) -> None:
    new = parent()
    assert new.ask("server/discover", {"_meta": meta()})["result"]["supportedVersions"]
    assert new.ask("tools/list", {"_meta": meta()}, 2)["result"]["tools"]
    assert new.ask("tools/call", call_params("echo", {"text": "new"}), 3)["result"]["resultType"]
    old = parent()
    opened = old.ask("initialize", initialize(SESSION))
    assert opened["result"]["protocolVersion"] == SESSION
    old.say("notifications/initialized")
    answer = old.ask("tools/call", {"name": "shop.echo", "arguments": {"text": "old"}}, 2)
    assert answer["result"] == {"content": [{"type": "text", "text": "old"}]}
    assert old.ask("ping", None, 3)["result"] == {}


@pytest.mark.spec("AX-7.2-1", "AX-7.2-8")
def test_reads_route_of_call(
    shared_node: NodeThread, parent: Callable[..., ParentEnd], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = parent()
    begun: list[Call] = []
    begin = shared_node.node.pipeline.begin
    monkeypatch.setattr(
        shared_node.node.pipeline,
        "begin",
        lambda call: (begun.append(call), begin(call))[1],  # type: ignore[func-returns-value]
    )
    way = {"x-mcpax-route": ["infra", "edge", "shop", "echo"], "x-mcpax-cursor": 1}
    # The node is registered with nobody, so every way is a wrong one.
    answer = one.ask("tools/call", call_params("echo", **way))
    hop = begun[0].hop
    assert (hop.route, hop.cursor) == (("infra", "edge", "shop", "echo"), 1)  # type: ignore[union-attr]
    assert begun[0].credentials.assigned_name == "parent"
    assert begun[0].server == "ax"
    assert answer["error"]["code"] == -32602
    assert answer["error"]["message"] == "route_mismatch"
    one.ask("tools/call", call_params("echo", {"text": "hi"}), 2)
    assert begun[1].hop is None


def test_rejects_duplicate_request_id(
    shared_node: NodeThread, parent: Callable[..., ParentEnd]
) -> None:
    one = parent()
    one.say("tools/call", call_params("hold", {"text": "held"}), 5)
    upstream_id = shared_node.shop.wait_for_hold("held")
    one.say("tools/call", call_params("echo", {"text": "again"}), 5)
    assert one.answer(5)["error"]["code"] == -32600
    shared_node.do(lambda: shared_node.shop.release(upstream_id))
    shared_node.until(
        lambda: any(m.get("id") == 5 and "result" in m for m in one.sent), "the held call's answer"
    )


def test_limits_pending_calls(shared_node: NodeThread, parent: Callable[..., ParentEnd]) -> None:
    one = parent()
    one.conversation.max_open_requests = 1
    one.say("tools/call", call_params("hold", {"text": "first"}), 5)
    upstream_id = shared_node.shop.wait_for_hold("first")
    assert one.ask("tools/call", call_params("echo"), 6)["error"]["code"] == -31026
    shared_node.do(lambda: shared_node.shop.release(upstream_id))
    assert "result" in one.answer(5)


def test_cancelled_call_gets_no_response(
    shared_node: NodeThread, parent: Callable[..., ParentEnd]
) -> None:
    one = parent()
    one.say("tools/call", call_params("hold", {"text": "gone"}), 5)
    shared_node.shop.wait_for_hold("gone")
    one.say("notifications/cancelled", {"requestId": 5})
    assert one.ask("tools/call", call_params("echo", {"text": "x"}), 5)["result"]


def test_failed_call_returns_internal_error(
    shared_node: NodeThread, parent: Callable[..., ParentEnd], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: Call) -> None:
        raise ZeroDivisionError

    one = parent()
    monkeypatch.setattr(shared_node.node.pipeline, "begin", broken)
    assert one.ask("tools/call", call_params("echo"))["error"]["code"] == -32603
    assert not one.conversation._open_calls


@pytest.mark.spec("AX-7.2-4")
@pytest.mark.parametrize(
    "way",
    [
        {"x-mcpax-route": ["a", 5], "x-mcpax-cursor": 0},
        {"x-mcpax-route": ["a", "b"], "x-mcpax-cursor": 1},
        {"x-mcpax-route": ["a", "b"]},
        {"x-mcpax-cursor": 0},
        {"x-mcpax-route": "a.b", "x-mcpax-cursor": 0},
        {"x-mcpax-route": ["a"] * 65, "x-mcpax-cursor": 0},
    ],
)
def test_rejects_invalid_route(parent: Callable[..., ParentEnd], way: Any) -> None:
    assert parent().ask("tools/call", call_params("echo", **way))["error"]["code"] == -32602


def test_ignores_route_of_client(shared_node: NodeThread) -> None:
    way = {"x-mcpax-route": ["else", "where"], "x-mcpax-cursor": 0}
    answer = shared_node.once(shared_node.call("echo", {"text": "hi"}, more_meta=way))
    assert answer.result["content"][0]["text"] == "hi"


@pytest.mark.spec("AX-12-10")
def test_notifications_name_their_request(parent: Callable[..., ParentEnd]) -> None:
    one = parent()
    answer = one.ask("tools/call", call_params("report", {"steps": 2}, progressToken="p"), 41)
    assert "result" in answer
    heard = [m["params"] for m in one.sent if m.get("method") == "notifications/progress"]
    assert [p["_meta"] for p in heard] == [{"x-mcpax-request": 41}] * 2
    assert {p["progressToken"] for p in heard} == {"p"}


def test_announces_notification_once(parent: Callable[..., ParentEnd]) -> None:
    new = parent()
    new.running.do(
        lambda: new.conversation.send_notification("notifications/message", b'{"data":1}')
    )
    assert new.sent[-1] == {
        "jsonrpc": "2.0", "method": "notifications/message",
        "params": {"data": 1, "_meta": {"x-mcpax-request": None}},
    }  # fmt: skip
    new.running.do(lambda: new.conversation.send_notification("notifications/initialized", None))
    assert new.sent[-1] == {"jsonrpc": "2.0", "method": "notifications/initialized"}
    old = parent()
    old.ask("initialize", initialize(SESSION))
    old.say("notifications/initialized")
    before = len(old.sent)
    # The node's listeners tell whoever has a session, by its own level.
    old.running.do(lambda: old.conversation.send_notification("notifications/message", b"{}"))
    old.running.do(
        lambda: old.conversation.send_notification("notifications/mcpax/subserver_lost", b"{}")
    )
    assert [m["method"] for m in old.sent[before:]] == ["notifications/mcpax/subserver_lost"]


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object. Fail if a key occurs twice."""
    made = dict(pairs)
    assert len(made) == len(pairs)
    return made


@pytest.mark.parametrize(
    ("params", "made"),
    [
        (b"{}", {"_meta": {ax.REQUEST: 7}}),
        (b'{"a":1}', {"a": 1, "_meta": {ax.REQUEST: 7}}),
        (b' {"a":1}', {"a": 1, "_meta": {ax.REQUEST: 7}}),
        (b'{"_meta":{"x":null}}', {"_meta": {"x": None, ax.REQUEST: 7}}),
        (b'{"a":{"_meta":5}}', {"a": {"_meta": 5}, "_meta": {ax.REQUEST: 7}}),
        (b"{ }", {"_meta": {ax.REQUEST: 7}}),
        (b'{"a":1,"\\u005fmeta":{"x":1}}', {"a": 1, "_meta": {"x": 1, ax.REQUEST: 7}}),
        (b'{"a":"\\u00e4"}', {"a": "\u00e4", "_meta": {ax.REQUEST: 7}}),
        (b'{"_meta":5}', {"_meta": 5}),
        (b"[1]", [1]),
    ],
)
def test_adds_request_id_and_keeps_other_members(params: bytes, made: Any) -> None:
    assert json.loads(bytes(add_request_id(params, b"7")), object_pairs_hook=unique_keys) == made


# -- errors


NEW = Client(Era.STATELESS, "2026-07-28")
OLD = Client(Era.SESSION, "2025-11-25")
SPEAKS = Client(Era.SESSION, "2025-11-25", "", b'{"experimental":{"mcpax":{}}}')
DEGRADED = {"reason": "subserver_unreachable", "since": "2026-05-01T12:05:00Z"}


def encode_error(error: InterlockError, client: Client | None, **more: Any) -> Any:
    return json.loads(write_error(b"1", error, client, **more)[1])["error"]


@pytest.mark.spec("AX-13.2-3", "AX-5.2-2", "AX-5.2-3")
def test_maps_errors_for_ax_link() -> None:
    degraded = InterlockError(UPSTREAM_UNAVAILABLE, "It is gone.", DEGRADED)
    on_the_link = {
        "code": -32002, "message": "tool_degraded", "data": {**DEGRADED, "detail": "It is gone."},
    }  # fmt: skip
    assert encode_error(degraded, NEW, ax=True) == on_the_link
    assert encode_error(degraded, None, ax=True) == on_the_link
    assert encode_error(degraded, SPEAKS) == on_the_link
    assert encode_error(degraded, OLD)["code"] == -31020
    assert encode_error(degraded, NEW)["message"] == "It is gone."
    unknown = InterlockError(UNKNOWN_TOOL, "There is no such tool.")
    assert encode_error(unknown, NEW, ax=True)["code"] == -32601
    assert encode_error(unknown, NEW, ax=True)["message"] == "There is no such tool."
    assert encode_error(unknown, NEW)["code"] == -32602
    late = InterlockError(DEADLINE_EXCEEDED, "Too late.")
    assert encode_error(late, NEW, ax=True)["message"] == "downstream_timeout"


def test_passes_server_errors_unchanged() -> None:
    error = UpstreamResponseError(-32002, "No such resource.", b'{"uri":"x"}')
    passed = {"code": -32002, "message": "No such resource.", "data": {"uri": "x"}}
    assert encode_error(error, NEW, ax=True) == passed
    assert encode_error(error, NEW)["code"] == -32602


@pytest.mark.spec("AX-5.2-2")
def test_unknown_tool_is_unknown_method(parent: Callable[..., ParentEnd]) -> None:
    answer = parent().ask("tools/call", {"name": "shop.none", "_meta": meta()})
    assert answer["error"]["code"] == -32601
