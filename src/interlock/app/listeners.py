"""The listeners of a node: the HTTP server and the Unix socket that callers connect to.

The HTTP listener serves both protocol generations, the legacy event stream, and the routes that
other parts of the node contribute.
"""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from typing import Any

from interlock.core.config import Config, resolve_tls
from interlock.core.feature import Component
from interlock.core.paths import is_socket_open, make_private, socket_path
from interlock.core.pipeline.pipeline import Pipeline
from interlock.core.server.http.guard import Guard
from interlock.core.server.http.protocol import HttpProtocol
from interlock.core.server.http.resource_metadata import Challenges
from interlock.core.server.http.router import Route, Router, RouteTable, StatusDocument
from interlock.core.server.http.server import HttpServer, tls_context
from interlock.core.server.mcp.change_notifications import ChangeListeners
from interlock.core.server.mcp.endpoint import McpEndpoint
from interlock.core.server.mcp.legacy_sse import LegacySse
from interlock.core.server.mcp.responder import Responder
from interlock.core.server.mcp.server_info import ServerInfo
from interlock.core.server.mcp.session_protocol import SessionProtocol
from interlock.core.server.mcp.sessions import Sessions
from interlock.core.server.mcp.stateless_protocol import StatelessProtocol
from interlock.core.server.mcp.stream import McpStream, McpStreamServer
from interlock.core.server.mcp.views import Views


class NodeListeners(Component):
    """The HTTP listener and the Unix socket of one node."""

    def __init__(
        self,
        config: Config,
        *,
        environ: Mapping[str, str],
        base_dir: Path,
        pipeline: Pipeline,
        server_info: ServerInfo,
        change_listeners: ChangeListeners,
        sessions: Sessions,
        routes: Iterable[Route],
        guard: Guard,
        challenges: Challenges,
        views: Views | None = None,
    ) -> None:
        """
        Args:
            routes: the paths beside the MCP endpoint.
            guard: checks hosts and origins; it is told here where the node listens.
        """
        self.url: str | None = None
        self.origin: str | None = None
        """Scheme, host and port of the HTTP listener."""
        self._config = config
        self._path = config.path
        self._environ = environ
        self._base_dir = base_dir
        self._pipeline = pipeline
        self._server_info = server_info
        self._change_listeners = change_listeners
        self._guard = guard
        self.views = views or Views(config)
        self._http: HttpServer | None = None
        self._unix: asyncio.Server | None = None
        self._unix_path: Path | None = None
        self._local_clients: set[McpStreamServer] = set()
        responder = Responder(
            pipeline=pipeline, server_info=server_info, clock=time.monotonic, challenges=challenges
        )
        self._mcp_endpoint = McpEndpoint(
            guard=guard,
            stateless=StatelessProtocol(
                pipeline=pipeline,
                server_info=server_info,
                listeners=change_listeners,
                responder=responder,
                views=self.views,
            ),
            session=SessionProtocol(
                pipeline=pipeline,
                server_info=server_info,
                listeners=change_listeners,
                sessions=sessions,
                responder=responder,
                views=self.views,
            ),
            responder=responder,
            pipeline=pipeline,
            views=self.views,
        )
        self._legacy = LegacySse(
            guard=guard,
            pipeline=pipeline,
            server_info=server_info,
            listeners=change_listeners,
            responder=responder,
            max_clients=config.limits.sessions,
            views=self.views,
        )
        self.table = RouteTable(
            [
                *self._mcp_endpoint.routes(config.path),
                *self._legacy.routes(),
                StatusDocument("/healthz", lambda: {"status": "ok"}, authenticated=False),
                *routes,
            ]
        )
        self._router = Router(self.table, pipeline=pipeline, guard=guard, challenges=challenges)
        self._protocol = HttpProtocol.bound(self.table, config.limits)

    # -- open

    async def listen(self) -> str:
        """Open the HTTP listener and return its URL. Raises InterlockError if that fails."""
        config = self._config
        address = config.address
        secure = None
        if config.tls is not None:
            tls = resolve_tls(config.tls, environ=self._environ, base_dir=self._base_dir)
            secure = tls_context(tls.certificate, tls.key, tls.client_ca)
        self._http = http = HttpServer(address.host, address.port, secure)
        self._guard.listen_at(http.host, http.port, secure=http.secure)
        await http.start(self._protocol, self._router)
        host = f"[{address.host}]" if ":" in address.host else address.host
        self.origin = f"http{'' if secure is None else 's'}://{host}:{http.port}"
        self.url = f"{self.origin}{self._path}"
        return self.url

    async def listen_locally(self) -> Path:
        """Open the Unix socket by which this user's other programs find the node.

        Raises OSError if that fails, also when another node has the socket.
        """
        path = socket_path(self._config, self._environ, self._base_dir)
        make_private(path.parent)
        if is_socket_open(path):
            raise OSError(errno.EADDRINUSE, "another node uses the same state folder", str(path))
        path.unlink(missing_ok=True)
        self._unix = await asyncio.get_running_loop().create_unix_server(
            lambda: McpStreamServer(self.stream, self._local_clients), path=str(path)
        )
        path.chmod(0o600)
        self._unix_path = path
        return path

    def stream(self, write: Any) -> McpStream:
        """Return the server side of a stream for one client that sends lines."""
        return McpStream(
            pipeline=self._pipeline,
            server_info=self._server_info,
            listeners=self._change_listeners,
            write=write,
            max_line=self._config.limits.body_bytes,
            views=self.views,
        )

    # -- change

    async def apply(self, old: Config, new: Config) -> None:
        """Apply the settings that may change at run time. A new `listen` or `path` needs a
        restart."""
        self._config = config = new
        self.views.configure(config)
        self._guard.configure(config.allowed_hosts, config.allowed_origins)
        self._legacy.max_clients = config.limits.sessions
        self._protocol.limits = config.limits

    def retain_only(self, callers: Container[str]) -> None:
        """Close the open streams of all other callers."""
        self._legacy.retain_only(callers)

    # -- close

    def stop_accepting(self) -> None:
        """Accept no new connections."""
        if self._http is not None:
            self._http.stop_listening()
        if self._unix is not None and self._unix_path is not None:
            self._unix.close()
            # The path that was opened: the config may name another one by now.
            self._unix_path.unlink(missing_ok=True)

    async def stop(self) -> None:
        """Close the remaining connections. All requests have their responses by now."""
        for client in list(self._local_clients):
            client.stop()
        self._legacy.close()
        self._mcp_endpoint.responder.stop()
        if self._http is not None:
            await self._http.stop()
