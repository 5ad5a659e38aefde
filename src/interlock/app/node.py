"""A node: everything put together, started, changed while it runs, and stopped."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import UNSET, Raw, UnsetType

from interlock import __version__
from interlock.app.delegation import Hops
from interlock.app.features import load_features
from interlock.app.lifecycle import Lifecycle, stop_each
from interlock.app.listeners import Doors
from interlock.app.revocation import Leaving
from interlock.app.status import NodeStatus
from interlock.app.status_report import node_status, node_tree
from interlock.aql.component import Aql
from interlock.automation.component import Automation
from interlock.contracts.component import Contracts
from interlock.core.catalog.catalog import Catalog
from interlock.core.catalog.offering import CONTRACTS
from interlock.core.catalog.server_info import merge
from interlock.core.config import Config, ConfigChange, diff
from interlock.core.config.feature_sections import apply_environment
from interlock.core.feature import Component
from interlock.core.journal.audit import Audit
from interlock.core.journal.commit_waiters import deliver_on
from interlock.core.journal.journal import Journal
from interlock.core.paths import (
    check_state,
    journal_path,
    make_private,
    seal_key,
    signing_keys_path,
    socket_path,
    state_dir,
    tokens_path,
)
from interlock.core.pipeline.breaker import Breakers
from interlock.core.pipeline.busy_poll import can_stay_awake
from interlock.core.pipeline.pipeline import Pipeline
from interlock.core.pipeline.request_state import KEY_BYTES, Seals
from interlock.core.server.http.guard import Guard
from interlock.core.server.http.router import StatusDocument
from interlock.core.server.mcp.change_notifications import Listeners
from interlock.core.server.mcp.server_info import Hello, Introduction
from interlock.core.server.mcp.sessions import Sessions
from interlock.core.server.mcp.stream import McpStream
from interlock.core.upstreams.client import Peer
from interlock.core.upstreams.oauth.keyring import Keyring
from interlock.core.upstreams.oauth.token_store import TokenStore
from interlock.core.upstreams.registry import UpstreamRegistry
from interlock.core.upstreams.supervisor import Supervisor
from interlock.drivers.folders import DriverFolders
from interlock.protocol.jsonrpc import encode_value
from interlock.topics.component import Topics
from interlock.tree.component import Tree
from interlock.tree.overview import TreeNode
from interlock.tree.route_check import RouteCheck
from interlock.trust.approvals.record import journal_digest
from interlock.trust.component import Trust
from interlock.trust.signing_keys import SigningKeys

if TYPE_CHECKING:
    from interlock.core.upstreams.oauth.sign_in import Browser
    from interlock.drivers.component import Drivers


# -- How a node introduces itself: what its upstreams say of themselves, as one. Whoever is shown
# as itself is chosen here, and who has been introduced already hears when that would be said
# otherwise.

OWN_INFO: Final = {"name": "interlock", "title": "Interlock", "version": __version__}


class Introducing:
    """What a node says of itself, to clients and to its parent."""

    def __init__(
        self,
        roster: UpstreamRegistry,
        driver_folders: DriverFolders,
        *,
        pipeline: Pipeline,
        listeners: Listeners,
        on_changed: Callable[[], None],
    ) -> None:
        """`on_changed`: the parent is told by somebody else."""
        self._roster = roster
        self._driver_folders = driver_folders
        self._pipeline = pipeline
        self._listeners = listeners
        self._on_changed = on_changed
        self.hello = Hello(self.introduce)

    def introduce(self) -> Introduction:
        merged = merge([*self._roster.voices(), *self._driver_folders.voices()])
        return Introduction(
            merged.server_info or OWN_INFO, merged.capabilities, merged.instructions
        )

    def refresh(self) -> None:
        """What the node can say of itself may be another now."""
        self.hello.refresh()
        self._on_changed()

    def choose_transparent(self) -> None:
        """By the config: which upstream is shown as itself, if one is."""
        shown_as_itself = [
            key
            for key, one in self._roster.supervisors.items()
            if one.server.expose == "transparent"
        ]
        self._pipeline.transparent = shown_as_itself[0] if shown_as_itself else None
        self.refresh()

    def shown(self, supervisor: Supervisor) -> None:
        """The lists of an upstream were read."""
        if supervisor.key == self._pipeline.transparent:
            # Whoever sees it as itself hears what it announces, even if its list reads as before.
            self._listeners.changed(supervisor.announced)


LAST_CALLS: Final = 2.0
"""How long calls under way may still take when the node stops."""


class _Settings(Component):
    """Settings of the parts that have no life of their own."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def apply(self, old: Config, new: Config) -> None:
        node = self._node
        node.pipeline.configure(
            authenticate=node.trust.identity.authenticator,
            names=new.names,
            timeout=new.timeout,
            concurrent_calls=new.limits.concurrent_calls,
        )
        node.pipeline.latency_in_results = new.latency_in_results
        node.breakers.configure(failures=new.breaker.failures, cooldown=new.breaker.cooldown)
        node.sessions.configure(most=new.limits.sessions, idle=new.limits.session_idle)
        node.catalog.configure(page_size=new.page_size)


