"""A node: everything put together, started, changed while it runs, and stopped."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from interlock import __version__
from interlock.catalog.catalog import Catalog
from interlock.catalog.introduction import Voice, as_offered, merge
from interlock.catalog.offering import read_offering
from interlock.config import Config, ConfigChange, ServerConfig, diff, resolve, resolve_server
from interlock.faces.mcp.hello import Hello, Introduction
from interlock.faces.mcp.listeners import Listeners
from interlock.faces.mcp.sessions import Sessions
from interlock.faces.mcp.stream import McpStream
from interlock.node.doors import Doors
from interlock.node.places import journal_path, make_private, seal_key, tokens_path
from interlock.node.status import NodeStatus, UpstreamStatus, status_of
from interlock.node.tree import Tree
from interlock.node.tree_view import TreeNode, gather, own_part, read_asked
from interlock.pipeline.audit import Audit, Tally
from interlock.pipeline.authenticate import LOCAL_CALLER, Authenticator
from interlock.pipeline.breaker import Breakers
from interlock.pipeline.measure import Measures
from interlock.pipeline.pipeline import Pipeline
from interlock.pipeline.questions import ANYTHING, AskPolicy
from interlock.pipeline.sealing import KEY_BYTES, Seals
from interlock.ports import Upstream
from interlock.protocol.jsonrpc import encode_value
from interlock.protocol.mcp import Era
from interlock.stores.journal import Journal
from interlock.stores.tokens import TokenStore
from interlock.upstreams.ax.dial_in import DialIn
from interlock.upstreams.connect import Connector
from interlock.upstreams.listing import RawOffer
from interlock.upstreams.mask import secret_values
from interlock.upstreams.oauth.keyring import Keyring
from interlock.upstreams.peer import Peer
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
        leaf: bool = False,
    ) -> None:
        """With a `browser` the node signs in to upstreams by itself; without one it says when
        somebody has to run `interlock login`. A `leaf` stands for its one server in the tree of
        somebody else, and nobody registers with it."""
        loop = asyncio.get_running_loop()
        self.config = config
        self.base_dir = base_dir
        self._environ = environ
        self._started = time.monotonic()
        self._supervisors: dict[str, Supervisor] = {}
        self._upstreams: dict[str, Upstream] = {}
        """The same, and what the node serves itself."""
        self._slower: dict[str, dict[str, str]] = {}
        """Tools that were measured to be slower than they say: upstream → own name → class."""
        self._ending: set[asyncio.Task[None]] = set()
        self._own_info = encode_value(OWN_INFO)
        tokens = TokenStore(tokens_path(config, environ, base_dir))
        self._keyring = Keyring(tokens, browser=browser)
        self._journal: Journal | None = None
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
            upstreams=self._upstreams,
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
            own_segment=lambda: self.tree.own_segment,
            measures=Measures(self._is_slower),
        )
        self.pipeline.latency_in_results = config.latency_in_results
        self._listeners = Listeners(self.pipeline.subscriptions)
        self._hello = Hello(self._introduce)
        self._sessions = Sessions(
            most=config.limits.sessions, idle=config.limits.session_idle, clock=loop.time
        )
        self.catalog.on_change(self._listeners.changed)
        self._sweeper: asyncio.TimerHandle | None = None
        self.tree = Tree(
            config,
            environ=environ,
            base_dir=base_dir,
            own_info=self._own_info,
            leaf=leaf,
            pipeline=self.pipeline,
            catalog=self.catalog,
            introduce=self._introduce,
            listeners=self._listeners,
            upstreams=self._upstreams,
            begin=self._begin_registered,
            end=self._end_registered,
            new_session=self._not_measured,
            configured=lambda: self.config.servers,
            view=self.tree_below,
        )
        self.doors = Doors(
            config,
            environ=environ,
            base_dir=base_dir,
            pipeline=self.pipeline,
            hello=self._hello,
            listeners=self._listeners,
            sessions=self._sessions,
            shown={
                "/status": self.status,
                "/tree": self.tree_below,
                "/routes": self.tree.routes,
            },
            subserver=self.tree.dialled_in,
        )

    # -- life

    def start(self) -> None:
        """Begin to connect to every upstream, each on its own."""
        for key, server in self.config.servers.items():
            self._begin(key, server)
        self._choose_transparent()

    def register(self) -> None:
        """Begin to look for the parent of the config, if there is one."""
        self.tree.start()

    async def listen(self) -> str:
        """Open the HTTP face; returns its URL. Raises InterlockError when it cannot be."""
        url = await self.doors.listen()
        self._sweep_sessions()
        return url

    async def listen_locally(self) -> Path:
        """Open the Unix sockets by which this user's other programs find the node.

        Raises OSError when they cannot be, also when another node has them.
        """
        path = await self.doors.listen_locally()
        await self.tree.listen_locally(path)
        return path

    @property
    def url(self) -> str | None:
        """Where the MCP face answers. None: it is not open."""
        return self.doors.url

    def stream(self, write: Any) -> McpStream:
        """The face for one client that speaks lines."""
        return self.doors.stream(write)

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
        await self.tree.leave()
        self.doors.let_nobody_in()
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._listeners.close()
        await self.pipeline.drain(LAST_CALLS)
        self.tree.close()
        await self.doors.close()
        await asyncio.gather(*(one.end() for one in self._supervisors.values()), *self._ending)
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
        self.pipeline.latency_in_results = config.latency_in_results
        self.doors.configure(config)
        await self.tree.configure(config)
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
            registrar=self.tree.registrar,
        )
        self._supervise(key, server, connector)

    def _begin_registered(self, key: str, server: ServerConfig, dial_in: DialIn) -> Supervisor:
        """The upstream of a subserver that dialled in."""
        return self._supervise(key, server, dial_in)

    def _supervise(
        self, key: str, server: ServerConfig, connector: Connector | DialIn
    ) -> Supervisor:
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
            prepare=lambda peer: self.tree.prepare(peer, key),
            back=self.pipeline,
        )
        self._supervisors[key] = self._upstreams[key] = supervisor
        supervisor.begin()
        return supervisor

    async def _end(self, key: str) -> None:
        await self._forget(key).end()

    def _end_registered(self, key: str) -> None:
        """A subserver is no more. At once, as another may take its place in this very moment."""
        self.catalog.withdraw(key)
        if key in self._supervisors:
            gone = self._forget(key)
            task = asyncio.get_running_loop().create_task(gone.end(), name=f"end:{key}")
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    def _forget(self, key: str) -> Supervisor:
        del self._upstreams[key]
        self._not_measured(key)
        self.tree.ended(key)
        return self._supervisors.pop(key)

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
            slower=self._slower.get(supervisor.key),
            **self.tree.terms(supervisor),
        )
        for one in offering.flagged:
            _log.warning("%s: the capability of %s: %s", supervisor.key, one.name, one.reason)
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
        if supervisor.state is State.DEGRADED and self.tree.subserver(supervisor.key) is not None:
            # Its tools stay, and say that they cannot be reached now.
            self._offered(supervisor)
        _log.info("%s is %s", supervisor.key, supervisor.state.value)

    def _is_slower(self, upstream: str, own_name: str, latency_class: str) -> None:
        self._slower.setdefault(upstream, {})[own_name] = latency_class
        supervisor = self._supervisors.get(upstream)
        if supervisor is not None:
            # A call is being answered: the new list can wait for a moment.
            asyncio.get_running_loop().call_soon(self._offered, supervisor)

    def _not_measured(self, upstream: str) -> None:
        self._slower.pop(upstream, None)
        self.pipeline.measures.forget(upstream)

    # -- parts

    def _authenticator(self, config: Config) -> Authenticator:
        return Authenticator(
            {
                resolve(one.token, environ=self._environ, base_dir=self.base_dir): one.name
                for one in config.tokens
            }
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
                self._capabilities_of(one.peer, one.offer),
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

    @staticmethod
    def _capabilities_of(peer: Peer, offer: RawOffer) -> Mapping[str, Any]:
        if not peer.speaks_ax:
            return peer.capabilities
        resources = bool(offer.resources or offer.templates)
        return as_offered(peer.capabilities, prompts=bool(offer.prompts), resources=resources)

    # -- how it fares

    def status(self) -> NodeStatus:
        journal = None if self._journal is None else self._journal.health()._asdict()
        return NodeStatus(
            version=__version__,
            pid=os.getpid(),
            url=self.url,
            uptime=time.monotonic() - self._started,
            upstreams=self._upstream_status(),
            tools=len(self.catalog.current.tools),
            calls=self.audit.total.calls,
            failed=self.audit.total.failed,
            sessions=len(self._sessions),
            listeners=len(self._listeners),
            under_way=len(list(self.pipeline.under_way())),
            tasks=len(asyncio.all_tasks()),
            journal=journal,
            parent=None if self.tree.registrant is None else self.tree.registrant.status(),
        )

    def _upstream_status(self) -> list[UpstreamStatus]:
        return [
            status_of(
                one,
                self.catalog.offering(one.key),
                self.audit.by_upstream.get(one.key) or Tally(),
                self._breakers.state(one.key),
            )
            for one in self._supervisors.values()
        ]

    async def tree_below(self, params: Raw | UnsetType = UNSET) -> TreeNode:
        """The tree from this node down. `params`: how far and how long a parent wants to look."""
        within, levels = read_asked(params)
        registrant = self.tree.registrant
        above = None if registrant is None else registrant.status()
        subservers = self.tree.subservers()
        own = own_part(
            name=self.tree.own_segment or "root",
            id=self.tree.id,
            parent=None if above is None else above.url,
            problem=None if above is None else above.problem,
            since=time.time() - (time.monotonic() - self._started),
            under_way=len(list(self.pipeline.under_way())),
            upstreams=self._upstream_status(),
            servers=self.config.servers,
            subservers=subservers,
        )
        below = {
            info.segment: supervisor.peer
            for key, info in subservers.items()
            if info.role == "aggregator"
            and (supervisor := self._supervisors.get(key)) is not None
            and supervisor.peer is not None
        }
        return await gather(own, below, within=within, levels=levels)

    def supervisor(self, key: str) -> Supervisor:
        return self._supervisors[key]
