"""A node: everything put together, started, changed while it runs, and stopped."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from interlock import __version__
from interlock.catalog.catalog import Catalog
from interlock.catalog.introduction import Voice, merge
from interlock.catalog.offering import read_offering
from interlock.config import Config, ConfigChange, ServerConfig, diff, resolve, resolve_server
from interlock.faces.http.app import NodeApp
from interlock.faces.http.fast_lane import FastLane
from interlock.faces.http.guard import Guard
from interlock.faces.mcp.answering import Answering
from interlock.faces.mcp.hello import Hello, Introduction
from interlock.faces.mcp.http import McpHttpFace
from interlock.faces.mcp.legacy_sse import LegacySse
from interlock.faces.mcp.listeners import Listeners
from interlock.faces.mcp.session_wire import SessionWire
from interlock.faces.mcp.sessions import Sessions
from interlock.faces.mcp.stateless_wire import StatelessWire
from interlock.faces.mcp.stream import McpStream, McpStreamServer
from interlock.node.http_server import HttpServer
from interlock.node.places import (
    journal_path,
    make_private,
    seal_key,
    socket_path,
    somebody_listens,
    tokens_path,
)
from interlock.node.status import NodeStatus, status_of
from interlock.pipeline.audit import Audit, Tally
from interlock.pipeline.authenticate import LOCAL_CALLER, Authenticator
from interlock.pipeline.breaker import Breakers
from interlock.pipeline.pipeline import Pipeline
from interlock.pipeline.questions import ANYTHING, AskPolicy
from interlock.pipeline.sealing import KEY_BYTES, Seals
from interlock.protocol.jsonrpc import encode_value
from interlock.protocol.mcp import Era
from interlock.stores.journal import Journal
from interlock.stores.tokens import TokenStore
from interlock.upstreams.connect import Connector
from interlock.upstreams.mask import secret_values
from interlock.upstreams.oauth.keyring import Keyring
from interlock.upstreams.supervisor import State, Supervisor

if TYPE_CHECKING:
    from interlock.upstreams.oauth.sign_in import Browser

_log = logging.getLogger("interlock.node")

SWEEP: Final = 60.0
"""How often quiet sessions are looked for."""
LAST_CALLS: Final = 2.0
"""How long calls under way may still take when the node stops."""

OWN_INFO = {"name": "interlock", "title": "Interlock", "version": __version__}


class Node:
    """A running Interlock. `start` brings up the upstreams, `listen` opens the faces."""

    def __init__(
        self,
        config: Config,
        *,
        base_dir: Path,
        environ: Mapping[str, str] = os.environ,
        browser: Browser | None = None,
    ) -> None:
        """With a `browser` the node signs in to upstreams by itself; without one it says when
        somebody has to run `interlock login`."""
        loop = asyncio.get_running_loop()
        self.config = config
        self.base_dir = base_dir
        self.url: str | None = None
        self._environ = environ
        self._started = time.monotonic()
        self._supervisors: dict[str, Supervisor] = {}
        self._own_info = encode_value(OWN_INFO)
        tokens = TokenStore(tokens_path(config, environ, base_dir))
        self._keyring = Keyring(tokens, browser=browser)
        self._journal: Journal | None = None
        self._http: HttpServer | None = None
        self._unix: asyncio.Server | None = None
        self._unix_path: Path | None = None
        self._local_clients: set[McpStreamServer] = set()
        if config.journal.enabled:
            path = journal_path(config, environ, base_dir)
            make_private(path.parent)
            self._journal = Journal(path, max_rows=config.journal.max_rows)
        self.catalog = Catalog(server_info=self._own_info, page_size=config.page_size)
        self.audit = Audit(self._journal)
        self._breakers = Breakers(
            time.monotonic, failures=config.breaker.failures, cooldown=config.breaker.cooldown
        )
        self.pipeline = Pipeline(
            catalog=self.catalog,
            authenticate=self._authenticator(config),
            breakers=self._breakers,
            upstreams=self._supervisors,
            audit=self.audit,
            # uvloop's own clock stands still between two turns of the loop; durations need better.
            clock=time.monotonic,
            call_later=loop.call_later,
            names=config.names,
            timeout=config.timeout,
            concurrent_calls=config.limits.concurrent_calls,
            ask_policy=self._ask_policy,
            seals=Seals(seal_key(config, environ, base_dir, KEY_BYTES), time.time),
            input_seconds=config.input_timeout,
        )
        self._listeners = Listeners(self.pipeline.subscriptions)
        self._hello = Hello(self._introduce)
        self._sessions = Sessions(
            most=config.limits.sessions, idle=config.limits.session_idle, clock=loop.time
        )
        self.catalog.on_change(self._listeners.changed)
        self._sweeper: asyncio.TimerHandle | None = None
        self._face: McpHttpFace | None = None
        self._legacy: LegacySse | None = None
        self._lane: type[FastLane] | None = None
        self._app: NodeApp | None = None

    # -- life

    def start(self) -> None:
        """Begin to connect to every upstream, each on its own."""
        for key, server in self.config.servers.items():
            self._begin(key, server)
        self._choose_transparent()

    async def listen(self) -> str:
        """Open the HTTP face; returns its URL. Raises InterlockError when it cannot be."""
        config = self.config
        address = config.address
        self._http = http = HttpServer(address.host, address.port)
        guard = self._guard(config, http)
        answering = Answering(
            pipeline=self.pipeline,
            hello=self._hello,
            clock=time.monotonic,
        )
        self._face = McpHttpFace(
            guard=guard,
            stateless=StatelessWire(
                pipeline=self.pipeline,
                hello=self._hello,
                listeners=self._listeners,
                answering=answering,
            ),
            session=SessionWire(
                pipeline=self.pipeline,
                hello=self._hello,
                listeners=self._listeners,
                sessions=self._sessions,
                answering=answering,
            ),
            answering=answering,
            pipeline=self.pipeline,
        )
        self._app = NodeApp(
            pipeline=self.pipeline, guard=guard, status=self.status, mcp_path=config.path
        )
        self._legacy = LegacySse(
            guard=guard,
            pipeline=self.pipeline,
            hello=self._hello,
            listeners=self._listeners,
            answering=answering,
            most=config.limits.sessions,
        )
        self._lane = FastLane.bound(
            self._face.serve, config.path, config.limits, self._legacy.routes
        )
        await http.start(self._lane, self._app)
        self._sweep_sessions()
        host = f"[{address.host}]" if ":" in address.host else address.host
        self.url = f"http://{host}:{http.port}{config.path}"
        return self.url

    async def listen_locally(self) -> Path:
        """Open the Unix socket by which this user's other programs find the node.

        Raises OSError when it cannot be, also when another node has it.
        """
        path = socket_path(self.config, self._environ, self.base_dir)
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
            pipeline=self.pipeline,
            hello=self._hello,
            listeners=self._listeners,
            write=write,
            max_line=self.config.limits.body_bytes,
        )

    async def until_settled(self, seconds: float) -> None:
        """Wait until every upstream has been tried once, but no longer than this."""
        waiting = [asyncio.ensure_future(one.until_settled()) for one in self._supervisors.values()]
        if waiting:
            _, late = await asyncio.wait(waiting, timeout=seconds)
            for one in late:
                one.cancel()

    async def stop(self) -> None:
        """End everything that was started, faces first."""
        # Nobody new from here on; then those who wait are told.
        if self._http is not None:
            self._http.stop_listening()
        if self._unix is not None and self._unix_path is not None:
            self._unix.close()
            # The one that was opened: the config may name another by now.
            self._unix_path.unlink(missing_ok=True)
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._listeners.close()
        await self.pipeline.drain(LAST_CALLS)
        for client in list(self._local_clients):
            client.stop()
        if self._legacy is not None:
            self._legacy.close()
        if self._face is not None:
            self._face.answering.stop()
        if self._http is not None:
            await self._http.stop()
        await asyncio.gather(*(one.end() for one in self._supervisors.values()))
        await self._keyring.close()
        if self._journal is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._journal.close)

    def _sweep_sessions(self) -> None:
        self._sessions.sweep()
        self._sweeper = asyncio.get_running_loop().call_later(SWEEP, self._sweep_sessions)

    # -- change while running

    async def apply(self, config: Config) -> ConfigChange:
        """Run by a new config. Only what changed is touched.

        Raises InterlockError, and changes nothing, when the new config cannot be used.
        """
        authenticate = self._authenticator(config)
        change = diff(self.config, config)
        self.config = config
        self.pipeline.configure(
            authenticate=authenticate,
            names=config.names,
            timeout=config.timeout,
            concurrent_calls=config.limits.concurrent_calls,
        )
        self._breakers.configure(failures=config.breaker.failures, cooldown=config.breaker.cooldown)
        self._sessions.configure(most=config.limits.sessions, idle=config.limits.session_idle)
        # Who is no longer known hears nothing more, also on what is open already.
        known = {LOCAL_CALLER.name, *(one.name for one in config.tokens)}
        self._sessions.end_of(known)
        self._listeners.end_of(known)
        self.catalog.configure(page_size=config.page_size)
        if self._face is not None and self._app is not None and self._http is not None:
            self._face.guard = self._app.guard = guard = self._guard(config, self._http)
            if self._legacy is not None:
                self._legacy.guard = guard
                self._legacy.most = config.limits.sessions
        if self._lane is not None:
            self._lane.limits = config.limits
        gone = [*change.removed, *change.relinked]
        await asyncio.gather(*(self._end(key) for key in gone if key in self._supervisors))
        for key in change.removed:
            self.catalog.withdraw(key)
        for key in (*change.added, *change.relinked):
            if not config.servers[key].enabled:
                self.catalog.withdraw(key)
            self._begin(key, config.servers[key])
        for key in change.changed:
            if key not in change.relinked and key in self._supervisors:
                self._supervisors[key].configure(config.servers[key])
        if "root_segment" in change.live:
            for supervisor in self._supervisors.values():
                supervisor.configure(supervisor.server)
        self._choose_transparent()
        return change

    def _begin(self, key: str, server: ServerConfig) -> None:
        if not server.enabled:
            return
        connector = Connector(
            key,
            server,
            own_info=self._own_info,
            resolve=self._resolve_server,
            secrets=lambda configured: secret_values(
                configured, environ=self._environ, base_dir=self.base_dir
            ),
            clock=asyncio.get_running_loop().time,
            bearer=self._keyring.bearer(key),
        )
        supervisor = Supervisor(
            key,
            server,
            connector,
            on_offer=self._offered,
            on_withdrawn=lambda one: self.catalog.withdraw(one.key),
            on_state=self._state_changed,
            on_updated=lambda one, uri, whose: self.pipeline.subscriptions.updated(
                one.key, uri, whose
            ),
            watched=self.pipeline.subscriptions.watched,
            back=self.pipeline,
        )
        self._supervisors[key] = supervisor
        supervisor.begin()

    async def _end(self, key: str) -> None:
        await self._supervisors.pop(key).end()

    def _choose_transparent(self) -> None:
        shown_as_itself = [
            key for key, one in self._supervisors.items() if one.server.expose == "transparent"
        ]
        self.pipeline.transparent = shown_as_itself[0] if shown_as_itself else None
        self._hello.refresh()

    # -- what supervisors report

    def _offered(self, supervisor: Supervisor) -> None:
        offer = supervisor.offer
        offering = read_offering(
            supervisor.key,
            supervisor.server,
            offer.tools,
            prompts=offer.prompts,
            resources=offer.resources,
            templates=offer.templates,
            root_segment=self.config.root_segment,
            http=supervisor.is_http,
            serves_resources="resources" in supervisor.capabilities,
        )
        for one in offering.set_aside:
            _log.warning(
                "%s: %s %s is not shown: %s", supervisor.key, one.kind, one.name, one.reason
            )
        self.catalog.post(offering)
        if supervisor.key == self.pipeline.transparent:
            # Whoever sees it as itself hears what it announces, even if its list reads as before.
            self._listeners.changed(supervisor.announced)

    def _state_changed(self, supervisor: Supervisor) -> None:
        if supervisor.state is State.READY:
            self._breakers.reset(supervisor.key)
            self._hello.refresh()
        elif supervisor.state is State.FAILED:
            # After a restart with other settings it may never have listed the tools that it has.
            self.catalog.withdraw(supervisor.key)
        _log.info("%s is %s", supervisor.key, supervisor.state.value)

    # -- parts

    def _authenticator(self, config: Config) -> Authenticator:
        return Authenticator(
            {
                resolve(one.token, environ=self._environ, base_dir=self.base_dir): one.name
                for one in config.tokens
            }
        )

    @staticmethod
    def _guard(config: Config, http: HttpServer) -> Guard:
        # By where it really listens: a new `listen` waits for a new start.
        return Guard(
            http.host,
            http.port,
            allowed_hosts=config.allowed_hosts,
            allowed_origins=config.allowed_origins,
        )

    def _resolve_server(self, server: ServerConfig) -> ServerConfig:
        resolved = resolve_server(server, environ=self._environ, base_dir=self.base_dir)
        if resolved.command is not None and resolved.cwd is None:
            return msgspec.structs.replace(resolved, cwd=str(self.base_dir))
        return resolved

    def _ask_policy(self, upstream: str) -> AskPolicy:
        supervisor = self._supervisors.get(upstream)
        if supervisor is None:
            return ANYTHING
        ask = supervisor.server.ask
        return AskPolicy(
            sampling=ask.sampling == "allow",
            elicitation=ask.elicitation == "allow",
            roots=ask.roots == "allow",
            max_tokens=ask.max_tokens,
        )

    def _introduce(self) -> Introduction:
        voices = [
            Voice(
                one.server.segment or key,
                one.peer.capabilities,
                one.peer.instructions,
                one.peer.server_info,
                one.server.expose == "transparent",
                one.peer.era is Era.SESSION,
            )
            for key, one in self._supervisors.items()
            if one.peer is not None
        ]
        merged = merge(voices)
        return Introduction(
            merged.server_info or OWN_INFO, merged.capabilities, merged.instructions
        )

    # -- how it fares

    def status(self) -> NodeStatus:
        journal = None if self._journal is None else self._journal.health()._asdict()
        return NodeStatus(
            version=__version__,
            pid=os.getpid(),
            url=self.url,
            uptime=time.monotonic() - self._started,
            upstreams=[
                status_of(
                    one,
                    self.catalog.offering(one.key),
                    self.audit.by_upstream.get(one.key) or Tally(),
                    self._breakers.state(one.key),
                )
                for one in self._supervisors.values()
            ],
            tools=len(self.catalog.current.tools),
            calls=self.audit.total.calls,
            failed=self.audit.total.failed,
            sessions=len(self._sessions),
            listeners=len(self._listeners),
            under_way=len(list(self.pipeline.under_way())),
            tasks=len(asyncio.all_tasks()),
            journal=journal,
        )

    def supervisor(self, key: str) -> Supervisor:
        return self._supervisors[key]
