"""The attributes of a call that policy rules read: kinds, arguments and annotations.

A condition must see what the upstream will see. Arguments that two readers may parse differently
are rejected if a condition depends on them. Arguments that the condition's own reader cannot
represent are undecidable.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import unquote

import msgspec
from msgspec import Raw

from interlock.core.call import Call
from interlock.core.catalog.catalog import Catalog
from interlock.core.catalog.offering import Tool
from interlock.errors import INVALID_PARAMS, InterlockError, ProtocolError
from interlock.protocol.jsonrpc import decode_value
from interlock.protocol.kinds import CONTEXT_MEMBER, request_kind
from interlock.protocol.lookalike_members import reject_lookalikes
from interlock.protocol.mcp import PROMPT_METHODS
from interlock.protocol.mcpax import CAPABILITY

MAX_DEPTH: Final = 64
"""Deeper arguments are undecidable."""
_NUL: Final = b"\\u0000"
_RESOLVABLE: Final = re.compile(r"(?:^|[/\\])\.{1,2}(?:[/\\]|$)|[\\%]|//")
_decode = msgspec.json.Decoder().decode


# -- Arguments


def read_arguments(call: Call) -> dict[str, Any] | None:
    """Return the arguments for conditions. None: they are undecidable.

    Raises InterlockError for arguments that mean different things to different readers.
    """
    raw = bytes(call.arguments)
    arguments = call.decoded_arguments
    if arguments is None:
        try:
            arguments = _decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            raise InterlockError(INVALID_PARAMS, f"`arguments` cannot be parsed: {exc}.") from None
        if arguments is None:
            arguments = {}
        call.decoded_arguments = arguments
    if type(arguments) is not dict:
        return None
    reject_lookalikes(raw)
    if (_NUL in raw or raw.count(b"{") + raw.count(b"[") > MAX_DEPTH) and not _is_representable(
        arguments
    ):
        return None
    return arguments


def _is_representable(value: Any, depth: int = 0) -> bool:
    """Return whether conditions can represent a value: no text with a NUL, not too deep."""
    if isinstance(value, str):
        return "\0" not in value
    if isinstance(value, dict):
        return depth < MAX_DEPTH and all(
            "\0" not in key and _is_representable(member, depth + 1)
            for key, member in value.items()
        )
    if isinstance(value, list):
        return depth < MAX_DEPTH and all(_is_representable(item, depth + 1) for item in value)
    return True


# -- Kinds


def kinds_of(call: Call, catalog: Catalog | None) -> tuple[tuple[str, ...], ...]:
    """Return the kinds of a request that calls no tool.

    There is one entry for each name that its target has here, with all spellings of that name.
    """
    method = call.method
    member = CONTEXT_MEMBER.get(method)
    if member is None or not call.name:
        return ((request_kind(method),),)
    if method in PROMPT_METHODS:
        prompt = None if catalog is None else catalog.current.prompt(call.name)
        return ((request_kind(method, call.name if prompt is None else prompt.canonical),),)
    names = dict.fromkeys((call.name, _upstream_uri(call, member) or call.name))
    return tuple(
        tuple(request_kind(method, spelling) for spelling in spellings(uri)) for uri in names
    )


def _upstream_uri(call: Call, member: str) -> str:
    """Return the URI as its upstream will read it."""
    raw = (call.extra_params or {}).get(member)
    try:
        value = None if raw is None else decode_value(raw)
    except ProtocolError:
        return ""
    return value if isinstance(value, str) else ""


def spellings(uri: str) -> tuple[str, ...]:
    """Return a URI, and its form with escapes and dots resolved, because a server may resolve
    them."""
    scheme, separator, remainder = uri.partition("://")
    if not separator:
        return (uri,)
    if _RESOLVABLE.search(remainder):
        plain = unquote(remainder).replace("\\", "/")
        resolved = posixpath.normpath(plain)
        if plain.startswith("/"):
            resolved = "/" + resolved.lstrip("/")
        if plain.endswith("/") and not resolved.endswith("/"):
            resolved += "/"
        remainder = resolved
    normalized = scheme.lower() + separator + remainder
    return (uri,) if normalized == uri else (uri, normalized)


class ToolAnnotations(Mapping[str, Any]):
    """The annotations of a tool, parsed when a rule first reads them."""

    __slots__ = ("_parsed", "_tool")

    def __init__(self, tool: Tool) -> None:
        self._tool = tool
        self._parsed: dict[str, Any] | None = None

    def _parse(self) -> dict[str, Any]:
        if self._parsed is None:
            parsed = read_annotations(b"{" + self._tool.listed[1:])
            if parsed is None:
                parsed = decode_value(self._tool.capability())
            self._parsed = parsed
        return self._parsed

    def __getitem__(self, member: str) -> Any:
        return self._parse()[member]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parse())

    def __len__(self) -> int:
        return len(self._parse())


class _Listed(msgspec.Struct):
    annotations: Any = None
    meta: Any = msgspec.field(default=None, name="_meta")


_decode_listed = msgspec.json.Decoder(_Listed).decode


def read_annotations(definition: bytes | Raw) -> dict[str, Any] | None:
    """Return the members of a tool's annotations and capability, merged. None: it has neither."""
    try:
        listed = _decode_listed(definition)
    except (msgspec.DecodeError, RecursionError):
        # A server may send annotations of any shape and depth.
        return None
    capability = listed.meta.get(CAPABILITY) if isinstance(listed.meta, dict) else None
    sources = [source for source in (listed.annotations, capability) if isinstance(source, dict)]
    return {key: value for source in sources for key, value in source.items()} if sources else None
