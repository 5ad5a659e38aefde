"""HTTP responses of upstreams: every valid form, invalid ones, large ones, and surplus bytes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from interlock.core.call import UpstreamLostError, UpstreamResponseError
from interlock.core.config import ServerConfig
from interlock.core.upstreams.supervisor import State
from interlock.core.upstreams.transports import http as http_replies
from interlock.core.upstreams.transports import http_pool
from interlock.errors import UPSTREAM_LOST, UPSTREAM_PROTOCOL, UPSTREAM_UNAVAILABLE, Failure
from tests.core.upstreams import response_shapes as shapes
from tests.core.upstreams.response_shapes import JSON, Shape
from tests.core.upstreams.servers.http_server import Request, ResponseWriter, Streamable
from tests.core.upstreams.servers.toolbox import error, result
from tests.support.upstreams import SupervisorHarness, run, run_supervisor, text, with_timeout


def valid_body(request: Request, text: str = "good") -> bytes:
    content = {"content": [{"type": "text", "text": text}]}
    return json.dumps(result(request.message["id"], content)).encode()


def with_server(
    body: Callable[[SupervisorHarness, Streamable], Awaitable[None]],
    *,
    loop: str = "uvloop",
    **more: Any,
) -> None:
    async def main() -> None:
        async with Streamable("stateless") as server:
            async with run_supervisor(ServerConfig(url=server.url(), **more)) as upstream:
                await upstream.ready()
                await body(upstream, server)

    run(main, loop=loop)


def answer_with(shape: Shape) -> Any:
    """Return an override that answers `echo` in this shape."""

    async def override(request: Request, response: ResponseWriter) -> bool:
        if request.tool != "echo":
            return False
        await shape(valid_body(request), response)
        return True

    return override


VALID_SHAPES: list[Shape] = [
    shapes.respond,
    shapes.chunked,
    shapes.until_close,
    shapes.http_1_0,
    shapes.http_1_0_with_length,
    shapes.with_connection_close,
    shapes.after_continue,
    shapes.byte_by_byte,
    shapes.strange_header_case,
    shapes.spaced_body,
    shapes.as_event,
    shapes.as_event_until_close,
    shapes.as_event_among_others,
    shapes.event_then_silence,
]


@pytest.mark.parametrize("shape", VALID_SHAPES, ids=lambda shape: shape.__name__)
@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_reads_result_in_every_shape(
    shape: Shape, loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_pool, "STREAM_LINGER_SECONDS", 0.05)

    async def body(one: SupervisorHarness, server: Streamable) -> None:
        server.override = answer_with(shape)
        # More than once: what was learned from the first must hold for the second.
        for _ in range(3):
            assert await one.text("echo") == "good"
            assert await one.text("cancelled") == "[]"
        assert one.supervisor.restarts == 0

    with_server(body, loop=loop, connections=2)


def test_distinguishes_similar_heads_by_length() -> None:
    async def body(one: SupervisorHarness, server: Streamable) -> None:
        async def override(request: Request, response: ResponseWriter) -> bool:
            if request.tool != "echo":
                return False
            response.respond(valid_body(request, request.message["params"]["arguments"]["text"]))
            return True

        server.override = override
        for size in (1, 10, 1, 500, 10, 70_000, 1, 10):
            assert await one.text("echo", text="x" * size) == "x" * size

    with_server(body, connections=1)


# -- more than was asked for


@pytest.mark.parametrize("when", ["at once", "in pieces", "later", "head only"])
@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_surplus_bytes_do_not_reach_next_call(when: str, loop: str) -> None:
    async def body(one: SupervisorHarness, server: Streamable) -> None:
        async def override(request: Request, response: ResponseWriter) -> bool:
            if request.tool != "echo":
                return False
            # A second answer, made to fit the next call: its id, and an error without any.
            body = valid_body(request)
            stray = json.dumps(error(None, -1, "stray")).encode()
            guess = json.dumps(result(request.message["id"] + 1, {"stray": 1})).encode()
            surplus = b"".join(
                b"HTTP/1.1 200 OK\r\n" + JSON + b"content-length: %d\r\n\r\n%b" % (len(item), item)
                for item in (guess, stray)
            )
            if when == "head only":
                surplus = surplus[:40]
            head = b"HTTP/1.1 200 OK\r\n" + JSON + b"content-length: %d\r\n\r\n" % len(body)
            if when == "in pieces":
                response.raw((head + body + surplus)[:-15])
                response.raw((head + body + surplus)[-15:])
            elif when == "later":
                # When the next request is on its way already, only the id can tell.
                response.raw(head + body)
                await asyncio.sleep(0)
                response.raw(head + body)
            else:
                response.raw(head + body + surplus)
            response.finish()
            return True

        server.override = override
        for _ in range(5):
            # One answers, the others wait for its connection: the worst moment.
            calls = [one.start("echo"), one.start("cancelled"), one.start("cancelled")]
            assert text(await with_timeout(calls[0])) == "good"
            for call in calls[1:]:
                try:
                    assert text(await with_timeout(call)) == "[]"
                except UpstreamLostError as gone:
                    # It was sent before the surplus came: lost, but never wrongly answered.
                    if when != "later" or not gone.was_sent:
                        raise
            # And the connection on which things went wrong is not used on.
            assert await one.text("cancelled") == "[]"
        assert one.supervisor.restarts == 0

    with_server(body, loop=loop, connections=1)


def test_bytes_on_idle_connection_close_connection() -> None:
    async def body(one: SupervisorHarness, server: Streamable) -> None:
        writers: list[ResponseWriter] = []

        async def override(request: Request, response: ResponseWriter) -> bool:
            writers.append(response)
            return False

        server.override = override
        await one.text("echo", text="x")
        before = server.connected
        writers[-1].raw(b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n")
        await server.until(lambda: server.open_connections == 0)
        assert await one.text("echo", text="y") == "y"
        assert server.connected == before + 1

    with_server(body, connections=1)


# -- wrong answers


INVALID_SHAPES: list[tuple[Shape, Failure, bool, str]] = [
    (shapes.not_http, UPSTREAM_LOST, True, "is not valid HTTP"),
    (shapes.invalid_chunk_length, UPSTREAM_LOST, True, "is not valid HTTP"),
    (shapes.upgrade, UPSTREAM_LOST, True, "is not valid HTTP"),
    (shapes.not_json, UPSTREAM_PROTOCOL, True, "not MCP"),
    (shapes.empty_body, UPSTREAM_PROTOCOL, True, "does not match"),
    (shapes.not_utf8, UPSTREAM_PROTOCOL, True, "does not match"),
    (shapes.wrong_id, UPSTREAM_PROTOCOL, True, "does not match"),
    (shapes.text_id, UPSTREAM_PROTOCOL, True, "does not match"),
    (shapes.no_id, UPSTREAM_PROTOCOL, True, "does not match"),
    (shapes.json_notification, UPSTREAM_PROTOCOL, True, "does not match"),
    (shapes.json_list, UPSTREAM_PROTOCOL, True, "does not match"),
    (shapes.accepted_status, UPSTREAM_PROTOCOL, True, "HTTP 202"),
    (shapes.no_content, UPSTREAM_PROTOCOL, True, "HTTP 204"),
    (shapes.stream_without_answer, UPSTREAM_LOST, True, "without a response"),
    (shapes.stream_cut, UPSTREAM_LOST, True, "closed the connection"),
    (shapes.incomplete_event, UPSTREAM_LOST, True, "without a response"),
    (shapes.too_short, UPSTREAM_LOST, True, "closed the connection"),
    (shapes.too_short_in_chunks, UPSTREAM_LOST, True, "closed the connection"),
    (shapes.reset, UPSTREAM_LOST, True, "closed the connection"),
    (shapes.head_only, UPSTREAM_LOST, True, "closed the connection"),
    (shapes.endless_headers, UPSTREAM_LOST, True, "is not valid HTTP"),
    (shapes.server_error, UPSTREAM_PROTOCOL, True, "HTTP 500"),
    (shapes.bad_gateway, UPSTREAM_PROTOCOL, True, "HTTP 502"),
    # Whoever refuses has read it, and may have acted on it: it is not sent again.
    (shapes.unauthorized, UPSTREAM_UNAVAILABLE, True, "credentials"),
    (shapes.unauthorized_in_json_rpc, UPSTREAM_UNAVAILABLE, True, "credentials"),
    (shapes.forbidden, UPSTREAM_UNAVAILABLE, True, "credentials"),
    (shapes.not_found, UPSTREAM_UNAVAILABLE, True, "HTTP 404"),
    (shapes.payload_too_large, UPSTREAM_UNAVAILABLE, True, "HTTP 413"),
    (shapes.too_many_requests, UPSTREAM_UNAVAILABLE, True, "HTTP 429"),
    (shapes.redirect, UPSTREAM_UNAVAILABLE, True, "HTTP 307"),
]


@pytest.mark.parametrize(
    ("shape", "failure", "sent", "message"),
    INVALID_SHAPES,
    ids=[case[0].__name__ for case in INVALID_SHAPES],
)
def test_invalid_response_fails_only_its_call(
    shape: Shape, failure: Failure, sent: bool, message: str
) -> None:
    async def body(one: SupervisorHarness, server: Streamable) -> None:
        pending_call = one.start("hold", {"text": "unharmed"})
        await server.until(lambda: server.toolbox.pending_calls)
        server.override = answer_with(shape)
        for _ in range(2):
            with pytest.raises(UpstreamLostError, match=message) as caught:
                await with_timeout(one.start("echo"))
            assert caught.value.failure is failure
            assert caught.value.was_sent is sent
        assert await one.text("release") == "1"
        assert text(await with_timeout(pending_call)) == "unharmed"
        assert one.supervisor.state is State.READY
        assert one.supervisor.restarts == 0

    with_server(body, connections=3)


def test_rejects_response_with_id_of_other_call() -> None:
    async def body(one: SupervisorHarness, server: Streamable) -> None:
        pending_call = one.start("hold", {"text": "mine"})
        await server.until(lambda: server.toolbox.pending_calls)

        async def override(request: Request, response: ResponseWriter) -> bool:
            if request.tool != "echo":
                return False
            (other,) = server.toolbox.pending_calls
            response.json(result(other, {"content": [{"type": "text", "text": "stolen"}]}))
            return True

        server.override = override
        with pytest.raises(UpstreamLostError, match="does not match"):
            await with_timeout(one.start("echo"))
        assert await one.text("release") == "1"
        assert text(await with_timeout(pending_call)) == "mine"

    with_server(body)


@pytest.mark.parametrize("id", [None, "server-error", ...])
def test_error_without_id_belongs_to_its_request(id: Any) -> None:
    async def body(one: SupervisorHarness, server: Streamable) -> None:
        async def override(request: Request, response: ResponseWriter) -> bool:
            if request.tool != "echo":
                return False
            message = error(id, -32600, "I do not understand.")
            if id is ...:
                del message["id"]
            response.json(message, "400 Bad Request")
            return True

        server.override = override
        with pytest.raises(UpstreamResponseError, match="I do not understand") as caught:
            await with_timeout(one.start("echo"))
        assert caught.value.code == -32600

    with_server(body)


# -- too long

LONG = [shapes.respond, shapes.chunked, shapes.until_close]


@pytest.mark.parametrize("shape", LONG, ids=lambda s: s.__name__)
def test_rejects_large_body(shape: Shape, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_pool, "MAX_MESSAGE", 10_000)

    async def body(one: SupervisorHarness, server: Streamable) -> None:
        async def override(request: Request, response: ResponseWriter) -> bool:
            if request.tool == "echo":
                await shape(valid_body(request, "x" * 50_000), response)
            return request.tool == "echo"

        server.override = override
        with pytest.raises(UpstreamLostError, match="longer than 10000 bytes") as caught:
            await with_timeout(one.start("echo"))
        assert caught.value.was_sent
        assert await one.text("cancelled") == "[]"

    with_server(body)


@pytest.mark.parametrize("last", [True, False])
def test_large_event_does_not_affect_other_events(
    last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_replies, "MAX_MESSAGE", 10_000)

    async def body(one: SupervisorHarness, server: Streamable) -> None:
        async def override(request: Request, response: ResponseWriter) -> bool:
            if request.tool != "echo":
                return False
            response.open(chunked=False)
            events = [
                b"data: " + valid_body(request) + b"\n\n",
                b"data: " + b"x" * 20_000 + b"\n\n",
            ]
            # All in one read: the decoder reports the long one and keeps the other.
            response.raw(b"".join(events if last else reversed(events)))
            response.end()
            return True

        server.override = override
        assert await one.text("echo") == "good"

    with_server(body)


def test_large_result_on_stream_fails_call_immediately(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_replies, "MAX_MESSAGE", 10_000)
    monkeypatch.setattr(http_pool, "STREAM_LINGER_SECONDS", 3600.0)

    async def body(one: SupervisorHarness, server: Streamable) -> None:
        async def override(request: Request, response: ResponseWriter) -> bool:
            if request.tool != "echo":
                return False
            response.open()
            response.event(valid_body(request, "x" * 20_000).decode())
            return True  # and the stream stays open

        server.override = override
        with pytest.raises(UpstreamLostError, match="longer than 10000 bytes") as caught:
            await with_timeout(one.start("echo"))
        assert caught.value.failure is UPSTREAM_PROTOCOL
        assert caught.value.was_sent
        await server.until(lambda: server.dropped)
        assert await one.text("cancelled") == "[]"

    with_server(body)
