"""The MCP client of one upstream connection: request ids, revisions, progress, client requests.

One connection may serve all callers of the node. The node assigns request ids and progress tokens,
so callers cannot collide. A response to an abandoned request is ignored, a response with an unknown
id is counted. Client requests and notifications of the upstream go to the caller of the request on
whose stream they came, else to the only caller with a pending request. If two callers are possible,
the message goes to neither.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from functools import partial
from typing import Any, Final, cast

import msgspec
from msgspec import UNSET, Raw, UnsetType

from interlock.core.call import (
    Call,
    Client,
    ClientRequest,
    ClientResponse,
    ClientSession,
    Outcome,
    Route,
)
from interlock.core.pipeline.notification_filter import is_wanted
from interlock.core.ports import ResponseHandler
from interlock.core.upstreams.notification_limits import NotificationLimiter
from interlock.core.upstreams.pending_request import PendingRequest, error_from_response
from interlock.core.upstreams.transports.transport import (
    EarlyReceiver,
    TransportRequest,
    UpstreamTransport,
)
from interlock.errors import INTERNAL_ERROR_TEXT, UPSTREAM_LOST, UPSTREAM_PROTOCOL, ProtocolError
from interlock.protocol import headers, jsonrpc, mcp
from interlock.protocol import mcpax as ax
from interlock.protocol import mcpax as tree
from interlock.protocol.jsonrpc import decode_members, decode_value, encode_members, encode_value
from interlock.protocol.mcp import LOG_MESSAGE

# -- Messages of upstreams, decoded as far as the client handles them itself.


class IncomingMessage(msgspec.Struct, gc=False):
    """A message of an upstream. Ids of the node are integers; ids of the upstream may be any."""

    id: int | str | UnsetType | None = UNSET
    result: Raw | UnsetType = UNSET
    method: str | UnsetType = UNSET
    params: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET


decode_incoming = msgspec.json.Decoder(IncomingMessage).decode
decode_batch = msgspec.json.Decoder(list[Raw]).decode
decode_progress = msgspec.json.Decoder(mcp.ProgressParams).decode
decode_updated = msgspec.json.Decoder(mcp.ResourceUpdatedParams).decode
decode_cancelled = msgspec.json.Decoder(mcp.CancelledParams).decode

LIST_KINDS: Final = {
    mcp.TOOLS_CHANGED: "tools",
    mcp.PROMPTS_CHANGED: "prompts",
    mcp.RESOURCES_CHANGED: "resources",
}
"""The list that a notification announces as changed."""


def decode_batch_members(data: bytes) -> list[Raw]:
    """Return the messages of a JSON-RPC batch. An empty list: the data is no batch."""
    if data.lstrip()[:1] != b"[":
        return []
    try:
        return decode_batch(data)
    except (msgspec.DecodeError, RecursionError):
        return []


# -- Notifications of an upstream, prepared for relaying: their source and their request. Pure.

_REQUEST = ax.REQUEST.encode()
UNKNOWN_REQUEST: Final = -1
"""The message is about a request that is none of the node's."""
NO_REQUEST: Final = -2
"""The message is about no request: all connected clients may receive it."""


class _Meta(msgspec.Struct, gc=False):
    request: int | str | UnsetType | None = msgspec.field(default=UNSET, name=ax.REQUEST)


class _Params(msgspec.Struct, gc=False):
    meta: _Meta | UnsetType = msgspec.field(default=UNSET, name="_meta")


_decode = msgspec.json.Decoder(_Params).decode


def find_request_id(params: bytes | Raw) -> int | None:
    """Return the id of the request that a subserver's message is about (MCP-AX).

    Returns:
        The id, UNKNOWN_REQUEST or NO_REQUEST. None: the message does not say.
    """
    # Ids of the node are numbers. A node sends `null` for a message that is about no request.
    # The key may be spelled with an escape.
    raw = bytes(params)
    if raw.find(_REQUEST) < 0 and raw.find(b"\\u") < 0:
        return None
    try:
        meta = _decode(raw).meta
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return UNKNOWN_REQUEST if raw.find(_REQUEST) >= 0 else None
    if meta is UNSET or meta.request is UNSET:
        return None
    if meta.request is None:
        return NO_REQUEST
    return meta.request if isinstance(meta.request, int) and meta.request >= 0 else UNKNOWN_REQUEST


def add_source(method: str, params: bytes, segment: str) -> bytes:
    """Return the params of a notification with `segment` prepended to its source.

    Raises:
        ProtocolError: the params are not an object.
    """
    if not segment:
        return params
    members = decode_members(params)
    try:
        meta = decode_members(members["_meta"])
    except (KeyError, ProtocolError):
        meta = {}
    meta[ax.SOURCE] = _prefix_segment(meta.get(ax.SOURCE), segment)
    members["_meta"] = Raw(encode_members(meta))
    if method == LOG_MESSAGE:
        members["logger"] = _prefix_segment(members.get("logger"), segment)
    return encode_members(members)


