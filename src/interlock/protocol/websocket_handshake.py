"""The opening of a WebSocket (RFC 6455, 4): the request, its answer, and what each must hold.

Pure: whoever dials brings the chance for the key, whoever listens has parsed the request.
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
"""Names in lower case, values as they came, in their order."""

_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_VERSION: Final = b"13"
_KEY_BYTES: Final = 16
MAX_HEAD_BYTES: Final = 64 * 1024
"""A longer head of an answer is refused."""

_STATUS_LINE: Final = re.compile(rb"HTTP/1\.1 (\d{3})(?: ([^\r\n]*))?")
_FIELD: Final = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*(.*?)[ \t]*", re.DOTALL)


# -- who dials


def write_request(
    host: str, target: str, key: bytes, headers: Iterable[tuple[str, str]] = ()
) -> bytes:
    """The request that opens a WebSocket. `key` is 16 bytes of chance."""
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
        raise ProtocolError("A header or the path of a WebSocket request holds a line end.")
    return "\r\n".join([*lines, "", ""]).encode()


class HandshakeResponse(Struct, frozen=True):
    """The head of what a server answered."""

    status: int
    phrase: str
    headers: list[tuple[bytes, bytes]]

    def get_all(self, name: bytes) -> list[bytes]:
        return [value for known, value in self.headers if known == name]


class HandshakeResponseReader:
    """Reads the head of the answer. What stands behind it is not its business: see `rest`."""

    def __init__(self) -> None:
        self._buffer = b""
        self.rest = b""

    def feed(self, data: bytes) -> HandshakeResponse | None:
        """The answer, once its head is whole. Raises ProtocolError when it is none."""
        before = len(self._buffer)
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n", max(0, before - 3))
        if end > MAX_HEAD_BYTES or (end < 0 and len(self._buffer) > MAX_HEAD_BYTES):
            raise ProtocolError("The head of its answer is too long.")
        if end < 0:
            return None
        head, self.rest = self._buffer[:end], self._buffer[end + 4 :]
        self._buffer = b""
        return _read_head(head)


def _read_head(head: bytes) -> HandshakeResponse:
    first, *lines = head.split(b"\r\n")
    status = _STATUS_LINE.fullmatch(first)
    if status is None:
        raise ProtocolError("Its answer is not HTTP/1.1.")
    headers = []
    for line in lines:
        field = _FIELD.fullmatch(line)
        if field is None:
            raise ProtocolError("A header in its answer is none.")
        headers.append((field[1].lower(), field[2]))
    return HandshakeResponse(int(status[1]), (status[2] or b"").decode("latin-1"), headers)


def check_response(answer: HandshakeResponse, key: bytes) -> None:
    """Raises ProtocolError when the answer does not open the WebSocket."""
    if answer.status != 101:
        raise ProtocolError(f"It answered {answer.status} {answer.phrase}".rstrip() + ".")
    if not _names(answer.headers, b"upgrade", b"websocket"):
        raise ProtocolError("It does not upgrade to WebSocket.")
    if not _names(answer.headers, b"connection", b"upgrade"):
        raise ProtocolError("It does not say that the connection is upgraded.")
    if answer.get_all(b"sec-websocket-accept") != [accept_key(b64encode(key))]:
        raise ProtocolError("It did not read the WebSocket key: the answer is for another one.")
    if answer.get_all(b"sec-websocket-extensions") or answer.get_all(b"sec-websocket-protocol"):
        raise ProtocolError("It chose an extension or a subprotocol, and none was offered.")


# -- who listens


class HandshakeRejection(Struct, frozen=True):
    """Why a request opens no WebSocket, for the answer. `headers`: ready header lines."""

    status: int
    message: str
    headers: bytes = b""


def is_upgrade_request(headers: Headers) -> bool:
    """Whether a request wants a WebSocket at all, lawfully or not."""
    return _names(headers, b"upgrade", b"websocket")


def find_rejection(method: bytes, version: str, headers: Headers) -> HandshakeRejection | None:
    """Why this request opens no WebSocket, or None when it does."""
    if method != b"GET" or version != "1.1":
        return HandshakeRejection(400, "A WebSocket is opened with GET and HTTP/1.1.")
    if any(name == b"transfer-encoding" for name, _ in headers) or any(
        value != b"0" for value in _all(headers, b"content-length")
    ):
        return HandshakeRejection(400, "A request that opens a WebSocket has no body.")
    if not _names(headers, b"upgrade", b"websocket"):
        return HandshakeRejection(400, "The Upgrade header does not name websocket.")
    if not _names(headers, b"connection", b"upgrade"):
        return HandshakeRejection(400, "The Connection header does not name Upgrade.")
    if _all(headers, b"sec-websocket-version") != [_VERSION]:
        return HandshakeRejection(
            426,
            "Only version 13 of WebSocket is spoken here.",
            b"sec-websocket-version: 13\r\nupgrade: websocket\r\n",
        )
    keys = _all(headers, b"sec-websocket-key")
    if len(keys) != 1 or not _is_key(keys[0]):
        return HandshakeRejection(
            400, "Sec-WebSocket-Key must be there once, with 16 bytes in base64."
        )
    return None


def write_response(key: bytes, subprotocol: bytes = b"") -> bytes:
    """The whole answer to a lawful request with this Sec-WebSocket-Key. `subprotocol`: one of those
    that were offered."""
    chosen = b"sec-websocket-protocol: %b\r\n" % subprotocol if subprotocol else b""
    return (
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: Upgrade\r\n"
        b"sec-websocket-accept: %b\r\n%b\r\n" % (accept_key(key), chosen)
    )


def accept_key(key: bytes) -> bytes:
    """What a server makes of a Sec-WebSocket-Key."""
    return b64encode(sha1(key + _GUID, usedforsecurity=False).digest())


def _is_key(value: bytes) -> bool:
    try:
        return len(b64decode(value, validate=True)) == _KEY_BYTES
    except NotBase64:
        return False


def _all(headers: Headers, name: bytes) -> list[bytes]:
    return [value.strip() for known, value in headers if known == name]


def _names(headers: Headers, name: bytes, token: bytes) -> bool:
    """Whether a header that is a list of words has this one, in any case."""
    return any(
        one.strip().lower() == token for value in _all(headers, name) for one in value.split(b",")
    )
