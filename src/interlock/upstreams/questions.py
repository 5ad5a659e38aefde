"""What an upstream asks: put to whoever it is about, and answered in the upstream's own ids.

Whom a question is about, the peer knows; what becomes of it, the way back of that call decides.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from interlock.call import Answer, Ask
from interlock.protocol import jsonrpc, mcp
from interlock.upstreams.links.link import Ticket
from interlock.upstreams.said import about

if TYPE_CHECKING:
    from interlock.upstreams.peer import Peer

_MOST: Final = 100
"""An upstream may have so many questions open; it must not fill the memory with more."""

_decode_asked = msgspec.json.Decoder(mcp.AskedParams).decode
_ASKED_OF_CLIENTS: Final = frozenset({mcp.SAMPLING, mcp.ELICITATION, mcp.ROOTS})
_log = logging.getLogger("interlock.upstreams")


class Questions:
    """The questions of one upstream."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._open: dict[bytes, Ask] = {}
        """By the upstream's own raw ids."""

    def asked(self, method: str, id: bytes, params: Raw | UnsetType, ticket: Ticket | None) -> None:
        """A request from the upstream: it wants to know something of whoever called it."""
        peer, link = self._peer, self._peer.link
        if method == mcp.PING:
            link.post(jsonrpc.result_response(id, b"{}"), b"")
            return
        if peer.speaks_ax and method not in _ASKED_OF_CLIENTS:
            message = f"{method}: a subserver is called by its parent, and does not call it."
            link.post(jsonrpc.error_response(id, -32601, message), b"")
            return
        if peer.era is mcp.Era.STATELESS:
            message = f"{method}: MCP {peer.revision} has no requests from servers."
            link.post(jsonrpc.error_response(id, -32601, message), b"")
            return
        if id in self._open or len(self._open) >= _MOST:
            message = "This id is in use, or too many questions are open."
            link.post(jsonrpc.error_response(id, -32600, message), b"")
            return

        def answered(answer: Answer) -> None:
            self._open.pop(id, None)
            if exchange is not None and exchange.asks is not None:
                exchange.asks.pop(id, None)
            if answer.refused:
                response = jsonrpc.error_response(id, answer.code, answer.message, answer.data)
            else:
                response = jsonrpc.result_response(id, answer.result)
            link.post(response, b"")

        ask = Ask(
            method, b"" if params is UNSET else mcp.past_this_hop(params), answered, peer.label
        )
        request = about(params) if peer.speaks_ax and params is not UNSET else None
        known = ticket if request is None else peer.pending.get(request)
        over = request is not None and known is None
        exchange = whose = None if over else peer.whose(known)
        call = None if exchange is None else exchange.call
        back = peer.back if exchange is None else exchange.back
        if back is None or (call is None and peer.session is None):
            ask.refuse(
                -32601,
                f"It is not clear who is to answer {method}: nobody calls this server now, or "
                "several do. `sessions: private` gives each caller a server of its own.",
            )
            return
        self._expect_progress(ask)
        self._open[id] = ask
        if whose is not known and call is not None and call.session is not None:
            # Whose it is was only guessed. Its client stays, and may answer when that request is
            # long over.
            exchange = None
        if exchange is not None:
            if exchange.asks is None:
                exchange.asks = {}
            exchange.asks[id] = ask
        try:
            back.asked(ask, call, peer.session)
        except Exception:
            _log.exception("%s: %s could not be put to its caller", peer.label, method)
            ask.refuse(-32603, "The node failed to relay this.")

    def withdrawn(self, id: bytes, reason: str) -> bool:
        """The upstream no longer wants to know. False: it never asked."""
        ask = self._open.pop(id, None)
        if ask is None:
            return False
        ask.withdraw(reason)
        return True

    def take_back(self, id: bytes, ask: Ask, reason: str) -> None:
        """The request that it was asked for is over: both sides are told."""
        self._open.pop(id, None)
        if ask.open:
            ask.withdraw(reason)
            if not self._peer.closed.done():
                self._peer.link.post(jsonrpc.error_response(id, -32603, reason), b"")

    def drop(self, reason: str) -> None:
        """The upstream is gone, with all that it asked."""
        asks, self._open = self._open, {}
        for ask in asks.values():
            ask.withdraw(reason)

    def _expect_progress(self, ask: Ask) -> None:
        """Pass on how the answer comes along, if the upstream wants to hear that."""
        if not ask.params:
            return
        try:
            meta = _decode_asked(ask.params).meta
            token = None if meta is UNSET else meta.get(mcp.META_PROGRESS_TOKEN)
        except (msgspec.DecodeError, RecursionError):
            return
        if token is not None:
            ask.progress_token = bytes(token)
            ask.on_progress = lambda params: self._peer.link.post(
                jsonrpc.notification(mcp.PROGRESS, params), b""
            )
