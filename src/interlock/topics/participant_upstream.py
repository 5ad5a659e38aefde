"""Participants of a topic as upstreams of the node: their transport, connector and lifetime.

The node cannot dial a participant, only wait for it. The gateway tells who is in the room and what
they may send. Participants need no handshake: one that does not respond to `initialize`, or may
not, is treated as a server with tools only.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol

import msgspec
from msgspec import UNSET, Raw

from interlock.core.catalog.definitions import is_tool_included
from interlock.core.config.model import AskConfig, ServerConfig
from interlock.core.config.quantities import default_segment
from interlock.core.upstreams.client import UpstreamClient
from interlock.core.upstreams.listing import KINDS, RawOffering
from interlock.core.upstreams.negotiation import negotiate_revision
from interlock.core.upstreams.transports.transport import (
    EarlyReceiver,
    SingleChannel,
    TransportReceiver,
    TransportRequest,
)
from interlock.errors import (
    PAYLOAD_TOO_LARGE,
    UPSTREAM_LOST,
    UPSTREAM_PROTOCOL,
    UPSTREAM_UNAVAILABLE,
    InterlockError,
    ProtocolError,
)
from interlock.primitives.backoff import Backoff
from interlock.protocol import jsonrpc, mcp
from interlock.protocol.kinds import CONTEXT_MEMBER, REQUEST, RESPONSE, KindGrants, request_kind
from interlock.protocol.kinds import MAX_KIND_LENGTH as LONGEST_KIND
from interlock.protocol.mcpax import HOPS
from interlock.protocol.mcpx_terms import (
    GATEWAY,
    JOIN,
    LEAVE,
    MAX_ENVELOPE_BYTES,
    PRESENCE,
    REVISION,
    WELCOME,
)
from interlock.topics.config import ParticipantUpstream
from interlock.topics.wire.envelope import EnvelopeError, EnvelopeHeader, read_envelope

# -- The transport to one participant of a topic: JSON-RPC in envelopes.
#
# Every member of a room can send anything to the node and sees its requests. So a response counts
# only if it matches its request completely: sender, envelope id, kind and JSON-RPC id. Other
# messages are ignored.
#
# It uses no socket: it sends with a function, and received messages are passed in.

MessageSender = Callable[[str, bytes, Sequence[str], str | None], str]
"""Sends a message to the room: kind, payload, recipients, correlation id. Returns the envelope id;
an empty id or InterlockError means that it was not sent."""

ENVELOPE_OVERHEAD_BYTES: Final = 8 * 1024
"""The maximum size of an envelope beside its payload: kind, ids, times."""

_NOTIFICATION_KINDS: Final = frozenset(
    f"{REQUEST}:{method}"
    for method in (
        mcp.TOOLS_CHANGED,
        mcp.PROMPTS_CHANGED,
        mcp.RESOURCES_CHANGED,
        mcp.RESOURCE_UPDATED,
        mcp.PROGRESS,
        mcp.LOG_MESSAGE,
    )
)
"""Notifications of a server that are accepted. Requests of the participant are not handled here."""


class _ObjectName(msgspec.Struct, frozen=True, gc=False):
    name: str = ""
    uri: str = ""


class _OutgoingMessage(msgspec.Struct, gc=False):
    """The parts of a message that determine the kind of its envelope. The message is the node's
    own."""

    method: str
    params: _ObjectName = _ObjectName()


class _CancelledParams(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    request_id: int = -1


class _CancelledNotification(msgspec.Struct, gc=False):
    params: _CancelledParams = _CancelledParams()


_decode_outgoing = msgspec.json.Decoder(_OutgoingMessage).decode
_decode_cancelled = msgspec.json.Decoder(_CancelledNotification).decode


def read_kind_and_method(payload: bytes) -> tuple[str, str]:
    """Return the kind for one of the node's own requests or notifications, and its method."""
    message = _decode_outgoing(payload)
    member = CONTEXT_MEMBER.get(message.method)
    context = "" if member is None else getattr(message.params, member)
    return request_kind(message.method, context), message.method


