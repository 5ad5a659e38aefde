"""The MCP client that sits at the near end of a link: ids, eras, progress, questions.

A peer may serve every caller of the node at once. Ids and progress tokens are its own, so callers
cannot collide; an answer that nobody waits for is dropped; an answer with an unknown id harms
nobody. What an upstream asks or says goes to the caller whom it is about: that of the request on
whose stream it came, else the only one who has any request under way. When that could be two
people, it goes to none of them.
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
from interlock.core.upstreams.pending_request import PendingRequest, answered_error
from interlock.core.upstreams.transports.transport import (
    EarlyReceiver,
    TransportRequest,
    UpstreamTransport,
)
from interlock.errors import UPSTREAM_LOST, UPSTREAM_PROTOCOL, ProtocolError
from interlock.protocol import headers, jsonrpc, mcp
from interlock.protocol import mcpax as ax
from interlock.protocol import mcpax as tree
from interlock.protocol.jsonrpc import decode_members, decode_value, encode_members, encode_value
from interlock.protocol.mcp import LOG_MESSAGE

# -- What upstreams say, as far as a peer reads it by itself: requests, answers, notifications.


class IncomingMessage(msgspec.Struct, gc=False):
    """A message from an upstream. Our own ids are integers; its requests may have any id."""

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

CHANGED: Final = {
    mcp.TOOLS_CHANGED: "tools",
    mcp.PROMPTS_CHANGED: "prompts",
    mcp.RESOURCES_CHANGED: "resources",
}
"""What a notification says has changed."""


def batch_of(data: bytes) -> list[Raw]:
    """The messages of a batch. Empty: it is none."""
    if data.lstrip()[:1] != b"[":
        return []
    try:
        return decode_batch(data)
    except (msgspec.DecodeError, RecursionError):
        return []


# -- What an upstream says of its own accord, made fit to be passed on: by whom, about what. Pure.

_REQUEST = ax.REQUEST.encode()
NOBODY: Final = -1
"""Said to be about a request that cannot be one of ours."""
EVERYBODY: Final = -2
"""Said to be about no request at all: whoever is connected may hear it."""


class _Meta(msgspec.Struct, gc=False):
    request: int | str | UnsetType | None = msgspec.field(default=UNSET, name=ax.REQUEST)


class _Params(msgspec.Struct, gc=False):
    meta: _Meta | UnsetType = msgspec.field(default=UNSET, name="_meta")


_decode = msgspec.json.Decoder(_Params).decode


def about(params: bytes | Raw) -> int | None:
    """The id of the request that a subserver speaks of, NOBODY or EVERYBODY. None: it does not say.

    Ids of our own are numbers. `null` is how nodes say that it is about none.
    """
    # The key may be spelled with an escape.
    raw = bytes(params)
    if raw.find(_REQUEST) < 0 and raw.find(b"\\u") < 0:
        return None
    try:
        meta = _decode(raw).meta
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return NOBODY if raw.find(_REQUEST) >= 0 else None
    if meta is UNSET or meta.request is UNSET:
        return None
    if meta.request is None:
        return EVERYBODY
    return meta.request if isinstance(meta.request, int) and meta.request >= 0 else NOBODY


def signed(method: str, params: bytes, segment: str) -> bytes:
    """The params of a notification, with the name of who said it before those that it has.

    Raises ProtocolError when they are no object.
    """
    if not segment:
        return params
    members = decode_members(params)
    try:
        meta = decode_members(members["_meta"])
    except (KeyError, ProtocolError):
        meta = {}
    meta[ax.SOURCE] = _before(meta.get(ax.SOURCE), segment)
    members["_meta"] = Raw(encode_members(meta))
    if method == LOG_MESSAGE:
        members["logger"] = _before(members.get("logger"), segment)
    return encode_members(members)


def _before(name: Raw | None, segment: str) -> Raw:
    said = None if name is None else decode_value(name)
    return Raw(encode_value(f"{segment}.{said}" if isinstance(said, str) and said else segment))


# -- A caller's request in one upstream's own words: its era, its ids, its names, its headers.
#
# Everything that is the same for many calls is made once and kept; what is left per call is
# putting byte strings one behind the other.

COMMAND_LINE: Final = "cli"
"""The face of calls that are made on the command line."""
_MOST_KEPT: Final = 20_000
_READS_AX: Final = encode_value({"experimental": {tree.EXPERIMENT: {"versions": tree.VERSIONS}}})
_STATELESS: Final = mcp.Era.STATELESS
"""Looked up once: members of an enumeration are slow to find."""


class RequestEncoder:
    """How requests to one upstream are put."""

    def __init__(
        self,
        era: mcp.Era,
        revision: str,
        own_info: bytes,
        *,
        http: bool,
        ax: bool = False,
        stamp: Callable[[Call], bytes] | None = None,
    ) -> None:
        """`ax`: calls of tools say which way they go through the tree. `stamp` gives what else is
        to stand in the `_meta` of a call there, as it stands behind other members."""
        self.era = era
        self._ax = ax
        # By its method: to call an object costs more than to call a method of it.
        self._stamp = None if stamp is None else cast("Any", stamp).__call__
        self._stateless = era is mcp.Era.STATELESS
        self.with_headers = http and self._stateless
        self._ready_lines: dict[str, bytes] = {}
        self.last_route: Route | None = None
        """The tool that was called last, where its headers say nothing of the arguments."""
        self.last_lines = b""
        """And those headers."""
        # `_meta` of calls that bring nothing of their own, by what their client can do.
        self._ready_meta: dict[bytes, bytes] = {}
        # And the last of them, by the very objects that it was made for.
        self._last_given: dict[str, Raw] | None = None
        self._last_client: Client | None = None
        self._last_meta = self._last_opened = b""
        self._session_meta: dict[tuple[bytes, str | None], bytes] = {}
        # `_meta` of the stateless wire up to the value of clientCapabilities.
        self._meta_head = b'"%b":"%b","%b":%b,"%b":' % (
            mcp.META_VERSION.encode(),
            revision.encode(),
            mcp.META_CLIENT_INFO.encode(),
            own_info,
            mcp.META_CLIENT_CAPABILITIES.encode(),
        )

    def call(self, id: int, call: Call, token: Raw | None) -> bytes:
        """The request that passes a caller's call on. `token`: the caller wants progress."""
        given, client = call.meta, call.client
        if given is None:
            meta = self._plain_meta(id, call) if self._stateless else b""
        elif given is self._last_given and client is self._last_client:
            meta = self._last_meta
        elif (
            len(given) == 3
            and self._stateless
            and client.era is _STATELESS
            and mcp.META_CLIENT_INFO in given
        ):
            # The three keys that every stateless request has, and nothing that goes on from here.
            meta = self._ready_meta.get(client.capabilities) or self._keep_meta(id, call)
            if call.hop is not None:
                # All calls of a parent come on one channel, and say the same again.
                self._last_given, self._last_client, self._last_meta = given, client, meta
                self._last_opened = meta[:-1]
        else:
            meta = self._meta(id, call, token)
        route = call.route
        if route is not None:
            if self._ax:
                # Where the call is on its way: the names of all segments stay as they are, the
                # cursor points at the receiver. Without a hop it enters the tree here.
                hop, stamp = call.hop, self._stamp
                way = route.route_members
                if hop is not None:
                    way = hop.next_hop_members or tree.encode_route_members(
                        hop.route, hop.cursor + 1
                    )
                # And for whom it is, if somebody says.
                stamped = b"" if stamp is None else stamp(call)
                if meta and call.extra_params is None:
                    opened = self._last_opened if meta is self._last_meta else meta[:-1]
                    return (
                        b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":'
                        b'{"name":%b,"arguments":%b%b%b%b}}}'
                        % (id, route.upstream_name_json, call.arguments, opened, way, stamped)
                    )
                meta = _with(meta, way + stamped)
            if call.extra_params is None:
                return (
                    b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":'
                    b'{"name":%b,"arguments":%b%b}}'
                    % (id, route.upstream_name_json, call.arguments, meta)
                )
            return (
                b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":'
                b'{"name":%b,"arguments":%b%b%b}}'
                % (id, route.upstream_name_json, call.arguments, _members(call.extra_params), meta)
            )
        if self._stamp is not None:
            meta = _with(meta, self._stamp(call))
        params = (_members(call.extra_params) + meta)[1:] if call.extra_params else meta[1:]
        return b'{"jsonrpc":"2.0","id":%d,"method":%b,"params":{%b}}' % (
            id,
            encode_value(call.method),
            params,
        )

    def own(self, id: int, method: str, params: bytes) -> bytes:
        """A request of the node's own; `params` is an encoded object."""
        if self._stateless:
            comma = b"," if params != b"{}" else b""
            # Whoever lists tools wants what MCP-AX says of them, too.
            able = _READS_AX if method == mcp.TOOLS_LIST else b"{}"
            params = b'%b%b"_meta":{%b%b}}' % (params[:-1], comma, self._meta_head, able)
        return b'{"jsonrpc":"2.0","id":%d,"method":%b,"params":%b}' % (
            id,
            encode_value(method),
            params,
        )

    def header_lines(self, method: str, call: Call | None) -> bytes:
        """The header lines that mirror the request, where the wire wants them."""
        if not self.with_headers:
            return b""
        route = None if call is None else call.route
        if route is None:
            # Whatever a caller wrote is encoded each time, and never kept.
            lines = b"Mcp-Method: %b\r\n" % headers.encode_header_value(method).encode()
            name = None if call is None else _named(call)
            if name is not None:
                lines += b"Mcp-Name: %b\r\n" % headers.encode_header_value(name).encode()
            return lines
        name = route.upstream_name
        kept = self._ready_lines.get(name)
        if kept is None:
            kept = b"Mcp-Method: tools/call\r\nMcp-Name: %b\r\n" % (
                headers.encode_header_value(name).encode()
            )
            if len(self._ready_lines) < _MOST_KEPT:
                self._ready_lines[name] = kept
        lines = kept
        if route.header_params and call is not None:
            for header, text in headers.write_param_headers(
                route.header_params, call.decoded_arguments
            ):
                lines += b"%b: %b\r\n" % (header.encode(), text.encode())
        else:
            self.last_route, self.last_lines = route, lines
        return lines

    def _plain_meta(self, id: int, call: Call) -> bytes:
        """`_meta` for a client that says nothing with its request: what its session knows."""
        session = call.session
        known = (call.client.capabilities, None if session is None else session.log_level)
        meta = self._session_meta.get(known)
        if meta is None:
            meta = self._meta(id, call, None)
            if len(self._session_meta) < _MOST_KEPT:
                self._session_meta[known] = meta
        return meta

    def _keep_meta(self, id: int, call: Call) -> bytes:
        meta = self._meta(id, call, None)
        if len(self._ready_meta) < _MOST_KEPT:
            self._ready_meta[call.client.capabilities] = meta
        return meta

    def _meta(self, id: int, call: Call, token: Raw | None) -> bytes:
        """`,"_meta":{…}` for this hop: what the era demands, our token, the caller's own keys."""
        meta = call.meta
        if not self._stateless:
            if meta is None:
                return b""
            kept = encode_members(_own_keys(call, meta))
            if token is None:
                return b"" if kept == b"{}" else b',"_meta":' + kept
            if kept == b"{}":
                return b',"_meta":{"progressToken":%d}' % id
            return b',"_meta":{"progressToken":%d,%b' % (id, kept[1:])
        # What the caller can do is for the caller to say.
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
            own_keys = _own_keys(call, meta)
            if own_keys:
                parts += (b",", encode_members(own_keys)[1:-1])
        parts.append(b"}")
        return b"".join(parts)


