"""The network access of a confined server: the node's side of the sockets that listen in its
namespace.

One socket is an HTTP proxy. The others represent exactly named hosts: a connection to such an
address is forwarded to its host unchanged. Every connection is checked against the compiled egress
in the node. Nothing inside the sandbox is trusted.
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

# -- The head of an HTTP proxy request. Pure.
#
# Two forms are supported: `CONNECT host:port` (RFC 9110 §9.3.6), and a plain request with an
# absolute URL (`GET http://host/path`, RFC 9112 §3.2.2). The second form is rewritten to origin
# form for this one host, with `Connection: close`. Bytes after the head are forwarded unread.

MAX_HEAD_BYTES: Final = 16 * 1024
"""A longer head is rejected."""

_TOKEN: Final = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_REQUEST_LINE: Final = re.compile(rb"(" + _TOKEN + rb") ([!-~]+) HTTP/1\.[01]")
_NAME: Final = re.compile(_TOKEN)
_VALUE: Final = re.compile(rb"[\t -~\x80-\xff]*")
_AUTHORITY: Final = re.compile(rb"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?")
_ABSOLUTE: Final = re.compile(rb"[Hh][Tt][Tt][Pp]://([^/?#]*)(/[^#]*|\?[^#]*)?")
_END: Final = b"\r\n\r\n"

# Hop-by-hop headers and headers for the proxy, which are not forwarded.
_HOP_HEADERS: Final = frozenset(
    (
        b"connection", b"host", b"keep-alive", b"proxy-authenticate", b"proxy-authorization",
        b"proxy-connection", b"te", b"upgrade",
    )
)  # fmt: skip


class ProxyRequest(Struct, frozen=True):
    """A proxy request: the target host and port."""

    place: HostPort
    head: bytes = b""
    """The rewritten head to send to the host. Empty: the request is a CONNECT, which gets a 200
    response."""

    @property
    def is_tunnel(self) -> bool:
        return not self.head


class ProxyRequestReader:
    """An incremental reader of one request. `rest` is the data after the head."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self.rest = b""

    def feed(self, data: bytes) -> ProxyRequest | None:
        """Add data. Return the request when its head is complete, else None. Raises
        ProtocolError."""
        search_start = max(0, len(self._buffer) - len(_END) + 1)
        self._buffer += data
        end = self._buffer.find(_END, search_start)
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
        return _parse_request(head)


def _parse_request(head: bytes) -> ProxyRequest:
    first, *lines = head.split(b"\r\n")
    line = _REQUEST_LINE.fullmatch(first)
    if line is None:
        raise ProtocolError("The first line of the proxy request is not an HTTP/1.1 request line.")
    fields = [_parse_header(text) for text in lines]
    method, target = line[1], line[2]
    if method == b"CONNECT":
        return ProxyRequest(_parse_authority(target, None))
    url = _ABSOLUTE.fullmatch(target)
    if url is None:
        raise ProtocolError("Use CONNECT host:port, or a request with an absolute http:// URL.")
    path = url[2] or b"/"
    if path.startswith(b"?"):
        path = b"/" + path
    place = _parse_authority(url[1], 80)
    hop_headers = _HOP_HEADERS | {
        name.strip().lower()
        for name, value in fields
        if name.lower() == b"connection"
        for name in value.split(b",")
    }
    forwarded = [
        method + b" " + path + b" HTTP/1.1",
        b"Host: " + _host_header(place),
        *(name + b": " + value for name, value in fields if name.lower() not in hop_headers),
        b"Connection: close",
    ]
    return ProxyRequest(place, b"\r\n".join([*forwarded, b"", b""]))


def _parse_header(line: bytes) -> tuple[bytes, bytes]:
    name, colon, value = line.partition(b":")
    if not colon or not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
        raise ProtocolError("A header of the proxy request is not `name: value`.")
    return name, value.strip(b" \t")


def _parse_authority(authority: bytes, default_port: int | None) -> HostPort:
    match = _AUTHORITY.fullmatch(authority)
    port = default_port if match is None or match[2] is None else int(match[2])
    if match is None or port is None or not 0 < port <= 65535:
        raise ProtocolError("The proxy request has no valid host and port.")
    try:
        return HostPort(normal_host(match[1].decode("ascii")), port)
    except ValueError:
        raise ProtocolError("The proxy request has an invalid host.") from None


def _host_header(place: HostPort) -> bytes:
    text = str(place)
    return (text.removesuffix(":80") if place.port == 80 else text).encode("ascii")


HEAD_TIMEOUT_SECONDS: Final = 15.0
"""Timeout of a request head."""
CONNECT_TIMEOUT_SECONDS: Final = 20.0
"""Timeout of resolving and reaching a host, for all its addresses together."""
HALF_CLOSED_TIMEOUT_SECONDS: Final = 60.0
"""Idle timeout of a connection that one side has closed for writing."""
MAX_CONNECTIONS: Final = 256
"""Maximum concurrent connections of one server."""
_CHUNK_BYTES: Final = 64 * 1024
_DRAIN_SECONDS: Final = 1.0
"""The time for which the rest of a rejected request is read, so that the client reads the response
first."""

