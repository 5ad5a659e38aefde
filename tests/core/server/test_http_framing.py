"""HTTP as it comes over the socket: in one piece or in many, one request or several."""

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
def held_app(plain: NodeThread, monkeypatch: pytest.MonkeyPatch) -> Iterator[asyncio.Event]:
    """The ASGI app answers only once the event is set."""
    served = Router.__call__
    released = plain.do(asyncio.Event)

    async def wait_and_serve(self: Router, *asgi: Any) -> None:
        await released.wait()
        await served(self, *asgi)

    monkeypatch.setattr(Router, "__call__", wait_and_serve)
    yield released
    plain.do(released.set)


def healthz(plain: NodeThread) -> bytes:
    return plain.http(method="GET", path="/healthz")


# -- one request


@pytest.mark.parametrize("wire_kind", ["stateless", "session"])
def test_a_request_in_one_piece(plain: NodeThread, wire_kind: str) -> None:
    data = plain.call("echo", {"text": "hello"})
    if wire_kind == "session":
        data = plain.session().call("echo", {"text": "hello"})
    answer = plain.once(data)
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    assert "date" in answer.headers
    assert "server" not in answer.headers
    assert result_text(answer) == "hello"


def test_a_request_byte_by_byte(plain: NodeThread) -> None:
    data = plain.call("echo", {"text": "slowly"})
    with plain.connect() as wire:
        for _ in range(2):
            wire.send(*(data[at : at + 1] for at in range(len(data))))
            assert result_text(wire.answer()) == "slowly"


def test_a_request_cut_in_two_anywhere(plain: NodeThread) -> None:
    data = plain.call("echo", {"text": "cut"})
    head = data.index(b"\r\n\r\n")
    with plain.connect() as wire:
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
            answer = wire.ask(data[:cut], data[cut:])
            assert result_text(answer) == "cut", cut


def test_a_request_and_the_start_of_the_next(plain: NodeThread) -> None:
    data = plain.call("echo", {"text": "first"})
    follows = plain.call("echo", {"text": "second"}, 2)
    with plain.connect() as wire:
        for cut in (1, 30, len(follows) - 1):
            assert result_text(wire.ask(data + follows[:cut])) == "first"
            assert result_text(wire.ask(follows[cut:])) == "second"


def test_large_answers_come_whole(plain: NodeThread) -> None:
    for size in (1_000, 64 * 1024, 3_000_000):
        assert len(result_text(plain.once(plain.call("large", {"size": size})))) == size


def test_a_body_that_comes_in_chunks(plain: NodeThread) -> None:
    whole = plain.call("echo", {"text": "in chunks"})
    body = whole.partition(b"\r\n\r\n")[2]
    head = [*stateless_headers("tools/call", "shop.echo"), ("Transfer-Encoding", "chunked")]
    plain_head = [("Host", plain.host), ("Content-Type", "application/json"), *head]
    start = plain.http(b"", *plain_head, plain=True)
    pieces = [body[:1], body[1:50], body[50:]]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(one), one) for one in pieces) + b"0\r\n\r\n"
    with plain.connect() as wire:
        assert result_text(wire.ask(start + chunks)) == "in chunks"
        assert result_text(wire.ask(start + chunks)) == "in chunks"
        assert result_text(wire.ask(start, chunks)) == "in chunks"
        everything = start + chunks
        assert result_text(wire.ask(*(everything[at : at + 1] for at in range(len(everything)))))


def test_trailers_are_no_headers(plain: NodeThread) -> None:
    body = plain.call("region", {"region": "north"}).partition(b"\r\n\r\n")[2]
    head = [
        ("Host", plain.host),
        ("Content-Type", "application/json"),
        *stateless_headers("tools/call", "shop.region"),
        ("Transfer-Encoding", "chunked"),
    ]
    chunked = b"%x\r\n%b\r\n0\r\n" % (len(body), body)
    with plain.connect() as wire:
        answer = wire.ask(
            plain.http(b"", *head, plain=True), chunked, b"Mcp-Param-Region: north\r\n\r\n"
        )
        assert (answer.status, answer.error["code"]) == (400, -32020)
        with_header = plain.http(b"", *head, ("Mcp-Param-Region", "north"), plain=True)
        answer = wire.ask(with_header, chunked, b"Mcp-Param-Region: south\r\nHost: evil\r\n\r\n")
        assert (answer.status, result_text(answer)) == (200, "region")


def test_a_client_that_asks_whether_it_may_send_is_told_so(plain: NodeThread) -> None:
    data = plain.call("echo", {"text": "may I?"}, 1, ("Expect", "100-continue"))
    head, _, body = data.partition(b"\r\n\r\n")
    with plain.connect() as wire:
        wire.send(head + b"\r\n\r\n")
        assert wire.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert result_text(wire.ask(body)) == "may I?"


