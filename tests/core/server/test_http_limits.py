"""Limits of HTTP: invalid, large, slow and ambiguous requests are rejected."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from interlock.core.server.http import protocol as fast_lane
from tests.support.http_client import HttpConnection, message, stateless_headers
from tests.support.node import NodeThread, result_text

LIMITS = {"body_bytes": 2_000, "header_bytes": 2_000, "header_count": 20}
# Long enough for a busy machine to send a request, short enough to wait for.
SHORT = 0.3
# More than any single read takes in.
ENDLESS = [b"y" * 50_000] * 20


@pytest.fixture(scope="module")
def limited_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeThread]:
    """A node with small limits."""
    node = NodeThread(tmp_path_factory.mktemp("small"), limits=LIMITS)
    yield node
    node.stop()


def http_protocols(node: NodeThread) -> list[Any]:
    http = node.node.listeners._http
    assert http is not None
    assert http._server is not None
    return list(http._server.server_state.connections)


def read_rejection(connection: HttpConnection, status: int) -> str:
    """Return the message of a rejection, after which the connection is closed."""
    response = connection.read_response()
    assert response.status == status, response
    assert response.headers["connection"] == "close"
    assert response.json["id"] is None
    assert response.error["code"] == -32600
    connection.expect_closed()
    sentence: str = response.error["message"]
    return sentence


# -- what is not HTTP


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n',
        b"BREW /mcp HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /mcp HTTP/9.9\r\nHost: x\r\n\r\n",
        b"POST /mcp HTTP/1.1\r\nHost: x\r\nContent-Length: many\r\n\r\n",
        b"POST /mcp HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST /mcp HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999999\r\n\r\n",
        b"POST /mcp HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST /mcp HTTP/1.1\r\nHost : x\r\n\r\n",
        b"POST /mcp HTTP/1.1\r\nHost: x\r\n folded\r\n\r\n",
        b"POST /mcp HTTP/1.1\r\nHost: x\x00y\r\n\r\n",
        b"GET http:// HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x00" * 100,
    ],
)
def test_rejects_invalid_http(shared_node: NodeThread, data: bytes) -> None:
    with shared_node.connect() as connection:
        connection.send(data)
        read_rejection(connection, 400)
    assert shared_node.alive()


def test_rejects_connect_method(shared_node: NodeThread) -> None:
    with shared_node.connect() as connection:
        connection.send(
            b"CONNECT example.com:443 HTTP/1.1\r\nHost: example.com\r\n\r\n\x16\x03\x01"
        )
        read_rejection(connection, 405)


@pytest.mark.parametrize(
    "framing",
    [
        [("Content-Length", "{n}"), ("Transfer-Encoding", "chunked")],
        [("Transfer-Encoding", "chunked"), ("Content-Length", "{n}")],
        [("Content-Length", "{n}"), ("Content-Length", "{n}")],
        [("Content-Length", "{n}"), ("Content-Length", "0")],
        [("Content-Length", "0, {n}")],
        [("Content-Length", "+{n}")],
        [("Content-Length", "{n} {n}")],
        [("Transfer-Encoding", "chunked, identity")],
        [("Transfer-Encoding", "xchunked")],
    ],
    ids=str,
)
def test_rejects_ambiguous_content_length(
    shared_node: NodeThread, framing: list[tuple[str, str]]
) -> None:
    # Two readers that disagree about where a request ends: that is how one is smuggled in.
    smuggled = shared_node.call("echo", {"text": "smuggled"}, 2)
    body = b"0\r\n\r\n" + smuggled
    lines = [(name, value.format(n=len(body))) for name, value in framing]
    head = [("Host", shared_node.host), ("Content-Type", "application/json")]
    with shared_node.connect() as connection:
        # Also when a head much like it is known on this connection.
        known = shared_node.http(b"", *head, ("Content-Length", "0"), plain=True)
        assert connection.request(known).status == 400
        assert connection.request(known).status == 400
        before = len(shared_node.shop.calls("echo"))
        connection.send(shared_node.http(body, *head, *lines, plain=True))
        read_rejection(connection, 400)
        assert len(shared_node.shop.calls("echo")) == before


# -- what is too large


def test_limits_header_count(limited_node: NodeThread) -> None:
    many = [(f"X-{number}", "1") for number in range(LIMITS["header_count"])]
    with limited_node.connect() as connection:
        connection.send(limited_node.http(b"{}", *many))
        assert "headers" in read_rejection(connection, 431)


def test_limits_header_bytes(limited_node: NodeThread) -> None:
    long = [(f"X-{number}", "y" * 400) for number in range(5)]
    with limited_node.connect() as connection:
        connection.send(limited_node.http(b"{}", *long))
        read_rejection(connection, 431)
    with limited_node.connect() as connection:
        assert connection.request(limited_node.http(b"{}", *long[:3])).status == 400


def test_rejects_endless_header(limited_node: NodeThread) -> None:
    start_node = b"POST /mcp HTTP/1.1\r\nHost: x\r\nX-Long: "
    with limited_node.connect() as connection:
        connection.send(start_node, *ENDLESS)
        read_rejection(connection, 431)
    with limited_node.connect() as connection:
        connection.send(b"POST /mcp HTTP/1.1\r\n", *ENDLESS)
        read_rejection(connection, 431)


def test_rejects_endless_trailers(limited_node: NodeThread) -> None:
    lines = [("Host", limited_node.host), ("Transfer-Encoding", "chunked")]
    start_node = limited_node.http(b"1\r\n{\r\n0\r\n", *lines, plain=True)
    with limited_node.connect() as connection:
        connection.send(start_node, b"X: ", *ENDLESS)
        read_rejection(connection, 431)
    with limited_node.connect() as connection:
        connection.send(
            start_node, *(b"X-%d: %b\r\n" % (number, b"y" * 200) for number in range(30))
        )
        read_rejection(connection, 431)


def test_rejects_endless_chunk_extensions(limited_node: NodeThread) -> None:
    lines = [("Host", limited_node.host), ("Transfer-Encoding", "chunked")]
    start_node = limited_node.http(b"", *lines, plain=True)
    with limited_node.connect() as connection:
        connection.send(start_node, b"1;", *ENDLESS)
        read_rejection(connection, 431)


@pytest.mark.parametrize("path", ["/mcp?", "/"])
def test_rejects_long_url(limited_node: NodeThread, path: str) -> None:
    with limited_node.connect() as connection:
        connection.send(limited_node.http(b"", method="GET", path=path + "y" * 9_000))
        read_rejection(connection, 414)


def test_rejects_large_announced_body(limited_node: NodeThread) -> None:
    with limited_node.connect() as connection:
        # Before a byte of it was sent.
        connection.send(
            limited_node.http(
                b"", ("Content-Length", "2001"), ("Host", limited_node.host), plain=True
            )
        )
        assert "2000 bytes" in read_rejection(connection, 413)


def test_rejects_large_chunked_body(limited_node: NodeThread) -> None:
    head = [("Host", limited_node.host), ("Transfer-Encoding", "chunked")]
    with limited_node.connect() as connection:
        connection.send(
            limited_node.http(b"", *head, plain=True), *(b"64\r\n%b\r\n" % (b"y" * 100),) * 25
        )
        read_rejection(connection, 413)


def test_accepts_body_at_limit(limited_node: NodeThread) -> None:
    for size, status in ((2_000, 200), (2_001, 413)):
        room = len(limited_node.call("echo", {"text": ""}).partition(b"\r\n\r\n")[2])
        with limited_node.connect() as connection:
            connection.send(limited_node.call("echo", {"text": "y" * (size - room)}))
            assert connection.read_response().status == status


def test_client_can_read_rejection_of_large_body(shared_node: NodeThread) -> None:
    # Closing at once would reset the connection under the answer.
    with shared_node.connect() as connection:
        connection.send(shared_node.http(b"y" * 20_000_000))
        assert "4194304 bytes" in read_rejection(connection, 413)


def test_rejects_large_body_for_app_path(limited_node: NodeThread) -> None:
    head = [("Host", limited_node.host), ("Content-Length", "1000000")]
    with limited_node.connect() as connection:
        connection.send(limited_node.http(b"", *head, plain=True, path="/healthz"))
        assert connection.read_response().status == 405
        connection.send(b"y" * 3_000)
        connection.expect_closed()


def test_applies_new_limits_immediately(start_node: Any) -> None:
    node = start_node()
    large = node.call("echo", {"text": "y" * 3_000})
    with node.connect() as connection:
        assert connection.request(large).status == 200
        node.wait(node.node.apply(node.config(limits=LIMITS)))
        known = connection.request(large)
        # Its head is known on this connection, and so is its length.
        assert known.status in (200, 413)
    assert node.once(large).status == 413


# -- what is too slow


def test_closes_incomplete_request_after_timeout(
    shared_node: NodeThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fast_lane, "KEEP_ALIVE", SHORT)
    data = shared_node.call("echo", {"text": "half"})
    for sent in (data[:10], data[:200], data[:-1]):
        with shared_node.connect() as connection:
            connection.send(sent)
            assert "in time" in read_rejection(connection, 408)


def test_closes_idle_connection(shared_node: NodeThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_lane, "KEEP_ALIVE", SHORT)
    with shared_node.connect() as connection:
        connection.expect_closed()
    with shared_node.connect() as connection:
        assert result_text(connection.request(shared_node.call("echo", {"text": "once"}))) == "once"
        connection.expect_closed()


@pytest.mark.parametrize("first", ["mcp", "healthz"])
def test_pending_call_keeps_connection_open(
    shared_node: NodeThread, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    monkeypatch.setattr(fast_lane, "KEEP_ALIVE", SHORT)
    with shared_node.connect() as connection, shared_node.connect() as unused:
        if first == "healthz":
            assert connection.request(shared_node.http(method="GET", path="/healthz")).status == 200
        connection.send(shared_node.call("hold", {"text": f"long {first}"}))
        pending_call = shared_node.shop.wait_for_hold(f"long {first}")
        # The unused one is over; its neighbour is older.
        unused.expect_closed()
        shared_node.do(lambda: shared_node.shop.release(pending_call))
        assert result_text(connection.read_response()) == "released"


def test_stops_reading_from_client_that_does_not_read(shared_node: NodeThread) -> None:
    before = len(shared_node.shop.calls("large"))
    size = 1_000_000
    with shared_node.connect(receive=4_096) as connection:
        for id in range(40):
            connection.send(shared_node.call("large", {"size": size}, id))
        shared_node.until(
            lambda: any(protocol.flow.write_paused for protocol in http_protocols(shared_node)),
            "a full pipe",
        )
        for _ in range(20):
            assert shared_node.alive()
        waiting = shared_node.do(
            lambda: max(protocol.count_unread_bytes() for protocol in http_protocols(shared_node))
        )
        assert waiting < 3 * size
        assert len(shared_node.shop.calls("large")) - before < 40
        # It was only slow.
        for id in range(40):
            response = connection.read_response()
            assert response.json["id"] == id
            assert len(result_text(response)) == size


def test_closes_connection_of_client_that_never_reads(
    shared_node: NodeThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fast_lane, "KEEP_ALIVE", SHORT)
    with shared_node.connect(receive=4_096) as connection:
        connection.send(shared_node.call("large", {"size": 5_000_000}))
        shared_node.until(
            lambda: any(protocol.flow.write_paused for protocol in http_protocols(shared_node)),
            "a full pipe",
        )
        shared_node.until(lambda: not http_protocols(shared_node), "an end")


# -- and those who are not concerned


@pytest.mark.parametrize("invalid", [b"\x00\x01\x02 nonsense\r\n\r\n", b"GET /" + b"y" * 9_000])
def test_answers_pending_call_before_rejection(shared_node: NodeThread, invalid: bytes) -> None:
    text = f"before {len(invalid)}"
    with shared_node.connect() as connection:
        connection.send(shared_node.call("hold", {"text": text}, "mine"), invalid)
        pending_call = shared_node.shop.wait_for_hold(text)
        connection.send(b"more of it")
        assert shared_node.alive()
        connection.expect_silence()
        shared_node.do(lambda: shared_node.shop.release(pending_call))
        response = connection.read_response()
        assert (response.json["id"], result_text(response)) == ("mine", "released")
        connection.expect_closed()


def test_disconnect_after_rejection_cancels_pending_call(
    shared_node: NodeThread,
) -> None:
    with shared_node.connect() as connection:
        connection.send(shared_node.call("hold", {"text": "goes"}), b"\x00\r\n\r\n")
        pending_call = shared_node.shop.wait_for_hold("goes")
    shared_node.shop.wait_for(
        lambda: shared_node.shop.find_received("notifications/cancelled", requestId=pending_call)
    )


def test_removes_listener_with_rejected_request(
    shared_node: NodeThread,
) -> None:
    before = shared_node.do(shared_node.node.status).listeners
    with shared_node.connect() as connection:
        connection.send(shared_node.session().get())
        assert connection.head()[0] == 200
        shared_node.until(lambda: shared_node.node.status().listeners == before + 1)
        connection.send(shared_node.http(b"", ("X-Long", "y" * 20_000), method="GET"))
        assert shared_node.alive()
    shared_node.until(
        lambda: shared_node.node.status().listeners == before, "an end of the listener"
    )


def test_bad_request_does_not_affect_other_connections(shared_node: NodeThread) -> None:
    with shared_node.connect() as valid:
        for _ in range(3):
            with shared_node.connect() as invalid:
                invalid.send(b"nonsense\r\n\r\n")
                read_rejection(invalid, 400)
            body = message("tools/list", id=1)
            headers = stateless_headers("tools/list")
            assert valid.request(shared_node.http(body, *headers)).status == 400
            assert result_text(valid.request(shared_node.call("echo", {"text": "good"}))) == "good"


def test_answers_app_path_before_rejection(shared_node: NodeThread) -> None:
    with shared_node.connect() as connection:
        connection.send(
            shared_node.http(method="GET", path="/healthz") + b"nonsense\r\n\r\n" + b"y" * 100_000
        )
        assert connection.read_response().json == {"status": "ok"}
        connection.expect_closed()
