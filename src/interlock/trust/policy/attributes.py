"""What the policy reads of a call: the kinds it can be known by, the arguments it is made with.

It must see what the upstream will see. So arguments that two readers may read differently are
refused where a condition depends on them, and those that the condition's own reader cannot take in
whole are said to be beyond judgement.
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

DEEPEST: Final = 64
"""Deeper arguments are not judged."""
_NUL: Final = b"\\u0000"
_SHOWN: Final = 60
_RESOLVABLE: Final = re.compile(r"(?:^|[/\\])\.{1,2}(?:[/\\]|$)|[\\%]|//")
_decode = msgspec.json.Decoder().decode


# -- the arguments


def read_arguments(call: Call) -> dict[str, Any] | None:
    """The arguments as a condition may see them. None: they are beyond judgement.

    Raises InterlockError for arguments that mean different things to different readers.
    """
    raw = bytes(call.arguments)
    arguments = call.decoded_arguments
    if arguments is None:
        try:
            arguments = _decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            raise InterlockError(INVALID_PARAMS, f"`arguments` cannot be read: {exc}.") from None
        if arguments is None:
            arguments = {}
        call.decoded_arguments = arguments
    if type(arguments) is not dict:
        return None
    reject_lookalikes(raw)
    if (_NUL in raw or raw.count(b"{") + raw.count(b"[") > DEEPEST) and not _is_plain(arguments):
        return None
    return arguments


def _is_plain(value: Any, depth: int = 0) -> bool:
    """Whether a condition's reader takes all of it in: no text with a NUL, not too deep."""
    if isinstance(value, str):
        return "\0" not in value
    if isinstance(value, dict):
        return depth < DEEPEST and all(
            "\0" not in key and _is_plain(each, depth + 1) for key, each in value.items()
        )
    if isinstance(value, list):
        return depth < DEEPEST and all(_is_plain(each, depth + 1) for each in value)
    return True


# -- the kinds


def kinds_of(call: Call, catalog: Catalog | None) -> tuple[tuple[str, ...], ...]:
    """What a request that calls no tool is known by: its kind, once for every name that what it
    asks for has here, each with its other spellings."""
    verb = call.method
    member = CONTEXT_MEMBER.get(verb)
    if member is None or not call.name:
        return ((request_kind(verb),),)
    if verb in PROMPT_METHODS:
        prompt = None if catalog is None else catalog.current.prompt(call.name)
        return ((request_kind(verb, call.name if prompt is None else prompt.canonical),),)
    names = dict.fromkeys((call.name, _own_uri(call, member) or call.name))
    return tuple(
        tuple(request_kind(verb, spelling) for spelling in spellings(uri)) for uri in names
    )


def _own_uri(call: Call, member: str) -> str:
    """The URI as its upstream will read it."""
    raw = (call.extra_params or {}).get(member)
    try:
        value = None if raw is None else decode_value(raw)
    except ProtocolError:
        return ""
    return value if isinstance(value, str) else ""


def spellings(uri: str) -> tuple[str, ...]:
    """A URI, and how it reads when escapes and dots are resolved: a server may do that."""
    scheme, separator, rest = uri.partition("://")
    if not separator:
        return (uri,)
    if _RESOLVABLE.search(rest):
        plain = unquote(rest).replace("\\", "/")
        resolved = posixpath.normpath(plain)
        if plain.startswith("/"):
            resolved = "/" + resolved.lstrip("/")
        if plain.endswith("/") and not resolved.endswith("/"):
            resolved += "/"
        rest = resolved
    other = scheme.lower() + separator + rest
    return (uri,) if other == uri else (uri, other)


class ToolAnnotations(Mapping[str, Any]):
    """What a tool says of itself, read when a rule first wants to know."""

    __slots__ = ("_found", "_tool")

    def __init__(self, tool: Tool) -> None:
        self._tool = tool
        self._found: dict[str, Any] | None = None

    def _all(self) -> dict[str, Any]:
        if self._found is None:
            found = annotations_of(b"{" + self._tool.listed[1:])
            if found is None:
                found = decode_value(self._tool.capability())
            self._found = found
        return self._found

    def __getitem__(self, member: str) -> Any:
        return self._all()[member]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())


class _Listed(msgspec.Struct):
    annotations: Any = None
    meta: Any = msgspec.field(default=None, name="_meta")


_read_listed = msgspec.json.Decoder(_Listed).decode


def annotations_of(definition: bytes | Raw) -> dict[str, Any] | None:
    """Members of a tool's annotations and of its capability, in one. None: there are neither."""
    try:
        listed = _read_listed(definition)
    except (msgspec.DecodeError, RecursionError):
        # A tool may say of itself what it likes, as deep as it likes.
        return None
    capability = listed.meta.get(CAPABILITY) if isinstance(listed.meta, dict) else None
    said = [one for one in (listed.annotations, capability) if isinstance(one, dict)]
    return {name: value for one in said for name, value in one.items()} if said else None