def _prefix_segment(name: Raw | None, segment: str) -> Raw:
    text = None if name is None else decode_value(name)
    return Raw(encode_value(f"{segment}.{text}" if isinstance(text, str) and text else segment))


# -- A caller's request as one upstream expects it: its revision, ids, tool names and headers.
#
# Everything that is the same for many calls is encoded once and cached. What remains per call is
# the concatenation of byte strings.

_MAX_CACHED_ENTRIES: Final = 20_000
_AX_CAPABILITIES: Final = encode_value(
    {"experimental": {tree.EXPERIMENT: {"versions": tree.VERSIONS}}}
)
_STATELESS: Final = mcp.Era.STATELESS
"""A module constant, because looking up a member of an enumeration is slow."""


class RequestEncoder:
    """Encodes requests to one upstream."""

    def __init__(
        self,
        era: mcp.Era,
        revision: str,
        node_info: bytes,
        *,
        http: bool,
        ax: bool = False,
        encode_token: Callable[[Call], bytes] | None = None,
    ) -> None:
        """
        Args:
            node_info: the `Implementation` object of this node, encoded.
            http: requests need header lines (stateless generation only).
            ax: `tools/call` carries its route through the tree (MCP-AX).
            encode_token: returns further `_meta` members of such a call, each with a leading comma.
        """
        self.era = era
        self._ax = ax
        # A bound method: calling an object with `__call__` costs more.
        self._encode_token = None if encode_token is None else cast("Any", encode_token).__call__
        self._stateless = era is mcp.Era.STATELESS
        self.with_headers = http and self._stateless
        self._ready_lines: dict[str, bytes] = {}
        self.last_route: Route | None = None
        """The route of the last call whose headers do not depend on its arguments."""
        self.last_lines = b""
        """The header lines of `last_route`."""
        # `_meta` of calls without members of their own, by the capabilities of their client.
        self._ready_meta: dict[bytes, bytes] = {}
        # The last of these, by the very objects that it was encoded for.
        self._last_request_meta: dict[str, Raw] | None = None
        self._last_client: Client | None = None
        self._last_meta = self._last_meta_members = b""
        self._session_meta: dict[tuple[bytes, str | None], bytes] = {}
        # `_meta` of the stateless generation up to the value of clientCapabilities.
        self._meta_head = b'"%b":"%b","%b":%b,"%b":' % (
            mcp.META_VERSION.encode(),
            revision.encode(),
            mcp.META_CLIENT_INFO.encode(),
            node_info,
            mcp.META_CLIENT_CAPABILITIES.encode(),
        )

    def encode_call(self, id: int, call: Call, token: Raw | None) -> bytes:
        """Return a caller's request. `token`: the caller's progress token, if it wants progress."""
        request_meta, client = call.meta, call.client
        if request_meta is None:
            meta = self._plain_meta(id, call) if self._stateless else b""
        elif request_meta is self._last_request_meta and client is self._last_client:
            meta = self._last_meta
        elif (
            len(request_meta) == 3
            and self._stateless
            and client.era is _STATELESS
            and mcp.META_CLIENT_INFO in request_meta
        ):
            # The three members that every stateless request has. None of them is forwarded.
            meta = self._ready_meta.get(client.capabilities) or self._cache_meta(id, call)
            if call.hop is not None:
                # All calls of a parent arrive on one channel and repeat the same metadata.
                self._last_request_meta, self._last_client, self._last_meta = (
                    request_meta,
                    client,
                    meta,
                )
                self._last_meta_members = meta[:-1]
        else:
            meta = self._encode_meta(id, call, token)
        route = call.route
        if route is not None:
            if self._ax:
                # The route (MCP-AX): the segment names stay as they are, the cursor points at the
                # receiver. A call without a hop enters the tree at this node.
                hop, encode_token = call.hop, self._encode_token
                route_members = route.route_members
                if hop is not None:
                    route_members = hop.next_hop_members or tree.encode_route_members(
                        hop.route, hop.cursor + 1
                    )
                # The token of the caller, if hop tokens are enabled.
                token_members = b"" if encode_token is None else encode_token(call)
                if meta and call.extra_params is None:
                    meta_members = self._last_meta_members if meta is self._last_meta else meta[:-1]
                    return (
                        b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":'
                        b'{"name":%b,"arguments":%b%b%b%b}}}'
                        % (
                            id,
                            route.upstream_name_json,
                            call.arguments,
                            meta_members,
                            route_members,
                            token_members,
                        )
                    )
                meta = _add_members(meta, route_members + token_members)
            if call.extra_params is None:
                return (
                    b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":'
                    b'{"name":%b,"arguments":%b%b}}'
                    % (id, route.upstream_name_json, call.arguments, meta)
                )
            return (
                b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":'
                b'{"name":%b,"arguments":%b%b%b}}'
                % (
                    id,
                    route.upstream_name_json,
                    call.arguments,
                    _encode_members(call.extra_params),
                    meta,
                )
            )
        if self._encode_token is not None:
            meta = _add_members(meta, self._encode_token(call))
        params = (_encode_members(call.extra_params) + meta)[1:] if call.extra_params else meta[1:]
        return b'{"jsonrpc":"2.0","id":%d,"method":%b,"params":{%b}}' % (
            id,
            encode_value(call.method),
            params,
        )

    def encode_node_request(self, id: int, method: str, params: bytes) -> bytes:
        """Return a request of the node itself. `params` is an encoded object."""
        if self._stateless:
            comma = b"," if params != b"{}" else b""
            # `tools/list` requests the MCP-AX metadata of tools, too.
            capabilities = _AX_CAPABILITIES if method == mcp.TOOLS_LIST else b"{}"
            params = b'%b%b"_meta":{%b%b}}' % (params[:-1], comma, self._meta_head, capabilities)
        return b'{"jsonrpc":"2.0","id":%d,"method":%b,"params":%b}' % (
            id,
            encode_value(method),
            params,
        )

    def encode_header_lines(self, method: str, call: Call | None) -> bytes:
        """Return the header lines that mirror the request (`Mcp-Method`, `Mcp-Name`, …)."""
        if not self.with_headers:
            return b""
        route = None if call is None else call.route
        if route is None:
            # Names that a caller chose are encoded each time and never cached.
            lines = b"Mcp-Method: %b\r\n" % headers.encode_header_value(method).encode()
            name = None if call is None else _target_name(call)
            if name is not None:
                lines += b"Mcp-Name: %b\r\n" % headers.encode_header_value(name).encode()
            return lines
        name = route.upstream_name
        cached = self._ready_lines.get(name)
        if cached is None:
            cached = b"Mcp-Method: tools/call\r\nMcp-Name: %b\r\n" % (
                headers.encode_header_value(name).encode()
            )
            if len(self._ready_lines) < _MAX_CACHED_ENTRIES:
                self._ready_lines[name] = cached
        lines = cached
        if route.header_params and call is not None:
            for header, text in headers.write_param_headers(
                route.header_params, call.decoded_arguments
            ):
                lines += b"%b: %b\r\n" % (header.encode(), text.encode())
        else:
            self.last_route, self.last_lines = route, lines
        return lines

    def _plain_meta(self, id: int, call: Call) -> bytes:
        """Return `_meta` for a client that sent none: its metadata comes from its session."""
        session = call.session
        cache_key = (call.client.capabilities, None if session is None else session.log_level)
        meta = self._session_meta.get(cache_key)
        if meta is None:
            meta = self._encode_meta(id, call, None)
            if len(self._session_meta) < _MAX_CACHED_ENTRIES:
                self._session_meta[cache_key] = meta
        return meta

    def _cache_meta(self, id: int, call: Call) -> bytes:
        meta = self._encode_meta(id, call, None)
        if len(self._ready_meta) < _MAX_CACHED_ENTRIES:
            self._ready_meta[call.client.capabilities] = meta
        return meta

    def _encode_meta(self, id: int, call: Call, token: Raw | None) -> bytes:
        """Return `,"_meta":{…}` for this hop: required and forwarded members, our token."""
        meta = call.meta
        if not self._stateless:
            if meta is None:
                return b""
            forwarded = encode_members(mcp.select_forwarded_meta(meta))
            if token is None:
                return b"" if forwarded == b"{}" else b',"_meta":' + forwarded
            if forwarded == b"{}":
                return b',"_meta":{"progressToken":%d}' % id
            return b',"_meta":{"progressToken":%d,%b' % (id, forwarded[1:])
        # The capabilities are those of the caller, not of the node.
        capabilities = call.client.capabilities
        if call.client.era is mcp.Era.SESSION:
            capabilities = mcp.relayed_capabilities(capabilities)
        parts = [b',"_meta":{', self._meta_head, capabilities]
        if token is not None:
            parts.append(b',"progressToken":%d' % id)
        level = None if meta is None else meta.get(mcp.META_LOG_LEVEL)
        if level is None and call.session is not None and call.session.log_level is not None:
            level = Raw(encode_value(call.session.log_level))
        if level is not None:
            parts.append(b',"%b":%b' % (mcp.META_LOG_LEVEL.encode(), level))
        if meta is not None:
            own_members = mcp.select_forwarded_meta(meta)
            if own_members:
                parts += (b",", encode_members(own_members)[1:-1])
        parts.append(b"}")
        return b"".join(parts)


