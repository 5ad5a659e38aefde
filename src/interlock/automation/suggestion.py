"""Suggestions of rules from decisions: in words, as config, and with evidence.

Of several that would do, the narrowest is suggested that explains nearly as much.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from hashlib import sha256
from itertools import islice, pairwise
from math import prod
from typing import Any, Final

import msgspec

from interlock.automation.conditions import (
    ConditionPart,
    FolderPattern,
    absent,
    below,
    between,
    either,
    is_usable,
    joined,
    one_of,
    only,
    present,
    text,
)
from interlock.automation.config import AutomationConfig
from interlock.automation.decision import HumanDecision, is_long_prose, is_long_text
from interlock.automation.dismissal import Dismissal, dismissal_of
from interlock.automation.folders import NEARLY_ALL, holding, read_path, within
from interlock.automation.prose import is_prose, is_working
from interlock.automation.replay import VERDICTS
from interlock.automation.rule import CompiledRule, DecisionCase, read_case, undoable
from interlock.core.config import LearnedRule
from interlock.core.config.problems import BadValue
from interlock.core.redaction import MASK, is_secret_key
from interlock.primitives.rate_limits import SlidingWindow
from interlock.primitives.timestamps import format_utc

# -- Whether decisions agree well enough to become a rule. Pure.
#
# Agreement is rationed, exceptions are not: who has the same call let through a hundred times in
# a minute has shown it five times, and one refusal among them still counts as one.

A_MINUTE: Final = 60.0
MOST_A_MINUTE: Final = 5
"""So many decisions alike count within any minute."""
SINCE: Final = 5
"""So often it was decided that way since the last exception."""


def rationed(times: Iterable[float]) -> int:
    """How many of them count, when no more than five of any minute do."""
    window = SlidingWindow(A_MINUTE)
    return sum(window.take(moment, MOST_A_MINUTE) for moment in sorted(times))


def agrees(agreed: Sequence[float], others: Sequence[float], share: float) -> bool:
    """Whether exceptions, by when they were, are so few and so long ago that what was decided
    alike is one. `share`: of all that count, so many agree."""
    if not others:
        return True
    last = max(others)
    counted = rationed(agreed)
    return counted >= share * (counted + len(others)) and sum(one > last for one in agreed) >= SINCE


# -- What one argument was, as few alternatives: values, folders, a range of numbers, or any text.
#
# Each of them fits only what is like something that was seen. What is a secret by its name, what
# is hidden, lists and objects are never left open; nor is a text that says where something goes,
# or an argument whose texts are not nearly all prose.

MOST_VALUES: Final = 5
"""More values than these are no list that a human would write."""
MOST_PART: Final = 0.5
_NAME_PART: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
_WHERE: Final = (
    "bash", "bcc", "cc", "config", "cron", "dir", "domain", "env", "expr", "filter", "from", "glob",
    "hook", "host", "id", "ip", "jq", "js", "key", "lambda", "line", "lines", "module", "name",
    "package", "pattern", "payload", "ps", "python", "q", "rule", "run", "schedule", "selector",
    "sh", "stdin", "to", "user", "where", "xpath", "yaml",
)  # fmt: skip
_WHAT: Final = (
    "account", "address", "arg", "code", "cmd", "command", "dest", "directory", "email",
    "endpoint", "eval", "exec", "expression", "file", "folder", "formula", "href", "instruction",
    "link", "macro", "manifest", "path", "program", "prompt", "query", "recipient", "regex",
    "script", "shell", "source", "sql", "statement", "target", "template", "uri", "url", "workflow",
)  # fmt: skip
"""Names of arguments, in part and anywhere in them, that say where something goes or what is run,
by a machine or by a model: such are never left open, however much they look like prose."""
_WHICH: Final = frozenset(
    (
        "account", "address", "build", "bus", "channel", "chat", "code", "contact", "customer",
        "device", "gid", "gpio", "group", "host", "id", "ids", "index", "invoice", "ip", "issue",
        "item", "job", "key", "line", "member", "message", "mode", "no", "node", "num", "number",
        "object", "offset", "order", "org", "page", "phone", "pid", "pin", "port", "pr", "product",
        "project", "pull", "record", "register", "relay", "resource", "room", "row", "run",
        "sector", "server", "session", "slot", "table", "target", "task", "team", "thread",
        "ticket", "uid", "unit", "user", "version", "vm", "zip", "zone",
    )
)  # fmt: skip
_WHICH_ENDS: Final = ("id", "ids", "number", "nr")
"""Parts of names, and their ends, whose numbers say which one is meant, and not how much: between
two of them are others."""


class ExactValue(msgspec.Struct, frozen=True):
    """One value."""

    key: tuple[str, bytes]

    @property
    def value(self) -> Any:
        return msgspec.json.decode(self.key[1])

    def fits(self, value: Any, hidden: bool) -> bool:
        return not hidden and key_of(value) == self.key


class PathsInFolder(msgspec.Struct, frozen=True):
    """Paths below one folder."""

    below: FolderPattern

    def fits(self, value: Any, hidden: bool) -> bool:
        return not hidden and isinstance(value, str) and self.below.holds(value)


class NumberRange(msgspec.Struct, frozen=True):
    """Numbers."""

    least: int | float
    most: int | float
    whole: bool

    def fits(self, value: Any, hidden: bool) -> bool:
        of_its_kind = isinstance(value, int) or not self.whole
        return not hidden and _is_number(value) and of_its_kind and self.least <= value <= self.most

    def contains(self, other: NumberRange) -> bool:
        return (
            self.least <= other.least
            and other.most <= self.most
            and (other.whole or not self.whole)
        )


class AnyText(msgspec.Struct, frozen=True):
    """Any text."""

    def fits(self, value: Any, hidden: bool) -> bool:
        return isinstance(value, str) and (not hidden or is_long_text(value))


class AbsentArgument(msgspec.Struct, frozen=True):
    """No value: the argument is absent."""

    def fits(self, value: Any, hidden: bool) -> bool:
        return False


ABSENT: Final = AbsentArgument()
ArgumentAlternative = ExactValue | PathsInFolder | NumberRange | AnyText | AbsentArgument


def key_of(value: Any) -> tuple[str, bytes]:
    """By what a value is the same as another: `true` is not 1."""
    return type(value).__name__, msgspec.json.encode(value, order="deterministic")


def _parts(name: str) -> set[str]:
    return {part.lower() for part in _NAME_PART.findall(name)}


def _says_which(name: str) -> bool:
    return any(part in _WHICH or part.endswith(_WHICH_ENDS) for part in _parts(name))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def ways_of(
    name: str, values: Sequence[tuple[Any, bool]], seen: int, finer: int
) -> list[ArgumentAlternative]:
    """The narrowest way to say what it was, for each value and whether something of it is hidden.
    Empty: there is none, and no rule may have this argument."""
    plain = [value for value, hidden in values if not hidden]
    ways: list[list[ArgumentAlternative]] = [
        list(_values(plain, seen)),
        list(_folders(plain, seen, finer)),
        [] if _says_which(name) else list(ranges_of(plain, seen)),
    ]
    explained = [
        (sum(any(one.fits(value, False) for one in way) for value in plain), way)
        for way in ways
        if way
    ]
    enough = [one for one in explained if one[0] >= MOST_PART * len(values)]
    nearly = [one for one in enough if one[0] >= NEARLY_ALL * len(values)]
    if enough:
        return nearly[0][1] if nearly else max(enough, key=lambda one: one[0])[1]
    if _is_free(name, values):
        return [AnyText()]
    # So few values can be named, however seldom each was there.
    distinct = sorted({key_of(one) for one in plain if is_usable(one)})
    return [ExactValue(one) for one in distinct] if len(distinct) <= MOST_VALUES else []


def _values(plain: Sequence[Any], seen: int) -> list[ExactValue]:
    """The values, if they are few, and each was there often enough."""
    counted = Counter(key_of(one) for one in plain if is_usable(one))
    often = sorted(key for key, times in counted.items() if times >= seen)
    return [ExactValue(one) for one in often] if len(often) <= MOST_VALUES else []


def _folders(plain: Sequence[Any], seen: int, finer: int) -> list[PathsInFolder]:
    texts = [one for one in plain if isinstance(one, str)]
    return [PathsInFolder(one) for one in holding(texts, seen, finer, MOST_VALUES)]


def ranges_of(plain: Sequence[Any], seen: int) -> list[NumberRange]:
    """From the least to the most that was seen. A gap that is wider than all the rest was not
    looked at by anybody: there are ranges on both sides of it, if there was enough on both."""
    numbers = sorted(one for one in plain if _is_number(one) and is_usable(one))
    often = [one for one in _parted(numbers) if len(one) >= seen]
    largest = sorted(often, key=len, reverse=True)[:MOST_VALUES]
    return [
        NumberRange(one[0], one[-1], all(isinstance(number, int) for number in one))
        for one in sorted(largest)
    ]


def _parted(numbers: list[int | float]) -> list[list[int | float]]:
    """Numbers in their order, parted at every gap that is wider than all that is beside it."""
    parted: list[list[int | float]] = []
    left = [numbers] if numbers else []
    while left:
        some = left.pop()
        gap, at = max(
            ((after - before, at) for at, (before, after) in enumerate(pairwise(some), 1)),
            default=(0, 0),
        )
        if gap * 2 > some[-1] - some[0]:
            left += [some[:at], some[at:]]
        else:
            parted.append(some)
    return parted


# The same texts are looked at in every group that they are in.
_says = lru_cache(maxsize=8_192)(is_prose)


def _is_free(name: str, values: Sequence[tuple[Any, bool]]) -> bool:
    """Whether it may say anything: most were prose, many different texts, and hardly any other text
    was anything else."""
    if not _parts(name).isdisjoint(_WHERE) or any(one in name.lower() for one in _WHAT):
        return False
    prose: list[str] = []
    others = 0
    for value, hidden in values:
        if not isinstance(value, str):
            continue
        # Of a long text is kept whether it was prose; of one that was masked nobody can say.
        if is_long_prose(value) if hidden else _says(value):
            prose.append(value)
        elif hidden or len(value.split()) > 1 or is_working(value):
            others += 1
    return (
        len(prose) > MOST_PART * len(values)
        and len(set(prose)) > MOST_VALUES
        and len(prose) >= NEARLY_ALL * (len(prose) + others)
    )


def piece_for(name: str, alternatives: Sequence[ArgumentAlternative]) -> list[ConditionPart]:
    """What one sentence says of them; nothing where anything or nothing may be there."""
    optional = any(isinstance(one, AbsentArgument) for one in alternatives)
    values = [one.value for one in alternatives if isinstance(one, ExactValue)]
    folders = [one.below for one in alternatives if isinstance(one, PathsInFolder)]
    ranges = [one for one in alternatives if isinstance(one, NumberRange)]
    if values:
        return [one_of(name, values, optional=optional)]
    if folders:
        return [below(name, folders, optional=optional)]
    if ranges:
        [one] = ranges
        return [between(name, one.least, one.most, whole=one.whole, optional=optional)]
    if any(isinstance(one, AnyText) for one in alternatives):
        return [] if optional else [present(name)]
    return [absent(name)]


# -- What arguments were seen together, and by whom: only that goes together in a rule.
#
# A way is one thing that each of the arguments was. Each caller has ways of its own, made of
# nothing but its own decisions, and no wider than those need. Callers share one only where it
# lies within what each of them has by itself, and where each was seen with it often enough.

AlternativeTuple = tuple[ArgumentAlternative, ...]
DecisionsByAlternative = dict[AlternativeTuple, dict[str, list[DecisionCase]]]
"""By what its arguments are, and by the caller: the decisions."""
_Entry = tuple[AlternativeTuple, str, list[DecisionCase]]
"""What a caller has by itself, and its decisions."""
_MOST_ROUNDS: Final = 200
"""What is not settled by then is in no rule."""
_MOST_SHARING: Final = 40
"""Ranges of numbers alike in all else that are looked at for what they share."""


class ToolDecisions(msgspec.Struct, frozen=True):
    """Decisions about one tool, and the values of each argument."""

    cases: Sequence[DecisionCase]
    against: Sequence[DecisionCase]
    """What humans decided otherwise."""
    arguments: dict[str, list[ArgumentAlternative]]
    seen: int
    """What was seen less often does not count."""
    share: float
    """So many of the decisions about anything must agree."""

    def ways(self) -> DecisionsByAlternative:
        """All that somebody was seen with often enough, and who was."""
        by_way: DecisionsByAlternative = {}
        for case in self.cases:
            way = _way(case, self.arguments)
            if way is not None:
                by_way.setdefault(way, {}).setdefault(case.decided.caller, []).append(case)
        own: DecisionsByAlternative = {}
        for way, by in by_way.items():
            for who, made in by.items():
                for narrow, alike in self._own(way, made):
                    own.setdefault(narrow, {})[who] = alike
        return self._shared(own)

    # -- what is a caller's own

    def _own(
        self, way: AlternativeTuple, made: list[DecisionCase]
    ) -> Iterator[tuple[AlternativeTuple, list[DecisionCase]]]:
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

    def _within(
        self, way: AlternativeTuple, cases: Sequence[DecisionCase]
    ) -> dict[AlternativeTuple, list[DecisionCase]]:
        ways: dict[str, list[ArgumentAlternative]] = {}
        for name, one in zip(self.arguments, way, strict=True):
            values = [_argument(case, name) for case in cases]
            if isinstance(one, PathsInFolder):
                found = within(one.below, values, self.seen, MOST_VALUES)
                ways[name] = [PathsInFolder(each) for each in found]
            elif isinstance(one, NumberRange):
                ways[name] = [*ranges_of(values, self.seen)]
            else:
                ways[name] = [one]
        narrowed: dict[AlternativeTuple, list[DecisionCase]] = {}
        for case in cases:
            narrow = _way(case, ways)
            if narrow is not None:
                narrowed.setdefault(narrow, []).append(case)
        return narrowed

    # -- what callers share

    def _shared(self, own: DecisionsByAlternative) -> DecisionsByAlternative:
        """Also numbers that several callers have in common: from the least to the most that all of
        them were seen with, where that is enough of each."""
        found: DecisionsByAlternative = {way: dict(by) for way, by in own.items()}
        alike: dict[AlternativeTuple, list[_Entry]] = {}
        for way, by in own.items():
            if any(isinstance(one, NumberRange) for one in way):
                but_numbers = tuple(ABSENT if isinstance(one, NumberRange) else one for one in way)
                entries = alike.setdefault(but_numbers, [])
                entries += [(way, who, made) for who, made in by.items()]
        for entries in alike.values():
            if len(entries) <= _MOST_SHARING:
                entries.sort(key=lambda one: (-len(one[2]), one[1], repr(one[0])))
                for shared in dict.fromkeys(self._in_common(one[0], entries) for one in entries):
                    found.setdefault(shared, {}).update(self._seen_with(shared, entries))
        return found

    def _in_common(self, way: AlternativeTuple, entries: Sequence[_Entry]) -> AlternativeTuple:
        """What is left of a way when as many as can be share it."""
        shared = way
        sharing: list[_Entry] = []
        for one in entries:
            cut = _cut(shared, one[0])
            if cut is not None and all(self._is_enough(cut, each) for each in (*sharing, one)):
                shared = cut
                sharing.append(one)
        return shared

    def _is_enough(self, way: AlternativeTuple, entry: _Entry) -> bool:
        there = (True for case in entry[2] if _may_fit(case, self.arguments, way))
        return len(list(islice(there, self.seen))) == self.seen

    def _seen_with(
        self, way: AlternativeTuple, entries: Sequence[_Entry]
    ) -> dict[str, list[DecisionCase]]:
        """Who has all of this by itself, and was there often enough."""
        return {
            who: [case for case in made if _may_fit(case, self.arguments, way)]
            for own, who, made in entries
            if contains(own, way) and self._is_enough(way, (own, who, made))
        }

    # -- what was decided otherwise

    def agree(self, way: AlternativeTuple, who: str, made: Sequence[DecisionCase]) -> bool:
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


def most_seen(ways: DecisionsByAlternative, most: int) -> DecisionsByAlternative:
    """Those that were seen the most often."""
    ranked = sorted(ways, key=lambda way: (-sum(map(len, ways[way].values())), repr(way)))
    return {way: ways[way] for way in ranked[:most]}


def _parts_of(one: ArgumentAlternative, values: Sequence[Any]) -> Callable[[Any], list[Hashable]]:
    """What a value is a part of, within all that an alternative fits: the folders further down,
    the numbers between two that were seen, a text by itself."""
    if isinstance(one, PathsInFolder):
        whole = one.below.folder
        return lambda value: [
            part
            for path in [read_path(value)]
            if path is not None
            for part in (*path.folders(), value)
            if len(part) > len(whole)
        ]
    if isinstance(one, NumberRange):
        numbers = sorted(set(values))
        return lambda value: [(bisect_left(numbers, value), bisect_right(numbers, value))]
    if isinstance(one, AnyText):
        return lambda value: [key_of(value)]
    return lambda value: []


def _times(cases: Iterable[DecisionCase]) -> list[float]:
    return [one.decided.time for one in cases]


def _argument(case: DecisionCase, name: str) -> Any:
    return (case.arguments or {}).get(name)


def _way(
    case: DecisionCase, ways: Mapping[str, Sequence[ArgumentAlternative]]
) -> AlternativeTuple | None:
    """What its arguments are. None: one of them is something else."""
    arguments = case.arguments or {}
    if not ways.keys() >= arguments.keys():
        return None
    found: list[ArgumentAlternative] = []
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


def _may_fit(case: DecisionCase, names: Iterable[str], way: AlternativeTuple) -> bool:
    """Whether all of its arguments are so. What is hidden may be."""
    arguments = case.arguments
    if arguments is None:
        return False
    alternatives = dict(zip(names, way, strict=True))
    if not alternatives.keys() >= arguments.keys():
        return False
    return all(
        isinstance(one, AbsentArgument)
        if name not in arguments
        else not isinstance(one, AbsentArgument)
        and (name in case.hidden or one.fits(arguments[name], False))
        for name, one in alternatives.items()
    )


def contains(way: AlternativeTuple, other: AlternativeTuple) -> bool:
    """Whether it goes as far as another, or further."""
    return all(
        mine == theirs
        or (
            isinstance(mine, NumberRange)
            and isinstance(theirs, NumberRange)
            and mine.contains(theirs)
        )
        for mine, theirs in zip(way, other, strict=True)
    )


def _cut(way: AlternativeTuple, other: AlternativeTuple) -> AlternativeTuple | None:
    """What both have, of two that differ in numbers only. None: nothing."""
    found: list[ArgumentAlternative] = []
    for mine, theirs in zip(way, other, strict=True):
        both = mine
        if isinstance(mine, NumberRange) and isinstance(theirs, NumberRange):
            both = NumberRange(
                max(mine.least, theirs.least),
                min(mine.most, theirs.most),
                mine.whole or theirs.whole,
            )
            if both.least > both.most:
                return None
        found.append(both)
    return tuple(found)


# -- What do decisions have in common? The narrowest description that still fits most of them.
#
# A rule must not go further than what humans looked at. So every argument is described as closely
# as it can be: by the few values that it had, by the few folders that its paths are in, by the
# numbers that it was between; and an argument that was hardly ever there is not there. Where
# several arguments vary, only what was seen together goes together, and only for callers who were
# seen with it. What does not fit waits for a human as before: nothing is opened for the sake of a
# few odd ones, which somebody may have sent for just that. Only a text in several words, such as
# a message, may be left open, and then it is named. What can be neither described nor left open
# is in no rule.

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


class CallPattern(msgspec.Struct, frozen=True):
    """What some decisions have in common."""

    callers: tuple[str, ...]
    pieces: tuple[ConditionPart, ...]
    open: tuple[str, ...]
    """Arguments that may say anything."""


def common(
    cases: Sequence[DecisionCase],
    against: Sequence[DecisionCase] = (),
    *,
    finer: int = 0,
    share: float = 1.0,
) -> list[CallPattern]:
    """The narrowest patterns: each for callers all of whom were seen with all that it says.
    `against`: what was decided otherwise; of all decisions about anything so many agree as `share`
    says. `finer`: how many folders further down."""
    known = [one for one in cases if one.arguments is not None]
    counted = Counter(name for one in known for name in one.arguments or ())
    names = sorted(name for name, times in counted.items() if times >= SEEN and _is_plain(name))
    if len(names) > MOST_NAMES:
        return []
    ways: dict[str, list[ArgumentAlternative]] = {}
    for name in names:
        there = [one for one in known if name in (one.arguments or ())]
        values = [((one.arguments or {})[name], name in one.hidden) for one in there]
        if found := ways_of(name, values, SEEN, finer):
            ways[name] = found
    return _patterns(ToolDecisions(known, against, ways, SEEN, share))


def _is_plain(name: str) -> bool:
    return is_usable(name) and MASK not in name and not is_secret_key(name)


def _patterns(together: ToolDecisions) -> list[CallPattern]:
    often = most_seen(together.ways(), MOST_TOGETHER)
    sets: dict[str, frozenset[AlternativeTuple]] = {}
    for way, by in often.items():
        for who in by:
            sets[who] = sets.get(who, frozenset()) | {way}

    @cache
    def agree(way: AlternativeTuple, who: str) -> bool:
        return together.agree(way, who, often[way][who])

    # All that somebody was seen with, and each by itself, for all who were seen with that.
    chosen = dict.fromkeys([*sets.values(), *(frozenset([way]) for way in often)])
    patterns: list[CallPattern] = []
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


def _pattern(
    names: Sequence[str], ways: Sequence[AlternativeTuple], callers: Sequence[str]
) -> CallPattern:
    there = [
        (at, name)
        for at, name in enumerate(names)
        if any(not isinstance(way[at], AbsentArgument) for way in ways)
    ]
    varied = [list(dict.fromkeys(way[at] for way in ways)) for at, _ in there]
    pieces: list[ConditionPart] = []
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
    left_open = [name for at, name in there if any(isinstance(way[at], AnyText) for way in ways)]
    return CallPattern(tuple(callers), tuple(pieces), tuple(left_open))


def _of_a_kind(alternatives: Sequence[ArgumentAlternative]) -> bool:
    """Whether one sentence can say them: there is one range at most."""
    return sum(isinstance(one, NumberRange) for one in alternatives) <= 1


# -- groups


def clusters(cases: Sequence[DecisionCase], least: int) -> Iterator[list[DecisionCase]]:
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


def _with_values(
    cases: Sequence[DecisionCase], name: str
) -> tuple[list[DecisionCase], Callable[[DecisionCase], Hashable]]:
    """Those that have this argument, and what tells its values apart."""
    return (
        [one for one in cases if name in (one.arguments or ())],
        lambda one: key_of((one.arguments or {})[name]),
    )


def _grouped(
    cases: Sequence[DecisionCase], by: Callable[[DecisionCase], Hashable]
) -> list[list[DecisionCase]]:
    groups: dict[Hashable, list[DecisionCase]] = {}
    for one in cases:
        groups.setdefault(by(one), []).append(one)
    return sorted(groups.values(), key=len, reverse=True)


MOST_LOOKED_AT: Final = 5_000
"""Decisions about one tool, the newest, in which patterns are looked for."""
_NAME: Final = re.compile(r"[^A-Za-z0-9_.-]+")
_MOST_NAME: Final = 60
_REFUSED: Final = "Humans refused such calls again and again."


class Evidence(msgspec.Struct, frozen=True):
    """Why a rule is suggested."""

    agreed: int
    """Decisions that it would have made the same way."""
    decided: int
    """All that it would have made, or may have and humans made otherwise."""
    counted: int
    """How many of those that agree count: no more than five of a minute."""
    by: dict[str, int]
    """Who decided, and how often."""
    first: float
    last: float
    last_exception: HumanDecision | None = None
    unjudged: int = 0
    """Decisions of which too little is kept to say whether it would have made them."""
    doubtful: int = 0
    """Those of them that were decided otherwise: they are exceptions, and of `decided`."""

    @property
    def words(self) -> str:
        """`decided alike 214 of 216 times by ada (200) and bert (14), from … to …`."""
        names = [f"{name} ({times})" for name, times in self.by.items()]
        who = " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
        said = (
            f"decided alike {self.agreed} of {self.decided} times by {who}, "
            f"from {format_utc(self.first)} to {format_utc(self.last)}"
        )
        if self.last_exception is not None:
            said += f"; last decided otherwise on {format_utc(self.last_exception.time)}"
        if self.unjudged:
            said += f"; too little is kept of {self.unjudged} to judge"
            if self.doubtful:
                said += f", {self.doubtful} of them decided otherwise"
        return said


class Suggestion(msgspec.Struct, frozen=True):
    """A rule that nobody has accepted yet."""

    id: str
    """The same for the same rule."""
    rule: LearnedRule
    words: str
    evidence: Evidence
    dismissed: Dismissal | None = None
    """What was dismissed before, if that is for this one as well."""


class _Weighed(msgspec.Struct, frozen=True, eq=False):
    """A rule, and which decisions (by their place) it would have made."""

    rule: LearnedRule
    pattern: CallPattern
    agreed: frozenset[int]
    evidence: Evidence


def suggest(
    history: Iterable[HumanDecision],
    settings: AutomationConfig,
    *,
    standing: Sequence[LearnedRule] = (),
    irreversible: bool = False,
    dismissed: Sequence[Dismissal] = (),
) -> list[Suggestion]:
    """What could be decided without a human, the best known first. `standing`: rules that are
    accepted already. `irreversible`: also what cannot be undone; such a rule says so. What was
    `dismissed` is there, and says so."""
    by_tool: dict[str, dict[str, DecisionCase]] = {}
    for one in sorted(history, key=lambda one: one.time):
        if irreversible or undoable(one.effect):
            # An approval is decided once, however often it is told.
            by_tool.setdefault(one.tool, {}).setdefault(one.approval, read_case(one))
    standing_rules = [CompiledRule(one) for one in standing]
    found: list[tuple[_Weighed, Dismissal | None]] = []
    for tool, known in by_tool.items():
        cases = list(known.values())
        for then in VERDICTS:
            narrowest = _narrowest(_candidates(tool, then, cases[-MOST_LOOKED_AT:], settings))
            if len(cases) > MOST_LOOKED_AT:
                # What speaks for a rule, and against it, is all that is remembered.
                again = [_weigh(one.rule, one.pattern, cases, settings) for one in narrowest]
                narrowest = [one for one in again if one is not None]
            for left in narrowest:
                if not _stands(left, cases, standing_rules):
                    rule, agreed = left.rule, [cases[number] for number in left.agreed]
                    by = dismissal_of(id_of(rule), rule, agreed, dismissed, settings)
                    found.append((left, by))
    found.sort(key=lambda pair: (-pair[0].evidence.counted, pair[0].rule.name))
    return [_suggestion(*pair) for pair in found]


def _suggestion(weighed: _Weighed, dismissed: Dismissal | None) -> Suggestion:
    rule, words = weighed.rule, words_of(weighed.rule, weighed.pattern)
    # Why it is denied is told to whoever asks next, and is not to tell of others' arguments.
    reason = words if rule.then == "allow" else _REFUSED
    rule = msgspec.structs.replace(rule, reason=reason)
    return Suggestion(id_of(rule), rule, words, weighed.evidence, dismissed)


def id_of(rule: LearnedRule) -> str:
    """By what it decides, not by what it is called. It begins with a letter."""
    about = [rule.then, rule.tools, rule.callers, rule.when, rule.irreversible, rule.open]
    return "s" + sha256(msgspec.json.encode(about)).hexdigest()[:8]


def words_of(rule: LearnedRule, pattern: CallPattern) -> str:
    """The rule as a sentence."""
    who = " or ".join(text(one) for one in rule.callers)
    what = " or ".join(one if one.isprintable() else text(one) for one in rule.tools)
    said = f"Let {who} call {what}" if rule.then == "allow" else f"Refuse {what} to {who}"
    said += " without asking"
    if rule.open:
        # What is not looked at any more comes first.
        said = f"{said[0].lower()}{said[1:]}"
        said = f"Whatever {' and '.join(text(one) for one in rule.open)} says: {said}"
    conditions = [one.words for one in pattern.pieces]
    if conditions:
        said += f", when {', and '.join(conditions)}"
    if rule.irreversible:
        said += ". This cannot be undone"
    return f"{said}."


# -- candidates


def _candidates(
    tool: str, then: str, cases: list[DecisionCase], settings: AutomationConfig
) -> Iterator[_Weighed]:
    """Rules that are good enough."""
    verdict = VERDICTS[then]
    alike = [one for one in cases if one.decided.verdict == verdict and one.arguments is not None]
    if len(alike) < settings.decisions:
        return
    against = [one for one in cases if one.decided.verdict != verdict]
    share = settings.agreement
    tried: set[str] = set()
    may_be_open = frozenset(name for one in common(alike) for name in one.open)
    for group in clusters(alike, settings.decisions):
        for finer in range(FINEST + 1 if _has_folders(group) else 1):
            good = False
            for pattern in common(group, against, finer=finer, share=share):
                # Some that were picked out for what they hide open nothing that all together do
                # not.
                if not may_be_open.issuperset(pattern.open):
                    continue
                rule = _rule(tool, then, pattern, group)
                if rule.name in tried:
                    continue
                tried.add(rule.name)
                weighed = _weigh(rule, pattern, cases, settings)
                if weighed is not None:
                    good = True
                    yield weighed
            if good:
                break


def _has_folders(group: Iterable[DecisionCase]) -> bool:
    return any(
        isinstance(value, str) and "/" in value
        for one in group
        for value in (one.arguments or {}).values()
    )


def _rule(tool: str, then: str, pattern: CallPattern, group: Sequence[DecisionCase]) -> LearnedRule:
    rule = LearnedRule(
        name="-",
        then="allow" if then == "allow" else "deny",
        tools=[tool],
        callers=list(pattern.callers),
        when=joined(pattern.pieces),
        open=list(pattern.open),
        irreversible=not all(undoable(one.decided.effect) for one in group),
    )
    shown = _NAME.sub("-", tool)[-_MOST_NAME:].strip("-.") or "tool"
    return msgspec.structs.replace(rule, name=f"{then}-{shown}-{id_of(rule)[1:7]}")


def _weigh(
    rule: LearnedRule,
    pattern: CallPattern,
    cases: Sequence[DecisionCase],
    settings: AutomationConfig,
) -> _Weighed | None:
    try:
        compiled = CompiledRule(rule)
    except BadValue:
        # Too long for the library, say. Then it is no rule for people either.
        return None
    verdict = VERDICTS[rule.then]
    agreed: list[int] = []
    others: list[int] = []
    unjudged = doubtful = 0
    for number, one in enumerate(cases):
        covers = compiled.covers(one)
        hides = covers is None and (bool(one.hidden) or one.arguments is None)
        otherwise = one.decided.verdict != verdict
        unjudged += hides
        doubtful += hides and otherwise
        if otherwise and (covers or hides):
            # What may have been an exception is one.
            others.append(number)
        elif covers:
            agreed.append(number)
    decisions = [cases[number].decided for number in agreed]
    exceptions = [cases[number].decided for number in others]
    times = [one.time for one in decisions]
    counted = rationed(times)
    if counted < settings.decisions:
        return None
    if not agrees(times, [one.time for one in exceptions], settings.agreement):
        return None
    evidence = Evidence(
        agreed=len(agreed),
        decided=len(agreed) + len(others),
        counted=counted,
        by=dict(Counter(one.by for one in decisions).most_common()),
        first=decisions[0].time,
        last=decisions[-1].time,
        last_exception=exceptions[-1] if exceptions else None,
        unjudged=unjudged,
        doubtful=doubtful,
    )
    rule = msgspec.structs.replace(rule, evidence=evidence.words)
    return _Weighed(rule, pattern, frozenset(agreed), evidence)


# -- choosing


def _narrowest(candidates: Iterable[_Weighed]) -> list[_Weighed]:
    """Those that are left when what another says better is not said."""
    left = sorted(
        candidates, key=lambda one: (-len(one.agreed), len(one.pattern.open), one.rule.name)
    )
    chosen: list[_Weighed] = []
    for one in left:
        narrower = any(
            other.agreed < one.agreed and len(other.agreed) >= NEARLY_ALL * len(one.agreed)
            for other in left
        )
        if not narrower and not any(one.agreed <= other.agreed for other in chosen):
            chosen.append(one)
    for one in chosen[::-1]:
        # What callers share needs no rule of its own where each has one for it.
        if one.agreed <= frozenset().union(*(other.agreed for other in chosen if other is not one)):
            chosen.remove(one)
    return chosen


def _stands(
    weighed: _Weighed, cases: Sequence[DecisionCase], standing: Sequence[CompiledRule]
) -> bool:
    """Whether accepted rules answer all that this one would."""
    return bool(standing) and all(
        any(one.rule.then == weighed.rule.then and one.covers(cases[number]) for one in standing)
        for number in weighed.agreed
    )
