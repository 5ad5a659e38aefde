"""Names: the canonical dotted form, and the form that clients see.

Policy, journal, status, the command line and MCP-AX connections use canonical names
(`infra.edge.jira.create_issue`). Most model APIs accept only `^[a-zA-Z0-9_-]{1,64}$` and reject the
whole list because of one name with a dot, so clients see the `safe` form (`jira__create_issue`)
unless they are known to accept dots. A call may use either form.

A safe name is derived from the tool alone, not from the order of registration. So no other tool can
take it over while its upstream is away: a client may still use a list that it read an hour ago.
"""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from enum import Enum
from hashlib import blake2b
from typing import Final, NamedTuple

from interlock.protocol.mcpax import MAX_ROUTE

SEGMENT: Final = re.compile(r"[a-z0-9_-]{1,63}")
MAX_SEGMENT_LENGTH: Final = 63
MAX_CANONICAL_LENGTH: Final = 255
MAX_CLIENT_NAME_LENGTH: Final = 64
"""The maximum that clients and model APIs accept, including the client's own prefix."""
MAX_SAFE_NAME_LENGTH: Final = 48
"""The longest name that the node makes. Clients add their own prefix, such as `mcp__interlock__`
with 16 characters."""
_MAX_LENGTH_BEFORE_HASH: Final = MAX_SAFE_NAME_LENGTH - 9
_MIN_PREFIX_LENGTH: Final = 10
"""The part of a prefix that remains in a shortened name."""
MAX_UPSTREAM_NAME_LENGTH: Final = 1024
"""The limit of an upstream's own name. It travels in a header, which is limited, too."""

NAME_TOO_LONG: Final = f"Its full name is longer than {MAX_CANONICAL_LENGTH} characters."

_NOT_CANONICAL: Final = re.compile(r"[^a-z0-9_-]")
_NOT_SAFE: Final = re.compile(r"[^A-Za-z0-9_-]")
_SAFE: Final = re.compile(rf"[A-Za-z0-9_-]{{1,{MAX_CLIENT_NAME_LENGTH}}}")
_HASH_SUFFIX: Final = re.compile(r"_[0-9a-f]{8}\Z")

AX: Final = "ax"
"""For MCP-AX connections and clients that support it: dotted names and all MCP-AX metadata."""
DOTTED: Final = "dotted"
SAFE: Final = "safe"
AUTO: Final = "auto"

_CLIENTS_WITH_DOTS: Final = ("interlock", "inspector-")
"""Clients that show tools to a person or read them themselves, and pass no name to a model API: the
beginning of their `clientInfo.name`, in lower case. Generic names such as `mcp` are not listed:
every framework on the official SDK uses them."""


def choose_style(client_name: str, setting: str) -> str:
    """Return `dotted` or `safe` for a client with this `clientInfo.name`."""
    if setting != AUTO:
        return setting
    return DOTTED if client_name.lower().startswith(_CLIENTS_WITH_DOTS) else SAFE


class Names(NamedTuple):
    """The names of a tool or a prompt."""

    canonical: str
    safe_name: str
    transparent_name: str | None
    """The name without a prefix, for an upstream that is shown as itself."""


class NameRule(Enum):
    """The treatment of names that are not a valid segment."""

    SANITIZED = "mended"
    """For plain MCP servers: the name is converted to a valid segment."""
    SEGMENT = "segment"
    """For registered leaves: the name is rejected."""
    DOTTED = "dotted"
    """For registered aggregators: the name may have several segments, each of them valid."""


