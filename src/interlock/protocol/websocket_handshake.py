"""The opening handshake of a WebSocket (RFC 6455 §4): the request, the response, and their checks.

Pure: the client passes random bytes for the key, the server passes the parsed request.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Iterable, Sequence
from hashlib import sha1
from typing import Final

from msgspec import Struct

from interlock.errors import ProtocolError

Headers = Sequence[tuple[bytes, bytes]]
"""Names in lower case, raw values, in their order."""

_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_VERSION: Final = b"13"
_KEY_BYTES: Final = 16
MAX_HEAD_BYTES: Final = 64 * 1024
"""Maximum size of the head of a response."""

_STATUS_LINE: Final = re.compile(rb"HTTP/1\.1 (\d{3})(?: ([^\r\n]*))?")
_FIELD: Final = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*(.*?)[ \t]*", re.DOTALL)


# -- client


def write_request(
    host: str, target: str, key: bytes, headers: Iterable[tuple[str, str]] = ()
) -> bytes:
    """Return the request that opens a WebSocket.

    Args:
        key: 16 random bytes.
    """
    lines = [
        f"GET {target} HTTP/1.1",
        f"Host: {host}",
        "Upgrade: websocket",
        "Connection: Upgrade",
        f"Sec-WebSocket-Key: {b64encode(key).decode()}",
        f"Sec-WebSocket-Version: {_VERSION.decode()}",
        *(f"{name}: {value}" for name, value in headers),
    ]
    if any(char in line for line in lines for char in "\r\n\0"):
        raise ProtocolError("A header or the path of a WebSocket request contains a line break.")
    return "\r\n".join([*lines, "", ""]).encode()


class HandshakeResponse(Struct, frozen=True):
    """The head of a response."""

    status: int
    phrase: str
    headers: list[tuple[bytes, bytes]]

    def get_all(self, name: bytes) -> list[bytes]:
        return [value for header, value in self.headers if header == name]


class HandshakeResponseReader:
    """Reads the head of a response. `rest` has the bytes after it."""

    def __init__(self) -> None:
        self._buffer = b""
        self.rest = b""

    def feed(self, data: bytes) -> HandshakeResponse | None:
        """Return the response after its head is complete. Raises ProtocolError."""
        old_length = len(self._buffer)
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n", max(0, old_length - 3))
        if end > MAX_HEAD_BYTES or (end < 0 and len(self._buffer) > MAX_HEAD_BYTES):
            raise ProtocolError("The head of its response is too long.")
        if end < 0:
            return None
        head, self.rest = self._buffer[:end], self._buffer[end + 4 :]
        self._buffer = b""
        return _read_head(head)


def _read_head(head: bytes) -> HandshakeResponse:
    first, *lines = head.split(b"\r\n")
    status = _STATUS_LINE.fullmatch(first)
    if status is None:
        raise ProtocolError("Its response is not HTTP/1.1.")
    headers = []
    for line in lines:
        field = _FIELD.fullmatch(line)
        if field is None:
            raise ProtocolError("Its response has an invalid header.")
        headers.append((field[1].lower(), field[2]))
    return HandshakeResponse(int(status[1]), (status[2] or b"").decode("latin-1"), headers)


def check_response(response: HandshakeResponse, key: bytes) -> None:
    """Check that a response opens the WebSocket. Raises ProtocolError."""
    if response.status != 101:
        raise ProtocolError(f"Its response is {response.status} {response.phrase}".rstrip() + ".")
    if not _has_token(response.headers, b"upgrade", b"websocket"):
        raise ProtocolError("It does not upgrade to WebSocket.")
    if not _has_token(response.headers, b"connection", b"upgrade"):
        raise ProtocolError("It does not confirm the upgrade of the connection.")
    if response.get_all(b"sec-websocket-accept") != [accept_key(b64encode(key))]:
        raise ProtocolError("Its response is for another WebSocket key.")
    if response.get_all(b"sec-websocket-extensions") or response.get_all(b"sec-websocket-protocol"):
        raise ProtocolError("It chose an extension or a subprotocol that was not offered.")


# -- server


class HandshakeRejection(Struct, frozen=True):
    """The rejection of a request: the status, the message, and encoded header lines."""

    status: int
    message: str
    headers: bytes = b""


def is_upgrade_request(headers: Headers) -> bool:
    """Return whether a request asks for a WebSocket, valid or not."""
    return _has_token(headers, b"upgrade", b"websocket")


def find_rejection(method: bytes, version: str, headers: Headers) -> HandshakeRejection | None:
    """Return the rejection of an invalid request. None: it is valid."""
    if method != b"GET" or version != "1.1":
        return HandshakeRejection(400, "A WebSocket requires GET and HTTP/1.1.")
    if any(name == b"transfer-encoding" for name, _ in headers) or any(
        value != b"0" for value in _get_all(headers, b"content-length")
    ):
        return HandshakeRejection(400, "A WebSocket request must not have a body.")
    if not _has_token(headers, b"upgrade", b"websocket"):
        return HandshakeRejection(400, "The Upgrade header does not name websocket.")
    if not _has_token(headers, b"connection", b"upgrade"):
        return HandshakeRejection(400, "The Connection header does not name Upgrade.")
    if _get_all(headers, b"sec-websocket-version") != [_VERSION]:
        return HandshakeRejection(
            426,
            "Only version 13 of WebSocket is supported.",
            b"sec-websocket-version: 13\r\nupgrade: websocket\r\n",
        )
    keys = _get_all(headers, b"sec-websocket-key")
    if len(keys) != 1 or not _is_key(keys[0]):
        return HandshakeRejection(
            400, "Exactly one Sec-WebSocket-Key with 16 bytes in base64 is required."
        )
    return None


def write_response(key: bytes, subprotocol: bytes = b"") -> bytes:
    """Return the response to a valid request with this Sec-WebSocket-Key.

    Args:
        subprotocol: one of the offered subprotocols.
    """
    subprotocol_line = b"sec-websocket-protocol: %b\r\n" % subprotocol if subprotocol else b""
    return (
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: Upgrade\r\n"
        b"sec-websocket-accept: %b\r\n%b\r\n" % (accept_key(key), subprotocol_line)
    )


def accept_key(key: bytes) -> bytes:
    """Return the Sec-WebSocket-Accept value for a Sec-WebSocket-Key."""
    return b64encode(sha1(key + _GUID, usedforsecurity=False).digest())


def _is_key(value: bytes) -> bool:
    try:
        return len(b64decode(value, validate=True)) == _KEY_BYTES
    except NotBase64:
        return False


def _get_all(headers: Headers, name: bytes) -> list[bytes]:
    return [value.strip() for header, value in headers if header == name]


def _has_token(headers: Headers, name: bytes, token: bytes) -> bool:
    """Return whether a list header contains a token, in any case."""
    return any(
        item.strip().lower() == token
        for value in _get_all(headers, name)
        for item in value.split(b",")
    )