def _own_keys(call: Call, meta: dict[str, Raw]) -> dict[str, Raw]:
    """What of a caller's `_meta` goes on. The command line is itself the caller of a node, and may
    name the approval whose result it wants; of other callers that is for this node alone."""
    kept = mcp.select_forwarded_meta(meta)
    if call.server == COMMAND_LINE and tree.APPROVAL in meta:
        kept[tree.APPROVAL] = meta[tree.APPROVAL]
    return kept


def _with(meta: bytes, members: bytes) -> bytes:
    """`meta`, and in it these members, which stand behind others."""
    if meta:
        return b"%b%b}" % (meta[:-1], members)
    return b',"_meta":{%b}' % members[1:] if members else b""


def _members(members: dict[str, Raw]) -> bytes:
    """`,"key":value` for each member."""
    return b"," + encode_members(members)[1:-1]


def _named(call: Call) -> str | None:
    field = headers.NAME_FIELDS.get(call.method)
    if field is None or call.extra_params is None or field not in call.extra_params:
        return None
    name = decode_value(call.extra_params[field])
    return name if isinstance(name, str) else None


# -- What an upstream asks: put to whoever it is about, and answered in the upstream's own ids.
#
# Whom a question is about, the peer knows; what becomes of it, the way back of that call decides.

