"""The MCP client that sits at the near end of a link: ids, eras, progress, cancellation.

A peer serves every caller of the node at once. Ids and progress tokens are its own, so callers
cannot collide; an answer that nobody waits for is dropped; an answer with an unknown id harms
nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from interlock.call import Call, Hear, Outcome, UpstreamAnsweredError, UpstreamGoneError
from interlock.errors import DEADLINE_EXCEEDED, UPSTREAM_LOST, Failure, InterlockError
from interlock.protocol import headers, jsonrpc, mcp
from interlock.upstreams.links.link import Link, Ticket

_EMPTY_META: Final[dict[str, Raw]] = {}


class Exchange:
    """A request on its way: the future its sender awaits, and how to give it up."""

    __slots__ = ("carrier", "future", "hear", "id", "method", "peer", "token")

    def __init__(
        self,
        peer: Peer,
        id: int,
        method: str,
        future: asyncio.Future[Outcome],
        hear: Hear | None,
        token: bytes | Raw | None,
    ) -> None:
        self.peer = peer
        self.id = id
        self.method = method
        self.future = future
        self.hear = hear
        self.token = token
        self.carrier: object | None = None

    def __await__(self) -> Generator[Any, None, Outcome]:
        return self.future.__await__()

    def abandon(self, reason: str) -> None:
        self.peer.abandon(self, reason)

    def expire(self) -> None:
        if not self.future.done():
            self.future.set_exception(
                InterlockError(
                    DEADLINE_EXCEEDED,
                    f"{self.peer.label} did not answer {self.method} in time; it was told to stop.",
                    {"upstream": self.peer.label},
                )
            )
            self.peer.abandon(self, "The deadline has passed.")

    @property
    def open(self) -> bool:
        return not self.future.done()

    def fail(
        self, failure: Failure, message: str, *, sent: bool, status: int = 0, location: str = ""
    ) -> None:
        self.peer.pending.pop(self.id, None)
        if not self.future.done():
            self.future.set_exception(
                UpstreamGoneError(failure, message, sent=sent, status=status, location=location)
            )


class _Incoming(msgspec.Struct, gc=False):
    """A message from an upstream. Our own ids are integers; its requests may have any id."""

    id: Raw | UnsetType = UNSET
    method: str | UnsetType = UNSET
    params: Raw | UnsetType = UNSET
    result: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET


_decode_incoming = msgspec.json.Decoder(_Incoming).decode
_decode_id = msgspec.json.Decoder(int).decode
_decode_progress = msgspec.json.Decoder(mcp.ProgressParams).decode


class Peer:
    """One MCP connection to an upstream."""

    def __init__(self, label: str, link: Link, own_info: bytes) -> None:
        self.label = label
        self.link = link
        self.pending: dict[int, Exchange] = {}
        self.answered = 0
        self.noise = 0
        self.era = mcp.Era.SESSION
        self.revision = ""
        self.capabilities: dict[str, Any] = {}
        self.instructions: str | None = None
        self.server_info: dict[str, Any] = {}
        self.on_tools_changed: Callable[[], None] | None = None
        self.closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.own_info = own_info
        self._next_id = 0
        self._loop = asyncio.get_running_loop()
        self._meta_head = b""
        link.receiver = self

    # -- what goes out

    def adopt(self, era: mcp.Era, revision: str) -> None:
        """Speak this revision from now on."""
        self.era = era
        self.revision = revision
        self._meta_head = b'{"%b":"%b","%b":%b,"%b":' % (
            mcp.META_VERSION.encode(),
            revision.encode(),
            mcp.META_CLIENT_INFO.encode(),
            self.own_info,
            mcp.META_CLIENT_CAPABILITIES.encode(),
        )

    def start(self, call: Call, hear: Hear | None) -> Exchange:
        """Send a caller's request on, in this upstream's own words."""
        meta = call.meta
        token = None if hear is None or meta is None else meta.get(mcp.META_PROGRESS_TOKEN)
        exchange = self._exchange(call.verb, hear, token)
        parts: list[bytes | Raw] = []
        name: str | None = None
        if call.verb == mcp.TOOLS_CALL and call.route is not None:
            name = call.route.upstream_name
            parts += (
                b'{"name":',
                call.route.upstream_name_json,
                b',"arguments":',
                call.arguments,
                b",",
            )
        else:
            parts.append(b"{")
        if call.extra:
            for key, value in call.extra.items():
                parts += (jsonrpc.encode_value(key), b":", value, b",")
            field = headers.NAME_FIELD.get(call.verb)
            if field is not None and field in call.extra:
                name = jsonrpc.decode_value(call.extra[field])
        parts += (b'"_meta":', self._meta(call, exchange), b"}")
        lines = b""
        if self.link.is_http and self.era is mcp.Era.STATELESS:
            lines = self._header_lines(call.verb, name)
            if call.route is not None and call.route.header_params:
                for header, text in headers.mirror_params(call.route.header_params, call.decoded):
                    lines += b"%b: %b\r\n" % (header.encode(), text.encode())
        self.link.send(exchange, self._envelope(exchange, b"".join(parts)), lines)
        return exchange

    def request(
        self,
        method: str,
        params: dict[str, Any] | None = None,
        *,
        stays_open: bool = False,
    ) -> Exchange:
        """Send a request of the node's own."""
        exchange = self._exchange(method, None, None)
        members: dict[str, Any] = dict(params or {})
        if self.era is mcp.Era.STATELESS:
            members["_meta"] = Raw(self._meta_head + b"{}}")
        payload = self._envelope(exchange, jsonrpc.encode_value(members))
        lines = b""
        if self.link.is_http and self.era is mcp.Era.STATELESS:
            lines = self._header_lines(method, None)
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
        if exchange.method != mcp.INITIALIZE and not (
            self.link.is_http and self.era is mcp.Era.STATELESS
        ):
            # On stateless HTTP closing the stream says it all; everywhere else it must be said.
            self.notify(mcp.CANCELLED, {"requestId": exchange.id, "reason": reason})
        self.link.drop(exchange)

    def _exchange(self, method: str, hear: Hear | None, token: bytes | Raw | None) -> Exchange:
        self._next_id = id = self._next_id + 1
        exchange = Exchange(self, id, method, self._loop.create_future(), hear, token)
        self.pending[id] = exchange
        return exchange

    @staticmethod
    def _envelope(exchange: Exchange, params: bytes) -> bytes:
        return jsonrpc.request(exchange.id, exchange.method, params)

    def _meta(self, call: Call, exchange: Exchange) -> bytes:
        """`_meta` for this hop: the caller's own keys, our token, and what the era demands."""
        parts: list[bytes] = []
        if self.era is mcp.Era.STATELESS:
            capabilities = (
                call.client.capabilities if call.client.era is mcp.Era.STATELESS else b"{}"
            )
            parts.append(self._meta_head + capabilities)
            if call.meta is not None and mcp.META_LOG_LEVEL in call.meta:
                level = bytes(call.meta[mcp.META_LOG_LEVEL])
                parts.append(b'"%b":%b' % (mcp.META_LOG_LEVEL.encode(), level))
        else:
            parts.append(b"{")
        if exchange.token is not None:
            parts.append(b'"progressToken":%d' % exchange.id)
        if call.meta:
            kept = mcp.forwardable_meta(call.meta)
            if kept:
                parts.append(jsonrpc.encode_members(kept)[1:-1])
        if len(parts) > 1 and parts[0] == b"{":
            return b"{" + b",".join(parts[1:]) + b"}"
        return b",".join(parts) + b"}"

    def _header_lines(self, method: str, name: str | None) -> bytes:
        if name is None:
            return b"Mcp-Method: %b\r\n" % method.encode()
        value = headers.encode_header_value(name).encode()
        return b"Mcp-Method: %b\r\nMcp-Name: %b\r\n" % (method.encode(), value)

    # -- what comes in

    def deliver(self, data: bytes, ticket: Ticket | None) -> None:
        """A message from the upstream. Garbage is counted, and harms nobody."""
        try:
            if not data.isascii():
                data.decode()
            incoming = _decode_incoming(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self.noise += 1
            return
        if incoming.method is UNSET:
            self._answer(incoming, ticket)
        elif incoming.id is UNSET:
            self._notification(incoming.method, incoming.params, ticket)
        else:
            self._refuse(incoming.method, bytes(incoming.id))

    def _answer(self, incoming: _Incoming, ticket: Ticket | None) -> None:
        raw_id = incoming.id
        if raw_id is UNSET or bytes(raw_id) == jsonrpc.NULL:
            # An error about something it could not read. On a stream of its own it is clear what.
            if incoming.error is UNSET or ticket is None:
                self.noise += 1
                return
            id = ticket.id
        else:
            try:
                id = _decode_id(raw_id)
            except msgspec.DecodeError:
                self.noise += 1
                return
        exchange = self.pending.pop(id, None)
        if exchange is None:
            return
        future = exchange.future
        if future.done():
            return
        self.answered += 1
        if incoming.result is not UNSET:
            future.set_result(Outcome(incoming.result, self.era))
        elif incoming.error is not UNSET:
            error = jsonrpc.decode_error(incoming.error)
            data = None if error.data is UNSET else error.data
            future.set_exception(UpstreamAnsweredError(error.code, error.message, data))
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
            ticket.hear(method, b"{}" if params is UNSET else params)

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
        exchange.hear(mcp.PROGRESS, jsonrpc.encode_members(members))

    def _refuse(self, method: str, id: bytes) -> None:
        """A request from the upstream: alive we are, everything else we cannot do for it."""
        if method == mcp.PING:
            self.link.post(jsonrpc.result_response(id, b"{}"), b"")
            return
        message = f"{method} is not offered to servers by this node."
        self.link.post(jsonrpc.error_response(id, -32601, message), b"")

    def lost(self, reason: str) -> None:
        """The link is gone: everybody who waits is told."""
        if not self.closed.done():
            self.closed.set_result(reason)
        for exchange in list(self.pending.values()):
            exchange.fail(
                UPSTREAM_LOST, f"{self.label} was lost during the call: {reason}", sent=True
            )

    async def close(self) -> None:
        await self.link.close()
        self.lost("closed by the node")
