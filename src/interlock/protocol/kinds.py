"""Kinds of MCPx messages (section 3.1), and the patterns that grant them (section 4.1).

A kind is `chat`, `mcp/request:METHOD[:CONTEXT]` and so on. A pattern is a kind with stars:

- a star at the end matches any text, including `/` and `:`;
- another star matches one or more characters other than `:`, so that the name of a tool or a URI
  cannot look like a method: `mcp/request:*/list` does not grant `mcp/request:tools/call:x/list`;
- a method without a context grants every context, a context grants only itself;
- no pattern grants `system/…`, `system:…`, `system` or `presence`, or lookalikes of them: only a
  gateway sends these.

Pure.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from functools import lru_cache
from typing import Final, NamedTuple

from interlock.errors import INVALID_REQUEST, ProtocolError
from interlock.primitives.bounded_dict import BoundedDict
from interlock.protocol.mcp import NAME_FIELDS, TASK_METHODS

# -- Invisible characters in a name: spaces, and letters that are invisible although they count as
# printable.

INVISIBLE: Final = re.compile(
    "[\\s\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0"
    "\U000e0100-\U000e01ef]"
)


REQUEST: Final = "mcp/request"
RESPONSE: Final = "mcp/response"
PROPOSAL: Final = "mcp/proposal"
CHAT: Final = "chat"
RESERVED: Final = "system/"
MAX_KIND_LENGTH: Final = 4_096
"""Maximum length of a kind and of a pattern."""

CONTEXT_MEMBER: Final = {
    method: member for method, member in NAME_FIELDS.items() if method not in TASK_METHODS
}
"""The member of `params` that is the context, by method. Other methods have no context."""

_WITH_METHOD: Final = frozenset({REQUEST, RESPONSE, PROPOSAL})
_RESERVED_PREFIXES: Final = (RESERVED, "system:")
_RESERVED_WORDS: Final = frozenset({"system", "presence"})
_UNRESERVED_PREFIXES: Final = ("mcp/", CHAT)
"""Prefixes of kinds that are never reserved: nearly all kinds have one."""
_MAX_SHOWN_LENGTH: Final = 100
_MAX_CACHED_KINDS: Final = 4_096
_MAX_CACHED_LENGTH: Final = 256


def is_reserved(kind: str) -> bool:
    """Return whether a kind is reserved for gateways, or looks like a reserved kind: in another
    case, with other forms of the same letters, or with invisible characters."""
    if kind.startswith(_UNRESERVED_PREFIXES):
        return False
    return _is_gateway_kind(kind) or _is_gateway_kind(_visible_form(kind))


def _is_gateway_kind(kind: str) -> bool:
    return kind.startswith(_RESERVED_PREFIXES) or kind in _RESERVED_WORDS


def _visible_form(kind: str) -> str:
    visible = kind if kind.isascii() else INVISIBLE.sub("", unicodedata.normalize("NFKC", kind))
    return "".join(
        character
        for character in visible.casefold()
        if character.isprintable() and not character.isspace()
    )


class MessageKind(NamedTuple):
    """The parts of a kind. A missing part is empty."""

    family: str
    method: str = ""
    context: str = ""

    def __str__(self) -> str:
        return ":".join(part for part in self if part)


def read_kind(text: str) -> MessageKind:
    """Parse a kind. Raises ProtocolError.

    The method ends at the second colon, and the rest is the context, which may contain colons.
    """
    family, colon, rest = text.partition(":")
    if family not in _WITH_METHOD:
        if not family or (colon and family == CHAT):
            raise _invalid_kind(text, "its first part is unknown")
        return MessageKind(text)
    method, colon, context = rest.partition(":")
    if not method:
        raise _invalid_kind(text, "it has no method")
    if colon and not context:
        raise _invalid_kind(text, "its context is empty")
    if context and method not in CONTEXT_MEMBER:
        raise _invalid_kind(text, f"{method[:_MAX_SHOWN_LENGTH]} has no context")
    return MessageKind(family, method, context)


def request_kind(method: str, context: str = "") -> str:
    """Return the kind of a request. The context is only used if the method has one."""
    if context and method in CONTEXT_MEMBER:
        return f"{REQUEST}:{method}:{context}"
    return f"{REQUEST}:{method}"


def response_kind(method: str, context: str = "") -> str:
    """Return the kind of the response to a request."""
    return RESPONSE + request_kind(method, context)[len(REQUEST) :]


def proposal_kind(method: str, context: str = "") -> str:
    """Return the kind of a proposal of a request."""
    return PROPOSAL + request_kind(method, context)[len(REQUEST) :]


def _invalid_kind(text: str, reason: str) -> ProtocolError:
    return ProtocolError(f"Invalid kind {text[:_MAX_SHOWN_LENGTH]!r}: {reason}.", INVALID_REQUEST)


class KindPattern:
    """A compiled pattern."""

    __slots__ = ("_exact", "_match", "_starts", "is_exact", "prefix", "text")

    def __init__(self, text: str) -> None:
        """Compile a pattern. Raises ProtocolError for a pattern that grants nothing."""
        problem = find_pattern_problem(text)
        if problem:
            raise ProtocolError(
                f"Invalid pattern {text[:_MAX_SHOWN_LENGTH]!r}: {problem}.", INVALID_REQUEST
            )
        self.text = text
        collapsed = re.sub(r"\*+", "*", text)
        self.prefix: str = collapsed.partition("*")[0]
        """The prefix of all kinds that it grants."""
        self._exact: str | None = None
        self._starts: str | None = None
        self._match: re.Pattern[str] | None = None
        if collapsed == self.prefix:
            self._exact = text
            if _names_method_only(text):
                self._starts = text + ":"
        elif collapsed == self.prefix + "*":
            self._starts = self.prefix
        else:
            self._match = re.compile(_expression(collapsed), re.DOTALL)
        self.is_exact: bool = self._match is None and self._starts is None
        """True if it grants exactly one kind."""

    def grants(self, kind: str) -> bool:
        if is_reserved(kind):
            return False
        if self._match is not None:
            return self._match.fullmatch(kind) is not None
        return kind == self._exact or (self._starts is not None and kind.startswith(self._starts))

    def __repr__(self) -> str:
        return f"KindPattern({self.text!r})"


def find_pattern_problem(text: str) -> str:
    """Return the problem of an invalid pattern. Empty: it is valid."""
    if not text:
        return "it is empty"
    if len(text) > MAX_KIND_LENGTH:
        return f"it is longer than {MAX_KIND_LENGTH} characters"
    if any(character.isspace() or not character.isprintable() for character in text):
        return "it has spaces or unprintable characters"
    if is_reserved(text):
        return "it is reserved for gateways"
    family, _, rest = text.partition(":")
    if family in _WITH_METHOD and not rest:
        return f"it has no method. {family}:* matches all methods"
    return ""


def _names_method_only(pattern: str) -> bool:
    family, _, rest = pattern.partition(":")
    return family in _WITH_METHOD and bool(rest) and ":" not in rest


def _expression(pattern: str) -> str:
    """Return the pattern as a regular expression without backtracking.

    The first position of the text after a star is as good as any later one: the rest has more
    characters to match, and no star can match a colon. So all groups but the last are atomic.
    """
    first, *chunks = pattern.split("*")
    open_end = chunks[-1] == ""
    if open_end:
        chunks.pop()
    parts = [re.escape(first)]
    for index, chunk in enumerate(chunks):
        if index < len(chunks) - 1 or open_end:
            parts.append(f"(?>[^:]+?{re.escape(chunk)})")
        else:
            parts.append(f"[^:]+{re.escape(chunk)}")
    if open_end:
        parts.append(".*")
    elif _names_method_only(pattern):
        parts.append("(?::.*)?")
    return "".join(parts)


@lru_cache(maxsize=4_096)
def compile_pattern(text: str) -> KindPattern:
    return KindPattern(text)


class KindGrants:
    """A set of patterns: the kinds that a participant may send.

    A sender uses few kinds repeatedly, so results are cached. Long kinds are not cached, so that
    they cannot fill the memory.
    """

    __slots__ = ("_cache", "patterns", "texts")

    def __init__(self, patterns: Iterable[str]) -> None:
        self.texts = tuple(patterns)
        self.patterns = tuple(compile_pattern(text) for text in self.texts)
        self._cache: BoundedDict[str, bool] = BoundedDict(_MAX_CACHED_KINDS)

    def grants(self, kind: str) -> bool:
        cached = self._cache.get(kind)
        return self._evaluate(kind) if cached is None else cached

    def _evaluate(self, kind: str) -> bool:
        is_granted = any(pattern.grants(kind) for pattern in self.patterns)
        if len(kind) <= _MAX_CACHED_LENGTH:
            self._cache[kind] = is_granted
        return is_granted


@lru_cache(maxsize=1_024)
def compile_grants(patterns: tuple[str, ...]) -> KindGrants:
    """Return the set for patterns. Equal patterns share one set."""
    return KindGrants(patterns)


PROFILES: Final[dict[str, tuple[str, ...]]] = {
    "full_access": ("mcp/*", CHAT),
    "proposal_only": ("mcp/proposal:*", "mcp/response:*", CHAT),
    "response_only": ("mcp/response:*", CHAT),
    "read_only": ("mcp/request:resources/read", "mcp/request:*/list", "mcp/response:*", CHAT),
    "tool_only": ("mcp/request:tools/*", "mcp/response:tools/*", CHAT),
    "initial": ("mcp/proposal:*", CHAT),
    "none": (),
}
"""The named sets of patterns of the draft, and `none`, for a participant that may only listen or
has its patterns listed. `initial` is for unknown participants: it allows proposals and chat. A
participant that serves tools needs `proposal_only` as well."""

PROGRESSIVE_TRUST: Final[tuple[tuple[str, ...], ...]] = (
    PROFILES["initial"],
    (*PROFILES["initial"], "mcp/request:resources/read"),
    (*PROFILES["initial"], "mcp/request:resources/read", "mcp/request:tools/*"),
    ("mcp/*", CHAT),
)
"""The steps of progressive trust in the example of the draft."""
