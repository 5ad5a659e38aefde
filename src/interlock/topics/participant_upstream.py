"""The connector of a participant of a topic: it cannot be fetched, only waited for.

Who is in the room, and what each may say there, is told by the gateway. No handshake is needed
between participants, so one that answers no `initialize`, or may not, is taken for a server with
tools and nothing else.
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

# -- A link to one participant of a topic: JSON-RPC in envelopes, which the node says in the room.
#
# Everybody in a room can send anything to the node, and everybody sees what the node asks. So an
# answer counts only if it fits in every way what was asked: it comes from the participant who was
# asked, names the envelope of the request, has its kind, and its JSON-RPC id. What does not fit
# settles nothing.
#
# Touches no socket: it says things by a function, and is told what was heard.

Say = Callable[[str, bytes, Sequence[str], str | None], str]
"""Says something in the room: kind, payload, to whom, what it is about. Returns the envelope's id;
empty, or InterlockError: it was not said."""

HEAD_ROOM: Final = 8 * 1024
"""What an envelope may have beside its payload: a kind, ids, times."""

_HEARD: Final = frozenset(
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
"""What a server says unasked. Requests of the participant are none of the link's business."""


class _Named(msgspec.Struct, frozen=True, gc=False):
    name: str = ""
    uri: str = ""


class _Said(msgspec.Struct, gc=False):
    """What of a message the kind of its envelope is made from. The message is our own."""

    method: str
    params: _Named = _Named()


