"""Names: the canonical dotted form, and the form that clients are shown.

Policy, journal, status, the command line and MCP-AX links use canonical names
(`infra.edge.jira.create_issue`). Most model APIs accept only `^[a-zA-Z0-9_-]{1,64}$` and reject the
whole list for one name with a dot, so clients are shown the `safe` form (`jira__create_issue`)
unless they are known to take dots. Both forms are accepted on a call.

A safe name belongs to one tool by its shape, not by who came first: nobody else can take it over
while its owner is away, because a client may still call from a list that it read an hour ago.
"""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from enum import Enum
from hashlib import blake2b
from typing import Final, NamedTuple

from interlock.protocol.mcpax import MAX_ROUTE

SEGMENT: Final = re.compile(r"[a-z0-9_-]{1,63}")
MAX_SEGMENT: Final = 63
MAX_CANONICAL: Final = 255
MAX_CLIENT: Final = 64
"""What clients and model APIs take at most, with whatever the client puts in front."""
MAX_SAFE: Final = 48
"""The longest name that the node makes. Clients put their own prefix in front of it, such as
`mcp__interlock__`, which has 16 characters."""
_BEFORE_HASH: Final = MAX_SAFE - 9
_KEPT_OF_PREFIX: Final = 10
"""So much of a prefix is kept in a name that is too long."""
MAX_OWN: Final = 1024
"""An upstream's own name may be this long. It travels in a header, which has its limits too."""

TOO_LONG: Final = f"Its full name is longer than {MAX_CANONICAL} characters."

_NOT_CANONICAL: Final = re.compile(r"[^a-z0-9_-]")
_NOT_SAFE: Final = re.compile(r"[^A-Za-z0-9_-]")
_SAFE: Final = re.compile(rf"[A-Za-z0-9_-]{{1,{MAX_CLIENT}}}")
_ENDS_LIKE_A_HASH: Final = re.compile(r"_[0-9a-f]{8}\Z")

AX: Final = "ax"
"""For MCP-AX links and clients that speak it: dotted names, and all that MCP-AX adds to a list."""
DOTTED: Final = "dotted"
SAFE: Final = "safe"
AUTO: Final = "auto"

_TAKES_DOTS: Final = ("interlock", "inspector-")
"""Clients that show tools to a person or read them themselves, and pass no name on to a model API:
the beginning of their `clientInfo.name`, in lower case. Names such as `mcp` say nothing: every
framework on the official SDK is called so."""


def style_for(client_name: str, setting: str) -> str:
    """`dotted` or `safe` for a client that calls itself `client_name`."""
    if setting != AUTO:
        return setting
    return DOTTED if client_name.lower().startswith(_TAKES_DOTS) else SAFE


class Names(NamedTuple):
    """What a tool or a prompt is called."""

    canonical: str
    safe_name: str
    transparent_name: str | None
    """Without a prefix, for an upstream that is shown as it is."""


class NameRule(Enum):
    """What becomes of a name that is no segment."""

    MENDED = "mended"
    """A plain MCP server's: a lawful one is made of it."""
    SEGMENT = "segment"
    """A registered leaf's: it is refused."""
    DOTTED = "dotted"
    """A registered aggregator's: it may have several segments, each of them lawful."""


