"""HTTP framing: split, pipelined and chunked requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from interlock.core.server.http.router import Router
from tests.support.http_client import message, meta, stateless_headers
from tests.support.node import NodeThread, result_text


@pytest.fixture
def blocked_app(
    shared_node: NodeThread, monkeypatch: pytest.MonkeyPatch
) -> Iterator[asyncio.Event]:
    """Block the ASGI app until the event is set."""
    served = Router.__call__
    released = shared_node.do(asyncio.Event)

    async def wait_and_serve(self: Router, *asgi: Any) -> None:
        await released.wait()
        await served(self, *asgi)

    monkeypatch.setattr(Router, "__call__", wait_and_serve)
    yield released
    shared_node.do(released.set)


def healthz(shared_node: NodeThread) -> bytes:
    return shared_node.http(method="GET", path="/healthz")


# -- one request


@pytest.mark.parametrize("wire_kind", ["stateless", "session"])
def test_reads_request_in_one_piece(shared_node: NodeThread, wire_kind: str) -> None:
    data = shared_node.call("echo", {"text": "hello"})
    if wire_kind == "session":
        data = shared_node.session().call("echo", {"text": "hello"})
    response = shared_node.once(data)
    assert response.status == 200
    assert response.headers["content-type"] == "application/json"
    assert "date" in response.headers
    assert "server" not in response.headers
    assert result_text(response) == "hello"


def test_reads_request_byte_by_byte(shared_node: NodeThread) -> None:
    data = shared_node.call("echo", {"text": "slowly"})
    with shared_node.connect() as connection:
        for _ in range(2):
            connection.send(*(data[at : at + 1] for at in range(len(data))))
            assert result_text(connection.read_response()) == "slowly"


def test_reads_request_split_anywhere(shared_node: NodeThread) -> None:
    data = shared_node.call("echo", {"text": "cut"})
    head = data.index(b"\r\n\r\n")
    with shared_node.connect() as connection:
        for cut in (
            1,
            4,
            20,
            head - 1,
            head,
            head + 1,
            head + 2,
            head + 4,
            head + 5,
            len(data) - 1,
        ):
            response = connection.request(data[:cut], data[cut:])
            assert result_text(response) == "cut", cut


def test_reads_request_with_start_of_next(shared_node: NodeThread) -> None:
    data = shared_node.call("echo", {"text": "first"})
    follows = shared_node.call("echo", {"text": "second"}, 2)
    with shared_node.connect() as connection:
        for cut in (1, 30, len(follows) - 1):
            assert result_text(connection.request(data + follows[:cut])) == "first"
            assert result_text(connection.request(follows[cut:])) == "second"


def test_writes_large_responses(shared_node: NodeThread) -> None:
    for size in (1_000, 64 * 1024, 3_000_000):
        assert len(result_text(shared_node.once(shared_node.call("large", {"size": size})))) == size


def test_reads_chunked_body(shared_node: NodeThread) -> None:
    whole = shared_node.call("echo", {"text": "in chunks"})
    body = whole.partition(b"\r\n\r\n")[2]
    head = [*stateless_headers("tools/call", "shop.echo"), ("Transfer-Encoding", "chunked")]
    plain_head = [("Host", shared_node.host), ("Content-Type", "application/json"), *head]
    start = shared_node.http(b"", *plain_head, plain=True)
    pieces = [body[:1], body[1:50], body[50:]]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    with shared_node.connect() as connection:
        assert result_text(connection.request(start + chunks)) == "in chunks"
        assert result_text(connection.request(start + chunks)) == "in chunks"
        assert result_text(connection.request(start, chunks)) == "in chunks"
        everything = start + chunks
        assert result_text(
            connection.request(*(everything[at : at + 1] for at in range(len(everything))))
        )


def test_ignores_trailers(shared_node: NodeThread) -> None:
    body = shared_node.call("region", {"region": "north"}).partition(b"\r\n\r\n")[2]
    head = [
        ("Host", shared_node.host),
        ("Content-Type", "application/json"),
        *stateless_headers("tools/call", "shop.region"),
        ("Transfer-Encoding", "chunked"),
    ]
    chunked = b"%x\r\n%b\r\n0\r\n" % (len(body), body)
    with shared_node.connect() as connection:
        response = connection.request(
            shared_node.http(b"", *head, plain=True), chunked, b"Mcp-Param-Region: north\r\n\r\n"
        )
        assert (response.status, response.error["code"]) == (400, -32020)
        with_header = shared_node.http(b"", *head, ("Mcp-Param-Region", "north"), plain=True)
        response = connection.request(
            with_header, chunked, b"Mcp-Param-Region: south\r\nHost: evil\r\n\r\n"
        )
        assert (response.status, result_text(response)) == (200, "region")


def test_sends_100_continue(shared_node: NodeThread) -> None:
    data = shared_node.call("echo", {"text": "may I?"}, 1, ("Expect", "100-continue"))
    head, _, body = data.partition(b"\r\n\r\n")
    with shared_node.connect() as connection:
        connection.send(head + b"\r\n\r\n")
        assert connection.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert result_text(connection.request(body)) == "may I?"


def test_sends_100_continue_after_previous_response(shared_node: NodeThread) -> None:
    asks = shared_node.call("echo", {"text": "next"}, 2, ("Expect", "100-continue"))
    with shared_node.connect() as connection:
        connection.send(shared_node.call("hold", {"text": "expect"}), asks)
        id = shared_node.shop.wait_for_hold("expect")
        shared_node.do(lambda: shared_node.shop.release(id))
        status, headers = connection.head()
        assert status == 200
        assert json.loads(connection.exactly(int(headers["content-length"])))["id"] == 1
        assert result_text(connection.read_response()) == "next"


# -- connections


def test_keeps_or_closes_connection_as_requested(shared_node: NodeThread) -> None:
    with shared_node.connect() as connection:
        for id in range(3):
            response = connection.request(shared_node.call("echo", {"text": "kept"}, id))
            assert "connection" not in response.headers
            assert response.json["id"] == id
        for _ in range(1):
            response = connection.request(
                shared_node.call("echo", {"text": "bye"}, 1, ("Connection", "close"))
            )
            assert response.headers["connection"] == "close"
            assert result_text(response) == "bye"
        connection.expect_closed()


def test_closes_http_1_0_connection(shared_node: NodeThread) -> None:
    body = shared_node.call("echo", {"text": "old"}).partition(b"\r\n\r\n")[2]
    headers = stateless_headers("tools/call", "shop.echo")
    with shared_node.connect() as connection:
        response = connection.request(shared_node.http(body, *headers, version="HTTP/1.0"))
        assert result_text(response) == "old"
        assert response.headers["connection"] == "close"
        connection.expect_closed()


def test_http_1_0_stream_ends_with_connection(
    shared_node: NodeThread,
) -> None:
    params = {"name": "shop.report", "arguments": {"steps": 2}, "_meta": meta(progressToken="p")}
    body = message("tools/call", params)
    headers = stateless_headers("tools/call", "shop.report")
    response = shared_node.once(
        shared_node.http(body, *headers, ("Connection", "keep-alive"), version="HTTP/1.0")
    )
    assert "transfer-encoding" not in response.headers
    assert response.headers["connection"] == "close"
    events = [json.loads(item[6:]) for item in response.body.split(b"\r\n\r\n") if item]
    assert [event.get("method") for event in events] == ["notifications/progress"] * 2 + [None]
    assert result_text(events[-1]) == "reported"


@pytest.mark.parametrize("method", ["PUT", "OPTIONS", "PATCH", "HEAD"])
def test_rejects_other_methods(shared_node: NodeThread, method: str) -> None:
    with shared_node.connect() as connection:
        for _ in range(2):
            connection.send(shared_node.http(method=method))
            response = connection.read_response(to_head=method == "HEAD")
            assert response.status == 405
            assert response.headers["allow"] == "GET, POST, DELETE"
            assert response.body == b""
        # The connection is as good as before.
        assert (
            result_text(connection.request(shared_node.call("echo", {"text": "after"}))) == "after"
        )


def test_head_response_has_no_body(shared_node: NodeThread) -> None:
    with shared_node.connect() as connection:
        connection.send(shared_node.http(b"", ("Host", "evil.example"), method="HEAD", plain=True))
        assert connection.read_response(to_head=True).status in (403, 405)
        assert (
            result_text(connection.request(shared_node.call("echo", {"text": "after"}))) == "after"
        )


@pytest.mark.parametrize(
    "upgrade",
    [("h2c", "Upgrade, HTTP2-Settings"), ("websocket", "Upgrade"), ("TLS/1.3", "upgrade")],
)
def test_ignores_upgrade_offer(shared_node: NodeThread, upgrade: tuple[str, str]) -> None:
    # Java's HTTP client offers HTTP/2 on every first request.
    offer = [("Upgrade", upgrade[0]), ("Connection", upgrade[1]), ("HTTP2-Settings", "AAMAAABk")]
    data = shared_node.call("echo", {"text": "as ever"}, 1, *offer)
    with shared_node.connect() as connection:
        assert result_text(connection.request(data)) == "as ever"
        assert result_text(connection.request(data)) == "as ever"
        # With the next one right behind it.
        connection.send(shared_node.call("echo", {"text": "one"}, 1, *offer, ("X", "1")) + data)
        assert [
            result_text(connection.read_response()),
            result_text(connection.read_response()),
        ] == [
            "one",
            "as ever",
        ]


# -- several requests at once


def test_answers_pipelined_requests_in_order(shared_node: NodeThread) -> None:
    with shared_node.connect() as connection:
        connection.send(
            b"".join(shared_node.call("echo", {"text": str(id)}, id) for id in range(40))
        )
        for id in range(40):
            response = connection.read_response()
            assert (response.json["id"], result_text(response)) == (id, str(id))
        assert (
            result_text(connection.request(shared_node.call("echo", {"text": "after"}))) == "after"
        )


def test_slow_response_delays_later_responses(shared_node: NodeThread) -> None:
    session = shared_node.session()
    with shared_node.connect() as connection:
        connection.send(
            session.call("hold", {"text": "slow"}, 1),
            session.call("echo", {"text": "quick"}, 2),
            session.call("echo", {"text": "quicker"}, 3),
        )
        pending_call = shared_node.shop.wait_for_hold("slow")
        assert shared_node.alive()
        connection.expect_silence()
        shared_node.do(lambda: shared_node.shop.release(pending_call))
        assert [connection.read_response().json["id"] for _ in range(3)] == [1, 2, 3]


def test_answers_mcp_after_app_path(shared_node: NodeThread, blocked_app: asyncio.Event) -> None:
    with shared_node.connect() as connection:
        connection.send(healthz(shared_node) + shared_node.call("echo", {"text": "behind"}))
        assert shared_node.alive()
        connection.expect_silence()
        shared_node.do(blocked_app.set)
        assert connection.read_response().json == {"status": "ok"}
        assert result_text(connection.read_response()) == "behind"


def test_cached_head_waits_for_app_path(
    shared_node: NodeThread, blocked_app: asyncio.Event
) -> None:
    with shared_node.connect() as connection:
        assert (
            result_text(connection.request(shared_node.call("echo", {"text": "known"}))) == "known"
        )
        connection.send(healthz(shared_node))
        shared_node.until(
            lambda: any(protocol.cycle for protocol in http_protocols(shared_node)), "the request"
        )
        connection.send(shared_node.call("echo", {"text": "known"}))
        assert shared_node.alive()
        connection.expect_silence()
        shared_node.do(blocked_app.set)
        assert connection.read_response().json == {"status": "ok"}
        assert result_text(connection.read_response()) == "known"


def http_protocols(shared_node: NodeThread) -> list[Any]:
    http = shared_node.node.listeners._http
    assert http is not None
    assert http._server is not None
    return list(http._server.server_state.connections)


def test_answers_pipelined_app_paths(shared_node: NodeThread, blocked_app: asyncio.Event) -> None:
    with shared_node.connect() as connection:
        connection.send(healthz(shared_node) * 3)
        shared_node.do(blocked_app.set)
        assert [connection.read_response().status for _ in range(3)] == [200] * 3
        assert (
            result_text(connection.request(shared_node.call("echo", {"text": "after"}))) == "after"
        )


@pytest.mark.parametrize("calls", [1, 3])
def test_app_path_after_mcp_closes_connection(shared_node: NodeThread, calls: int) -> None:
    # Nobody mixes them like this; what matters is that no answer goes to the wrong request.
    session = shared_node.session()
    with shared_node.connect() as connection:
        others = [session.call("echo", {"text": "quick"}, id) for id in range(2, calls + 1)]
        first = session.call("hold", {"text": f"mixed {calls}"})
        connection.send(b"".join([first, *others, healthz(shared_node)]))
        pending_call = shared_node.shop.wait_for_hold(f"mixed {calls}")
        assert shared_node.alive()
        shared_node.do(lambda: shared_node.shop.release(pending_call))
        responses = [connection.read_response() for _ in range(calls)]
        assert [response.json["id"] for response in responses] == list(range(1, calls + 1))
        assert responses[-1].headers["connection"] == "close"
        connection.expect_closed()


def test_app_paths_around_mcp_keep_order(
    shared_node: NodeThread, blocked_app: asyncio.Event
) -> None:
    with shared_node.connect() as connection:
        connection.send(
            healthz(shared_node)
            + shared_node.call("echo", {"text": "middle"})
            + healthz(shared_node)
        )
        shared_node.do(blocked_app.set)
        assert connection.read_response().json == {"status": "ok"}
        response = connection.read_response()
        assert result_text(response) == "middle"
        assert response.headers["connection"] == "close"
        connection.expect_closed()


def test_limits_pipelined_requests(shared_node: NodeThread) -> None:
    session = shared_node.session()
    headers = [("Host", shared_node.host), ("Content-Type", "application/json"), session.headers[0]]
    pings = []
    for id in range(2, 150):
        body = message("ping", id=id)
        length = ("Content-Length", str(len(body)))
        pings.append(shared_node.http(body, *headers, length, plain=True))
    with shared_node.connect() as connection:
        connection.send(session.call("hold", {"text": "flood"}) + b"".join(pings))
        pending_call = shared_node.shop.wait_for_hold("flood")
        shared_node.do(lambda: shared_node.shop.release(pending_call))
        responses = [connection.read_response()]
        while "connection" not in responses[-1].headers:
            responses.append(connection.read_response())
        # What was taken is answered, in order; for the rest the client has to come again.
        assert [response.json["id"] for response in responses] == list(range(1, 66))
        connection.expect_closed()
    assert shared_node.alive()
