"""The Unix socket on which a node tells its tree: whoever connects gets it as JSON, then the end.

Only the node's own user can connect, so no token is asked for.
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
    """Where it is, for the node whose MCP socket this is."""
    return socket.with_name("tree.sock")


def _remove(path: Path) -> None:
    """A socket of ours, or one that a killed node left behind."""
    path.unlink(missing_ok=True)


class TreeSocket:
    """Opened with a node, closed before it."""

    def __init__(self, tree: Callable[[], Awaitable[Any]]) -> None:
        self._tree = tree
        self._path: Path | None = None
        self._server: asyncio.Server | None = None
        self._telling: set[asyncio.Task[None]] = set()

    async def open(self, path: Path) -> None:
        """Raises OSError."""
        _remove(path)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(lambda: _Asking(self), path=str(path))
        self._path = path
        os.chmod(path, 0o600)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._telling:
            task.cancel()
        if self._path is not None:
            _remove(self._path)

    def begin(self, out: asyncio.WriteTransport) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(self._tell(out), name="tree")
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)
        return task

    async def _tell(self, out: asyncio.WriteTransport) -> None:
        try:
            out.write(msgspec.json.encode(await self._tree()))
        except Exception:
            # Whoever asked gets nothing; the node goes on.
            _log.exception("the tree could not be told")
        finally:
            out.close()


class _Asking(asyncio.Protocol):
    """One who asks. Who hangs up needs no answer."""

    def __init__(self, socket: TreeSocket) -> None:
        self._socket = socket
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._task = self._socket.begin(cast("asyncio.WriteTransport", transport))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._task is not None:
            self._task.cancel()
