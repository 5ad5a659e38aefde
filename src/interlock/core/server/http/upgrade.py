"""A request to leave HTTP: whoever serves its path makes a channel of the connection, or refuses.

It is decided at once, before the callable that was given the `WebSocketRequest` returns.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from interlock.channels.channel import MAX_MESSAGE
from interlock.channels.websocket import WebSocketChannel, accept
from interlock.core.server.http.credentials import read_credentials
from interlock.protocol import websocket_handshake as opening

if TYPE_CHECKING:
    from interlock.core.server.http.protocol import HttpProtocol

_log = logging.getLogger("interlock.server")


class UpgradedConnection(Protocol):
    """What becomes of a connection that has left HTTP."""

    def data_received(self, data: bytes, /) -> None:
        """Take what came."""


T = TypeVar("T", bound=UpgradedConnection)


class WebSocketRequest:
    """A lawful request for a WebSocket."""

    def __init__(
        self, lane: HttpProtocol, query: bytes, headers: list[tuple[bytes, bytes]]
    ) -> None:
        self.query = query
        self.headers = headers
        """Its headers as they came, names in lower case."""
        self.fields = dict(headers)
        """The same by name: of several with one name, the last."""
        self.credentials = read_credentials(self.fields, lane.peer, lane.certificate)
        self.channel: UpgradedConnection | None = None
        self.decided = False
        self._lane = lane

    def accept(self, *, label: str = "", max_message: int = MAX_MESSAGE) -> WebSocketChannel:
        """Answer 101 and make a channel of the connection. HTTP knows nothing of it any more:
        whoever has the channel closes it."""
        self._decide()
        lane = self._lane
        lane.let_go()
        channel = accept(
            lane.transport,
            self.fields,
            peer=self.credentials.peer,
            label=label,
            max_message=max_message,
        )
        self.channel = channel
        return channel

    def hand_over(self, make: Callable[[Any], T], *, subprotocol: bytes = b"") -> T:
        """Answer 101 and give the transport to what `make` makes: that becomes the transport's
        protocol at once, and speaks WebSocket by itself."""
        self._decide()
        lane = self._lane
        lane.let_go()
        transport = lane.transport
        transport.write(
            opening.write_response(self.fields[b"sec-websocket-key"].strip(), subprotocol)
        )
        taken = make(transport)
        self.channel = taken
        return taken

    def refuse(self, status: int, sentence: str, headers: bytes = b"") -> None:
        """Answer why not, and hang up. `headers`: ready header lines."""
        self._decide()
        self._lane.refuse(status, _in_json(sentence), headers)

    def _decide(self) -> None:
        if self.decided:
            raise RuntimeError("it is decided already")
        self.decided = True


Upgrades = Callable[[WebSocketRequest], object]
"""Decides about the upgrade requests for a path."""


def offer(lane: HttpProtocol, take: Upgrades, query: bytes, behind: bytes) -> None:
    """Let `take` decide about the request that `lane` has just read. `behind`: what followed it."""
    parser = lane.parser
    refusal = opening.find_rejection(parser.get_method(), parser.get_http_version(), lane.headers)
    if refusal is not None:
        lane.refuse(refusal.status, _in_json(refusal.message), refusal.headers)
        return
    upgrade = WebSocketRequest(lane, query, list(lane.headers))
    try:
        take(upgrade)
    except Exception as error:
        _log.warning("an upgrade request could not be taken", exc_info=error)
    if not upgrade.decided:
        upgrade.refuse(500, "The node could not decide about this connection.")
    if upgrade.channel is not None and behind:
        upgrade.channel.data_received(behind)


def _in_json(sentence: str) -> bytes:
    return msgspec.json.encode(sentence)[1:-1]
