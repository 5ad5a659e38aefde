"""The Unix socket that serves the tree: it sends the tree as JSON and closes the connection.

Only the user of the node can connect, so no token is needed.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import msgspec

_log = logging.getLogger("interlock.node")


def tree_socket_path(socket: Path) -> Path:
    """Return the path of the tree socket, for the node with this MCP socket."""
    return socket.with_name("tree.sock")


def _remove(path: Path) -> None:
    """Remove the socket file, which can be left by a killed node."""
    path.unlink(missing_ok=True)


class TreeSocket:
    """The server on the tree socket."""

    def __init__(self, fetch_tree: Callable[[], Awaitable[Any]]) -> None:
        self._fetch_tree = fetch_tree
        self._path: Path | None = None
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, path: Path) -> None:
        """Listen on the socket. Raises OSError."""
        _remove(path)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(lambda: _TreeConnection(self), path=str(path))
        self._path = path
        os.chmod(path, 0o600)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        if self._path is not None:
            _remove(self._path)

    def send_tree(self, transport: asyncio.WriteTransport) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(self._send_tree(transport), name="tree")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _send_tree(self, transport: asyncio.WriteTransport) -> None:
        try:
            transport.write(msgspec.json.encode(await self._fetch_tree()))
        except Exception:
            # The client gets no data. The node continues.
            _log.exception("tree socket: cannot build the tree")
        finally:
            transport.close()


class _TreeConnection(asyncio.Protocol):
    """A connection of one client. If the client disconnects, the response is cancelled."""

    def __init__(self, socket: TreeSocket) -> None:
        self._socket = socket
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._task = self._socket.send_tree(cast("asyncio.WriteTransport", transport))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._task is not None:
            self._task.cancel()
