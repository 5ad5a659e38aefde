"""What do decisions have in common? The narrowest description that still fits nearly all of them.

A rule must not go further than what humans looked at. So every argument is described as closely as
it can be: by the few values that it had, by the few folders that its paths are in, by the numbers
that it was between; and an argument that was never there is not there. Only what differs from call
to call is left open, and the words say so. What was seen once or twice is no pattern.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Final

import msgspec

from interlock.pipeline.automation.conditions import (
    Piece,
    below,
    between,
    is_below,
    is_usable,
    one_of,
    only,
)
from interlock.pipeline.automation.rule import Case

MOST_VALUES: Final = 5
"""More values than these are no list that a human would write."""
MOST_NAMES: Final = 40
NEARLY_ALL: Final = 0.9
SEEN: Final = 3
"""What was seen less often is not named in a rule."""
FINEST: Final = 3
"""So many folders further down it is looked, when a folder holds exceptions as well."""
_MOST_CLUSTERS: Final = 16


class Pattern(msgspec.Struct, frozen=True):
    """What some decisions have in common."""

    callers: tuple[str, ...]
    """Empty: so many that it does not matter who."""
    pieces: tuple[Piece, ...]
    open: tuple[str, ...]
    """Arguments about which nothing is said."""


def common(cases: Sequence[Case], seen: int = SEEN, finer: int = 0) -> Pattern | None:
    """The narrowest pattern. `finer`: how many folders further down. None: there is none."""
    known = [one.arguments for one in cases if one.arguments is not None]
    if not known:
        return None
    names = Counter(name for one in known for name in one)
    if len(names) > MOST_NAMES or not all(is_usable(name) for name in names):
        return None
    hidden = {name for one in cases for name in one.hidden}
    pieces: list[Piece] = []
    left_open: list[str] = []
    for name in sorted(names):
        values = [one[name] for one in known if name in one]
        optional = len(values) < len(known)
        piece = None if name in hidden else _described(name, values, optional, seen, finer)
        if piece is None:
            left_open.append(name)
        else:
            pieces.append(piece)
    pieces.append(only(sorted(names)))
    return Pattern(_callers(cases, seen), tuple(pieces), tuple(left_open))


def clusters(cases: Sequence[Case], least: int) -> Iterator[list[Case]]:
    """Groups that may have a pattern of their own: all, those of one caller, and those in which an
    argument has one value."""
    yield list(cases)
    found = 0
    for group in _grouped(cases, lambda one: one.decided.caller):
        if least <= len(group) < len(cases):
            yield group
    names = sorted({name for one in cases for name in one.arguments or ()})[:MOST_NAMES]
    for name in names:
        for group in _grouped(*_with_values(cases, name)):
            if least <= len(group) < len(cases) and found < _MOST_CLUSTERS:
                found += 1
                yield group


def _with_values(cases: Sequence[Case], name: str) -> tuple[list[Case], Callable[[Case], Hashable]]:
    """Those that have this argument, and what tells its values apart."""
    return (
        [one for one in cases if name in (one.arguments or ())],
        lambda one: _key((one.arguments or {})[name]),
    )


def _grouped(cases: Sequence[Case], by: Callable[[Case], Hashable]) -> list[list[Case]]:
    groups: dict[Hashable, list[Case]] = {}
    for one in cases:
        groups.setdefault(by(one), []).append(one)
    return sorted(groups.values(), key=len, reverse=True)


def _callers(cases: Sequence[Case], seen: int) -> tuple[str, ...]:
    counted = Counter(one.decided.caller for one in cases)
    # Nobody is named whom humans hardly know, unless all are so.
    often = [name for name, times in counted.items() if times >= seen] or list(counted)
    return tuple(sorted(often)) if len(often) <= MOST_VALUES else ()


# -- one argument


def _described(name: str, values: list[Any], optional: bool, seen: int, finer: int) -> Piece | None:
    few = _few(values, seen)
    if few is not None:
        return one_of(name, few, optional=optional)
    if all(isinstance(one, str) for one in values):
        folders = _folders(values, seen, finer)
        return below(name, folders, optional=optional) if folders else None
    if all(isinstance(one, int | float) and not isinstance(one, bool) for one in values):
        if not all(is_usable(one) for one in values):
            return None
        least, most = min(values), max(values)
        return between(name, min(least, 0), most, optional=optional)
    return None


def _key(value: Any) -> tuple[str, bytes]:
    """By what a value is the same as another: `true` is not 1."""
    return type(value).__name__, msgspec.json.encode(value, order="deterministic")


def _few(values: list[Any], seen: int) -> list[Any] | None:
    """The values, if they are few, and each was there often enough."""
    known = {_key(one): one for one in values}
    counted = Counter(_key(one) for one in values)
    often = [key for key, times in counted.items() if times >= seen]
    explained = sum(counted[key] for key in often)
    if not often or len(often) > MOST_VALUES or explained < NEARLY_ALL * len(values):
        return None
    found = [known[key] for key in sorted(often)]
    return found if all(is_usable(one) for one in found) else None


# -- folders


def folder_of(path: str) -> str:
    """The folder that a path is in, with its slash. Empty: it says nothing."""
    return path[: path.rfind("/") + 1]


def says_something(folder: str) -> bool:
    """Whether a folder is more than the root, or than a scheme: `https://` holds every host."""
    scheme, separator, rest = folder.partition("://")
    named = rest if separator else scheme
    whole = folder.endswith("/") and not folder.endswith(":/")
    return whole and any(part.strip(".") for part in named.split("/"))


def _folders(paths: list[str], seen: int, finer: int) -> list[str]:
    """The few folders that hold nearly all of these paths, each as deep as it can be."""
    good = [folder_of(one) for one in paths if is_below(one) and len(one) <= 4096]
    if len(good) < NEARLY_ALL * len(paths):
        return []
    counted = Counter(good)
    found = [_deepest(one, counted) for one in _tops(counted)]
    for _ in range(finer):
        found = [_deepest(part, counted) for one in found for part in _parts(one, counted)]
    often = {one: _held(one, counted) for one in found if _held(one, counted) >= seen}
    ranked = sorted(often, key=lambda one: (-often[one], one))
    if not finer:
        held = sum(often.values())
        if len(ranked) > MOST_VALUES or held < NEARLY_ALL * len(paths):
            return []
    return sorted(one for one in ranked[:MOST_VALUES] if is_usable(one))


def _held(folder: str, counted: Counter[str]) -> int:
    return sum(times for one, times in counted.items() if one.startswith(folder))


def _tops(counted: Counter[str]) -> list[str]:
    """The shallowest folders that say something."""
    found: dict[str, None] = {}
    for one in counted:
        at = -1
        while (at := one.find("/", at + 1)) >= 0:
            if says_something(one[: at + 1]):
                found[one[: at + 1]] = None
                break
    return list(found)


def _parts(folder: str, counted: Counter[str]) -> list[str]:
    """The folders right below it that hold something; itself where something lies in it."""
    found = dict.fromkeys(
        one[: one.index("/", len(folder)) + 1]
        for one in counted
        if one.startswith(folder) and one != folder
    )
    return [*found] if found else [folder]


def _deepest(folder: str, counted: Counter[str]) -> str:
    """As far down as nearly all that it holds goes."""
    whole = _held(folder, counted)
    while True:
        parts = [one for one in _parts(folder, counted) if one != folder]
        best = max(parts, key=lambda one: _held(one, counted), default="")
        if not best or _held(best, counted) < NEARLY_ALL * whole:
            return folder
        folder = best
