"""Names: the canonical dotted form, and what each client can bear to see.

Canonical names (`infra.edge.jira.create_issue`) are used in policy, journal and MCP-AX. Many
clients refuse dots and anything over 64 characters, all or nothing, so they get the `safe` form
(`jira__create_issue`). Both forms are accepted on a call.
"""

from __future__ import annotations

import re
from collections.abc import Container
from hashlib import blake2b
from typing import Final

SEGMENT: Final = re.compile(r"[a-z0-9_-]{1,63}")
MAX_SEGMENT: Final = 63
MAX_CANONICAL: Final = 255
MAX_SAFE: Final = 64

_NOT_CANONICAL: Final = re.compile(r"[^a-z0-9_-]")
_NOT_SAFE: Final = re.compile(r"[^A-Za-z0-9_-]")
_SAFE: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")

DOTTED: Final = "dotted"
SAFE: Final = "safe"
AUTO: Final = "auto"

# Clients that accept ^[a-zA-Z0-9_-]{1,64}$ only, by the beginning of their `clientInfo.name`,
# in lower case. One tool they dislike costs their users the whole list.
_REFUSES_DOTS: Final = (
    "claude",
    "codex",
    "copilot",
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


def leaf(name: str, taken: Container[str]) -> str:
    """A tool's own name as a lawful last segment, different from everything in `taken`."""
    base = _NOT_CANONICAL.sub("_", name.lower())[:MAX_SEGMENT] or "_"
    candidate, number = base, 2
    while candidate in taken:
        suffix = f"_{number}"
        candidate = base[: MAX_SEGMENT - len(suffix)] + suffix
        number += 1
    return candidate


def safe(prefix: str, name: str, canonical: str, taken: Container[str]) -> str:
    """The name for clients that refuse dots; hashed when it is too long or already taken.

    The hash is of the canonical name, so the same tool has the same name tomorrow.
    """
    joined = prefix.replace(".", "__") + "__" + name if prefix else name
    candidate = _NOT_SAFE.sub("_", joined)
    if len(candidate) <= MAX_SAFE and candidate and candidate not in taken:
        return candidate
    digest = blake2b(canonical.encode(), digest_size=4).hexdigest()
    return f"{candidate[: MAX_SAFE - 9]}_{digest}"


def is_safe(name: str) -> bool:
    """Whether every client can bear this name."""
    return _SAFE.fullmatch(name) is not None