def test_permission_to_send_never_lands_inside_another_answer(plain: NodeThread) -> None:
    asks = plain.call("echo", {"text": "next"}, 2, ("Expect", "100-continue"))
    with plain.connect() as wire:
        wire.send(plain.call("hold", {"text": "expect"}), asks)
        id = plain.shop.wait_for_hold("expect")
        plain.do(lambda: plain.shop.release(id))
        status, headers = wire.head()
        assert status == 200
        assert json.loads(wire.exactly(int(headers["content-length"])))["id"] == 1
        assert result_text(wire.answer()) == "next"


# -- connections


def test_a_connection_is_kept_and_closed_as_the_client_says(plain: NodeThread) -> None:
    with plain.connect() as wire:
        for id in range(3):
            answer = wire.ask(plain.call("echo", {"text": "kept"}, id))
            assert "connection" not in answer.headers
            assert answer.json["id"] == id
        for _ in range(1):
            answer = wire.ask(plain.call("echo", {"text": "bye"}, 1, ("Connection", "close")))
            assert answer.headers["connection"] == "close"
            assert result_text(answer) == "bye"
        wire.closed()


def test_http_1_0(plain: NodeThread) -> None:
    body = plain.call("echo", {"text": "old"}).partition(b"\r\n\r\n")[2]
    headers = stateless_headers("tools/call", "shop.echo")
    with plain.connect() as wire:
        answer = wire.ask(plain.http(body, *headers, version="HTTP/1.0"))
        assert result_text(answer) == "old"
        assert answer.headers["connection"] == "close"
        wire.closed()


def test_http_1_0_knows_no_chunks_so_its_stream_ends_with_the_connection(plain: NodeThread) -> None:
    params = {"name": "shop.report", "arguments": {"steps": 2}, "_meta": meta(progressToken="p")}
    body = message("tools/call", params)
    headers = stateless_headers("tools/call", "shop.report")
    answer = plain.once(
        plain.http(body, *headers, ("Connection", "keep-alive"), version="HTTP/1.0")
    )
    assert "transfer-encoding" not in answer.headers
    assert answer.headers["connection"] == "close"
    events = [json.loads(one[6:]) for one in answer.body.split(b"\r\n\r\n") if one]
    assert [one.get("method") for one in events] == ["notifications/progress"] * 2 + [None]
    assert result_text(events[-1]) == "reported"


@pytest.mark.parametrize("method", ["PUT", "OPTIONS", "PATCH", "HEAD"])
def test_other_methods_are_not_for_this_endpoint(plain: NodeThread, method: str) -> None:
    with plain.connect() as wire:
        for _ in range(2):
            wire.send(plain.http(method=method))
            answer = wire.answer(to_head=method == "HEAD")
            assert answer.status == 405
            assert answer.headers["allow"] == "GET, POST, DELETE"
            assert answer.body == b""
        # The connection is as good as before.
        assert result_text(wire.ask(plain.call("echo", {"text": "after"}))) == "after"


def test_a_head_request_never_gets_a_body(plain: NodeThread) -> None:
    with plain.connect() as wire:
        wire.send(plain.http(b"", ("Host", "evil.example"), method="HEAD", plain=True))
        assert wire.answer(to_head=True).status in (403, 405)
        assert result_text(wire.ask(plain.call("echo", {"text": "after"}))) == "after"


@pytest.mark.parametrize(
    "upgrade",
    [("h2c", "Upgrade, HTTP2-Settings"), ("websocket", "Upgrade"), ("TLS/1.3", "upgrade")],
)
def test_an_offer_to_upgrade_is_passed_over(plain: NodeThread, upgrade: tuple[str, str]) -> None:
    # Java's HTTP client offers HTTP/2 on every first request.
    offer = [("Upgrade", upgrade[0]), ("Connection", upgrade[1]), ("HTTP2-Settings", "AAMAAABk")]
    data = plain.call("echo", {"text": "as ever"}, 1, *offer)
    with plain.connect() as wire:
        assert result_text(wire.ask(data)) == "as ever"
        assert result_text(wire.ask(data)) == "as ever"
        # With the next one right behind it.
        wire.send(plain.call("echo", {"text": "one"}, 1, *offer, ("X", "1")) + data)
        assert [result_text(wire.answer()), result_text(wire.answer())] == ["one", "as ever"]


# -- several requests at once