class ParticipantTransport(SingleChannel):
    """Sends the requests of one client to one participant."""

    receiver: TransportReceiver

    def __init__(self, label: str, participant: str, send_message: MessageSender) -> None:
        self.label = label
        self.participant = participant
        self.receiver = EarlyReceiver()
        self._to = (participant,)
        self._send_message = send_message
        self._pending: dict[str, tuple[TransportRequest, str]] = {}
        """Pending requests by envelope id, with the expected kind of the response."""
        self._envelope_ids: dict[int, str] = {}
        """The same envelope ids, by JSON-RPC id."""
        self._is_closed = False

    @property
    def pending_requests(self) -> int:
        """The number of pending requests."""
        return len(self._pending)

    # -- received messages

    def handle_message(self, head: EnvelopeHeader, text: bytes) -> None:
        """Handle a message of the participant to the node or to all participants."""
        if self._is_closed or head.sender != self.participant:
            return
        request_and_kind = (
            None if head.correlation_id is None else self._pending.get(head.correlation_id)
        )
        if head.kind.startswith(RESPONSE):
            if request_and_kind is None:
                # Too late, or a response to another participant.
                return
            self._handle_response(head, text, *request_and_kind)
        elif head.kind in _NOTIFICATION_KINDS:
            payload = self._read_notification(text, method=head.kind[len(REQUEST) + 1 :])
            if payload is not None:
                self.receiver.deliver(
                    payload, None if request_and_kind is None else request_and_kind[0]
                )

    def _handle_response(
        self, head: EnvelopeHeader, text: bytes, request: TransportRequest, kind: str
    ) -> None:
        if head.kind != kind:
            self._fail_invalid_response(
                request, f"the response has the kind {head.kind[:100]!r}, not {kind[:100]!r}"
            )
            return
        try:
            payload = bytes(read_envelope(text).payload)
            message = jsonrpc.decode_single(payload)
        except ProtocolError as error:
            self._fail_invalid_response(request, error.message.rstrip("."))
            return
        if not message.is_response or bytes(message.id) != b"%d" % request.id:  # type: ignore[arg-type]
            self._fail_invalid_response(
                request, "the JSON-RPC id of the response is not that of the request"
            )
            return
        self._forget(request)
        self.receiver.deliver(payload, request)

    def _fail_invalid_response(self, request: TransportRequest, reason: str) -> None:
        """Fail a request that got an invalid response. It is not retried."""
        self._forget(request)
        self.receiver.on_unreadable_response(request.id, f"{reason}.")

    def _read_notification(self, text: bytes, *, method: str) -> bytes | None:
        """Return the payload of a notification that matches its kind, else None."""
        try:
            payload = bytes(read_envelope(text).payload)
            message = jsonrpc.decode_single(payload)
        except ProtocolError:
            return None
        if message.method != method or message.id is not UNSET:
            return None
        return payload

    def on_participant_left(self, reason: str) -> None:
        """Fail all pending requests: the participant has disconnected."""
        if not self._is_closed:
            self._close()
            self.receiver.on_transport_lost(reason)

    def _close(self) -> None:
        self._is_closed = True
        self._pending.clear()
        self._envelope_ids.clear()

    # -- SingleChannel

    def send(self, request: TransportRequest, payload: bytes, headers: bytes) -> None:
        if self._is_closed:
            request.fail(UPSTREAM_LOST, f"{self.label} is not in the room.", was_sent=False)
            return
        kind, _ = read_kind_and_method(payload)
        if len(payload) > MAX_ENVELOPE_BYTES - ENVELOPE_OVERHEAD_BYTES or len(kind) > LONGEST_KIND:
            reason = (
                f"The request to {self.label} is too long: the limit is {MAX_ENVELOPE_BYTES} bytes."
            )
            request.fail(PAYLOAD_TOO_LARGE, reason, was_sent=False)
            return
        try:
            envelope = self._send_message(kind, payload, self._to, None)
        except InterlockError as error:
            request.fail(error.failure, error.message, was_sent=False)
            return
        if not envelope:
            reason = f"Cannot send to {self.label}: the room rejected the request."
            request.fail(UPSTREAM_LOST, reason, was_sent=False)
            return
        self._pending[envelope] = (request, RESPONSE + kind[len(REQUEST) :])
        self._envelope_ids[request.id] = envelope

    def send_long_lived(self, request: TransportRequest, payload: bytes, headers: bytes) -> None:
        self.send(request, payload, headers)

    def post(self, payload: bytes, headers: bytes) -> None:
        if self._is_closed:
            return
        kind, method = read_kind_and_method(payload)
        correlation_id = None
        if method == mcp.CANCELLED:
            correlation_id = self._envelope_ids.get(_decode_cancelled(payload).params.request_id)
        # A notification has no response, so a failure is not reported.
        with contextlib.suppress(InterlockError):
            self._send_message(kind, payload, self._to, correlation_id)

    async def post_and_wait(self, payload: bytes) -> None:
        # The room keeps the order of messages.
        self.post(payload, b"")

    def remove_request(self, request: TransportRequest) -> None:
        self._forget(request)

    def _forget(self, request: TransportRequest) -> None:
        self._pending.pop(self._envelope_ids.pop(request.id, ""), None)

    async def close(self) -> None:
        """End the conversation. The participant stays in the room."""
        self._close()


