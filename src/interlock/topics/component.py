"""The topics component of a node: the gateway, its endpoint and admin API, and the node's own
participants."""

from __future__ import annotations

import asyncio
import resource
import time
import uuid
from collections.abc import Callable, Container, Sequence

from interlock.core.call import RevokedCallers
from interlock.core.catalog.catalog import Catalog
from interlock.core.config import Config
from interlock.core.feature import FeatureComponent
from interlock.core.journal.audit import Audit
from interlock.core.pipeline.authentication import PendingIdentity
from interlock.core.pipeline.pipeline import Pipeline
from interlock.core.ports import Recorder
from interlock.core.server.http.guard import Guard
from interlock.core.server.http.resource_metadata import Challenges
from interlock.core.server.http.router import Route, WebSocketRoute
from interlock.core.server.http.upgrade import WebSocketRequest
from interlock.core.server.mcp.server_info import ServerInfo
from interlock.core.upstreams.registry import UpstreamRegistry
from interlock.errors import InterlockError
from interlock.protocol.mcpx_terms import GUEST
from interlock.topics.admin_api import AdminApp
from interlock.topics.config import TopicsConfig
from interlock.topics.endpoint import TopicsEndpoint
from interlock.topics.gateway import Gateway
from interlock.topics.member import Member
from interlock.topics.node_participant import NodeParticipant
from interlock.topics.overview import TopicsStatus, TopicStatus
from interlock.topics.participant_upstream import RoomUpstreams
from interlock.topics.proposals import MAX_FULFILMENTS, Fulfilments
from interlock.topics.recorder import add_recorder
from interlock.topics.room import Room
from interlock.topics.socket import format_now
from interlock.trust.approvals.service import Approvals
from interlock.trust.node_context import NodeContext


