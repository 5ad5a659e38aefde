"""Reads the tools that an upstream lists, one by one, and keeps what can be used."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import NamedTuple

import msgspec
from msgspec import Raw

from interlock.catalog import names
from interlock.catalog.effects import Annotations
from interlock.catalog.set_aside import SetAsides, UnusableEntry, take_apart, usable, value_of
from interlock.config import ServerConfig
from interlock.errors import ProtocolError
from interlock.protocol.headers import HeaderParam, header_params
from interlock.protocol.jsonrpc import decode_members, decode_value, encode_members


class Definition(msgspec.Struct, gc=False, rename="camel"):
    """The members of a tool that the node reads. The rest stays as it came."""

    name: str
    input_schema: Raw
    description: str | None = None
    annotations: Annotations | None = None


_decode_definition = msgspec.json.Decoder(Definition).decode


class Wanted(NamedTuple):
    """A definition that is to be shown, before it has its names."""

    definition: Definition
    members: dict[str, Raw]
    """All but the name."""
    params: tuple[HeaderParam, ...]


def sift_tools(
    definitions: Iterable[Raw | bytes], server: ServerConfig, set_aside: SetAsides, *, http: bool
) -> list[Wanted]:
    """What of the definitions is to be shown, in their order."""
    return usable(
        definitions,
        set_aside,
        lambda raw: _read(raw, http=http),
        lambda wanted: wanted.definition.name,
        lambda name: is_wanted(name, server),
    )


def _read(raw: bytes, *, http: bool) -> Wanted:
    definition, members = take_apart(raw, _decode_definition, "name", names.MAX_OWN)
    name = definition.name
    try:
        schema = decode_members(definition.input_schema)
    except ProtocolError:
        raise UnusableEntry(name, "`inputSchema` is not an object.") from None
    # Clients refuse a whole list for one schema whose `type` is not "object".
    kind = value_of(schema, "type")
    if kind != "object":
        if "type" in schema and not (isinstance(kind, list) and "object" in kind):
            raise UnusableEntry(
                name, "`inputSchema` is not of type object, as arguments always are."
            )
        members["inputSchema"] = Raw(encode_members({**schema, "type": Raw(b'"object"')}))
    params: tuple[HeaderParam, ...] = ()
    if b"x-mcp-header" in raw:
        try:
            params = header_params(decode_value(definition.input_schema))
        except ProtocolError as exc:
            # The rule binds clients of HTTP servers; elsewhere the annotation means nothing.
            if http:
                raise UnusableEntry(name, exc.message) from None
    return Wanted(definition, members, params)


def session_members(members: dict[str, Raw]) -> dict[str, Raw]:
    """A definition for clients of the session wire: they know output schemas of objects only, and
    refuse a whole list for another."""
    schema = members.get("outputSchema")
    if schema is None or _is_object_schema(schema):
        return members
    return {name: value for name, value in members.items() if name != "outputSchema"}


def stateless_members(members: dict[str, Raw]) -> dict[str, Raw]:
    """A definition for clients of the stateless wire, which has no `execution`; its output schemas
    may be of any type, but must be objects themselves."""
    left_out = {"execution"} & members.keys()
    schema = members.get("outputSchema")
    if schema is not None and bytes(schema)[:1] != b"{":
        left_out.add("outputSchema")
    if not left_out:
        return members
    return {name: value for name, value in members.items() if name not in left_out}


def _is_object_schema(schema: Raw) -> bool:
    try:
        return bool(value_of(decode_members(schema), "type") == "object")
    except ProtocolError:
        return False


def is_wanted(name: str, server: ServerConfig) -> bool:
    """Whether the config lets a tool of this name be used at all."""
    if server.allow and not any(fnmatchcase(name, pattern) for pattern in server.allow):
        return False
    return not any(fnmatchcase(name, pattern) for pattern in server.deny)
