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
from functools import cache
from math import prod
from typing import Final

import msgspec

from interlock.config.redaction import MASK, is_secret_key
from interlock.pipeline.automation.alternatives import (
    Absent,
    Alternative,
    Open,
    Range,
    key_of,
    piece_for,
    ways_of,
)
from interlock.pipeline.automation.conditions import Piece, either, is_usable, only
from interlock.pipeline.automation.rule import Case
from interlock.pipeline.automation.together import Together, Way, contains, most_seen

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


def common(
    cases: Sequence[Case],
    against: Sequence[Case] = (),
    *,
    finer: int = 0,
    share: float = 1.0,
) -> list[Pattern]:
    """The narrowest patterns: each for callers all of whom were seen with all that it says.
    `against`: what was decided otherwise; of all decisions about anything so many agree as `share`
    says. `finer`: how many folders further down."""
    known = [one for one in cases if one.arguments is not None]
    counted = Counter(name for one in known for name in one.arguments or ())
    names = sorted(name for name, times in counted.items() if times >= SEEN and _is_plain(name))
    if len(names) > MOST_NAMES:
        return []
    ways: dict[str, list[Alternative]] = {}
    for name in names:
        there = [one for one in known if name in (one.arguments or ())]
        values = [((one.arguments or {})[name], name in one.hidden) for one in there]
        if found := ways_of(name, values, SEEN, finer):
            ways[name] = found
    return _patterns(Together(known, against, ways, SEEN, share))


def _is_plain(name: str) -> bool:
    return is_usable(name) and MASK not in name and not is_secret_key(name)


def _patterns(together: Together) -> list[Pattern]:
    often = most_seen(together.ways(), MOST_TOGETHER)
    sets: dict[str, frozenset[Way]] = {}
    for way, by in often.items():
        for who in by:
            sets[who] = sets.get(who, frozenset()) | {way}

    @cache
    def agree(way: Way, who: str) -> bool:
        return together.agree(way, who, often[way][who])

    # All that somebody was seen with, and each by itself, for all who were seen with that.
    chosen = dict.fromkeys([*sets.values(), *(frozenset([way]) for way in often)])
    patterns: list[Pattern] = []
    for some in chosen:
        callers = sorted(who for who, has in sets.items() if has >= some)
        if len(callers) > MOST_CALLERS:
            continue
        widest = [
            way
            for way in often
            if way in some and not any(contains(one, way) for one in some if one != way)
        ]
        # Where some of it was refused, nothing is picked out of the rest: among so many, there is
        # always something that nobody happened to refuse.
        if all(agree(way, who) for way in widest for who in callers):
            patterns.append(_pattern(list(together.arguments), widest, callers))
    return patterns


def _pattern(names: Sequence[str], ways: Sequence[Way], callers: Sequence[str]) -> Pattern:
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
