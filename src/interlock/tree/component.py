"""The tree component of a node: its registrar (for subservers) and its registrant (for its parent).

The component connects them with the pipeline, the catalog and the servers. Notifications of
subservers that belong to no call go to all listening clients and to the parent.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import UNSET, Raw, UnsetType

from interlock.channels.channel import MAX_MESSAGE, Channel
from interlock.channels.lines import LinesServerProtocol, open_stdio
from interlock.core.call import Call, Caller, Client, Credentials, RevokedCallers
from interlock.core.catalog.catalog import Catalog
from interlock.core.catalog.offering import OfferingTerms, read_builtin_offering
from interlock.core.catalog.server_info import capabilities_for_parent
from interlock.core.config import Config, ServerConfig
from interlock.core.feature import FeatureComponent
from interlock.core.journal.audit import Audit
from interlock.core.pipeline.admission import MAX_PENDING_IDENTITIES
from interlock.core.pipeline.authentication import PendingIdentity
from interlock.core.pipeline.pipeline import Pipeline
from interlock.core.server.http.guard import Guard
from interlock.core.server.http.router import Route, StatusDocument, WebSocketRoute
from interlock.core.server.http.upgrade import WebSocketRequest
from interlock.core.server.mcp.change_notifications import ChangeListeners
from interlock.core.server.mcp.server_info import Introduction, ServerInfo
from interlock.core.upstreams.builtin_tools import BuiltinTools
from interlock.core.upstreams.client import UpstreamClient
from interlock.core.upstreams.connection import ConnectionOpener, ConnectorOptions
from interlock.core.upstreams.extension import UpstreamExtension
from interlock.core.upstreams.notification_limits import NotificationLimiter
from interlock.core.upstreams.registry import UpstreamStatus
from interlock.core.upstreams.supervisor import Supervisor
from interlock.errors import FORBIDDEN, FOREIGN_ORIGIN, INTERNAL, InterlockError
from interlock.primitives.timestamps import format_utc
from interlock.protocol import mcpax as ax
from interlock.protocol.jsonrpc import encode_value
from interlock.protocol.mcp import LATEST_SESSION, Era
from interlock.tree.caller_tokens import CallerTokens
from interlock.tree.child_connector import ChildConnector
from interlock.tree.config import ParentConfig, SubserversConfig, resolve_parent
from interlock.tree.dial_in import DialIn
from interlock.tree.overview import (
    RouteEntry,
    SessionInfo,
    TreeNode,
    build_own_node,
    gather_tree,
    read_tree_params,
    routing_table,
)
from interlock.tree.parent_conversation import AxConversation
from interlock.tree.registrant import Registrant
from interlock.tree.registrar import Registrar
from interlock.tree.route_check import RouteCheck
from interlock.tree.socket import TreeSocket, tree_socket_path
from interlock.tree.status import TreeStatus
from interlock.tree.store import TreeStore, shared_leases_path, tree_path
from interlock.tree.subserver_record import SubserverRecord, upstream_key
from interlock.trust.budgets import Budgets
from interlock.trust.identity.component import CallerComplement
from interlock.trust.node_context import NodeContext
from interlock.trust.token_issuer import TokenIssuer

AX_PROTOCOL: Final = "ax"
STDIO: Final = "stdio:"
"""The address of a parent that started this node and uses its stdin and stdout."""
MAX_UNREGISTERED: Final = 512 * 1024
"""The maximum size in bytes of a WebSocket message before the registration. A registration with the
maximum number of subtree ids fits."""
_CLIENT: Final = Client(Era.SESSION, LATEST_SESSION, "subserver")

_log = logging.getLogger("interlock.node")

CreateUpstream = Callable[[str, ServerConfig, DialIn], Supervisor]


def subserver_socket_path(socket: Path) -> Path:
    """Return the path of the socket for local subservers, for the node with this MCP socket."""
    return socket.with_name("ax.sock")


class Tree(FeatureComponent, UpstreamExtension):
    """The tree component of a node."""

    takes_config_before_upstreams = True

    def __init__(
        self,
        config: Config,
        *,
        environ: Mapping[str, str],
        base_dir: Path,
        node_info: bytes,
        leaf: bool,
        pipeline: Pipeline,
        budgets: Budgets,
        audit: Audit,
        catalog: Catalog,
        introduce: Callable[[], Introduction],
        listeners: ChangeListeners,
        upstreams: dict[str, Any],
        create_upstream: CreateUpstream,
        end: Callable[[str], None],
        new_session: Callable[[str], None],
        configured: Callable[[], Mapping[str, ServerConfig]],
        uptime: Callable[[], float],
        upstream_status: Callable[[], list[UpstreamStatus]],
        guard: Guard,
        issuer: TokenIssuer,
        registrants: Container[str],
    ) -> None:
        """Create the component.

        Args:
            leaf: True if the node serves only one server, and accepts no registrations.
            create_upstream: creates the upstream of a subserver.
            end: removes the upstream of a subserver.
            new_session: called when a subserver has a new session, so that measured data is reset.
            configured: returns the servers of the config.
            issuer: issues the tokens for subservers.
            registrants: the callers that may be registered.
        """
        self._config = config
        self._environ = environ
        self._base_dir = base_dir
        self._leaf = leaf
        self._pipeline = pipeline
        self._budgets = budgets
        self._audit = audit
        self._catalog = catalog
        self._server_info = ServerInfo(lambda: _info_for_parent(introduce()))
        self._listeners = listeners
        self._upstreams = upstreams
        self._create_upstream = create_upstream
        self._new_session = new_session
        self._configured = configured
        self._uptime = uptime
        self._upstream_status = upstream_status
        self._tree_socket = TreeSocket(self.view)
        self._guard = guard
        self._limiters: dict[str, NotificationLimiter] = {}
        self._dropped_by_removed = 0
        self._unix_server: asyncio.Server | None = None
        self._unix_path: Path | None = None
        self._lost_keys: set[str] = set()
        self._registrants = registrants
        self._identity_tasks: set[asyncio.Future[None]] = set()
        self._sessions: dict[str, str] = {}
        """The last session id of each subserver, by upstream key."""
        loop = asyncio.get_running_loop()
        self._store = TreeStore(
            tree_path(config, environ, base_dir), leases=shared_leases_path(config, base_dir)
        )
        try:
            self.id = self._store.identity("aggregator")
        except InterlockError as error:
            _log.warning(
                "tree: %s The node uses a temporary id, which changes with a restart.",
                error.message,
            )
            # Registrations work with the temporary id.
            self._store = TreeStore(None, leases=shared_leases_path(config, base_dir))
            self.id = self._store.identity("aggregator")
        self.registrar = Registrar(
            store=self._store,
            settings=config.section(SubserversConfig),
            aggregator_id=self.id,
            node_info=node_info,
            create_upstream=self._create_subserver_upstream,
            remove_upstream=end,
            is_segment_taken=lambda segment: any(
                server.enabled and server.segment == segment for server in configured().values()
            ),
            on_change=self._on_subtree_change,
            on_granted=self._on_granted,
            on_lost=self._on_subserver_lost,
            audit=self._record_audit,
            call_later=loop.call_later,
            base_dir=base_dir,
        )
        self.registrant: Registrant | None = None
        self.own_segment = config.root_segment or ""
        """The segment of this node at its parent, or the root segment. Empty: none. An attribute,
        because it is read for every call of the parent."""
        self._builtin_tools = BuiltinTools(self._count_dropped)
        self.tokens = CallerTokens(issuer, self.registrar, lambda: self.registrant)

    def on_introduction_change(self) -> None:
        self._server_info.refresh()

    # -- lifecycle

    def on_upstreams_tried(self) -> None:
        """Start the registration with the configured parent."""
        parent = self._config.optional_section(ParentConfig)
        if parent is not None:
            self._register_with(parent)

    def register_on_stdio(self, segment: str) -> Registrant:
        """Register with the node that started this one, on stdin and stdout."""
        parent = ParentConfig(url=STDIO, segment=segment)
        return self._register_with(parent, dial=_dial_stdio, is_single_attempt=True)

    async def open_local_sockets(self, socket: Path) -> None:
        """Open the Unix sockets for local registrations and for the tree. Raises OSError."""
        await self._tree_socket.open(tree_socket_path(socket))
        if not self._config.section(SubserversConfig).enabled or self._leaf:
            return
        path = subserver_socket_path(socket)
        path.unlink(missing_ok=True)
        self._unix_server = await asyncio.get_running_loop().create_unix_server(
            lambda: LinesServerProtocol(self._accept_local, label=str(path)), path=str(path)
        )
        os.chmod(path, 0o600)
        self._unix_path = path

    async def announce_shutdown(self) -> None:
        """Deregister from the parent before the node stops, so that no more calls come."""
        if self.registrant is not None:
            await self.registrant.end()

    async def disconnect(self) -> None:
        """Disconnect all subservers."""
        if self._unix_server is not None and self._unix_path is not None:
            self._unix_server.close()
            self._unix_path.unlink(missing_ok=True)
        self._tree_socket.close()
        self.registrar.close()
        for limiter in self._limiters.values():
            limiter.close()
        self._store.close()

    def on_tokens_revoked(self, callers: RevokedCallers) -> None:
        """Disconnect the subservers of these callers."""
        self.registrar.configure(self._config.section(SubserversConfig), CallerComplement(callers))

    def check(self, config: Config) -> None:
        """Check the parent of a config. Raises ConfigError."""
        parent = config.optional_section(ParentConfig)
        if parent is not None:
            resolve_parent(parent, environ=self._environ, base_dir=self._base_dir)

    async def apply(self, old: Config, new: Config) -> None:
        config = new
        previous, self._config = self._config, new
        settings = config.section(SubserversConfig)
        self.registrar.configure(settings, self._registrants)
        if settings != previous.section(SubserversConfig):
            for key, record in self.subservers().items():
                upstream = self._upstreams.get(key)
                if isinstance(upstream, Supervisor) and key == upstream_key(record.segment):
                    upstream.configure(self._server_config(record))
        for limiter in self._limiters.values():
            limiter.configure(
                per_second=settings.notifications_per_second,
                max_waiting=settings.notifications_kept,
            )
        if config.root_segment != previous.root_segment:
            self._update_own_segment()
        parent = config.optional_section(ParentConfig)
        if parent != previous.optional_section(ParentConfig):
            if self.registrant is not None:
                await self.registrant.end()
                self.registrant = None
                self._reset_to_root()
            if parent is not None:
                self._register_with(parent)

    # -- accepting subservers

    def routes(self) -> Sequence[Route]:
        documents = (
            StatusDocument("/tree", self.view),
            StatusDocument("/routes", self.routing_table),
        )
        if not self._config.section(SubserversConfig).enabled:
            return documents
        return (
            *documents,
            WebSocketRoute(self._config.section(SubserversConfig).path, self.accept_websocket),
        )

    def accept_websocket(self, upgrade: WebSocketRequest) -> None:
        """Accept a WebSocket of a subserver, by the same rules as for callers."""
        fields = upgrade.fields
        call = Call(ax.REGISTER, AX_PROTOCOL, upgrade.credentials, _CLIENT)
        rejection = self._guard.find_rejection(fields.get(b"host"), fields.get(b"origin"))
        if rejection is not None:
            self._pipeline.record_rejection(call, InterlockError(FOREIGN_ORIGIN, rejection))
            upgrade.reject(403, rejection)
            return
        try:
            caller = self._pipeline.admit(call)
            _require_registration_permission(caller)
        except PendingIdentity as pending_identity:
            # Reject now and resolve the identity in the background, for the next attempt.
            self._resolve_identity(pending_identity)
            upgrade.reject(503, pending_identity.message, b"Retry-After: 1\r\n")
            return
        except InterlockError as error:
            challenge = b"WWW-Authenticate: Bearer\r\n" if error.failure.http == 401 else b""
            upgrade.reject(error.failure.http, error.message, challenge)
            return
        # Without tokens any local program can connect, so the node buffers little data for it.
        channel = upgrade.accept(label=upgrade.credentials.peer, max_message=MAX_UNREGISTERED)
        self.registrar.accept(channel, caller, lambda: channel.set_max_message(MAX_MESSAGE))

    def _resolve_identity(self, pending_identity: PendingIdentity) -> None:
        if len(self._identity_tasks) >= MAX_PENDING_IDENTITIES:
            return
        task = asyncio.ensure_future(pending_identity.resolve())
        self._identity_tasks.add(task)
        task.add_done_callback(self._identity_tasks.discard)

    def _accept_local(self, channel: Channel) -> None:
        call = Call(ax.REGISTER, AX_PROTOCOL, Credentials(channel.peer), _CLIENT)
        try:
            caller = self._pipeline.admit(call)
        except InterlockError as error:
            channel.close(1008, error.failure.ax_name or error.failure.name)
            return
        self.registrar.accept(channel, caller)

    # -- subservers

    def subserver(self, key: str) -> SubserverRecord | None:
        return self.registrar.subserver(key)

    def subservers(self) -> dict[str, SubserverRecord]:
        """Return the registered subservers, by upstream key."""
        return {record.key: record for record in self.registrar.subservers()}

    def routing_table(self) -> dict[str, RouteEntry]:
        """Return the routing table, in the form of the draft."""
        sessions = {
            key: SessionInfo(record.session_id, format_utc(record.registered_at))
            for key, record in self.subservers().items()
        }
        return routing_table(self._catalog.current, sessions)

    def create_connector(
        self, key: str, server: ServerConfig, options: ConnectorOptions
    ) -> ConnectionOpener | None:
        """Return the connector of a server with `transport: ax`."""
        if server.transport != "ax":
            return None
        return ChildConnector(key, server, registrar=self.registrar, **options)

    def offering_terms(self, supervisor: Supervisor) -> OfferingTerms:
        """Return how to read the tools of a registered subserver."""
        record = self.subserver(supervisor.key)
        if record is None:
            return {}
        link = self._config.section(SubserversConfig).links.get(record.segment)
        return {
            "registered": "aggregator" if record.role == "aggregator" else "leaf",
            # A subserver that registers again is ready after it has listed its tools.
            "degraded": supervisor.upstream_client is None,
            "transport_class": record.transport_class,
            "min_latency_class": None if link is None else link.min_latency_class,
        }

    def prepare_connection(self, upstream_client: UpstreamClient, key: str) -> None:
        """Forward the notifications of a subserver, within its rate limit."""
        record = self.subserver(key)
        if record is None:
            return
        upstream_client.segment = record.segment
        upstream_client.notification_limiter = self._limiter_for(record)
        upstream_client.drops_notifications = not record.offers.notifications
        upstream_client.on_notification = self.announce

    def _create_subserver_upstream(self, record: SubserverRecord, dial_in: DialIn) -> Supervisor:
        return self._create_upstream(record.key, self._server_config(record), dial_in)

    def _server_config(self, record: SubserverRecord) -> ServerConfig:
        """Create a server config for a subserver."""
        settings = self._config.section(SubserversConfig)
        link = settings.links.get(record.segment)
        return ServerConfig(
            segment=record.segment,
            grace=settings.grace,
            timeout=None if link is None else link.timeout,
        )

    def _on_granted(self, record: SubserverRecord) -> None:
        """Handle a new session, or a new budget of a session."""
        # A subserver of another caller can have the same id.
        budget_owner = f"{record.caller} {record.subserver_id}"
        self._budgets.grant(record.key, budget_owner, record.budget, record.session_id)
        self._add_own_tools()
        if self._sessions.get(record.key) != record.session_id:
            self._sessions[record.key] = record.session_id
            self._lost_keys.discard(record.key)
            self._new_session(record.key)

    def on_closed(self, key: str) -> None:
        """Remove the data of an upstream that was removed."""
        self._lost_keys.discard(key)
        self._sessions.pop(key, None)
        self._budgets.end_session(key)
        self._audit.remove_upstream(key)
        limiter = self._limiters.pop(key, None)
        if limiter is not None:
            limiter.close()
            self._dropped_by_removed += limiter.dropped

    def _on_subserver_lost(self, record: SubserverRecord, reason: str) -> None:
        if record.key in self._lost_keys:
            return
        if self.subserver(record.key) is not None:
            self._lost_keys.add(record.key)
        params = {"segment": record.segment, "subserver_id": record.subserver_id, "reason": reason}
        self.announce(ax.SUBSERVER_LOST, encode_value(params))

    def _record_audit(
        self, segment: str, caller: str, verb: str, outcome: str, detail: str
    ) -> None:
        """Record a registration, a rejection or a deregistration in the audit journal."""
        call = Call(verb, AX_PROTOCOL, Credentials(""), _CLIENT, segment, caller=Caller(caller))
        self._audit.record(call, outcome, 0, detail)

    def _on_subtree_change(self) -> None:
        if self.registrant is not None:
            self.registrant.on_subtree_changed()

    def nodes_below(self) -> dict[str, UpstreamClient]:
        """Return the connected nodes below, by upstream key."""
        return {
            key: upstream.upstream_client
            for key, record in self.subservers().items()
            if record.role == "aggregator"
            and isinstance(upstream := self._upstreams.get(key), Supervisor)
            and upstream.upstream_client is not None
        }

    async def view(self, params: Raw | UnsetType = UNSET) -> TreeNode:
        """Return the tree from this node down.

        Args:
            params: the limits of the parent's request.
        """
        timeout, levels = read_tree_params(params)
        parent_status = None if self.registrant is None else self.registrant.status()
        subservers = self.subservers()
        own_node = build_own_node(
            name=self.own_segment or "root",
            id=self.id,
            parent=None if parent_status is None else parent_status.url,
            problem=None if parent_status is None else parent_status.problem,
            since=time.time() - self._uptime(),
            under_way=len(list(self._pipeline.running_calls())),
            upstreams=self._upstream_status(),
            servers=self._configured(),
            subservers=subservers,
        )
        child_peers = {
            subservers[key].segment: upstream_client
            for key, upstream_client in self.nodes_below().items()
        }
        return await gather_tree(own_node, child_peers, timeout=timeout, levels=levels)

    def status(self) -> TreeStatus:
        parent_status = None if self.registrant is None else self.registrant.status()
        return TreeStatus(parent_status, self.notifications_dropped)

    # -- notifications of subservers

    def announce(self, method: str, params: bytes | Raw) -> None:
        """Send a notification that belongs to no call to all listening clients and the parent."""
        self._listeners.announce(method, params)
        if self.registrant is not None:
            self.registrant.send_notification(method, params)

    def _limiter_for(self, record: SubserverRecord) -> NotificationLimiter:
        limiter = self._limiters.get(record.key)
        if limiter is None:
            settings = self._config.section(SubserversConfig)
            segment = record.segment
            limiter = self._limiters[record.key] = NotificationLimiter(
                per_second=settings.notifications_per_second,
                max_waiting=settings.notifications_kept,
                clock=time.monotonic,
                call_later=asyncio.get_running_loop().call_later,
                on_overflow=lambda dropped: self.announce(
                    ax.NOTIFICATION_OVERFLOW,
                    encode_value({"segment": segment, "dropped": dropped}),
                ),
            )
        return limiter

    @property
    def notifications_dropped(self) -> int:
        """The number of dropped notifications of subservers since the start."""
        return sum(self._count_dropped().values())

    def _count_dropped(self) -> dict[str, int]:
        """Return the number of dropped notifications by subserver. Removed subservers are counted
        together, under an empty name."""
        dropped = {
            key.removeprefix("ax:"): limiter.dropped for key, limiter in self._limiters.items()
        }
        return {**dropped, "": self._dropped_by_removed} if self._dropped_by_removed else dropped

    def _add_own_tools(self) -> None:
        """Add the built-in tools of an aggregator, after the first registration."""
        if "" not in self._upstreams:
            self._upstreams[""] = self._builtin_tools
            self._update_own_segment()

    def _update_own_segment(self) -> None:
        """Update the names of the built-in tools after a change of the root segment."""
        if self.registrant is None:
            self.own_segment = self._config.root_segment or ""
        if "" in self._upstreams:
            self._catalog.publish(
                read_builtin_offering(self._config.root_segment, self._builtin_tools.definitions)
            )

    # -- the parent

    def _register_with(self, parent: ParentConfig, **options: Any) -> Registrant:
        settings = parent
        if parent.url != STDIO:
            settings = resolve_parent(parent, environ=self._environ, base_dir=self._base_dir)
        subserver_id = self.id
        if self._leaf:
            subserver_id = self._store.identity(f"leaf {parent.segment} at {parent.url}")
        self.registrant = Registrant(
            parent=settings,
            subserver_id=subserver_id,
            role="leaf" if self._leaf else "aggregator",
            create_conversation=self._create_conversation,
            subtree_ids=(lambda: None) if self._leaf else self.registrar.subtree_ids,
            on_registered=self._on_registered,
            on_lost=self._on_parent_lost,
            on_subtree_rejected=self._on_subtree_rejected,
            descendant_ids=(lambda: ()) if self._leaf else self.registrar.descendant_ids,
            on_duplicates=self.registrar.remove_duplicates,
            **options,
        )
        self.registrant.start()
        return self.registrant

    def _create_conversation(self, channel: Channel, registrant: Registrant) -> AxConversation:
        return AxConversation(
            pipeline=self._pipeline,
            server_info=self._server_info,
            listeners=self._listeners,
            send=channel.send,
            peer=channel.peer,
            identify=registrant.identity,
            tree=self.view,
            on_keys=registrant.on_keys_changed,
        )

    def _on_registered(self, result: ax.RegistrationResult) -> None:
        self.own_segment = result.assigned_segment
        self.registrar.parent_id = result.aggregator_id or None
        self.registrar.tree_id = result.tree_id or result.aggregator_id or self.id
        self.registrar.budget_cap = result.budget

    def _on_subtree_rejected(self, error: InterlockError) -> None:
        """Dismiss a subserver whose subtree the parent rejects. Otherwise the parent would end the
        registration of this complete node."""
        rejected_id = (error.data or {}).get("aggregator_id")
        self.registrar.dismiss_subtrees([rejected_id] if isinstance(rejected_id, str) else None)

    def _on_parent_lost(self, reason: str) -> None:
        self._reset_to_root()

    def _reset_to_root(self) -> None:
        """Make this node the root of its own tree, because it has no parent."""
        self.own_segment = self._config.root_segment or ""
        self.registrar.parent_id = None
        self.registrar.tree_id = self.id
        self.registrar.budget_cap = ax.SubserverBudget()


def create(context: NodeContext) -> Tree:
    """Create the tree component and connect it with the node."""
    upstreams = context.upstreams
    tree = Tree(
        context.config,
        environ=context.environ,
        base_dir=context.base_dir,
        node_info=context.node_info,
        leaf=context.leaf,
        pipeline=context.pipeline,
        budgets=context.authorizer.budgets,
        audit=context.audit,
        catalog=context.catalog,
        introduce=context.introduce,
        listeners=context.change_listeners,
        upstreams=upstreams.upstreams,
        create_upstream=upstreams.open_registered,
        end=upstreams.close_registered,
        new_session=upstreams.reset_measurements,
        configured=lambda: context.current_config().servers,
        uptime=context.uptime,
        upstream_status=upstreams.status,
        guard=context.guard,
        issuer=context.tokens,
        registrants=context.identity.registrants,
    )
    context.place.id = tree.id
    context.place.nodes_below = tree.nodes_below
    context.pipeline.route_check = RouteCheck(lambda: tree.own_segment)
    context.authorizer.limit_scopes(tree.registrar.grants.limits)
    context.identity.minted = tree.tokens.read
    upstreams.extend(tree, tree.tokens)
    return tree


def _require_registration_permission(caller: Caller) -> None:
    if not caller.can_register:
        raise InterlockError(
            FORBIDDEN,
            f"The token of {caller.name} has no permission to register. Add `may: [register]` to "
            "the token.",
        )


def _info_for_parent(introduction: Introduction) -> Introduction:
    return Introduction(
        introduction.server_info,
        capabilities_for_parent(introduction.capabilities),
        introduction.instructions,
    )


async def _dial_stdio(url: str, **_: Any) -> Channel:
    try:
        return await open_stdio()
    except (OSError, ValueError) as error:
        raise InterlockError(
            INTERNAL, f"Cannot use stdin and stdout of this process: {error}."
        ) from None
