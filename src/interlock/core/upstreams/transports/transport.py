"""The interfaces of a transport and of its receiver."""

from __future__ import annotations

from typing import Any, Final, Protocol

from interlock.errors import Failure

MAX_MESSAGE: Final = 64 * 1024 * 1024
"""The maximum bytes of a message of an upstream, for all transports."""


class TransportRequest(Protocol):
    """A request that a transport carries, as far as the transport needs to know it."""

    id: int
    carrier: Any
    """The transport's object for this request. `remove_request` needs it."""

    is_open: bool
    """True while the response is awaited."""

    def fail(
        self, failure: Failure, message: str, *, was_sent: bool, status: int = 0, location: str = ""
    ) -> None:
        """Fail the request: there will be no response.

        Args:
            was_sent: the request may have been executed.
            status: the HTTP status, for protocol negotiation.
            location: the target of a redirect.
        """


class TransportStream(TransportRequest, Protocol):
    """A stream of messages that belong to no request. No response ends it."""

    last_event_id: str
    """The event id to resume after. Empty: none is known. The transport updates it."""
    retry: float | None
    """Seconds to wait before reopening, as the server asked. The transport updates it."""

    def on_open(self) -> None:
        """Handle that the server accepted the request and the stream is open."""


class TransportReceiver(Protocol):
    """The receiver of a transport's messages and events."""

    def deliver(self, data: bytes, request: TransportRequest | None = None) -> None:
        """Handle a complete message. `request`: the request on whose own stream it came."""

    def on_unreadable_response(self, id: int, reason: str) -> None:
        """Handle that the response to this request arrived and could not be read."""

    def on_stream_interrupted(self, request: TransportRequest) -> None:
        """Handle that the server ended this request's stream and will continue it later."""

    def on_transport_closing(self, reason: str) -> None:
        """Handle that the transport accepts no more requests. Pending ones may complete."""

    def on_transport_lost(self, reason: str) -> None:
        """Handle that the transport is lost, with all its pending requests."""


class EarlyReceiver:
    """Receives messages before the client is attached: a process may write before that."""

    def __init__(self) -> None:
        self.message_count = 0

    def deliver(self, data: bytes, request: TransportRequest | None = None) -> None:
        """Count the message. No request was sent yet, so it is no response."""
        self.message_count += 1

    def on_unreadable_response(self, id: int, reason: str) -> None:
        """Do nothing: no request was sent yet."""

    def on_stream_interrupted(self, request: TransportRequest) -> None:
        """Do nothing: no request was sent yet."""

    def on_transport_closing(self, reason: str) -> None:
        """Do nothing: the first request on the transport will fail."""

    def on_transport_lost(self, reason: str) -> None:
        """Do nothing: the first request on the transport will fail."""


class UpstreamTransport(Protocol):
    """Carries messages to one upstream and back."""

    receiver: TransportReceiver
    is_http: bool
    """True if requests need the HTTP headers of MCP, and each has a stream of its own."""
    offered_session_id: bytes
    """The session id in the response to `initialize`. Empty: the server sent none."""

    def clear_protocol_headers(self) -> None:
        """Send neither revision nor session id from now on, because nothing is negotiated yet."""

    def set_protocol_headers(self, revision: str, *, session: bytes = b"") -> None:
        """Send this revision and session id with every message from now on."""

    async def follow_redirect(self, location: str) -> bool:
        """Switch to the target of a redirect if it is the same server. False: it is not."""

    def send(self, request: TransportRequest, payload: bytes, headers: bytes) -> None:
        """Send a request. `headers`: encoded header lines, for transports with headers."""

    def send_long_lived(self, request: TransportRequest, payload: bytes, headers: bytes) -> None:
        """Send a request whose response stays open, without occupying the slot of a call."""

    def open_stream(self, stream: TransportStream) -> bool:
        """Open the stream for messages without a request. False: the transport needs no stream."""

    def post(self, payload: bytes, headers: bytes) -> None:
        """Send a message without a response immediately, never delayed by pending calls."""

    async def post_and_wait(self, payload: bytes) -> None:
        """Send a message without a response, and wait until the server accepted it."""

    def remove_request(self, request: TransportRequest) -> None:
        """Stop carrying a request whose response is no longer needed."""

    async def close(self) -> None:
        """Close the transport and stop everything that it started."""


class SingleChannel:
    """The methods of a transport with one channel for all messages: no headers, no streams."""

    is_http = False
    offered_session_id = b""

    def clear_protocol_headers(self) -> None:
        """Do nothing: there are no headers."""

    def set_protocol_headers(self, revision: str, *, session: bytes = b"") -> None:
        """Do nothing: there are no headers."""

    async def follow_redirect(self, location: str) -> bool:
        return False

    def open_stream(self, stream: TransportStream) -> bool:
        return False