def test_many_requests_in_one_packet_are_answered_in_order(plain: NodeThread) -> None:
    with plain.connect() as wire:
        wire.send(b"".join(plain.call("echo", {"text": str(id)}, id) for id in range(40)))
        for id in range(40):
            answer = wire.answer()
            assert (answer.json["id"], result_text(answer)) == (id, str(id))
        assert result_text(wire.ask(plain.call("echo", {"text": "after"}))) == "after"


def test_a_slow_answer_holds_back_those_behind_it(plain: NodeThread) -> None:
    session = plain.session()
    with plain.connect() as wire:
        wire.send(
            session.call("hold", {"text": "slow"}, 1),
            session.call("echo", {"text": "quick"}, 2),
            session.call("echo", {"text": "quicker"}, 3),
        )
        held = plain.shop.wait_for_hold("slow")
        assert plain.alive()
        wire.silent()
        plain.do(lambda: plain.shop.release(held))
        assert [wire.answer().json["id"] for _ in range(3)] == [1, 2, 3]


def test_mcp_behind_another_path(plain: NodeThread, held_app: asyncio.Event) -> None:
    with plain.connect() as wire:
        wire.send(healthz(plain) + plain.call("echo", {"text": "behind"}))
        assert plain.alive()
        wire.silent()
        plain.do(held_app.set)
        assert wire.answer().json == {"status": "ok"}
        assert result_text(wire.answer()) == "behind"


def test_a_known_head_behind_another_path_waits_for_its_turn(
    plain: NodeThread, held_app: asyncio.Event
) -> None:
    with plain.connect() as wire:
        assert result_text(wire.ask(plain.call("echo", {"text": "known"}))) == "known"
        wire.send(healthz(plain))
        plain.until(lambda: any(one.cycle for one in lanes(plain)), "the request")
        wire.send(plain.call("echo", {"text": "known"}))
        assert plain.alive()
        wire.silent()
        plain.do(held_app.set)
        assert wire.answer().json == {"status": "ok"}
        assert result_text(wire.answer()) == "known"


def lanes(plain: NodeThread) -> list[Any]:
    http = plain.node.listeners._http
    assert http is not None
    assert http._server is not None
    return list(http._server.server_state.connections)


def test_other_paths_one_behind_the_other(plain: NodeThread, held_app: asyncio.Event) -> None:
    with plain.connect() as wire:
        wire.send(healthz(plain) * 3)
        plain.do(held_app.set)
        assert [wire.answer().status for _ in range(3)] == [200] * 3
        assert result_text(wire.ask(plain.call("echo", {"text": "after"}))) == "after"


@pytest.mark.parametrize("calls", [1, 3])
def test_another_path_behind_mcp_is_left_to_a_new_connection(plain: NodeThread, calls: int) -> None:
    # Nobody mixes them like this; what matters is that no answer goes to the wrong request.
    session = plain.session()
    with plain.connect() as wire:
        others = [session.call("echo", {"text": "quick"}, id) for id in range(2, calls + 1)]
        first = session.call("hold", {"text": f"mixed {calls}"})
        wire.send(b"".join([first, *others, healthz(plain)]))
        held = plain.shop.wait_for_hold(f"mixed {calls}")
        assert plain.alive()
        plain.do(lambda: plain.shop.release(held))
        answers = [wire.answer() for _ in range(calls)]
        assert [one.json["id"] for one in answers] == list(range(1, calls + 1))
        assert answers[-1].headers["connection"] == "close"
        wire.closed()


def test_a_sandwich_of_paths_never_mixes_its_answers(
    plain: NodeThread, held_app: asyncio.Event
) -> None:
    with plain.connect() as wire:
        wire.send(healthz(plain) + plain.call("echo", {"text": "middle"}) + healthz(plain))
        plain.do(held_app.set)
        assert wire.answer().json == {"status": "ok"}
        answer = wire.answer()
        assert result_text(answer) == "middle"
        assert answer.headers["connection"] == "close"
        wire.closed()


def test_more_requests_at_once_than_anybody_means(plain: NodeThread) -> None:
    session = plain.session()
    headers = [("Host", plain.host), ("Content-Type", "application/json"), session.headers[0]]
    pings = []
    for id in range(2, 150):
        body = message("ping", id=id)
        length = ("Content-Length", str(len(body)))
        pings.append(plain.http(body, *headers, length, plain=True))
    with plain.connect() as wire:
        wire.send(session.call("hold", {"text": "flood"}) + b"".join(pings))
        held = plain.shop.wait_for_hold("flood")
        plain.do(lambda: plain.shop.release(held))
        answers = [wire.answer()]
        while "connection" not in answers[-1].headers:
            answers.append(wire.answer())
        # What was taken is answered, in order; for the rest the client has to come again.
        assert [one.json["id"] for one in answers] == list(range(1, 66))
        wire.closed()
    assert plain.alive()
