"""A node: its components, their start, reload and stop."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from interlock import __version__
from interlock.app.features import create_components, load_features
from interlock.app.lifecycle import Lifecycle, stop_each
from interlock.app.listeners import NodeListeners
from interlock.app.revocation import Revocation
from interlock.core.catalog.catalog import Catalog
from interlock.core.catalog.server_info import merge
from interlock.core.config import Config, ConfigChange, diff
from interlock.core.config.feature_sections import apply_environment
from interlock.core.feature import Component, FeatureComponent
from interlock.core.journal.audit import Audit
from interlock.core.journal.journal import Journal, deliver_on_loop
from interlock.core.node_position import NodePosition
from interlock.core.paths import (
    check_state,
    journal_path,
    make_private,
    seal_key,
    signing_keys_path,
    socket_path,
    state_dir,
    state_path,
    tokens_path,
)
from interlock.core.pipeline.breaker import Breakers
from interlock.core.pipeline.busy_poll import can_busy_poll
from interlock.core.pipeline.pipeline import Pipeline
from interlock.core.pipeline.request_state import KEY_BYTES, StateSealer
from interlock.core.server.http.guard import Guard
from interlock.core.server.http.router import StatusDocument
from interlock.core.server.mcp.change_notifications import ChangeListeners
from interlock.core.server.mcp.server_info import Introduction, ServerInfo
from interlock.core.server.mcp.sessions import Sessions
from interlock.core.server.mcp.stream import McpStream
from interlock.core.state.sqlite_adapter import SqliteAdapter
from interlock.core.state.store import StateStore
from interlock.core.status import NodeStatus, StatusReport
from interlock.core.upstreams.oauth.bearer import BearerRegistry
from interlock.core.upstreams.oauth.token_store import TokenStore
from interlock.core.upstreams.registry import UpstreamRegistry
from interlock.core.upstreams.supervisor import Supervisor
from interlock.protocol.jsonrpc import encode_value
from interlock.trust.approvals.record import journal_digest
from interlock.trust.component import Trust
from interlock.trust.node_context import Kind, NodeContext
from interlock.trust.signing_keys import SigningKeys
from interlock.trust.token_issuer import TokenIssuer

if TYPE_CHECKING:
    from interlock.core.upstreams.oauth.sign_in import Browser


# -- The server info of a node: merged from its upstreams. A transparent upstream is chosen here.
# Clients that already have the server info are told when it changes.

NODE_INFO: Final = {"name": "interlock", "title": "Interlock", "version": __version__}


class NodeIntroduction:
    """The server info of a node, for clients and for its parent."""

    def __init__(
        self,
        upstreams: UpstreamRegistry,
        features: Iterable[FeatureComponent],
        *,
        pipeline: Pipeline,
        change_listeners: ChangeListeners,
    ) -> None:
        self._upstreams = upstreams
        self._features = features
        self._pipeline = pipeline
        self._change_listeners = change_listeners
        self.server_info = ServerInfo(self.introduce)

    def introduce(self) -> Introduction:
        introductions = self._upstreams.introductions()
        for feature in self._features:
            introductions += feature.introductions()
        merged = merge(introductions)
        return Introduction(
            merged.server_info or NODE_INFO, merged.capabilities, merged.instructions
        )

    def refresh(self) -> None:
        """Update the server info of the node, and tell the features."""
        self.server_info.refresh()
        for feature in self._features:
            feature.on_introduction_change()

    def choose_transparent(self) -> None:
        """Set the upstream that is shown transparently, if the config names one."""
        shown_as_itself = [
            key
            for key, supervisor in self._upstreams.supervisors.items()
            if supervisor.server.expose == "transparent"
        ]
        self._pipeline.transparent_upstream = shown_as_itself[0] if shown_as_itself else None
        self.refresh()

    def on_lists_read(self, supervisor: Supervisor) -> None:
        """Handle new lists of an upstream."""
        if supervisor.key == self._pipeline.transparent_upstream:
            # Clients of a transparent upstream get its announcements, even without a change.
            self._change_listeners.changed(supervisor.announced)


DRAIN_SECONDS: Final = 2.0
"""Seconds that calls under way may still take when the node stops."""


class _Settings(Component):
    """Applies settings to the parts that are not components."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def apply(self, old: Config, new: Config) -> None:
        node = self._node
        node.pipeline.configure(
            authenticate=node.trust.identity.authenticator,
            names=new.names,
            timeout=new.timeout,
            concurrent_calls=new.limits.concurrent_calls,
            latency_in_results=new.latency_in_results,
        )
        node.breakers.configure(failures=new.breaker.failures, cooldown=new.breaker.cooldown)
        node.sessions.configure(max_sessions=new.limits.sessions, idle=new.limits.session_idle)
        node.catalog.configure(page_size=new.page_size)


