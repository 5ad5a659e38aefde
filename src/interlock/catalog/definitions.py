"""Reads the tools that an upstream lists, one by one, and keeps what can be used.

One bad entry never hides the others: it is set aside with the reason, and shown to the operator.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Raw

from interlock.catalog import names
from interlock.catalog.effects import Annotations
from interlock.config import ServerConfig
from interlock.errors import ProtocolError
from interlock.protocol.headers import HeaderParam, header_params
from interlock.protocol.jsonrpc import NULL, decode_members, decode_value, encode_members

MAX_TOOLS: Final = 10_000
"""More tools than this from one upstream are set aside: a list must not fill the memory."""

MAX_REASONS: Final = 100
"""Why a tool is not shown is said of so many; of the rest only how many they are."""


class SetAside(msgspec.Struct, frozen=True, gc=False):
    """A tool that is not shown, and why."""

    name: str
    """As the upstream has it, cut when it is long; `?` where there is none."""
    reason: str


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
    params: tuple[HeaderParam, ...]
    shown: str


def sift(
    definitions: Iterable[Raw | bytes], server: ServerConfig, *, http: bool
) -> tuple[list[Wanted], SetAsides]:
    """What of the definitions is to be shown, in their order, and what is not, with the reasons."""
    wanted: list[Wanted] = []
    set_aside = SetAsides()
    seen: set[str] = set()
    for raw in definitions:
        try:
            definition, members, params = _read(bytes(raw), http=http)
        except _Unusable as unusable:
            set_aside.add(unusable.name, unusable.reason)
            continue
        own = definition.name
        if own in seen:
            set_aside.add(own, "The upstream lists this name more than once.")
            continue
        seen.add(own)
        if not _is_wanted(own, server):
            continue
        if len(wanted) >= MAX_TOOLS:
            set_aside.add(own, f"More than {MAX_TOOLS} tools.")
            continue
        wanted.append(Wanted(definition, members, params, server.rename.get(own, own)))
    return wanted, set_aside


class SetAsides:
    """Collects reasons, but not without end."""

    def __init__(self) -> None:
        self._first: list[SetAside] = []
        self._more = 0

    def add(self, name: str, reason: str) -> None:
        if len(self._first) >= MAX_REASONS:
            self._more += 1
            return
        self._first.append(SetAside(name if len(name) <= 100 else name[:100] + "…", reason))

    def all(self) -> tuple[SetAside, ...]:
        if self._more:
            return (*self._first, SetAside("?", f"{self._more} more entries are not shown."))
        return tuple(self._first)


class _Unusable(Exception):
    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        self.reason = reason


def _read(raw: bytes, *, http: bool) -> tuple[Definition, dict[str, Raw], tuple[HeaderParam, ...]]:
    try:
        members = decode_members(raw)
    except ProtocolError:
        raise _Unusable("?", "The entry is not an object.") from None
    # MCP knows no null members here, and clients refuse a whole list for one.
    members = {name: value for name, value in members.items() if bytes(value) != NULL}
    try:
        raw.decode()
        definition = _decode_definition(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise _Unusable(_name_of(members), f"The definition is not valid: {exc}.") from None
    name = definition.name
    if not name:
        raise _Unusable("?", "The tool has no name.")
    if len(name) > names.MAX_OWN:
        raise _Unusable(name, f"Its name is longer than {names.MAX_OWN} characters.")
    try:
        schema = decode_members(definition.input_schema)
    except ProtocolError:
        raise _Unusable(name, "`inputSchema` is not an object.") from None
    # Clients refuse a whole list for one schema whose `type` is not "object".
    kind = _value_of(schema, "type")
    if kind != "object":
        if "type" in schema and not (isinstance(kind, list) and "object" in kind):
            raise _Unusable(name, "`inputSchema` is not of type object, as arguments always are.")
        members["inputSchema"] = Raw(encode_members({**schema, "type": Raw(b'"object"')}))
    params: tuple[HeaderParam, ...] = ()
    if b"x-mcp-header" in raw:
        try:
            params = header_params(decode_value(definition.input_schema))
        except ProtocolError as exc:
            # The rule binds clients of HTTP servers; elsewhere the annotation means nothing.
            if http:
                raise _Unusable(name, exc.message) from None
    del members["name"]
    return definition, members, params


def _name_of(members: dict[str, Raw]) -> str:
    name = _value_of(members, "name")
    return name if isinstance(name, str) and name else "?"


def _value_of(members: dict[str, Raw], key: str) -> Any:
    """A member's value; None for what is not there or cannot be read."""
    try:
        return decode_value(members[key])
    except (KeyError, ProtocolError):
        return None


def _is_wanted(name: str, server: ServerConfig) -> bool:
    if server.allow and not any(fnmatchcase(name, pattern) for pattern in server.allow):
        return False
    return not any(fnmatchcase(name, pattern) for pattern in server.deny)
