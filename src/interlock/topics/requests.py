"""Requests that participants make of the node: from an envelope to a Call, and back into the room.

Every request passes the one pipeline, under the identity of whoever sent it: its credentials are
looked at anew with each call, so what was revoked is revoked here too. There is a short list of
methods. No message in a room answers a question, follows a task or confirms anything: none of them
is a proof.

What was said to all is answered only where the node has what is asked for, and never with an
error: somebody else may be meant.
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

MOST_OF_ONE: Final = 100
"""So many requests of one participant may be under way."""
METHODS: Final = frozenset(
    name for name, method in mcp.METHODS.items() if method.available_in_topics
)
"""All that can be asked of a node in a topic."""

_PONG: Final = b"{}"
_MOST_NAMED: Final = 5
_log = logging.getLogger("interlock.topics")


class RoomRequest(msgspec.Struct, eq=False):
    """A request in a room, and how it is answered."""

    who: str
    """The participant."""
    envelope: str
    """The id of its envelope."""
    id: bytes
    """The id of its JSON-RPC request, as it came."""
    kind: str
    """Of the response."""
    to_all: bool = False
    client: Client | None = None
    call: Call | None = None


class RequestHandler:
    """Answers requests, each once."""

    def __init__(
        self, seat: NodeParticipant, pipeline: Pipeline, *, catalog: Catalog, hello: ServerInfo
    ) -> None:
        self._seat = seat
        self._pipeline = pipeline
        self._catalog = catalog
        self._hello = hello
        self._under_way: dict[str, dict[str, RoomRequest]] = {}
        """By participant, and by the id of the envelope. JSON-RPC ids may come twice: a program
        that was started anew counts from the beginning."""
        self._settling: set[asyncio.Task[None]] = set()

    # -- in

    def request(self, member: Member, head: EnvelopeHeader, request: Request) -> None:
        """A participant asks the node, or everybody."""
        asked = _asked(member, head, request)
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
        """Answer a request with an error, and do nothing else about it."""
        self._refuse(_asked(member, head, request), error)

    def is_under_way(self, envelope: str) -> bool:
        """Whether a request of this id, of anybody, is not answered yet."""
        return any(envelope in some for some in self._under_way.values())

    def lied(
        self, member: Member, head: EnvelopeHeader, payload: bytes, error: InterlockError
    ) -> None:
        """What should be a request to the node is none: its sender is told."""
        try:
            kind = kinds.read_kind(head.kind)
        except ProtocolError:
            return
        answer = response_kind(kind.method, kind.context)
        asked = RoomRequest(member.id, head.id, _id_in(payload), answer)
        self._refuse(asked, error)

    def notified(self, member: Member, notification: Notification) -> None:
        """A participant gives up a request of its own."""
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
        """A participant is gone, and nobody waits for its answers."""
        for asked in list(self._under_way.get(who, {}).values()):
            self._give_up(asked, f"{who} left the topic.")

    def close(self) -> None:
        """The node leaves the room."""
        for who in list(self._under_way):
            for asked in list(self._under_way.get(who, {}).values()):
                self._give_up(asked, "The node left the topic.")
        for task in list(self._settling):
            task.cancel()

    # -- on the way

    def _is_ours(self, asked: RoomRequest, method: str, context: str) -> bool:
        """False: it was said to all, and is for others. Raises InterlockError."""
        if method not in METHODS:
            raise InterlockError(
                METHOD_NOT_FOUND,
                f"{method[:100]} cannot be asked of a node in a topic. It answers "
                f"{', '.join(sorted(METHODS))}.",
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
        """Remember it until it is answered. Raises InterlockError."""
        some = self._under_way.get(asked.who, {})
        if len(some) >= MOST_OF_ONE:
            raise InterlockError(
                TOO_BUSY,
                f"{MOST_OF_ONE} requests of yours are under way in this topic: wait for some.",
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
                call = call_of(member, request)
                asked.call = call
                call.context = asked
                call.on_notification = self._hear
                call.on_done = self._done
                self._pipeline.begin(call)
        except InterlockError as error:
            self._refuse(asked, error)
        except Exception:
            _log.exception("a request in the topic %s could not be served", self._seat.topic)
            self._refuse(
                asked, InterlockError(INTERNAL, "The node failed on this request; see its log.")
            )

    def _introduce(self, member: Member, asked: RoomRequest, again: bool = False) -> None:
        """Answer `initialize`. Nothing comes of it: in a room there are no sessions. Raises
        InterlockError."""
        call = Call(
            mcp.INITIALIZE,
            TOPIC_SERVER,
            member.credentials,
            client_of(member.id),
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
        """What the upstream says on the way: only how far it is."""
        asked = cast("RoomRequest", call.context)
        if method == mcp.PROGRESS:
            message = jsonrpc.notification(method, params)
            self._say(asked, kinds.request_kind(method), message)

    # -- out

    def _done(self, call: Call, outcome: Outcome | None, error: InterlockError | None) -> None:
        asked = cast("RoomRequest", call.context)
        if outcome is not None:
            try:
                result = result_of(outcome, call.client, self._hello.server_info, call.method)
                self._answer(asked, jsonrpc.result_response(asked.id, result))
                return
            except InterlockError as unwritable:
                error = unwritable
        assert error is not None
        self._refuse(asked, error)

    def _refuse(self, asked: RoomRequest, error: InterlockError) -> None:
        """Answer with an error, where one is due."""
        if asked.to_all or error.failure is CANCELLED:
            self._forget(asked)
            return
        self._answer(asked, write_error(asked.id, as_in_a_room(error), asked.client)[1])

    def _answer(self, asked: RoomRequest, payload: bytes) -> None:
        self._forget(asked)
        if self._say(asked, asked.kind, payload):
            return
        too_long = InterlockError(
            PAYLOAD_TOO_LARGE,
            f"The answer has {len(payload)} bytes, more than fit into a topic. If it was a call, "
            "it was made: ask for less, or ask the node over MCP.",
        )
        self._say(asked, asked.kind, write_error(asked.id, too_long, asked.client)[1])

    def _say(self, asked: RoomRequest, kind: str, payload: bytes) -> bool:
        """False: it is too long to be said."""
        try:
            self._seat.say(kind, payload, [asked.who], asked.envelope)
        except InterlockError as error:
            if error.failure is PAYLOAD_TOO_LARGE:
                return False
            _log.info("an answer in the topic %s: %s", self._seat.topic, error.message)
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


def _asked(member: Member, head: EnvelopeHeader, request: Request) -> RoomRequest:
    return RoomRequest(
        member.id,
        head.id,
        bytes(request.id),
        response_kind(request.method, request.context),
        not head.to,
        client_of(member.id),
    )


def _id_in(payload: bytes) -> bytes:
    """The JSON-RPC id of what is no request, so that its sender knows its own answer."""
    try:
        id = jsonrpc.decode_members(payload).get("id")
        if id is not None and isinstance(jsonrpc.decode_value(id), str | int):
            return bytes(id)
    except ProtocolError:
        pass
    return jsonrpc.NULL


def client_of(who: str) -> Client:
    """The program behind a participant: it promises nothing, so it is asked nothing."""
    return Client(mcp.Era.SESSION, REVISION, who)


def call_of(member: Member, asked: Request | ProposalPayload) -> Call:
    """The call that a participant asks for, or proposes. Raises ProtocolError."""
    params = jsonrpc.decode_members(asked.params)
    call = read_call(
        asked.method,
        params,
        read_meta(params),
        face=TOPIC_SERVER,
        credentials=member.credentials,
        client=client_of(member.id),
        # Whoever its credentials are of now must be the one who came in with them.
        owner=member.caller.name,
    )
    if call.extra_params:
        names = ", ".join(f"`{name[:50]}`" for name in list(call.extra_params)[:_MOST_NAMED])
        raise ProtocolError(
            f"In a topic `params` of {asked.method} cannot have {names}: leave that out.",
            INVALID_PARAMS,
        )
    return call


def response_kind(method: str, context: str) -> str:
    """What an answer is called; without its context where that would be too long."""
    kind = kinds.response_kind(method, context)
    return kind if len(kind) <= kinds.MAX_KIND_LENGTH else kinds.response_kind(method)


def result_of(outcome: Outcome, client: Client, server_info: bytes, verb: str) -> bytes:
    """An outcome in the words of a room. Raises InterlockError."""
    glance = outcome.summary
    if outcome.era is client.era and (glance is None or glance.meta is UNSET):
        return outcome.result
    return write_result(outcome, client, server_info, verb)


def as_in_a_room(error: InterlockError) -> InterlockError:
    """An error that would say something else to somebody who has no session."""
    if error.failure is UNKNOWN_SESSION:
        return InterlockError(
            UNAUTHENTICATED,
            "Your credentials are not those of the participant any more that came in with them: "
            "join the topic again.",
        )
    return error