def give(
    wanted: Sequence[tuple[str, str]], prefix: str, *, bare: bool, rule: NameRule = NameRule.MENDED
) -> list[Names | str]:
    """Names for everything of one kind that one upstream offers: (its own name, the name shown).

    A sentence for what gets none. With `bare` there are names without a prefix.
    """
    given: list[Names | str] = [TOO_LONG] * len(wanted)
    leaves = LeafNames()
    taken: set[str] = set()
    safe_names: set[str] = set()
    bare_names: set[str] = set()
    # Who gets which name must not depend on the order in which the upstream happens to list.
    for place in sorted(range(len(wanted)), key=lambda place: _precedence(*wanted[place])):
        own, shown = wanted[place]
        if rule is NameRule.MENDED:
            canonical = _joined(prefix, leaves.take(shown))
        else:
            canonical = _joined(prefix, shown)
            refused = _refusal(own, rule) or _refusal(shown, rule)
            if not refused and canonical.count(".") >= MAX_ROUTE:
                refused = f"invalid_tool_name: its full name has more than {MAX_ROUTE} segments."
            if not refused and canonical in taken:
                refused = "invalid_tool_name: another one is called so."
            if refused:
                given[place] = refused
                continue
            taken.add(canonical)
        if len(canonical) > MAX_CANONICAL:
            continue
        is_bare = bare and shown not in bare_names
        bare_names.add(shown)
        safe_prefix, leaf = "" if is_bare else prefix, shown
        if rule is NameRule.DOTTED:
            safe_prefix, _, leaf = _joined(safe_prefix, shown).rpartition(".")
        # How deep a tool of an aggregator is cannot be known: `a__b__c` is `a.b.c`, so `b__c` in
        # `a` must be called otherwise, also while there is no `a.b.c`.
        unclear = rule is NameRule.DOTTED and "__" in leaf
        safe_name = safe(safe_prefix, leaf, canonical, safe_names, unclear=unclear)
        safe_names.add(safe_name)
        given[place] = Names(canonical, safe_name, shown if is_bare else None)
    return given


def _joined(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def _refusal(name: str, rule: NameRule) -> str:
    """Why a registered subserver cannot call something so. Empty: it can."""
    segments = name.split(".") if rule is NameRule.DOTTED else (name,)
    if all(is_lawful(segment) for segment in segments):
        return ""
    if rule is NameRule.SEGMENT and "." in name:
        return "invalid_tool_name: only an aggregator's names have dots."
    return f"invalid_tool_name: a segment takes 1 to {MAX_SEGMENT} of a-z, 0-9, _ and -."


def _precedence(own: str, shown: str) -> tuple[bool, bool, bool, str]:
    """Who chooses first: the renamed, then those whose name needs no mending, by their own name."""
    return shown == own, not is_lawful(shown), not is_safe(shown), own


class LeafNames:
    """Gives tools of one upstream their last segments, each only once."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._next: dict[str, int] = {}

    def take(self, name: str) -> str:
        """A tool's own name as a lawful last segment; a number is added when it is taken."""
        base = _NOT_CANONICAL.sub("_", name.lower())[:MAX_SEGMENT] or "_"
        candidate, number = base, self._next.get(base, 2)
        while candidate in self._taken:
            suffix = f"_{number}"
            candidate = base[: MAX_SEGMENT - len(suffix)] + suffix
            number += 1
        self._next[base] = number
        self._taken.add(candidate)
        return candidate


def safe(
    prefix: str, name: str, canonical: str, taken: Container[str], *, unclear: bool = False
) -> str:
    """The name for clients that refuse dots.

    A hash of the canonical name is added where the plain form could be somebody else's: when it is
    too long, already taken, or has another reading. It has one when a segment runs into the `__`
    behind it (`a__b` + `c` reads like `a` + `b__c`), when it ends like a hash, or when the caller
    knows of one (`unclear`).
    """
    front, leaf = prefix.replace(".", "__"), _NOT_SAFE.sub("_", name)
    candidate = f"{front}__{leaf}" if front else leaf
    if (
        not unclear
        and len(candidate) <= MAX_SAFE
        and candidate not in taken
        and _ENDS_LIKE_A_HASH.search(candidate) is None
        and not any("__" in part or part.endswith("_") for part in prefix.split("."))
    ):
        return candidate
    if front and len(candidate) > _BEFORE_HASH:
        # The tool's own name says more than the way to it: a long prefix is cut first.
        room = _BEFORE_HASH - 2
        kept = front[: max(_KEPT_OF_PREFIX, room - len(leaf))]
        candidate = f"{kept}__{leaf[: room - len(kept)]}"
    return hashed(candidate, canonical)


def hashed(name: str, canonical: str) -> str:
    """`name`, cut where needed, with a hash that is the same tomorrow."""
    digest = blake2b(canonical.encode(), digest_size=4).hexdigest()
    return f"{name[:_BEFORE_HASH]}_{digest}"


def is_lawful(name: str) -> bool:
    """Whether a tool's own name can be the last segment as it is."""
    return SEGMENT.fullmatch(name) is not None


def is_safe(name: str) -> bool:
    """Whether every client can bear this name."""
    return _SAFE.fullmatch(name) is not None
