"""Names: the canonical dotted form, and what each client can bear to see.

Canonical names (`infra.edge.jira.create_issue`) are used in policy, journal and MCP-AX. Many
clients refuse dots and anything over 64 characters, all or nothing, so they get the `safe` form
(`jira__create_issue`). Both forms are accepted on a call.

A safe name belongs to one tool by its shape, not by who came first: nobody else can take it over
while its owner is away, because a client may still call from a list that it read an hour ago.
"""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

SEGMENT: Final = re.compile(r"[a-z0-9_-]{1,63}")
MAX_SEGMENT: Final = 63
MAX_CANONICAL: Final = 255
MAX_SAFE: Final = 64
MAX_OWN: Final = 1024
"""An upstream's own name may be this long. It travels in a header, which has its limits too."""

_NOT_CANONICAL: Final = re.compile(r"[^a-z0-9_-]")
_NOT_SAFE: Final = re.compile(r"[^A-Za-z0-9_-]")
_SAFE: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ENDS_LIKE_A_HASH: Final = re.compile(r"_[0-9a-f]{8}\Z")

DOTTED: Final = "dotted"
SAFE: Final = "safe"
AUTO: Final = "auto"

# Clients that accept ^[a-zA-Z0-9_-]{1,64}$ only, by the beginning of their `clientInfo.name`,
# in lower case. One tool they dislike costs their users the whole list.
_REFUSES_DOTS: Final = (
    "claude",
    "codex",
    "copilot",
    "github-copilot",
    "github copilot",
    "cursor",
    "visual studio code",
    "vscode",
    "windsurf",
    "gemini",
    "antigravity",
    "zed",
    "opencode",
    "cline",
    "roo",
    "goose",
    "continue",
    "amazon-q",
    "q-dev",
    "kiro",
    "librechat",
    "anthropic",
    "openai",
)


def style_for(client_name: str, setting: str) -> str:
    """`dotted` or `safe` for a client that calls itself `client_name`."""
    if setting != AUTO:
        return setting
    return SAFE if client_name.lower().startswith(_REFUSES_DOTS) else DOTTED


class Names(NamedTuple):
    """What a tool or a prompt is called."""

    canonical: str
    safe_name: str
    transparent_name: str | None
    """Without a prefix, for an upstream that is shown as it is."""


def give(wanted: Sequence[tuple[str, str]], prefix: str, *, bare: bool) -> list[Names | None]:
    """Names for everything of one kind that one upstream offers: (its own name, the name shown).

    None for what would have a name that is too long. With `bare` there are names without a prefix.
    """
    given: list[Names | None] = [None] * len(wanted)
    leaves = Leaves()
    safe_names: set[str] = set()
    bare_names: set[str] = set()
    # Who gets which name must not depend on the order in which the upstream happens to list.
    for place in sorted(range(len(wanted)), key=lambda place: _precedence(*wanted[place])):
        shown = wanted[place][1]
        canonical = f"{prefix}.{leaves.take(shown)}"
        if len(canonical) > MAX_CANONICAL:
            continue
        is_bare = bare and shown not in bare_names
        bare_names.add(shown)
        safe_name = safe("" if is_bare else prefix, shown, canonical, safe_names)
        safe_names.add(safe_name)
        given[place] = Names(canonical, safe_name, shown if is_bare else None)
    return given


def _precedence(own: str, shown: str) -> tuple[bool, bool, bool, str]:
    """Who chooses first: the renamed, then those whose name needs no mending, by their own name."""
    return shown == own, not is_lawful(shown), not is_safe(shown), own


class Leaves:
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


def safe(prefix: str, name: str, canonical: str, taken: Container[str]) -> str:
    """The name for clients that refuse dots.

    A hash of the canonical name is added where the plain form could be somebody else's: when it is
    too long, already taken, or has another reading. It has one when a segment runs into the `__`
    behind it (`a__b` + `c` reads like `a` + `b__c`), or when it ends like a hash.
    """
    joined = prefix.replace(".", "__") + "__" + name if prefix else name
    candidate = _NOT_SAFE.sub("_", joined)
    if (
        len(candidate) <= MAX_SAFE
        and candidate not in taken
        and _ENDS_LIKE_A_HASH.search(candidate) is None
        and not any("__" in part or part.endswith("_") for part in prefix.split("."))
    ):
        return candidate
    return hashed(candidate, canonical)


def hashed(name: str, canonical: str) -> str:
    """`name`, cut where needed, with a hash that is the same tomorrow."""
    digest = blake2b(canonical.encode(), digest_size=4).hexdigest()
    return f"{name[: MAX_SAFE - 9]}_{digest}"


def is_lawful(name: str) -> bool:
    """Whether a tool's own name can be the last segment as it is."""
    return SEGMENT.fullmatch(name) is not None


def is_safe(name: str) -> bool:
    """Whether every client can bear this name."""
    return _SAFE.fullmatch(name) is not None
