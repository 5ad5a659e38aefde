"""Valid and invalid ways to write a response on an HTTP connection."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

from tests.core.upstreams.servers.http_server import ResponseWriter
from tests.core.upstreams.servers.toolbox import error, notification

Shape = Callable[[bytes, ResponseWriter], Awaitable[None]]
JSON = b"content-type: application/json\r\n"


# -- shapes that are right


async def respond(body: bytes, response: ResponseWriter) -> None:
    response.respond(body)


async def chunked(body: bytes, response: ResponseWriter) -> None:
    response.raw(b"HTTP/1.1 200 OK\r\n" + JSON + b"transfer-encoding: chunked\r\n\r\n")
    for start in range(0, len(body), 10):
        piece = body[start : start + 10]
        response.raw(b"%x\r\n%b\r\n" % (len(piece), piece))
    response.raw(b"0\r\n\r\n")
    response.finish()


async def until_close(body: bytes, response: ResponseWriter) -> None:
    response.raw(b"HTTP/1.1 200 OK\r\n" + JSON + b"\r\n" + body)
    response.finish(keep=False)


async def http_1_0(body: bytes, response: ResponseWriter) -> None:
    response.raw(b"HTTP/1.0 200 OK\r\n" + JSON + b"\r\n" + body)
    response.finish(keep=False)


async def http_1_0_with_length(body: bytes, response: ResponseWriter) -> None:
    response.raw(b"HTTP/1.0 200 OK\r\n" + JSON + b"content-length: %d\r\n\r\n" % len(body) + body)
    response.finish(keep=False)


async def with_connection_close(body: bytes, response: ResponseWriter) -> None:
    length = b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
    response.raw(b"HTTP/1.1 200 OK\r\n" + JSON + length + body)
    response.finish(keep=False)


async def after_continue(body: bytes, response: ResponseWriter) -> None:
    response.raw(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n")
    response.respond(body)


async def byte_by_byte(body: bytes, response: ResponseWriter) -> None:
    head = b"HTTP/1.1 200 OK\r\n" + JSON + b"content-length: %d\r\n\r\n" % len(body)
    for byte in head + body:
        response.raw(bytes([byte]))
        await asyncio.sleep(0)
    response.finish()


async def strange_header_case(body: bytes, response: ResponseWriter) -> None:
    head = b"HTTP/1.1 200 \r\nCONTENT-TYPE:application/json\r\nContent-LENGTH:  %d \r\n\r\n"
    response.raw(head % len(body) + body)
    response.finish()


async def spaced_body(body: bytes, response: ResponseWriter) -> None:
    response.respond(b"\r\n  " + body + b" \r\n")


async def as_event(body: bytes, response: ResponseWriter) -> None:
    response.open()
    response.event(body.decode())
    response.end()


async def as_event_until_close(body: bytes, response: ResponseWriter) -> None:
    response.open(chunked=False)
    response.event(body.decode())
    response.end()


async def as_event_among_others(body: bytes, response: ResponseWriter) -> None:
    response.raw(b"HTTP/1.1 200 OK\r\nContent-Type: Text/Event-Stream; charset=utf-8\r\n")
    response.raw(b"transfer-encoding: chunked\r\n\r\n")
    response._chunked = True
    response.write_chunk(b"\xef\xbb\xbf: welcome\n\nid: 1\nretry: 5\ndata:\n\n")
    response.event("not json at all")
    response.event({"some": "message"}, "other")
    response.event(notification("notifications/message", {"level": "info", "data": "x"}))
    for byte in b"event: message\rdata: " + body + b"\r\r":
        response.write_chunk(bytes([byte]))
    response.end()


async def event_then_silence(body: bytes, response: ResponseWriter) -> None:
    """The answer came; that the stream stays open must hold up nobody."""
    response.open()
    response.event(body.decode())


# -- shapes that are wrong


async def not_http(body: bytes, response: ResponseWriter) -> None:
    response.raw(b"SSH-2.0-OpenSSH_9.6\r\n")
    response.finish()


async def invalid_chunk_length(body: bytes, response: ResponseWriter) -> None:
    response.raw(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nnot a length\r\n")
    response.finish()


async def upgrade(body: bytes, response: ResponseWriter) -> None:
    response.raw(b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n?")
    response.finish()


async def not_json(body: bytes, response: ResponseWriter) -> None:
    response.respond(b"<html>It works!</html>", content_type="text/html")


async def empty_body(body: bytes, response: ResponseWriter) -> None:
    response.respond(b"")


async def not_utf8(body: bytes, response: ResponseWriter) -> None:
    response.respond(body.replace(b"good", b"\xff\xfe\xff\xfe"))


async def wrong_id(body: bytes, response: ResponseWriter) -> None:
    response.respond(json.dumps({**json.loads(body), "id": 999_999}).encode())


async def text_id(body: bytes, response: ResponseWriter) -> None:
    message = json.loads(body)
    response.respond(json.dumps({**message, "id": str(message["id"])}).encode())


async def no_id(body: bytes, response: ResponseWriter) -> None:
    message = json.loads(body)
    del message["id"]
    response.respond(json.dumps(message).encode())


async def json_notification(body: bytes, response: ResponseWriter) -> None:
    response.json(notification("notifications/message"))


async def json_list(body: bytes, response: ResponseWriter) -> None:
    response.respond(b"[" + body + b"]")


async def accepted_status(body: bytes, response: ResponseWriter) -> None:
    response.empty("202 Accepted")


async def no_content(body: bytes, response: ResponseWriter) -> None:
    response.raw(b"HTTP/1.1 204 No Content\r\n\r\n")
    response.finish()


async def stream_without_answer(body: bytes, response: ResponseWriter) -> None:
    response.open()
    response.event(notification("notifications/message"))
    response.end()


async def stream_cut(body: bytes, response: ResponseWriter) -> None:
    response.open()
    response.event(notification("notifications/message"))
    response.finish(keep=False)


async def incomplete_event(body: bytes, response: ResponseWriter) -> None:
    response.open(chunked=False)
    response.raw(b"data: " + body + b"\r\n")
    response.finish(keep=False)


async def too_short(body: bytes, response: ResponseWriter) -> None:
    head = b"HTTP/1.1 200 OK\r\n" + JSON + b"content-length: %d\r\n\r\n" % (len(body) + 10)
    response.raw(head + body)
    response.finish(keep=False)


async def too_short_in_chunks(body: bytes, response: ResponseWriter) -> None:
    response.raw(b"HTTP/1.1 200 OK\r\n" + JSON + b"transfer-encoding: chunked\r\n\r\n")
    response.raw(b"%x\r\n%b\r\n" % (len(body), body))
    response.finish(keep=False)


async def reset(body: bytes, response: ResponseWriter) -> None:
    response.abort()


async def head_only(body: bytes, response: ResponseWriter) -> None:
    response.raw(b"HTTP/1.1 200 OK\r\ncontent-le")
    response.finish(keep=False)


async def endless_headers(body: bytes, response: ResponseWriter) -> None:
    response.raw(b"HTTP/1.1 200 OK\r\n" + b"x-padding: 0123456789abcdef\r\n" * 4000)
    response.finish()


async def server_error(body: bytes, response: ResponseWriter) -> None:
    response.respond(
        b"Internal Server Error", "500 Internal Server Error", content_type="text/plain"
    )


async def bad_gateway(body: bytes, response: ResponseWriter) -> None:
    response.respond(b"<html>", "502 Bad Gateway", content_type="text/html")


async def unauthorized(body: bytes, response: ResponseWriter) -> None:
    response.json({"error": "invalid_token"}, "401 Unauthorized")


async def unauthorized_in_json_rpc(body: bytes, response: ResponseWriter) -> None:
    response.json(error(None, -32001, "Unauthorized"), "401 Unauthorized")


async def forbidden(body: bytes, response: ResponseWriter) -> None:
    response.empty("403 Forbidden")


async def not_found(body: bytes, response: ResponseWriter) -> None:
    response.empty("404 Not Found")


async def payload_too_large(body: bytes, response: ResponseWriter) -> None:
    response.empty("413 Payload Too Large")


async def too_many_requests(body: bytes, response: ResponseWriter) -> None:
    response.empty("429 Too Many Requests")


async def redirect(body: bytes, response: ResponseWriter) -> None:
    response.empty("307 Temporary Redirect", location="/elsewhere")
