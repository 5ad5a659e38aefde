"""The raw upstream's HTTP side: requests cut out of the bytes by hand, on uvloop.

It parses only what it needs: the verb, the path and the content length. Event streams are kept
per endpoint, so that a change can be told to whoever listens.
"""

from __future__ import annotations

import asyncio
import secrets
import signal
from typing import cast

import msgspec
import uvloop

from bench.answers import Answer, Endpoint, changed_frame

REASONS = {200: b"OK", 202: b"Accepted", 400: b"Bad Request", 404: b"Not Found"}
JSON_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-store\r\n"
    b"x-accel-buffering: no\r\ntransfer-encoding: chunked\r\n\r\n"
)
NOT_ALLOWED = b"HTTP/1.1 405 Method Not Allowed\r\nallow: POST, DELETE\r\ncontent-length: 0\r\n\r\n"
NOT_FOUND = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"
LENGTH_REQUIRED = b"HTTP/1.1 411 Length Required\r\ncontent-length: 0\r\n\r\n"
DELETED = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"


def event_chunk(message: bytes) -> bytes:
    """One server-sent event in one HTTP chunk."""
    event = b"event: message\ndata: %b\n\n" % message
    return b"%x\r\n%b\r\n" % (len(event), event)


class Upstream:
    """The endpoints by path, and the event streams open on each."""

    def __init__(self, endpoints: dict[bytes, Endpoint]) -> None:
        self.endpoints = endpoints
        self.streams: dict[bytes, dict[asyncio.Transport, bytes | None]] = {
            path: {} for path in endpoints
        }

    def change(self, path: bytes) -> bytes:
        name = self.endpoints[path].add_tool()
        for transport, subscription_id in self.streams[path].items():
            transport.write(event_chunk(changed_frame(subscription_id)))
        return msgspec.json.encode({"added": name, "told": len(self.streams[path])})

    def counts(self) -> bytes:
        return msgspec.json.encode(
            {
                path.decode(): {
                    "lists": endpoint.list_requests,
                    "calls": endpoint.calls,
                    "streams": len(self.streams[path]),
                }
                for path, endpoint in self.endpoints.items()
            }
        )


class UpstreamConnection(asyncio.Protocol):
    """One client connection: requests are cut out of the bytes and answered in order."""

    transport: asyncio.Transport

    def __init__(self, upstream: Upstream) -> None:
        self.upstream = upstream
        self.pending = b""
        self.streaming: bytes | None = None
        # A client's requests mostly differ in their bodies only: the last head is kept with what
        # it meant, and the next one is compared with it instead of read.
        self.known_head = b"-"
        self.known_size = 0
        self.known_path = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.streaming is not None:
            self.upstream.streams[self.streaming].pop(self.transport, None)

    def data_received(self, data: bytes) -> None:
        if len(data) == self.known_size and data.startswith(self.known_head) and not self.pending:
            self.post(self.known_path, data[len(self.known_head) :])
        else:
            self.read_requests(data)

    def read_requests(self, data: bytes) -> None:
        if self.pending:
            data = self.pending + data
        start = 0
        while (end := data.find(b"\r\n\r\n", start)) >= 0:
            head = data[start:end].lower()
            body_at = end + 4
            length_at = head.find(b"\r\ncontent-length:")
            if length_at >= 0:
                stop = head.find(b"\r\n", length_at + 17)
                length = int(head[length_at + 17 : stop if stop >= 0 else None])
            elif b"\r\ntransfer-encoding:" in head:
                self.transport.write(LENGTH_REQUIRED)
                self.transport.close()
                return
            else:
                length = 0
            next_start = body_at + length
            if next_start > len(data):
                break
            verb, path, _ = data[start : start + 256].split(b" ", 2)
            self.request(verb, path, data[body_at:next_start])
            if b"\r\nconnection: close" in head:
                self.transport.close()
            elif verb == b"POST" and path in self.upstream.endpoints and start == 0:
                self.known_head, self.known_size = data[:body_at], next_start
                self.known_path = path
            start = next_start
        self.pending = data[start:]

    def request(self, verb: bytes, path: bytes, body: bytes) -> None:
        endpoint = self.upstream.endpoints.get(path)
        if endpoint is None:
            self.admin(verb, path)
        elif verb == b"POST":
            self.post(path, body)
        elif verb == b"DELETE":
            self.transport.write(DELETED)
        elif verb == b"GET" and endpoint.changes and endpoint.session:
            self.open_stream(path, None)
        else:
            self.transport.write(NOT_ALLOWED)

    def post(self, path: bytes, body: bytes) -> None:
        answer = self.upstream.endpoints[path].answer(body)
        if isinstance(answer, bytes):
            self.transport.write(JSON_HEAD % len(answer) + answer)
        else:
            self.write_answer(path, body, answer)

    def write_answer(self, path: bytes, body: bytes, answer: Answer) -> None:
        if answer.opens_listen_stream:
            self.open_stream(path, bytes(msgspec.json.decode(body, type=ListenId).id))
            self.transport.write(event_chunk(answer.body))
            return
        head = b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n" % (
            answer.status,
            REASONS[answer.status],
            len(answer.body),
        )
        if answer.opens_session:
            head += b"mcp-session-id: %b\r\n" % secrets.token_hex(16).encode()
        self.transport.write(head + b"\r\n" + answer.body)

    def open_stream(self, path: bytes, subscription_id: bytes | None) -> None:
        self.streaming = path
        self.transport.write(STREAM_HEAD)
        self.upstream.streams[path][self.transport] = subscription_id

    def admin(self, verb: bytes, path: bytes) -> None:
        target = path.removeprefix(b"/admin/change")
        if verb == b"POST" and target in self.upstream.endpoints:
            body = self.upstream.change(target)
        elif verb == b"GET" and path == b"/admin/counts":
            body = self.upstream.counts()
        else:
            self.transport.write(NOT_FOUND)
            return
        self.transport.write(JSON_HEAD % len(body) + body)


class ListenId(msgspec.Struct):
    id: msgspec.Raw


async def serve_http(upstream: Upstream, port: int) -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, ended.set)
    server = await loop.create_server(
        lambda: UpstreamConnection(upstream), "127.0.0.1", port, backlog=1024
    )
    bound = server.sockets[0].getsockname()[1]
    print(f"listening {bound}", flush=True)
    await ended.wait()
    server.close()


def run_http(endpoints: dict[bytes, Endpoint], port: int) -> None:
    """Serve until told to end by a signal."""
    uvloop.run(serve_http(Upstream(endpoints), port))
