"""What a confined server asks the way out for: the head of an HTTP proxy request. Pure.

Two forms are known: `CONNECT host:port`, and a plain request with its whole URL
(`GET http://host/path`). The second goes on in the words that the host itself expects, for this
one host, and says that the connection ends after it: what follows the head is passed on unread.
"""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

from interlock.errors import PAYLOAD_TOO_LARGE, ProtocolError
from interlock.upstreams.egress.patterns import Place, normal_host

MOST_HEAD: Final = 16 * 1024
"""A longer head is refused."""

_TOKEN: Final = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_REQUEST_LINE: Final = re.compile(rb"(" + _TOKEN + rb") ([!-~]+) HTTP/1\.[01]")
_NAME: Final = re.compile(_TOKEN)
_VALUE: Final = re.compile(rb"[\t -~\x80-\xff]*")
_AUTHORITY: Final = re.compile(rb"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?")
_ABSOLUTE: Final = re.compile(rb"[Hh][Tt][Tt][Pp]://([^/?#]*)(/[^#]*|\?[^#]*)?")
_END: Final = b"\r\n\r\n"

# What is said to a proxy, or about this one connection, and is nobody else's business.
_FOR_THE_PROXY: Final = frozenset(
    (
        b"connection", b"host", b"keep-alive", b"proxy-authenticate", b"proxy-authorization",
        b"proxy-connection", b"te", b"upgrade",
    )
)  # fmt: skip


class ProxyRequest(Struct, frozen=True):
    """Where somebody wants to go."""

    place: Place
    head: bytes = b""
    """What the host is to be sent first. Empty: it asked for a tunnel, and is told that there is
    one instead."""

    @property
    def tunnel(self) -> bool:
        return not self.head


class ProxyRequestReader:
    """Reads one request from however many pieces. `rest` is what came after its head."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self.rest = b""

    def feed(self, data: bytes) -> ProxyRequest | None:
        """None while it is not all there. Raises ProtocolError for what is no request."""
        looked_at = max(0, len(self._buffer) - len(_END) + 1)
        self._buffer += data
        end = self._buffer.find(_END, looked_at)
        if end > MOST_HEAD or (end == -1 and len(self._buffer) >= MOST_HEAD + len(_END)):
            raise ProtocolError(
                f"The head of a proxy request is longer than {MOST_HEAD} bytes.", PAYLOAD_TOO_LARGE
            )
        if end == -1:
            return None
        head = bytes(self._buffer[:end])
        self.rest = bytes(self._buffer[end + len(_END) :])
        self._buffer.clear()
        return _read(head)


def _read(head: bytes) -> ProxyRequest:
    first, *lines = head.split(b"\r\n")
    line = _REQUEST_LINE.fullmatch(first)
    if line is None:
        raise ProtocolError("The first line of a proxy request is no HTTP/1.1 request line.")
    fields = [_field(text) for text in lines]
    method, target = line[1], line[2]
    if method == b"CONNECT":
        return ProxyRequest(_place(target, None))
    url = _ABSOLUTE.fullmatch(target)
    if url is None:
        raise ProtocolError(
            "A proxy takes CONNECT host:port, or a request with a whole http:// URL."
        )
    path = url[2] or b"/"
    if path.startswith(b"?"):
        path = b"/" + path
    place = _place(url[1], 80)
    dropped = _FOR_THE_PROXY | {
        name.strip().lower()
        for known, value in fields
        if known.lower() == b"connection"
        for name in value.split(b",")
    }
    passed_on = [
        method + b" " + path + b" HTTP/1.1",
        b"Host: " + _as_host(place),
        *(name + b": " + value for name, value in fields if name.lower() not in dropped),
        b"Connection: close",
    ]
    return ProxyRequest(place, b"\r\n".join([*passed_on, b"", b""]))


def _field(line: bytes) -> tuple[bytes, bytes]:
    name, colon, value = line.partition(b":")
    if not colon or not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
        raise ProtocolError("A header of a proxy request is not `name: value`.")
    return name, value.strip(b" \t")


def _place(authority: bytes, usual: int | None) -> Place:
    found = _AUTHORITY.fullmatch(authority)
    port = usual if found is None or found[2] is None else int(found[2])
    if found is None or port is None or not 0 < port <= 65535:
        raise ProtocolError("A proxy request names no host and port that could be connected to.")
    try:
        return Place(normal_host(found[1].decode("ascii")), port)
    except ValueError:
        raise ProtocolError("A proxy request names something that is no host.") from None


def _as_host(place: Place) -> bytes:
    text = str(place)
    return (text.removesuffix(":80") if place.port == 80 else text).encode("ascii")