def assign_names(
    requested: Sequence[tuple[str, str]],
    prefix: str,
    *,
    allow_bare: bool,
    rule: NameRule = NameRule.SANITIZED,
) -> list[Names | str]:
    """Assign names to all tools or prompts of one upstream.

    Args:
        requested: pairs of the upstream's own name and the name to show.
        allow_bare: also assign names without a prefix.

    Returns:
        The names in the same order. A sentence for each entry that gets none.
    """
    result: list[Names | str] = [NAME_TOO_LONG] * len(requested)
    leaf_names = LeafNames()
    used_names: set[str] = set()
    safe_names: set[str] = set()
    bare_names: set[str] = set()
    # The result must not depend on the order in which the upstream lists its entries.
    for index in sorted(range(len(requested)), key=lambda index: _precedence(*requested[index])):
        upstream_name, shown_name = requested[index]
        if rule is NameRule.SANITIZED:
            canonical = _join(prefix, leaf_names.assign_name(shown_name))
        else:
            canonical = _join(prefix, shown_name)
            problem = _find_problem(upstream_name, rule) or _find_problem(shown_name, rule)
            if not problem and canonical.count(".") >= MAX_ROUTE:
                problem = f"invalid_tool_name: the full name has more than {MAX_ROUTE} segments."
            if not problem and canonical in used_names:
                problem = "invalid_tool_name: the name is used by another tool."
            if problem:
                result[index] = problem
                continue
            used_names.add(canonical)
        if len(canonical) > MAX_CANONICAL_LENGTH:
            continue
        is_bare = allow_bare and shown_name not in bare_names
        bare_names.add(shown_name)
        safe_prefix, leaf = "" if is_bare else prefix, shown_name
        if rule is NameRule.DOTTED:
            safe_prefix, _, leaf = _join(safe_prefix, shown_name).rpartition(".")
        # The depth of an aggregator's tool is unknown: `a__b__c` is `a.b.c`, so `b__c` in `a` needs
        # another name, even while there is no `a.b.c`.
        is_ambiguous = rule is NameRule.DOTTED and "__" in leaf
        safe_name = make_safe_name(
            safe_prefix, leaf, canonical, safe_names, is_ambiguous=is_ambiguous
        )
        safe_names.add(safe_name)
        result[index] = Names(canonical, safe_name, shown_name if is_bare else None)
    return result


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def _find_problem(name: str, rule: NameRule) -> str:
    """Return why a registered subserver cannot use a name. Empty: it can."""
    segments = name.split(".") if rule is NameRule.DOTTED else (name,)
    if all(is_valid_segment(segment) for segment in segments):
        return ""
    if rule is NameRule.SEGMENT and "." in name:
        return "invalid_tool_name: only names of aggregators may have dots."
    return (
        f"invalid_tool_name: a segment has 1 to {MAX_SEGMENT_LENGTH} characters of a-z, 0-9, _ "
        "and -."
    )


def _precedence(upstream_name: str, shown_name: str) -> tuple[bool, bool, bool, str]:
    """Return a sort key: renamed entries first, then valid segments, then by their own name."""
    return (
        shown_name == upstream_name,
        not is_valid_segment(shown_name),
        not is_safe_name(shown_name),
        upstream_name,
    )


class LeafNames:
    """Assigns unique last segments to the tools of one upstream."""

    def __init__(self) -> None:
        self._used_names: set[str] = set()
        self._next: dict[str, int] = {}

    def assign_name(self, name: str) -> str:
        """Return a valid last segment for a name. A number is added if it is taken."""
        base = _NOT_CANONICAL.sub("_", name.lower())[:MAX_SEGMENT_LENGTH] or "_"
        candidate, number = base, self._next.get(base, 2)
        while candidate in self._used_names:
            suffix = f"_{number}"
            candidate = base[: MAX_SEGMENT_LENGTH - len(suffix)] + suffix
            number += 1
        self._next[base] = number
        self._used_names.add(candidate)
        return candidate


def make_safe_name(
    prefix: str,
    name: str,
    canonical: str,
    taken_names: Container[str],
    *,
    is_ambiguous: bool = False,
) -> str:
    """Return the name for clients that reject dots.

    A hash of the canonical name is added where the plain form could also mean another tool: it is
    too long, already taken, or ambiguous. It is ambiguous when a segment runs into the `__` behind
    it (`a__b` + `c` reads like `a` + `b__c`), when it ends like a hash, or when the caller says so
    (`is_ambiguous`).
    """
    safe_prefix, leaf = prefix.replace(".", "__"), _NOT_SAFE.sub("_", name)
    candidate = f"{safe_prefix}__{leaf}" if safe_prefix else leaf
    if (
        not is_ambiguous
        and len(candidate) <= MAX_SAFE_NAME_LENGTH
        and candidate not in taken_names
        and _HASH_SUFFIX.search(candidate) is None
        and not any("__" in part or part.endswith("_") for part in prefix.split("."))
    ):
        return candidate
    if safe_prefix and len(candidate) > _MAX_LENGTH_BEFORE_HASH:
        # The tool's own name says more than its prefix, so a long prefix is shortened first.
        max_length = _MAX_LENGTH_BEFORE_HASH - 2
        short_prefix = safe_prefix[: max(_MIN_PREFIX_LENGTH, max_length - len(leaf))]
        candidate = f"{short_prefix}__{leaf[: max_length - len(short_prefix)]}"
    return add_hash(candidate, canonical)


def add_hash(name: str, canonical: str) -> str:
    """Return `name`, shortened if necessary, with a hash that is the same after a restart."""
    digest = blake2b(canonical.encode(), digest_size=4).hexdigest()
    return f"{name[:_MAX_LENGTH_BEFORE_HASH]}_{digest}"


def is_valid_segment(name: str) -> bool:
    """Return whether a tool's own name can be used as a segment."""
    return SEGMENT.fullmatch(name) is not None


def is_safe_name(name: str) -> bool:
    """Return whether all clients accept this name."""
    return _SAFE.fullmatch(name) is not None
