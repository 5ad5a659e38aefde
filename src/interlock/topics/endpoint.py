"""The WebSocket endpoint of topics. It admits clients before the connection leaves HTTP.

Clients are authenticated by the same rules as all callers, and every attempt has one journal entry.
Only a public topic admits a client without credentials. A client with an invalid token is never
treated as a guest.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

from msgspec.structs import replace

from interlock.channels.websocket import CallLater
from interlock.core.call import Call, Client, Credentials
from interlock.core.journal.audit import OK, Audit
from interlock.core.pipeline.admission import MAX_PENDING_IDENTITIES
from interlock.core.pipeline.authentication import PendingIdentity
from interlock.core.pipeline.pipeline import Pipeline
from interlock.core.server.http.guard import Guard
from interlock.core.server.http.resource_metadata import Challenges
from interlock.core.server.http.upgrade import WebSocketRequest
from interlock.errors import (
    FORBIDDEN,
    FOREIGN_ORIGIN,
    SHUTTING_DOWN,
    UNAUTHENTICATED,
    InterlockError,
)
from interlock.protocol.mcp import LATEST_SESSION, Era
from interlock.protocol.mcpx_terms import FORBIDDEN_CODE, SHUTTING_DOWN_CODE, TOPIC_SERVER
from interlock.topics.admission import find_settings
from interlock.topics.join_request import (
    JoinCredentials,
    check_unique_headers,
    read_join_credentials,
    read_join_request,
)
from interlock.topics.member import Member, MessageLoss, ParticipantProfile, RoomBacklog
from interlock.topics.socket import TopicSocket

if TYPE_CHECKING:
    from interlock.topics.config import TopicConfig
    from interlock.topics.gateway import Gateway

JOIN_METHOD: Final = "topics/join"
_CLIENT: Final = Client(Era.SESSION, LATEST_SESSION)
_RETRY_AFTER: Final = b"Retry-After: 1\r\n"


class TopicsEndpoint:
    """Handles the upgrade requests of one path."""

    def __init__(
        self,
        gateway: Gateway,
        pipeline: Pipeline,
        *,
        guard: Guard,
        challenges: Challenges,
        audit: Audit | None = None,
        call_later: CallLater | None = None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """
        Args:
            audit: where guests are recorded.
            call_later: default: that of the running loop.
        """
        self._guard = guard
        self._challenges = challenges
        self._gateway = gateway
        self._pipeline = pipeline
        self._audit = audit
        self._call_later = call_later
        self._wall_clock = wall_clock
        self._sockets: set[TopicSocket] = set()
        self._backlogs: WeakValueDictionary[str, RoomBacklog] = WeakValueDictionary()
        """By topic. An entry lives as long as a socket of that topic."""
        self._identity_tasks: set[asyncio.Task[None]] = set()
        self._all_closed: asyncio.Future[None] | None = None

    @property
    def connections(self) -> int:
        """The number of open connections, including those that are closing."""
        return len(self._sockets)

    def handle_upgrade(self, upgrade: WebSocketRequest) -> None:
        """Admit or reject a client. The decision is made when this returns."""
        call = Call(JOIN_METHOD, TOPIC_SERVER, Credentials(upgrade.credentials.peer), _CLIENT)
        credentials = JoinCredentials()
        is_known_topic = False
        try:
            check_unique_headers(upgrade.headers)
            fields = upgrade.fields
            rejection = self._guard.find_rejection(fields.get(b"host"), fields.get(b"origin"))
            if rejection is not None:
                raise InterlockError(FOREIGN_ORIGIN, rejection)
            credentials = read_join_credentials(upgrade.headers)
            join_request = read_join_request(upgrade.query)
            settings = find_settings(self._gateway.config, join_request.topic)
            is_known_topic = settings is not None
            call = Call(
                JOIN_METHOD,
                TOPIC_SERVER,
                replace(upgrade.credentials, bearer=credentials.bearer),
                _CLIENT,
                name=join_request.topic if is_known_topic else "",
            )
            participant = self._authenticate(call, join_request.topic, credentials)
        except PendingIdentity as pending_identity:
            self._reject_for_retry(upgrade, pending_identity)
            return
        except InterlockError as error:
            # Unknown topic names are not recorded: such a name may be a misplaced token.
            unknown_topic = InterlockError(FORBIDDEN, "There is no such topic.")
            recorded_error = (
                unknown_topic if error.failure is FORBIDDEN and not is_known_topic else error
            )
            self._pipeline.record_rejection(call, recorded_error)
            self._reject(upgrade, error, credentials)
            return
        assert settings is not None
        if self._record_admission(upgrade, call, credentials, participant):
            if join_request.routing is not None:
                participant = replace(participant, routing=join_request.routing)
            self._add_member(upgrade, call, participant, settings, credentials)

    async def close(self) -> None:
        """Close all connections. Those that do not close in time are dropped."""
        for socket in list(self._sockets):
            socket.close(SHUTTING_DOWN_CODE, "The node stops.")
        for task in list(self._identity_tasks):
            task.cancel()
        if self._sockets:
            self._all_closed = asyncio.get_running_loop().create_future()
            await self._all_closed

    # -- admission

    def _authenticate(
        self, call: Call, topic: str, credentials: JoinCredentials
    ) -> ParticipantProfile:
        """Return the participant that the client would be. It is not admitted yet. Raises
        InterlockError."""
        try:
            call.caller = self._pipeline.admission.authenticate(call.credentials)
        except PendingIdentity:
            raise
        except InterlockError as error:
            has_credentials = credentials.is_present or call.credentials.certificate_names
            if has_credentials or error.failure is not UNAUTHENTICATED:
                raise
            if self._pipeline.admission.is_closed:
                raise InterlockError(SHUTTING_DOWN, "The node is shutting down.") from None
        return self._gateway.admit(topic, call.caller)

    def _record_admission(
        self,
        upgrade: WebSocketRequest,
        call: Call,
        credentials: JoinCredentials,
        participant: ParticipantProfile,
    ) -> bool:
        """Record that the client is admitted. For known callers the pipeline makes the final
        decision."""
        if call.caller is None:
            if self._audit is not None:
                # Recorded as a stranger, so that many guests do not fill the journal.
                self._audit.record(call, OK, 0, f"as {participant.id}")
            return True
        try:
            self._pipeline.admit(call)
        except PendingIdentity as pending_identity:
            self._reject_for_retry(upgrade, pending_identity)
        except InterlockError as error:
            self._reject(upgrade, error, credentials)
        else:
            return True
        return False

    def _reject(
        self, upgrade: WebSocketRequest, error: InterlockError, credentials: JoinCredentials
    ) -> None:
        status = error.failure.http
        lines = _RETRY_AFTER if status == 503 else b""
        challenge = self._challenges.challenge(error, has_token=credentials.bearer is not None)
        if challenge is not None:
            lines += b"WWW-Authenticate: %b\r\n" % challenge
        upgrade.reject(status, error.message, lines)

    def _reject_for_retry(
        self, upgrade: WebSocketRequest, pending_identity: PendingIdentity
    ) -> None:
        """Reject the client with "retry" while its issuer is asked. The next attempt finds the
        result."""
        if len(self._identity_tasks) < MAX_PENDING_IDENTITIES:
            task = asyncio.ensure_future(pending_identity.resolve())
            self._identity_tasks.add(task)
            task.add_done_callback(self._identity_tasks.discard)
        upgrade.reject(503, pending_identity.message, _RETRY_AFTER)

    # -- members

    def _add_member(
        self,
        upgrade: WebSocketRequest,
        call: Call,
        participant: ParticipantProfile,
        settings: TopicConfig,
        credentials: JoinCredentials,
    ) -> None:
        call_later = self._call_later or asyncio.get_running_loop().call_later
        backlog = self._backlogs.get(call.name)
        if backlog is None:
            backlog = self._backlogs[call.name] = RoomBacklog()

        def make(transport: Any) -> TopicSocket:
            return TopicSocket(
                transport,
                settings=settings,
                on_text=_ignore_event,
                on_disconnect=_ignore_event,
                on_resumed=_ignore_event,
                call_later=call_later,
                unread=backlog,
                guest=call.caller is None,
            )

        socket = upgrade.hand_over(make, subprotocol=credentials.subprotocol)
        self._sockets.add(socket)
        socket.on_connection_lost = partial(self._on_connection_lost, socket)
        gateway, caller = self._gateway, call.caller
        try:
            member = gateway.add_member(
                call.name, participant, socket, caller=caller, credentials=call.credentials
            )
        except InterlockError as error:
            socket.close(FORBIDDEN_CODE, error.message)
            return
        expiry = None
        if caller is not None and caller.expires_at is not None:
            remaining = max(0.0, caller.expires_at - self._wall_clock())
            expiry = call_later(remaining, partial(self._expired, member, socket))

        def on_disconnect(reason: str) -> None:
            if expiry is not None:
                expiry.cancel()
            gateway.leave(member, reason)

        def on_resumed(loss: MessageLoss) -> None:
            gateway.report_loss(member, loss)

        socket.on_text = partial(gateway.send, member)
        socket.on_disconnect = on_disconnect
        socket.on_resumed = on_resumed

    def _expired(self, member: Member, socket: TopicSocket) -> None:
        self._gateway.leave(member, "its token expired")
        socket.close(FORBIDDEN_CODE, "Your token expired: connect again with a new one.")

    def _on_connection_lost(self, socket: TopicSocket) -> None:
        self._sockets.discard(socket)
        if not self._sockets and self._all_closed is not None and not self._all_closed.done():
            self._all_closed.set_result(None)


def _ignore_event(_: object) -> None:
    """Ignore events until the member has joined: data behind the request is delivered later."""
