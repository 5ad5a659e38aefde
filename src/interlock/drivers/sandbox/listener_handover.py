"""Where confined servers hand over the sockets that listen in their namespaces.

A Unix socket in a folder that only the node's user can enter. The process that confines itself
knocks before it does, makes its sockets inside, and sends them here: a socket belongs to the
namespace that it was made in, whoever holds it. So nothing of the node's runs inside, and nothing
from inside has to find a way out. The connection stays until the server has ended.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Final

from interlock.drivers.sandbox.patterns import HostPort
from interlock.drivers.sandbox.proxy import Proxy

_YES: Final = b"."
_PEER: Final = struct.Struct("3i")
_SENDING_SECONDS: Final = 60.0


class ListenerHandover:
    """Waits for servers, and gives each a proxy of its own."""

    def __init__(self, path: Path, listen: list[HostPort], proxy: Callable[[], Proxy]) -> None:
        self._listen = listen
        self._proxy = proxy
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.bind(os.fspath(path))
            self._socket.listen(16)
            self._socket.setblocking(False)
        except OSError:
            self._socket.close()
            raise
        self._guests: set[asyncio.Task[None]] = set()
        self._accepting = asyncio.create_task(self._accept())

    async def close(self) -> None:
        """Every server that is still there loses its way out."""
        tasks = {self._accepting, *self._guests}
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        self._socket.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            guest, _ = await loop.sock_accept(self._socket)
            task = asyncio.create_task(self._serve(guest))
            self._guests.add(task)
            task.add_done_callback(self._guests.discard)

    async def _serve(self, guest: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        proxy = self._proxy()
        try:
            guest.setblocking(False)
            if not _is_ours(guest):
                return
            async with asyncio.timeout(_SENDING_SECONDS):
                listening = await _received(guest, len(self._listen))
            if not _as_asked(listening, self._listen):
                for listener in listening:
                    listener.close()
                return
            await proxy.serve(listening)
            await loop.sock_sendall(guest, _YES)
            # Nothing more is said: this ends with the process that holds the other end.
            await loop.sock_recv(guest, 1)
        except (OSError, TimeoutError):
            # It left in the middle. Its own last words say why.
            return
        finally:
            await proxy.close()
            guest.close()


def _is_ours(guest: socket.socket) -> bool:
    """Whether it is a process of the node's own user."""
    found = guest.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    return bool(_PEER.unpack(found)[1] == os.geteuid())


async def _received(guest: socket.socket, most: int) -> list[socket.socket]:
    """The sockets that it sends with its first byte."""
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()

    def now() -> None:
        if not readable.done():
            readable.set_result(None)

    loop.add_reader(guest.fileno(), now)
    try:
        await readable
    finally:
        loop.remove_reader(guest.fileno())
    _, numbers, flags, _ = socket.recv_fds(guest, 1, most)
    found: list[socket.socket] = []
    try:
        if flags & socket.MSG_CTRUNC:
            raise OSError("it sends more than it was asked for")
        while numbers:
            found.append(socket.socket(fileno=numbers[0]))
            del numbers[0]
    except OSError:
        for listener in found:
            listener.close()
        for number in numbers:
            os.close(number)
        raise
    return found


def _as_asked(listening: list[socket.socket], asked: list[HostPort]) -> bool:
    """Whether these are the sockets of the plan, and they listen."""
    return len(listening) == len(asked) and all(
        listener.type == socket.SOCK_STREAM
        and listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        and listener.getsockname()[:2] == tuple(place)
        for listener, place in zip(listening, asked, strict=True)
    )