RefusalHandler = Callable[[str, int], None]
StreamPair = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Proxy:
    """The proxy of one started server."""

    def __init__(
        self,
        key: str,
        egress: Egress,
        routes: EgressRoutes,
        *,
        resolve: HostResolver,
        on_denied: RefusalHandler,
    ) -> None:
        self._key = key
        self._egress = egress
        self._routes = routes
        self._resolve = resolve
        self._on_denied = on_denied
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    async def serve(self, listeners: Iterable[socket.socket]) -> None:
        """Accept connections on listening sockets: those of `EgressRoutes.listen`."""
        for listener in listeners:
            self._servers.append(await asyncio.start_server(self._on_connection, sock=listener))

    async def close(self) -> None:
        """Stop accepting and close all connections."""
        self._closed = True
        for server in self._servers:
            server.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    # -- one connection

    async def _on_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        if self._closed or len(self._tasks) >= MAX_CONNECTIONS:
            writer.transport.abort()
            return
        self._tasks.add(task)
        try:
            await self._handle(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            # The client has disconnected.
            writer.transport.abort()
        except asyncio.CancelledError:
            # The server or the node is stopping. No task awaits this one.
            writer.transport.abort()
        finally:
            writer.close()
            self._tasks.discard(task)

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        address, port = writer.get_extra_info("sockname")[:2]
        if port == self._routes.proxy_port:
            await self._handle_proxy_request(reader, writer)
            return
        inner_address = HostPort(normal_host(address), port)
        host = self._routes.places.get(inner_address)
        if host is None or not self._egress.allows(host, port):
            self._on_denied(host or inner_address.host, port)
            _reset(writer)
            return
        try:
            remote = await self._connect(HostPort(host, port))
        except (OSError, TimeoutError):
            _reset(writer)
            return
        await _relay((reader, writer), remote)

    async def _handle_proxy_request(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        requests = ProxyRequestReader()
        try:
            async with asyncio.timeout(HEAD_TIMEOUT_SECONDS):
                request = await _read_request(reader, requests)
        except InterlockError as exc:
            await _respond(reader, writer, "400 Bad Request", exc.message)
            return
        except TimeoutError:
            await _respond(
                reader,
                writer,
                "408 Request Timeout",
                "The request head was not complete within the timeout.",
            )
            return
        if request is None:
            return
        place = request.place
        if not self._egress.allows(*place):
            self._on_denied(*place)
            text = f"{place} is not in network.egress of {self._key}."
            await _respond(reader, writer, "403 Forbidden", text)
            return
        try:
            remote = await self._connect(place)
        except (OSError, TimeoutError):
            text = f"{place} could not be reached from the node."
            await _respond(reader, writer, "502 Bad Gateway", text)
            return
        if request.is_tunnel:
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        remote[1].write(request.head + requests.rest)
        await _relay((reader, writer), remote)

    async def _connect(self, place: HostPort) -> StreamPair:
        """Connect to a host. Raises OSError or TimeoutError."""
        async with asyncio.timeout(CONNECT_TIMEOUT_SECONDS):
            problem = OSError(f"{place.host} has no address")
            for address in await self._resolve(*place):
                try:
                    return await asyncio.open_connection(address, place.port, limit=_CHUNK_BYTES)
                except OSError as exc:
                    problem = exc
        raise problem


async def _read_request(
    reader: asyncio.StreamReader, requests: ProxyRequestReader
) -> ProxyRequest | None:
    """Read a request. None: the client closed without one."""
    has_data = False
    while data := await reader.read(_CHUNK_BYTES):
        has_data = True
        request = requests.feed(data)
        if request is not None:
            return request
    if has_data:
        raise ProtocolError("The request ends in the middle of its head.")
    return None


async def _respond(
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
        async with asyncio.timeout(_DRAIN_SECONDS):
            while await reader.read(_CHUNK_BYTES):
                continue
    except TimeoutError:
        return


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close a connection with a reset, so that it looks refused, not empty."""
    connection_socket = writer.get_extra_info("socket")
    if connection_socket is not None and not writer.is_closing():
        connection_socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


# -- relay


async def _relay(client: StreamPair, remote: StreamPair) -> None:
    """Forward bytes in both directions until both sides have closed for writing, or one has
    disconnected."""
    progress = _RelayProgress()
    pumps = {
        asyncio.create_task(_pump(client[0], remote[1], progress)),
        asyncio.create_task(_pump(remote[0], client[1], progress)),
    }
    try:
        done, pending = await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        while pending and all(pump.result() for pump in done):
            previous_chunks = progress.chunks
            newly_done, pending = await asyncio.wait(pending, timeout=HALF_CLOSED_TIMEOUT_SECONDS)
            done |= newly_done
            if not newly_done and progress.chunks == previous_chunks:
                break
        if pending or not all(pump.result() for pump in done):
            _reset(client[1])
            remote[1].transport.abort()
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.wait(pumps)
        remote[1].close()


class _RelayProgress:
    """A counter of forwarded chunks."""

    __slots__ = ("chunks",)

    def __init__(self) -> None:
        self.chunks = 0


async def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, progress: _RelayProgress
) -> bool:
    """Forward bytes in one direction. Return True if the end of the stream was reached
    regularly."""
    try:
        while data := await reader.read(_CHUNK_BYTES):
            progress.chunks += 1
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
    except OSError:
        return False
    return True
