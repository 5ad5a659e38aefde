"""A caller's request in one upstream's own words: its era, its ids, its names, its headers.

Everything that is the same for many calls is made once and kept; what is left per call is putting
byte strings one behind the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

from msgspec import Raw

from interlock.call import Call, Client, Route
from interlock.protocol import ax as tree
from interlock.protocol import headers, mcp
from interlock.protocol.jsonrpc import decode_value, encode_members, encode_value

_MOST_KEPT: Final = 20_000
_STATELESS: Final = mcp.Era.STATELESS
"""Looked up once: members of an enumeration are slow to find."""


class Wording:
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
        self._stamp = None if stamp is None else cast(Any, stamp).__call__
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
                way = route.way
                if hop is not None:
                    way = hop.onward or tree.way(hop.route, hop.cursor + 1)
                # And for whom it is, if somebody says.
                stamped = b"" if stamp is None else stamp(call)
                if meta and call.extra is None:
                    opened = self._last_opened if meta is self._last_meta else meta[:-1]
                    return (
                        b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":'
                        b'{"name":%b,"arguments":%b%b%b%b}}}'
                        % (id, route.upstream_name_json, call.arguments, opened, way, stamped)
                    )
                meta = _with(meta, way + stamped)
            if call.extra is None:
                return (
                    b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":'
                    b'{"name":%b,"arguments":%b%b}}'
                    % (id, route.upstream_name_json, call.arguments, meta)
                )
            return (
                b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":'
                b'{"name":%b,"arguments":%b%b%b}}'
                % (id, route.upstream_name_json, call.arguments, _members(call.extra), meta)
            )
        if self._stamp is not None:
            meta = _with(meta, self._stamp(call))
        params = (_members(call.extra) + meta)[1:] if call.extra else meta[1:]
        return b'{"jsonrpc":"2.0","id":%d,"method":%b,"params":{%b}}' % (
            id,
            encode_value(call.verb),
            params,
        )

    def own(self, id: int, method: str, params: bytes) -> bytes:
        """A request of the node's own; `params` is an encoded object."""
        if self._stateless:
            comma = b"," if params != b"{}" else b""
            params = b'%b%b"_meta":{%b{}}}' % (params[:-1], comma, self._meta_head)
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
            for header, text in headers.mirror_params(route.header_params, call.decoded):
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
            kept = encode_members(mcp.forwardable_meta(meta))
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
            own_keys = mcp.forwardable_meta(meta)
            if own_keys:
                parts += (b",", encode_members(own_keys)[1:-1])
        parts.append(b"}")
        return b"".join(parts)


def _with(meta: bytes, members: bytes) -> bytes:
    """`meta`, and in it these members, which stand behind others."""
    if meta:
        return b"%b%b}" % (meta[:-1], members)
    return b',"_meta":{%b}' % members[1:] if members else b""


def _members(members: dict[str, Raw]) -> bytes:
    """`,"key":value` for each member."""
    return b"," + encode_members(members)[1:-1]


def _named(call: Call) -> str | None:
    field = headers.NAME_FIELD.get(call.verb)
    if field is None or call.extra is None or field not in call.extra:
        return None
    name = decode_value(call.extra[field])
    return name if isinstance(name, str) else None