INITIALIZE_TIMEOUT_SECONDS: Final = 2.0
"""Seconds that a participant may take to respond to `initialize`."""
MIN_RETRY_SECONDS: Final = 1.0
MAX_RETRY_SECONDS: Final = 60.0
ABSENT_RETRY_MS: Final = 5_000
"""The retry delay that a caller gets if the participant has left. Its return time is unknown."""

_LIST_METHODS: Final = {
    "tools": mcp.TOOLS_LIST,
    "prompts": mcp.PROMPTS_LIST,
    "resources": mcp.RESOURCES_LIST,
}
_NODE_SERVER_NAME: Final = "interlock"
"""The server name of a node in `initialize`."""
MAX_NODE_HOPS: Final = 8
"""The maximum number of nodes that a tool of a participant may have passed. More indicate a loop of
nodes that list each other's tools."""


class _ParticipantInfo(msgspec.Struct, gc=False):
    id: str
    capabilities: list[str] = []


class _Welcome(msgspec.Struct, gc=False):
    participants: list[_ParticipantInfo] = []


class _Presence(msgspec.Struct, gc=False):
    event: str
    participant: _ParticipantInfo


class _ToolMeta(msgspec.Struct, gc=False):
    hops: int = msgspec.field(default=0, name=HOPS)


class _ListedTool(msgspec.Struct, gc=False):
    """A listed tool: its name and the number of nodes that it passed."""

    name: str = ""
    meta: _ToolMeta = msgspec.field(default_factory=_ToolMeta, name="_meta")


_decode_tool = msgspec.json.Decoder(_ListedTool).decode
_decode_welcome = msgspec.json.Decoder(_Welcome).decode
_decode_presence = msgspec.json.Decoder(_Presence).decode


def make_upstream_key(topic: str, participant: str) -> str:
    """Return the key of an upstream that is a participant."""
    return f"topic:{topic}/{participant}"


