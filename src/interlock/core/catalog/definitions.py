"""Reading of the tools that an upstream lists, and rejection of entries that clients cannot use."""

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

# -- Entries that are not shown, and why.
#
# An invalid entry does not affect the others: it is rejected with a reason for the operator.

MAX_ENTRIES: Final = 10_000
"""Further entries of one kind from one upstream are rejected, to limit memory."""

MAX_LISTED_REASONS: Final = 100
"""The number of rejections that are listed with their reason. The rest is only counted."""

T = TypeVar("T")


class RejectedEntry(msgspec.Struct, frozen=True, gc=False):
    """A rejected entry of a list."""

    name: str
    """The name at the upstream, shortened if it is long; `?` if it has none."""
    reason: str
    kind: str = "tool"
    """`tool`, `prompt`, `resource` or `template`."""


class RejectedEntries:
    """Collects rejected entries of one kind, up to a limit."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._listed: list[RejectedEntry] = []
        self._unlisted_count = 0

    def add(self, name: str, reason: str) -> None:
        if len(self._listed) >= MAX_LISTED_REASONS:
            self._unlisted_count += 1
            return
        short_name = name if len(name) <= 100 else name[:100] + "…"
        self._listed.append(RejectedEntry(short_name, reason, self._kind))

    @property
    def count(self) -> int:
        """The number of rejected entries, listed or not."""
        return len(self._listed) + self._unlisted_count

    def all(self) -> tuple[RejectedEntry, ...]:
        if self._unlisted_count:
            summary = RejectedEntry(
                "and others", f"{self._unlisted_count} more, for similar reasons.", self._kind
            )
            return (*self._listed, summary)
        return tuple(self._listed)


class UnusableEntryError(Exception):
    """An entry that no client should see."""

    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        self.reason = reason


def read_entries(
    entries: Iterable[Raw | bytes],
    rejected: RejectedEntries,
    read: Callable[[bytes], T],
    get_name: Callable[[T], str],
    is_included: Callable[[str], bool] = lambda _: True,
) -> list[T]:
    """Decode entries in their order, without duplicates, and collect the rejected ones.

    Args:
        read: decodes an entry. Raises UnusableEntryError.
        get_name: returns the name of a decoded entry.
        is_included: returns False for names that the config excludes.
    """
    result: list[T] = []
    names: set[str] = set()
    for raw in entries:
        try:
            entry = read(bytes(raw))
        except UnusableEntryError as error:
            rejected.add(error.name, error.reason)
            continue
        name = get_name(entry)
        if name in names:
            rejected.add(name, "The upstream lists this name more than once.")
            continue
        names.add(name)
        if not is_included(name):
            continue
        if len(result) >= MAX_ENTRIES:
            rejected.add(name, f"The upstream lists more than {MAX_ENTRIES} entries of this kind.")
            continue
        result.append(entry)
    return result


def decode_entry(
    raw: bytes, decode: Callable[[bytes], T], name_member: str, max_length: int
) -> tuple[T, dict[str, Raw]]:
    """Return the decoded entry, and its raw members without the one that names it."""
    try:
        members = decode_members(raw)
    except ProtocolError:
        raise UnusableEntryError("?", "The entry is not an object.") from None
    # MCP has no null members here, and clients reject a whole list because of one.
    members = remove_nulls(members)
    name = value_of(members, name_member)
    name = name if isinstance(name, str) and name else "?"
    try:
        raw.decode()
        entry = decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise UnusableEntryError(name, f"Invalid definition: {exc}.") from None
    # A decoded entry has this member, and it is a string. If it occurs twice, the last one counts.
    entry_name = value_of(members, name_member)
    if not entry_name:
        raise UnusableEntryError("?", f"`{name_member}` is empty.")
    if len(entry_name) > max_length:
        raise UnusableEntryError(
            entry_name, f"`{name_member}` is longer than {max_length} characters."
        )
    del members[name_member]
    return entry, members


def remove_nulls(members: dict[str, Raw]) -> dict[str, Raw]:
    return {name: value for name, value in members.items() if bytes(value) != NULL}


def value_of(members: dict[str, Raw], key: str) -> Any:
    """Return the value of a member. None: it is absent or invalid."""
    try:
        return decode_value(members[key])
    except (KeyError, ProtocolError):
        return None


class Definition(msgspec.Struct, gc=False, rename="camel"):
    """The members of a tool that the node reads. All others are passed on unchanged."""

    name: str
    input_schema: Raw
    description: str | None = None
    annotations: Annotations | None = None


_decode_definition = msgspec.json.Decoder(Definition).decode


class AcceptedDefinition(NamedTuple):
    """A tool definition that will be shown, before it gets its names."""

    definition: Definition
    members: dict[str, Raw]
    """All members except the name."""
    params: tuple[HeaderParam, ...]


def read_tool_entries(
    definitions: Iterable[Raw | bytes],
    server: ServerConfig,
    rejected: RejectedEntries,
    *,
    http: bool,
) -> list[AcceptedDefinition]:
    """Return the definitions that will be shown, in their order."""
    return read_entries(
        definitions,
        rejected,
        lambda raw: _read(raw, http=http),
        lambda accepted: accepted.definition.name,
        lambda name: is_tool_included(name, server),
    )


def _read(raw: bytes, *, http: bool) -> AcceptedDefinition:
    definition, members = decode_entry(
        raw, _decode_definition, "name", names.MAX_UPSTREAM_NAME_LENGTH
    )
    name = definition.name
    try:
        schema = decode_members(definition.input_schema)
    except ProtocolError:
        raise UnusableEntryError(name, "`inputSchema` is not an object.") from None
    # Clients reject a whole list because of one schema whose `type` is not "object".
    schema_type = value_of(schema, "type")
    if schema_type != "object":
        if "type" in schema and not (isinstance(schema_type, list) and "object" in schema_type):
            raise UnusableEntryError(name, "`inputSchema` must have `type: object`.")
        members["inputSchema"] = Raw(encode_members({**schema, "type": Raw(b'"object"')}))
    params: tuple[HeaderParam, ...] = ()
    if b"x-mcp-header" in raw:
        try:
            params = read_header_params(decode_value(definition.input_schema))
        except ProtocolError as exc:
            # The rule binds clients of HTTP servers. Elsewhere the annotation has no meaning.
            if http:
                raise UnusableEntryError(name, exc.message) from None
    return AcceptedDefinition(definition, members, params)


def members_for_session(members: dict[str, Raw]) -> dict[str, Raw]:
    """Return a definition for session clients: they support output schemas of objects only, and
    reject a whole list because of another."""
    schema = members.get("outputSchema")
    if schema is None or _is_object_schema(schema):
        return members
    return {name: value for name, value in members.items() if name != "outputSchema"}


def members_for_stateless(members: dict[str, Raw]) -> dict[str, Raw]:
    """Return a definition for stateless clients: there is no `execution`. Output schemas may have
    any type, but must be objects themselves."""
    removed = {"execution"} & members.keys()
    schema = members.get("outputSchema")
    if schema is not None and bytes(schema)[:1] != b"{":
        removed.add("outputSchema")
    if not removed:
        return members
    return {name: value for name, value in members.items() if name not in removed}


def _is_object_schema(schema: Raw) -> bool:
    try:
        return bool(value_of(decode_members(schema), "type") == "object")
    except ProtocolError:
        return False


def is_tool_included(name: str, server: ServerConfig) -> bool:
    """Return whether the config includes a tool of this name (`allow`, `deny`)."""
    if server.allow and not any(fnmatchcase(name, pattern) for pattern in server.allow):
        return False
    return not any(fnmatchcase(name, pattern) for pattern in server.deny)
