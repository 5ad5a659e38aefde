"""A client of raw bytes: what goes over the socket is exactly what a test writes.

Blocking, with a bounded wait on everything. Answers are parsed by hand, so that a wrong framing
shows as one.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable
from typing import Any, NamedTuple

from tests.support.timeouts import HANG_TIMEOUT

STATELESS = "2026-07-28"
SESSION = "2025-11-25"
BOTH = "application/json, text/event-stream"
META = "io.modelcontextprotocol/"

Headers = Iterable[tuple[str, str]]


class HttpResponse(NamedTuple):
    """A complete HTTP response."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> Any:
        return self.json["error"]

    @property
    def result(self) -> Any:
        return self.json["result"]


class HttpConnection:
    """One connection to a node."""

    def __init__(self, address: Any, family: int = socket.AF_INET, receive: int = 0) -> None:
        """`receive` makes the kernel's buffer small, for a reader that is to be slow."""
        self.socket = socket.socket(family, socket.SOCK_STREAM)
        if receive:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
        self.socket.settimeout(HANG_TIMEOUT)
        self.socket.connect(address)
        if family == socket.AF_INET:
            # So that every `send` is a packet of its own.
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.last_event_id = ""
        """The id of the last event that had one."""
        self._buffer = b""

    def __enter__(self) -> HttpConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.socket.sendall(piece)

    def request(self, *pieces: bytes) -> HttpResponse:
        self.send(*pieces)
        return self.read_response()

    # -- reading

    def read_response(self, *, to_head: bool = False) -> HttpResponse:
        """Return the next response. `to_head`: it answers a HEAD request, so it has no body."""
        status, headers = self.head()
        while status == 100:
            status, headers = self.head()
        if to_head:
            body = b""
        elif headers.get("transfer-encoding") == "chunked":
            body = b"".join(iter(self.chunk, b""))
        elif "content-length" in headers:
            body = self.exactly(int(headers["content-length"]))
        else:
            body = self.rest()
        return HttpResponse(status, headers, body)

    def head(self) -> tuple[int, dict[str, str]]:
        raw = self.until(b"\r\n\r\n").decode("latin-1")
        first, *lines = raw[:-4].split("\r\n")
        version, status, _ = first.split(" ", 2)
        assert version == "HTTP/1.1", first
        headers: dict[str, str] = {}
        for line in lines:
            name, _, value = line.partition(": ")
            assert name.lower() not in headers, f"{name} is there twice:\n{raw}"
            headers[name.lower()] = value
        return int(status), headers

    def chunk(self) -> bytes:
        """Return the next chunk of a chunked body, which is empty at its end."""
        size = int(self.until(b"\r\n"), 16)
        data = self.exactly(size + 2)
        assert data[-2:] == b"\r\n", data[-20:]
        return data[:-2]

    def event(self) -> Any:
        """Return the next message of an event stream, or None for a comment."""
        while True:
            data = self.chunk()
            assert data, "the stream has ended"
            fields = event_fields(data)
            self.last_event_id = fields.get("id", self.last_event_id)
            if not fields:
                return None
            # An event that only brings an id is no message.
            if fields["data"]:
                return json.loads(fields["data"])

    def read_event_id(self) -> dict[str, str]:
        """Return the fields of the first event, which has an id and no message."""
        fields = event_fields(self.chunk())
        assert fields["data"] == ""
        self.last_event_id = fields["id"]
        return fields

    def stream_end(self) -> None:
        remaining = self.chunk()
        assert remaining == b"", remaining

    def line(self) -> Any:
        """Return the next message of a line connection."""
        return json.loads(self.until(b"\n"))

    def until(self, mark: bytes) -> bytes:
        while (end := self._buffer.find(mark)) < 0:
            self._more(f"before {mark!r}")
        end += len(mark)
        result, self._buffer = self._buffer[:end], self._buffer[end:]
        return result

    def exactly(self, size: int) -> bytes:
        while len(self._buffer) < size:
            self._more(f"after {len(self._buffer)} of {size} bytes")
        result, self._buffer = self._buffer[:size], self._buffer[size:]
        return result

    def rest(self) -> bytes:
        """Return all bytes up to the end of the connection."""
        while data := self.socket.recv(65536):
            self._buffer += data
        result, self._buffer = self._buffer, b""
        return result

    def expect_closed(self) -> None:
        """Check that the other side closed the connection without further bytes."""
        remaining = self.rest()
        assert remaining == b"", remaining

    def expect_silence(self) -> None:
        """Check that no bytes have arrived yet. Useful only after a later event."""
        self.socket.setblocking(False)
        try:
            data = self.socket.recv(65536)
        except BlockingIOError:
            data = b""
        else:
            assert data, "the connection is closed"
        finally:
            self.socket.settimeout(HANG_TIMEOUT)
        assert not self._buffer + data, self._buffer + data

    def _more(self, where: str) -> None:
        data = self.socket.recv(65536)
        assert data, f"the connection ended {where}: {self._buffer[-200:]!r}"
        self._buffer += data


def event_fields(data: bytes) -> dict[str, str]:
    """Return the fields of one event that came in one chunk."""
    assert data.endswith(b"\r\n\r\n"), data
    if data.startswith(b":"):
        return {}
    result: dict[str, list[str]] = {}
    for line in data[:-4].decode().split("\r\n"):
        name, _, value = line.partition(": ")
        result.setdefault(name, []).append(value)
    assert set(result) <= {"data", "event", "id", "retry"}, data
    return {name: "\n".join(values) for name, values in result.items()}


# -- requests


def request(
    host: str,
    body: bytes = b"",
    *headers: tuple[str, str],
    method: str = "POST",
    path: str = "/mcp",
    version: str = "HTTP/1.1",
    plain: bool = False,
) -> bytes:
    """Return an HTTP request. `plain`: only with these headers."""
    lines = [f"{method} {path} {version}"]
    if not plain:
        lines += [f"Host: {host}", f"Accept: {BOTH}"]
        if method == "POST":
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def message(method: str, params: Any = None, id: Any = 1) -> bytes:
    """Return a JSON-RPC request, or a notification if `id` is None."""
    body: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
    if id is not None:
        body["id"] = id
    if params is not None:
        body["params"] = params
    return json.dumps(body).encode()


def meta(version: str = STATELESS, **more: Any) -> dict[str, Any]:
    """Return `_meta` of a stateless request."""
    return {META + "protocolVersion": version, META + "clientCapabilities": {}, **more}


def stateless_headers(method: str, name: str | None = None) -> list[tuple[str, str]]:
    headers = [("MCP-Protocol-Version", STATELESS), ("Mcp-Method", method)]
    if name is not None:
        headers.append(("Mcp-Name", name))
    return headers


def initialize(version: str = SESSION, client: str = "tests") -> dict[str, Any]:
    return {
        "protocolVersion": version,
        "capabilities": {},
        "clientInfo": {"name": client, "version": "1"},
    }
