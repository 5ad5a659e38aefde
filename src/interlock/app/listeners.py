"""A node's doors: the faces that are open to callers, put together, opened and closed.

HTTP with its two wires, the old event stream and the paths beside them; the Unix sockets of this
user; and, on the same HTTP listener, the way in for subservers that dial.
"""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Callable, Container, Mapping
from pathlib import Path
from typing import Any

from interlock.core.config import Config, resolve_tls
from interlock.core.feature import Component
from interlock.core.paths import make_private, socket_path, somebody_listens
from interlock.core.pipeline.pipeline import Pipeline
from interlock.core.server.http.app import NodeApp
from interlock.core.server.http.asgi import App
from interlock.core.server.http.exchange import Route
from interlock.core.server.http.guard import Guard
from interlock.core.server.http.protocol import FastLane
from interlock.core.server.http.resource_metadata import ResourceMetadata
from interlock.core.server.http.server import HttpServer, tls_context
from interlock.core.server.http.upgrade import Upgrade
from interlock.core.server.mcp.change_notifications import Listeners
from interlock.core.server.mcp.endpoint import McpHttpFace
from interlock.core.server.mcp.legacy_sse import LegacySse
from interlock.core.server.mcp.responder import Answering
from interlock.core.server.mcp.server_info import Hello
from interlock.core.server.mcp.session_protocol import SessionWire
from interlock.core.server.mcp.sessions import Sessions
from interlock.core.server.mcp.stateless_protocol import StatelessWire
from interlock.core.server.mcp.stream import McpStream, McpStreamServer
from interlock.core.server.mcp.views import Views


