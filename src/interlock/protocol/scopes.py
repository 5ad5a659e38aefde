"""Scopes: the most that somebody may do, as `read`, `write:github.*`, `admin`. Pure.

A scope is a level and, behind a colon, a glob over canonical names (`*`: any characters, `?`: any
one); without a glob it is for all names. A higher level has the lower ones in it. Whoever hands a
scope on can only make it narrower.
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
"""From the least to the most."""
_RANK: Final = {level: rank for rank, level in enumerate(LEVELS)}
_SCOPE: Final = re.compile(r"(read|write|admin)(?::([A-Za-z0-9_.*?-]+))?")
_ODD: Final = re.compile(r"[^A-Za-z0-9_.-]")
"""What a name may have in it, and a scope may not."""
_MOST_STEPS: Final = 20_000
"""So far two sets of globs are compared; what is not clear by then counts as wider."""
_MOST_RESIDUES: Final = 32
_ANY: Final = "*"


class Scope(NamedTuple):
    """One scope."""

    level: str
    glob: str


def parse_scope(text: str) -> Scope:
    """A scope as it is written. Raises ProtocolError."""
    found = _SCOPE.fullmatch(text)
    if found is None:
        raise ProtocolError(
            f"{text[:80]!r} is no scope: write read, write or admin, and a glob behind a colon if "
            "it is not for everything, such as write:github.*",
            INVALID_PARAMS,
        )
    return Scope(found[1], found[2] or _ANY)


def select_valid(texts: Iterable[str]) -> tuple[str, ...]:
    """Those of them that are scopes here, each once."""
    return tuple(dict.fromkeys(one for one in texts if _SCOPE.fullmatch(one) is not None))


def highest_level(*levels: str) -> str:
    """The one that has the others in it."""
    return max(levels, key=_RANK.__getitem__)


def lowest_level(*levels: str) -> str:
    return min(levels, key=_RANK.__getitem__)


def is_level_within(level: str, limit: str) -> bool:
    """Whether somebody who may do `limit` may do `level`."""
    return _RANK[level] <= _RANK[limit]


@lru_cache(maxsize=20_000)
def scopes_cover(scopes: tuple[str, ...], level: str, name: str) -> bool:
    """Whether these scopes are enough for doing this at this name."""
    return any(
        is_level_within(level, one.level) and _matches(one.glob, name)
        for one in _parsed_all(scopes)
    )


def narrow_scopes(
    scopes: tuple[str, ...] | None, level: str, name: str, below: str | None = None
) -> tuple[str, ...]:
    """Exactly what doing this at this name takes, for whoever is asked next; nothing at all where
    the scopes are not enough. `scopes` of None are without a limit. `below`: what the next one
    calls it.

    What no scope can spell stands as `?`: whichever glob let it through has no letter there either.
    """
    if scopes is not None and not scopes_cover(scopes, level, name):
        return ()
    return (f"{level}:{escape_glob(name if below is None else below)}",)


def escape_glob(name: str) -> str:
    """The glob for one name."""
    return _ODD.sub("?", name)


def covers_prefix(scopes: tuple[str, ...] | None, level: str, prefix: str) -> tuple[str, ...]:
    """What these scopes allow at this level behind a prefix, in the names without it: what is left
    of `read:edge.*` behind `edge.` is `read:*`."""
    if scopes is None:
        return (level,)
    left: dict[str, None] = {}
    for scope in _parsed_all(scopes):
        if not is_level_within(level, scope.level):
            continue
        places = _closure({0}, scope.glob)
        for character in prefix:
            places = _step(places, scope.glob, character)
        for place in sorted(places):
            if place < len(scope.glob):
                left[f"{level}:{scope.glob[place:]}"] = None
    return tuple(left)[:_MOST_RESIDUES]


def is_subset(narrower: tuple[str, ...], wider: tuple[str, ...]) -> bool:
    """Whether everything that the first allow, the second allow as well. What would take too long
    to find out counts as no."""
    allowed = _parsed_all(wider)
    return all(
        _included(one.glob, [big.glob for big in allowed if is_level_within(one.level, big.level)])
        for one in _parsed_all(narrower)
    )


@lru_cache(maxsize=4_096)
def _parsed_all(scopes: tuple[str, ...]) -> tuple[Scope, ...]:
    return tuple(parse_scope(one) for one in scopes)


def _matches(glob: str, name: str) -> bool:
    if glob.endswith(_ANY) and name.startswith(glob[:-1]):
        # Most are like this, and need no machine.
        return True
    places = _closure({0}, glob)
    for character in name:
        places = _step(places, glob, character)
    return len(glob) in places


# -- globs as machines: a state is a place in the glob


def _closure(places: Iterable[int], glob: str) -> set[int]:
    """These places, and those to which nothing has to be read."""
    reached = set()
    for place in places:
        reached.add(place)
        while place < len(glob) and glob[place] == "*":
            place += 1
            reached.add(place)
    return reached


def _step(places: Iterable[int], glob: str, character: str) -> set[int]:
    reached = set()
    for place in places:
        if place == len(glob):
            continue
        at = glob[place]
        if at == "*":
            reached.add(place)
        elif at in ("?", character):
            reached.add(place + 1)
    return _closure(reached, glob)


def _included(glob: str, wider: list[str]) -> bool:
    """Whether whatever the one glob matches, one of the others does."""
    if glob in wider or _ANY in wider:
        return True
    # All other characters are alike to them: one stands for all.
    alphabet = {one for text in (glob, *wider) for one in text if one not in "*?"} | {"\0"}
    first = (frozenset(_closure({0}, glob)), tuple(frozenset(_closure({0}, q)) for q in wider))
    seen, waiting = {first}, [first]
    while waiting:
        own, others = waiting.pop()
        if len(glob) in own and not any(
            len(text) in places for text, places in zip(wider, others, strict=True)
        ):
            return False
        for character in alphabet:
            step = frozenset(_step(own, glob, character))
            if not step:
                continue
            further = tuple(
                frozenset(_step(places, text, character))
                for text, places in zip(wider, others, strict=True)
            )
            if (step, further) not in seen:
                if len(seen) >= _MOST_STEPS:
                    return False
                seen.add((step, further))
                waiting.append((step, further))
    return True