def _add_members(meta: bytes, members: bytes) -> bytes:
    """Return `meta` with more members, each of which has a leading comma."""
    if meta:
        return b"%b%b}" % (meta[:-1], members)
    return b',"_meta":{%b}' % members[1:] if members else b""


def _encode_members(members: dict[str, Raw]) -> bytes:
    """Return `,"key":value` for each member."""
    return b"," + encode_members(members)[1:-1]


def _target_name(call: Call) -> str | None:
    field = headers.NAME_FIELDS.get(call.method)
    if field is None or call.extra_params is None or field not in call.extra_params:
        return None
    name = decode_value(call.extra_params[field])
    return name if isinstance(name, str) else None


# -- Client requests of an upstream. They go to the caller that they are about, and the response
# carries the upstream's own id.
#
# This class finds the caller; the caller's ResponseHandler decides what happens with the request.

_MAX_OPEN_REQUESTS: Final = 100
"""Open client requests of one upstream. More of them could fill the memory."""

_decode_server_request = msgspec.json.Decoder(mcp.ServerRequestParams).decode
_log = logging.getLogger("interlock.upstreams")


class UpstreamRequests:
    """The client requests of one upstream."""

    def __init__(self, upstream_client: UpstreamClient) -> None:
        self._upstream_client = upstream_client
        self._open: dict[bytes, ClientRequest] = {}
        """Open requests by the upstream's raw id."""

    def on_request(
        self, method: str, id: bytes, params: Raw | UnsetType, request: TransportRequest | None
    ) -> None:
        """Relay a client request (sampling, elicitation, roots) to the caller that it is about."""
        upstream_client, transport = self._upstream_client, self._upstream_client.transport
        if method == mcp.PING:
            transport.post(jsonrpc.result_response(id, b"{}"), b"")
            return
        if upstream_client.speaks_ax and method not in mcp.CLIENT_REQUESTS:
            message = f"{method}: a subserver cannot send requests to its parent."
            transport.post(jsonrpc.error_response(id, -32601, message), b"")
            return
        if upstream_client.era is mcp.Era.STATELESS:
            message = f"{method}: servers cannot send requests in MCP {upstream_client.revision}."
            transport.post(jsonrpc.error_response(id, -32601, message), b"")
            return
        if id in self._open or len(self._open) >= _MAX_OPEN_REQUESTS:
            message = f"The request id is in use, or {_MAX_OPEN_REQUESTS} requests are open."
            transport.post(jsonrpc.error_response(id, -32600, message), b"")
            return

        def on_response(response: ClientResponse) -> None:
            self._open.pop(id, None)
            if pending is not None and pending.client_requests is not None:
                pending.client_requests.pop(id, None)
            if response.is_error:
                message = jsonrpc.error_response(id, response.code, response.message, response.data)
            else:
                message = jsonrpc.result_response(id, response.result)
            transport.post(message, b"")

        client_request = ClientRequest(
            method,
            b"" if params is UNSET else mcp.remove_hop_meta(params),
            on_response,
            upstream_client.label,
        )
        request_id = (
            find_request_id(params) if upstream_client.speaks_ax and params is not UNSET else None
        )
        request = request if request_id is None else upstream_client.pending.get(request_id)
        is_finished = request_id is not None and request is None
        pending = guess = None if is_finished else upstream_client.find_caller_request(request)
        call = None if pending is None else pending.call
        handler = upstream_client.handler if pending is None else pending.handler
        if handler is None or (call is None and upstream_client.session is None):
            client_request.reject(
                -32601,
                f"Cannot relay {method}: no caller or several callers use this connection. Set "
                "`sessions: private` for this server to give each caller a session of its own.",
            )
            return
        self._expect_progress(client_request)
        self._open[id] = client_request
        if guess is not request and call is not None and call.session is not None:
            # The caller was inferred. A session client stays connected and may respond after its
            # own request has ended.
            pending = None
        if pending is not None:
            if pending.client_requests is None:
                pending.client_requests = {}
            pending.client_requests[id] = client_request
        try:
            handler.on_request(client_request, call, upstream_client.session)
        except Exception:
            _log.exception(
                "upstream %s: cannot relay %s to its caller", upstream_client.label, method
            )
            client_request.reject(-32603, INTERNAL_ERROR_TEXT)

    def cancel(self, id: bytes, reason: str) -> bool:
        """Cancel a request on behalf of the upstream. False: there is no such request."""
        client_request = self._open.pop(id, None)
        if client_request is None:
            return False
        client_request.withdraw(reason)
        return True

    def withdraw(self, id: bytes, client_request: ClientRequest, reason: str) -> None:
        """Withdraw a client request whose call has ended, and inform both sides."""
        self._open.pop(id, None)
        if client_request.is_open:
            client_request.withdraw(reason)
            if not self._upstream_client.closed.done():
                self._upstream_client.transport.post(
                    jsonrpc.error_response(id, -32603, reason), b""
                )

    def withdraw_all(self, reason: str) -> None:
        """Withdraw all requests because the upstream is gone."""
        client_requests, self._open = self._open, {}
        for client_request in client_requests.values():
            client_request.withdraw(reason)

    def _expect_progress(self, client_request: ClientRequest) -> None:
        """Relay progress of the client's response if the upstream asked for progress."""
        if not client_request.params:
            return
        try:
            meta = _decode_server_request(client_request.params).meta
            token = None if meta is UNSET else meta.get(mcp.META_PROGRESS_TOKEN)
        except (msgspec.DecodeError, RecursionError):
            return
        if token is not None:
            client_request.progress_token = bytes(token)
            client_request.on_progress = lambda params: self._upstream_client.transport.post(
                jsonrpc.notification(mcp.PROGRESS, params), b""
            )


