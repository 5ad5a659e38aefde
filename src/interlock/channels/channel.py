"""What a channel is to its owner, and what all of them have in common.

A message that comes in goes straight from the socket to its owner: there is no task, queue or
future in between. Only what comes before the owner listens is kept.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address
from typing import Final, Protocol

from interlock.channels.tls import verified_names

MAX_MESSAGE: Final = 64 * 1024 * 1024
"""A larger message ends the channel."""
MAX_UNREAD_BYTES: Final = 64 * 1024 * 1024
"""So much may wait to be read, by the other side or by the owner, before the channel is ended."""
CLOSING: Final = 2.0
"""How long the other side may take to agree that a channel is closed."""
CONNECTING: Final = 10.0
"""How long it may take until a channel that was dialled is open."""
LOCAL: Final = "local"
"""The peer of everything that cannot come from another machine."""

CLOSED_HERE: Final = "it was closed by this side"
DOES_NOT_READ: Final = "it does not read what it is sent"


class Channel(Protocol):
    """Whole messages both ways."""

    peer: str
    """`local` (a Unix socket or a pipe), `loopback`, or the other side's address."""
    peer_names: tuple[str, ...]
    """The DNS names that the other side's TLS certificate proves, in lower case."""
    label: str
    """For people: what was dialled, or where it comes from."""
    close_reason: str
    """Why the other side closed the channel, in its own words; empty when it gave no reason."""
    close_code: int
    """With which code it did; 0: it said none."""
    on_message: Callable[[bytes], None]
    """Called with each whole message. What came before it is set is delivered when it is, from
    inside the assignment: set `on_closed` first."""
    on_close: Callable[[str], None]
    """Told exactly once, why (`it closed the channel: namespace_conflict`). No message comes after
    that. Also told, at once, when it is set on a channel that is closed."""

    @property
    def is_open(self) -> bool:
        """Whether messages can be sent."""

    def send(self, payload: bytes) -> None:
        """Send one message. Nothing happens when the channel is closed; it is closed when the
        other side does not read."""

    def close(self, code: int = 1000, reason: str = "") -> None:
        """Send what is under way, say why, and close. No message comes in any more. The other side
        has 2 seconds to agree. Where no code and reason can be said they are left out."""

    async def wait_closed(self) -> None:
        """Until everything is written or given up, and the connection is gone."""


class Endpoint(ABC):
    """Our end of any channel: whom it tells, and what it keeps until there is somebody to tell."""

    def __init__(
        self,
        *,
        peer: str,
        label: str,
        peer_names: tuple[str, ...] = (),
    ) -> None:
        self.peer = peer
        self.label = label
        self.peer_names = peer_names
        self.close_reason = ""
        self.close_code = 0
        self.is_open = True
        """Whether messages can be sent. An attribute: it is looked at for each of them."""
        self._deliver: Callable[[bytes], None] = self._buffer_message
        self._buffered: list[bytes] = []
        self._buffered_bytes = 0
        self._close_callback: Callable[[str], None] = _nobody
        self._close_cause: str | None = None
        """Why it is over. Told as soon as there is somebody to tell, and nothing is kept."""
        self._is_close_reported = False
        self._ignoring = False
        """The owner, or whoever runs the channel, has had enough of it."""
        self._is_gone = False
        self._waiting: list[asyncio.Future[None]] = []

    # -- what the owner sees

    @property
    def on_message(self) -> Callable[[bytes], None]:
        return self._deliver

    @on_message.setter
    def on_message(self, deliver: Callable[[bytes], None]) -> None:
        if self._is_ignoring():
            return
        if self._close_cause is None:
            self._deliver = deliver
        kept, self._buffered = self._buffered, []
        for payload in kept:
            # Inside its first message the owner may close it, and then wants no more.
            if not self._is_ignoring():
                deliver(payload)
        if self._close_cause is not None:
            self._end(self._close_cause)

    @property
    def on_close(self) -> Callable[[str], None]:
        return self._close_callback

    @on_close.setter
    def on_close(self, tell: Callable[[str], None]) -> None:
        self._close_callback = tell
        if self._close_cause is not None:
            self._end(self._close_cause)

    async def wait_closed(self) -> None:
        if not self._is_gone:
            waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiting)
            await waiting

    # -- what the kinds of channels use

    @abstractmethod
    def _abort(self, why: str) -> None:
        """End it without further words."""

    def _buffer_message(self, payload: bytes) -> None:
        """Nobody listens yet."""
        self._buffered_bytes += len(payload)
        if self._buffered_bytes > MAX_UNREAD_BYTES:
            self._abort("it said more than could be kept before anybody listened")
            return
        self._buffered.append(payload)

    def _is_ignoring(self) -> bool:
        return self._ignoring

    def _stop_delivery(self, why: str) -> None:
        """The owner hears nothing more but that it is over, and that when it is."""
        self.is_open = False
        self._ignoring = True
        self._deliver = _nobody
        self._buffered = []
        if self._close_cause is None:
            self._close_cause = why

    def _end(self, why: str) -> None:
        """No message comes any more. The first reason is the one that is told."""
        self.is_open = False
        self._deliver = _nobody
        if self._close_cause is None:
            self._close_cause = why
        if (
            self._close_callback is not _nobody
            and not self._buffered
            and not self._is_close_reported
        ):
            self._is_close_reported = True
            self._close_callback(self._close_cause)

    def _on_connection_gone(self) -> None:
        """Nothing is left of the connection."""
        self._is_gone = True
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
        self._waiting = []


def peer_name(transport: asyncio.BaseTransport) -> str:
    """Who is on the other side of a connection: `local`, `loopback`, or an address."""
    address = transport.get_extra_info("peername")
    if not isinstance(address, tuple):
        return LOCAL
    host = str(address[0]).partition("%")[0]
    ip = ip_address(host)
    if isinstance(ip, IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    return "loopback" if ip.is_loopback else host


def verified_peer_names(transport: asyncio.BaseTransport) -> tuple[str, ...]:
    """The DNS names in the certificate that the other side has shown, if it was verified."""
    return tuple(value.lower() for kind, value in verified_names(transport) if kind == "DNS")


def _nobody(_: object) -> None:
    """Nobody listens."""
