"""A raw HTTP server that answers wrongly on purpose, to test the load generator.

Every third response has the requested fault.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import msgspec

Message = dict[str, Any]


def http(status: bytes, body: bytes, content_type: bytes = b"application/json") -> bytes:
    return b"HTTP/1.1 %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b" % (
        status,
        content_type,
        len(body),
        body,
    )


def right(request: Message) -> bytes:
    text = request["params"]["arguments"]["text"]
    result = {"content": [{"type": "text", "text": text}], "resultType": "complete"}
    return msgspec.json.encode({"jsonrpc": "2.0", "id": request["id"], "result": result})


def wrong_id(request: Message) -> bytes:
    return http(b"200 OK", right({**request, "id": request["id"] + 1}))


def id_as_text(request: Message) -> bytes:
    return http(b"200 OK", right({**request, "id": str(request["id"])}))


def wrong_text(request: Message) -> bytes:
    number = request["id"]
    return http(b"200 OK", right(request).replace(b"text %d" % number, b"text %d" % (number - 1)))


def two_texts(request: Message) -> bytes:
    body = msgspec.json.decode(right(request))
    body["result"]["content"] *= 2
    return http(b"200 OK", msgspec.json.encode(body))


def rpc_error(request: Message) -> bytes:
    error = {"code": -32603, "message": "broken"}
    body = {"jsonrpc": "2.0", "id": request["id"], "error": error}
    return http(b"200 OK", msgspec.json.encode(body))


def tool_error(request: Message) -> bytes:
    body = msgspec.json.decode(right(request))
    body["result"]["isError"] = True
    return http(b"200 OK", msgspec.json.encode(body))


def bad_status(request: Message) -> bytes:
    return http(b"503 Service Unavailable", right(request))


def not_json(request: Message) -> bytes:
    return http(b"200 OK", b"<html>welcome</html>", b"text/html")


def no_result_type(request: Message) -> bytes:
    return http(b"200 OK", right(request).replace(b'"resultType":"complete"', b'"x":1'))


def no_answer(request: Message) -> bytes:
    """Close the connection without a response."""
    return b""


def cut_short(request: Message) -> bytes:
    return http(b"200 OK", right(request))[:-5]


def event_stream(request: Message) -> bytes:
    event = b"event: message\ndata: %b\n\n" % right(request)
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (event[:9], event[9:]))
    head = (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    return head + chunks + b"0\r\n\r\n"


def event_stream_wrong_text(request: Message) -> bytes:
    number = request["id"]
    return event_stream(request).replace(b"text %d" % number, b"text %d" % (number - 1))


Fault = Callable[[Message], bytes]


class FaultyConnection(asyncio.Protocol):
    def __init__(self, server: FaultyServer) -> None:
        self.server = server
        self.pending = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.pending += data
        head, blank, body = self.pending.partition(b"\r\n\r\n")
        if not blank:
            return
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        if len(body) < length:
            return
        self.pending = body[length:]
        request = msgspec.json.decode(body[:length])
        response = self.server.answer(request)
        self.transport.write(response)
        if self.server.closes(response):
            self.transport.close()


class FaultyServer:
    """A server on a free loopback port, for the time of the block."""

    def __init__(self, fault: Fault, every: int = 3) -> None:
        self.fault = fault
        self.every = every
        self.calls = 0
        self.faults = 0

    def answer(self, request: Message) -> bytes:
        self.calls += 1
        if self.calls % self.every == 0:
            self.faults += 1
            return self.fault(request)
        return http(b"200 OK", right(request))

    def closes(self, answer: bytes) -> bool:
        return not answer.endswith((b"}", b">", b"\r\n"))

    async def __aenter__(self) -> str:
        loop = asyncio.get_running_loop()
        self.server = await loop.create_server(lambda: FaultyConnection(self), "127.0.0.1", 0)
        port = self.server.sockets[0].getsockname()[1]
        return f"http://127.0.0.1:{port}/mcp"

    async def __aexit__(self, *_: object) -> None:
        self.server.close()
