"""The handover of listening sockets from confined servers to the node.

The node listens on a Unix socket in a folder that only its user can enter. The launcher connects
before it confines itself, creates its sockets inside, and sends them here. A socket stays in the
namespace in which it was created, whoever holds it. So nothing of the node runs inside the sandbox,
and nothing inside has to find a way out. The connection stays open until the server has ended.
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

_ACKNOWLEDGEMENT: Final = b"."
_PEER: Final = struct.Struct("3i")
_SENDING_SECONDS: Final = 60.0


class ListenerHandover:
    """A listener that gives each confined server a proxy of its own."""

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
        self._tasks: set[asyncio.Task[None]] = set()
        self._accept_task = asyncio.create_task(self._accept())

    async def close(self) -> None:
        """Stop accepting and close the network access of all remaining servers."""
        tasks = {self._accept_task, *self._tasks}
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        self._socket.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            connection, _ = await loop.sock_accept(self._socket)
            task = asyncio.create_task(self._handle(connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _handle(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        proxy = self._proxy()
        try:
            connection.setblocking(False)
            if not _is_same_user(connection):
                return
            async with asyncio.timeout(_SENDING_SECONDS):
                listeners = await _receive_sockets(connection, len(self._listen))
            if not _are_expected(listeners, self._listen):
                for listener in listeners:
                    listener.close()
                return
            await proxy.serve(listeners)
            await loop.sock_sendall(connection, _ACKNOWLEDGEMENT)
            # No more data follows: this returns when the launcher exits.
            await loop.sock_recv(connection, 1)
        except (OSError, TimeoutError):
            # The launcher exited early. Its stderr has the reason.
            return
        finally:
            await proxy.close()
            connection.close()


def _is_same_user(connection: socket.socket) -> bool:
    """Return whether the peer is a process of the node's user."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    return bool(_PEER.unpack(credentials)[1] == os.geteuid())


async def _receive_sockets(connection: socket.socket, limit: int) -> list[socket.socket]:
    """Receive the sockets that the peer sends with its first byte."""
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()

    def on_readable() -> None:
        if not readable.done():
            readable.set_result(None)

    loop.add_reader(connection.fileno(), on_readable)
    try:
        await readable
    finally:
        loop.remove_reader(connection.fileno())
    _, numbers, flags, _ = socket.recv_fds(connection, 1, limit)
    sockets: list[socket.socket] = []
    try:
        if flags & socket.MSG_CTRUNC:
            raise OSError("the launcher sent too many sockets")
        while numbers:
            sockets.append(socket.socket(fileno=numbers[0]))
            del numbers[0]
    except OSError:
        for listener in sockets:
            listener.close()
        for number in numbers:
            os.close(number)
        raise
    return sockets


def _are_expected(listeners: list[socket.socket], expected: list[HostPort]) -> bool:
    """Return whether these are the listening sockets of the plan."""
    return len(listeners) == len(expected) and all(
        listener.type == socket.SOCK_STREAM
        and listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        and listener.getsockname()[:2] == tuple(place)
        for listener, place in zip(listeners, expected, strict=True)
    )
