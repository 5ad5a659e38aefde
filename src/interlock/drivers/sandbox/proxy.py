"""The way out of a confined server: the node's side of the sockets that listen in its namespace.

One of them is an HTTP proxy. The others stand for the hosts that are named exactly: whoever
connects to such an address means that host, and the bytes are passed on as they are. Both ask the
same compiled egress, here in the node, for every connection; what is inside is believed nothing.
"""

from __future__ import annotations

import asyncio
import re
import socket
import struct
from collections.abc import Callable, Iterable
from typing import Final

from msgspec import Struct

from interlock.drivers.sandbox.name_resolution import HostResolver
from interlock.drivers.sandbox.patterns import Egress, HostPort, normal_host
from interlock.drivers.sandbox.plan import EgressRoutes
from interlock.errors import PAYLOAD_TOO_LARGE, InterlockError, ProtocolError

# -- What a confined server asks the way out for: the head of an HTTP proxy request. Pure.
#
# Two forms are known: `CONNECT host:port`, and a plain request with its whole URL (`GET
# http://host/path`). The second goes on in the words that the host itself expects, for this one
# host, and says that the connection ends after it: what follows the head is passed on unread.

MAX_HEAD_BYTES: Final = 16 * 1024
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

    place: HostPort
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
        if end > MAX_HEAD_BYTES or (end == -1 and len(self._buffer) >= MAX_HEAD_BYTES + len(_END)):
            raise ProtocolError(
                f"The head of a proxy request is longer than {MAX_HEAD_BYTES} bytes.",
                PAYLOAD_TOO_LARGE,
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


def _place(authority: bytes, usual: int | None) -> HostPort:
    found = _AUTHORITY.fullmatch(authority)
    port = usual if found is None or found[2] is None else int(found[2])
    if found is None or port is None or not 0 < port <= 65535:
        raise ProtocolError("A proxy request names no host and port that could be connected to.")
    try:
        return HostPort(normal_host(found[1].decode("ascii")), port)
    except ValueError:
        raise ProtocolError("A proxy request names something that is no host.") from None


def _as_host(place: HostPort) -> bytes:
    text = str(place)
    return (text.removesuffix(":80") if place.port == 80 else text).encode("ascii")


HEAD_TIMEOUT_SECONDS: Final = 15.0
"""How long the head of a request may take."""
CONNECT_TIMEOUT_SECONDS: Final = 20.0
"""How long it may take to find and reach a host, all its addresses together."""
HALF_CLOSED_TIMEOUT_SECONDS: Final = 60.0
"""How long a connection may be silent of which one side has said all it will say."""
MAX_CONNECTIONS: Final = 256
"""At once, for one started server."""
_PIECE: Final = 64 * 1024
_LAST_LOOK: Final = 1.0
"""How long a refused request is read on, so that its sender reads the answer first."""

RefusalHandler = Callable[[str, int], None]
StreamPair = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Proxy:
    """Serves the sockets of one started server, until it ends."""

    def __init__(
        self,
        key: str,
        egress: Egress,
        ways: EgressRoutes,
        *,
        resolve: HostResolver,
        refused: RefusalHandler,
    ) -> None:
        self._key = key
        self._egress = egress
        self._ways = ways
        self._resolve = resolve
        self._refused = refused
        self._servers: list[asyncio.Server] = []
        self._under_way: set[asyncio.Task[None]] = set()
        self._closed = False

    async def serve(self, listening: Iterable[socket.socket]) -> None:
        """Take over listening sockets: those that `EgressRoutes.listen` asks for."""
        for listener in listening:
            self._servers.append(await asyncio.start_server(self._accepted, sock=listener))

    async def close(self) -> None:
        """Nothing is accepted any more, and every connection ends."""
        self._closed = True
        for server in self._servers:
            server.close()
        for task in self._under_way:
            task.cancel()
        if self._under_way:
            await asyncio.wait(self._under_way)

    # -- one connection

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if self._closed or len(self._under_way) >= MAX_CONNECTIONS:
            writer.transport.abort()
            return
        self._under_way.add(task)
        try:
            await self._pass_on(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            # Whoever is on the other end went away; there is nobody to tell.
            writer.transport.abort()
        except asyncio.CancelledError:
            # The server has ended, or the node does. Nobody awaits this task's outcome.
            writer.transport.abort()
        finally:
            writer.close()
            self._under_way.discard(task)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        address, port = writer.get_extra_info("sockname")[:2]
        if port == self._ways.proxy_port:
            await self._proxied(reader, writer)
            return
        inner = HostPort(normal_host(address), port)
        host = self._ways.places.get(inner)
        if host is None or not self._egress.allows(host, port):
            self._refused(host or inner.host, port)
            _reset(writer)
            return
        try:
            far = await self._connected(HostPort(host, port))
        except (OSError, TimeoutError):
            _reset(writer)
            return
        await _relay((reader, writer), far)

    async def _proxied(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests = ProxyRequestReader()
        try:
            async with asyncio.timeout(HEAD_TIMEOUT_SECONDS):
                request = await _next(reader, requests)
        except InterlockError as exc:
            await _answer(reader, writer, "400 Bad Request", exc.message)
            return
        except TimeoutError:
            await _answer(reader, writer, "408 Request Timeout", "No whole request came in time.")
            return
        if request is None:
            return
        place = request.place
        if not self._egress.allows(*place):
            self._refused(*place)
            text = f"{place} is not in network.egress of {self._key}."
            await _answer(reader, writer, "403 Forbidden", text)
            return
        try:
            far = await self._connected(place)
        except (OSError, TimeoutError):
            text = f"{place} could not be reached from the node."
            await _answer(reader, writer, "502 Bad Gateway", text)
            return
        if request.tunnel:
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        far[1].write(request.head + requests.rest)
        await _relay((reader, writer), far)

    async def _connected(self, place: HostPort) -> StreamPair:
        """A connection to the host. Raises OSError or TimeoutError when there is none."""
        async with asyncio.timeout(CONNECT_TIMEOUT_SECONDS):
            problem = OSError(f"{place.host} has no address")
            for address in await self._resolve(*place):
                try:
                    return await asyncio.open_connection(address, place.port, limit=_PIECE)
                except OSError as exc:
                    problem = exc
        raise problem


async def _next(reader: asyncio.StreamReader, requests: ProxyRequestReader) -> ProxyRequest | None:
    """The request, or None when nobody made one."""
    heard = False
    while data := await reader.read(_PIECE):
        heard = True
        request = requests.feed(data)
        if request is not None:
            return request
    if heard:
        raise ProtocolError("The request ends in the middle of its head.")
    return None


async def _answer(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, status: str, text: str
) -> None:
    body = f"interlock: {text}\n".encode()
    writer.write(
        f"HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
        + body
    )
    await writer.drain()
    writer.write_eof()
    try:
        async with asyncio.timeout(_LAST_LOOK):
            while await reader.read(_PIECE):
                continue
    except TimeoutError:
        return


def _reset(writer: asyncio.StreamWriter) -> None:
    """End a connection so that it looks refused: with a reset, not with an empty answer."""
    plain = writer.get_extra_info("socket")
    if plain is not None and not writer.is_closing():
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


# -- bytes both ways


async def _relay(near: StreamPair, far: StreamPair) -> None:
    """Pass bytes on until both have said all they will say, or one of them is gone."""
    moved = _Moved()
    pumps = {
        asyncio.create_task(_pump(near[0], far[1], moved)),
        asyncio.create_task(_pump(far[0], near[1], moved)),
    }
    try:
        done, left = await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        while left and all(pump.result() for pump in done):
            seen = moved.pieces
            more, left = await asyncio.wait(left, timeout=HALF_CLOSED_TIMEOUT_SECONDS)
            done |= more
            if not more and moved.pieces == seen:
                break
        if left or not all(pump.result() for pump in done):
            _reset(near[1])
            far[1].transport.abort()
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.wait(pumps)
        far[1].close()


class _Moved:
    """How much has been passed on."""

    __slots__ = ("pieces",)

    def __init__(self) -> None:
        self.pieces = 0


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, moved: _Moved) -> bool:
    """Whether it came to its regular end."""
    try:
        while data := await reader.read(_PIECE):
            moved.pieces += 1
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
    except OSError:
        return False
    return True