_NOT_CANCELLED: Final = frozenset({mcp.INITIALIZE, mcp.DISCOVER})
"""Requests that open a session. MCP does not allow cancelling `initialize`."""


_ABANDONED_SECONDS: Final = 30.0
"""The time for which an upstream may still send messages about an abandoned request."""
_TREE_NOTIFICATIONS: Final = "notifications/mcpax/"
_BRACE: Final = ord("{")


class UpstreamClient:
    """One MCP connection to an upstream."""

    def __init__(
        self,
        label: str,
        transport: UpstreamTransport,
        node_info: bytes,
        mask: Callable[[str], str] = str,
    ) -> None:
        """
        Args:
            mask: removes secrets from texts of the upstream.
        """
        self.label = label
        self.transport = transport
        self.pending: dict[int, PendingRequest] = {}
        self.response_count = 0
        self.noise = 0
        self.era = mcp.Era.SESSION
        self.revision = ""
        self._encoder = RequestEncoder(self.era, "", node_info, http=False)
        self.capabilities: dict[str, Any] = {}
        self.instructions: str | None = None
        self.server_info: dict[str, Any] = {}
        self._abandoned: dict[int, tuple[object, float]] = {}
        self.client_requests = UpstreamRequests(self)
        """Open client requests of the upstream."""
        self.on_changed: Callable[[str], None] | None = None
        """Called with the changed list: `tools`, `prompts` or `resources`."""
        self.on_updated: Callable[[str], None] | None = None
        """Called with the URI of a resource that changed."""
        self.on_acknowledged: Callable[[Raw], None] | None = None
        """Called with the params of the acknowledgement of a subscription."""
        self.on_notification: Callable[[str, bytes | Raw], None] | None = None
        """Called with the method and params of every other notification without a request."""
        self.drops_notifications = False
        """True if notifications are discarded, except progress, list changes and resource
        updates."""
        self.on_lost: Callable[[str], None] | None = None
        self._speaks_ax = False
        self._encode_token: Callable[[Call], bytes] | None = None
        self._encode_token_header: Callable[[Call], bytes] | None = None
        """The same encoder if tokens are sent as header lines (HTTP)."""
        self.on_ax: Callable[[str, bytes | None, Raw | UnsetType], bool] | None = None
        """Handles MCP-AX messages of a subserver before anything else: the method, the raw id of a
        request, the params. Returns True if the message was handled."""
        self.segment = ""
        """The name of the upstream in relayed notifications. Empty: none is added."""
        self.notification_limiter: NotificationLimiter | None = None
        """Limits notifications of the upstream. None: no limit."""
        self.session: ClientSession | None = None
        """The only client of this connection, if it belongs to one session client."""
        self.client_capabilities = b"{}"
        """The client capabilities that are sent to a session server."""
        self.is_private = False
        """True if this connection serves one client only."""
        self.handler: ResponseHandler | None = None
        """Receives client requests that are about no call."""
        self.closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.node_info = node_info
        self.mask = mask
        # Random, so that an upstream that is tricked into a second response cannot guess an id.
        self._first_id = self._next_id = secrets.randbelow(2**40)
        early = transport.receiver
        if isinstance(early, EarlyReceiver):
            self.noise += early.message_count
        transport.receiver = self

    # -- what goes out

    def set_revision(self, era: mcp.Era, revision: str) -> None:
        """Use this revision from now on."""
        self.era = era
        self.revision = revision
        self._encoder = RequestEncoder(
            era,
            revision,
            self.node_info,
            http=self.transport.is_http,
            ax=self._speaks_ax,
            encode_token=self._encode_token if self._speaks_ax else None,
        )

    @property
    def speaks_ax(self) -> bool:
        """Return whether the other end is a node or subserver that speaks MCP-AX."""
        return self._speaks_ax

    @speaks_ax.setter
    def speaks_ax(self, speaks: bool) -> None:
        self._speaks_ax = speaks
        self.set_revision(self.era, self.revision)

    @property
    def hop_token_encoder(self) -> Callable[[Call], bytes] | None:
        """Encodes the hop token of a call: as header lines over HTTP, as members of `_meta` for
        MCP-AX. Other upstreams get no token."""
        return self._encode_token

    @hop_token_encoder.setter
    def hop_token_encoder(self, encode_token: Callable[[Call], bytes] | None) -> None:
        self._encode_token = encode_token
        self._encode_token_header = encode_token if self.transport.is_http else None
        self.set_revision(self.era, self.revision)

    def start(self, call: Call, handler: ResponseHandler) -> PendingRequest:
        """Send a caller's request, encoded for this upstream."""
        self._next_id = id = self._next_id + 1
        pending = PendingRequest(self, id, call.method, call)
        meta, token = call.meta, None
        if (
            meta is not None
            and mcp.META_PROGRESS_TOKEN in meta
            and call.on_notification is not None
        ):
            pending.progress_token = token = meta[mcp.META_PROGRESS_TOKEN]
        encoder = self._encoder
        payload = encoder.encode_call(id, call, token)
        lines = b""
        if encoder.with_headers:
            if call.route is encoder.last_route and call.route is not None:
                lines = encoder.last_lines
            else:
                lines = encoder.encode_header_lines(call.method, call)
        if self._encode_token_header is not None:
            lines = self._encode_token_header(call) + lines
        self.pending[id] = pending
        if call.is_dispatched:
            pending.dispatched_before = True
        else:
            call.is_dispatched = True
        self.transport.send(pending, payload, lines)
        if pending.error is not None:
            # The request could not be sent. The caller learns it from this exception only.
            raise pending.error
        pending.handler = handler
        return pending

    def request(
        self,
        method: str,
        params: dict[str, Any] | None = None,
        *,
        stays_open: bool = False,
    ) -> PendingRequest:
        """Send a request of the node itself."""
        self._next_id = id = self._next_id + 1
        pending = PendingRequest(self, id, method)
        payload = self._encoder.encode_node_request(id, method, jsonrpc.encode_value(params or {}))
        lines = self._encoder.encode_header_lines(method, None)
        self.pending[id] = pending
        if stays_open:
            self.transport.send_long_lived(pending, payload, lines)
        else:
            self.transport.send(pending, payload, lines)
        return pending

    def notify(self, method: str, params: dict[str, Any] | None = None) -> None:
        encoded = None if params is None else jsonrpc.encode_value(params)
        self.transport.post(jsonrpc.notification(method, encoded), b"")

    def abandon(self, pending: PendingRequest, reason: str) -> None:
        """Remove a pending request and tell the upstream to cancel it."""
        if self.pending.pop(pending.id, None) is None:
            return
        call = pending.call
        if call is not None and not self.is_private and not self.transport.is_http:
            # Later messages about this request must not reach another caller.
            now = asyncio.get_running_loop().time()
            self._abandoned[pending.id] = (_caller_key(pending, call), now)
        if pending.method not in _NOT_CANCELLED and not (
            self.transport.is_http and self.era is mcp.Era.STATELESS
        ):
            # Stateless HTTP cancels by closing the stream. Otherwise send a notification.
            self.notify(mcp.CANCELLED, {"requestId": pending.id, "reason": reason})
        self.transport.remove_request(pending)

    # -- what comes in

    def deliver(self, data: bytes, request: TransportRequest | None = None) -> None:
        """Handle a message of the upstream. Invalid messages are counted and ignored."""
        try:
            if not data.isascii():
                data.decode()
            incoming = decode_incoming(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._read_batch(data, request)
            return
        if incoming.method is UNSET:
            result = incoming.result
            if result is not UNSET and (request is None or incoming.id == request.id):
                # Not `bytes(result)`, which costs twice as much.
                raw, pending = b"" + result, None
                try:
                    glance = mcp.decode_result_summary(raw)
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                    glance = mcp.INVALID_SUMMARY
                # Every result that `read_glance` accepts is an object.
                if glance is not mcp.INVALID_SUMMARY or raw[0] == _BRACE:
                    pending = self.pending.pop(incoming.id, None)  # type: ignore[arg-type]
                if pending is not None:
                    # The common case. All others take the general path.
                    self.response_count += 1
                    call, handler = pending.call, pending.handler
                    if (
                        call is None
                        or handler is None
                        or pending.client_requests
                        or not pending.is_open
                    ):
                        pending.succeed(Outcome(raw, self.era, glance))
                        return
                    # The same as `succeed` for a caller's request, without the call. The request
                    # and its carrier refer to each other: cutting the cycle frees both at once.
                    pending.is_open = False
                    pending.carrier = None
                    handler.on_result(call, Outcome(raw, self.era, glance), None)
                    return
            self._on_response(incoming, request)
        elif incoming.id is UNSET:
            self._on_notification(incoming.method, incoming.params, request)
        else:
            id = jsonrpc.encode_value(incoming.id)
            if not self._handle_ax_message(incoming.method, id, incoming.params):
                self.client_requests.on_request(incoming.method, id, incoming.params, request)

    def _read_batch(self, data: bytes, request: TransportRequest | None) -> None:
        """Deliver the members of a batch if the revision has batches, else count the message."""
        if self.revision in mcp.BATCH_REVISIONS:
            batch = decode_batch_members(data)
            for item in batch:
                member = bytes(item)
                if member[:1] == b"{":
                    self.deliver(member, request)
            if batch:
                return
        self.noise += 1

    def on_unreadable_response(self, id: int, reason: str) -> None:
        pending = self.pending.get(id)
        if pending is not None:
            pending.fail(
                UPSTREAM_PROTOCOL, f"{self.label} sent an invalid response: {reason}", was_sent=True
            )

    def _on_response(self, incoming: IncomingMessage, request: TransportRequest | None) -> None:
        id = incoming.id
        if request is not None and id != request.id:
            if incoming.error is UNSET or isinstance(id, int):
                # The response is not for the request of this stream.
                self.noise += 1
                return
            # An error with id null, without id or with a string id (ids of the node are
            # numbers). On the stream of one request it belongs to that request.
            id = request.id
        pending = self.pending.pop(id, None)  # type: ignore[arg-type]
        if pending is None:
            # A late response to an abandoned request is no error of the upstream.
            self._abandoned.pop(id, None)  # type: ignore[arg-type]
            if not (isinstance(id, int) and self._first_id < id <= self._next_id):
                self.noise += 1
            return
        self.response_count += 1
        result = incoming.result
        if result is not UNSET:
            pending.fail(
                UPSTREAM_PROTOCOL, f"{self.label}: its result is not an object.", was_sent=True
            )
        elif incoming.error is not UNSET:
            error = jsonrpc.decode_error(incoming.error)
            pending.fail_with(error_from_response(pending, error))
        else:
            pending.fail(
                UPSTREAM_LOST,
                f"{self.label} sent a response with neither result nor error.",
                was_sent=True,
            )

    def _on_notification(
        self, method: str, params: Raw | UnsetType, request: TransportRequest | None
    ) -> None:
        if self._handle_ax_message(method, None, params):
            return
        raw_params = Raw(b"{}") if params is UNSET else params
        try:
            if method == mcp.PROGRESS:
                self._relay_progress(raw_params)
            elif method in LIST_KINDS:
                if self.on_changed is not None:
                    self.on_changed(LIST_KINDS[method])
            elif method == mcp.RESOURCE_UPDATED:
                if self.on_updated is not None:
                    uri = decode_updated(raw_params).uri
                    self._deliver_limited(partial(self.on_updated, uri), len(uri))
            elif method == mcp.ACKNOWLEDGED:
                if self.on_acknowledged is not None:
                    self.on_acknowledged(raw_params)
            elif method == mcp.CANCELLED:
                self._on_cancelled(raw_params)
            else:
                self._relay_notification(method, raw_params, request)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ProtocolError):
            self.noise += 1

    def _handle_ax_message(self, method: str, id: bytes | None, params: Raw | UnsetType) -> bool:
        """Handle a message of a subserver to its parent (MCP-AX). False: it is plain MCP."""
        if self.on_ax is None:
            return False
        if method.startswith("mcpax/") or method == mcp.INITIALIZE:
            return self.on_ax(method, id, params)
        return method == mcp.INITIALIZED

    def _on_cancelled(self, params: Raw) -> None:
        """Cancel a client request, or end a subscription."""
        cancelled = decode_cancelled(params)
        if cancelled.request_id is UNSET:
            return
        id = bytes(cancelled.request_id)
        if self.client_requests.cancel(id, cancelled.reason or "The server cancelled its request."):
            return
        try:
            pending = self.pending.get(int(id))
        except ValueError:
            return
        if pending is not None and pending.method == mcp.LISTEN:
            # Some servers end a subscription with a cancellation.
            pending.fail(UPSTREAM_LOST, f"{self.label} ended the subscription.", was_sent=True)

    def _deliver_limited(self, deliver: Callable[[], None], size: int) -> None:
        if self.notification_limiter is None:
            deliver()
        else:
            self.notification_limiter.submit(deliver, size)

    def _relay_notification(
        self, method: str, raw_params: Raw, request: TransportRequest | None
    ) -> None:
        """Relay a notification to the caller that it is about, or to all connected clients."""
        if self.drops_notifications:
            return
        params = add_source(method, mcp.remove_hop_meta(raw_params), self.segment)
        pending, is_for_all = self._find_recipient(method, raw_params, request)
        call = None if pending is None else pending.call
        if pending is None or call is None:
            if is_for_all:
                self._deliver_limited(partial(self._notify_listeners, method, params), len(params))
        elif self.notification_limiter is None:
            self._notify_caller(pending, method, params)
        elif is_wanted(call, method, params):
            self.notification_limiter.submit(
                partial(self._notify_caller_later, pending, call, method, params), len(params)
            )

    def _find_recipient(
        self, method: str, params: Raw, request: TransportRequest | None
    ) -> tuple[PendingRequest | None, bool]:
        """Return the request that a notification is about.

        The second value is True if the notification is about no request and all clients may
        receive it.
        """
        if not self._speaks_ax:
            pending = self.find_caller_request(request)
            return pending, pending is None
        if method.startswith(_TREE_NOTIFICATIONS):
            return None, True
        request_id = find_request_id(params)
        if request_id is not None:
            # Messages about ended or unknown requests go to no other caller.
            return self.pending.get(request_id), request_id == NO_REQUEST
        pending = self.find_caller_request(request)
        # With pending callers, the notification may contain data of one of them.
        return pending, pending is None and not self._has_callers()

    def _has_callers(self) -> bool:
        """Return whether a call is pending or was abandoned recently."""
        if any(pending.call is not None for pending in self.pending.values()):
            return True
        return bool(self._abandoned) and bool(self._recently_abandoned())

    def _notify_listeners(self, method: str, params: bytes) -> None:
        if self.on_notification is not None:
            try:
                self.on_notification(method, params)
            except Exception:
                # An error of one client must not affect the connection.
                _log.exception("upstream %s: cannot send %s to a client", self.label, method)

    def _notify_caller_later(
        self, pending: PendingRequest, call: Call, method: str, params: bytes
    ) -> None:
        """Send a delayed notification about a request that may have ended."""
        session = call.session
        if pending.is_open:
            self._notify_caller(pending, method, params)
        elif session is not None and session.is_alive and is_wanted(call, method, params):
            session.send_notification(method, params)
        elif self.notification_limiter is not None:
            self.notification_limiter.count_dropped()

    def _relay_progress(self, params: Raw) -> None:
        token = decode_progress(params).progress_token
        pending = self.pending.get(token) if isinstance(token, int) else None
        if pending is None or pending.progress_token is None:
            return
        if self.notification_limiter is not None and not self.notification_limiter.allow_progress():
            return
        members = jsonrpc.decode_members(params)
        members["progressToken"] = Raw(pending.progress_token)
        self._notify_caller(
            pending, mcp.PROGRESS, mcp.remove_hop_meta(jsonrpc.encode_members(members))
        )

    def _notify_caller(self, pending: PendingRequest, method: str, params: bytes | Raw) -> None:
        call, handler = pending.call, pending.handler
        if call is None or handler is None:
            return
        try:
            handler.on_notification(call, method, params)
        except Exception:
            # An error of one caller must not affect the others on this connection.
            _log.exception("upstream %s: cannot send %s to a caller", self.label, method)

    def find_caller_request(self, request: TransportRequest | None) -> PendingRequest | None:
        """Return the request that a message is about. None: no request, or more than one caller."""
        if isinstance(request, PendingRequest):
            return None if request.call is None else request
        latest: PendingRequest | None = None
        latest_caller: object = None
        for pending in self.pending.values():
            call = pending.call
            if call is None:
                continue
            caller_key = _caller_key(pending, call)
            if latest is not None and caller_key != latest_caller and not self.is_private:
                return None
            latest, latest_caller = pending, caller_key
        if latest is not None and self._abandoned and self._recently_abandoned() - {latest_caller}:
            # The message may be about an abandoned request that the upstream still works on.
            return None
        return latest

    def _recently_abandoned(self) -> set[object]:
        oldest = asyncio.get_running_loop().time() - _ABANDONED_SECONDS
        for id in [id for id, entry in self._abandoned.items() if entry[1] < oldest]:
            del self._abandoned[id]
        return {caller_key for caller_key, _ in self._abandoned.values()}

    # -- the end

    def on_stream_interrupted(self, request: TransportRequest) -> None:
        """Close the stream to the client, too: the upstream will continue its stream later."""
        call = request.call if isinstance(request, PendingRequest) else None
        if call is not None and call.session is not None:
            call.session.close_stream(call)

    def on_transport_closing(self, reason: str) -> None:
        """Stop sending: the transport accepts no more requests. Pending ones may complete."""
        if not self.closed.done():
            self.closed.set_result(reason)
            if self.on_lost is not None:
                self.on_lost(reason)

    def on_transport_lost(self, reason: str) -> None:
        """Fail all pending requests because the connection is lost."""
        self.on_transport_closing(reason)
        self.client_requests.withdraw_all(reason)
        for pending in list(self.pending.values()):
            pending.fail(
                UPSTREAM_LOST, f"{self.label} was lost during the call: {reason}", was_sent=True
            )

    async def close(self) -> None:
        await self.transport.close()
        self.on_transport_lost("closed by the node")


def _caller_key(pending: PendingRequest, call: Call) -> object:
    """Return a key of the caller of a request. Behind a parent every call may have another caller,
    so each has a key of its own."""
    return pending.id if call.credentials.assigned_name else (call.caller, call.session)
