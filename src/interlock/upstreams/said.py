"""What an upstream says of its own accord, made fit to be passed on: by whom, about what. Pure."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, Raw, UnsetType

from interlock.errors import ProtocolError
from interlock.protocol import ax
from interlock.protocol.jsonrpc import decode_members, decode_value, encode_members, encode_value
from interlock.protocol.mcp import LOG_MESSAGE

_REQUEST = ax.REQUEST.encode()


class _Meta(msgspec.Struct, gc=False):
    request: int | str | UnsetType | None = msgspec.field(default=UNSET, name=ax.REQUEST)


class _Params(msgspec.Struct, gc=False):
    meta: _Meta | UnsetType = msgspec.field(default=UNSET, name="_meta")


_decode = msgspec.json.Decoder(_Params).decode


def about(params: bytes | Raw) -> int | None:
    """The id of the request that a subserver speaks of. None: it speaks of none.

    Ids of our own are numbers: whatever else it says is nobody's, and so is -1.
    """
    # The key may be spelled with an escape.
    raw = bytes(params)
    if raw.find(_REQUEST) < 0 and raw.find(b"\\u") < 0:
        return None
    try:
        meta = _decode(raw).meta
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return -1 if raw.find(_REQUEST) >= 0 else None
    if meta is UNSET or meta.request is UNSET:
        return None
    return meta.request if isinstance(meta.request, int) else -1


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
