"""What one upstream offers, read once from its list and made ready to be merged.

One bad entry never hides the others: it is set aside with the reason, and shown to the operator.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.catalog import names
from interlock.catalog.effects import Annotations, Effect, classify
from interlock.config import ServerConfig
from interlock.errors import ProtocolError
from interlock.protocol.headers import HeaderParam, InvalidHeaderAnnotation, header_params
from interlock.protocol.jsonrpc import decode_members, decode_value, encode_members, encode_value

MAX_TOOLS: Final = 10_000
"""More tools than this from one upstream are set aside: a list must not fill the memory."""


class SetAside(msgspec.Struct, frozen=True, gc=False):
    """A tool that is not shown, and why."""

    name: str
    reason: str


class _Definition(msgspec.Struct, gc=False, rename="camel"):
    """The members of a tool that the node reads. The rest stays as it came."""

    name: str
    input_schema: Raw
    description: str | None = None
    annotations: Annotations | None = None


_decode_definition = msgspec.json.Decoder(_Definition).decode


class Tool:
    """One tool: where it leads, what it does to the world, and how it reads in a list.

    Immutable but for `validator`, which the validation stage compiles on the first call.
    """

    __slots__ = (
        "canonical",
        "description",
        "effect",
        "header_params",
        "listed",
        "safe_name",
        "segment",
        "transparent_name",
        "upstream",
        "upstream_name",
        "upstream_name_json",
        "validator",
    )

    def __init__(
        self,
        *,
        upstream: str,
        segment: str,
        upstream_name: str,
        canonical: str,
        safe_name: str,
        transparent_name: str | None,
        description: str,
        effect: Effect,
        params: tuple[HeaderParam, ...],
        listed: bytes,
    ) -> None:
        self.upstream = upstream
        self.segment = segment
        self.upstream_name = upstream_name
        self.upstream_name_json = encode_value(upstream_name)
        self.canonical = canonical
        self.safe_name = safe_name
        self.transparent_name = transparent_name
        self.description = description
        self.effect = effect
        self.header_params = params
        self.listed = listed
        """The definition behind its name: `,"description":…}`."""
        self.validator: Any = None

    def input_schema(self) -> Any:
        """The schema of the arguments, decoded when it is needed."""
        return decode_value(decode_members(b"{" + self.listed[1:])["inputSchema"])

    def shown_as(self, style: str) -> str:
        """The name that a client with this name style sees."""
        if self.transparent_name is not None:
            if style == names.SAFE and not names.is_safe(self.transparent_name):
                return self.safe_name
            return self.transparent_name
        return self.safe_name if style == names.SAFE else self.canonical


class Offering:
    """Everything one upstream offers, in the order in which it is listed."""

    __slots__ = ("segment", "set_aside", "tools", "upstream")

    def __init__(
        self, upstream: str, segment: str, tools: tuple[Tool, ...], set_aside: tuple[SetAside, ...]
    ) -> None:
        self.upstream = upstream
        self.segment = segment
        self.tools = tools
        self.set_aside = set_aside


def read_offering(
    key: str,
    server: ServerConfig,
    definitions: Iterable[Raw | bytes],
    *,
    root_segment: str | None = None,
    http: bool = False,
) -> Offering:
    """An upstream's raw tool definitions as an offering, filtered and renamed by its config."""
    segment = server.segment or key
    prefix = f"{root_segment}.{segment}" if root_segment else segment
    transparent = server.expose == "transparent"
    tools: list[Tool] = []
    set_aside: list[SetAside] = []
    seen: set[str] = set()
    leaves: set[str] = set()
    safe_names: set[str] = set()
    for raw in definitions:
        try:
            definition, members, params = _read(bytes(raw), http=http)
        except _Unusable as unusable:
            set_aside.append(SetAside(unusable.name, unusable.reason))
            continue
        own = definition.name
        if own in seen:
            set_aside.append(SetAside(own, "The upstream lists this name more than once."))
            continue
        seen.add(own)
        if not _wanted(own, server):
            continue
        if len(tools) >= MAX_TOOLS:
            set_aside.append(SetAside(own, f"More than {MAX_TOOLS} tools."))
            continue
        shown = server.rename.get(own, own)
        leaf = names.leaf(shown, leaves)
        canonical = f"{prefix}.{leaf}"
        if len(canonical) > names.MAX_CANONICAL:
            set_aside.append(
                SetAside(own, f"Its full name is longer than {names.MAX_CANONICAL} characters.")
            )
            continue
        leaves.add(leaf)
        safe_name = names.safe("" if transparent else prefix, shown, canonical, safe_names)
        safe_names.add(safe_name)
        description = server.descriptions.get(own)
        if description is not None:
            members["description"] = Raw(encode_value(description))
        tools.append(
            Tool(
                upstream=key,
                segment=segment,
                upstream_name=own,
                canonical=canonical,
                safe_name=safe_name,
                transparent_name=shown if transparent else None,
                description=description or definition.description or "",
                effect=classify(
                    own,
                    definition.annotations,
                    server.effects,
                    trusted=server.trust_annotations,
                ),
                params=params,
                listed=b"," + encode_members(members)[1:],
            )
        )
    if not transparent:
        tools.sort(key=lambda tool: tool.canonical)
    return Offering(key, segment, tuple(tools), tuple(set_aside))


class _Unusable(Exception):
    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        self.reason = reason


def _read(raw: bytes, *, http: bool) -> tuple[_Definition, dict[str, Raw], tuple[HeaderParam, ...]]:
    try:
        members = decode_members(raw)
    except ProtocolError:
        raise _Unusable("?", "The entry is not an object.") from None
    try:
        definition = _decode_definition(raw)
    except (msgspec.DecodeError, RecursionError) as exc:
        raise _Unusable(_name_of(members), f"The definition is not valid: {exc}.") from None
    if not definition.name:
        raise _Unusable("?", "The tool has no name.")
    try:
        schema = decode_members(definition.input_schema)
    except ProtocolError:
        raise _Unusable(definition.name, "`inputSchema` is not an object.") from None
    if "type" not in schema:
        # Clients refuse a whole list for one schema without `type`; arguments are always objects.
        members["inputSchema"] = Raw(encode_members({"type": Raw(b'"object"'), **schema}))
    params: tuple[HeaderParam, ...] = ()
    if b"x-mcp-header" in raw:
        try:
            params = header_params(decode_value(definition.input_schema))
        except InvalidHeaderAnnotation as exc:
            # The rule binds clients of HTTP servers; elsewhere the annotation means nothing.
            if http:
                raise _Unusable(definition.name, str(exc)) from None
    del members["name"]
    return definition, members, params


def _name_of(members: dict[str, Raw]) -> str:
    try:
        name = decode_value(members["name"])
    except (KeyError, ProtocolError):
        return "?"
    return name if isinstance(name, str) else "?"


def _wanted(name: str, server: ServerConfig) -> bool:
    if server.allow and not any(fnmatchcase(name, pattern) for pattern in server.allow):
        return False
    return not any(fnmatchcase(name, pattern) for pattern in server.deny)