class Topics(FeatureComponent):
    """The topics of one node."""

    def __init__(
        self,
        config: Config,
        *,
        pipeline: Pipeline,
        catalog: Catalog,
        audit: Audit,
        approvals: Approvals | None,
        server_info: ServerInfo,
        node_info: bytes,
        upstreams: UpstreamRegistry,
        guard: Guard,
        challenges: Challenges,
        recorder: Recorder | None,
        origin: Callable[[], str | None],
    ) -> None:
        """
        Args:
            origin: returns scheme, host and port at which the node listens.
        """
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._pipeline = pipeline
        self._catalog = catalog
        self._audit = audit
        self._approvals = approvals
        self._server_info = server_info
        self._node_info = node_info
        self._registry = upstreams
        self._recorder = recorder
        self._origin = origin
        self._participants: dict[str, NodeParticipant] = {}
        self._fulfilments: dict[str, Fulfilments] = {}
        """By room: calls under way, kept when a new config replaces the node's participant
        there."""
        self._upstreams: dict[str, RoomUpstreams] = {}
        self._guard = guard
        self._challenges = challenges
        self._path = config.section(TopicsConfig).path
        """Rooms may change at run time. Another path needs a restart."""
        self.gateway = Gateway(
            config.section(TopicsConfig),
            call_soon=loop.call_soon,
            new_id=_new_id,
            now=format_now,
            on_open=self._on_room_open,
            on_close=self._on_room_close,
            max_connections=resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2,
            audit=audit,
        )
        self.endpoint = TopicsEndpoint(
            self.gateway, pipeline, guard=guard, challenges=challenges, audit=audit
        )
        self._started = False
        self._identity_tasks: set[asyncio.Task[None]] = set()

    # -- lifecycle

    def start(self) -> None:
        """Open the rooms in which the node takes part. Does nothing when called again."""
        if not self._started:
            self._started = True
            self.gateway.start()

    async def disconnect(self) -> None:
        """Tell all members that the node stops, and disconnect them."""
        for task in list(self._identity_tasks):
            task.cancel()
        self.gateway.close()
        await self.endpoint.close()

    def routes(self) -> Sequence[Route]:
        app = AdminApp(
            self.gateway,
            guard=self._guard,
            challenges=self._challenges,
            authenticate=lambda credentials: self._pipeline.admission.authenticate(credentials),
            on_rejected=self._pipeline.record_rejection,
            audit=self._audit,
        )
        socket_route = WebSocketRoute(
            self._path, self.handle_upgrade, title="topics", is_available=self._has_rooms
        )
        return (socket_route, *app.routes())

    def handle_upgrade(self, upgrade: WebSocketRequest) -> None:
        """Accept or reject a client that wants to join."""
        if self._has_rooms():
            self.endpoint.handle_upgrade(upgrade)
        else:
            upgrade.reject(404, "This node has no topics.")

    def _has_rooms(self) -> bool:
        return bool(self.gateway.config.rooms)

    def url(self, origin: str | None) -> str | None:
        """Return the URL of the topics of a node with this origin. None if it has no topics."""
        if origin is None or not self._has_rooms():
            return None
        return f"ws{origin.removeprefix('http')}{self._path}"

    # -- change

    async def apply(self, old: Config, new: Config) -> None:
        """Apply a new config: authenticate every member again and check its permissions."""
        for member in self.gateway.connected_members():
            if member.caller.kind == GUEST:
                continue
            try:
                self._authenticate(member)
            except PendingIdentity as pending_identity:
                # The issuer must be asked first. The member keeps its identity until then.
                task = asyncio.ensure_future(self._retry_authenticate(member, pending_identity))
                self._identity_tasks.add(task)
                task.add_done_callback(self._identity_tasks.discard)
        self.gateway.configure(new.section(TopicsConfig))

    def _authenticate(self, member: Member) -> None:
        """Authenticate a member again by its credentials. Raises PendingIdentity."""
        try:
            caller = self._pipeline.admission.authenticate(member.credentials)
        except PendingIdentity:
            raise
        except InterlockError as error:
            self.gateway.disconnect_member(member, error.message)
        else:
            self.gateway.update_caller(member, caller)

    async def _retry_authenticate(self, member: Member, pending_identity: PendingIdentity) -> None:
        """Authenticate a member again after its issuer has responded."""
        try:
            await pending_identity.resolve()
            self._authenticate(member)
        except InterlockError as error:
            # The identity cannot be verified: treated like a new connection.
            self.gateway.disconnect_member(member, error.message)
        else:
            self.gateway.recheck(member)

    def on_tokens_revoked(self, callers: RevokedCallers) -> None:
        self.gateway.disconnect(callers)

    def on_tokens_expired(self, callers: Container[str]) -> None:
        self.gateway.disconnect(callers)

    # -- status

    def status(self) -> TopicsStatus:
        """Return the open rooms."""
        rooms = {
            name: TopicStatus(len(room.members), room.rejected)
            for name, room in self.gateway.rooms.items()
        }
        return TopicsStatus(rooms, self.url(self._origin()))

    # -- participants of the node itself

    def _on_room_open(self, room: Room) -> None:
        settings, loop = room.settings, self._loop
        if settings.record != "off" and self._recorder is not None:
            with_payloads = settings.record == "full"
            add_recorder(
                self.gateway, room, self._recorder, time.time_ns, with_payloads=with_payloads
            )
        if settings.node is None:
            return
        participant = self._participants[room.name] = NodeParticipant(
            self.gateway,
            room,
            id=settings.node,
            pipeline=self._pipeline,
            approvals=self._approvals,
            server_info=self._server_info,
            catalog=self._catalog,
            audit=self._audit,
            call_soon=loop.call_soon,
            new_id=_new_id,
            now=format_now,
            fulfilments=self._fulfilments.setdefault(room.name, Fulfilments(MAX_FULFILMENTS)),
        )
        if settings.upstreams:
            upstreams = self._upstreams[room.name] = RoomUpstreams(
                room.name,
                settings.upstreams,
                node_info=self._node_info,
                send_message=participant.send,
                start_upstream=self._registry.open_registered,
                remove_upstream=self._registry.close_registered,
                call_later=loop.call_later,
            )
            participant.add_listener(upstreams.handle_message, participants=settings.upstreams)

    def _on_room_close(self, room: Room) -> None:
        upstreams = self._upstreams.pop(room.name, None)
        if upstreams is not None:
            upstreams.close()
        participant = self._participants.pop(room.name, None)
        if participant is not None:
            participant.close()
        if self.gateway.rooms.get(room.name) is not room:
            self._fulfilments.pop(room.name, None)


def create(context: NodeContext) -> Topics:
    return Topics(
        context.config,
        pipeline=context.pipeline,
        catalog=context.catalog,
        audit=context.audit,
        approvals=context.approving.approvals,
        server_info=context.server_info,
        node_info=context.node_info,
        upstreams=context.upstreams,
        guard=context.guard,
        challenges=context.challenges,
        recorder=context.recorder,
        origin=context.origin,
    )


def _new_id() -> str:
    return str(uuid.uuid4())