class ParticipantConnector:
    """Waits for one participant and connects to it whenever it is in the room."""

    dials_in = True
    has_left = False
    """Constant: `RoomUpstreams` withdraws the tools after the grace period."""
    list_ttl: float | None = None

    def __init__(
        self,
        key: str,
        participant: str,
        node_info: bytes,
        send_message: MessageSender,
        *,
        allow_node: bool = False,
        is_allowed: Callable[[str], bool] = lambda _: True,
        initialize_timeout: float = INITIALIZE_TIMEOUT_SECONDS,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """
        Args:
            allow_node: accept a node. Two nodes that are upstreams of each other would extend each
                other's lists without a limit, so a node is rejected unless the config names the
                tools to use.
            is_allowed: returns whether the config allows a tool of this name.
        """
        self.stderr: deque[str] = deque(maxlen=1)
        self.participant = participant
        self.on_leave: Callable[[], None] | None = None
        self.on_join: Callable[[], None] | None = None
        self._key = key
        self._node_info = node_info
        self._send_message = send_message
        self._allow_node = allow_node
        self._is_allowed = is_allowed
        self._initialize_timeout = initialize_timeout
        self._sleep = sleep
        self._capabilities: tuple[str, ...] | None = None
        """The capabilities of the participant. None: it is not in the room."""
        self._grants = KindGrants(())
        self._transport: ParticipantTransport | None = None
        self._has_news = asyncio.Event()
        """Set when the participant has changed since the last attempt."""
        self._backoff = Backoff(MIN_RETRY_SECONDS, MAX_RETRY_SECONDS)

    @property
    def is_present(self) -> bool:
        return self._capabilities is not None

    # -- what happens in the room

    def handle_message(self, head: EnvelopeHeader, text: bytes) -> None:
        """Handle a message in the room, to the node or to all participants."""
        if head.sender == self.participant:
            if self._transport is not None:
                self._transport.handle_message(head, text)
        elif head.sender == GATEWAY and head.kind in (PRESENCE, WELCOME):
            try:
                payload = read_envelope(text).payload
                if head.kind == PRESENCE:
                    self._handle_presence(_decode_presence(payload))
                else:
                    self._handle_welcome(_decode_welcome(payload).participants)
            except (EnvelopeError, msgspec.DecodeError):
                # Not from this node's gateway. Keep the current state.
                return

    def _handle_presence(self, presence: _Presence) -> None:
        if presence.participant.id != self.participant:
            return
        if presence.event == JOIN:
            self.arrive(presence.participant.capabilities, is_new_connection=True)
        elif presence.event == LEAVE:
            self.on_left()

    def _handle_welcome(self, participants: list[_ParticipantInfo]) -> None:
        """Handle a welcome: a participant that it does not list has left unnoticed."""
        participant = next(
            (participant for participant in participants if participant.id == self.participant),
            None,
        )
        if participant is not None:
            self.arrive(participant.capabilities)
        else:
            self.on_left()

    def arrive(self, capabilities: Iterable[str], *, is_new_connection: bool = False) -> None:
        """Record that the participant is in the room with these capabilities.

        Args:
            is_new_connection: True if it has just joined. If it was already present, it has a
                new connection, which has not received earlier requests.
        """
        now = tuple(capabilities)
        if now == self._capabilities and not is_new_connection:
            return
        is_new, self._capabilities = self._capabilities is None, now
        self._grants = KindGrants(now)
        self._backoff.reset()
        self._has_news.set()
        if self._transport is not None:
            # It may be another program or have other capabilities: list its tools again.
            self._disconnect("it reconnected or its capabilities changed")
        if is_new and self.on_join is not None:
            self.on_join()

    def on_left(self, reason: str = "it left the room") -> None:
        if self._capabilities is None:
            return
        self._capabilities = None
        self._grants = KindGrants(())
        self._disconnect(reason)
        if self.on_leave is not None:
            self.on_leave()

    def _disconnect(self, reason: str) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.on_participant_left(reason)

    # -- Connects

    async def connect(
        self, client_capabilities: bytes = b"{}", *, session_first: bool = False
    ) -> UpstreamClient:
        """Wait for the participant and connect to it. Raises InterlockError if it is present but
        not usable.

        Client capabilities of the supervisor are ignored: no client request can be answered in a
        room.
        """
        await self._wait_for_participant()
        self._disconnect("the node connects again")
        self._backoff.next_delay()
        if not any(self._can_list(kind) for kind in _LIST_METHODS):
            raise InterlockError(
                UPSTREAM_UNAVAILABLE,
                f"{self._key} may not send responses in the topic. Set the capability "
                "mcp/response:* or the profile response_only in the config.",
            )
        self._transport = transport = ParticipantTransport(
            self._key, self.participant, self._send_message
        )
        upstream_client = UpstreamClient(self._key, transport, self._node_info)
        try:
            await self._initialize(upstream_client)
        except BaseException:
            await upstream_client.close()
            raise
        return upstream_client

    async def _wait_for_participant(self) -> None:
        """Wait until the participant is present and either has changed or the backoff has
        passed."""
        while True:
            if self.is_present and not self._has_news.is_set():
                news_task = asyncio.ensure_future(self._has_news.wait())
                pause_task = asyncio.ensure_future(
                    self._sleep(self._backoff.delay or MIN_RETRY_SECONDS)
                )
                try:
                    await asyncio.wait({news_task, pause_task}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    news_task.cancel()
                    pause_task.cancel()
                    await asyncio.gather(news_task, pause_task, return_exceptions=True)
            else:
                await self._has_news.wait()
            self._has_news.clear()
            if self.is_present:
                return

    async def _initialize(self, upstream_client: UpstreamClient) -> None:
        can_initialize = self._grants.grants(f"{RESPONSE}:{mcp.INITIALIZE}")
        if can_initialize:
            # No response and errors are allowed: participants need no handshake.
            with contextlib.suppress(InterlockError):
                await negotiate_revision(
                    upstream_client, session_first=True, timeout=self._initialize_timeout
                )
        if upstream_client.closed.done():
            raise InterlockError(
                UPSTREAM_UNAVAILABLE, f"{self._key}: {upstream_client.closed.result()}"
            )
        if not upstream_client.capabilities:
            upstream_client.set_revision(mcp.Era.SESSION, REVISION)
            upstream_client.capabilities = {"tools": {}}
        if upstream_client.server_info.get("name") == _NODE_SERVER_NAME and not self._allow_node:
            raise self._node_error()

    def _node_error(self) -> InterlockError:
        return InterlockError(
            UPSTREAM_PROTOCOL,
            f"{self._key} is a node. Two nodes that list each other's tools would never finish. "
            "Name the tools to use in `allow`.",
        )

    @property
    def list_kinds(self) -> frozenset[str]:
        """The lists that the participant may send."""
        return frozenset(kind for kind in KINDS if self._can_list(kind))

    def _can_list(self, kind: str) -> bool:
        return self._grants.grants(f"{RESPONSE}:{_LIST_METHODS[kind]}")

    @property
    def retry_after_ms(self) -> int | None:
        return ABSENT_RETRY_MS

    def check_offering(self, raw_offering: RawOffering) -> None:
        """Raise InterlockError if the participant has left in the meantime, or if its tools show
        that it is a node."""
        if not self.is_present:
            raise InterlockError(
                UPSTREAM_UNAVAILABLE, f"{self._key} has disconnected from the topic."
            )
        tools = [_read_tool(tool) for tool in raw_offering.tools]
        node_hops = max(
            (tool.meta.hops for tool in tools if self._is_allowed(tool.name)), default=0
        )
        if node_hops > 0 and not self._allow_node:
            raise self._node_error()
        if node_hops > MAX_NODE_HOPS:
            raise InterlockError(
                UPSTREAM_PROTOCOL,
                f"{self._key} has tools that passed {node_hops} nodes: it lists the tools of this "
                "node "
                "repeatedly. Name only its own tools in `allow`.",
            )
        self._backoff.reset()


def _read_tool(tool: Raw) -> _ListedTool:
    try:
        return _decode_tool(tool)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # The catalog reports what is wrong with it.
        return _ListedTool()


# -- The participants of one room that are upstreams of the node. Each has its own supervisor.
#
# The tools of a participant that leaves stay listed for its grace period, as those of a lost
# server. Then they are withdrawn until it returns.


class TimerHandle(Protocol):
    """A timer that can be cancelled."""

    def cancel(self) -> None: ...


class WithdrawableUpstream(Protocol):
    """The part of a supervisor that a room uses."""

    def withdraw(self, reason: str) -> None: ...


UpstreamStarter = Callable[[str, ServerConfig, ParticipantConnector], WithdrawableUpstream]
CallLater = Callable[[float, Callable[[], None]], TimerHandle]


def make_server_config(topic: str, participant: str, settings: ParticipantUpstream) -> ServerConfig:
    """Return the server config of a participant."""
    return ServerConfig(
        segment=settings.segment or default_segment(participant),
        description=f"{participant} in the topic {topic}",
        allow=settings.allow,
        deny=settings.deny,
        effects=settings.effects,
        trust_annotations=settings.trust_annotations,
        timeout=settings.timeout,
        grace=settings.grace,
        # The node is one participant in the room, and no client request can be answered.
        sessions="shared",
        ask=AskConfig(sampling="deny", elicitation="deny", roots="deny"),
    )


class RoomUpstreams:
    """The connectors of the participants whose tools the node offers in one topic."""

    def __init__(
        self,
        topic: str,
        settings: Mapping[str, ParticipantUpstream],
        *,
        node_info: bytes,
        send_message: MessageSender,
        start_upstream: UpstreamStarter,
        remove_upstream: Callable[[str], None],
        call_later: CallLater,
        **connector_options: Any,
    ) -> None:
        """
        Args:
            start_upstream: starts the supervisor of an upstream.
            remove_upstream: removes an upstream.
            connector_options: further arguments for the connectors.
        """
        self.connectors: dict[str, ParticipantConnector] = {}
        """By upstream key."""
        self._remove_upstream = remove_upstream
        self._call_later = call_later
        self._timers: dict[str, TimerHandle] = {}
        for participant, upstream_settings in settings.items():
            if not upstream_settings.enabled:
                continue
            key = make_upstream_key(topic, participant)
            server = make_server_config(topic, participant, upstream_settings)
            connector = ParticipantConnector(
                key,
                participant,
                node_info,
                send_message,
                allow_node=bool(upstream_settings.allow),
                is_allowed=partial(is_tool_included, server=server),
                **connector_options,
            )
            upstream = start_upstream(key, server, connector)
            connector.on_join = lambda key=key: self._cancel_withdrawal(key)
            connector.on_leave = lambda key=key, upstream=upstream, grace=upstream_settings.grace: (
                self._schedule_withdrawal(key, upstream, grace)
            )
            self.connectors[key] = connector

    def handle_message(self, head: EnvelopeHeader, text: bytes) -> None:
        """Pass a message of the room to all connectors."""
        for connector in list(self.connectors.values()):
            connector.handle_message(head, text)

    def close(self) -> None:
        """Remove all upstreams: the node leaves the room."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        connectors, self.connectors = self.connectors, {}
        for key, connector in connectors.items():
            connector.on_leave = connector.on_join = None
            connector.on_left("the node left the room")
            self._remove_upstream(key)

    def _cancel_withdrawal(self, key: str) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()

    def _schedule_withdrawal(self, key: str, upstream: WithdrawableUpstream, grace: float) -> None:
        def withdraw() -> None:
            self._timers.pop(key, None)
            upstream.withdraw("it left the room")

        self._cancel_withdrawal(key)
        self._timers[key] = self._call_later(grace, withdraw)
