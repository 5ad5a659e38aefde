"""The registry of a node's upstreams: it starts, shows, changes and stops them independently.

What a supervisor lists becomes an offering in the catalog. Measured latencies change how tools are
shown. Upstreams of the config and of the tree are treated alike.
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
from interlock.core.catalog.server_info import UpstreamIntroduction, offered_capabilities
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
    """The status of one upstream."""

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
    """The number of clients with a session of their own on it."""


class UpstreamRegistry(Component):
    """All upstreams of a node."""

    def __init__(
        self,
        config: Config,
        *,
        environ: Mapping[str, str] = os.environ,
        base_dir: Path,
        node_info: bytes,
        catalog: Catalog,
        breakers: Breakers,
        audit: Audit,
        bearers: BearerRegistry,
        on_shown: Callable[[Supervisor], None],
        on_changed: Callable[[], None],
    ) -> None:
        """
        Args:
            on_shown: called when the lists of a supervisor were read.
            on_changed: called when the node's description of itself may have changed.
        """
        self.supervisors: dict[str, Supervisor] = {}
        self.upstreams: dict[str, Upstream] = {}
        """The supervisors, and the upstreams that the node serves itself."""
        self._pipeline: Pipeline
        self._extensions: tuple[UpstreamExtension, ...] = ()
        self._config = config
        self._environ = environ
        self._base_dir = base_dir
        self._node_info = node_info
        self._catalog = catalog
        self._breakers = breakers
        self._audit = audit
        self.measures = LatencyMeasures(self.mark_slower)
        self._bearer_registry = bearers
        self._on_shown = on_shown
        self._on_changed = on_changed
        self._measured_classes: dict[str, dict[str, str]] = {}
        """Tools measured slower than declared: upstream → its tool name → latency class."""
        self._end_tasks: set[asyncio.Task[None]] = set()

    def attach(self, pipeline: Pipeline) -> None:
        """Set the pipeline before any upstream starts. Each of the two needs the other."""
        self._pipeline = pipeline

    def extend(self, *extensions: UpstreamExtension) -> None:
        """Add extensions before any upstream starts.

        The first extension that returns a connector for a server connects to it. All of them are
        called for all upstreams, in this order.
        """
        self._extensions += extensions

    # -- lifecycle

    def begin(self, key: str, server: ServerConfig) -> None:
        """Start connecting to a server of the config."""
        if not server.enabled:
            self._catalog.release_names(key)
            return
        self._expect(key, server)
        self._supervise(key, server, self._connector(key, server))

    def _connector(self, key: str, server: ServerConfig) -> ConnectionOpener:
        options: ConnectorOptions = {
            "node_info": self._node_info,
            "resolve": self._resolve,
            "secrets": lambda configured: secret_values(
                configured, environ=self._environ, base_dir=self._base_dir
            ),
            "clock": asyncio.get_running_loop().time,
            "bearer": self._bearer_registry.bearer(key),
        }
        for extension in self._extensions:
            connector = extension.create_connector(key, server, options)
            if connector is not None:
                return connector
        return Connector(key, server, **options)

    def _expect(self, key: str, server: ServerConfig) -> None:
        """Reserve its names: until its tools are listed, no contract may take one of them."""
        segment, root = server.segment or key, self._config.root_segment
        prefix = f"{root}.{segment}" if root else segment
        self._catalog.reserve_names(key, "" if server.expose == "transparent" else prefix)

    def open_registered(
        self, key: str, server: ServerConfig, connector: ConnectionOpener
    ) -> Supervisor:
        """Start the upstream of a subserver or of a participant of a topic."""
        return self._supervise(key, server, connector)

    def close_registered(self, key: str) -> None:
        """Remove a subserver immediately, because another one may register under its name."""
        self._catalog.withdraw(key)
        if key in self.supervisors:
            supervisor = self._remove(key)
            task = asyncio.get_running_loop().create_task(supervisor.end(), name=f"end:{key}")
            self._end_tasks.add(task)
            task.add_done_callback(self._end_tasks.discard)

    async def end(self, key: str) -> None:
        await self._remove(key).end()

    async def wait_for_first_attempt(self, seconds: float) -> None:
        """Wait until every configured upstream was tried once, or the time is over. Subservers and
        participants connect by themselves and may never come, so they are not waited for."""
        waiting = [
            asyncio.ensure_future(supervisor.wait_for_first_attempt())
            for key, supervisor in self.supervisors.items()
            if key in self._config.servers
        ]
        if waiting:
            _, unfinished = await asyncio.wait(waiting, timeout=seconds)
            for attempt in unfinished:
                attempt.cancel()

    async def stop(self) -> None:
        await asyncio.gather(
            *(supervisor.end() for supervisor in self.supervisors.values()), *self._end_tasks
        )

    async def apply(self, old: Config, new: Config) -> None:
        """Apply a new config to the upstreams that it changes."""
        self._config, config, difference = new, new, diff(old, new)
        keys = [*difference.removed, *difference.reconnect]
        await asyncio.gather(*(self.end(key) for key in keys if key in self.supervisors))
        for key in difference.removed:
            self._catalog.withdraw(key)
            self._catalog.release_names(key)
        for key in (*difference.added, *difference.reconnect):
            if not config.servers[key].enabled:
                self._catalog.withdraw(key)
            if key not in self.supervisors:
                self.begin(key, config.servers[key])
        for key in difference.changed:
            if key not in difference.reconnect and key in self.supervisors:
                self._expect(key, config.servers[key])
                self.supervisors[key].configure(config.servers[key])
        if "root_segment" in difference.live or "unannotated" in difference.live:
            for key, supervisor in self.supervisors.items():
                if key in config.servers:
                    self._expect(key, supervisor.server)
                supervisor.configure(supervisor.server)

    def _supervise(self, key: str, server: ServerConfig, connector: ConnectionOpener) -> Supervisor:
        supervisor = Supervisor(
            key,
            server,
            connector,
            on_offer=self._on_offering,
            on_withdrawn=lambda supervisor: self._catalog.withdraw(supervisor.key),
            on_state=self._state_changed,
            on_updated=lambda supervisor, uri, session_key: (
                self._pipeline.subscriptions.on_resource_update(supervisor.key, uri, session_key)
            ),
            watched=self._pipeline.subscriptions.active_uris,
            prepare=lambda upstream_client: self._prepare(upstream_client, key),
            handler=self._pipeline,
        )
        self.supervisors[key] = self.upstreams[key] = supervisor
        supervisor.begin()
        return supervisor

    def _remove(self, key: str) -> Supervisor:
        del self.upstreams[key]
        self.reset_measurements(key)
        for extension in self._extensions:
            extension.on_closed(key)
        return self.supervisors.pop(key)

    def _prepare(self, upstream_client: UpstreamClient, key: str) -> None:
        for extension in self._extensions:
            extension.prepare_connection(upstream_client, key)

    def _resolve(self, server: ServerConfig) -> ServerConfig:
        resolved = resolve_server(server, environ=self._environ, base_dir=self._base_dir)
        if resolved.command is not None and resolved.cwd is None:
            return msgspec.structs.replace(resolved, cwd=str(self._base_dir))
        return resolved

    # -- offerings

    def _terms(self, supervisor: Supervisor) -> OfferingTerms:
        terms: OfferingTerms = {}
        for extension in self._extensions:
            terms.update(extension.offering_terms(supervisor))
        return terms

    def _on_offering(self, supervisor: Supervisor) -> None:
        raw = supervisor.raw_offering
        offering = read_offering(
            supervisor.key,
            supervisor.server,
            raw.tools,
            prompts=raw.prompts,
            resources=raw.resources,
            templates=raw.templates,
            skills=raw.skills,
            root_segment=self._config.root_segment,
            http=supervisor.is_http,
            serves_resources="resources" in supervisor.capabilities,
            slower=self._measured_classes.get(supervisor.key),
            unannotated=self._config.unannotated,
            **self._terms(supervisor),
        )
        for entry in offering.metadata_problems:
            _log.warning(
                "upstream %s: the x-mcpax metadata of %s: %s",
                supervisor.key,
                entry.name,
                entry.reason,
            )
        for entry in offering.rejected:
            _log.warning(
                "upstream %s: %s %s is not shown: %s",
                supervisor.key,
                entry.kind,
                entry.name,
                entry.reason,
            )
        self._catalog.publish(offering)
        self._on_shown(supervisor)
        self._on_changed()

    def _state_changed(self, supervisor: Supervisor) -> None:
        if supervisor.state is State.READY:
            self._breakers.reset(supervisor.key)
            self._on_changed()
        elif supervisor.state is State.FAILED:
            # After a restart with other settings its tools may never have been listed.
            self._catalog.withdraw(supervisor.key)
        elif supervisor.state is State.DEGRADED and self._terms(supervisor):
            # A subserver's tools stay listed and are marked as degraded.
            self._on_offering(supervisor)
        if supervisor.state is State.FAILED and supervisor.dials_in:
            reason = f": {supervisor.problem}" if supervisor.problem else ""
            _log.info("subserver %s: no longer connected%s", supervisor.server.segment, reason)
        elif supervisor.state is State.FAILED:
            _log.info(
                "upstream %s: failed: %s", supervisor.key, supervisor.problem or "unknown reason"
            )
        else:
            _log.info("upstream %s: %s", supervisor.key, supervisor.state.value)

    def mark_slower(self, upstream: str, own_name: str, latency_class: str) -> None:
        """Record that a tool was measured slower than it declares."""
        self._measured_classes.setdefault(upstream, {})[own_name] = latency_class
        supervisor = self.supervisors.get(upstream)
        if supervisor is not None:
            # A call is being completed, so the new list is made afterwards.
            asyncio.get_running_loop().call_soon(self._refresh_offering, supervisor)

    def _refresh_offering(self, supervisor: Supervisor) -> None:
        # It may have been removed meanwhile.
        if self.supervisors.get(supervisor.key) is supervisor and supervisor.listed:
            self._on_offering(supervisor)

    def reset_measurements(self, upstream: str) -> None:
        """Discard the measurements of an upstream."""
        self._measured_classes.pop(upstream, None)
        self.measures.remove_upstream(upstream)

    # -- queries

    def read_tools(self, upstream: str, on_done: Callable[[], None]) -> bool:
        """Read the tools of an upstream again: see `ListReader.read_tools`."""
        supervisor = self.supervisors.get(upstream)
        return supervisor is not None and supervisor.read_tools(on_done)

    def client_request_policy(self, upstream: str) -> ClientRequestPolicy:
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

    def introductions(self) -> list[UpstreamIntroduction]:
        """Return what the upstreams say about themselves."""
        return [
            UpstreamIntroduction(
                supervisor.server.segment or key,
                _capabilities(supervisor.upstream_client, supervisor.raw_offering),
                supervisor.upstream_client.instructions,
                supervisor.upstream_client.server_info,
                supervisor.server.expose == "transparent",
                supervisor.upstream_client.era is Era.SESSION,
            )
            for key, supervisor in self.supervisors.items()
            if supervisor.upstream_client is not None
        ]

    def status(self) -> list[UpstreamStatus]:
        return [
            _status_of(
                supervisor,
                self._catalog.offering(supervisor.key),
                self._audit.by_upstream.get(supervisor.key) or CallTotals(),
                self._breakers.state(supervisor.key),
            )
            for supervisor in self.supervisors.values()
        ]


def _capabilities(upstream_client: UpstreamClient, raw: RawOffering) -> Mapping[str, Any]:
    if not upstream_client.speaks_ax:
        return upstream_client.capabilities
    resources = bool(raw.resources or raw.templates or raw.skills)
    return offered_capabilities(
        upstream_client.capabilities, prompts=bool(raw.prompts), resources=resources
    )


def _status_of(
    supervisor: Supervisor, offering: Offering | None, totals: CallTotals, circuit: Circuit
) -> UpstreamStatus:
    """Return the current status of one upstream."""
    upstream_client = supervisor.upstream_client
    return UpstreamStatus(
        key=supervisor.key,
        state=supervisor.state.value,
        since=supervisor.since,
        problem=supervisor.problem,
        segment=supervisor.server.segment,
        tools=0 if offering is None else sum(not tool.is_drop_counter for tool in offering.tools),
        prompts=0 if offering is None else len(offering.prompts),
        resources=0 if offering is None else len(offering.resources) + len(offering.templates),
        set_aside=[]
        if offering is None
        else [{"name": entry.name, "reason": entry.reason} for entry in offering.rejected],
        revision="" if upstream_client is None else upstream_client.revision,
        restarts=supervisor.restarts,
        lists=supervisor.lists,
        calls=totals.calls,
        failed=totals.failed,
        busy_us=totals.busy_us,
        circuit=circuit.value,
        pid=None if upstream_client is None else getattr(upstream_client.transport, "pid", None),
        noise=0 if upstream_client is None else upstream_client.noise,
        private=len(supervisor.session_pool),
    )
