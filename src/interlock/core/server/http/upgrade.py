"""WebSocket upgrade requests: the handler of the path accepts the connection as a channel, or
rejects it.

The handler decides before it returns.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from interlock.channels.channel import MAX_MESSAGE
from interlock.channels.websocket import WebSocketChannel, accept
from interlock.core.server.http.credentials import read_credentials
from interlock.errors import INTERNAL_ERROR_TEXT
from interlock.protocol import websocket_handshake as opening

if TYPE_CHECKING:
    from interlock.core.server.http.protocol import HttpProtocol

_log = logging.getLogger("interlock.server")


class UpgradedConnection(Protocol):
    """The protocol of a connection that has left HTTP."""

    def data_received(self, data: bytes, /) -> None:
        """Process bytes from the client."""


T = TypeVar("T", bound=UpgradedConnection)


class WebSocketRequest:
    """A valid request to open a WebSocket (RFC 6455 §4.2.1)."""

    def __init__(
        self, protocol: HttpProtocol, query: bytes, headers: list[tuple[bytes, bytes]]
    ) -> None:
        self.query = query
        self.headers = headers
        """The headers in their original order, with names in lower case."""
        self.fields = dict(headers)
        """The headers by name. Of several headers with the same name, the last."""
        self.credentials = read_credentials(self.fields, protocol.peer, protocol.certificate)
        self.channel: UpgradedConnection | None = None
        self.decided = False
        self._protocol = protocol

    def accept(self, *, label: str = "", max_message: int = MAX_MESSAGE) -> WebSocketChannel:
        """Respond 101 and turn the connection into a channel. The HTTP server no longer tracks the
        connection: the owner of the channel must close it.

        Args:
            label: the name of the channel in log lines.
            max_message: the maximum size of a message in bytes.
        """
        self._decide()
        protocol = self._protocol
        protocol.detach()
        channel = accept(
            protocol.transport,
            self.fields,
            peer=self.credentials.peer,
            label=label,
            max_message=max_message,
        )
        self.channel = channel
        return channel

    def hand_over(self, make: Callable[[Any], T], *, subprotocol: bytes = b"") -> T:
        """Respond 101 and give the transport to another protocol.

        Args:
            make: creates the protocol. It must set itself as the protocol of the transport
                immediately, and implement WebSocket framing.
            subprotocol: the selected subprotocol.
        """
        self._decide()
        protocol = self._protocol
        protocol.detach()
        transport = protocol.transport
        transport.write(
            opening.write_response(self.fields[b"sec-websocket-key"].strip(), subprotocol)
        )
        connection = make(transport)
        self.channel = connection
        return connection

    def reject(self, status: int, message: str, headers: bytes = b"") -> None:
        """Reject the request and close the connection.

        Args:
            status: the HTTP status.
            message: the error message.
            headers: encoded header lines.
        """
        self._decide()
        self._protocol.reject(status, _escape_json(message), headers)

    def _decide(self) -> None:
        if self.decided:
            raise RuntimeError("the upgrade request has been accepted or rejected already")
        self.decided = True


Upgrades = Callable[[WebSocketRequest], object]
"""Accepts or rejects the upgrade requests for a path."""


def handle_upgrade(
    protocol: HttpProtocol, handler: Upgrades, query: bytes, remaining: bytes
) -> None:
    """Let `handler` accept or reject an upgrade request.

    Args:
        protocol: the connection that has just read the request.
        handler: the handler of the path.
        query: the query of the URL.
        remaining: the bytes after the request.
    """
    parser = protocol.parser
    rejection = opening.find_rejection(
        parser.get_method(), parser.get_http_version(), protocol.headers
    )
    if rejection is not None:
        protocol.reject(rejection.status, _escape_json(rejection.message), rejection.headers)
        return
    upgrade = WebSocketRequest(protocol, query, list(protocol.headers))
    try:
        handler(upgrade)
    except Exception as error:
        _log.warning("upgrade request from %s: the handler failed", protocol.peer, exc_info=error)
    if not upgrade.decided:
        upgrade.reject(500, INTERNAL_ERROR_TEXT)
    if upgrade.channel is not None and remaining:
        upgrade.channel.data_received(remaining)


def _escape_json(message: str) -> bytes:
    """Return a text as the inside of a JSON string."""
    return msgspec.json.encode(message)[1:-1]
