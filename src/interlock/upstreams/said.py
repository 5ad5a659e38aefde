"""What an upstream says of its own accord, made fit to be passed on: by whom, about what. Pure."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from interlock.errors import ProtocolError
from interlock.protocol import ax
from interlock.protocol.jsonrpc import decode_members, decode_value, encode_members, encode_value
from interlock.protocol.mcp import LOG_MESSAGE

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
