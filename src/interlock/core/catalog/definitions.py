"""Reads the tools that an upstream lists, one by one, and keeps what can be used."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from msgspec import Raw

from interlock.core.catalog import names
from interlock.core.catalog.effects import Annotations
from interlock.core.config import ServerConfig
from interlock.errors import ProtocolError
from interlock.protocol.headers import HeaderParam, read_header_params
from interlock.protocol.jsonrpc import NULL, decode_members, decode_value, encode_members

# -- What is not shown of what an upstream lists, and why.
#
# One bad entry never hides the others: it is set aside with the reason, and shown to the
# operator.

MAX_ENTRIES: Final = 10_000
"""More entries of one kind from one upstream are set aside: a list must not fill the memory."""

MAX_REASONS: Final = 100
"""Why an entry is not shown is said of so many; of the rest only how many they are."""

T = TypeVar("T")


class RejectedEntry(msgspec.Struct, frozen=True, gc=False):
    """An entry of a list that is not shown, and why."""

    name: str
    """As the upstream has it, cut when it is long; `?` where there is none."""
    reason: str
    kind: str = "tool"
    """`tool`, `prompt`, `resource` or `template`."""


class RejectedEntries:
    """Collects the reasons of one kind, but not without end."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._first: list[RejectedEntry] = []
        self._more = 0

    def add(self, name: str, reason: str) -> None:
        if len(self._first) >= MAX_REASONS:
            self._more += 1
            return
        cut = name if len(name) <= 100 else name[:100] + "…"
        self._first.append(RejectedEntry(cut, reason, self._kind))

    @property
    def count(self) -> int:
        """How many entries there are, of which not all have their reason said."""
        return len(self._first) + self._more

    def all(self) -> tuple[RejectedEntry, ...]:
        if self._more:
            rest = RejectedEntry(
                "and others", f"{self._more} more, for reasons like these.", self._kind
            )
            return (*self._first, rest)
        return tuple(self._first)


class UnusableEntry(Exception):
    """An entry that no client should see."""

    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        self.reason = reason


def usable(
    entries: Iterable[Raw | bytes],
    set_aside: RejectedEntries,
    read: Callable[[bytes], T],
    name_of: Callable[[T], str],
    wanted: Callable[[str], bool] = lambda _: True,
) -> list[T]:
    """What `read` makes of the entries, in their order, each name once."""
    kept: list[T] = []
    seen: set[str] = set()
    for raw in entries:
        try:
            entry = read(bytes(raw))
        except UnusableEntry as unusable:
            set_aside.add(unusable.name, unusable.reason)
            continue
        name = name_of(entry)
        if name in seen:
            set_aside.add(name, "The upstream lists this more than once.")
            continue
        seen.add(name)
        if not wanted(name):
            continue
        if len(kept) >= MAX_ENTRIES:
            set_aside.add(name, f"More than {MAX_ENTRIES} entries of this kind.")
            continue
        kept.append(entry)
    return kept


def take_apart(
    raw: bytes, decode: Callable[[bytes], T], named_by: str, longest: int
) -> tuple[T, dict[str, Raw]]:
    """The members that the node reads, and all of them raw but the one that names the entry."""
    try:
        members = decode_members(raw)
    except ProtocolError:
        raise UnusableEntry("?", "The entry is not an object.") from None
    # MCP knows no null members here, and clients refuse a whole list for one.
    members = without_nulls(members)
    name = value_of(members, named_by)
    name = name if isinstance(name, str) and name else "?"
    try:
        raw.decode()
        entry = decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise UnusableEntry(name, f"The definition is not valid: {exc}.") from None
    # What decodes has this member, and it is a string: the last one, where it stands twice.
    named = value_of(members, named_by)
    if not named:
        raise UnusableEntry("?", f"`{named_by}` is empty.")
    if len(named) > longest:
        raise UnusableEntry(named, f"`{named_by}` is longer than {longest} characters.")
    del members[named_by]
    return entry, members


def without_nulls(members: dict[str, Raw]) -> dict[str, Raw]:
    return {name: value for name, value in members.items() if bytes(value) != NULL}


def value_of(members: dict[str, Raw], key: str) -> Any:
    """A member's value; None for what is not there or cannot be read."""
    try:
        return decode_value(members[key])
    except (KeyError, ProtocolError):
        return None


class Definition(msgspec.Struct, gc=False, rename="camel"):
    """The members of a tool that the node reads. The rest stays as it came."""

    name: str
    input_schema: Raw
    description: str | None = None
    annotations: Annotations | None = None


_decode_definition = msgspec.json.Decoder(Definition).decode


class AcceptedDefinition(NamedTuple):
    """A definition that is to be shown, before it has its names."""

    definition: Definition
    members: dict[str, Raw]
    """All but the name."""
    params: tuple[HeaderParam, ...]


def sift_tools(
    definitions: Iterable[Raw | bytes],
    server: ServerConfig,
    set_aside: RejectedEntries,
    *,
    http: bool,
) -> list[AcceptedDefinition]:
    """What of the definitions is to be shown, in their order."""
    return usable(
        definitions,
        set_aside,
        lambda raw: _read(raw, http=http),
        lambda wanted: wanted.definition.name,
        lambda name: is_wanted(name, server),
    )


def _read(raw: bytes, *, http: bool) -> AcceptedDefinition:
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
            params = read_header_params(decode_value(definition.input_schema))
        except ProtocolError as exc:
            # The rule binds clients of HTTP servers; elsewhere the annotation means nothing.
            if http:
                raise UnusableEntry(name, exc.message) from None
    return AcceptedDefinition(definition, members, params)


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