class Doors(Component):
    """Everything that callers come in by."""

    def __init__(
        self,
        config: Config,
        *,
        environ: Mapping[str, str],
        base_dir: Path,
        pipeline: Pipeline,
        hello: Hello,
        listeners: Listeners,
        sessions: Sessions,
        shown: Mapping[str, Callable[[], Any]],
        public: Mapping[str, Callable[[], Any]],
        subserver: Callable[[Upgrade, Guard], None],
        topics: Callable[[Upgrade, Guard], None],
        before: Callable[[Guard, App], App] = lambda _, app: app,
        views: Views | None = None,
    ) -> None:
        """`shown`: what is told at which path beside the MCP endpoint, `public`: what is told there
        to anybody. `subserver` decides about somebody who dials in to register, `topics` about
        somebody who wants to sit in one. `before`: stands before the app of those paths."""
        self.url: str | None = None
        self.topics_url: str | None = None
        """Where one joins a topic, if there are any."""
        self._config = config
        self._environ = environ
        self._base_dir = base_dir
        self._pipeline = pipeline
        self._hello = hello
        self._listeners = listeners
        self._sessions = sessions
        self._shown = shown
        self._public = public
        self._subserver = subserver
        self._topics = topics
        self._before = before
        self.views = views or Views(config.aql)
        self._guard: Guard | None = None
        self._http: HttpServer | None = None
        self._unix: asyncio.Server | None = None
        self._unix_path: Path | None = None
        self._local_clients: set[McpStreamServer] = set()
        self._face: McpHttpFace | None = None
        self._legacy: LegacySse | None = None
        self._lane: type[FastLane] | None = None
        self._app: NodeApp | None = None

    # -- open

    async def listen(self) -> str:
        """Open the HTTP face; returns its URL. Raises InterlockError when it cannot be."""
        config = self._config
        address = config.address
        secure = None
        if config.tls is not None:
            tls = resolve_tls(config.tls, environ=self._environ, base_dir=self._base_dir)
            secure = tls_context(tls.certificate, tls.key, tls.client_ca)
        self._http = http = HttpServer(address.host, address.port, secure)
        self._guard = guard = self._guard_of(config, http)
        pipeline, hello, listeners = self._pipeline, self._hello, self._listeners

        def topics_path() -> str:
            # Rooms may come and go; another path takes a new start.
            return config.topics.path if self._config.topics.rooms else ""

        answering = Answering(pipeline=pipeline, hello=hello, clock=time.monotonic)
        self._face = McpHttpFace(
            guard=guard,
            stateless=StatelessWire(
                pipeline=pipeline,
                hello=hello,
                listeners=listeners,
                answering=answering,
                views=self.views,
            ),
            session=SessionWire(
                pipeline=pipeline,
                hello=hello,
                listeners=listeners,
                sessions=self._sessions,
                answering=answering,
                views=self.views,
            ),
            answering=answering,
            pipeline=pipeline,
            views=self.views,
        )
        self._app = NodeApp(
            pipeline=pipeline,
            guard=guard,
            shown=self._shown,
            mcp_path=config.path,
            topics_path=topics_path,
        )
        self._app.public.update(self._public)
        self._legacy = LegacySse(
            guard=guard,
            pipeline=pipeline,
            hello=hello,
            listeners=listeners,
            answering=answering,
            most=config.limits.sessions,
            views=self.views,
        )
        upgrades = {config.topics.path: self._joins}
        if config.subservers.enabled:
            upgrades[config.subservers.path] = self._dialled_in
        self._lane = FastLane.bound(
            Route(self._face.serve, self._face.check),
            config.path,
            config.limits,
            self._legacy.routes,
            upgrades,
            topics_path=topics_path,
        )
        await http.start(self._lane, self._before(guard, self._app))
        host = f"[{address.host}]" if ":" in address.host else address.host
        at = f"{'' if secure is None else 's'}://{host}:{http.port}"
        self.url = f"http{at}{config.path}"
        self.topics_url = f"ws{at}{config.topics.path}"
        return self.url

    async def listen_locally(self) -> Path:
        """Open the Unix socket by which this user's other programs find the node.

        Raises OSError when it cannot be, also when another node has it.
        """
        path = socket_path(self._config, self._environ, self._base_dir)
        make_private(path.parent)
        if somebody_listens(path):
            raise OSError(errno.EADDRINUSE, "another node uses the same state folder", str(path))
        path.unlink(missing_ok=True)
        self._unix = await asyncio.get_running_loop().create_unix_server(
            lambda: McpStreamServer(self.stream, self._local_clients), path=str(path)
        )
        path.chmod(0o600)
        self._unix_path = path
        return path

    def stream(self, write: Any) -> McpStream:
        """The face for one client that speaks lines."""
        return McpStream(
            pipeline=self._pipeline,
            hello=self._hello,
            listeners=self._listeners,
            write=write,
            max_line=self._config.limits.body_bytes,
            views=self.views,
        )

    def _dialled_in(self, upgrade: Upgrade) -> None:
        assert self._guard is not None
        self._subserver(upgrade, self._guard)

    def _joins(self, upgrade: Upgrade) -> None:
        assert self._guard is not None
        self._topics(upgrade, self._guard)

    # -- change

    async def apply(self, old: Config, new: Config) -> None:
        """Apply what may change while they are open."""
        self._config = config = new
        self.views.configure(config.aql)
        if self._face is not None and self._app is not None and self._http is not None:
            self._guard = guard = self._guard_of(config, self._http)
            self._face.guard = self._app.guard = guard
            if self._legacy is not None:
                self._legacy.guard = guard
                self._legacy.most = config.limits.sessions
        if self._lane is not None:
            self._lane.limits = config.limits

    @property
    def guard(self) -> Guard | None:
        """Whom the HTTP face lets knock. None: it is not open."""
        return self._guard

    def tell_where_tokens_are(self, metadata: ResourceMetadata | None) -> None:
        """Clients without a good token are sent there."""
        if self._face is not None and self._app is not None:
            self._face.answering.metadata = metadata
            self._app.metadata = metadata

    def retain_only(self, callers: Container[str]) -> None:
        """Only these callers are known any more: open streams of others end."""
        if self._legacy is not None:
            self._legacy.retain_only(callers)

    # -- close

    def let_nobody_in(self) -> None:
        """Nobody new from here on."""
        if self._http is not None:
            self._http.stop_listening()
        if self._unix is not None and self._unix_path is not None:
            self._unix.close()
            # The one that was opened: the config may name another by now.
            self._unix_path.unlink(missing_ok=True)

    async def stop(self) -> None:
        """Everything asked has been answered: those who are still there are let go."""
        for client in list(self._local_clients):
            client.stop()
        if self._legacy is not None:
            self._legacy.close()
        if self._face is not None:
            self._face.answering.stop()
        if self._http is not None:
            await self._http.stop()

    @staticmethod
    def _guard_of(config: Config, http: HttpServer) -> Guard:
        # By where it really listens: a new `listen` waits for a new start.
        return Guard(
            http.host,
            http.port,
            allowed_hosts=config.allowed_hosts,
            allowed_origins=config.allowed_origins,
            secure=http.secure,
        )
