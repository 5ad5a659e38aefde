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

    who: str
    """The participant that sent it."""
    envelope: str
    """The id of its envelope."""
    id: bytes
    """The JSON-RPC id, as received."""
    kind: str
    """The kind of the response."""
    to_all: bool = False
    client: Client | None = None
    call: Call | None = None


class NodeRequestHandler:
    """Handles requests to the node. Each gets one response."""

    def __init__(
        self, seat: NodeParticipant, pipeline: Pipeline, *, catalog: Catalog, hello: ServerInfo
    ) -> None:
        self._seat = seat
        self._pipeline = pipeline
        self._catalog = catalog
        self._hello = hello
        self._under_way: dict[str, dict[str, RoomRequest]] = {}
        """By participant and envelope id. JSON-RPC ids may repeat: a restarted program counts from
        the beginning."""
        self._settling: set[asyncio.Task[None]] = set()

    # -- incoming messages

    def request(self, member: Member, head: EnvelopeHeader, request: Request) -> None:
        """Handle a request to the node or to everybody."""
        asked = _make_room_request(member, head, request)
        try:
            if not self._is_ours(asked, request.method, request.context):
                return
            self._take(asked)
        except InterlockError as error:
            self._refuse(asked, error)
            return
        self._serve(member, asked, request)

    def refuse(
        self, member: Member, head: EnvelopeHeader, request: Request, error: InterlockError
    ) -> None:
        """Respond to a request with an error and do nothing else."""
        self._refuse(_make_room_request(member, head, request), error)

    def is_under_way(self, envelope: str) -> bool:
        """Return whether a request with this envelope id is pending, of any participant."""
        return any(envelope in some for some in self._under_way.values())

    def lied(
        self, member: Member, head: EnvelopeHeader, payload: bytes, error: InterlockError
    ) -> None:
        """Respond with an error to a message whose kind names a request to the node but whose
        payload is invalid."""
        try:
            kind = kinds.read_kind(head.kind)
        except ProtocolError:
            return
        answer = make_response_kind(kind.method, kind.context)
        asked = RoomRequest(member.id, head.id, _read_request_id(payload), answer)
        self._refuse(asked, error)

    def notified(self, member: Member, notification: Notification) -> None:
        """Cancel a request of a participant, if the notification asks for that."""
        if notification.method != mcp.CANCELLED:
            return
        try:
            id = jsonrpc.decode_members(notification.params).get("requestId")
        except ProtocolError:
            return
        if id is None:
            return
        for asked in list(self._under_way.get(member.id, {}).values()):
            if asked.id == bytes(id):
                self._give_up(asked, f"{member.id} cancelled the request.")

    def left(self, who: str) -> None:
        """Cancel the requests of a participant that left."""
        for asked in list(self._under_way.get(who, {}).values()):
            self._give_up(asked, f"{who} left the topic.")

    def close(self) -> None:
        """Cancel all requests: the node leaves the room."""
        for who in list(self._under_way):
            for asked in list(self._under_way.get(who, {}).values()):
                self._give_up(asked, "The node left the topic.")
        for task in list(self._settling):
            task.cancel()

    # -- calls

    def _is_ours(self, asked: RoomRequest, method: str, context: str) -> bool:
        """Return False for a request to everybody that is meant for others. Raises
        InterlockError."""
        if method not in SUPPORTED_METHODS:
            raise InterlockError(
                METHOD_NOT_FOUND,
                f"A node does not support {method[:100]} in a topic. It supports "
                f"{', '.join(sorted(SUPPORTED_METHODS))}.",
            )
        if not asked.to_all:
            return True
        target = mcp.METHODS[method].target
        if target == "tool":
            return self._catalog.find(context) is not None
        if target == "prompt":
            return self._catalog.current.prompt(context) is not None
        if target == "resource":
            return self._catalog.current.resource(context) is not None
        return True

    def _take(self, asked: RoomRequest) -> None:
        """Store a request until it gets its response. Raises InterlockError."""
        some = self._under_way.get(asked.who, {})
        if len(some) >= MAX_PENDING_REQUESTS:
            raise InterlockError(
                TOO_BUSY,
                f"You have {MAX_PENDING_REQUESTS} pending requests in this topic, which is the "
                "limit. Wait "
                "for a response, then try again.",
            )
        self._under_way.setdefault(asked.who, some)[asked.envelope] = asked

    def _serve(self, member: Member, asked: RoomRequest, request: Request) -> None:
        method = request.method
        try:
            if method == mcp.PING:
                self._answer(asked, jsonrpc.result_response(asked.id, _PONG))
            elif method == mcp.INITIALIZE:
                self._introduce(member, asked)
            else:
                call = create_call(member, request)
                asked.call = call
                call.context = asked
                call.on_notification = self._hear
                call.on_done = self._done
                self._pipeline.begin(call)
        except InterlockError as error:
            self._refuse(asked, error)
        except Exception:
            _log.exception("topic %s: failed to handle a request", self._seat.topic)
            self._refuse(
                asked, InterlockError(INTERNAL, "The node failed on this request; see its log.")
            )

    def _introduce(self, member: Member, asked: RoomRequest, again: bool = False) -> None:
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
        except PendingIdentity as unsettled:
            if again:
                raise
            task = asyncio.get_running_loop().create_task(self._settle(unsettled, member, asked))
            self._settling.add(task)
            task.add_done_callback(self._settling.discard)
            return
        result = self._hello.initialize_result(REVISION)
        self._answer(asked, jsonrpc.result_response(asked.id, result))

    async def _settle(self, unsettled: PendingIdentity, member: Member, asked: RoomRequest) -> None:
        await unsettled.resolve()
        if self._is_open(asked):
            try:
                self._introduce(member, asked, again=True)
            except InterlockError as error:
                self._refuse(asked, error)

    def _hear(self, call: Call, method: str, params: bytes | Raw) -> None:
        """Forward progress notifications of the upstream. Other notifications are ignored."""
        asked = cast("RoomRequest", call.context)
        if method == mcp.PROGRESS:
            message = jsonrpc.notification(method, params)
            self._say(asked, kinds.request_kind(method), message)

    # -- responses

    def _done(self, call: Call, outcome: Outcome | None, error: InterlockError | None) -> None:
        asked = cast("RoomRequest", call.context)
        if outcome is not None:
            try:
                result = convert_result(outcome, call.client, self._hello.server_info, call.method)
                self._answer(asked, jsonrpc.result_response(asked.id, result))
                return
            except InterlockError as unwritable:
                error = unwritable
        assert error is not None
        self._refuse(asked, error)

    def _refuse(self, asked: RoomRequest, error: InterlockError) -> None:
        """Respond with an error, unless the request was cancelled or addressed to everybody."""
        if asked.to_all or error.failure is CANCELLED:
            self._forget(asked)
            return
        self._answer(asked, write_error(asked.id, adapt_error(error), asked.client)[1])

    def _answer(self, asked: RoomRequest, payload: bytes) -> None:
        self._forget(asked)
        if self._say(asked, asked.kind, payload):
            return
        too_long = InterlockError(
            PAYLOAD_TOO_LARGE,
            f"The response has {len(payload)} bytes, which is too long for a topic. If this was a "
            "call, it was executed. Request less data, or connect to the node over MCP.",
        )
        self._say(asked, asked.kind, write_error(asked.id, too_long, asked.client)[1])

    def _say(self, asked: RoomRequest, kind: str, payload: bytes) -> bool:
        """Send a message. Returns False if it is too long."""
        try:
            self._seat.say(kind, payload, [asked.who], asked.envelope)
        except InterlockError as error:
            if error.failure is PAYLOAD_TOO_LARGE:
                return False
            _log.info("topic %s: cannot send a response: %s", self._seat.topic, error.message)
        return True

    def _give_up(self, asked: RoomRequest, reason: str) -> None:
        self._forget(asked)
        if asked.call is not None:
            self._pipeline.cancel(asked.call, reason)

    def _is_open(self, asked: RoomRequest) -> bool:
        return self._under_way.get(asked.who, {}).get(asked.envelope) is asked

    def _forget(self, asked: RoomRequest) -> None:
        if self._is_open(asked):
            some = self._under_way[asked.who]
            del some[asked.envelope]
            if not some:
                del self._under_way[asked.who]


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


def make_client(who: str) -> Client:
    """Return the program behind a participant. It has no client capabilities, so it gets no client
    requests."""
    return Client(mcp.Era.SESSION, REVISION, who)


def create_call(member: Member, asked: Request | ProposalPayload) -> Call:
    """Create the call that a participant requests or proposes. Raises ProtocolError."""
    params = jsonrpc.decode_members(asked.params)
    call = read_call(
        asked.method,
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
            f"In a topic, `params` of {asked.method} must not have {names}. Remove them.",
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
