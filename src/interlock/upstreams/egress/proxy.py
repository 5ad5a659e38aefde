"""The way out of a confined server: the node's side of the sockets that listen in its namespace.

One of them is an HTTP proxy. The others stand for the hosts that are named exactly: whoever
connects to such an address means that host, and the bytes are passed on as they are. Both ask the
same compiled egress, here in the node, for every connection; what is inside is believed nothing.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Iterable
from typing import Final

from interlock.errors import InterlockError, ProtocolError
from interlock.upstreams.egress.patterns import Egress, Place, normal_host
from interlock.upstreams.egress.plan import Ways
from interlock.upstreams.egress.proxy_request import ProxyRequest, ProxyRequestReader
from interlock.upstreams.egress.resolving import Resolve

HEAD_SECONDS: Final = 15.0
"""How long the head of a request may take."""
CONNECT_SECONDS: Final = 20.0
"""How long it may take to find and reach a host, all its addresses together."""
HALF_SECONDS: Final = 60.0
"""How long a connection may be silent of which one side has said all it will say."""
MOST_CONNECTIONS: Final = 256
"""At once, for one started server."""
_PIECE: Final = 64 * 1024
_LAST_LOOK: Final = 1.0
"""How long a refused request is read on, so that its sender reads the answer first."""

Refused = Callable[[str, int], None]
Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Proxy:
    """Serves the sockets of one started server, until it ends."""

    def __init__(
        self, key: str, egress: Egress, ways: Ways, *, resolve: Resolve, refused: Refused
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
        """Take over sockets that listen. Each is one of those that `Ways.listen` asks for."""
        for one in listening:
            self._servers.append(await asyncio.start_server(self._accepted, sock=one))

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
        if self._closed or len(self._under_way) >= MOST_CONNECTIONS:
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
        inner = Place(normal_host(address), port)
        host = self._ways.places.get(inner)
        if host is None or not self._egress.allows(host, port):
            self._refused(host or inner.host, port)
            _reset(writer)
            return
        try:
            far = await self._connected(Place(host, port))
        except (OSError, TimeoutError):
            _reset(writer)
            return
        await _relay((reader, writer), far)

    async def _proxied(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests = ProxyRequestReader()
        try:
            async with asyncio.timeout(HEAD_SECONDS):
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

    async def _connected(self, place: Place) -> Ends:
        """A connection to the host. Raises OSError or TimeoutError when there is none."""
        async with asyncio.timeout(CONNECT_SECONDS):
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


async def _relay(near: Ends, far: Ends) -> None:
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
            more, left = await asyncio.wait(left, timeout=HALF_SECONDS)
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
