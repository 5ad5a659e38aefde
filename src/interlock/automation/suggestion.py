"""Suggestions of rules from decisions: as text, as config, and with evidence.

Of several possible rules, the narrowest one that explains nearly as much is suggested.
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
    any_of,
    equals_any,
    has_only,
    is_absent,
    is_below,
    is_between,
    is_present,
    is_usable,
    join_parts,
    quote_text,
)
from interlock.automation.config import AutomationConfig
from interlock.automation.decision import HumanDecision, is_long_prose, is_long_text
from interlock.automation.dismissal import Dismissal, find_dismissal
from interlock.automation.folders import (
    NEARLY_ALL_SHARE,
    find_folders,
    narrow_folder,
    read_path,
)
from interlock.automation.prose import is_machine_text, is_prose
from interlock.automation.replay import VERDICTS
from interlock.automation.rule import CompiledRule, DecisionCase, is_reversible, read_case
from interlock.core.config import LearnedRule
from interlock.core.config.problems import InvalidValueError
from interlock.core.redaction import MASK, is_secret_key
from interlock.primitives.rate_limits import SlidingWindow
from interlock.primitives.timestamps import format_utc

# -- Agreement: whether equal decisions are frequent enough to become a rule. Pure.
#
# Agreement is limited per minute, exceptions are not: an operator who approves the same call a
# hundred times in one minute counts five times, and one rejection among them still counts as one.

MINUTE_SECONDS: Final = 60.0
MAX_COUNTED_PER_MINUTE: Final = 5
"""The maximum number of equal decisions that count within a minute."""
MIN_SINCE_EXCEPTION: Final = 5
"""The number of agreeing decisions that must follow the last exception."""


def count_limited(times: Iterable[float]) -> int:
    """Return the number of decisions that count: `MAX_COUNTED_PER_MINUTE` per minute."""
    window = SlidingWindow(MINUTE_SECONDS)
    return sum(window.count_if_below(time, MAX_COUNTED_PER_MINUTE) for time in sorted(times))


def agrees(agreed: Sequence[float], other_values: Sequence[float], share: float) -> bool:
    """Return whether exceptions are rare enough, and long enough ago, for a rule.

    Args:
        agreed: the times of the agreeing decisions.
        other_values: the times of the exceptions.
        share: the share of counted decisions that must agree.
    """
    if not other_values:
        return True
    last = max(other_values)
    counted = count_limited(agreed)
    since_exception = sum(time > last for time in agreed)
    return (
        counted >= share * (counted + len(other_values)) and since_exception >= MIN_SINCE_EXCEPTION
    )


# -- The alternatives of one argument: exact values, folders, ranges of numbers, or any text.
#
# Each alternative matches only what is similar to values that occurred. Secrets (by name), hidden
# values, lists and objects are never left open. The same holds for texts that are destinations or
# commands, and for arguments whose texts are not nearly all prose.

MAX_ALTERNATIVES: Final = 5
"""More values than this are not a list that a person would write."""
MAJORITY: Final = 0.5
_NAME_PARTS: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
_DESTINATION_PARTS: Final = (
    "bash", "bcc", "cc", "config", "cron", "dir", "domain", "env", "expr", "filter", "from", "glob",
    "hook", "host", "id", "ip", "jq", "js", "key", "lambda", "line", "lines", "module", "name",
    "package", "pattern", "payload", "ps", "python", "q", "rule", "run", "schedule", "selector",
    "sh", "stdin", "to", "user", "where", "xpath", "yaml",
)  # fmt: skip
_DESTINATION_WORDS: Final = (
    "account", "address", "arg", "code", "cmd", "command", "dest", "directory", "email",
    "endpoint", "eval", "exec", "expression", "file", "folder", "formula", "href", "instruction",
    "link", "macro", "manifest", "path", "program", "prompt", "query", "recipient", "regex",
    "script", "shell", "source", "sql", "statement", "target", "template", "uri", "url", "workflow",
)  # fmt: skip
"""Names of arguments (as one part of a name, or anywhere in it) that are destinations or commands
for a machine or a model: they are never left open, even if their texts look like prose.
"""
_IDENTIFIER_PARTS: Final = frozenset(
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
_IDENTIFIER_ENDINGS: Final = ("id", "ids", "number", "nr")
"""Parts and endings of names whose numbers are identifiers, not quantities: a range between two
of them is meaningless."""


class ExactValue(msgspec.Struct, frozen=True):
    """One value."""

    key: tuple[str, bytes]

    @property
    def value(self) -> Any:
        return msgspec.json.decode(self.key[1])

    def matches(self, value: Any, hidden: bool) -> bool:
        return not hidden and value_key(value) == self.key


class PathsInFolder(msgspec.Struct, frozen=True):
    """Paths below one folder."""

    subfolders: FolderPattern

    def matches(self, value: Any, hidden: bool) -> bool:
        return not hidden and isinstance(value, str) and self.subfolders.matches_path(value)


class NumberRange(msgspec.Struct, frozen=True):
    """Numbers."""

    minimum: int | float
    maximum: int | float
    integers_only: bool

    def matches(self, value: Any, hidden: bool) -> bool:
        has_kind = isinstance(value, int) or not self.integers_only
        is_in_range = _is_number(value) and self.minimum <= value <= self.maximum
        return not hidden and has_kind and is_in_range

    def contains(self, other: NumberRange) -> bool:
        return (
            self.minimum <= other.minimum
            and other.maximum <= self.maximum
            and (other.integers_only or not self.integers_only)
        )


class AnyText(msgspec.Struct, frozen=True):
    """Any text."""

    def matches(self, value: Any, hidden: bool) -> bool:
        return isinstance(value, str) and (not hidden or is_long_text(value))


class AbsentArgument(msgspec.Struct, frozen=True):
    """No value: the argument is absent."""

    def matches(self, value: Any, hidden: bool) -> bool:
        return False


ABSENT: Final = AbsentArgument()
ArgumentAlternative = ExactValue | PathsInFolder | NumberRange | AnyText | AbsentArgument


def value_key(value: Any) -> tuple[str, bytes]:
    """Return a key that compares values: `true` is not equal to 1."""
    return type(value).__name__, msgspec.json.encode(value, order="deterministic")


def _name_parts(name: str) -> set[str]:
    return {part.lower() for part in _NAME_PARTS.findall(name)}


def _is_identifier(name: str) -> bool:
    return any(
        part in _IDENTIFIER_PARTS or part.endswith(_IDENTIFIER_ENDINGS)
        for part in _name_parts(name)
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def find_alternatives(
    name: str, values: Sequence[tuple[Any, bool]], min_count: int, extra_levels: int
) -> list[ArgumentAlternative]:
    """Return the narrowest alternatives for an argument. Empty: there are none, so no rule may have
    this argument.

    Args:
        values: each value, and whether a part of it is hidden.
    """
    visible_values = [value for value, hidden in values if not hidden]
    options: list[list[ArgumentAlternative]] = [
        list(_exact_values(visible_values, min_count)),
        list(_folder_alternatives(visible_values, min_count, extra_levels)),
        [] if _is_identifier(name) else list(find_ranges(visible_values, min_count)),
    ]
    counted_options = [
        (
            sum(
                any(alternative.matches(value, False) for alternative in option)
                for value in visible_values
            ),
            option,
        )
        for option in options
        if option
    ]
    sufficient = [counted for counted in counted_options if counted[0] >= MAJORITY * len(values)]
    nearly_complete = [
        counted for counted in sufficient if counted[0] >= NEARLY_ALL_SHARE * len(values)
    ]
    if sufficient:
        best = max(sufficient, key=lambda counted: counted[0])
        return nearly_complete[0][1] if nearly_complete else best[1]
    if _may_be_open(name, values):
        return [AnyText()]
    # A few values can be listed, even if each is rare.
    distinct = sorted({value_key(value) for value in visible_values if is_usable(value)})
    return [ExactValue(key) for key in distinct] if len(distinct) <= MAX_ALTERNATIVES else []


def _exact_values(visible_values: Sequence[Any], min_count: int) -> list[ExactValue]:
    """Return the values if they are few, and each is frequent enough."""
    counted = Counter(value_key(value) for value in visible_values if is_usable(value))
    frequent = sorted(key for key, times in counted.items() if times >= min_count)
    return [ExactValue(key) for key in frequent] if len(frequent) <= MAX_ALTERNATIVES else []


def _folder_alternatives(
    visible_values: Sequence[Any], min_count: int, extra_levels: int
) -> list[PathsInFolder]:
    texts = [value for value in visible_values if isinstance(value, str)]
    patterns = find_folders(texts, min_count, extra_levels, MAX_ALTERNATIVES)
    return [PathsInFolder(pattern) for pattern in patterns]


def find_ranges(visible_values: Sequence[Any], min_count: int) -> list[NumberRange]:
    """Return the ranges of the numbers that occurred.

    A gap that is wider than everything beside it was never examined by an operator: there are
    ranges on both sides of it if both sides have enough numbers.
    """
    numbers = sorted(value for value in visible_values if _is_number(value) and is_usable(value))
    frequent = [group for group in _split_at_gaps(numbers) if len(group) >= min_count]
    largest = sorted(frequent, key=len, reverse=True)[:MAX_ALTERNATIVES]
    return [
        NumberRange(group[0], group[-1], all(isinstance(number, int) for number in group))
        for group in sorted(largest)
    ]


def _split_at_gaps(numbers: list[int | float]) -> list[list[int | float]]:
    """Split sorted numbers at every gap that is wider than everything beside it."""
    groups: list[list[int | float]] = []
    unprocessed = [numbers] if numbers else []
    while unprocessed:
        group = unprocessed.pop()
        gap, index = max(
            ((after - before, index) for index, (before, after) in enumerate(pairwise(group), 1)),
            default=(0, 0),
        )
        if gap * 2 > group[-1] - group[0]:
            unprocessed += [group[:index], group[index:]]
        else:
            groups.append(group)
    return groups


# The same texts occur in many groups.
_is_prose_cached = lru_cache(maxsize=8_192)(is_prose)


def _may_be_open(name: str, values: Sequence[tuple[Any, bool]]) -> bool:
    """Return whether an argument may have any value: most values are prose, with many different
    texts, and hardly any other text."""
    is_destination = not _name_parts(name).isdisjoint(_DESTINATION_PARTS) or any(
        word in name.lower() for word in _DESTINATION_WORDS
    )
    if is_destination:
        return False
    prose: list[str] = []
    other_count = 0
    for value, hidden in values:
        if not isinstance(value, str):
            continue
        # The placeholder of a long text tells whether it was prose. A masked text does not.
        if is_long_prose(value) if hidden else _is_prose_cached(value):
            prose.append(value)
        elif hidden or len(value.split()) > 1 or is_machine_text(value):
            other_count += 1
    return (
        len(prose) > MAJORITY * len(values)
        and len(set(prose)) > MAX_ALTERNATIVES
        and len(prose) >= NEARLY_ALL_SHARE * (len(prose) + other_count)
    )


def make_condition_parts(
    name: str, alternatives: Sequence[ArgumentAlternative]
) -> list[ConditionPart]:
    """Return the condition parts for alternatives. None are needed where any value or no value
    is allowed."""
    optional = any(isinstance(alternative, AbsentArgument) for alternative in alternatives)
    values = [
        alternative.value for alternative in alternatives if isinstance(alternative, ExactValue)
    ]
    folders = [
        alternative.subfolders
        for alternative in alternatives
        if isinstance(alternative, PathsInFolder)
    ]
    ranges = [alternative for alternative in alternatives if isinstance(alternative, NumberRange)]
    if values:
        return [equals_any(name, values, optional=optional)]
    if folders:
        return [is_below(name, folders, optional=optional)]
    if ranges:
        [number_range] = ranges
        return [
            is_between(
                name,
                number_range.minimum,
                number_range.maximum,
                integers_only=number_range.integers_only,
                optional=optional,
            )
        ]
    if any(isinstance(alternative, AnyText) for alternative in alternatives):
        return [] if optional else [is_present(name)]
    return [is_absent(name)]


# -- Combinations: which alternatives of arguments occurred together, and for which callers.
#
# A combination has one alternative for each argument. Each caller has its own combinations, derived
# only from its own decisions, and no wider than these decisions require. Callers share a
# combination only where it lies within what each of them has, and where each of them has enough
# decisions.

Combination = tuple[ArgumentAlternative, ...]
DecisionsByCombination = dict[Combination, dict[str, list[DecisionCase]]]
"""Decisions, by the combination of their arguments, and by caller."""
_Entry = tuple[Combination, str, list[DecisionCase]]
"""A combination of one caller, the caller, and its decisions."""
_MAX_ROUNDS: Final = 200
"""Combinations that are not stable after this number of rounds are not used."""
_MAX_SHARED_ENTRIES: Final = 40
"""The maximum number of combinations (equal except for numbers) that are compared for common
ranges."""


class ToolDecisions(msgspec.Struct, frozen=True):
    """Decisions about one tool, and the alternatives of each argument."""

    cases: Sequence[DecisionCase]
    against: Sequence[DecisionCase]
    """Decisions against the rule."""
    arguments: dict[str, list[ArgumentAlternative]]
    min_count: int
    """Rarer alternatives and combinations do not count."""
    share: float
    """The share of decisions that must agree."""

    def find_combinations(self) -> DecisionsByCombination:
        """Return all combinations that are frequent enough, with their callers and decisions."""
        by_combination: DecisionsByCombination = {}
        for case in self.cases:
            combination = _find_combination(case, self.arguments)
            if combination is not None:
                by_combination.setdefault(combination, {}).setdefault(
                    case.decision.caller, []
                ).append(case)
        own_combinations: DecisionsByCombination = {}
        for combination, by_caller in by_combination.items():
            for caller, caller_cases in by_caller.items():
                for narrow_combination, matching_cases in self._narrow_own(
                    combination, caller_cases
                ):
                    own_combinations.setdefault(narrow_combination, {})[caller] = matching_cases
        return self._add_shared(own_combinations)

    # -- what is a caller's own

    def _narrow_own(
        self, combination: Combination, caller_cases: list[DecisionCase]
    ) -> Iterator[tuple[Combination, list[DecisionCase]]]:
        """Yield combinations that are no wider than the decisions of one caller require.

        Narrowing one argument may remove the decisions that made another one wide, so it is
        repeated until nothing changes.
        """
        unprocessed = [(combination, caller_cases)]
        for _ in range(_MAX_ROUNDS):
            if not unprocessed:
                return
            combination, cases = unprocessed.pop()
            for narrow_combination, matching_cases in self._narrow_combination(
                combination, cases
            ).items():
                if len(matching_cases) < self.min_count:
                    continue
                if narrow_combination == combination and len(matching_cases) == len(cases):
                    yield combination, matching_cases
                else:
                    unprocessed.append((narrow_combination, matching_cases))

    def _narrow_combination(
        self, combination: Combination, cases: Sequence[DecisionCase]
    ) -> dict[Combination, list[DecisionCase]]:
        alternatives: dict[str, list[ArgumentAlternative]] = {}
        for name, alternative in zip(self.arguments, combination, strict=True):
            values = [_argument_value(case, name) for case in cases]
            if isinstance(alternative, PathsInFolder):
                patterns = narrow_folder(
                    alternative.subfolders, values, self.min_count, MAX_ALTERNATIVES
                )
                alternatives[name] = [PathsInFolder(pattern) for pattern in patterns]
            elif isinstance(alternative, NumberRange):
                alternatives[name] = [*find_ranges(values, self.min_count)]
            else:
                alternatives[name] = [alternative]
        cases_by_combination: dict[Combination, list[DecisionCase]] = {}
        for case in cases:
            narrowed_combination = _find_combination(case, alternatives)
            if narrowed_combination is not None:
                cases_by_combination.setdefault(narrowed_combination, []).append(case)
        return cases_by_combination

    # -- what callers share

    def _add_shared(self, own_combinations: DecisionsByCombination) -> DecisionsByCombination:
        """Add ranges of numbers that several callers have in common, where each of them has
        enough decisions."""
        result: DecisionsByCombination = {
            combination: dict(by_caller) for combination, by_caller in own_combinations.items()
        }
        groups: dict[Combination, list[_Entry]] = {}
        for combination, by_caller in own_combinations.items():
            if any(isinstance(alternative, NumberRange) for alternative in combination):
                without_numbers = tuple(
                    ABSENT if isinstance(alternative, NumberRange) else alternative
                    for alternative in combination
                )
                entries = groups.setdefault(without_numbers, [])
                entries += [
                    (combination, caller, caller_cases)
                    for caller, caller_cases in by_caller.items()
                ]
        for entries in groups.values():
            if len(entries) <= _MAX_SHARED_ENTRIES:
                entries.sort(key=lambda entry: (-len(entry[2]), entry[1], repr(entry[0])))
                common = (self._find_common(entry[0], entries) for entry in entries)
                for shared in dict.fromkeys(common):
                    result.setdefault(shared, {}).update(self._find_sharing(shared, entries))
        return result

    def _find_common(self, combination: Combination, entries: Sequence[_Entry]) -> Combination:
        """Return what remains of a combination when as many entries as possible share it."""
        shared = combination
        sharing: list[_Entry] = []
        for entry in entries:
            intersection = _intersect(shared, entry[0])
            if intersection is not None and all(
                self._has_enough(intersection, other) for other in (*sharing, entry)
            ):
                shared = intersection
                sharing.append(entry)
        return shared

    def _has_enough(self, combination: Combination, entry: _Entry) -> bool:
        matches = (True for case in entry[2] if _may_match(case, self.arguments, combination))
        return len(list(islice(matches, self.min_count))) == self.min_count

    def _find_sharing(
        self, combination: Combination, entries: Sequence[_Entry]
    ) -> dict[str, list[DecisionCase]]:
        """Return the callers whose own combination contains this one and has enough decisions,
        with the decisions."""
        return {
            caller: [case for case in caller_cases if _may_match(case, self.arguments, combination)]
            for own_combination, caller, caller_cases in entries
            if contains_combination(own_combination, combination)
            and self._has_enough(combination, (own_combination, caller, caller_cases))
        }

    # -- exceptions

    def has_agreement(
        self, combination: Combination, caller: str, caller_cases: Sequence[DecisionCase]
    ) -> bool:
        """Return whether the decisions about one caller agree.

        Decisions of other callers do not matter. No part of the combination may have been rejected
        repeatedly, even if much else was approved.
        """
        exceptions = [
            case
            for case in self.against
            if case.decision.caller == caller and _may_match(case, self.arguments, combination)
        ]
        if not agrees(_decision_times(caller_cases), _decision_times(exceptions), self.share):
            return False
        if len(exceptions) < self.min_count:
            return True
        for name, alternative in zip(self.arguments, combination, strict=True):
            find_parts = _make_part_finder(
                alternative, [_argument_value(case, name) for case in caller_cases]
            )
            agreed_counts, exception_counts = (
                Counter(
                    part
                    for case in cases
                    if name not in case.hidden
                    for part in find_parts(_argument_value(case, name))
                )
                for cases in (caller_cases, exceptions)
            )
            frequent = [part for part, count in exception_counts.items() if count >= self.min_count]
            if any(
                agreed_counts[part] < self.share * (agreed_counts[part] + exception_counts[part])
                for part in frequent
            ):
                return False
        return True


def select_most_frequent(
    combinations: DecisionsByCombination, limit: int
) -> DecisionsByCombination:
    """Return the most frequent combinations."""
    ranked = sorted(
        combinations,
        key=lambda combination: (
            -sum(map(len, combinations[combination].values())),
            repr(combination),
        ),
    )
    return {combination: combinations[combination] for combination in ranked[:limit]}


def _make_part_finder(
    alternative: ArgumentAlternative, values: Sequence[Any]
) -> Callable[[Any], list[Hashable]]:
    """Return a function that returns the parts of an alternative to which a value belongs: folders
    at deeper levels, the numbers between two that occurred, or the text itself.
    """
    if isinstance(alternative, PathsInFolder):
        folder = alternative.subfolders.folder
        return lambda value: [
            part
            for path in [read_path(value)]
            if path is not None
            for part in (*path.folders(), value)
            if len(part) > len(folder)
        ]
    if isinstance(alternative, NumberRange):
        numbers = sorted(set(values))
        return lambda value: [(bisect_left(numbers, value), bisect_right(numbers, value))]
    if isinstance(alternative, AnyText):
        return lambda value: [value_key(value)]
    return lambda value: []


def _decision_times(cases: Iterable[DecisionCase]) -> list[float]:
    return [case.decision.time for case in cases]


def _argument_value(case: DecisionCase, name: str) -> Any:
    return (case.arguments or {}).get(name)


def _find_combination(
    case: DecisionCase, alternatives_of: Mapping[str, Sequence[ArgumentAlternative]]
) -> Combination | None:
    """Return the combination of a decision. None: an argument matches no alternative."""
    arguments = case.arguments or {}
    if not alternatives_of.keys() >= arguments.keys():
        return None
    combination: list[ArgumentAlternative] = []
    for name, alternatives in alternatives_of.items():
        if name not in arguments:
            combination.append(ABSENT)
            continue
        value, hidden = arguments[name], name in case.hidden
        match = next(
            (alternative for alternative in alternatives if alternative.matches(value, hidden)),
            None,
        )
        if match is None:
            return None
        combination.append(match)
    return tuple(combination)


def _may_match(case: DecisionCase, names: Iterable[str], combination: Combination) -> bool:
    """Return whether all arguments match the combination. A hidden argument may match."""
    arguments = case.arguments
    if arguments is None:
        return False
    alternatives = dict(zip(names, combination, strict=True))
    if not alternatives.keys() >= arguments.keys():
        return False
    return all(
        isinstance(alternative, AbsentArgument)
        if name not in arguments
        else not isinstance(alternative, AbsentArgument)
        and (name in case.hidden or alternative.matches(arguments[name], False))
        for name, alternative in alternatives.items()
    )


def contains_combination(combination: Combination, other: Combination) -> bool:
    """Return whether a combination is as wide as another, or wider."""
    return all(
        alternative == other_alternative
        or (
            isinstance(alternative, NumberRange)
            and isinstance(other_alternative, NumberRange)
            and alternative.contains(other_alternative)
        )
        for alternative, other_alternative in zip(combination, other, strict=True)
    )


def _intersect(combination: Combination, other: Combination) -> Combination | None:
    """Return the intersection of two combinations that differ in numbers only. None: it is
    empty."""
    result: list[ArgumentAlternative] = []
    for alternative, other_alternative in zip(combination, other, strict=True):
        intersection = alternative
        if isinstance(alternative, NumberRange) and isinstance(other_alternative, NumberRange):
            intersection = NumberRange(
                max(alternative.minimum, other_alternative.minimum),
                min(alternative.maximum, other_alternative.maximum),
                alternative.integers_only or other_alternative.integers_only,
            )
            if intersection.minimum > intersection.maximum:
                return None
        result.append(intersection)
    return tuple(result)


# -- Patterns: the narrowest description that matches most decisions.
#
# A rule must not cover more than what operators examined. So every argument is described as
# narrowly as possible: by the few values that it had, the few folders of its paths, or the range of
# its numbers; and an argument that was hardly ever present must be absent. Where several arguments
# vary, only combinations that occurred are allowed, and only for callers who used them. Everything
# else waits for an operator as before: a few odd calls do not widen a rule, because an attacker may
# have sent them for this purpose. Only a text of several words, such as a message, may be left
# open, and then the rule names it. An argument that can be neither described nor left open is in no
# rule.

MAX_ARGUMENTS: Final = 40
MAX_CALLERS: Final = 20
"""The maximum number of callers in one rule. Callers that are not named are not covered."""
MAX_COMBINATIONS: Final = 10
"""The maximum number of combinations in one rule."""
MIN_COUNT: Final = 3
"""Rarer values are not named in a rule."""
MAX_EXTRA_LEVELS: Final = 3
"""The maximum number of additional folder levels, for folders that also contain exceptions."""
_MAX_VALUE_CLUSTERS: Final = 16


class CallPattern(msgspec.Struct, frozen=True):
    """A description that several decisions have in common."""

    callers: tuple[str, ...]
    parts: tuple[ConditionPart, ...]
    open: tuple[str, ...]
    """Arguments that may have any value."""


def find_patterns(
    cases: Sequence[DecisionCase],
    against: Sequence[DecisionCase] = (),
    *,
    extra_levels: int = 0,
    share: float = 1.0,
) -> list[CallPattern]:
    """Return the narrowest patterns, each for callers that used all of its combinations.

    Args:
        against: decisions against the rule.
        extra_levels: the number of additional folder levels.
        share: the share of decisions that must agree.
    """
    judged = [case for case in cases if case.arguments is not None]
    argument_counts = Counter(name for case in judged for name in case.arguments or ())
    names = sorted(
        name
        for name, count in argument_counts.items()
        if count >= MIN_COUNT and _is_usable_name(name)
    )
    if len(names) > MAX_ARGUMENTS:
        return []
    alternatives: dict[str, list[ArgumentAlternative]] = {}
    for name in names:
        cases_with_argument = [case for case in judged if name in (case.arguments or ())]
        values = [
            ((case.arguments or {})[name], name in case.hidden) for case in cases_with_argument
        ]
        if argument_alternatives := find_alternatives(name, values, MIN_COUNT, extra_levels):
            alternatives[name] = argument_alternatives
    return _make_patterns(ToolDecisions(judged, against, alternatives, MIN_COUNT, share))


def _is_usable_name(name: str) -> bool:
    return is_usable(name) and MASK not in name and not is_secret_key(name)


def _make_patterns(tool_decisions: ToolDecisions) -> list[CallPattern]:
    frequent = select_most_frequent(tool_decisions.find_combinations(), MAX_COMBINATIONS)
    combinations_of_caller: dict[str, frozenset[Combination]] = {}
    for combination, by_caller in frequent.items():
        for caller in by_caller:
            combinations_of_caller[caller] = combinations_of_caller.get(caller, frozenset()) | {
                combination
            }

    @cache
    def has_agreement(combination: Combination, caller: str) -> bool:
        return tool_decisions.has_agreement(combination, caller, frequent[combination][caller])

    # Candidates: all combinations of each caller, and each combination by itself for all its
    # callers.
    chosen = dict.fromkeys(
        [*combinations_of_caller.values(), *(frozenset([combination]) for combination in frequent)]
    )
    patterns: list[CallPattern] = []
    for candidate in chosen:
        callers = sorted(
            caller
            for caller, combinations in combinations_of_caller.items()
            if combinations >= candidate
        )
        if len(callers) > MAX_CALLERS:
            continue
        widest = [
            combination
            for combination in frequent
            if combination in candidate
            and not any(
                contains_combination(other, combination)
                for other in candidate
                if other != combination
            )
        ]
        # If a part was rejected, nothing is selected from the rest: among many parts, some were not
        # rejected only by chance.
        if all(has_agreement(combination, caller) for combination in widest for caller in callers):
            patterns.append(_make_pattern(list(tool_decisions.arguments), widest, callers))
    return patterns


def _make_pattern(
    names: Sequence[str], combinations: Sequence[Combination], callers: Sequence[str]
) -> CallPattern:
    present = [
        (index, name)
        for index, name in enumerate(names)
        if any(not isinstance(combination[index], AbsentArgument) for combination in combinations)
    ]
    alternatives_of = [
        list(dict.fromkeys(combination[index] for combination in combinations))
        for index, _ in present
    ]
    parts: list[ConditionPart] = []
    if prod(map(len, alternatives_of)) == len(combinations) and all(
        _has_one_range(alternatives) for alternatives in alternatives_of
    ):
        # All alternatives occurred with all others.
        for (_, name), alternatives in zip(present, alternatives_of, strict=True):
            parts += make_condition_parts(name, alternatives)
    else:
        vary = [len(alternatives) > 1 for alternatives in alternatives_of]
        for (_, name), alternatives, varies in zip(present, alternatives_of, vary, strict=True):
            parts += [] if varies else make_condition_parts(name, alternatives)
        parts.append(
            any_of(
                [
                    [
                        part
                        for (index, name), varies in zip(present, vary, strict=True)
                        if varies
                        for part in make_condition_parts(name, [combination[index]])
                    ]
                    for combination in combinations
                ]
            )
        )
    parts.append(has_only([name for _, name in present]))
    open_arguments = [
        name
        for index, name in present
        if any(isinstance(combination[index], AnyText) for combination in combinations)
    ]
    return CallPattern(tuple(callers), tuple(parts), tuple(open_arguments))


def _has_one_range(alternatives: Sequence[ArgumentAlternative]) -> bool:
    """Return whether one condition can express the alternatives: it can contain one range at
    most."""
    return sum(isinstance(alternative, NumberRange) for alternative in alternatives) <= 1


# -- groups


def find_clusters(cases: Sequence[DecisionCase], min_size: int) -> Iterator[list[DecisionCase]]:
    """Yield groups that may have a pattern of their own: all cases, those of one caller, and
    those with one value of an argument."""
    yield list(cases)
    value_clusters = 0
    for group in _group_by(cases, lambda case: case.decision.caller):
        if min_size <= len(group) < len(cases):
            yield group
    names = sorted({name for case in cases for name in case.arguments or ()})[:MAX_ARGUMENTS]
    for name in names:
        for group in _group_by(*_group_key_of(cases, name)):
            if min_size <= len(group) < len(cases) and value_clusters < _MAX_VALUE_CLUSTERS:
                value_clusters += 1
                yield group


def _group_key_of(
    cases: Sequence[DecisionCase], name: str
) -> tuple[list[DecisionCase], Callable[[DecisionCase], Hashable]]:
    """Return the cases with an argument, and the key function for its values."""
    return (
        [case for case in cases if name in (case.arguments or ())],
        lambda case: value_key((case.arguments or {})[name]),
    )


def _group_by(
    cases: Sequence[DecisionCase], key: Callable[[DecisionCase], Hashable]
) -> list[list[DecisionCase]]:
    groups: dict[Hashable, list[DecisionCase]] = {}
    for case in cases:
        groups.setdefault(key(case), []).append(case)
    return sorted(groups.values(), key=len, reverse=True)


MAX_CASES_PER_TOOL: Final = 5_000
"""The maximum number of decisions about one tool, newest first, that are searched for patterns."""
_UNSAFE_NAME_CHARACTERS: Final = re.compile(r"[^A-Za-z0-9_.-]+")
_MAX_NAME_LENGTH: Final = 60
_DENY_REASON: Final = "Operators have repeatedly rejected such calls."


class Evidence(msgspec.Struct, frozen=True):
    """The reasons for a suggestion."""

    agreed: int
    """Decisions that the rule would have made in the same way."""
    decided: int
    """All decisions that the rule matches, including exceptions that it may match."""
    counted: int
    """The agreeing decisions that count: at most five per minute."""
    by: dict[str, int]
    """The operators, and the number of their decisions."""
    first: float
    last: float
    last_exception: HumanDecision | None = None
    unjudged: int = 0
    """Decisions of which too little is stored to judge whether the rule matches."""
    doubtful: int = 0
    """The exceptions among `unjudged`; they are part of `decided`."""

    @property
    def summary(self) -> str:
        """A text such as `214 of 216 decisions agree, by ada (200) and bert (14), from … to …`."""
        names = [f"{name} ({times})" for name, times in self.by.items()]
        operators = " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
        summary = (
            f"{self.agreed} of {self.decided} decisions agree, by {operators}, "
            f"from {format_utc(self.first)} to {format_utc(self.last)}"
        )
        if self.last_exception is not None:
            summary += f"; last exception on {format_utc(self.last_exception.time)}"
        if self.unjudged:
            summary += f"; {self.unjudged} cannot be judged from the stored arguments"
            if self.doubtful:
                summary += f", {self.doubtful} of them are exceptions"
        return summary


class Suggestion(msgspec.Struct, frozen=True):
    """A suggested rule that is not accepted yet."""

    id: str
    """The id is the same for the same rule."""
    rule: LearnedRule
    description: str
    evidence: Evidence
    dismissed: Dismissal | None = None
    """The dismissal that applies to this suggestion."""


class _RatedRule(msgspec.Struct, frozen=True, eq=False):
    """A rule, and the indexes of the decisions that it would have made."""

    rule: LearnedRule
    pattern: CallPattern
    agreed: frozenset[int]
    evidence: Evidence


def suggest(
    history: Iterable[HumanDecision],
    settings: AutomationConfig,
    *,
    accepted: Sequence[LearnedRule] = (),
    irreversible: bool = False,
    dismissed: Sequence[Dismissal] = (),
) -> list[Suggestion]:
    """Return suggested rules, those with the most evidence first.

    Args:
        accepted: rules that are in force.
        irreversible: also suggest rules about irreversible calls. Such a rule says so.
        dismissed: dismissals. Dismissed suggestions are returned, too, and are marked.
    """
    by_tool: dict[str, dict[str, DecisionCase]] = {}
    for decision in sorted(history, key=lambda decision: decision.time):
        if irreversible or is_reversible(decision.effect):
            # An approval is decided once, even if it is stored repeatedly.
            by_tool.setdefault(decision.tool, {}).setdefault(decision.approval, read_case(decision))
    accepted_rules = [CompiledRule(rule) for rule in accepted]
    suggestions: list[tuple[_RatedRule, Dismissal | None]] = []
    for tool, cases_by_approval in by_tool.items():
        cases = list(cases_by_approval.values())
        for then in VERDICTS:
            narrowest = _select_narrowest(
                _find_candidates(tool, then, cases[-MAX_CASES_PER_TOOL:], settings)
            )
            if len(cases) > MAX_CASES_PER_TOOL:
                # The evidence is computed over all stored decisions.
                rated = [_rate(each.rule, each.pattern, cases, settings) for each in narrowest]
                narrowest = [each for each in rated if each is not None]
            for rated_rule in narrowest:
                if not _is_covered(rated_rule, cases, accepted_rules):
                    rule, supporting_cases = (
                        rated_rule.rule,
                        [cases[number] for number in rated_rule.agreed],
                    )
                    dismissal = find_dismissal(
                        rule_id(rule), rule, supporting_cases, dismissed, settings
                    )
                    suggestions.append((rated_rule, dismissal))
    suggestions.sort(key=lambda pair: (-pair[0].evidence.counted, pair[0].rule.name))
    return [_make_suggestion(*pair) for pair in suggestions]


def _make_suggestion(rated: _RatedRule, dismissed: Dismissal | None) -> Suggestion:
    rule, description = rated.rule, describe_rule(rated.rule, rated.pattern)
    # The reason of a denial is sent to callers, so it must not reveal arguments of other callers.
    reason = description if rule.then == "allow" else _DENY_REASON
    rule = msgspec.structs.replace(rule, reason=reason)
    return Suggestion(rule_id(rule), rule, description, rated.evidence, dismissed)


def rule_id(rule: LearnedRule) -> str:
    """Return the id of a rule. It depends on what the rule decides, not on its name, and begins
    with a letter."""
    content = [rule.then, rule.tools, rule.callers, rule.when, rule.irreversible, rule.open]
    return "s" + sha256(msgspec.json.encode(content)).hexdigest()[:8]


def describe_rule(rule: LearnedRule, pattern: CallPattern) -> str:
    """Return the rule as a sentence."""
    callers = " or ".join(quote_text(caller) for caller in rule.callers)
    tools = " or ".join(tool if tool.isprintable() else quote_text(tool) for tool in rule.tools)
    if rule.then == "allow":
        sentence = f"Allow {callers} to call {tools} without approval"
    else:
        sentence = f"Deny calls of {tools} by {callers} immediately"
    if rule.open:
        # Open arguments come first, because they are the risk of the rule.
        names = " and ".join(quote_text(name) for name in rule.open)
        sentence = f"With any value of {names}: {sentence[0].lower()}{sentence[1:]}"
    conditions = [part.description for part in pattern.parts]
    if conditions:
        sentence += f", when {', and '.join(conditions)}"
    if rule.irreversible:
        sentence += ". This cannot be undone"
    return f"{sentence}."


# -- candidates


def _find_candidates(
    tool: str, then: str, cases: list[DecisionCase], settings: AutomationConfig
) -> Iterator[_RatedRule]:
    """Yield rules with enough evidence."""
    verdict = VERDICTS[then]
    agreeing = [
        case for case in cases if case.decision.verdict == verdict and case.arguments is not None
    ]
    if len(agreeing) < settings.decisions:
        return
    against = [case for case in cases if case.decision.verdict != verdict]
    share = settings.agreement
    rated_names: set[str] = set()
    allowed_open = frozenset(name for pattern in find_patterns(agreeing) for name in pattern.open)
    for group in find_clusters(agreeing, settings.decisions):
        for extra_levels in range(MAX_EXTRA_LEVELS + 1 if _has_folders(group) else 1):
            has_rule = False
            for pattern in find_patterns(group, against, extra_levels=extra_levels, share=share):
                # A selected group must not open an argument that all decisions together do not
                # open.
                if not allowed_open.issuperset(pattern.open):
                    continue
                rule = _make_rule(tool, then, pattern, group)
                if rule.name in rated_names:
                    continue
                rated_names.add(rule.name)
                rated = _rate(rule, pattern, cases, settings)
                if rated is not None:
                    has_rule = True
                    yield rated
            if has_rule:
                break


def _has_folders(group: Iterable[DecisionCase]) -> bool:
    return any(
        isinstance(value, str) and "/" in value
        for case in group
        for value in (case.arguments or {}).values()
    )


def _make_rule(
    tool: str, then: str, pattern: CallPattern, group: Sequence[DecisionCase]
) -> LearnedRule:
    rule = LearnedRule(
        name="-",
        then="allow" if then == "allow" else "deny",
        tools=[tool],
        callers=list(pattern.callers),
        when=join_parts(pattern.parts),
        open=list(pattern.open),
        irreversible=not all(is_reversible(case.decision.effect) for case in group),
    )
    safe_name = _UNSAFE_NAME_CHARACTERS.sub("-", tool)[-_MAX_NAME_LENGTH:].strip("-.") or "tool"
    return msgspec.structs.replace(rule, name=f"{then}-{safe_name}-{rule_id(rule)[1:7]}")


def _rate(
    rule: LearnedRule,
    pattern: CallPattern,
    cases: Sequence[DecisionCase],
    settings: AutomationConfig,
) -> _RatedRule | None:
    try:
        compiled = CompiledRule(rule)
    except InvalidValueError:
        # For example, the condition is too long for the library. Such a rule is unreadable for
        # people, too.
        return None
    verdict = VERDICTS[rule.then]
    agreed: list[int] = []
    exception_indexes: list[int] = []
    unjudged = doubtful = 0
    for index, case in enumerate(cases):
        is_match = compiled.matches_decision(case)
        may_match = is_match is None and (bool(case.hidden) or case.arguments is None)
        is_exception = case.decision.verdict != verdict
        unjudged += may_match
        doubtful += may_match and is_exception
        if is_exception and (is_match or may_match):
            # A possible exception counts as one.
            exception_indexes.append(index)
        elif is_match:
            agreed.append(index)
    decisions = [cases[index].decision for index in agreed]
    exceptions = [cases[index].decision for index in exception_indexes]
    times = [decision.time for decision in decisions]
    counted = count_limited(times)
    if counted < settings.decisions:
        return None
    exception_times = [decision.time for decision in exceptions]
    if not agrees(times, exception_times, settings.agreement):
        return None
    evidence = Evidence(
        agreed=len(agreed),
        decided=len(agreed) + len(exception_indexes),
        counted=counted,
        by=dict(Counter(decision.by for decision in decisions).most_common()),
        first=decisions[0].time,
        last=decisions[-1].time,
        last_exception=exceptions[-1] if exceptions else None,
        unjudged=unjudged,
        doubtful=doubtful,
    )
    rule = msgspec.structs.replace(rule, evidence=evidence.summary)
    return _RatedRule(rule, pattern, frozenset(agreed), evidence)


# -- selection


def _select_narrowest(candidates: Iterable[_RatedRule]) -> list[_RatedRule]:
    """Return the rules that remain when rules are removed that another rule expresses better."""
    ranked = sorted(
        candidates, key=lambda rule: (-len(rule.agreed), len(rule.pattern.open), rule.rule.name)
    )
    chosen: list[_RatedRule] = []
    for rule in ranked:
        has_narrower = any(
            other_rule.agreed < rule.agreed
            and len(other_rule.agreed) >= NEARLY_ALL_SHARE * len(rule.agreed)
            for other_rule in ranked
        )
        if not has_narrower and not any(rule.agreed <= other_rule.agreed for other_rule in chosen):
            chosen.append(rule)
    for rule in chosen[::-1]:
        # A rule for several callers is redundant if each of them has a rule of its own.
        if rule.agreed <= frozenset().union(
            *(other_rule.agreed for other_rule in chosen if other_rule is not rule)
        ):
            chosen.remove(rule)
    return chosen


def _is_covered(
    rated: _RatedRule, cases: Sequence[DecisionCase], accepted_rules: Sequence[CompiledRule]
) -> bool:
    """Return whether accepted rules decide everything that this rule would."""
    return bool(accepted_rules) and all(
        any(
            accepted_rule.rule.then == rated.rule.then
            and accepted_rule.matches_decision(cases[index])
            for accepted_rule in accepted_rules
        )
        for index in rated.agreed
    )