class _Cancelled(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    request_id: int = -1


class _Cancels(msgspec.Struct, gc=False):
    params: _Cancelled = _Cancelled()


_decode_said = msgspec.json.Decoder(_Said).decode
_decode_cancels = msgspec.json.Decoder(_Cancels).decode


def kind_of(payload: bytes) -> tuple[str, str]:
    """The kind under which a request or notification of our own goes, and its method."""
    said = _decode_said(payload)
    member = CONTEXT_MEMBER.get(said.method)
    context = "" if member is None else getattr(said.params, member)
    return request_kind(said.method, context), said.method


class ParticipantTransport(SingleChannel):
    """Carries the requests of one peer to one participant."""

    receiver: TransportReceiver

    def __init__(self, label: str, participant: str, say: Say) -> None:
        self.label = label
        self.participant = participant
        self.receiver = EarlyReceiver()
        self._to = (participant,)
        self._say = say
        self._sent: dict[str, tuple[TransportRequest, str]] = {}
        """Requests that are not answered yet: by their envelope, with the kind of the answer."""
        self._envelope_of: dict[int, str] = {}
        """The same envelopes, by JSON-RPC id."""
        self._over = False

    @property
    def under_way(self) -> int:
        """How many requests wait for an answer."""
        return len(self._sent)

    # -- what is heard

    def take(self, head: EnvelopeHeader, text: bytes) -> None:
        """Something that the participant said, to the node or to everybody."""
        if self._over or head.sender != self.participant:
            return
        asked = None if head.correlation_id is None else self._sent.get(head.correlation_id)
        if head.kind.startswith(RESPONSE):
            if asked is None:
                # Late, or about what another asked.
                return
            self._answered(head, text, *asked)
        elif head.kind in _HEARD:
            payload = self._readable(text, method=head.kind[len(REQUEST) + 1 :])
            if payload is not None:
                self.receiver.deliver(payload, None if asked is None else asked[0])

    def _answered(
        self, head: EnvelopeHeader, text: bytes, ticket: TransportRequest, kind: str
    ) -> None:
        if head.kind != kind:
            self._unfit(ticket, f"it named the answer {head.kind[:100]!r} and not {kind[:100]!r}")
            return
        try:
            payload = bytes(read_envelope(text).payload)
            message = jsonrpc.decode_single(payload)
        except ProtocolError as error:
            self._unfit(ticket, error.message.rstrip("."))
            return
        if not message.is_response or bytes(message.id) != b"%d" % ticket.id:  # type: ignore[arg-type]
            self._unfit(ticket, "the answer has another JSON-RPC id than the request")
            return
        self._forget(ticket)
        self.receiver.deliver(payload, ticket)

    def _unfit(self, ticket: TransportRequest, why: str) -> None:
        """It was asked and it answered, but not what was asked: nobody waits for another try."""
        self._forget(ticket)
        self.receiver.on_unreadable_response(ticket.id, f"{why}.")

    def _readable(self, text: bytes, *, method: str) -> bytes | None:
        """The payload of a notification that is what its kind says."""
        try:
            payload = bytes(read_envelope(text).payload)
            message = jsonrpc.decode_single(payload)
        except ProtocolError:
            return None
        if message.method != method or message.id is not UNSET:
            return None
        return payload

    def lost(self, reason: str) -> None:
        """The participant has left the room: everybody who waits is told."""
        if not self._over:
            self._end()
            self.receiver.on_transport_lost(reason)

    def _end(self) -> None:
        self._over = True
        self._sent.clear()
        self._envelope_of.clear()

    # -- Link

    def send(self, ticket: TransportRequest, payload: bytes, headers: bytes) -> None:
        if self._over:
            ticket.fail(UPSTREAM_LOST, f"{self.label} is not in the room.", was_sent=False)
            return
        kind, _ = kind_of(payload)
        if len(payload) > MAX_ENVELOPE_BYTES - HEAD_ROOM or len(kind) > LONGEST_KIND:
            words = (
                f"{self.label} cannot be told this: an envelope may have {MAX_ENVELOPE_BYTES} "
                "bytes."
            )
            ticket.fail(PAYLOAD_TOO_LARGE, words, was_sent=False)
            return
        try:
            envelope = self._say(kind, payload, self._to, None)
        except InterlockError as error:
            ticket.fail(error.failure, error.message, was_sent=False)
            return
        if not envelope:
            words = f"{self.label} cannot be asked: the room did not take the request."
            ticket.fail(UPSTREAM_LOST, words, was_sent=False)
            return
        self._sent[envelope] = (ticket, RESPONSE + kind[len(REQUEST) :])
        self._envelope_of[ticket.id] = envelope

    def send_long_lived(self, ticket: TransportRequest, payload: bytes, headers: bytes) -> None:
        self.send(ticket, payload, headers)

    def post(self, payload: bytes, headers: bytes) -> None:
        if self._over:
            return
        kind, method = kind_of(payload)
        about = None
        if method == mcp.CANCELLED:
            about = self._envelope_of.get(_decode_cancels(payload).params.request_id)
        # Nobody waits for an answer, so nobody needs to know that it was not said.
        with contextlib.suppress(InterlockError):
            self._say(kind, payload, self._to, about)

    async def post_and_wait(self, payload: bytes) -> None:
        # What is said first is heard first.
        self.post(payload, b"")

    def remove_request(self, ticket: TransportRequest) -> None:
        self._forget(ticket)

    def _forget(self, ticket: TransportRequest) -> None:
        self._sent.pop(self._envelope_of.pop(ticket.id, ""), None)

    async def close(self) -> None:
        """The participant stays where it is: nothing but the conversation is over."""
        self._end()


OPENING: Final = 2.0
"""How long a participant may leave `initialize` unanswered."""
RETRY_FIRST: Final = 1.0
RETRY_AT_MOST: Final = 60.0
LEFT_RETRY_MS: Final = 5_000
"""When to try a call again that found the participant gone: nobody can say when it comes back."""

_LISTS: Final = {
    "tools": mcp.TOOLS_LIST,
    "prompts": mcp.PROMPTS_LIST,
    "resources": mcp.RESOURCES_LIST,
}
_NODE: Final = "interlock"
"""By what name a node introduces itself."""
MOST_NODES: Final = 8
"""Through so many nodes a tool may have come that is taken from a room. More: they show each other
what they show."""


class _Somebody(msgspec.Struct, gc=False):
    id: str
    capabilities: list[str] = []


class _Welcome(msgspec.Struct, gc=False):
    participants: list[_Somebody] = []


class _Presence(msgspec.Struct, gc=False):
    event: str
    participant: _Somebody


class _Passed(msgspec.Struct, gc=False):
    hops: int = msgspec.field(default=0, name=HOPS)


class _Listed(msgspec.Struct, gc=False):
    """Of a tool: what it is called, and how many nodes it came through."""

    name: str = ""
    meta: _Passed = msgspec.field(default_factory=_Passed, name="_meta")


_decode_listed = msgspec.json.Decoder(_Listed).decode
_decode_welcome = msgspec.json.Decoder(_Welcome).decode
_decode_presence = msgspec.json.Decoder(_Presence).decode


def key_of(topic: str, participant: str) -> str:
    """By what the node knows a participant that is an upstream."""
    return f"topic:{topic}/{participant}"


class ParticipantConnector:
    """Waits for one participant, and opens a conversation whenever it is there."""

    dials_in = True
    has_left = False
    """Whoever keeps the room withdraws what it offered, after its grace."""
    list_ttl: float | None = None

    def __init__(
        self,
        key: str,
        participant: str,
        node_info: bytes,
        say: Say,
        *,
        may_be_node: bool = False,
        takes: Callable[[str], bool] = lambda _: True,
        opening: float = OPENING,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`may_be_node`: two nodes that are upstreams of each other grow each other's lists for
        ever, so a node is refused unless the config names what to take from it. `takes`: whether
        the config wants a tool of this name."""
        self.stderr: deque[str] = deque(maxlen=1)
        self.participant = participant
        self.on_left: Callable[[], None] | None = None
        self.on_arrived: Callable[[], None] | None = None
        self._key = key
        self._own_info = node_info
        self._say = say
        self._may_be_node = may_be_node
        self._takes = takes
        self._opening = opening
        self._sleep = sleep
        self._capabilities: tuple[str, ...] | None = None
        """What it may say. None: it is not there."""
        self._grants = KindGrants(())
        self._link: ParticipantTransport | None = None
        self._news = asyncio.Event()
        """Something about it is new since the last attempt."""
        self._backoff = Backoff(RETRY_FIRST, RETRY_AT_MOST)

    @property
    def present(self) -> bool:
        return self._capabilities is not None

    # -- what happens in the room

    def heard(self, head: EnvelopeHeader, text: bytes) -> None:
        """Something that was said in the room, to the node or to everybody."""
        if head.sender == self.participant:
            if self._link is not None:
                self._link.take(head, text)
        elif head.sender == GATEWAY and head.kind in (PRESENCE, WELCOME):
            try:
                payload = read_envelope(text).payload
                if head.kind == PRESENCE:
                    self._presence(_decode_presence(payload))
                else:
                    self._welcome(_decode_welcome(payload).participants)
            except (EnvelopeError, msgspec.DecodeError):
                # Not of our gateway's making; what is known stays known.
                return

    def _presence(self, told: _Presence) -> None:
        if told.participant.id != self.participant:
            return
        if told.event == JOIN:
            self.arrive(told.participant.capabilities, anew=True)
        elif told.event == LEAVE:
            self.left()

    def _welcome(self, others: list[_Somebody]) -> None:
        """Everybody who is there now: who is not named has left unheard."""
        here = next((one for one in others if one.id == self.participant), None)
        if here is not None:
            self.arrive(here.capabilities)
        else:
            self.left()

    def arrive(self, capabilities: Iterable[str], *, anew: bool = False) -> None:
        """It is in the room, and may say this. `anew`: it has just come in, and if it was there
        already, then by another connection: that was not asked what the older one was."""
        now = tuple(capabilities)
        if now == self._capabilities and not anew:
            return
        came, self._capabilities = self._capabilities is None, now
        self._grants = KindGrants(now)
        self._backoff.reset()
        self._news.set()
        if self._link is not None:
            # It may be another program, or say other things: what it offers is found out anew.
            self._hang_up("it came in by another connection, or may say other things now")
        if came and self.on_arrived is not None:
            self.on_arrived()

    def left(self, reason: str = "it left the room") -> None:
        if self._capabilities is None:
            return
        self._capabilities = None
        self._grants = KindGrants(())
        self._hang_up(reason)
        if self.on_left is not None:
            self.on_left()

    def _hang_up(self, reason: str) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.lost(reason)

    # -- Connects

    async def connect(
        self, client_capabilities: bytes = b"{}", *, session_first: bool = False
    ) -> UpstreamClient:
        """Wait for it to be there. Raises InterlockError when it is and cannot be spoken to.

        Whatever the supervisor would promise, nobody can be asked anything in a room.
        """
        await self._until_worth_trying()
        self._hang_up("the node begins anew")
        self._backoff.next_delay()
        if not any(self._may_list(kind) for kind in _LISTS):
            raise InterlockError(
                UPSTREAM_UNAVAILABLE,
                f"{self._key} may not answer in the room: give its seat mcp/response:*, "
                "or the profile response_only.",
            )
        self._link = link = ParticipantTransport(self._key, self.participant, self._say)
        peer = UpstreamClient(self._key, link, self._own_info)
        try:
            await self._introduce(peer)
        except BaseException:
            await peer.close()
            raise
        return peer

    async def _until_worth_trying(self) -> None:
        """It is there, and either something about it is new or it has been left alone a while."""
        while True:
            if self.present and not self._news.is_set():
                news = asyncio.ensure_future(self._news.wait())
                pause = asyncio.ensure_future(self._sleep(self._backoff.delay or RETRY_FIRST))
                try:
                    await asyncio.wait({news, pause}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    news.cancel()
                    pause.cancel()
                    await asyncio.gather(news, pause, return_exceptions=True)
            else:
                await self._news.wait()
            self._news.clear()
            if self.present:
                return

    async def _introduce(self, peer: UpstreamClient) -> None:
        asked = self._grants.grants(f"{RESPONSE}:{mcp.INITIALIZE}")
        if asked:
            # Silence and refusals are lawful: no handshake is needed between participants.
            with contextlib.suppress(InterlockError):
                await negotiate_revision(peer, session_first=True, timeout=self._opening)
        if peer.closed.done():
            raise InterlockError(UPSTREAM_UNAVAILABLE, f"{self._key}: {peer.closed.result()}")
        if not peer.capabilities:
            peer.set_revision(mcp.Era.SESSION, REVISION)
            peer.capabilities = {"tools": {}}
        if peer.server_info.get("name") == _NODE and not self._may_be_node:
            raise self._is_node()

    def _is_node(self) -> InterlockError:
        return InterlockError(
            UPSTREAM_PROTOCOL,
            f"{self._key} is a node itself: two that show each other's tools would never be "
            "done. Name in `allow` what is wanted of it.",
        )

    @property
    def list_kinds(self) -> frozenset[str]:
        """The lists that it may answer with."""
        return frozenset(kind for kind in KINDS if self._may_list(kind))

    def _may_list(self, kind: str) -> bool:
        return self._grants.grants(f"{RESPONSE}:{_LISTS[kind]}")

    @property
    def retry_after_ms(self) -> int | None:
        return LEFT_RETRY_MS

    def check_offering(self, offer: RawOffering) -> None:
        """Raises InterlockError when it has left while it was listed, or is a node after all, which
        its tools say whether it introduced itself or not."""
        if not self.present:
            raise InterlockError(UPSTREAM_UNAVAILABLE, f"{self._key} is not in the room any more.")
        listed = [_listed(one) for one in offer.tools]
        nodes = max((one.meta.hops for one in listed if self._takes(one.name)), default=0)
        if nodes > 0 and not self._may_be_node:
            raise self._is_node()
        if nodes > MOST_NODES:
            raise InterlockError(
                UPSTREAM_PROTOCOL,
                f"{self._key} has tools that came through {nodes} nodes: it shows what this node "
                "shows, again and again. Name in `allow` only what is its own.",
            )
        self._backoff.reset()


def _listed(tool: Raw) -> _Listed:
    try:
        return _decode_listed(tool)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # Whoever shows it says what is wrong with it.
        return _Listed()


# -- The participants of one room that are upstreams of the node: begun together, each by itself.
#
# A participant that leaves keeps its tools listed for its grace, as a server does that is lost;
# then they are withdrawn, until it is there again.


class TimerHandle(Protocol):
    def cancel(self) -> None: ...


class WithdrawableUpstream(Protocol):
    """What keeps an upstream alive, as far as a room needs to know it."""

    def withdraw(self, reason: str) -> None: ...


Begin = Callable[[str, ServerConfig, ParticipantConnector], WithdrawableUpstream]
CallLater = Callable[[float, Callable[[], None]], TimerHandle]


def server_of(topic: str, participant: str, settings: ParticipantUpstream) -> ServerConfig:
    """What the config says of a participant, as of any other server."""
    return ServerConfig(
        segment=settings.segment or default_segment(participant),
        description=f"{participant} in the topic {topic}",
        allow=settings.allow,
        deny=settings.deny,
        effects=settings.effects,
        trust_annotations=settings.trust_annotations,
        timeout=settings.timeout,
        grace=settings.grace,
        # There is one seat for the node in the room, and nobody to be asked.
        sessions="shared",
        ask=AskConfig(sampling="deny", elicitation="deny", roots="deny"),
    )


class RoomUpstreams:
    """The upstreams of one room."""

    def __init__(
        self,
        topic: str,
        settings: Mapping[str, ParticipantUpstream],
        *,
        node_info: bytes,
        say: Say,
        begin: Begin,
        end: Callable[[str], None],
        call_later: CallLater,
        **more: Any,
    ) -> None:
        """`begin` starts to supervise one, `end` forgets it; `more` is for its connector."""
        self.connectors: dict[str, ParticipantConnector] = {}
        """By the key under which the node knows it."""
        self._end = end
        self._call_later = call_later
        self._timers: dict[str, TimerHandle] = {}
        for participant, wanted in settings.items():
            if not wanted.enabled:
                continue
            key = key_of(topic, participant)
            server = server_of(topic, participant, wanted)
            connector = ParticipantConnector(
                key,
                participant,
                node_info,
                say,
                may_be_node=bool(wanted.allow),
                takes=partial(is_tool_included, server=server),
                **more,
            )
            upstream = begin(key, server, connector)
            connector.on_arrived = lambda key=key: self._stays(key)
            connector.on_left = lambda key=key, upstream=upstream, grace=wanted.grace: self._goes(
                key, upstream, grace
            )
            self.connectors[key] = connector

    def heard(self, head: EnvelopeHeader, text: bytes) -> None:
        """Something that was said in the room."""
        for connector in list(self.connectors.values()):
            connector.heard(head, text)

    def close(self) -> None:
        """The node leaves the room, and with it everything that it knew from there."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        connectors, self.connectors = self.connectors, {}
        for key, connector in connectors.items():
            connector.on_left = connector.on_arrived = None
            connector.left("the node left the room")
            self._end(key)

    def _stays(self, key: str) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()

    def _goes(self, key: str, upstream: WithdrawableUpstream, grace: float) -> None:
        def over() -> None:
            self._timers.pop(key, None)
            upstream.withdraw("it left the room")

        self._stays(key)
        self._timers[key] = self._call_later(grace, over)
