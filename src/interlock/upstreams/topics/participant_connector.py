"""The connector of a participant of a topic: it cannot be fetched, only waited for.

Who is in the room, and what each may say there, is told by the gateway. No handshake is needed
between participants, so one that answers no `initialize`, or may not, is taken for a server with
tools and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import msgspec
from msgspec import Raw

from interlock.errors import UPSTREAM_PROTOCOL, UPSTREAM_UNAVAILABLE, InterlockError
from interlock.protocol import mcp
from interlock.protocol.ax import HOPS
from interlock.protocol.kinds import RESPONSE, Grants
from interlock.protocol.mcpx.envelope import EnvelopeError, Head, read_envelope
from interlock.protocol.mcpx.words import GATEWAY, JOIN, LEAVE, PRESENCE, REVISION, WELCOME
from interlock.upstreams.listing import KINDS, RawOffer
from interlock.upstreams.negotiate import open_peer
from interlock.upstreams.peer import Peer
from interlock.upstreams.topics.participant_link import ParticipantLink, Say

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
    gone = False
    """Whoever keeps the room withdraws what it offered, after its grace."""
    list_ttl: float | None = None

    def __init__(
        self,
        key: str,
        participant: str,
        own_info: bytes,
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
        self._own_info = own_info
        self._say = say
        self._may_be_node = may_be_node
        self._takes = takes
        self._opening = opening
        self._sleep = sleep
        self._capabilities: tuple[str, ...] | None = None
        """What it may say. None: it is not there."""
        self._grants = Grants(())
        self._link: ParticipantLink | None = None
        self._news = asyncio.Event()
        """Something about it is new since the last attempt."""
        self._wait = 0.0

    @property
    def present(self) -> bool:
        return self._capabilities is not None

    # -- what happens in the room

    def heard(self, head: Head, text: bytes) -> None:
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
        self._grants = Grants(now)
        self._wait = 0.0
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
        self._grants = Grants(())
        self._hang_up(reason)
        if self.on_left is not None:
            self.on_left()

    def _hang_up(self, reason: str) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.lost(reason)

    # -- Connects

    async def connect(self, promises: bytes = b"{}", *, session_first: bool = False) -> Peer:
        """Wait for it to be there. Raises InterlockError when it is and cannot be spoken to.

        Whatever the supervisor would promise, nobody can be asked anything in a room.
        """
        await self._until_worth_trying()
        self._hang_up("the node begins anew")
        self._wait = min(max(self._wait * 2, RETRY_FIRST), RETRY_AT_MOST)
        if not any(self._may_list(kind) for kind in _LISTS):
            raise InterlockError(
                UPSTREAM_UNAVAILABLE,
                f"{self._key} may not answer in the room: give its seat mcp/response:*, "
                "or the profile response_only.",
            )
        self._link = link = ParticipantLink(self._key, self.participant, self._say)
        peer = Peer(self._key, link, self._own_info)
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
                pause = asyncio.ensure_future(self._sleep(max(self._wait, RETRY_FIRST)))
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

    async def _introduce(self, peer: Peer) -> None:
        asked = self._grants.grants(f"{RESPONSE}:{mcp.INITIALIZE}")
        if asked:
            # Silence and refusals are lawful: no handshake is needed between participants.
            with contextlib.suppress(InterlockError):
                await open_peer(peer, session_first=True, timeout=self._opening)
        if peer.closed.done():
            raise InterlockError(UPSTREAM_UNAVAILABLE, f"{self._key}: {peer.closed.result()}")
        if not peer.capabilities:
            peer.adopt(mcp.Era.SESSION, REVISION)
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
    def kinds(self) -> frozenset[str]:
        """The lists that it may answer with."""
        return frozenset(kind for kind in KINDS if self._may_list(kind))

    def _may_list(self, kind: str) -> bool:
        return self._grants.grants(f"{RESPONSE}:{_LISTS[kind]}")

    @property
    def retry_after_ms(self) -> int | None:
        return LEFT_RETRY_MS

    def vet(self, offer: RawOffer) -> None:
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
        self._wait = 0.0


def _listed(tool: Raw) -> _Listed:
    try:
        return _decode_listed(tool)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # Whoever shows it says what is wrong with it.
        return _Listed()
