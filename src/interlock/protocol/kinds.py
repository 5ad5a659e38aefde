"""Kinds of MCPx messages (section 3.1), and the patterns that grant them (section 4.1).

A kind is `chat`, `mcp/request:METHOD[:CONTEXT]` and so on. A pattern is a kind with stars in it:

- a star at the end stands for anything, `/` and `:` included;
- a star elsewhere stands for one or more characters but no `:`, so that what a tool or a URI is
  called cannot make a method out of it: `mcp/request:*/list` does not grant
  `mcp/request:tools/call:x/list`;
- a method without a context grants every context, a context grants only itself;
- nothing grants `system/…`, `system:…`, `system` or `presence`, nor what looks like them: only a
  gateway says that.

Pure: text in, answers out.
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

# -- What nobody sees in a name: spaces, and letters that show nothing though they count as
# printable.
#
# Pure.

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
"""The longest pattern that is read, and the longest kind."""

CONTEXT_MEMBER: Final = {
    method: member for method, member in NAME_FIELDS.items() if method not in TASK_METHODS
}
"""The member of `params` that is the context. Other methods have none."""

_WITH_METHOD: Final = frozenset({REQUEST, RESPONSE, PROPOSAL})
_RESERVED_STARTS: Final = (RESERVED, "system:")
_RESERVED_WORDS: Final = frozenset({"system", "presence"})
_EVERYBODYS: Final = ("mcp/", CHAT)
"""How a kind begins that is no gateway's, however it goes on: nearly all do."""
_SHOWN: Final = 100
_MOST_KNOWN: Final = 4_096
_LONGEST_KNOWN: Final = 256


def is_reserved(kind: str) -> bool:
    """Whether only a gateway may say it, or somebody could take it for that: written with other
    capitals, with other forms of the same letters, or with what nobody sees."""
    if kind.startswith(_EVERYBODYS):
        return False
    return _is_gateways(kind) or _is_gateways(_as_seen(kind))


def _is_gateways(kind: str) -> bool:
    return kind.startswith(_RESERVED_STARTS) or kind in _RESERVED_WORDS


def _as_seen(kind: str) -> str:
    plain = kind if kind.isascii() else INVISIBLE.sub("", unicodedata.normalize("NFKC", kind))
    return "".join(one for one in plain.casefold() if one.isprintable() and not one.isspace())


class MessageKind(NamedTuple):
    """A kind, taken apart. Empty: it has none."""

    family: str
    method: str = ""
    context: str = ""

    def __str__(self) -> str:
        return ":".join(part for part in self if part)


def read_kind(text: str) -> MessageKind:
    """Take a kind apart. Raises ProtocolError for one that cannot be.

    The method ends at the second colon, and all the rest is the context: a URI has colons too.
    """
    family, colon, rest = text.partition(":")
    if family not in _WITH_METHOD:
        if not family or (colon and family == CHAT):
            raise _malformed(text, "its first part means nothing")
        return MessageKind(text)
    method, colon, context = rest.partition(":")
    if not method:
        raise _malformed(text, "it names no method")
    if colon and not context:
        raise _malformed(text, "its context is empty")
    if context and method not in CONTEXT_MEMBER:
        raise _malformed(text, f"{method[:_SHOWN]} has no context")
    return MessageKind(family, method, context)


def request_kind(method: str, context: str = "") -> str:
    """What a request is called; the context only where the method has one."""
    if context and method in CONTEXT_MEMBER:
        return f"{REQUEST}:{method}:{context}"
    return f"{REQUEST}:{method}"


def response_kind(method: str, context: str = "") -> str:
    """What the response to a request of this method is called."""
    return RESPONSE + request_kind(method, context)[len(REQUEST) :]


def proposal_kind(method: str, context: str = "") -> str:
    """What a proposal of such a request is called."""
    return PROPOSAL + request_kind(method, context)[len(REQUEST) :]