class _Transparency(Component):
    """Chooses the upstream that is shown as itself, once the upstreams have the new config."""

    def __init__(self, introducing: Introducing) -> None:
        self._introducing = introducing

    async def apply(self, old: Config, new: Config) -> None:
        self._introducing.choose_transparent()


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
        load_features()
        config = apply_environment(config, environ)
        self.config = config
        self.base_dir = base_dir
        self.environ = environ
        self._started = time.monotonic()
        self.own_info = encode_value(OWN_INFO)
        # Before anything of it is read.
        check_state(state_dir(config, environ, base_dir))
        tokens = TokenStore(tokens_path(config, environ, base_dir))
        self._keyring = Keyring(tokens, browser=browser)
        self._journal: Journal | None = None
        if config.journal.enabled:
            path = journal_path(config, environ, base_dir)
            make_private(path.parent)
            self._journal = Journal(
                path,
                max_rows=config.journal.max_rows,
                max_age=config.journal.max_age,
                archive=config.journal.archive,
                wait=config.journal.wait,
            )
            self._journal.deliver = deliver_on(loop)
        self.catalog = Catalog(server_info=self.own_info, page_size=config.page_size)
        self.audit = Audit(
            self._journal,
            durable=config.journal.durable == "mutating",
            digest=journal_digest if config.journal.arguments == "digest" else None,
        )
        self.trust = Trust(
            config,
            environ=environ,
            base_dir=base_dir,
            catalog=self.catalog,
            audit=self.audit,
            on_revoked=lambda names: self.leaving.revoked(names),
            on_expired=lambda names: self.leaving.expired(names),
            on_held=lambda held: self.audit.record_held(held.tool, held.message),
        )
        challenges = self.trust.identity.challenges
        guard = Guard(allowed_hosts=config.allowed_hosts, allowed_origins=config.allowed_origins)
        self.breakers = Breakers(
            time.monotonic, failures=config.breaker.failures, cooldown=config.breaker.cooldown
        )
        self.roster = UpstreamRegistry(
            config,
            environ=environ,
            base_dir=base_dir,
            own_info=self.own_info,
            catalog=self.catalog,
            breakers=self.breakers,
            audit=self.audit,
            keyring=self._keyring,
            on_shown=lambda supervisor: self.introducing.shown(supervisor),
            on_changed=lambda: self.introducing.refresh(),
        )
        seals = Seals(seal_key(config, environ, base_dir, KEY_BYTES), time.time)
        self.pipeline = Pipeline(
            catalog=self.catalog,
            authenticate=self.trust.identity.authenticator,
            authorizer=self.trust.authorizer,
            breakers=self.breakers,
            upstreams=self.roster.upstreams,
            audit=self.audit,
            # uvloop's own clock stands still between two turns of the loop; durations need better.
            clock=time.monotonic,
            call_later=loop.call_later,
            call_soon=loop.call_soon if config.wakeful and can_stay_awake() else None,
            names=config.names,
            timeout=config.timeout,
            concurrent_calls=config.limits.concurrent_calls,
            ask_policy=self.roster.ask_policy,
            seals=seals,
            input_seconds=config.input_timeout,
            route_check=RouteCheck(lambda: self.tree.own_segment),
            observers=(self.roster.measures,),
        )
        self.roster.attach(self.pipeline)
        self.pipeline.latency_in_results = config.latency_in_results
        self.pipeline.read_tools = self.roster.read_tools
        self._listeners = Listeners(self.pipeline.subscriptions)
        self.contracts = Contracts(
            config,
            base_dir=base_dir,
            environ=environ,
            catalog=self.catalog,
            audit=self.audit,
            pins=self.trust.pins,
            pipeline=self.pipeline,
            guard=guard,
            challenges=challenges,
            unwatched=(CONTRACTS,),
        )
        self.driver_folders = DriverFolders(
            config,
            environ=environ,
            base_dir=base_dir,
            own_info=self.own_info,
            catalog=self.catalog,
            pipeline=self.pipeline,
            floors=self.trust.authorizer.contract_floors,
            upstreams=self.roster.upstreams,
            audit=self.audit,
            breakers=self.breakers,
            contracts=self.contracts,
            on_voices=lambda: self.introducing.refresh(),
        )
        self.introducing = Introducing(
            self.roster,
            self.driver_folders,
            pipeline=self.pipeline,
            listeners=self._listeners,
            on_changed=lambda: self.tree.refresh(),
        )
        self.sessions = Sessions(
            most=config.limits.sessions, idle=config.limits.session_idle, clock=loop.time
        )
        self.catalog.on_change(self._listeners.changed)
        self.tree = Tree(
            config,
            environ=environ,
            base_dir=base_dir,
            own_info=self.own_info,
            leaf=leaf,
            pipeline=self.pipeline,
            budgets=self.trust.authorizer.budgets,
            audit=self.audit,
            catalog=self.catalog,
            introduce=self.introducing.introduce,
            listeners=self._listeners,
            upstreams=self.roster.upstreams,
            begin=self.roster.begin_registered,
            end=self.roster.end_registered,
            new_session=self.roster.not_measured,
            configured=lambda: self.config.servers,
            view=self.tree_below,
            guard=guard,
        )
        self.tree.registrants = self.trust.identity.registrants
        self.hops = Hops(
            SigningKeys(signing_keys_path(config, environ, base_dir)),
            registrar=self.tree.registrar,
            registrant=lambda: self.tree.registrant,
            issuer=lambda: self.config.identity.resource or self.url or self.tree.id,
            root_segment=lambda: self.config.root_segment,
        )
        self.hops.stand_between(self.trust.authorizer, self.trust.identity)
        self.roster.extend(self.tree, self.hops)
        approving = self.trust.stand_before(
            self.pipeline,
            config,
            node_id=lambda: self.tree.id,
            url=lambda: self.url,
            seals=seals,
            guard=guard,
            recorder=self._journal,
            children=self.nodes_below,
        )
        self.aql = Aql(
            config,
            environ=environ,
            base_dir=base_dir,
            server_info=self.own_info,
            catalog=self.catalog,
            pipeline=self.pipeline,
            authorizer=self.trust.authorizer,
            upstreams=self.roster.upstreams,
            approving=approving,
            audit=self.audit,
            seals=seals,
            # Contracts of drivers are the operator's own files.
            registered=lambda key: key != CONTRACTS and key not in self.config.servers,
        )
        self.introducing.hello.about_operations = self.aql.instructions
        self.automation = Automation(
            config,
            environ=environ,
            base_dir=base_dir,
            approvals=approving.approvals,
            authorizer=self.trust.authorizer,
            audit=self.audit,
        )
        self.topics = Topics(
            config,
            pipeline=self.pipeline,
            catalog=self.catalog,
            audit=self.audit,
            approvals=approving.approvals,
            hello=self.introducing.hello,
            own_info=self.own_info,
            roster=self.roster,
            guard=guard,
            challenges=challenges,
            recorder=self._journal,
        )
        self.doors = Doors(
            config,
            environ=environ,
            base_dir=base_dir,
            pipeline=self.pipeline,
            hello=self.introducing.hello,
            listeners=self._listeners,
            sessions=self.sessions,
            guard=guard,
            challenges=challenges,
            routes=[
                StatusDocument("/status", self.status),
                *self.hops.routes(),
                *self.trust.routes(),
                *self.contracts.routes(),
                *self.topics.routes(),
                *self.tree.routes(),
            ],
        )
        self.leaving = Leaving(
            sessions=self.sessions,
            listeners=self._listeners,
            doors=self.doors,
            approving=approving,
            tree=self.tree,
            topics=self.topics,
            pipeline=self.pipeline,
        )
        # In this order a new config is applied.
        self._lifecycle = Lifecycle(
            {
                "listeners": self.doors,
                "trust": self.trust,
                "aql": self.aql,
                "settings": _Settings(self),
                "tree": self.tree,
                "upstreams": self.roster,
                "contracts": self.contracts,
                "drivers": self.driver_folders,
                "automation": self.automation,
                "topics": self.topics,
                "introduction": _Transparency(self.introducing),
            }
        )

    # -- life

    def start(self) -> None:
        """Begin to connect to every upstream, each on its own."""
        self.trust.start()
        self.aql.start()
        self.hops.start()
        self.contracts.start()
        for key, server in self.config.servers.items():
            self.roster.begin(key, server)
        self.driver_folders.start()
        self.topics.start()
        self.introducing.choose_transparent()

    def register(self) -> None:
        """Begin to look for the parent of the config, if there is one."""
        self.tree.start()

    async def listen(self) -> str:
        """Open the HTTP face; returns its URL. Raises InterlockError when it cannot be."""
        self.trust.start()
        self.aql.start()
        url = await self.doors.listen()
        self.leaving.sweep()
        identity = self.trust.identity
        identity.listening_at(url)
        self.driver_folders.listening_at(url)
        await identity.start()
        return url

    async def listen_locally(self) -> Path:
        """Open the Unix sockets by which this user's other programs find the node.

        Raises OSError when they cannot be, also when another node has them.
        """
        path = await self.doors.listen_locally()
        await self.tree.listen_locally(path)
        if self.trust.approving is not None:
            await self.trust.approving.listen_locally(path)
        return path

    async def listen_for_people(self) -> None:
        """Open only the socket by which this user answers calls that wait. Raises OSError."""
        if self.trust.approving is not None:
            path = socket_path(self.config, self.environ, self.base_dir)
            await self.trust.approving.listen_locally(path)

    @property
    def url(self) -> str | None:
        """Where the MCP face answers. None: it is not open."""
        return self.doors.url

    def stream(self, write: Any) -> McpStream:
        """The face for one client that speaks lines."""
        return self.doors.stream(write)

    async def until_settled(self, seconds: float) -> None:
        """Wait until every upstream has been tried once, but no longer than this."""
        await self.roster.until_settled(seconds)

    async def stop(self) -> None:
        """Stop every component, those that accept callers first. A failure stops no other."""
        # Nobody new from here on; then those who wait are told.
        await stop_each(
            (
                ("the registration with the parent", self.tree.leave),
                ("accepting connections", self.doors.let_nobody_in),
                ("the approval inbox", self._release_approvals),
                ("session expiry", self.leaving.close),
                ("change notifications", self._listeners.close),
                ("calls under way", partial(self.pipeline.drain, LAST_CALLS)),
                ("topics", self.topics.stop),
                ("the tree", self.tree.stop),
                ("listeners", self.doors.stop),
                ("signing keys", self.hops.close),
                ("aql", self.aql.stop),
                ("automation", self.automation.stop),
                ("trust", self.trust.stop),
                ("drivers", self.driver_folders.stop),
                ("contracts", self.contracts.stop),
                ("upstreams", self.roster.stop),
                ("sign-ins", self._keyring.close),
                ("the journal", self._close_journal),
            )
        )

    def _release_approvals(self) -> None:
        if self.trust.approving is not None:
            self.trust.approving.let_go()

    async def _close_journal(self) -> None:
        if self._journal is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._journal.close)

    # -- change while running

    async def apply(self, config: Config) -> ConfigChange:
        """Run by a new config. Only what changed is touched.

        Raises InterlockError when the new config cannot be used. After any failure every component
        runs by the previous config again.
        """
        old, new = self.config, apply_environment(config, self.environ)
        try:
            self.config = new
            await self._lifecycle.apply(old, new)
        except BaseException:
            self.config = old
            raise
        # Only now, because it cannot be undone: whoever is no longer known hears nothing more.
        self.leaving.all_but(self.trust.identity)
        return diff(old, new)

    # -- parts

    @property
    def drivers(self) -> Drivers:
        return self.driver_folders.drivers

    def nodes_below(self) -> dict[str, Peer]:
        """The nodes that are registered here now, by the keys of their upstreams."""
        return {
            key: supervisor.peer
            for key, info in self.tree.subservers().items()
            if info.role == "aggregator"
            and (supervisor := self.roster.supervisors.get(key)) is not None
            and supervisor.peer is not None
        }

    # -- how it fares

    def status(self) -> NodeStatus:
        return node_status(self)

    async def tree_below(self, params: Raw | UnsetType = UNSET) -> TreeNode:
        """The tree from this node down. `params`: how far and how long a parent wants to look."""
        return await node_tree(self, params)

    @property
    def uptime(self) -> float:
        return time.monotonic() - self._started

    @property
    def journal_health(self) -> dict[str, Any] | None:
        return None if self._journal is None else self._journal.health()._asdict()

    @property
    def open_sessions(self) -> int:
        return len(self.sessions)

    @property
    def open_listeners(self) -> int:
        return len(self._listeners)

    def supervisor(self, key: str) -> Supervisor:
        return self.roster.supervisors[key]