_MOST: Final = 100
"""An upstream may have so many questions open; it must not fill the memory with more."""

_decode_asked = msgspec.json.Decoder(mcp.ServerRequestParams).decode
_log = logging.getLogger("interlock.upstreams")


class UpstreamRequests:
    """The questions of one upstream."""

    def __init__(self, peer: UpstreamClient) -> None:
        self._peer = peer
        self._open: dict[bytes, ClientRequest] = {}
        """By the upstream's own raw ids."""

    def asked(
        self, method: str, id: bytes, params: Raw | UnsetType, ticket: TransportRequest | None
    ) -> None:
        """A request from the upstream: it wants to know something of whoever called it."""
        peer, link = self._peer, self._peer.link
        if method == mcp.PING:
            link.post(jsonrpc.result_response(id, b"{}"), b"")
            return
        if peer.speaks_ax and method not in mcp.CLIENT_REQUESTS:
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

        def answered(answer: ClientResponse) -> None:
            self._open.pop(id, None)
            if exchange is not None and exchange.asks is not None:
                exchange.asks.pop(id, None)
            if answer.is_error:
                response = jsonrpc.error_response(id, answer.code, answer.message, answer.data)
            else:
                response = jsonrpc.result_response(id, answer.result)
            link.post(response, b"")

        ask = ClientRequest(
            method, b"" if params is UNSET else mcp.remove_hop_meta(params), answered, peer.label
        )
        request = about(params) if peer.speaks_ax and params is not UNSET else None
        known = ticket if request is None else peer.pending.get(request)
        over = request is not None and known is None
        exchange = whose = None if over else peer.whose(known)
        call = None if exchange is None else exchange.call
        back = peer.back if exchange is None else exchange.back
        if back is None or (call is None and peer.session is None):
            ask.reject(
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
            back.on_request(ask, call, peer.session)
        except Exception:
            _log.exception("%s: %s could not be put to its caller", peer.label, method)
            ask.reject(-32603, "The node failed to relay this.")

    def withdrawn(self, id: bytes, reason: str) -> bool:
        """The upstream no longer wants to know. False: it never asked."""
        ask = self._open.pop(id, None)
        if ask is None:
            return False
        ask.withdraw(reason)
        return True

    def take_back(self, id: bytes, ask: ClientRequest, reason: str) -> None:
        """The request that it was asked for is over: both sides are told."""
        self._open.pop(id, None)
        if ask.is_open:
            ask.withdraw(reason)
            if not self._peer.closed.done():
                self._peer.link.post(jsonrpc.error_response(id, -32603, reason), b"")

    def drop(self, reason: str) -> None:
        """The upstream is gone, with all that it asked."""
        asks, self._open = self._open, {}
        for ask in asks.values():
            ask.withdraw(reason)

    def _expect_progress(self, ask: ClientRequest) -> None:
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


_NOT_CANCELLED: Final = frozenset({mcp.INITIALIZE, mcp.DISCOVER})
"""Requests that open a conversation: while there is none, nothing can be cancelled in it."""


_STILL_TALKED_OF: Final = 30.0
"""How long an upstream may still speak of a request that was given up."""
_OF_THE_TREE: Final = "notifications/mcpax/"
_BRACE: Final = ord("{")


class UpstreamClient:
    """One MCP connection to an upstream."""

    def __init__(
        self, label: str, link: UpstreamTransport, own_info: bytes, mask: Callable[[str], str] = str
    ) -> None:
        """`mask` makes the upstream's own words fit to be repeated."""
        self.label = label
        self.link = link
        self.pending: dict[int, PendingRequest] = {}
        self.answered = 0
        self.noise = 0
        self.era = mcp.Era.SESSION
        self.revision = ""
        self._wording = RequestEncoder(self.era, "", own_info, http=False)
        self.capabilities: dict[str, Any] = {}
        self.instructions: str | None = None
        self.server_info: dict[str, Any] = {}
        self._given_up: dict[int, tuple[object, float]] = {}
        self.questions = UpstreamRequests(self)
        """What the upstream wants to know."""
        self.on_changed: Callable[[str], None] | None = None
        """Told which list is a new one: `tools`, `prompts` or `resources`."""
        self.on_updated: Callable[[str], None] | None = None
        """Told the URI of a resource that is not what it was."""
        self.on_acknowledged: Callable[[Raw], None] | None = None
        """Told what a subscription of ours will bring."""
        self.on_said: Callable[[str, bytes | Raw], None] | None = None
        """Told of every other notification that is about no request in particular."""
        self.mute = False
        """Whether nobody is to hear what the upstream says beside progress, and of lists and
        resources that are new ones."""
        self.on_lost: Callable[[str], None] | None = None
        self._speaks_ax = False
        self._stamp: Callable[[Call], bytes] | None = None
        self._shows: Callable[[Call], bytes] | None = None
        """The same, where it goes into the headers."""
        self.on_ax: Callable[[str, bytes | None, Raw | UnsetType], bool] | None = None
        """Takes what the other end says as a subserver, before anybody else: the method, the raw
        id of a request, the params. True: it was taken, and will be answered."""
        self.segment = ""
        """By what name those who hear it know the upstream. Empty: they need not be told."""
        self.pace: NotificationLimiter | None = None
        """How fast the upstream may speak. None: as fast as it likes."""
        self.session: ClientSession | None = None
        """The only client that this peer speaks for, when it is one that stays connected."""
        self.promises = b"{}"
        """What a session server is told that its client can do."""
        self.private = False
        """Whether this peer speaks for one client only."""
        self.back: ResponseHandler | None = None
        """Who is told of questions that are about no request in particular."""
        self.closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.own_info = own_info
        self.mask = mask
        # Not to be guessed: an upstream talked into answering twice must not hit upon an id.
        self._first_id = self._next_id = secrets.randbelow(2**40)
        early = link.receiver
        if isinstance(early, EarlyReceiver):
            self.noise += early.heard
        link.receiver = self

    # -- what goes out

    def adopt(self, era: mcp.Era, revision: str) -> None:
        """Speak this revision from now on."""
        self.era = era
        self.revision = revision
        self._wording = RequestEncoder(
            era,
            revision,
            self.own_info,
            http=self.link.is_http,
            ax=self._speaks_ax,
            stamp=self._stamp if self._speaks_ax else None,
        )

    @property
    def speaks_ax(self) -> bool:
        """Whether the other end is a node or a subserver that speaks MCP-AX."""
        return self._speaks_ax

    @speaks_ax.setter
    def speaks_ax(self, speaks: bool) -> None:
        self._speaks_ax = speaks
        self.adopt(self.era, self.revision)

    @property
    def stamp(self) -> Callable[[Call], bytes] | None:
        """Gives the token that goes with a call: as header lines on HTTP, as members of a `_meta`
        to whoever speaks MCP-AX. Others get none."""
        return self._stamp

    @stamp.setter
    def stamp(self, stamp: Callable[[Call], bytes] | None) -> None:
        self._stamp = stamp
        self._shows = stamp if self.link.is_http else None
        self.adopt(self.era, self.revision)

    def start(self, call: Call, back: ResponseHandler) -> PendingRequest:
        """Send a caller's request on, in this upstream's own words."""
        self._next_id = id = self._next_id + 1
        exchange = PendingRequest(self, id, call.method, call)
        meta, token = call.meta, None
        if (
            meta is not None
            and mcp.META_PROGRESS_TOKEN in meta
            and call.on_notification is not None
        ):
            exchange.token = token = meta[mcp.META_PROGRESS_TOKEN]
        wording = self._wording
        payload = wording.call(id, call, token)
        lines = b""
        if wording.with_headers:
            if call.route is wording.last_route and call.route is not None:
                lines = wording.last_lines
            else:
                lines = wording.header_lines(call.method, call)
        if self._shows is not None:
            lines = self._shows(call) + lines
        self.pending[id] = exchange
        if call.is_dispatched:
            exchange.dispatched_before = True
        else:
            call.is_dispatched = True
        self.link.send(exchange, payload, lines)
        if exchange.error is not None:
            # It could not even be sent: the sender hears of that from here, and only from here.
            raise exchange.error
        exchange.back = back
        return exchange

    def request(
        self,
        method: str,
        params: dict[str, Any] | None = None,
        *,
        stays_open: bool = False,
    ) -> PendingRequest:
        """Send a request of the node's own."""
        self._next_id = id = self._next_id + 1
        exchange = PendingRequest(self, id, method)
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

    def abandon(self, exchange: PendingRequest, reason: str) -> None:
        """Forget a request, and tell the upstream to stop working on it."""
        if self.pending.pop(exchange.id, None) is None:
            return
        call = exchange.call
        if call is not None and not self.private and not self.link.is_http:
            # What the upstream still says about it must not be taken for another caller's.
            now = asyncio.get_running_loop().time()
            self._given_up[exchange.id] = (_party(exchange, call), now)
        if exchange.method not in _NOT_CANCELLED and not (
            self.link.is_http and self.era is mcp.Era.STATELESS
        ):
            # On stateless HTTP closing the stream says it all; everywhere else it must be said.
            self.notify(mcp.CANCELLED, {"requestId": exchange.id, "reason": reason})
        self.link.drop(exchange)

    # -- what comes in

    def deliver(self, data: bytes, ticket: TransportRequest | None = None) -> None:
        """A message from the upstream. Garbage is counted, and harms nobody."""
        try:
            if not data.isascii():
                data.decode()
            incoming = decode_incoming(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._unreadable(data, ticket)
            return
        if incoming.method is UNSET:
            result = incoming.result
            if result is not UNSET and (ticket is None or incoming.id == ticket.id):
                # Not `bytes(result)`: that costs twice as much.
                raw, exchange = b"" + result, None
                try:
                    glance = mcp.decode_result_summary(raw)
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                    glance = mcp.INVALID_SUMMARY
                # Whatever can be read as one is an object.
                if glance is not mcp.INVALID_SUMMARY or raw[0] == _BRACE:
                    exchange = self.pending.pop(incoming.id, None)  # type: ignore[arg-type]
                if exchange is not None:
                    # The answer that everybody hopes for; anything else takes the long look.
                    self.answered += 1
                    call, back = exchange.call, exchange.back
                    if call is None or back is None or exchange.asks or not exchange.is_open:
                        exchange.succeed(Outcome(raw, self.era, glance))
                        return
                    # What `succeed` does for a caller's request, without the step into it. It and
                    # its carrier point at each other: taken apart, they are freed at once.
                    exchange.is_open = False
                    exchange.carrier = None
                    back.on_result(call, Outcome(raw, self.era, glance), None)
                    return
            self._answer(incoming, ticket)
        elif incoming.id is UNSET:
            self._notification(incoming.method, incoming.params, ticket)
        else:
            id = jsonrpc.encode_value(incoming.id)
            if not self._takes_ax(incoming.method, id, incoming.params):
                self.questions.asked(incoming.method, id, incoming.params, ticket)

    def _unreadable(self, data: bytes, ticket: TransportRequest | None) -> None:
        """No message: a batch, where the revision has batches, or noise."""
        if self.revision in mcp.BATCH_REVISIONS:
            batch = batch_of(data)
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

    def _answer(self, incoming: IncomingMessage, ticket: TransportRequest | None) -> None:
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
            self._given_up.pop(id, None)  # type: ignore[arg-type]
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
            exchange.fail_with(answered_error(exchange, error))
        else:
            exchange.fail(
                UPSTREAM_LOST, f"{self.label} answered with neither result nor error.", sent=True
            )

    def _notification(
        self, method: str, params: Raw | UnsetType, ticket: TransportRequest | None
    ) -> None:
        if self._takes_ax(method, None, params):
            return
        said = Raw(b"{}") if params is UNSET else params
        try:
            if method == mcp.PROGRESS:
                self._progress(said)
            elif method in CHANGED:
                if self.on_changed is not None:
                    self.on_changed(CHANGED[method])
            elif method == mcp.RESOURCE_UPDATED:
                if self.on_updated is not None:
                    uri = decode_updated(said).uri
                    self._in_turn(partial(self.on_updated, uri), len(uri))
            elif method == mcp.ACKNOWLEDGED:
                if self.on_acknowledged is not None:
                    self.on_acknowledged(said)
            elif method == mcp.CANCELLED:
                self._cancelled(said)
            else:
                self._hear(method, said, ticket)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ProtocolError):
            self.noise += 1

    def _takes_ax(self, method: str, id: bytes | None, params: Raw | UnsetType) -> bool:
        """Whether it is said by a subserver to its aggregator, not by a server to its client."""
        if self.on_ax is None:
            return False
        if method.startswith("mcpax/") or method == mcp.INITIALIZE:
            return self.on_ax(method, id, params)
        return method == mcp.INITIALIZED

    def _cancelled(self, params: Raw) -> None:
        """The upstream no longer wants to know, or ends a subscription."""
        named = decode_cancelled(params)
        if named.request_id is UNSET:
            return
        id = bytes(named.request_id)
        if self.questions.withdrawn(id, named.reason or "The server no longer asks."):
            return
        try:
            exchange = self.pending.get(int(id))
        except ValueError:
            return
        if exchange is not None and exchange.method == mcp.LISTEN:
            # How some end a subscription.
            exchange.fail(UPSTREAM_LOST, f"{self.label} ended the subscription.", sent=True)

    def _in_turn(self, deliver: Callable[[], None], size: int) -> None:
        if self.pace is None:
            deliver()
        else:
            self.pace.give(deliver, size)

    def _hear(self, method: str, said: Raw, ticket: TransportRequest | None) -> None:
        """Something for whoever calls, or else for whoever is connected."""
        if self.mute:
            return
        params = signed(method, mcp.remove_hop_meta(said), self.segment)
        exchange, everybody = self._whom(method, said, ticket)
        call = None if exchange is None else exchange.call
        if exchange is None or call is None:
            if everybody:
                self._in_turn(partial(self._say, method, params), len(params))
        elif self.pace is None:
            self._tell(exchange, method, params)
        elif is_wanted(call, method, params):
            self.pace.give(partial(self._tell_late, exchange, call, method, params), len(params))

    def _whom(
        self, method: str, said: Raw, ticket: TransportRequest | None
    ) -> tuple[PendingRequest | None, bool]:
        """The request that something is about; where it is about none, whether all may hear it."""
        if not self._speaks_ax:
            exchange = self.whose(ticket)
            return exchange, exchange is None
        if method.startswith(_OF_THE_TREE):
            return None, True
        request = about(said)
        if request is not None:
            # What is over, or never was, is for nobody else.
            return self.pending.get(request), request == EVERYBODY
        exchange = self.whose(ticket)
        # While anybody calls, it may be about what they alone may know.
        return exchange, exchange is None and not self._is_called()

    def _is_called(self) -> bool:
        """Whether there is a caller whom something may be about, or was a short while ago."""
        if any(exchange.call is not None for exchange in self.pending.values()):
            return True
        return bool(self._given_up) and bool(self._lately_given_up())

    def _say(self, method: str, params: bytes) -> None:
        if self.on_said is not None:
            try:
                self.on_said(method, params)
            except Exception:
                # One client's trouble is not that of the link.
                _log.exception("%s: a client could not take %s", self.label, method)

    def _tell_late(self, exchange: PendingRequest, call: Call, method: str, params: bytes) -> None:
        """Something about a request, which may be answered by now."""
        session = call.session
        if exchange.is_open:
            self._tell(exchange, method, params)
        elif session is not None and session.is_alive and is_wanted(call, method, params):
            session.send_notification(method, params)
        elif self.pace is not None:
            self.pace.lost()

    def _progress(self, params: Raw) -> None:
        token = decode_progress(params).progress_token
        exchange = self.pending.get(token) if isinstance(token, int) else None
        if exchange is None or exchange.token is None:
            return
        if self.pace is not None and not self.pace.lets_progress_by():
            return
        members = jsonrpc.decode_members(params)
        members["progressToken"] = Raw(exchange.token)
        self._tell(exchange, mcp.PROGRESS, mcp.remove_hop_meta(jsonrpc.encode_members(members)))

    def _tell(self, exchange: PendingRequest, method: str, params: bytes | Raw) -> None:
        call, back = exchange.call, exchange.back
        if call is None or back is None:
            return
        try:
            back.on_notification(call, method, params)
        except Exception:
            # One caller's trouble is not that of the others on this link.
            _log.exception("%s: a caller could not take %s", self.label, method)

    def whose(self, ticket: TransportRequest | None) -> PendingRequest | None:
        """The request that something is about. None: there is none, or it could be another's."""
        if isinstance(ticket, PendingRequest):
            return None if ticket.call is None else ticket
        latest: PendingRequest | None = None
        whose: object = None
        for exchange in self.pending.values():
            call = exchange.call
            if call is None:
                continue
            party = _party(exchange, call)
            if latest is not None and party != whose and not self.private:
                return None
            latest, whose = exchange, party
        if latest is not None and self._given_up and self._lately_given_up() - {whose}:
            # It may be about a request that is over for its caller, but not for the upstream.
            return None
        return latest

    def _lately_given_up(self) -> set[object]:
        late = asyncio.get_running_loop().time() - _STILL_TALKED_OF
        for id in [id for id, one in self._given_up.items() if one[1] < late]:
            del self._given_up[id]
        return {party for party, _ in self._given_up.values()}

    # -- the end

    def interrupted(self, ticket: TransportRequest) -> None:
        """The upstream hangs up and will go on later: so does the node, to its own client."""
        call = ticket.call if isinstance(ticket, PendingRequest) else None
        if call is not None and call.session is not None:
            call.session.close_stream(call)

    def retired(self, reason: str) -> None:
        """The link takes nothing more; what is under way may still be answered."""
        if not self.closed.done():
            self.closed.set_result(reason)
            if self.on_lost is not None:
                self.on_lost(reason)

    def lost(self, reason: str) -> None:
        """The link is gone: everybody who waits is told."""
        self.retired(reason)
        self.questions.drop(reason)
        for exchange in list(self.pending.values()):
            exchange.fail(
                UPSTREAM_LOST, f"{self.label} was lost during the call: {reason}", sent=True
            )

    async def close(self) -> None:
        await self.link.close()
        self.lost("closed by the node")


def _party(exchange: PendingRequest, call: Call) -> object:
    """Who may hear what is said about a request. Behind a parent there is somebody else each
    time, for all that a node knows."""
    return exchange.id if call.credentials.assigned_name else (call.caller, call.session)
