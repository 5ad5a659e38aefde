"""What do decisions have in common? The narrowest description that still fits most of them.

A rule must not go further than what humans looked at. So every argument is described as closely as
it can be: by the few values that it had, by the few folders that its paths are in, by the numbers
that it was between; and an argument that was hardly ever there is not there. What does not fit the
description waits for a human as before: nothing is opened for the sake of a few odd ones, which
somebody may have sent for just that. An argument is left open only where it had many values that
have nothing in common, or is a secret by its name; and the words say so. What can be neither
described nor left open is taken for something that is not there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from interlock.config.redaction import is_secret_key
from interlock.pipeline.automation.conditions import (
    Piece,
    below,
    between,
    is_usable,
    one_of,
    only,
)
from interlock.pipeline.automation.rule import Case

MOST_VALUES: Final = 5
"""More values than these are no list that a human would write."""
MOST_NAMES: Final = 40
NEARLY_ALL: Final = 0.9
MOST_PART: Final = 0.5
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
    known = [one for one in cases if one.arguments is not None]
    counted = Counter(name for one in known for name in one.arguments or ())
    names = sorted(name for name, times in counted.items() if times >= seen)
    if not known or len(names) > MOST_NAMES or not all(is_usable(name) for name in names):
        return None
    pieces: list[Piece] = []
    left_open: list[str] = []
    described: list[str] = []
    for name in names:
        there = [one for one in known if name in (one.arguments or ())]
        values = _Values(
            [(one.arguments or {})[name] for one in there],
            [(one.arguments or {})[name] for one in there if name not in one.hidden],
            len(there) < len(known),
        )
        piece = _described(name, values, seen, finer)
        if piece is not None:
            pieces.append(piece)
        elif _is_free(name, values):
            left_open.append(name)
        else:
            continue
        described.append(name)
    pieces.append(only(described))
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


class _Values(NamedTuple):
    """All that an argument was."""

    all: list[Any]
    plain: list[Any]
    """Those of which nothing is hidden."""
    optional: bool
    """Whether it was not always there."""


class _Description(NamedTuple):
    """A piece, and how many of the values it fits."""

    explains: int
    piece: Piece


def _described(name: str, values: _Values, seen: int, finer: int) -> Piece | None:
    """The narrowest way to say what it is. None: it can only be left open, if at all."""
    total = len(values.all)
    ways = [
        one
        for one in (
            _as_values(name, values, seen),
            _as_paths(name, values, seen, finer),
            _as_number(name, values),
        )
        if one is not None and one.explains >= MOST_PART * total
    ]
    nearly = [one for one in ways if one.explains >= NEARLY_ALL * total]
    if ways:
        return nearly[0].piece if nearly else max(ways, key=lambda one: one.explains).piece
    if _is_free(name, values):
        return None
    # So few values are no free text, however seldom each was there.
    distinct = {_key(one): one for one in values.plain if is_usable(one)}
    if not distinct:
        return None
    return one_of(name, [distinct[key] for key in sorted(distinct)], optional=values.optional)


def _is_free(name: str, values: _Values) -> bool:
    """Whether it may be anything: it was many things, or nobody may see what it is. What hides by
    its own looks proves nothing: whoever calls can make it look so."""
    return is_secret_key(name) or len({_key(one) for one in values.all}) > MOST_VALUES


def _key(value: Any) -> tuple[str, bytes]:
    """By what a value is the same as another: `true` is not 1."""
    return type(value).__name__, msgspec.json.encode(value, order="deterministic")


def _as_values(name: str, values: _Values, seen: int) -> _Description | None:
    """By the values, if they are few, and each was there often enough."""
    known = {_key(one): one for one in values.plain if is_usable(one)}
    counted = Counter(_key(one) for one in values.plain)
    often = sorted(key for key in known if counted[key] >= seen)
    if not often or len(often) > MOST_VALUES:
        return None
    piece = one_of(name, [known[key] for key in often], optional=values.optional)
    return _Description(sum(counted[key] for key in often), piece)


def _as_paths(name: str, values: _Values, seen: int, finer: int) -> _Description | None:
    folders = _folders([one for one in values.plain if isinstance(one, str)], seen, finer)
    if not folders:
        return None
    piece = below(name, sorted(folders), optional=values.optional)
    return _Description(sum(folders.values()), piece)


def _as_number(name: str, values: _Values) -> _Description | None:
    """Between the least and the most; what is never negative stays so."""
    numbers = [
        one
        for one in values.plain
        if isinstance(one, int | float) and not isinstance(one, bool) and is_usable(one)
    ]
    if not numbers:
        return None
    piece = between(name, min(*numbers, 0), max(numbers), optional=values.optional)
    return _Description(len(numbers), piece)


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


def _folders(paths: list[str], seen: int, finer: int) -> dict[str, int]:
    """The few folders that hold most of these paths, each as deep as it can be, and how many it
    holds. Paths that may lead elsewhere count here, so that they are not taken for free texts: a
    rule about folders does not fit them."""
    counted = Counter(folder_of(one) for one in paths)
    found = [_deepest(one, counted) for one in _tops(counted)]
    for _ in range(finer):
        found = [_deepest(part, counted) for one in found for part in _parts(one, counted)]
    often = {one: _held(one, counted) for one in found if is_usable(one)}
    ranked = sorted(often, key=lambda one: (-often[one], one))
    return {one: often[one] for one in ranked[:MOST_VALUES] if often[one] >= seen}


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
