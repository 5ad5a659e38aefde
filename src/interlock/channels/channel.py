"""The interface of a channel, and the common part of all channels.

A received message is passed directly from the socket to the owner of the channel, without a task, a
queue or a future. Only messages that arrive before the owner has set its callback are buffered.
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
"""Maximum size of unread messages, at the peer or at the owner, before the channel is closed."""
CLOSING: Final = 2.0
"""The time that the peer may take to confirm a close."""
CONNECTING: Final = 10.0
"""The time that opening a channel may take."""
LOCAL: Final = "local"
"""The peer of a connection that cannot come from another machine."""

CLOSED_HERE: Final = "it was closed by this side"
DOES_NOT_READ: Final = "it does not read the messages that are sent to it"


class Channel(Protocol):
    """Complete messages in both directions."""

    peer: str
    """`local` (a Unix socket or a pipe), `loopback`, or the address of the peer."""
    peer_names: tuple[str, ...]
    """The DNS names in the verified TLS certificate of the peer, in lower case."""
    label: str
    """For people: the URL of the peer, or the origin of the connection."""
    close_reason: str
    """The reason that the peer gave when it closed the channel. Empty: none."""
    close_code: int
    """The close code of the peer. 0: none."""
    on_message: Callable[[bytes], None]
    """Called with each complete message. Messages that arrived earlier are delivered inside the
    assignment: set `on_close` first."""
    on_close: Callable[[str], None]
    """Called exactly once, with the reason (`it closed the channel: namespace_conflict`). No
    message follows. If it is set on a closed channel, it is called at once."""

    @property
    def is_open(self) -> bool:
        """True if messages can be sent."""

    def send(self, payload: bytes) -> None:
        """Send one message. Does nothing on a closed channel. Closes the channel if the peer does
        not read."""

    def close(self, code: int = 1000, reason: str = "") -> None:
        """Send pending messages and the reason, and close. No message is received any more. The
        peer has 2 seconds to confirm. Code and reason are omitted where the channel has none."""

    async def wait_closed(self) -> None:
        """Wait until all data is written or discarded, and the connection is closed."""


class Endpoint(ABC):
    """The local end of a channel: its callbacks, and messages that are buffered before they are
    set."""

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
        """True if messages can be sent. An attribute, since it is read for every message."""
        self._deliver: Callable[[bytes], None] = self._buffer_message
        self._buffered: list[bytes] = []
        self._buffered_bytes = 0
        self._close_callback: Callable[[str], None] = _ignore
        self._close_cause: str | None = None
        """The reason of the close. Reported when a callback is set and no message is buffered."""
        self._is_close_reported = False
        self._ignoring = False
        """True after the owner or the channel has stopped the delivery of messages."""
        self._is_connection_closed = False
        self._waiters: list[asyncio.Future[None]] = []

    # -- for the owner

    @property
    def on_message(self) -> Callable[[bytes], None]:
        return self._deliver

    @on_message.setter
    def on_message(self, deliver: Callable[[bytes], None]) -> None:
        if self._is_ignoring():
            return
        if self._close_cause is None:
            self._deliver = deliver
        buffered, self._buffered = self._buffered, []
        for payload in buffered:
            # The owner may close the channel inside its callback. Then it gets no more messages.
            if not self._is_ignoring():
                deliver(payload)
        if self._close_cause is not None:
            self._end(self._close_cause)

    @property
    def on_close(self) -> Callable[[str], None]:
        return self._close_callback

    @on_close.setter
    def on_close(self, callback: Callable[[str], None]) -> None:
        self._close_callback = callback
        if self._close_cause is not None:
            self._end(self._close_cause)

    async def wait_closed(self) -> None:
        if not self._is_connection_closed:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    # -- for subclasses

    @abstractmethod
    def _abort(self, reason: str) -> None:
        """Close the connection at once, without a close handshake."""

    def _buffer_message(self, payload: bytes) -> None:
        """Buffer a message until the owner has set its callback."""
        self._buffered_bytes += len(payload)
        if self._buffered_bytes > MAX_UNREAD_BYTES:
            self._abort("it sent more data than can be buffered before the channel is used")
            return
        self._buffered.append(payload)

    def _is_ignoring(self) -> bool:
        return self._ignoring

    def _stop_delivery(self, reason: str) -> None:
        """Deliver no more messages. `on_close` is called when the connection ends."""
        self.is_open = False
        self._ignoring = True
        self._deliver = _ignore
        self._buffered = []
        if self._close_cause is None:
            self._close_cause = reason

    def _end(self, reason: str) -> None:
        """Report the end of the channel. The first reason counts."""
        self.is_open = False
        self._deliver = _ignore
        if self._close_cause is None:
            self._close_cause = reason
        if (
            self._close_callback is not _ignore
            and not self._buffered
            and not self._is_close_reported
        ):
            self._is_close_reported = True
            self._close_callback(self._close_cause)

    def _on_connection_closed(self) -> None:
        """Wake all waiters, after the connection is closed."""
        self._is_connection_closed = True
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters = []


def peer_name(transport: asyncio.BaseTransport) -> str:
    """Return the peer of a connection: `local`, `loopback`, or an address."""
    address = transport.get_extra_info("peername")
    if not isinstance(address, tuple):
        return LOCAL
    host = str(address[0]).partition("%")[0]
    ip = ip_address(host)
    if isinstance(ip, IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    return "loopback" if ip.is_loopback else host


def verified_peer_names(transport: asyncio.BaseTransport) -> tuple[str, ...]:
    """Return the DNS names in the verified certificate of the peer."""
    return tuple(value.lower() for kind, value in verified_names(transport) if kind == "DNS")


def _ignore(_: object) -> None:
    """Do nothing: no callback is set."""
