"""Answers over HTTP in every shape: whole, in pieces, wrong, too long, more than was asked for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from interlock.call import UpstreamGoneError
from interlock.config import ServerConfig
from interlock.errors import UPSTREAM_LOST, UPSTREAM_PROTOCOL, UPSTREAM_UNAVAILABLE, Failure
from interlock.upstreams.links import http, http_pool
from interlock.upstreams.supervisor import State
from tests.upstreams.harness import Kept, kept, run, text_of, within
from tests.upstreams.servers.http_server import Answer, Request, Streamable
from tests.upstreams.servers.toolbox import error, notification, result

Shape = Callable[[bytes, Answer], Awaitable[None]]
JSON = b"content-type: application/json\r\n"


def good(request: Request, text: str = "good") -> bytes:
    content = {"content": [{"type": "text", "text": text}]}
    return json.dumps(result(request.message["id"], content)).encode()


def text(outcome: Any) -> str:
    return text_of(json.loads(bytes(outcome.result)))


def with_server(
    body: Callable[[Kept, Streamable], Awaitable[None]], *, loop: str = "uvloop", **more: Any
) -> None:
    async def main() -> None:
        async with Streamable("stateless") as server:
            async with kept(ServerConfig(url=server.url(), **more)) as one:
                await one.ready()
                await body(one, server)

    run(main, loop=loop)


def answering(shape: Shape) -> Any:
    """A habit: `echo` is answered in this shape, everything else as usual."""

    async def habit(request: Request, answer: Answer) -> bool:
        if request.tool != "echo":
            return False
        await shape(good(request), answer)
        return True

    return habit


# -- shapes that are right


async def whole(body: bytes, answer: Answer) -> None:
    answer.whole(body)


async def chunked(body: bytes, answer: Answer) -> None:
    answer.raw(b"HTTP/1.1 200 OK\r\n" + JSON + b"transfer-encoding: chunked\r\n\r\n")
    for start in range(0, len(body), 10):
        piece = body[start : start + 10]
        answer.raw(b"%x\r\n%b\r\n" % (len(piece), piece))
    answer.raw(b"0\r\n\r\n")
    answer.finish()


async def until_the_end(body: bytes, answer: Answer) -> None:
    answer.raw(b"HTTP/1.1 200 OK\r\n" + JSON + b"\r\n" + body)
    answer.finish(keep=False)


async def of_old(body: bytes, answer: Answer) -> None:
    answer.raw(b"HTTP/1.0 200 OK\r\n" + JSON + b"\r\n" + body)
    answer.finish(keep=False)


async def of_old_with_length(body: bytes, answer: Answer) -> None:
    answer.raw(b"HTTP/1.0 200 OK\r\n" + JSON + b"content-length: %d\r\n\r\n" % len(body) + body)
    answer.finish(keep=False)


async def and_goodbye(body: bytes, answer: Answer) -> None:
    length = b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
    answer.raw(b"HTTP/1.1 200 OK\r\n" + JSON + length + body)
    answer.finish(keep=False)


async def after_continue(body: bytes, answer: Answer) -> None:
    answer.raw(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n")
    answer.whole(body)


async def byte_by_byte(body: bytes, answer: Answer) -> None:
    head = b"HTTP/1.1 200 OK\r\n" + JSON + b"content-length: %d\r\n\r\n" % len(body)
    for byte in head + body:
        answer.raw(bytes([byte]))
        await asyncio.sleep(0)
    answer.finish()


async def strange_header_case(body: bytes, answer: Answer) -> None:
    head = b"HTTP/1.1 200 \r\nCONTENT-TYPE:application/json\r\nContent-LENGTH:  %d \r\n\r\n"
    answer.raw(head % len(body) + body)
    answer.finish()


async def spaced_body(body: bytes, answer: Answer) -> None:
    answer.whole(b"\r\n  " + body + b" \r\n")


async def as_event(body: bytes, answer: Answer) -> None:
    answer.open()
    answer.event(body.decode())
    answer.end()


async def as_event_until_the_end(body: bytes, answer: Answer) -> None:
    answer.open(chunked=False)
    answer.event(body.decode())
    answer.end()


async def as_event_among_others(body: bytes, answer: Answer) -> None:
    answer.raw(b"HTTP/1.1 200 OK\r\nContent-Type: Text/Event-Stream; charset=utf-8\r\n")
    answer.raw(b"transfer-encoding: chunked\r\n\r\n")
    answer._chunked = True
    answer.piece(b"\xef\xbb\xbf: welcome\n\nid: 1\nretry: 5\ndata:\n\n")
    answer.event("not json at all")
    answer.event({"some": "message"}, "other")
    answer.event(notification("notifications/message", {"level": "info", "data": "x"}))
    for byte in b"event: message\rdata: " + body + b"\r\r":
        answer.piece(bytes([byte]))
    answer.end()


async def event_then_silence(body: bytes, answer: Answer) -> None:
    """The answer came; that the stream stays open must hold up nobody."""
    answer.open()
    answer.event(body.decode())


RIGHT = [
    whole, chunked, until_the_end, of_old, of_old_with_length, and_goodbye, after_continue,
    byte_by_byte, strange_header_case, spaced_body, as_event, as_event_until_the_end,
    as_event_among_others, event_then_silence,
]  # fmt: skip


@pytest.mark.parametrize("shape", RIGHT, ids=lambda shape: shape.__name__)
@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_an_answer_is_read_in_any_lawful_shape(
    shape: Shape, loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_pool, "LINGER", 0.05)

    async def body(one: Kept, server: Streamable) -> None:
        server.habit = answering(shape)
        # More than once: what was learned from the first must hold for the second.
        for _ in range(3):
            assert await one.text("echo") == "good"
            assert await one.text("cancelled") == "[]"
        assert one.supervisor.restarts == 0

    with_server(body, loop=loop, connections=2)


def test_heads_that_are_alike_are_told_apart_by_length() -> None:
    async def body(one: Kept, server: Streamable) -> None:
        async def habit(request: Request, answer: Answer) -> bool:
            if request.tool != "echo":
                return False
            answer.whole(good(request, request.message["params"]["arguments"]["text"]))
            return True

        server.habit = habit
        for size in (1, 10, 1, 500, 10, 70_000, 1, 10):
            assert await one.text("echo", text="x" * size) == "x" * size

    with_server(body, connections=1)


# -- more than was asked for


@pytest.mark.parametrize("when", ["at once", "in pieces", "later", "head only"])
@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_surplus_never_meets_the_next_call(when: str, loop: str) -> None:
    async def body(one: Kept, server: Streamable) -> None:
        async def habit(request: Request, answer: Answer) -> bool:
            if request.tool != "echo":
                return False
            # A second answer, made to fit the next call: its id, and an error without any.
            body = good(request)
            stray = json.dumps(error(None, -1, "stray")).encode()
            guess = json.dumps(result(request.message["id"] + 1, {"stray": 1})).encode()
            surplus = b"".join(
                b"HTTP/1.1 200 OK\r\n" + JSON + b"content-length: %d\r\n\r\n%b" % (len(one), one)
                for one in (guess, stray)
            )
            if when == "head only":
                surplus = surplus[:40]
            head = b"HTTP/1.1 200 OK\r\n" + JSON + b"content-length: %d\r\n\r\n" % len(body)
            if when == "in pieces":
                answer.raw((head + body + surplus)[:-15])
                answer.raw((head + body + surplus)[-15:])
            elif when == "later":
                # When the next request is on its way already, only the id can tell.
                answer.raw(head + body)
                await asyncio.sleep(0)
                answer.raw(head + body)
            else:
                answer.raw(head + body + surplus)
            answer.finish()
            return True

        server.habit = habit
        for _ in range(5):
            # One answers, the others wait for its connection: the worst moment.
            calls = [one.start("echo"), one.start("cancelled"), one.start("cancelled")]
            assert text(await within(calls[0])) == "good"
            for call in calls[1:]:
                try:
                    assert text(await within(call)) == "[]"
                except UpstreamGoneError as gone:
                    # It was sent before the surplus came: lost, but never wrongly answered.
                    if when != "later" or not gone.sent:
                        raise
            # And the connection on which things went wrong is not used on.
            assert await one.text("cancelled") == "[]"
        assert one.supervisor.restarts == 0

    with_server(body, loop=loop, connections=1)


def test_bytes_on_an_idle_connection_end_it() -> None:
    async def body(one: Kept, server: Streamable) -> None:
        held: list[Answer] = []

        async def habit(request: Request, answer: Answer) -> bool:
            held.append(answer)
            return False

        server.habit = habit
        await one.text("echo", text="x")
        before = server.connected
        held[-1].raw(b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n")
        await server.until(lambda: server.open_connections == 0)
        assert await one.text("echo", text="y") == "y"
        assert server.connected == before + 1

    with_server(body, connections=1)


# -- shapes that are wrong


async def not_http(body: bytes, answer: Answer) -> None:
    answer.raw(b"SSH-2.0-OpenSSH_9.6\r\n")
    answer.finish()


async def not_http_at_the_end(body: bytes, answer: Answer) -> None:
    answer.raw(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nnot a length\r\n")
    answer.finish()


async def upgrade(body: bytes, answer: Answer) -> None:
    answer.raw(b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n?")
    answer.finish()


async def not_json(body: bytes, answer: Answer) -> None:
    answer.whole(b"<html>It works!</html>", content_type="text/html")


async def nothing(body: bytes, answer: Answer) -> None:
    answer.whole(b"")


async def not_utf8(body: bytes, answer: Answer) -> None:
    answer.whole(body.replace(b"good", b"\xff\xfe\xff\xfe"))


async def wrong_id(body: bytes, answer: Answer) -> None:
    answer.whole(json.dumps({**json.loads(body), "id": 999_999}).encode())


async def text_id(body: bytes, answer: Answer) -> None:
    message = json.loads(body)
    answer.whole(json.dumps({**message, "id": str(message["id"])}).encode())


async def no_id(body: bytes, answer: Answer) -> None:
    message = json.loads(body)
    del message["id"]
    answer.whole(json.dumps(message).encode())


async def a_notification(body: bytes, answer: Answer) -> None:
    answer.json(notification("notifications/message"))


async def a_list(body: bytes, answer: Answer) -> None:
    answer.whole(b"[" + body + b"]")


async def accepted(body: bytes, answer: Answer) -> None:
    answer.empty("202 Accepted")


async def no_content(body: bytes, answer: Answer) -> None:
    answer.raw(b"HTTP/1.1 204 No Content\r\n\r\n")
    answer.finish()


async def stream_without_answer(body: bytes, answer: Answer) -> None:
    answer.open()
    answer.event(notification("notifications/message"))
    answer.end()


async def stream_cut(body: bytes, answer: Answer) -> None:
    answer.open()
    answer.event(notification("notifications/message"))
    answer.finish(keep=False)


async def half_an_event(body: bytes, answer: Answer) -> None:
    answer.open(chunked=False)
    answer.raw(b"data: " + body + b"\r\n")
    answer.finish(keep=False)


async def too_short(body: bytes, answer: Answer) -> None:
    head = b"HTTP/1.1 200 OK\r\n" + JSON + b"content-length: %d\r\n\r\n" % (len(body) + 10)
    answer.raw(head + body)
    answer.finish(keep=False)


async def too_short_in_chunks(body: bytes, answer: Answer) -> None:
    answer.raw(b"HTTP/1.1 200 OK\r\n" + JSON + b"transfer-encoding: chunked\r\n\r\n")
    answer.raw(b"%x\r\n%b\r\n" % (len(body), body))
    answer.finish(keep=False)


async def reset(body: bytes, answer: Answer) -> None:
    answer.abort()


async def just_a_head(body: bytes, answer: Answer) -> None:
    answer.raw(b"HTTP/1.1 200 OK\r\ncontent-le")
    answer.finish(keep=False)


async def endless_headers(body: bytes, answer: Answer) -> None:
    answer.raw(b"HTTP/1.1 200 OK\r\n" + b"x-padding: 0123456789abcdef\r\n" * 4000)
    answer.finish()


async def server_error(body: bytes, answer: Answer) -> None:
    answer.whole(b"Internal Server Error", "500 Internal Server Error", content_type="text/plain")


async def bad_gateway(body: bytes, answer: Answer) -> None:
    answer.whole(b"<html>", "502 Bad Gateway", content_type="text/html")


async def unauthorized(body: bytes, answer: Answer) -> None:
    answer.json({"error": "invalid_token"}, "401 Unauthorized")


async def unauthorized_in_json_rpc(body: bytes, answer: Answer) -> None:
    answer.json(error(None, -32001, "Unauthorized"), "401 Unauthorized")


async def forbidden(body: bytes, answer: Answer) -> None:
    answer.empty("403 Forbidden")


async def not_found(body: bytes, answer: Answer) -> None:
    answer.empty("404 Not Found")


async def too_large(body: bytes, answer: Answer) -> None:
    answer.empty("413 Payload Too Large")


async def too_many(body: bytes, answer: Answer) -> None:
    answer.empty("429 Too Many Requests")


async def moved(body: bytes, answer: Answer) -> None:
    answer.empty("307 Temporary Redirect", location="/elsewhere")


WRONG: list[tuple[Shape, Failure, bool, str]] = [
    (not_http, UPSTREAM_LOST, True, "is not HTTP"),
    (not_http_at_the_end, UPSTREAM_LOST, True, "is not HTTP"),
    (upgrade, UPSTREAM_LOST, True, "is not HTTP"),
    (not_json, UPSTREAM_PROTOCOL, True, "not asked"),
    (nothing, UPSTREAM_PROTOCOL, True, "not asked"),
    (not_utf8, UPSTREAM_PROTOCOL, True, "not asked"),
    (wrong_id, UPSTREAM_PROTOCOL, True, "not asked"),
    (text_id, UPSTREAM_PROTOCOL, True, "not asked"),
    (no_id, UPSTREAM_PROTOCOL, True, "not asked"),
    (a_notification, UPSTREAM_PROTOCOL, True, "not asked"),
    (a_list, UPSTREAM_PROTOCOL, True, "not asked"),
    (accepted, UPSTREAM_PROTOCOL, True, "HTTP 202"),
    (no_content, UPSTREAM_PROTOCOL, True, "HTTP 204"),
    (stream_without_answer, UPSTREAM_LOST, True, "without an answer"),
    (stream_cut, UPSTREAM_LOST, True, "closed the connection"),
    (half_an_event, UPSTREAM_LOST, True, "without an answer"),
    (too_short, UPSTREAM_LOST, True, "closed the connection"),
    (too_short_in_chunks, UPSTREAM_LOST, True, "closed the connection"),
    (reset, UPSTREAM_LOST, True, "closed the connection"),
    (just_a_head, UPSTREAM_LOST, True, "closed the connection"),
    (endless_headers, UPSTREAM_LOST, True, "is not HTTP"),
    (server_error, UPSTREAM_PROTOCOL, True, "HTTP 500"),
    (bad_gateway, UPSTREAM_PROTOCOL, True, "HTTP 502"),
    # A refusal: it was not executed, and can be sent again.
    (unauthorized, UPSTREAM_UNAVAILABLE, False, "credentials"),
    (unauthorized_in_json_rpc, UPSTREAM_UNAVAILABLE, False, "credentials"),
    (forbidden, UPSTREAM_UNAVAILABLE, False, "credentials"),
    (not_found, UPSTREAM_UNAVAILABLE, False, "HTTP 404"),
    (too_large, UPSTREAM_UNAVAILABLE, False, "HTTP 413"),
    (too_many, UPSTREAM_UNAVAILABLE, False, "HTTP 429"),
    (moved, UPSTREAM_UNAVAILABLE, False, "HTTP 307"),
]


@pytest.mark.parametrize(
    ("shape", "failure", "sent", "words"), WRONG, ids=[case[0].__name__ for case in WRONG]
)
def test_an_answer_that_is_wrong_fails_its_own_call_only(
    shape: Shape, failure: Failure, sent: bool, words: str
) -> None:
    async def body(one: Kept, server: Streamable) -> None:
        held = one.start("hold", {"text": "unharmed"})
        await server.until(lambda: server.toolbox.held)
        server.habit = answering(shape)
        for _ in range(2):
            with pytest.raises(UpstreamGoneError, match=words) as caught:
                await within(one.start("echo"))
            assert caught.value.failure is failure
            assert caught.value.sent is sent
        assert await one.text("release") == "1"
        assert text(await within(held)) == "unharmed"
        assert one.supervisor.state is State.READY
        assert one.supervisor.restarts == 0

    with_server(body, connections=3)


def test_an_answer_with_the_id_of_another_call_reaches_nobody() -> None:
    async def body(one: Kept, server: Streamable) -> None:
        held = one.start("hold", {"text": "mine"})
        await server.until(lambda: server.toolbox.held)

        async def habit(request: Request, answer: Answer) -> bool:
            if request.tool != "echo":
                return False
            (other,) = server.toolbox.held
            answer.json(result(other, {"content": [{"type": "text", "text": "stolen"}]}))
            return True

        server.habit = habit
        with pytest.raises(UpstreamGoneError, match="not asked"):
            await within(one.start("echo"))
        assert await one.text("release") == "1"
        assert text(await within(held)) == "mine"

    with_server(body)


# -- too long


@pytest.mark.parametrize("shape", [whole, chunked, until_the_end], ids=lambda s: s.__name__)
def test_a_body_that_is_too_long_is_refused(shape: Shape, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_pool, "MAX_MESSAGE", 10_000)

    async def body(one: Kept, server: Streamable) -> None:
        async def habit(request: Request, answer: Answer) -> bool:
            if request.tool == "echo":
                await shape(good(request, "x" * 50_000), answer)
            return request.tool == "echo"

        server.habit = habit
        with pytest.raises(UpstreamGoneError, match="longer than 10000 bytes") as caught:
            await within(one.start("echo"))
        assert caught.value.sent
        assert await one.text("cancelled") == "[]"

    with_server(body)


@pytest.mark.parametrize("last", [True, False])
def test_an_event_that_is_too_long_does_not_take_the_others_with_it(
    last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "MAX_MESSAGE", 10_000)

    async def body(one: Kept, server: Streamable) -> None:
        async def habit(request: Request, answer: Answer) -> bool:
            if request.tool != "echo":
                return False
            answer.open(chunked=False)
            events = [
                b"data: " + good(request) + b"\n\n",
                b"data: " + b"x" * 20_000 + b"\n\n",
            ]
            # All in one read: the decoder reports the long one and keeps the other.
            answer.raw(b"".join(events if last else reversed(events)))
            answer.end()
            return True

        server.habit = habit
        assert await one.text("echo") == "good"

    with_server(body)


def test_a_stream_whose_answer_is_too_long_fails_its_call_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http, "MAX_MESSAGE", 10_000)

    async def body(one: Kept, server: Streamable) -> None:
        async def habit(request: Request, answer: Answer) -> bool:
            if request.tool != "echo":
                return False
            answer.open()
            answer.event(good(request, "x" * 20_000).decode())
            return True  # and the stream stays open

        server.habit = habit
        with pytest.raises(UpstreamGoneError, match="longer than 10000 bytes") as caught:
            await within(one.start("echo"))
        assert caught.value.failure is UPSTREAM_PROTOCOL
        assert caught.value.sent
        await server.until(lambda: server.dropped)
        assert await one.text("cancelled") == "[]"

    with_server(body)
