"""Cached request heads: a repeated head is not parsed again, with the same behaviour."""

from __future__ import annotations

import json
from typing import Any

import pytest

from interlock.core.server.http.protocol import HttpProtocol
from tests.support.http_client import HttpConnection, message, meta, stateless_headers
from tests.support.node import NodeThread, result_text


@pytest.fixture
def parsed_heads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the requests that the parser read."""
    heads: list[int] = []
    begin = HttpProtocol.on_message_begin

    def count(self: HttpProtocol) -> None:
        heads.append(1)
        begin(self)

    monkeypatch.setattr(HttpProtocol, "on_message_begin", count)
    return heads


def echo(connection: HttpConnection, data: bytes) -> str:
    return result_text(connection.request(data))


@pytest.mark.parametrize("kind", ["stateless", "session"])
def test_parses_repeated_head_once(
    shared_node: NodeThread, parsed_heads: list[int], kind: str
) -> None:
    session = shared_node.session()
    make: Any = shared_node.call if kind == "stateless" else session.call
    parsed_heads.clear()
    with shared_node.connect() as connection:
        for number in range(100, 120):
            response = connection.request(make("echo", {"text": str(number)}, number))
            assert (response.json["id"], result_text(response)) == (number, str(number))
    assert len(parsed_heads) == 1


def test_caches_alternating_heads(shared_node: NodeThread, parsed_heads: list[int]) -> None:
    session = shared_node.session()
    parsed_heads.clear()
    with shared_node.connect() as connection:
        for _ in range(5):
            assert echo(connection, shared_node.call("echo", {"text": "one"})) == "one"
            assert echo(connection, shared_node.call("add", {"a": 1, "b": 2})) == "3"
            assert echo(connection, session.call("echo", {"text": "two"})) == "two"
            assert connection.request(shared_node.http(method="GET", path="/healthz")).status == 200
    # Other paths are always parsed.
    assert len(parsed_heads) == 3 + 5


def test_limits_cached_heads(shared_node: NodeThread) -> None:
    with shared_node.connect() as connection:
        for round in range(2):
            for number in range(100):
                text = "y" * number
                assert echo(connection, shared_node.call("echo", {"text": text}, 1)) == text, round
        (lane,) = [protocol for protocol in http_protocols(shared_node) if protocol._heads]
        assert len(lane._heads) <= 32


def http_protocols(shared_node: NodeThread) -> list[Any]:
    http = shared_node.node.listeners._http
    assert http is not None
    assert http._server is not None
    return list(http._server.server_state.connections)


def test_cached_head_accepts_split_body(shared_node: NodeThread) -> None:
    data = shared_node.call("echo", {"text": "pieces"})
    with shared_node.connect() as connection:
        assert echo(connection, data) == "pieces"
        for cut in (100, data.index(b"\r\n\r\n") + 4, len(data) - 1):
            assert result_text(connection.request(data[:cut], data[cut:])) == "pieces"
            assert echo(connection, data) == "pieces"


def test_cached_head_accepts_pipelined_requests(shared_node: NodeThread) -> None:
    data = shared_node.call("echo", {"text": "known"})
    with shared_node.connect() as connection:
        assert echo(connection, data) == "known"
        connection.send(data + data)
        assert [
            result_text(connection.read_response()),
            result_text(connection.read_response()),
        ] == [
            "known",
            "known",
        ]
        connection.send(data + data[:40])
        assert result_text(connection.read_response()) == "known"
        assert echo(connection, data[40:]) == "known"


def test_cached_head_waits_for_pending_call(shared_node: NodeThread) -> None:
    data = shared_node.call("echo", {"text": "known"})
    with shared_node.connect() as connection:
        assert echo(connection, data) == "known"
        connection.send(shared_node.call("hold", {"text": "heads"}))
        pending_call = shared_node.shop.wait_for_hold("heads")
        connection.send(data)
        assert shared_node.alive()
        connection.expect_silence()
        shared_node.do(lambda: shared_node.shop.release(pending_call))
        assert [
            result_text(connection.read_response()),
            result_text(connection.read_response()),
        ] == [
            "released",
            "known",
        ]


def test_distinguishes_heads_by_tool_name(shared_node: NodeThread) -> None:
    body = json.loads(shared_node.call("echo", {"text": "name"}).partition(b"\r\n\r\n")[2])
    with shared_node.connect() as connection:
        assert echo(connection, shared_node.call("echo", {"text": "name"})) == "name"
        # The body still says echo.
        lie = shared_node.http(
            json.dumps(body).encode(), *stateless_headers("tools/call", "shop.hold")
        )
        for _ in range(2):
            response = connection.request(lie)
            assert (response.status, response.error["code"]) == (400, -32020)
        # And the other way round: a head that is known, with the body of another.
        body["params"]["name"] = "shop.hold"
        response = connection.request(
            shared_node.http(
                json.dumps(body).encode(), *stateless_headers("tools/call", "shop.echo")
            )
        )
        assert (response.status, response.error["code"]) == (400, -32020)
    assert not shared_node.shop.find_received("tools/call", name="hold", arguments={"text": "name"})


def test_distinguishes_heads_by_session(shared_node: NodeThread) -> None:
    one, other = shared_node.session(), shared_node.session()
    with shared_node.connect() as connection:
        assert echo(connection, one.call("echo", {"text": "1"})) == "1"
        assert echo(connection, other.call("echo", {"text": "2"})) == "2"
        assert connection.request(one.delete()).status == 200
        # The same head as before, on the same connection.
        assert connection.request(one.call("echo", {"text": "1"})).status == 404
        assert echo(connection, other.call("echo", {"text": "2"})) == "2"


def test_cached_head_waits_for_whole_body(shared_node: NodeThread) -> None:
    data = shared_node.call("echo", {"text": "four"})
    with shared_node.connect() as connection:
        assert echo(connection, data) == "four"
        # One byte short: the request is not whole, and the next one completes it.
        connection.send(data[:-1])
        assert shared_node.alive()
        connection.expect_silence()
        assert echo(connection, data[-1:]) == "four"


def test_cached_head_checks_each_body(shared_node: NodeThread) -> None:
    valid = shared_node.call("echo", {"text": "good"})
    size = len(valid.partition(b"\r\n\r\n")[2])
    head = valid[:-size]
    invalid = {
        b"{" + b" " * (size - 1): -32700,
        b"[1," + b" " * (size - 5) + b"2]": -32600,
        b'"' + b"x" * (size - 2) + b'"': -32600,
        message("tools/call", {"name": "shop.echo"}).ljust(size): -32602,
        message("tools/call", {"name": "shop.add", "_meta": meta()}).ljust(size): -32020,
        message("tools/list", {"_meta": meta()}).ljust(size): -32020,
    }
    with shared_node.connect() as connection:
        for body, code in invalid.items():
            assert len(body) == size
            assert echo(connection, valid) == "good"
            response = connection.request(head + body)
            assert (response.status, response.error["code"]) == (400, code), body


def test_caches_head_without_body(shared_node: NodeThread, parsed_heads: list[int]) -> None:
    session = shared_node.session()
    parsed_heads.clear()
    bare = shared_node.http(method="DELETE")
    with shared_node.connect() as connection:
        assert [connection.request(bare).status for _ in range(3)] == [400] * 3
        assert len(parsed_heads) == 1
        assert connection.request(session.delete()).status == 200
        assert connection.request(session.delete()).status == 404


def test_cached_head_closes_connection(shared_node: NodeThread) -> None:
    data = shared_node.call("echo", {"text": "bye"}, 1, ("Connection", "close"))
    for _ in range(2):
        with shared_node.connect() as connection:
            assert echo(connection, data) == "bye"
            connection.expect_closed()


def test_new_tokens_apply_to_cached_heads(start_node: Any) -> None:
    node = start_node(tokens={"clerk": "a-secret"})
    mine = node.call("echo", {"text": "hi"}, 1, ("Authorization", "Bearer a-secret"))
    nobody = node.call("echo", {"text": "hi"})
    with node.connect() as connection:
        assert echo(connection, mine) == "hi"
        assert connection.request(nobody).status == 401
        assert echo(connection, mine) == "hi"
        node.wait(node.node.apply(node.config(tokens=[])))
        assert echo(connection, nobody) == "hi"
        node.wait(node.node.apply(node.config()))
        assert connection.request(nobody).status == 401
        assert echo(connection, mine) == "hi"


def test_new_guard_applies_to_cached_heads(start_node: Any) -> None:
    node = start_node()
    page = node.call("echo", {"text": "hi"}, 1, ("Origin", "https://app.example"))
    with node.connect() as connection:
        assert connection.request(page).status == 403
        node.wait(node.node.apply(node.config(allowed_origins=["https://app.example"])))
        assert echo(connection, page) == "hi"
        assert echo(connection, page) == "hi"
        node.wait(node.node.apply(node.config()))
        assert connection.request(page).status == 403


def test_new_tools_apply_to_cached_heads(start_node: Any) -> None:
    node = start_node()
    data = node.call("fresh", {})
    with node.connect() as connection:
        assert connection.request(data).error["data"]["error"] == "unknown_tool"
        node.do(lambda: node.shop.offer("fresh"))
        node.until(lambda: node.node.catalog.current.resolve("shop.fresh"), "the new list")
        assert echo(connection, data) == "fresh"
