"""Requests of participants to the node: from an envelope to a Call, and the response back to the
room.

Every request passes the one pipeline under the identity of its sender. Its credentials are checked
again for each call, so a revoked token is rejected here too. Only the methods in `METHODS` are
supported. Messages of a room cannot answer client requests, follow tasks or approve anything: none
of them is a proof.

The node responds to a request to everybody only if it has the requested object, and never with an
error: the request may be meant for another participant.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, cast

import msgspec
from msgspec import UNSET, Raw

from interlock.core.call import Call, Client, Outcome
from interlock.core.catalog.catalog import Catalog
from interlock.core.pipeline.authentication import PendingIdentity
from interlock.core.pipeline.pipeline import Pipeline
from interlock.core.server.mcp.requests import read_call, read_meta
from interlock.core.server.mcp.responses import write_error, write_result
from interlock.core.server.mcp.server_info import ServerInfo
from interlock.errors import (
    CANCELLED,
    INTERNAL,
    INTERNAL_ERROR_TEXT,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    PAYLOAD_TOO_LARGE,
    TOO_BUSY,
    UNAUTHENTICATED,
    UNKNOWN_SESSION,
    InterlockError,
    ProtocolError,
)
from interlock.protocol import jsonrpc, kinds, mcp
from interlock.protocol.mcpx_terms import REVISION, TOPIC_SERVER
from interlock.topics.member import Member
from interlock.topics.wire.envelope import EnvelopeHeader
from interlock.topics.wire.payloads import Notification, ProposalPayload, Request

if TYPE_CHECKING:
    from interlock.topics.node_participant import NodeParticipant

MAX_PENDING_REQUESTS: Final = 100
"""The maximum number of pending requests of one participant."""
SUPPORTED_METHODS: Final = frozenset(
    name for name, method in mcp.METHODS.items() if method.available_in_topics
)
"""The methods that a node supports in a topic."""

_PONG: Final = b"{}"
_MAX_NAMES: Final = 5
_log = logging.getLogger("interlock.topics")


class RoomRequest(msgspec.Struct, eq=False):
    """A request in a room, and how to respond to it."""

    participant: str
    """The participant that sent it."""
    envelope_id: str
    """The id of its envelope."""
    id: bytes
    """The JSON-RPC id, as received."""
    kind: str
    """The kind of the response."""
    is_broadcast: bool = False
    client: Client | None = None
    call: Call | None = None


class NodeRequestHandler:
    """Handles requests to the node. Each gets one response."""

    def __init__(
        self,
        participant: NodeParticipant,
        pipeline: Pipeline,
        *,
        catalog: Catalog,
        server_info: ServerInfo,
    ) -> None:
        self._participant = participant
        self._pipeline = pipeline
        self._catalog = catalog
        self._server_info = server_info
        self._pending: dict[str, dict[str, RoomRequest]] = {}
        """By participant and envelope id. JSON-RPC ids may repeat: a restarted program counts from
        the beginning."""
        self._identity_tasks: set[asyncio.Task[None]] = set()

    # -- incoming messages

    def handle_request(self, member: Member, head: EnvelopeHeader, request: Request) -> None:
        """Handle a request to the node or to everybody."""
        room_request = _make_room_request(member, head, request)
        try:
            if not self._is_for_node(room_request, request.method, request.context):
                return
            self._store(room_request)
        except InterlockError as error:
            self._respond_error(room_request, error)
            return
        self._start_call(member, room_request, request)

    def reject_request(
        self, member: Member, head: EnvelopeHeader, request: Request, error: InterlockError
    ) -> None:
        """Respond to a request with an error and do nothing else."""
        self._respond_error(_make_room_request(member, head, request), error)

    def is_pending(self, envelope_id: str) -> bool:
        """Return whether a request with this envelope id is pending, of any participant."""
        return any(envelope_id in requests for requests in self._pending.values())

    def reject_invalid(
        self, member: Member, head: EnvelopeHeader, payload: bytes, error: InterlockError
    ) -> None:
        """Respond with an error to a message whose kind names a request to the node but whose
        payload is invalid."""
        try:
            kind = kinds.read_kind(head.kind)
        except ProtocolError:
            return
        response_kind = make_response_kind(kind.method, kind.context)
        room_request = RoomRequest(member.id, head.id, _read_request_id(payload), response_kind)
        self._respond_error(room_request, error)

    def handle_notification(self, member: Member, notification: Notification) -> None:
        """Cancel a request of a participant, if the notification asks for that."""
        if notification.method != mcp.CANCELLED:
            return
        try:
            id = jsonrpc.decode_members(notification.params).get("requestId")
        except ProtocolError:
            return
        if id is None:
            return
        for room_request in list(self._pending.get(member.id, {}).values()):
            if room_request.id == bytes(id):
                self._cancel(room_request, f"{member.id} cancelled the request.")

    def on_leave(self, participant: str) -> None:
        """Cancel the requests of a participant that left."""
        for room_request in list(self._pending.get(participant, {}).values()):
            self._cancel(room_request, f"{participant} left the topic.")

    def close(self) -> None:
        """Cancel all requests: the node leaves the room."""
        for participant in list(self._pending):
            for room_request in list(self._pending.get(participant, {}).values()):
                self._cancel(room_request, "The node left the topic.")
        for task in list(self._identity_tasks):
            task.cancel()

    # -- calls

    def _is_for_node(self, room_request: RoomRequest, method: str, context: str) -> bool:
        """Return False for a request to everybody that is meant for others. Raises
        InterlockError."""
        if method not in SUPPORTED_METHODS:
            raise InterlockError(
                METHOD_NOT_FOUND,
                f"A node does not support {method[:100]} in a topic. It supports "
                f"{', '.join(sorted(SUPPORTED_METHODS))}.",
            )
        if not room_request.is_broadcast:
            return True
        target = mcp.METHODS[method].target
        if target == "tool":
            return self._catalog.find(context) is not None
        if target == "prompt":
            return self._catalog.current.prompt(context) is not None
        if target == "resource":
            return self._catalog.current.resource(context) is not None
        return True

    def _store(self, room_request: RoomRequest) -> None:
        """Store a request until it gets its response. Raises InterlockError."""
        requests = self._pending.get(room_request.participant, {})
        if len(requests) >= MAX_PENDING_REQUESTS:
            raise InterlockError(
                TOO_BUSY,
                f"You have {MAX_PENDING_REQUESTS} pending requests in this topic, which is the "
                "limit. Wait "
                "for a response, then try again.",
            )
        self._pending.setdefault(room_request.participant, requests)[room_request.envelope_id] = (
            room_request
        )

    def _start_call(self, member: Member, room_request: RoomRequest, request: Request) -> None:
        method = request.method
        try:
            if method == mcp.PING:
                self._respond(room_request, jsonrpc.result_response(room_request.id, _PONG))
            elif method == mcp.INITIALIZE:
                self._initialize(member, room_request)
            else:
                call = create_call(member, request)
                room_request.call = call
                call.context = room_request
                call.on_notification = self._on_notification
                call.on_done = self._on_result
                self._pipeline.begin(call)
        except InterlockError as error:
            self._respond_error(room_request, error)
        except Exception:
            _log.exception("topic %s: failed to handle a request", self._participant.topic)
            self._respond_error(
                room_request,
                InterlockError(INTERNAL, INTERNAL_ERROR_TEXT),
            )

    def _initialize(
        self, member: Member, room_request: RoomRequest, is_retry: bool = False
    ) -> None:
        """Respond to `initialize`. It creates no session: rooms have none. Raises
        InterlockError."""
        call = Call(
            mcp.INITIALIZE,
            TOPIC_SERVER,
            member.credentials,
            make_client(member.id),
            session_owner=member.caller.name,
        )
        try:
            self._pipeline.admit(call)
        except PendingIdentity as pending_identity:
            if is_retry:
                raise
            task = asyncio.get_running_loop().create_task(
                self._retry_initialize(pending_identity, member, room_request)
            )
            self._identity_tasks.add(task)
            task.add_done_callback(self._identity_tasks.discard)
            return
        result = self._server_info.initialize_result(REVISION)
        self._respond(room_request, jsonrpc.result_response(room_request.id, result))

    async def _retry_initialize(
        self, pending_identity: PendingIdentity, member: Member, room_request: RoomRequest
    ) -> None:
        await pending_identity.resolve()
        if self._is_pending(room_request):
            try:
                self._initialize(member, room_request, is_retry=True)
            except InterlockError as error:
                self._respond_error(room_request, error)

    def _on_notification(self, call: Call, method: str, params: bytes | Raw) -> None:
        """Forward progress notifications of the upstream. Other notifications are ignored."""
        room_request = cast("RoomRequest", call.context)
        if method == mcp.PROGRESS:
            message = jsonrpc.notification(method, params)
            self._send(room_request, kinds.request_kind(method), message)

    # -- responses

    def _on_result(self, call: Call, outcome: Outcome | None, error: InterlockError | None) -> None:
        room_request = cast("RoomRequest", call.context)
        if outcome is not None:
            try:
                result = convert_result(
                    outcome, call.client, self._server_info.server_info, call.method
                )
                self._respond(room_request, jsonrpc.result_response(room_request.id, result))
                return
            except InterlockError as conversion_error:
                error = conversion_error
        assert error is not None
        self._respond_error(room_request, error)

    def _respond_error(self, room_request: RoomRequest, error: InterlockError) -> None:
        """Respond with an error, unless the request was cancelled or addressed to everybody."""
        if room_request.is_broadcast or error.failure is CANCELLED:
            self._remove(room_request)
            return
        self._respond(
            room_request, write_error(room_request.id, adapt_error(error), room_request.client)[1]
        )

    def _respond(self, room_request: RoomRequest, payload: bytes) -> None:
        self._remove(room_request)
        if self._send(room_request, room_request.kind, payload):
            return
        too_long_error = InterlockError(
            PAYLOAD_TOO_LARGE,
            f"The response has {len(payload)} bytes, which is too long for a topic. If this was a "
            "call, it was executed. Request less data, or connect to the node over MCP.",
        )
        self._send(
            room_request,
            room_request.kind,
            write_error(room_request.id, too_long_error, room_request.client)[1],
        )

    def _send(self, room_request: RoomRequest, kind: str, payload: bytes) -> bool:
        """Send a message. Returns False if it is too long."""
        try:
            self._participant.send(
                kind, payload, [room_request.participant], room_request.envelope_id
            )
        except InterlockError as error:
            if error.failure is PAYLOAD_TOO_LARGE:
                return False
            _log.info(
                "topic %s: cannot send a response: %s", self._participant.topic, error.message
            )
        return True

    def _cancel(self, room_request: RoomRequest, reason: str) -> None:
        self._remove(room_request)
        if room_request.call is not None:
            self._pipeline.cancel(room_request.call, reason)

    def _is_pending(self, room_request: RoomRequest) -> bool:
        return (
            self._pending.get(room_request.participant, {}).get(room_request.envelope_id)
            is room_request
        )

    def _remove(self, room_request: RoomRequest) -> None:
        if self._is_pending(room_request):
            requests = self._pending[room_request.participant]
            del requests[room_request.envelope_id]
            if not requests:
                del self._pending[room_request.participant]


def _make_room_request(member: Member, head: EnvelopeHeader, request: Request) -> RoomRequest:
    return RoomRequest(
        member.id,
        head.id,
        bytes(request.id),
        make_response_kind(request.method, request.context),
        not head.to,
        make_client(member.id),
    )


def _read_request_id(payload: bytes) -> bytes:
    """Return the JSON-RPC id of an invalid request, so that its sender can match the response."""
    try:
        id = jsonrpc.decode_members(payload).get("id")
        if id is not None and isinstance(jsonrpc.decode_value(id), str | int):
            return bytes(id)
    except ProtocolError:
        pass
    return jsonrpc.NULL


def make_client(participant: str) -> Client:
    """Return the program behind a participant. It has no client capabilities, so it gets no client
    requests."""
    return Client(mcp.Era.SESSION, REVISION, participant)


def create_call(member: Member, request: Request | ProposalPayload) -> Call:
    """Create the call that a participant requests or proposes. Raises ProtocolError."""
    params = jsonrpc.decode_members(request.params)
    call = read_call(
        request.method,
        params,
        read_meta(params),
        face=TOPIC_SERVER,
        credentials=member.credentials,
        client=make_client(member.id),
        # The credentials must still belong to the caller that joined with them.
        owner=member.caller.name,
    )
    if call.extra_params:
        names = ", ".join(f"`{name[:50]}`" for name in list(call.extra_params)[:_MAX_NAMES])
        raise ProtocolError(
            f"In a topic, `params` of {request.method} must not have {names}. Remove them.",
            INVALID_PARAMS,
        )
    return call


def make_response_kind(method: str, context: str) -> str:
    """Return the kind of a response, without its context if the kind would be too long."""
    kind = kinds.response_kind(method, context)
    return kind if len(kind) <= kinds.MAX_KIND_LENGTH else kinds.response_kind(method)


def convert_result(outcome: Outcome, client: Client, server_info: bytes, verb: str) -> bytes:
    """Convert an outcome to the protocol generation of rooms. Raises InterlockError."""
    glance = outcome.summary
    if outcome.era is client.era and (glance is None or glance.meta is UNSET):
        return outcome.result
    return write_result(outcome, client, server_info, verb)


def adapt_error(error: InterlockError) -> InterlockError:
    """Replace an error that would mislead a participant, which has no session."""
    if error.failure is UNKNOWN_SESSION:
        return InterlockError(
            UNAUTHENTICATED,
            "Your credentials no longer belong to the participant that joined with them. Join the "
            "topic again.",
        )
    return error
