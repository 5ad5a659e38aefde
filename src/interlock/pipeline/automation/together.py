"""What arguments were seen together, and by whom: only that goes together in a rule.

A way is one thing that each of the arguments was. Each caller has ways of its own, made of nothing
but its own decisions, and no wider than those need. Callers share one only where it lies within
what each of them has by itself, and where each was seen with it often enough.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import msgspec

from interlock.pipeline.automation.agreement import agrees
from interlock.pipeline.automation.alternatives import (
    ABSENT,
    MOST_VALUES,
    Absent,
    Alternative,
    Folder,
    Open,
    Range,
    key_of,
    ranges_of,
)
from interlock.pipeline.automation.folders import read_path, within
from interlock.pipeline.automation.rule import Case

Way = tuple[Alternative, ...]
Seen = dict[Way, dict[str, list[Case]]]
"""By what its arguments are, and by the caller: the decisions."""
_Entry = tuple[Way, str, list[Case]]
"""What a caller has by itself, and its decisions."""
_MOST_ROUNDS: Final = 200
"""What is not settled by then is in no rule."""
_MOST_SHARING: Final = 40
"""Ranges of numbers alike in all else that are looked at for what they share."""


class Together(msgspec.Struct, frozen=True):
    """Decisions about one tool, and what each argument was at all."""

    cases: Sequence[Case]
    against: Sequence[Case]
    """What humans decided otherwise."""
    arguments: dict[str, list[Alternative]]
    seen: int
    """What was seen less often does not count."""
    share: float
    """So many of the decisions about anything must agree."""

    def ways(self) -> Seen:
        """All that somebody was seen with often enough, and who was."""
        by_way: Seen = {}
        for case in self.cases:
            way = _way(case, self.arguments)
            if way is not None:
                by_way.setdefault(way, {}).setdefault(case.decided.caller, []).append(case)
        own: Seen = {}
        for way, by in by_way.items():
            for who, made in by.items():
                for narrow, alike in self._own(way, made):
                    own.setdefault(narrow, {})[who] = alike
        return self._shared(own)

    # -- what is a caller's own

    def _own(self, way: Way, made: list[Case]) -> Iterator[tuple[Way, list[Case]]]:
        """The same, no wider than these decisions of one caller need. What is left out for one
        argument's sake may be all that made another wide: until nothing changes."""
        left = [(way, made)]
        for _ in range(_MOST_ROUNDS):
            if not left:
                return
            way, some = left.pop()
            for narrow, alike in self._within(way, some).items():
                if len(alike) < self.seen:
                    continue
                if narrow == way and len(alike) == len(some):
                    yield way, alike
                else:
                    left.append((narrow, alike))

    def _within(self, way: Way, cases: Sequence[Case]) -> dict[Way, list[Case]]:
        ways: dict[str, list[Alternative]] = {}
        for name, one in zip(self.arguments, way, strict=True):
            values = [_argument(case, name) for case in cases]
            if isinstance(one, Folder):
                found = within(one.below, values, self.seen, MOST_VALUES)
                ways[name] = [Folder(each) for each in found]
            elif isinstance(one, Range):
                ways[name] = [*ranges_of(values, self.seen)]
            else:
                ways[name] = [one]
        narrowed: dict[Way, list[Case]] = {}
        for case in cases:
            narrow = _way(case, ways)
            if narrow is not None:
                narrowed.setdefault(narrow, []).append(case)
        return narrowed

    # -- what callers share

    def _shared(self, own: Seen) -> Seen:
        """Also numbers that several callers have in common: from the least to the most that all of
        them were seen with, where that is enough of each."""
        found: Seen = {way: dict(by) for way, by in own.items()}
        alike: dict[Way, list[_Entry]] = {}
        for way, by in own.items():
            if any(isinstance(one, Range) for one in way):
                but_numbers = tuple(ABSENT if isinstance(one, Range) else one for one in way)
                entries = alike.setdefault(but_numbers, [])
                entries += [(way, who, made) for who, made in by.items()]
        for entries in alike.values():
            if len(entries) <= _MOST_SHARING:
                entries.sort(key=lambda one: (-len(one[2]), one[1], repr(one[0])))
                for shared in dict.fromkeys(self._in_common(one[0], entries) for one in entries):
                    found.setdefault(shared, {}).update(self._seen_with(shared, entries))
        return found

    def _in_common(self, way: Way, entries: Sequence[_Entry]) -> Way:
        """What is left of a way when as many as can be share it."""
        shared = way
        sharing: list[_Entry] = []
        for one in entries:
            cut = _cut(shared, one[0])
            if cut is not None and all(self._is_enough(cut, each) for each in (*sharing, one)):
                shared = cut
                sharing.append(one)
        return shared

    def _is_enough(self, way: Way, entry: _Entry) -> bool:
        there = (True for case in entry[2] if _may_fit(case, self.arguments, way))
        return len(list(islice(there, self.seen))) == self.seen

    def _seen_with(self, way: Way, entries: Sequence[_Entry]) -> dict[str, list[Case]]:
        """Who has all of this by itself, and was there often enough."""
        return {
            who: [case for case in made if _may_fit(case, self.arguments, way)]
            for own, who, made in entries
            if contains(own, way) and self._is_enough(way, (own, who, made))
        }

    # -- what was decided otherwise

    def agree(self, way: Way, who: str, made: Sequence[Case]) -> bool:
        """Whether the decisions about one caller agree: by themselves, however many others do; and
        no part of it was refused again and again, however much was let through beside it."""
        otherwise = [
            case
            for case in self.against
            if case.decided.caller == who and _may_fit(case, self.arguments, way)
        ]
        if not agrees(_times(made), _times(otherwise), self.share):
            return False
        if len(otherwise) < self.seen:
            return True
        for name, one in zip(self.arguments, way, strict=True):
            parts = _parts_of(one, [_argument(case, name) for case in made])
            yes, no = (
                Counter(
                    part
                    for case in some
                    if name not in case.hidden
                    for part in parts(_argument(case, name))
                )
                for some in (made, otherwise)
            )
            often = [part for part, times in no.items() if times >= self.seen]
            if any(yes[part] < self.share * (yes[part] + no[part]) for part in often):
                return False
        return True


