"""The shape of a link, and of what sits at its near end."""

from __future__ import annotations

from typing import Any, Final, Protocol

from interlock.errors import Failure

MAX_MESSAGE: Final = 64 * 1024 * 1024
"""No message of an upstream may be longer, whatever the link."""


class TransportRequest(Protocol):
    """A request that a link carries, as far as the link needs to know it."""

    id: int
    carrier: Any
    """Where the link remembers what carries this request, to be able to drop it."""

    is_open: bool
    """Whether somebody still waits for the answer."""

    def fail(
        self, failure: Failure, message: str, *, sent: bool, status: int = 0, location: str = ""
    ) -> None:
        """The request will not be answered. `sent`: it may have been executed.

        `status` and `location` are what HTTP said, for whoever negotiates.
        """


class TransportStream(TransportRequest, Protocol):
    """The stream of what belongs to no request, which no answer ends."""

    last_event_id: str
    """Where to go on; empty: nothing is known of what came before. The link keeps it."""
    retry: float | None
    """The seconds that the server wants to pass before it is opened again. The link keeps it."""

    def opened(self) -> None:
        """The server has taken the request: from now on it is heard."""


class TransportReceiver(Protocol):
    """What a link delivers to."""

    def deliver(self, data: bytes, ticket: TransportRequest | None = None) -> None:
        """A whole message; `ticket` when it came on that request's own stream."""

    def undelivered(self, id: int, why: str) -> None:
        """The answer to this request came and could not be taken."""

    def interrupted(self, ticket: TransportRequest) -> None:
        """The server has ended this request's stream, and wants to be asked for the rest later."""

    def retired(self, reason: str) -> None:
        """The link takes nothing more. What it carries may still be answered."""

    def lost(self, reason: str) -> None:
        """The link is gone, and everything it carried with it."""


class EarlyReceiver:
    """Receives for a link whose peer is not there yet: a process can be faster than its parent."""

    def __init__(self) -> None:
        self.heard = 0

    def deliver(self, data: bytes, ticket: TransportRequest | None = None) -> None:
        """Nothing was asked yet, so this is no answer."""
        self.heard += 1

    def undelivered(self, id: int, why: str) -> None:
        """Nothing was asked yet, so this is no answer."""

    def interrupted(self, ticket: TransportRequest) -> None:
        """Nothing was asked yet, so nothing goes on."""

    def retired(self, reason: str) -> None:
        """The first request on the link will find out."""

    def lost(self, reason: str) -> None:
        """The first request on the link will find out."""


class UpstreamTransport(Protocol):
    """Moves messages to one upstream and back."""

    receiver: TransportReceiver
    is_http: bool
    """Whether requests need MCP's HTTP headers, and each has a stream of its own."""
    session_offered: bytes
    """The session id that came with the answer to `initialize`, if one did."""

    def say_nothing(self) -> None:
        """Name neither revision nor session from now on: nothing is agreed yet."""

    def speak(self, revision: str, *, session: bytes = b"") -> None:
        """Name this revision, and this session, with everything from now on."""

    async def follow(self, location: str) -> bool:
        """Go where a redirect points, if that is the same server."""

    def send(self, ticket: TransportRequest, payload: bytes, headers: bytes) -> None:
        """Send a request. `headers`: ready header lines, for links that have headers."""

    def send_open(self, ticket: TransportRequest, payload: bytes, headers: bytes) -> None:
        """Send a request whose answer stays open: it must not take the place of another."""

    def open_stream(self, stream: TransportStream) -> bool:
        """Open the stream of what belongs to no request. False: it comes without one."""

    def post(self, payload: bytes, headers: bytes) -> None:
        """Send something that gets no answer, at once: no call that is under way delays it."""

    async def hand_over(self, payload: bytes) -> None:
        """Send something that gets no answer, and wait until the server has taken it."""

    def drop(self, ticket: TransportRequest) -> None:
        """Stop carrying this request; its answer is not wanted any more."""

    async def close(self) -> None:
        """End the link and everything that it started."""


class SingleChannel:
    """The part of a link that is easy when everything comes on one channel: there are no headers
    to say anything in, and no streams to open."""

    is_http = False
    session_offered = b""

    def say_nothing(self) -> None:
        """There are no headers."""

    def speak(self, revision: str, *, session: bytes = b"") -> None:
        """There are no headers."""

    async def follow(self, location: str) -> bool:
        return False

    def open_stream(self, stream: TransportStream) -> bool:
        return False
