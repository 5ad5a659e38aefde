"""The Unix socket by which a node's own user sees and decides approvals: HTTP, as on the network.

Only that user can open it, so nobody is asked for a token; a proof is asked for all the same.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from interlock.core.server.http.asgi import App


def approvals_socket_path(socket: Path) -> Path:
    """Where that of this process is; `socket`: where the MCP socket of its state folder is.

    Several nodes may share that folder, such as one for each client that starts its own. The name
    is short: a path of a socket may be no longer than about a hundred bytes.
    """
    return socket.with_name(f"ask-{os.getpid()}.sock")


def approvals_sockets(socket: Path) -> list[Path]:
    """Those of all nodes that share the state folder; one may be left over from a killed node."""
    return sorted(socket.parent.glob("ask-*.sock"))


def _remove(path: Path) -> None:
    """A socket of ours, or one that a killed node left behind."""
    path.unlink(missing_ok=True)


class ApprovalsSocket:
    """Opened with a node, closed before it."""

    def __init__(self, app: App) -> None:
        config = uvicorn.Config(
            app,
            http=HttpToolsProtocol,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
        )
        config.load()
        self._config = config
        self._state = ServerState()
        self._server: asyncio.Server | None = None
        self._path: Path | None = None

    async def open(self, path: Path) -> None:
        """Raises OSError."""
        _remove(path)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(
            lambda: HttpToolsProtocol(self._config, self._state, {}, loop), path=str(path)
        )
        self._path = path
        os.chmod(path, 0o600)

    async def close(self) -> None:
        """Take nobody any more; what is being answered is answered."""
        if self._server is None:
            return
        self._server.close()
        for connection in list(self._state.connections):
            connection.shutdown()
        if self._state.tasks:
            await asyncio.wait(list(self._state.tasks), timeout=2.0)
        if self._path is not None:
            _remove(self._path)
