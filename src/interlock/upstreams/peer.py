"""The MCP client that sits at the near end of a link: ids, eras, progress, cancellation.

A peer serves every caller of the node at once. Ids and progress tokens are its own, so callers
cannot collide; an answer that nobody waits for is dropped; an answer with an unknown id harms
nobody.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from interlock.call import Call, Done, Hear, Outcome, UpstreamAnsweredError
from interlock.errors import UPSTREAM_LOST, UPSTREAM_PROTOCOL, InterlockError
from interlock.protocol import jsonrpc, mcp
from interlock.upstreams.exchange import Exchange
from interlock.upstreams.links.link import Link, NobodyYet, Ticket
from interlock.upstreams.wording import Wording

_log = logging.getLogger("interlock.upstreams")

_NOT_CANCELLED: Final = frozenset({mcp.INITIALIZE, mcp.DISCOVER})
"""Requests that open a conversation: while there is none, nothing can be cancelled in it."""


class _Incoming(msgspec.Struct, gc=False):
    """A message from an upstream. Our own ids are integers; its requests may have any id."""

    id: int | str | UnsetType | None = UNSET
    method: str | UnsetType = UNSET
    params: Raw | UnsetType = UNSET
    result: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET


_decode_incoming = msgspec.json.Decoder(_Incoming).decode
_decode_batch = msgspec.json.Decoder(list[Raw]).decode
_decode_progress = msgspec.json.Decoder(mcp.ProgressParams).decode


class Peer:
    """One MCP connection to an upstream."""

    def __init__(
        self, label: str, link: Link, own_info: bytes, mask: Callable[[str], str] = str
    ) -> None:
        """`mask` makes the upstream's own words fit to be repeated."""
        self.label = label
        self.link = link
        self.pending: dict[int, Exchange] = {}
        self.answered = 0
        self.noise = 0
        self.era = mcp.Era.SESSION
        self.revision = ""
        self._wording = Wording(self.era, "", own_info, http=False)
        self.capabilities: dict[str, Any] = {}
        self.instructions: str | None = None
        self.server_info: dict[str, Any] = {}
        self.on_tools_changed: Callable[[], None] | None = None
        self.on_lost: Callable[[str], None] | None = None
        self.closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.own_info = own_info
        self.mask = mask
        # Not to be guessed: an upstream talked into answering twice must not hit upon an id.
        self._first_id = self._next_id = secrets.randbelow(2**40)
        early = link.receiver
        if isinstance(early, NobodyYet):
            self.noise += early.heard
        link.receiver = self

    # -- what goes out

    def adopt(self, era: mcp.Era, revision: str) -> None:
        """Speak this revision from now on."""
        self.era = era
        self.revision = revision
        self._wording = Wording(era, revision, self.own_info, http=self.link.is_http)

    def start(self, call: Call, hear: Hear | None, settled: Done) -> Exchange:
        """Send a caller's request on, in this upstream's own words."""
        self._next_id = id = self._next_id + 1
        exchange = Exchange(self, id, call.verb)
        exchange.call = call
        token = None
        if hear is not None and call.meta is not None:
            exchange.hear = hear
            exchange.token = token = call.meta.get(mcp.META_PROGRESS_TOKEN)
        wording = self._wording
        payload = wording.call(id, call, token)
        lines = b""
        if wording.with_headers:
            route = call.route
            if route is not None and not route.header_params:
                lines = wording.ready_lines.get(route.upstream_name, b"")
            if not lines:
                lines = wording.header_lines(call.verb, call)
        self.pending[id] = exchange
        self.link.send(exchange, payload, lines)
        if exchange.error is not None:
            # It could not even be sent: the sender hears of that from here, and only from here.
            raise exchange.error
        exchange.on_settled = settled
        return exchange

    def request(
        self,
        method: str,
        params: dict[str, Any] | None = None,
        *,
        stays_open: bool = False,
    ) -> Exchange:
        """Send a request of the node's own."""
        self._next_id = id = self._next_id + 1
        exchange = Exchange(self, id, method)
        payload = self._wording.own(id, method, jsonrpc.encode_value(params or {}))
        lines = self._wording.header_lines(method, None)
        self.pending[id] = exchange
        if stays_open:
            self.link.send_open(exchange, payload, lines)
        else:
            self.link.send(exchange, payload, lines)
        return exchange

    def notify(self, method: str, params: dict[str, Any] | None = None) -> None:
        encoded = None if params is None else jsonrpc.encode_value(params)
        self.link.post(jsonrpc.notification(method, encoded), b"")

    def abandon(self, exchange: Exchange, reason: str) -> None:
        """Forget a request, and tell the upstream to stop working on it."""
        if self.pending.pop(exchange.id, None) is None:
            return
        if exchange.method not in _NOT_CANCELLED and not (
            self.link.is_http and self.era is mcp.Era.STATELESS
        ):
            # On stateless HTTP closing the stream says it all; everywhere else it must be said.
            self.notify(mcp.CANCELLED, {"requestId": exchange.id, "reason": reason})
        self.link.drop(exchange)

    # -- what comes in

    def deliver(self, data: bytes, ticket: Ticket | None) -> None:
        """A message from the upstream. Garbage is counted, and harms nobody."""
        try:
            if not data.isascii():
                data.decode()
            incoming = _decode_incoming(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._unreadable(data, ticket)
            return
        if incoming.method is UNSET:
            result = incoming.result
            if result is not UNSET and (ticket is None or incoming.id == ticket.id):
                exchange = self.pending.get(incoming.id)  # type: ignore[arg-type]
                raw = bytes(result)
                if exchange is not None and raw[:1] == b"{":
                    # The answer that everybody hopes for; anything else takes the long look.
                    del self.pending[exchange.id]
                    self.answered += 1
                    exchange.succeed(Outcome(raw, self.era, mcp.glance_at(raw)))
                    return
            self._answer(incoming, ticket)
        elif incoming.id is UNSET:
            self._notification(incoming.method, incoming.params, ticket)
        else:
            self._refuse(incoming.method, jsonrpc.encode_value(incoming.id))

    def _unreadable(self, data: bytes, ticket: Ticket | None) -> None:
        """No message: a batch, where the revision has batches, or noise."""
        if self.revision in mcp.BATCH_REVISIONS and data.lstrip()[:1] == b"[":
            try:
                batch = _decode_batch(data)
            except (msgspec.DecodeError, RecursionError):
                batch = []
            for item in batch:
                member = bytes(item)
                if member[:1] == b"{":
                    self.deliver(member, ticket)
            if batch:
                return
        self.noise += 1

    def undelivered(self, id: int, why: str) -> None:
        exchange = self.pending.get(id)
        if exchange is not None:
            exchange.fail(UPSTREAM_PROTOCOL, f"{self.label} answered, but: {why}", sent=True)

    def _answer(self, incoming: _Incoming, ticket: Ticket | None) -> None:
        id = incoming.id
        if ticket is not None and id != ticket.id:
            if incoming.error is UNSET or isinstance(id, int):
                # Whatever it answers, it is not what was asked here.
                self.noise += 1
                return
            # An error about no request in particular (null, nothing, or a word: our own ids are
            # numbers). On a stream of its own it is clear which one it is about.
            id = ticket.id
        exchange = self.pending.pop(id, None)  # type: ignore[arg-type]
        if exchange is None:
            # The late answer to something that was given up is no fault of the upstream's.
            if not (isinstance(id, int) and self._first_id < id <= self._next_id):
                self.noise += 1
            return
        self.answered += 1
        result = incoming.result
        if result is not UNSET:
            exchange.fail(
                UPSTREAM_PROTOCOL, f"{self.label}: its result is not an object.", sent=True
            )
        elif incoming.error is not UNSET:
            error = jsonrpc.decode_error(incoming.error)
            data = None if error.data is UNSET else error.data
            exchange.fail_with(UpstreamAnsweredError(error.code, self.mask(error.message), data))
        else:
            exchange.fail(
                UPSTREAM_LOST, f"{self.label} answered with neither result nor error.", sent=True
            )

    def _notification(self, method: str, params: Raw | UnsetType, ticket: Ticket | None) -> None:
        if method == mcp.PROGRESS:
            self._progress(params)
        elif method == mcp.TOOLS_CHANGED:
            if self.on_tools_changed is not None:
                self.on_tools_changed()
        elif ticket is not None and isinstance(ticket, Exchange) and ticket.hear is not None:
            self._tell(ticket.hear, method, b"{}" if params is UNSET else params)

    def _progress(self, params: Raw | UnsetType) -> None:
        if params is UNSET:
            return
        try:
            token = _decode_progress(params).progress_token
            exchange = self.pending.get(token) if isinstance(token, int) else None
            if exchange is None or exchange.hear is None or exchange.token is None:
                return
            members = jsonrpc.decode_members(params)
        except (msgspec.DecodeError, InterlockError):
            self.noise += 1
            return
        members["progressToken"] = Raw(exchange.token)
        self._tell(exchange.hear, mcp.PROGRESS, jsonrpc.encode_members(members))

    def _tell(self, hear: Hear, method: str, params: bytes | Raw) -> None:
        try:
            hear(method, params)
        except Exception:
            # One caller's trouble is not that of the others on this link.
            _log.exception("%s: a caller could not take %s", self.label, method)

    def _refuse(self, method: str, id: bytes) -> None:
        """A request from the upstream: alive we are, everything else we cannot do for it."""
        if method == mcp.PING:
            self.link.post(jsonrpc.result_response(id, b"{}"), b"")
            return
        message = f"{method} is not offered to servers by this node."
        self.link.post(jsonrpc.error_response(id, -32601, message), b"")

    def retired(self, reason: str) -> None:
        """The link takes nothing more; what is under way may still be answered."""
        if not self.closed.done():
            self.closed.set_result(reason)
            if self.on_lost is not None:
                self.on_lost(reason)

    def lost(self, reason: str) -> None:
        """The link is gone: everybody who waits is told."""
        self.retired(reason)
        for exchange in list(self.pending.values()):
            exchange.fail(
                UPSTREAM_LOST, f"{self.label} was lost during the call: {reason}", sent=True
            )

    async def close(self) -> None:
        await self.link.close()
        self.lost("closed by the node")
