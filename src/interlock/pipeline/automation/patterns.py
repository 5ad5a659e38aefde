"""What do decisions have in common? The narrowest description that still fits most of them.

A rule must not go further than what humans looked at. So every argument is described as closely as
it can be: by the few values that it had, by the few folders that its paths are in, by the numbers
that it was between; and an argument that was hardly ever there is not there. Where several
arguments vary, only what was seen together goes together, and only for callers who were seen with
it. What does not fit waits for a human as before: nothing is opened for the sake of a few odd ones,
which somebody may have sent for just that. Only a text in several words, such as a message, may be
left open, and then it is named. What can be neither described nor left open is in no rule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from math import prod
from typing import Final

import msgspec

from interlock.config.redaction import MASK, is_secret_key
from interlock.pipeline.automation.alternatives import (
    ABSENT,
    MOST_VALUES,
    Absent,
    Alternative,
    Folder,
    Open,
    Range,
    key_of,
    piece_for,
    ranges_of,
    ways_of,
)
from interlock.pipeline.automation.conditions import Piece, either, is_usable, only
from interlock.pipeline.automation.folders import within
from interlock.pipeline.automation.rule import Case

MOST_NAMES: Final = 40
MOST_CALLERS: Final = 20
"""More than these are not named in one rule, and nobody is covered who is not named."""
MOST_TOGETHER: Final = 10
"""So many combinations of what varies one rule may have."""
SEEN: Final = 3
"""What was seen less often is not named in a rule."""
FINEST: Final = 3
"""So many folders further down it is looked, when a folder holds exceptions as well."""
_MOST_CLUSTERS: Final = 16


class Pattern(msgspec.Struct, frozen=True):
    """What some decisions have in common."""

    callers: tuple[str, ...]
    pieces: tuple[Piece, ...]
    open: tuple[str, ...]
    """Arguments that may say anything."""


def common(cases: Sequence[Case], seen: int = SEEN, finer: int = 0) -> list[Pattern]:
    """The narrowest patterns: each for callers all of whom were seen with all that it says.
    `finer`: how many folders further down."""
    known = [one for one in cases if one.arguments is not None]
    counted = Counter(name for one in known for name in one.arguments or ())
    names = sorted(name for name, times in counted.items() if times >= seen and _is_plain(name))
    if len(names) > MOST_NAMES:
        return []
    ways: dict[str, list[Alternative]] = {}
    for name in names:
        there = [one for one in known if name in (one.arguments or ())]
        values = [((one.arguments or {})[name], name in one.hidden) for one in there]
        if found := ways_of(name, values, seen, finer):
            ways[name] = found
    return _together(known, ways, seen)


def _is_plain(name: str) -> bool:
    return is_usable(name) and MASK not in name and not is_secret_key(name)


# -- what was seen together

_Way = tuple[Alternative, ...]
_Seen = dict[_Way, dict[str, list[Case]]]
"""By what its arguments are, and by the caller: the decisions."""


def _together(
    cases: Sequence[Case], ways: dict[str, list[Alternative]], seen: int
) -> list[Pattern]:
    names = list(ways)
    met: _Seen = {}
    for one in cases:
        way = _way(one, ways)
        if way is not None:
            met.setdefault(way, {}).setdefault(one.decided.caller, []).append(one)
    often: _Seen = {}
    for way, by in met.items():
        for who, made in by.items():
            for narrow, alike in _within(names, way, made, seen).items():
                if len(alike) >= seen:
                    often.setdefault(narrow, {}).setdefault(who, []).extend(alike)
    ranked = sorted(often, key=lambda way: (-sum(map(len, often[way].values())), repr(way)))
    often = {way: often[way] for way in ranked[:MOST_TOGETHER]}
    sets: dict[str, frozenset[_Way]] = {}
    for way, by in often.items():
        for who in by:
            sets[who] = sets.get(who, frozenset()) | {way}
    # All that somebody was seen with, and each by itself, for all who were seen with that.
    chosen = dict.fromkeys([*sets.values(), *(frozenset([way]) for way in often)])
    patterns: list[Pattern] = []
    for some in chosen:
        callers = sorted(who for who, has in sets.items() if has >= some)
        if len(callers) <= MOST_CALLERS:
            pattern = _pattern(names, [way for way in often if way in some], callers, often)
            patterns += [] if pattern is None else [pattern]
    return patterns


def _way(case: Case, ways: dict[str, list[Alternative]]) -> _Way | None:
    """What its arguments are. None: one of them is something else."""
    arguments = case.arguments or {}
    if not ways.keys() >= arguments.keys():
        return None
    found: list[Alternative] = []
    for name, alternatives in ways.items():
        if name not in arguments:
            found.append(ABSENT)
            continue
        value, hidden = arguments[name], name in case.hidden
        fits = next((one for one in alternatives if one.fits(value, hidden)), None)
        if fits is None:
            return None
        found.append(fits)
    return tuple(found)


def _within(
    names: Sequence[str], way: _Way, cases: Sequence[Case], seen: int
) -> dict[_Way, list[Case]]:
    """The same, with folders and numbers no wider than these decisions need: nobody gets those that
    only another was seen with."""
    ways: dict[str, list[Alternative]] = {}
    for name, one in zip(names, way, strict=True):
        ways[name] = [one]
        values = [] if isinstance(one, Absent) else [(case.arguments or {})[name] for case in cases]
        if isinstance(one, Folder):
            ways[name] = [Folder(each) for each in within(one.below, values, seen, MOST_VALUES)]
        elif isinstance(one, Range):
            ranges = ranges_of(values, seen)
            # One that all share is cut to what each was seen with, later.
            ways[name] = [one] if len(ranges) == 1 else [*ranges]
    found: dict[_Way, list[Case]] = {}
    for case in cases:
        narrow = _way(case, ways)
        if narrow is not None:
            found.setdefault(narrow, []).append(case)
    return found


def _pattern(
    names: Sequence[str], some: Sequence[_Way], callers: Sequence[str], met: _Seen
) -> Pattern | None:
    ways = [narrow for way in some if (narrow := _narrowed(names, way, callers, met[way]))]
    if not ways:
        return None
    there = [
        (at, name)
        for at, name in enumerate(names)
        if any(not isinstance(way[at], Absent) for way in ways)
    ]
    varied = [list(dict.fromkeys(way[at] for way in ways)) for at, _ in there]
    pieces: list[Piece] = []
    if prod(map(len, varied)) == len(ways) and all(_of_a_kind(one) for one in varied):
        # Each was seen with each.
        for (_, name), alternatives in zip(there, varied, strict=True):
            pieces += piece_for(name, alternatives)
    else:
        differ = [len(one) > 1 for one in varied]
        for (_, name), alternatives, differs in zip(there, varied, differ, strict=True):
            pieces += [] if differs else piece_for(name, alternatives)
        pieces.append(
            either(
                [
                    [
                        piece
                        for (at, name), differs in zip(there, differ, strict=True)
                        if differs
                        for piece in piece_for(name, [way[at]])
                    ]
                    for way in ways
                ]
            )
        )
    pieces.append(only([name for _, name in there]))
    left_open = [name for at, name in there if any(isinstance(way[at], Open) for way in ways)]
    return Pattern(tuple(callers), tuple(pieces), tuple(left_open))


def _of_a_kind(alternatives: Sequence[Alternative]) -> bool:
    """Whether one sentence can say them: there is one range at most."""
    return sum(isinstance(one, Range) for one in alternatives) <= 1


def _narrowed(
    names: Sequence[str], way: _Way, callers: Sequence[str], by: dict[str, list[Case]]
) -> _Way | None:
    """The same, with numbers no further than each of these callers was seen with. None: nothing is
    left of them."""
    narrow: list[Alternative] = []
    for name, one in zip(names, way, strict=True):
        if isinstance(one, Range):
            numbers = [[(case.arguments or {})[name] for case in by[who]] for who in callers]
            least, most = max(map(min, numbers)), min(map(max, numbers))
            if least > most:
                return None
            one = msgspec.structs.replace(one, least=least, most=most)
        narrow.append(one)
    return tuple(narrow)


# -- groups


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
        lambda one: key_of((one.arguments or {})[name]),
    )


def _grouped(cases: Sequence[Case], by: Callable[[Case], Hashable]) -> list[list[Case]]:
    groups: dict[Hashable, list[Case]] = {}
    for one in cases:
        groups.setdefault(by(one), []).append(one)
    return sorted(groups.values(), key=len, reverse=True)