class _TransparentUpstream(Component):
    """Chooses the transparent upstream after the upstreams have the new config."""

    def __init__(self, introduction: NodeIntroduction) -> None:
        self._introduction = introduction

    async def apply(self, old: Config, new: Config) -> None:
        self._introduction.choose_transparent()


class Node:
    """A running Interlock. `start` connects the upstreams, `listen` opens the listeners."""

    def __init__(
        self,
        config: Config,
        *,
        base_dir: Path,
        environ: Mapping[str, str] = os.environ,
        browser: Browser | None = None,
        leaf: bool = False,
    ) -> None:
        """
        Args:
            browser: signs in to upstreams. Without one, the node reports that `interlock login` is
                needed.
            leaf: True for a node that represents its one server in the tree of another; no node
                registers with it.
        """
        loop = asyncio.get_running_loop()
        load_features()
        config = apply_environment(config, environ)
        self.config = config
        self.base_dir = base_dir
        self.environ = environ
        self._started = time.monotonic()
        self._restored = False
        self.node_info = encode_value(NODE_INFO)
        # Before any state is read.
        check_state(state_dir(config, environ, base_dir))
        self.state = StateStore(SqliteAdapter(state_path(config, environ, base_dir)))
        tokens = TokenStore(tokens_path(config, environ, base_dir))
        self._bearer_registry = BearerRegistry(tokens, browser=browser)
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
            self._journal.deliver = deliver_on_loop(loop)
        self.catalog = Catalog(server_info=self.node_info, page_size=config.page_size)
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
            on_revoked=lambda names: self.revocation.on_tokens_revoked(names),
            on_expired=lambda names: self.revocation.on_tokens_expired(names),
            on_held=lambda held: self.audit.record_held_tool(held.tool, held.message),
        )
        challenges = self.trust.identity.challenges
        guard = Guard(allowed_hosts=config.allowed_hosts, allowed_origins=config.allowed_origins)
        self.breakers = Breakers(
            time.monotonic, failures=config.breaker.failures, cooldown=config.breaker.cooldown
        )
        self.upstreams = UpstreamRegistry(
            config,
            environ=environ,
            base_dir=base_dir,
            node_info=self.node_info,
            catalog=self.catalog,
            breakers=self.breakers,
            audit=self.audit,
            bearers=self._bearer_registry,
            on_shown=lambda supervisor: self.introduction.on_lists_read(supervisor),
            on_changed=lambda: self.introduction.refresh(),
        )
        seals = StateSealer(seal_key(config, environ, base_dir, KEY_BYTES), time.time)
        self.pipeline = Pipeline(
            catalog=self.catalog,
            authenticate=self.trust.identity.authenticator,
            recall=self.trust.identity.recall,
            authorizer=self.trust.authorizer,
            breakers=self.breakers,
            upstreams=self.upstreams.upstreams,
            audit=self.audit,
            # uvloop's clock stands still during a turn of the loop. Durations need a better one.
            clock=time.monotonic,
            call_later=loop.call_later,
            call_soon=loop.call_soon if config.busy_poll and can_busy_poll() else None,
            names=config.names,
            timeout=config.timeout,
            concurrent_calls=config.limits.concurrent_calls,
            client_request_policy=self.upstreams.client_request_policy,
            seals=seals,
            input_seconds=config.input_timeout,
            observers=(self.upstreams.measures,),
            latency_in_results=config.latency_in_results,
            read_tools=self.upstreams.read_tools,
        )
        self.upstreams.attach(self.pipeline)
        self._change_listeners = ChangeListeners(self.pipeline.subscriptions)
        self._features: dict[type[FeatureComponent], FeatureComponent] = {}
        features = self._features.values()
        self.introduction = NodeIntroduction(
            self.upstreams,
            features,
            pipeline=self.pipeline,
            change_listeners=self._change_listeners,
        )
        self.sessions = Sessions(
            max_sessions=config.limits.sessions, idle=config.limits.session_idle, clock=loop.time
        )
        self.catalog.on_change(self._change_listeners.changed)
        self.place = NodePosition(seals)
        self.tokens = TokenIssuer(
            SigningKeys(signing_keys_path(config, environ, base_dir)),
            issuer=lambda: self.config.identity.resource or self.url or self.place.id,
            root_segment=lambda: self.config.root_segment,
        )
        approving = self.trust.attach(
            self.pipeline,
            config,
            node_id=lambda: self.place.id,
            url=lambda: self.url,
            seals=seals,
            guard=guard,
            recorder=self._journal,
            children=lambda: self.place.nodes_below(),
        )
        context = NodeContext(
            config=config,
            environ=environ,
            base_dir=base_dir,
            leaf=leaf,
            node_info=self.node_info,
            current_config=lambda: self.config,
            origin=lambda: self.listeners.origin,
            uptime=lambda: self.uptime,
            component=self.component,
            catalog=self.catalog,
            audit=self.audit,
            recorder=self._journal,
            breakers=self.breakers,
            upstreams=self.upstreams,
            pipeline=self.pipeline,
            seals=seals,
            state=self.state,
            change_listeners=self._change_listeners,
            server_info=self.introduction.server_info,
            introduce=self.introduction.introduce,
            introduction_changed=self.introduction.refresh,
            place=self.place,
            guard=guard,
            challenges=challenges,
            authorizer=self.trust.authorizer,
            identity=self.trust.identity,
            pins=self.trust.pins,
            approving=approving,
            tokens=self.tokens,
        )
        named: dict[str, FeatureComponent] = {}
        for name, feature in create_components(context):
            self._features[type(feature)] = named[name] = feature
        self.upstreams.extend(self.tokens)
        self.listeners = NodeListeners(
            config,
            environ=environ,
            base_dir=base_dir,
            pipeline=self.pipeline,
            server_info=self.introduction.server_info,
            change_listeners=self._change_listeners,
            sessions=self.sessions,
            guard=guard,
            challenges=challenges,
            routes=[
                StatusDocument("/status", lambda: self.report().document()),
                *self.tokens.routes(),
                *self.trust.routes(),
                *(route for feature in features for route in feature.routes()),
            ],
        )
        self.revocation = Revocation(
            sessions=self.sessions,
            change_listeners=self._change_listeners,
            listeners=self.listeners,
            approving=approving,
            features=features,
            pipeline=self.pipeline,
        )
        first = {key for key, component in named.items() if component.takes_config_before_upstreams}
        # A new config is applied in this order.
        self._lifecycle = Lifecycle(
            {
                "listeners": self.listeners,
                "trust": self.trust,
                "settings": _Settings(self),
                **{key: component for key, component in named.items() if key in first},
                "upstreams": self.upstreams,
                **{key: component for key, component in named.items() if key not in first},
                "introduction": _TransparentUpstream(self.introduction),
            }
        )

    # -- lifecycle

    def start(self) -> None:
        """Begin to connect every upstream."""
        self._restore()
        self.tokens.start()
        for key, server in self.config.servers.items():
            self.upstreams.begin(key, server)
        for feature in self._features.values():
            feature.start()
        self.introduction.choose_transparent()

    def _restore(self) -> None:
        """Restore the state of an earlier run. Does nothing when called again."""
        if not self._restored:
            self._restored = True
            self.trust.start()
            for feature in self._features.values():
                feature.restore_state()

    def on_settled(self) -> None:
        """Tell the features that every upstream was tried once: the node may now register
        elsewhere."""
        for feature in self._features.values():
            feature.on_upstreams_tried()

    async def listen(self) -> str:
        """Open the HTTP listener and return its URL. Raises InterlockError if that fails."""
        self._restore()
        url = await self.listeners.listen()
        self.revocation.sweep()
        identity = self.trust.identity
        identity.set_url(url)
        for feature in self._features.values():
            feature.on_listening(url)
        await identity.start()
        return url

    async def listen_locally(self) -> Path:
        """Open the Unix sockets by which this user's other programs find the node.

        Raises OSError if that fails, also when another node has them.
        """
        path = await self.listeners.listen_locally()
        for feature in self._features.values():
            await feature.open_local_sockets(path)
        if self.trust.approving is not None:
            await self.trust.approving.listen_locally(path)
        return path

    async def listen_for_people(self) -> None:
        """Open only the socket for approvals by this user. Raises OSError."""
        if self.trust.approving is not None:
            path = socket_path(self.config, self.environ, self.base_dir)
            await self.trust.approving.listen_locally(path)

    @property
    def url(self) -> str | None:
        """The URL of the MCP endpoint. None: it is not open."""
        return self.listeners.url

    def stream(self, write: Any) -> McpStream:
        """Return the server side of a stream for one client that sends lines."""
        return self.listeners.stream(write)

    async def until_settled(self, seconds: float) -> None:
        """Wait until every upstream was tried once, at most this many seconds."""
        await self.upstreams.wait_for_first_attempt(seconds)

    async def stop(self) -> None:
        """Stop every component, those that accept callers first. A failure does not prevent the
        others."""
        features = [
            (type(feature).__name__.lower(), feature)
            for feature in reversed(self._features.values())
        ]
        # Accept no new callers, then tell those that wait.
        await stop_each(
            (
                *(
                    (f"{name} before the end", feature.announce_shutdown)
                    for name, feature in features
                ),
                ("accepting connections", self.listeners.stop_accepting),
                ("the approval inbox", self._close_approval_streams),
                ("session expiry", self.revocation.close),
                ("change notifications", self._change_listeners.close),
                ("calls under way", partial(self.pipeline.drain, DRAIN_SECONDS)),
                *((f"the connections of {name}", feature.disconnect) for name, feature in features),
                ("listeners", self.listeners.stop),
                ("signing keys", self.tokens.stop),
                *((name, feature.stop) for name, feature in features),
                ("trust", self.trust.stop),
                ("upstreams", self.upstreams.stop),
                ("sign-ins", self._bearer_registry.close),
                ("the state store", self.state.close),
                ("the journal", self._close_journal),
            )
        )

    def _close_approval_streams(self) -> None:
        if self.trust.approving is not None:
            self.trust.approving.close_streams()

    async def _close_journal(self) -> None:
        if self._journal is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._journal.close)

    # -- reload

    async def apply(self, config: Config) -> ConfigChange:
        """Apply a new config. Only what changed is touched.

        Raises InterlockError if the new config cannot be used. After a failure every component has
        the previous config again.
        """
        old, new = self.config, apply_environment(config, self.environ)
        try:
            self.config = new
            await self._lifecycle.apply(old, new)
        except BaseException:
            self.config = old
            raise
        # Last, because it cannot be undone: end the sessions of callers that are no longer known.
        self.revocation.retain_only(self.trust.identity)
        return diff(old, new)

    # -- parts

    def component(self, kind: type[Kind]) -> Kind:
        """Return the component of a feature by its class. Raises KeyError if the node has none."""
        component = self._features[kind]
        assert isinstance(component, kind)
        return component

    # -- status

    def status(self) -> NodeStatus:
        """Return the node's own fields of its status."""
        problems = self.trust.problems()
        if self.state.adapter.problem:
            problems.append(self.state.adapter.problem)
        for feature in self._features.values():
            problems += feature.problems()
        return NodeStatus(
            version=__version__,
            pid=os.getpid(),
            url=self.url,
            uptime=self.uptime,
            upstreams=self.upstreams.status(),
            tools=len(self.catalog.current.plain_tools),
            calls=self.audit.total.calls,
            failed=self.audit.total.failed,
            sessions=self.open_sessions,
            listeners=self.open_listeners,
            under_way=len(list(self.pipeline.running_calls())),
            tasks=len(asyncio.all_tasks()),
            journal=self.journal_health,
            held=sorted(held_tool.tool for held_tool in self.trust.pins.held_tools.values()),
            waiting=self.trust.pending_count,
            policy=self.trust.policy.version,
            problems=problems,
        )

    def report(self) -> StatusReport:
        """Return the status of the node and of its features."""
        status_parts = (feature.status() for feature in self._features.values())
        return StatusReport(
            self.status(), {type(part): part for part in status_parts if part is not None}
        )

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
        return len(self._change_listeners)

    def supervisor(self, key: str) -> Supervisor:
        return self.upstreams.supervisors[key]
