"""Tools whose results are shown by a resource of the same server (the MCP Apps extension).

Such a tool names the resource in its `_meta`, and the resource need not be listed. So what the
tool says counts as a listing of it, and is put in the form in which the resource is shown.
"""

from __future__ import annotations

from typing import Final

from msgspec import Raw

from interlock.catalog.set_aside import value_of
from interlock.errors import ProtocolError
from interlock.protocol.jsonrpc import decode_members, encode_members, encode_value

_NESTED: Final = ("ui", "resourceUri")
_FLAT: Final = "ui/resourceUri"


def screen_of(members: dict[str, Raw]) -> str | None:
    """The URI of the resource that a tool names, if it names one."""
    raw = members.get("_meta")
    if raw is None or b"resourceUri" not in bytes(raw):
        return None
    try:
        meta = decode_members(raw)
        named = value_of(meta, _FLAT)
        if _NESTED[0] in meta:
            named = value_of(decode_members(meta[_NESTED[0]]), _NESTED[1]) or named
    except ProtocolError:
        return None
    return named if isinstance(named, str) and named else None


def with_screen(listed: bytes, own: str, shown: str) -> bytes:
    """A tool's definition, as it stands behind its name, with the URI `shown` for its `own`."""
    members = decode_members(b"{" + listed[1:])
    meta = decode_members(members["_meta"])
    uri = Raw(encode_value(shown))
    if value_of(meta, _FLAT) == own:
        meta[_FLAT] = uri
    if _NESTED[0] in meta:
        try:
            nested = decode_members(meta[_NESTED[0]])
        except ProtocolError:
            nested = {}
        if value_of(nested, _NESTED[1]) == own:
            meta[_NESTED[0]] = Raw(encode_members({**nested, _NESTED[1]: uri}))
    members["_meta"] = Raw(encode_members(meta))
    return b"," + encode_members(members)[1:]
