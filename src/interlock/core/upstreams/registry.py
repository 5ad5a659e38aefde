"""A node's upstreams: begun, shown, changed and ended, each by itself.

What a supervisor reports becomes an offering on the catalog's board; what is measured of its tools
changes how they are shown. Upstreams of the config and of the tree are treated alike.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from interlock.core.catalog.catalog import Catalog
from interlock.core.catalog.offering import Offering, OfferingTerms, read_offering
from interlock.core.catalog.server_info import UpstreamIntroduction, as_offered
from interlock.core.config import Config, ServerConfig, diff, resolve_server
from interlock.core.feature import Component
from interlock.core.journal.audit import Audit, CallTotals
from interlock.core.pipeline.breaker import Breakers, Circuit
from interlock.core.pipeline.client_requests import ALLOW_ALL, ClientRequestPolicy
from interlock.core.pipeline.latency import LatencyMeasures
from interlock.core.pipeline.pipeline import Pipeline
from interlock.core.ports import Upstream
from interlock.core.upstreams.client import UpstreamClient
from interlock.core.upstreams.connection import ConnectionOpener, Connector, ConnectorOptions
from interlock.core.upstreams.extension import UpstreamExtension
from interlock.core.upstreams.listing import RawOffering
from interlock.core.upstreams.oauth.bearer import BearerRegistry
from interlock.core.upstreams.secret_mask import secret_values
from interlock.core.upstreams.supervisor import State, Supervisor
from interlock.protocol.mcp import Era

_log = logging.getLogger("interlock.node")


class UpstreamStatus(msgspec.Struct, frozen=True):
    """How one upstream fares."""

    key: str
    state: str
    since: float
    problem: str | None
    segment: str
    tools: int
    prompts: int
    resources: int
    set_aside: list[dict[str, str]]
    revision: str
    restarts: int
    lists: int
    calls: int
    failed: int
    busy_us: int
    circuit: str
    pid: int | None
    noise: int
    private: int
    """How many clients have a connection of their own to it."""


class UpstreamRegistry(Component):
    """Every upstream that a node has."""

    def __init__(
        self,
        config: Config,
        *,
        environ: Mapping[str, str] = os.environ,
        base_dir: Path,
        own_info: bytes,
        catalog: Catalog,
        breakers: Breakers,
        audit: Audit,
        bearers: BearerRegistry,
        on_shown: Callable[[Supervisor], None],
        on_changed: Callable[[], None],
    ) -> None:
        """`on_shown`: a supervisor's lists were read; `on_changed`: what the node can say of itself
        may be another now."""
        self.supervisors: dict[str, Supervisor] = {}
        self.upstreams: dict[str, Upstream] = {}
        """The same, and what the node serves itself."""
        self._pipeline: Pipeline
        self._extensions: tuple[UpstreamExtension, ...] = ()
        self._config = config
        self._environ = environ
        self._base_dir = base_dir
        self._own_info = own_info
        self._catalog = catalog
        self._breakers = breakers
        self._audit = audit
        self.measures = LatencyMeasures(self.is_slower)
        self._bearer_registry = bearers
        self._on_shown = on_shown
        self._on_changed = on_changed
        self._slower: dict[str, dict[str, str]] = {}
        """Tools that were measured to be slower than they say: upstream → own name → class."""
        self._ending: set[asyncio.Task[None]] = set()

    def attach(self, pipeline: Pipeline) -> None:
        """Give it the pipeline, before anything is begun: each needs the other."""
        self._pipeline = pipeline

    def extend(self, *extensions: UpstreamExtension) -> None:
        """Let these take part, before anything is begun. The first that connects to a server
        does so; all hear of all upstreams, in this order."""
        self._extensions += extensions

    # -- life

    def begin(self, key: str, server: ServerConfig) -> None:
        """Begin to connect to a server of the config."""
        if not server.enabled:
            self._catalog.expect_no_more(key)
            return
        self._expect(key, server)
        self._supervise(key, server, self._connector(key, server))

    def _connector(self, key: str, server: ServerConfig) -> ConnectionOpener:
        options: ConnectorOptions = {
            "own_info": self._own_info,
            "resolve": self._resolve,
            "secrets": lambda configured: secret_values(
                configured, environ=self._environ, base_dir=self._base_dir
            ),
            "clock": asyncio.get_running_loop().time,
            "bearer": self._bearer_registry.bearer(key),
        }
        for extension in self._extensions:
            connector = extension.connector(key, server, options)
            if connector is not None:
                return connector
        return Connector(key, server, **options)

    def _expect(self, key: str, server: ServerConfig) -> None:
        """Until it has listed its tools, no contract takes a name that may be theirs."""
        segment, root = server.segment or key, self._config.root_segment
        prefix = f"{root}.{segment}" if root else segment
        self._catalog.expect(key, "" if server.expose == "transparent" else prefix)

    def begin_registered(
        self, key: str, server: ServerConfig, connector: ConnectionOpener
    ) -> Supervisor:
        """The upstream of a subserver that dialled in, or of a participant of a topic."""
        return self._supervise(key, server, connector)

    def end_registered(self, key: str) -> None:
        """A subserver is no more. At once, as another may take its place in this very moment."""
        self._catalog.withdraw(key)
        if key in self.supervisors:
            gone = self._forget(key)
            task = asyncio.get_running_loop().create_task(gone.end(), name=f"end:{key}")
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def end(self, key: str) -> None:
        await self._forget(key).end()

    async def until_settled(self, seconds: float) -> None:
        """Wait until every upstream of the config has been tried once, but no longer than this. Who
        comes by itself, to register or into a topic, is not waited for: it may never come."""
        waiting = [
            asyncio.ensure_future(one.until_settled())
            for key, one in self.supervisors.items()
            if key in self._config.servers
        ]
        if waiting:
            _, late = await asyncio.wait(waiting, timeout=seconds)
            for one in late:
                one.cancel()

    async def stop(self) -> None:
        await asyncio.gather(*(one.end() for one in self.supervisors.values()), *self._ending)

    async def apply(self, old: Config, new: Config) -> None:
        """Go on by a new config: only what changed is touched."""
        self._config, config, change = new, new, diff(old, new)
        gone = [*change.removed, *change.relinked]
        await asyncio.gather(*(self.end(key) for key in gone if key in self.supervisors))
        for key in change.removed:
            self._catalog.withdraw(key)
            self._catalog.expect_no_more(key)
        for key in (*change.added, *change.relinked):
            if not config.servers[key].enabled:
                self._catalog.withdraw(key)
            if key not in self.supervisors:
                self.begin(key, config.servers[key])
        for key in change.changed:
            if key not in change.relinked and key in self.supervisors:
                self._expect(key, config.servers[key])
                self.supervisors[key].configure(config.servers[key])
        if "root_segment" in change.live or "unannotated" in change.live:
            for key, supervisor in self.supervisors.items():
                if key in config.servers:
                    self._expect(key, supervisor.server)
                supervisor.configure(supervisor.server)

    def _supervise(self, key: str, server: ServerConfig, connector: ConnectionOpener) -> Supervisor:
        supervisor = Supervisor(
            key,
            server,
            connector,
            on_offer=self._offered,
            on_withdrawn=lambda one: self._catalog.withdraw(one.key),
            on_state=self._state_changed,
            on_updated=lambda one, uri, whose: self._pipeline.subscriptions.on_resource_update(
                one.key, uri, whose
            ),
            watched=self._pipeline.subscriptions.active_uris,
            prepare=lambda peer: self._prepare(peer, key),
            back=self._pipeline,
        )
        self.supervisors[key] = self.upstreams[key] = supervisor
        supervisor.begin()
        return supervisor

    def _forget(self, key: str) -> Supervisor:
        del self.upstreams[key]
        self.not_measured(key)
        for extension in self._extensions:
            extension.ended(key)
        return self.supervisors.pop(key)

    def _prepare(self, peer: UpstreamClient, key: str) -> None:
        for extension in self._extensions:
            extension.prepare(peer, key)

    def _resolve(self, server: ServerConfig) -> ServerConfig:
        resolved = resolve_server(server, environ=self._environ, base_dir=self._base_dir)
        if resolved.command is not None and resolved.cwd is None:
            return msgspec.structs.replace(resolved, cwd=str(self._base_dir))
        return resolved

    # -- what they offer

    def _terms(self, supervisor: Supervisor) -> OfferingTerms:
        terms: OfferingTerms = {}
        for extension in self._extensions:
            terms.update(extension.terms(supervisor))
        return terms

    def _offered(self, supervisor: Supervisor) -> None:
        offer = supervisor.offer
        offering = read_offering(
            supervisor.key,
            supervisor.server,
            offer.tools,
            prompts=offer.prompts,
            resources=offer.resources,
            templates=offer.templates,
            skills=offer.skills,
            root_segment=self._config.root_segment,
            http=supervisor.is_http,
            serves_resources="resources" in supervisor.capabilities,
            slower=self._slower.get(supervisor.key),
            unannotated=self._config.unannotated,
            **self._terms(supervisor),
        )
        for one in offering.flagged:
            _log.warning("%s: the capability of %s: %s", supervisor.key, one.name, one.reason)
        for one in offering.set_aside:
            _log.warning(
                "%s: %s %s is not shown: %s", supervisor.key, one.kind, one.name, one.reason
            )
        self._catalog.post(offering)
        self._on_shown(supervisor)
        self._on_changed()

    def _state_changed(self, supervisor: Supervisor) -> None:
        if supervisor.state is State.READY:
            self._breakers.reset(supervisor.key)
            self._on_changed()
        elif supervisor.state is State.FAILED:
            # After a restart with other settings it may never have listed the tools that it has.
            self._catalog.withdraw(supervisor.key)
        elif supervisor.state is State.DEGRADED and self._terms(supervisor):
            # A subserver's tools stay, and say that they cannot be reached now.
            self._offered(supervisor)
        if supervisor.state is State.FAILED and supervisor.dials_in:
            why = f": {supervisor.problem}" if supervisor.problem else ""
            _log.info("%s is no longer connected%s", supervisor.server.segment, why)
        elif supervisor.state is State.FAILED:
            _log.info("%s failed: %s", supervisor.key, supervisor.problem or "no reason is known")
        else:
            _log.info("%s is %s", supervisor.key, supervisor.state.value)

    def is_slower(self, upstream: str, own_name: str, latency_class: str) -> None:
        """A tool was measured to be slower than it says."""
        self._slower.setdefault(upstream, {})[own_name] = latency_class
        supervisor = self.supervisors.get(upstream)
        if supervisor is not None:
            # A call is being answered: the new list can wait for a moment.
            asyncio.get_running_loop().call_soon(self._show_again, supervisor)

    def _show_again(self, supervisor: Supervisor) -> None:
        # It may have gone in the meantime: then nothing leads to it any more.
        if self.supervisors.get(supervisor.key) is supervisor and supervisor.listed:
            self._offered(supervisor)

    def not_measured(self, upstream: str) -> None:
        """Nothing that was found out about it holds any longer."""
        self._slower.pop(upstream, None)
        self.measures.remove_upstream(upstream)

    # -- what others ask

    def read_tools(self, upstream: str, then: Callable[[], None]) -> bool:
        """Have the tools of an upstream listed again: see `ListReader.read_tools`."""
        supervisor = self.supervisors.get(upstream)
        return supervisor is not None and supervisor.read_tools(then)

    def ask_policy(self, upstream: str) -> ClientRequestPolicy:
        supervisor = self.supervisors.get(upstream)
        if supervisor is None:
            return ALLOW_ALL
        ask = supervisor.server.ask
        return ClientRequestPolicy(
            sampling=ask.sampling == "allow",
            elicitation=ask.elicitation == "allow",
            roots=ask.roots == "allow",
            max_tokens=ask.max_tokens,
        )

    def voices(self) -> list[UpstreamIntroduction]:
        """What they say about themselves."""
        return [
            UpstreamIntroduction(
                one.server.segment or key,
                _capabilities(one.peer, one.offer),
                one.peer.instructions,
                one.peer.server_info,
                one.server.expose == "transparent",
                one.peer.era is Era.SESSION,
            )
            for key, one in self.supervisors.items()
            if one.peer is not None
        ]

    def status(self) -> list[UpstreamStatus]:
        return [
            _status_of(
                one,
                self._catalog.offering(one.key),
                self._audit.by_upstream.get(one.key) or CallTotals(),
                self._breakers.state(one.key),
            )
            for one in self.supervisors.values()
        ]


def _capabilities(peer: UpstreamClient, offer: RawOffering) -> Mapping[str, Any]:
    if not peer.speaks_ax:
        return peer.capabilities
    resources = bool(offer.resources or offer.templates or offer.skills)
    return as_offered(peer.capabilities, prompts=bool(offer.prompts), resources=resources)


def _status_of(
    one: Supervisor, offering: Offering | None, tally: CallTotals, circuit: Circuit
) -> UpstreamStatus:
    """How one upstream fares now."""
    peer = one.peer
    return UpstreamStatus(
        key=one.key,
        state=one.state.value,
        since=one.since,
        problem=one.problem,
        segment=one.server.segment,
        tools=0 if offering is None else sum(not tool.counter for tool in offering.tools),
        prompts=0 if offering is None else len(offering.prompts),
        resources=0 if offering is None else len(offering.resources) + len(offering.templates),
        set_aside=[]
        if offering is None
        else [{"name": bad.name, "reason": bad.reason} for bad in offering.set_aside],
        revision="" if peer is None else peer.revision,
        restarts=one.restarts,
        lists=one.lists,
        calls=tally.calls,
        failed=tally.failed,
        busy_us=tally.busy_us,
        circuit=circuit.value,
        pid=None if peer is None else getattr(peer.link, "pid", None),
        noise=0 if peer is None else peer.noise,
        private=len(one.private),
    )
