"""Scopes: the upper limit of a caller's rights, as `read`, `write:github.*`, `admin`. Pure.

A scope is a level and, after a colon, a glob over canonical names (`*`: any characters, `?`: one
character). Without a glob it is for all names. A level includes the lower levels. A scope that is
passed on can only be narrowed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final, NamedTuple

from interlock.errors import INVALID_PARAMS, ProtocolError

READ: Final = "read"
WRITE: Final = "write"
ADMIN: Final = "admin"
LEVELS: Final = (READ, WRITE, ADMIN)
"""From the lowest to the highest."""
_RANK: Final = {level: rank for rank, level in enumerate(LEVELS)}
_SCOPE: Final = re.compile(r"(read|write|admin)(?::([A-Za-z0-9_.*?-]+))?")
_UNSCOPABLE: Final = re.compile(r"[^A-Za-z0-9_.-]")
"""Characters that are allowed in a name, but not in a scope."""
_MAX_STEPS: Final = 20_000
"""Maximum steps of comparing two sets of globs. Without a result by then, the answer is no."""
_MAX_REMAINING: Final = 32
_ANY: Final = "*"


class Scope(NamedTuple):
    """A scope."""

    level: str
    glob: str


def parse_scope(text: str) -> Scope:
    """Parse a scope. Raises ProtocolError."""
    match = _SCOPE.fullmatch(text)
    if match is None:
        raise ProtocolError(
            f"Invalid scope {text[:80]!r}. Use read, write or admin, and optionally a colon and a "
            "glob, such as write:github.*",
            INVALID_PARAMS,
        )
    return Scope(match[1], match[2] or _ANY)


def select_valid(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the valid scopes, without duplicates."""
    return tuple(dict.fromkeys(text for text in texts if _SCOPE.fullmatch(text) is not None))


def highest_level(*levels: str) -> str:
    """Return the highest level."""
    return max(levels, key=_RANK.__getitem__)


def lowest_level(*levels: str) -> str:
    return min(levels, key=_RANK.__getitem__)


def is_level_within(level: str, limit: str) -> bool:
    """Return whether the level `limit` includes `level`."""
    return _RANK[level] <= _RANK[limit]


@lru_cache(maxsize=20_000)
def scopes_cover(scopes: tuple[str, ...], level: str, name: str) -> bool:
    """Return whether the scopes allow this level for this name."""
    return any(
        is_level_within(level, scope.level) and _matches(scope.glob, name)
        for scope in _parse_all(scopes)
    )


def narrow_scopes(
    scopes: tuple[str, ...] | None, level: str, name: str, child_name: str | None = None
) -> tuple[str, ...]:
    """Return the minimal scope for this level and name, for the next hop. Empty if the scopes do
    not allow it.

    Characters that are not allowed in a scope become `?`. The glob that matched the name cannot
    contain them either.

    Args:
        scopes: None means no limit.
        child_name: the name at the next hop.
    """
    if scopes is not None and not scopes_cover(scopes, level, name):
        return ()
    return (f"{level}:{escape_glob(name if child_name is None else child_name)}",)


def escape_glob(name: str) -> str:
    """Return the glob for exactly one name."""
    return _UNSCOPABLE.sub("?", name)


def covers_prefix(scopes: tuple[str, ...] | None, level: str, prefix: str) -> tuple[str, ...]:
    """Return the scopes for names without a prefix, at this level: `read:edge.*` without the prefix
    `edge.` is `read:*`."""
    if scopes is None:
        return (level,)
    remaining: dict[str, None] = {}
    for scope in _parse_all(scopes):
        if not is_level_within(level, scope.level):
            continue
        positions = _closure({0}, scope.glob)
        for character in prefix:
            positions = _step(positions, scope.glob, character)
        for position in sorted(positions):
            if position < len(scope.glob):
                remaining[f"{level}:{scope.glob[position:]}"] = None
    return tuple(remaining)[:_MAX_REMAINING]


def is_subset(narrower: tuple[str, ...], wider: tuple[str, ...]) -> bool:
    """Return whether `wider` allows everything that `narrower` allows. False if the comparison
    would take too long."""
    allowed = _parse_all(wider)
    return all(
        _is_included(
            scope.glob,
            [other.glob for other in allowed if is_level_within(scope.level, other.level)],
        )
        for scope in _parse_all(narrower)
    )


@lru_cache(maxsize=4_096)
def _parse_all(scopes: tuple[str, ...]) -> tuple[Scope, ...]:
    return tuple(parse_scope(text) for text in scopes)


def _matches(glob: str, name: str) -> bool:
    if glob.endswith(_ANY) and name.startswith(glob[:-1]):
        # Most globs have this form and need no state machine.
        return True
    positions = _closure({0}, glob)
    for character in name:
        positions = _step(positions, glob, character)
    return len(glob) in positions


# -- Globs as state machines: a state is a position in the glob.


def _closure(positions: Iterable[int], glob: str) -> set[int]:
    """Return these positions, and those that are reachable without a character."""
    reachable = set()
    for position in positions:
        reachable.add(position)
        while position < len(glob) and glob[position] == "*":
            position += 1
            reachable.add(position)
    return reachable


def _step(positions: Iterable[int], glob: str, character: str) -> set[int]:
    reachable = set()
    for position in positions:
        if position == len(glob):
            continue
        expected = glob[position]
        if expected == "*":
            reachable.add(position)
        elif expected in ("?", character):
            reachable.add(position + 1)
    return _closure(reachable, glob)


def _is_included(glob: str, wider: list[str]) -> bool:
    """Return whether every name that matches `glob` also matches one of `wider`."""
    if glob in wider or _ANY in wider:
        return True
    # One character represents all characters that occur in no glob.
    alphabet = {
        character for text in (glob, *wider) for character in text if character not in "*?"
    } | {"\0"}
    first = (frozenset(_closure({0}, glob)), tuple(frozenset(_closure({0}, q)) for q in wider))
    visited, unvisited = {first}, [first]
    while unvisited:
        states, other_states = unvisited.pop()
        if len(glob) in states and not any(
            len(text) in positions for text, positions in zip(wider, other_states, strict=True)
        ):
            return False
        for character in alphabet:
            step = frozenset(_step(states, glob, character))
            if not step:
                continue
            next_states = tuple(
                frozenset(_step(positions, text, character))
                for text, positions in zip(wider, other_states, strict=True)
            )
            if (step, next_states) not in visited:
                if len(visited) >= _MAX_STEPS:
                    return False
                visited.add((step, next_states))
                unvisited.append((step, next_states))
    return True