def _malformed(text: str, why: str) -> ProtocolError:
    return ProtocolError(f"The kind {text[:_SHOWN]!r} cannot be read: {why}.", INVALID_REQUEST)


class KindPattern:
    """One pattern, compiled."""

    __slots__ = ("_exact", "_match", "_starts", "is_exact", "prefix", "text")

    def __init__(self, text: str) -> None:
        """Raises ProtocolError for a pattern that could never grant anything."""
        problem = find_pattern_problem(text)
        if problem:
            raise ProtocolError(f"The pattern {text[:_SHOWN]!r}: {problem}.", INVALID_REQUEST)
        self.text = text
        collapsed = re.sub(r"\*+", "*", text)
        self.prefix: str = collapsed.partition("*")[0]
        """How every kind begins that it grants."""
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
        """Whether it grants one kind and no other."""

    def grants(self, kind: str) -> bool:
        if is_reserved(kind):
            return False
        if self._match is not None:
            return self._match.fullmatch(kind) is not None
        return kind == self._exact or (self._starts is not None and kind.startswith(self._starts))

    def __repr__(self) -> str:
        return f"KindPattern({self.text!r})"


def find_pattern_problem(text: str) -> str:
    """What is wrong with a pattern. Empty: nothing."""
    if not text:
        return "it is empty"
    if len(text) > MAX_KIND_LENGTH:
        return f"it is longer than {MAX_KIND_LENGTH} characters"
    if any(character.isspace() or not character.isprintable() for character in text):
        return "it has spaces or unprintable characters"
    if is_reserved(text):
        return "nobody may send what only a gateway says"
    family, _, rest = text.partition(":")
    if family in _WITH_METHOD and not rest:
        return f"it names no method; {family}:* stands for all"
    return ""


def _names_method_only(pattern: str) -> bool:
    family, _, rest = pattern.partition(":")
    return family in _WITH_METHOD and bool(rest) and ":" not in rest


def _expression(pattern: str) -> str:
    """The pattern as a regular expression that never goes back over what it has read.

    The first place where the text behind a star stands is as good as any later one: what follows
    has only more room, and no star can cross a colon. So all but the last are atomic.
    """
    first, *chunks = pattern.split("*")
    open_end = chunks[-1] == ""
    if open_end:
        chunks.pop()
    parts = [re.escape(first)]
    for place, chunk in enumerate(chunks):
        if place < len(chunks) - 1 or open_end:
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
    """A set of patterns: what somebody may send.

    A sender uses few kinds, and says them again and again: what was found out about one is kept.
    Long ones are not, so that nobody can fill the memory with them.
    """

    __slots__ = ("_cache", "patterns", "texts")

    def __init__(self, patterns: Iterable[str]) -> None:
        self.texts = tuple(patterns)
        self.patterns = tuple(compile_pattern(text) for text in self.texts)
        self._cache: BoundedDict[str, bool] = BoundedDict(_MOST_KNOWN)

    def grants(self, kind: str) -> bool:
        known = self._cache.get(kind)
        return self._evaluate(kind) if known is None else known

    def _evaluate(self, kind: str) -> bool:
        granted = any(pattern.grants(kind) for pattern in self.patterns)
        if len(kind) <= _LONGEST_KNOWN:
            self._cache[kind] = granted
        return granted


@lru_cache(maxsize=1_024)
def compile_grants(patterns: tuple[str, ...]) -> KindGrants:
    """The same set for all who have the same patterns."""
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
"""Sets of patterns that have a name in the draft, and `none`, for whoever may only listen or has
all its patterns listed. `initial` is for whoever nobody knows: it may propose and talk. Who serves
tools as well needs `proposal_only`."""

PROGRESSIVE_TRUST: Final[tuple[tuple[str, ...], ...]] = (
    PROFILES["initial"],
    (*PROFILES["initial"], "mcp/request:resources/read"),
    (*PROFILES["initial"], "mcp/request:resources/read", "mcp/request:tools/*"),
    ("mcp/*", CHAT),
)
"""The steps by which the draft's example comes to trust somebody."""