def most_seen(ways: Seen, most: int) -> Seen:
    """Those that were seen the most often."""
    ranked = sorted(ways, key=lambda way: (-sum(map(len, ways[way].values())), repr(way)))
    return {way: ways[way] for way in ranked[:most]}


def _parts_of(one: Alternative, values: Sequence[Any]) -> Callable[[Any], list[Hashable]]:
    """What a value is a part of, within all that an alternative fits: the folders further down,
    the numbers between two that were seen, a text by itself."""
    if isinstance(one, Folder):
        whole = one.below.folder
        return lambda value: [
            part
            for path in [read_path(value)]
            if path is not None
            for part in (*path.folders(), value)
            if len(part) > len(whole)
        ]
    if isinstance(one, Range):
        numbers = sorted(set(values))
        return lambda value: [(bisect_left(numbers, value), bisect_right(numbers, value))]
    if isinstance(one, Open):
        return lambda value: [key_of(value)]
    return lambda value: []


def _times(cases: Iterable[Case]) -> list[float]:
    return [one.decided.time for one in cases]


def _argument(case: Case, name: str) -> Any:
    return (case.arguments or {}).get(name)


def _way(case: Case, ways: Mapping[str, Sequence[Alternative]]) -> Way | None:
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


def _may_fit(case: Case, names: Iterable[str], way: Way) -> bool:
    """Whether all of its arguments are so. What is hidden may be."""
    arguments = case.arguments
    if arguments is None:
        return False
    alternatives = dict(zip(names, way, strict=True))
    if not alternatives.keys() >= arguments.keys():
        return False
    return all(
        isinstance(one, Absent)
        if name not in arguments
        else not isinstance(one, Absent)
        and (name in case.hidden or one.fits(arguments[name], False))
        for name, one in alternatives.items()
    )


def contains(way: Way, other: Way) -> bool:
    """Whether it goes as far as another, or further."""
    return all(
        mine == theirs
        or (isinstance(mine, Range) and isinstance(theirs, Range) and mine.contains(theirs))
        for mine, theirs in zip(way, other, strict=True)
    )


def _cut(way: Way, other: Way) -> Way | None:
    """What both have, of two that differ in numbers only. None: nothing."""
    found: list[Alternative] = []
    for mine, theirs in zip(way, other, strict=True):
        both = mine
        if isinstance(mine, Range) and isinstance(theirs, Range):
            both = Range(
                max(mine.least, theirs.least),
                min(mine.most, theirs.most),
                mine.whole or theirs.whole,
            )
            if both.least > both.most:
                return None
        found.append(both)
    return tuple(found)
