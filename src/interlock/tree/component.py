"""A node's place in a tree: who is registered with it, and with whom it is registered itself.

The registrar (below) and the registrant (above) know how to speak; here they are put together with
the pipeline, the catalog and the faces. What comes up from below and is about no call goes to the
clients that listen, and to the parent.
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
    gather,
    own_part,
    read_asked,
    routing_table,
)
from interlock.tree.parent_conversation import AxConversation
from interlock.tree.registrant import Registrant
from interlock.tree.registrar import Registrar
from interlock.tree.route_check import RouteCheck
from interlock.tree.socket import TreeSocket, tree_socket_path
from interlock.tree.status import TreeStatus
from interlock.tree.store import TreeStore, shared_leases_path, tree_path
from interlock.tree.subserver_record import SubserverRecord, key_of
from interlock.trust.budgets import Budgets
from interlock.trust.identity.component import CallerComplement
from interlock.trust.node_context import NodeContext
from interlock.trust.token_issuer import TokenIssuer

AX_FACE: Final = "ax"
STDIO: Final = "stdio:"
"""The address of a parent that started this node, and speaks to it on stdin and stdout."""
MAX_UNREGISTERED: Final = 512 * 1024
"""Of a message over WebSocket before its sender is registered: a registration that names as many
nodes below as there may be."""
_CLIENT: Final = Client(Era.SESSION, LATEST_SESSION, "subserver")

_log = logging.getLogger("interlock.node")

Begin = Callable[[str, ServerConfig, DialIn], Supervisor]


def subserver_socket_path(socket: Path) -> Path:
    """Where subservers of this machine dial in, for the node whose MCP socket this is."""
    return socket.with_name("ax.sock")


class Tree(FeatureComponent, UpstreamExtension):
    """Everything of a node that is about its tree."""

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
        begin: Begin,
        end: Callable[[str], None],
        new_session: Callable[[str], None],
        configured: Callable[[], Mapping[str, ServerConfig]],
        uptime: Callable[[], float],
        upstream_status: Callable[[], list[UpstreamStatus]],
        guard: Guard,
        issuer: TokenIssuer,
        registrants: Container[str],
    ) -> None:
        """`leaf`: it stands for one server only, and nobody registers with it. `begin` and `end`
        are about the upstream of a subserver; `new_session`: nothing that was found out about it
        holds any longer. `configured` gives the servers of the config. `issuer` makes the tokens
        for subservers. `registrants`: callers who may be registered here."""
        self._config = config
        self._environ = environ
        self._base_dir = base_dir
        self._leaf = leaf
        self._pipeline = pipeline
        self._budgets = budgets
        self._audit = audit
        self._catalog = catalog
        self._hello = ServerInfo(lambda: _to_parent(introduce()))
        self._listeners = listeners
        self._upstreams = upstreams
        self._begin = begin
        self._new_session = new_session
        self._configured = configured
        self._uptime = uptime
        self._upstream_status = upstream_status
        self._told = TreeSocket(self.view)
        self._guard = guard
        self._paces: dict[str, NotificationLimiter] = {}
        self._dropped_by_gone = 0
        self._unix: asyncio.Server | None = None
        self._unix_path: Path | None = None
        self._lost: set[str] = set()
        self._registrants = registrants
        self._settling: set[asyncio.Future[None]] = set()
        self._sessions: dict[str, str] = {}
        """Which session each subserver had last, by key."""
        loop = asyncio.get_running_loop()
        self._store = TreeStore(
            tree_path(config, environ, base_dir), leases=shared_leases_path(config, base_dir)
        )
        try:
            self.id = self._store.identity("aggregator")
        except InterlockError as error:
            _log.warning("%s After a restart this node is another one to its tree.", error.message)
            # Who registers is no worse off for it.
            self._store = TreeStore(None, leases=shared_leases_path(config, base_dir))
            self.id = self._store.identity("aggregator")
        self.registrar = Registrar(
            store=self._store,
            settings=config.section(SubserversConfig),
            aggregator_id=self.id,
            node_info=node_info,
            begin=self._subserver_begins,
            end=end,
            taken=lambda segment: any(
                one.enabled and one.segment == segment for one in configured().values()
            ),
            on_change=self._below_changed,
            on_granted=self._granted,
            on_lost=self._subserver_lost,
            audit=self._decided,
            call_later=loop.call_later,
            base_dir=base_dir,
        )
        self.registrant: Registrant | None = None
        self.own_segment = config.root_segment or ""
        """What the parent calls this node, or the root itself. Empty: it has no name. An attribute,
        as every call from a parent is held against it."""
        self._own = BuiltinTools(self._dropped)
        self.tokens = CallerTokens(issuer, self.registrar, lambda: self.registrant)

    def on_introduction_change(self) -> None:
        self._hello.refresh()

    # -- life

    def on_upstreams_tried(self) -> None:
        """Look for the parent, if there is to be one."""
        parent = self._config.optional_section(ParentConfig)
        if parent is not None:
            self._register_with(parent)

    def register_on_stdio(self, segment: str) -> Registrant:
        """Be the child of the node that started this one."""
        parent = ParentConfig(url=STDIO, segment=segment)
        return self._register_with(parent, dial=_dial_stdio, once=True)

    async def open_local_sockets(self, socket: Path) -> None:
        """Open the Unix sockets by which this user's programs register, and read the tree. Raises
        OSError."""
        await self._told.open(tree_socket_path(socket))
        if not self._config.section(SubserversConfig).enabled or self._leaf:
            return
        path = subserver_socket_path(socket)
        path.unlink(missing_ok=True)
        self._unix = await asyncio.get_running_loop().create_unix_server(
            lambda: LinesServerProtocol(self._connected, label=str(path)), path=str(path)
        )
        os.chmod(path, 0o600)
        self._unix_path = path

    async def announce_shutdown(self) -> None:
        """The node stops: its parent is told first, so that nobody is sent here any more."""
        if self.registrant is not None:
            await self.registrant.end()

    async def disconnect(self) -> None:
        """Send away who is registered here."""
        if self._unix is not None and self._unix_path is not None:
            self._unix.close()
            self._unix_path.unlink(missing_ok=True)
        self._told.close()
        self.registrar.close()
        for pace in self._paces.values():
            pace.close()
        self._store.close()

    def on_tokens_revoked(self, callers: RevokedCallers) -> None:
        """Send away who was let in as one of these callers."""
        self.registrar.configure(self._config.section(SubserversConfig), CallerComplement(callers))

    def check(self, config: Config) -> None:
        """Raises ConfigError when the parent of a config cannot be used."""
        parent = config.optional_section(ParentConfig)
        if parent is not None:
            resolve_parent(parent, environ=self._environ, base_dir=self._base_dir)

    async def apply(self, old: Config, new: Config) -> None:
        config = new
        before, self._config = self._config, new
        settings = config.section(SubserversConfig)
        self.registrar.configure(settings, self._registrants)
        if settings != before.section(SubserversConfig):
            for key, info in self.subservers().items():
                upstream = self._upstreams.get(key)
                if isinstance(upstream, Supervisor) and key == key_of(info.segment):
                    upstream.configure(self._server_of(info))
        for pace in self._paces.values():
            pace.configure(
                per_second=settings.notifications_per_second,
                max_waiting=settings.notifications_kept,
            )
        if config.root_segment != before.root_segment:
            self._name_itself()
        parent = config.optional_section(ParentConfig)
        if parent != before.optional_section(ParentConfig):
            if self.registrant is not None:
                await self.registrant.end()
                self.registrant = None
                self._without_parent()
            if parent is not None:
                self._register_with(parent)

    # -- who dials in

    def routes(self) -> Sequence[Route]:
        documents = (
            StatusDocument("/tree", self.view),
            StatusDocument("/routes", self.routing_table),
        )
        if not self._config.section(SubserversConfig).enabled:
            return documents
        return (
            *documents,
            WebSocketRoute(self._config.section(SubserversConfig).path, self.dialled_in),
        )

    def dialled_in(self, upgrade: WebSocketRequest) -> None:
        """Somebody wants a channel: let in by the same rules as callers are."""
        fields = upgrade.fields
        call = Call(ax.REGISTER, AX_FACE, upgrade.credentials, _CLIENT)
        refusal = self._guard.refusal(fields.get(b"host"), fields.get(b"origin"))
        if refusal is not None:
            self._pipeline.record_rejection(call, InterlockError(FOREIGN_ORIGIN, refusal))
            upgrade.refuse(403, refusal)
            return
        try:
            caller = self._pipeline.admit(call)
            _must_register(caller)
        except PendingIdentity as unsettled:
            # It is decided now or never; who dials again is known by then.
            self._settle(unsettled)
            upgrade.refuse(503, unsettled.message, b"Retry-After: 1\r\n")
            return
        except InterlockError as error:
            challenge = b"WWW-Authenticate: Bearer\r\n" if error.failure.http == 401 else b""
            upgrade.refuse(error.failure.http, error.message, challenge)
            return
        # Without tokens anybody on this machine gets here: the node keeps little for them.
        channel = upgrade.accept(label=upgrade.credentials.peer, max_message=MAX_UNREGISTERED)
        self.registrar.accept(channel, caller, lambda: channel.set_max_message(MAX_MESSAGE))

    def _settle(self, unsettled: PendingIdentity) -> None:
        if len(self._settling) >= MAX_PENDING_IDENTITIES:
            return
        task = asyncio.ensure_future(unsettled.resolve())
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)

    def _connected(self, channel: Channel) -> None:
        call = Call(ax.REGISTER, AX_FACE, Credentials(channel.peer), _CLIENT)
        try:
            caller = self._pipeline.admit(call)
        except InterlockError as error:
            channel.close(1008, error.failure.ax_name or error.failure.name)
            return
        self.registrar.accept(channel, caller)

    # -- what is below

    def subserver(self, key: str) -> SubserverRecord | None:
        return self.registrar.subserver(key)

    def subservers(self) -> dict[str, SubserverRecord]:
        """By the key of their upstreams."""
        return {one.key: one for one in self.registrar.subservers()}

    def routing_table(self) -> dict[str, RouteEntry]:
        """The routing table, as the draft writes it."""
        sessions = {
            key: SessionInfo(info.session_id, format_utc(info.registered_at))
            for key, info in self.subservers().items()
        }
        return routing_table(self._catalog.current, sessions)

    def create_connector(
        self, key: str, server: ServerConfig, options: ConnectorOptions
    ) -> ConnectionOpener | None:
        """What starts a child that registers (`transport: ax`)."""
        if server.transport != "ax":
            return None
        return ChildConnector(key, server, registrar=self.registrar, **options)

    def offering_terms(self, supervisor: Supervisor) -> OfferingTerms:
        """How the offer of a registered subserver is read."""
        info = self.subserver(supervisor.key)
        if info is None:
            return {}
        link = self._config.section(SubserversConfig).links.get(info.segment)
        return {
            "registered": "aggregator" if info.role == "aggregator" else "leaf",
            # Who comes back lists first, and is ready then.
            "degraded": supervisor.peer is None,
            "transport_class": info.transport_class,
            "min_latency_class": None if link is None else link.min_latency_class,
        }

    def prepare_connection(self, peer: UpstreamClient, key: str) -> None:
        """Hear what a subserver says, at the pace that it may."""
        info = self.subserver(key)
        if info is None:
            return
        peer.segment = info.segment
        peer.notification_limiter = self._pace(info)
        peer.mute = not info.offers.notifications
        peer.on_notification = self.announce

    def _subserver_begins(self, info: SubserverRecord, dial_in: DialIn) -> Supervisor:
        return self._begin(info.key, self._server_of(info), dial_in)

    def _server_of(self, info: SubserverRecord) -> ServerConfig:
        """What the config would say of it."""
        settings = self._config.section(SubserversConfig)
        link = settings.links.get(info.segment)
        return ServerConfig(
            segment=info.segment,
            grace=settings.grace,
            timeout=None if link is None else link.timeout,
        )

    def _granted(self, info: SubserverRecord) -> None:
        """A new session, or a new budget for the one that there is."""
        # Another caller's subserver may have the same id.
        whose = f"{info.caller} {info.subserver_id}"
        self._budgets.grant(info.key, whose, info.budget, info.session_id)
        self._show_own_tools()
        if self._sessions.get(info.key) != info.session_id:
            self._sessions[info.key] = info.session_id
            self._lost.discard(info.key)
            self._new_session(info.key)

    def on_closed(self, key: str) -> None:
        """An upstream is no more."""
        self._lost.discard(key)
        self._sessions.pop(key, None)
        self._budgets.end_session(key)
        self._audit.remove_upstream(key)
        pace = self._paces.pop(key, None)
        if pace is not None:
            pace.close()
            self._dropped_by_gone += pace.dropped

    def _subserver_lost(self, info: SubserverRecord, reason: str) -> None:
        if info.key in self._lost:
            return
        if self.subserver(info.key) is not None:
            self._lost.add(info.key)
        told = {"segment": info.segment, "subserver_id": info.subserver_id, "reason": reason}
        self.announce(ax.SUBSERVER_LOST, encode_value(told))

    def _decided(self, segment: str, caller: str, verb: str, outcome: str, detail: str) -> None:
        """Who registered, who was refused, who left, and why: all that is recorded."""
        call = Call(verb, AX_FACE, Credentials(""), _CLIENT, segment, caller=Caller(caller))
        self._audit.record(call, outcome, 0, detail)

    def _below_changed(self) -> None:
        if self.registrant is not None:
            self.registrant.changed()

    def nodes_below(self) -> dict[str, UpstreamClient]:
        """The nodes that are registered here now, by the keys of their upstreams."""
        return {
            key: upstream.peer
            for key, info in self.subservers().items()
            if info.role == "aggregator"
            and isinstance(upstream := self._upstreams.get(key), Supervisor)
            and upstream.peer is not None
        }

    async def view(self, params: Raw | UnsetType = UNSET) -> TreeNode:
        """The tree from this node down. `params`: how far and how long a parent wants to look."""
        within, levels = read_asked(params)
        above = None if self.registrant is None else self.registrant.status()
        subservers = self.subservers()
        own = own_part(
            name=self.own_segment or "root",
            id=self.id,
            parent=None if above is None else above.url,
            problem=None if above is None else above.problem,
            since=time.time() - self._uptime(),
            under_way=len(list(self._pipeline.running_calls())),
            upstreams=self._upstream_status(),
            servers=self._configured(),
            subservers=subservers,
        )
        below = {subservers[key].segment: peer for key, peer in self.nodes_below().items()}
        return await gather(own, below, within=within, levels=levels)

    def status(self) -> TreeStatus:
        above = None if self.registrant is None else self.registrant.status()
        return TreeStatus(above, self.notifications_dropped)

    # -- what comes up

    def announce(self, method: str, params: bytes | Raw) -> None:
        """What is about no call goes to everybody who listens, and to the parent."""
        self._listeners.announce(method, params)
        if self.registrant is not None:
            self.registrant.tell(method, params)

    def _pace(self, info: SubserverRecord) -> NotificationLimiter:
        pace = self._paces.get(info.key)
        if pace is None:
            settings = self._config.section(SubserversConfig)
            segment = info.segment
            pace = self._paces[info.key] = NotificationLimiter(
                per_second=settings.notifications_per_second,
                max_waiting=settings.notifications_kept,
                clock=time.monotonic,
                call_later=asyncio.get_running_loop().call_later,
                on_overflow=lambda dropped: self.announce(
                    ax.NOTIFICATION_OVERFLOW,
                    encode_value({"segment": segment, "dropped": dropped}),
                ),
            )
        return pace

    @property
    def notifications_dropped(self) -> int:
        """How many notifications of subservers were dropped since the start."""
        return sum(self._dropped().values())

    def _dropped(self) -> dict[str, int]:
        """How many notifications of each subserver nobody will ever hear. Those who are gone have
        no name any more."""
        dropped = {key.removeprefix("ax:"): pace.dropped for key, pace in self._paces.items()}
        return {**dropped, "": self._dropped_by_gone} if self._dropped_by_gone else dropped

    def _show_own_tools(self) -> None:
        """A node with which somebody has registered is an aggregator, and has a tool of its own."""
        if "" not in self._upstreams:
            self._upstreams[""] = self._own
            self._name_itself()

    def _name_itself(self) -> None:
        """The root segment may be another one."""
        if self.registrant is None:
            self.own_segment = self._config.root_segment or ""
        if "" in self._upstreams:
            self._catalog.publish(
                read_builtin_offering(self._config.root_segment, self._own.definitions)
            )

    # -- what is above

    def _register_with(self, parent: ParentConfig, **how: Any) -> Registrant:
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
            converse=self._converse,
            subtree_ids=(lambda: None) if self._leaf else self.registrar.subtree_ids,
            on_registered=self._registered,
            on_lost=self._parent_lost,
            on_refused=self._refused_above,
            descendant_ids=(lambda: ()) if self._leaf else self.registrar.descendant_ids,
            on_duplicates=self.registrar.drop_duplicates,
            **how,
        )
        self.registrant.begin()
        return self.registrant

    def _converse(self, channel: Channel, registrant: Registrant) -> AxConversation:
        return AxConversation(
            pipeline=self._pipeline,
            hello=self._hello,
            listeners=self._listeners,
            send=channel.send,
            peer=channel.peer,
            identify=registrant.identity,
            tree=self.view,
            on_keys=registrant.keys_changed,
        )

    def _registered(self, granted: ax.RegistrationResult) -> None:
        self.own_segment = granted.assigned_segment
        self.registrar.parent_id = granted.aggregator_id or None
        self.registrar.tree_id = granted.tree_id or granted.aggregator_id or self.id
        self.registrar.budget_cap = granted.budget

    def _refused_above(self, error: InterlockError) -> None:
        """Somebody below brought an id that the parent cannot have there: rather that one goes than
        this node with all of them."""
        named = (error.data or {}).get("aggregator_id")
        self.registrar.dismiss_bringers([named] if isinstance(named, str) else None)

    def _parent_lost(self, reason: str) -> None:
        self._without_parent()

    def _without_parent(self) -> None:
        """Nobody above: it is the root of what is left."""
        self.own_segment = self._config.root_segment or ""
        self.registrar.parent_id = None
        self.registrar.tree_id = self.id
        self.registrar.budget_cap = ax.SubserverBudget()


def create(context: NodeContext) -> Tree:
    """The tree of a node, which tells the node its place."""
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
        begin=upstreams.open_registered,
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


def _must_register(caller: Caller) -> None:
    if not caller.can_register:
        raise InterlockError(
            FORBIDDEN,
            f"The token of {caller.name} is not for registering: `may: [register]` lets it.",
        )


def _to_parent(own: Introduction) -> Introduction:
    return Introduction(
        own.server_info, capabilities_for_parent(own.capabilities), own.instructions
    )


async def _dial_stdio(url: str, **_: Any) -> Channel:
    try:
        return await open_stdio()
    except (OSError, ValueError) as error:
        raise InterlockError(
            INTERNAL, f"This process's stdin and stdout cannot be used: {error}."
        ) from None
