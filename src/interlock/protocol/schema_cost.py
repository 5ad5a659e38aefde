"""Estimates the work of validating a value by a JSON Schema. Pure; nothing here raises.

A validator holds the interpreter lock, so nothing else in the process runs meanwhile. A schema of
a few lines can need hours: references that double at every level, patterns that backtrack or
expand to a million states, an `enum` of objects that is compared with every item of a list. So the
work is estimated before a validator is compiled or used. A step is about 20 ns of a validator.

For most schemas a bound is simple: the parts of the schema, with all references followed, times the
bytes of the value. It is computed once per schema (`max_unmeasured_bytes`), so an ordinary call
needs one comparison. Recursive schemas, and values that are too long for this bound, are counted
part by part (`can_validate`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import islice
from math import isqrt
from typing import Any, Final
from urllib.parse import unquote

import msgspec

from interlock.protocol.json_pointer import resolve_pointer

# -- References of a JSON Schema within its document. Nothing here raises.

REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
_ANCHORS: Final = ("$anchor", "$dynamicAnchor")


class References:
    """Resolves references within one document."""

    def __init__(self, document: Any) -> None:
        self._document = document
        self._places: dict[str, Any] = {}
        for part in walk_objects(document):
            for word in _ANCHORS:
                if isinstance(part.get(word), str):
                    self._places["#" + part[word]] = part
            if isinstance(part.get("$id"), str):
                self._places[_last_segment(part["$id"])] = part

    def target(self, reference: Any) -> Any:
        """Return the target of a reference. None: it is not in this document."""
        if not isinstance(reference, str):
            return None
        place, _, fragment = reference.partition("#")
        document = self._places.get(_last_segment(place)) if place else self._document
        if not fragment:
            return document
        if fragment.startswith("/"):
            return resolve_pointer(document, unquote(fragment))
        return self._places.get("#" + fragment)


def walk_objects(document: Any) -> Iterator[dict[str, Any]]:
    """Yield all objects in a document, at any depth."""
    waiting = [document]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            yield part
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part


def _last_segment(uri: str) -> str:
    """Return the last segment of the path of a URI."""
    return uri.partition("#")[0].rstrip("/").rpartition("/")[2]


# -- Collecting the errors of a value in limited time.
#
# Testing whether a value is valid is fast: the validator caches what it has visited. Collecting the
# errors works without that cache. If references lead to the same part of a schema by several
# routes, repeatedly, the same member is visited twice, four times, eight times, and a few dozen
# braces would take too long. All errors are collected before the first is returned, so a long
# invalid list takes seconds, too. So the visits are counted first, each pair of a part and a member
# once, up to a limit. Nothing here raises.

MAX_REPEATED_VISITS: Final = 500
"""Maximum number of repeated visits. Each takes up to 0.1 ms."""
MAX_VISITS: Final = 40_000
"""Maximum number of visits. Each may find an error, which takes 0.01 ms."""
UNEXPLAINED: Final = (
    "it is invalid, but finding the error would take too long. Send a smaller or flatter value to "
    "get the error"
)
"""The message if the errors are not collected."""

_SAME_LISTED: Final = ("allOf", "anyOf", "oneOf")
_SAME_ONE: Final = ("not", "if", "then", "else")
_SAME_NAMED: Final = ("dependentSchemas", "dependencies")
_BRANCHES: Final = ("anyOf", "oneOf")
_ASKED_FOR: Final = ("dependentRequired", "dependencies")
_EVERY_MEMBER: Final = ("additionalProperties", "unevaluatedProperties")
_EVERY_ITEM: Final = ("items", "additionalItems", "unevaluatedItems", "contains")

_Pair = tuple[int, int]


class _TooManyVisitsError(Exception):
    pass


def collect_errors(validator: Any, schema: Any, value: Any, limit: int) -> list[Any] | None:
    """Return the first errors of a value. None: collecting them would take too long.

    Args:
        validator: the compiled `schema`.
    """
    if not can_be_explained(schema, value):
        return _first_error(validator, schema, value)
    try:
        return list(islice(validator.iter_errors(value), limit))
    except ValueError:
        # The value is nested too deeply for collecting errors.
        return None


def _first_error(validator: Any, schema: Any, value: Any) -> list[Any] | None:
    """Return the first error, if finding it is as fast as the test: no part is visited twice for a
    member, and no part collects the errors of branches."""
    if _has_keyword(schema, (*REFERENCES, *_BRANCHES)):
        return None
    try:
        validator.validate(value)
    except ValueError as error:
        return [error] if hasattr(error, "instance_path") else None
    return []


def can_be_explained(schema: Any, value: Any) -> bool:
    """Return whether the errors of a value can be collected in time."""
    visits = _VisitCounter(schema)
    try:
        return visits.count(schema, value) - visits.pairs <= MAX_REPEATED_VISITS
    except (_TooManyVisitsError, RecursionError):
        return False


class _VisitCounter:
    """Counts the visits of collecting errors, for one schema."""

    def __init__(self, document: Any) -> None:
        self._references = References(document)
        self.pairs = 0
        """The number of different pairs of a part and a member."""
        self._remaining_visits = MAX_VISITS
        self._known_counts: dict[_Pair, int] = {}
        self._alone: dict[int, tuple[int, int]] = {}

    def count(self, part: Any, value: Any) -> int:
        """Return the number of visits from here on, without a cache."""
        if not isinstance(part, dict):
            return 0
        if not isinstance(value, dict | list):
            # Equal scalars may be the same object, but each is a different member.
            visits, different = self._count_scalar(part)
            self.pairs += different
            self._spend(visits)
            return visits
        pair = (id(part), id(value))
        known_count = self._known_counts.get(pair)
        if known_count is not None:
            return known_count
        self._spend(1 + (_count_required(part) if isinstance(value, dict) else 0))
        self.pairs += 1
        # A second visit with the same member is a cycle, which is rejected elsewhere.
        self._known_counts[pair] = 1
        visits = 1
        for inner, inner_value in self._subschemas(part, value):
            visits += self.count(inner, inner_value)
        if visits - self.pairs > MAX_REPEATED_VISITS:
            raise _TooManyVisitsError
        self._known_counts[pair] = visits
        return visits

    def _spend(self, visits: int) -> None:
        self._remaining_visits -= visits
        if self._remaining_visits < 0:
            raise _TooManyVisitsError

    def _count_scalar(self, part: dict[str, Any]) -> tuple[int, int]:
        """Return the number of visits for a scalar, and the number of visited parts."""
        known = self._alone.get(id(part))
        if known is None:
            self._alone[id(part)] = (1, 1)
            visits, different = 1, {id(part)}
            waiting = [part]
            for inner, _ in self._subschemas(part, None):
                if isinstance(inner, dict):
                    visits += self._count_scalar(inner)[0]
            while waiting:
                for inner, _ in self._subschemas(waiting.pop(), None):
                    if isinstance(inner, dict) and id(inner) not in different:
                        different.add(id(inner))
                        waiting.append(inner)
            if visits - len(different) > MAX_REPEATED_VISITS:
                raise _TooManyVisitsError
            known = self._alone[id(part)] = (visits, len(different))
        return known

    def _subschemas(self, part: dict[str, Any], value: Any) -> Iterator[tuple[Any, Any]]:
        for found in self._next(part, value):
            # A visit without a result takes time, too.
            self._spend(1)
            yield found

    def _next(self, part: dict[str, Any], value: Any) -> Iterator[tuple[Any, Any]]:
        for word in REFERENCES:
            if word in part:
                yield self._references.target(part[word]), value
        for word in _SAME_LISTED:
            for inner in _listed(part.get(word)):
                yield inner, value
        for word in _SAME_ONE:
            if word in part:
                yield part[word], value
        for word in _SAME_NAMED:
            for inner in _named(part.get(word)).values():
                yield inner, value
        if isinstance(value, dict):
            yield from _members(part, value)
        elif isinstance(value, list):
            yield from _items(part, value)


def _members(part: dict[str, Any], value: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    named = _named(part.get("properties"))
    # Every pattern may match a name.
    all_over = [*_named(part.get("patternProperties")).values()]
    all_over += [part[word] for word in _EVERY_MEMBER if word in part]
    for name, member in value.items():
        if "propertyNames" in part:
            yield part["propertyNames"], name
        if name in named:
            yield named[name], member
        for inner in all_over:
            yield inner, member


def _items(part: dict[str, Any], value: list[Any]) -> Iterator[tuple[Any, Any]]:
    for word in ("prefixItems", "items"):
        yield from zip(_listed(part.get(word)), value, strict=False)
    for word in _EVERY_ITEM:
        if isinstance(part.get(word), dict):
            for item in value:
                yield part[word], item


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _named(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _count_required(part: dict[str, Any]) -> int:
    """Return how many members may be missing: each is a separate error."""
    lists = [part.get("required")]
    lists += [names for word in _ASKED_FOR for names in _named(part.get(word)).values()]
    return sum(len(_listed(names)) for names in lists)


def _has_keyword(schema: Any, words: Sequence[str]) -> bool:
    return any(word in part for part in walk_objects(schema) for word in words)


MAX_STEPS: Final = 5_000_000
"""Maximum steps of one validation: about 0.1 s."""
MAX_COUNTED_PAIRS: Final = 20_000
"""Maximum number of pairs of a part and a member that are counted. Counting takes time as well."""
MAX_SCHEMA_OBJECTS: Final = 10_000
"""Maximum number of objects in a schema. Compiling that many takes 100 ms."""
MAX_REFERENCES: Final = 2_000
"""Maximum number of references in a schema. Compiling that many takes 50 ms."""
MAX_PATTERN_STATES: Final = 40_000
"""Maximum states of all patterns of a schema together. Compiling that many takes 100 ms."""
BACKTRACK_LIMIT: Final = 50_000
"""Maximum steps of a pattern with backtracking. They take 2 ms."""

_BACKTRACKS: Final = 2 * BACKTRACK_LIMIT
"""The steps that count for a pattern with backtracking, for any text."""
_CLASS_STATES: Final = 10
"""States of a character class, which is several ranges of bytes in UTF-8."""
_STATE_LIMIT: Final = 10 * MAX_PATTERN_STATES
_COMPARISON: Final = 20
"""Steps of one comparison with an object."""
_CLASS_ESCAPES: Final = frozenset("dDwWsSpP")
_TRIES: Final = re.compile(r"\\[1-9aeg-moqyzACE-OQRTUVX-Z]|\(\?(?:[=!>(~|]|<[=!])")
_GIVES_NOTHING_BACK: Final = re.compile(r"(?:[*+?]|\{[\d,\s]+\})\+")
_CLASS_OR_ESCAPE: Final = re.compile(r"\\.|\[\^?(?:\\.|[^\[\](){}\\])+\]", re.DOTALL)
_AMBIGUOUS: Final = re.compile(r"[\[\]\\]|\(\?(?![:=!>]|<|P<)")
"""Characters whose meaning depends on the dialect, and flags that change it."""
_REPEATED: Final = re.compile(r"\{\s*(?P<least>\d{0,9})\s*,?\s*(?P<most>\d{0,9})\s*\}")
_UNEVALUATED: Final = ("unevaluatedProperties", "unevaluatedItems")
_LISTED: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems", "items"})
_SINGLE: Final = frozenset(
    ("not", "if", "then", "else", "propertyNames", "additionalProperties", "additionalItems",
     "contains", "items", *_UNEVALUATED)
)  # fmt: skip
_NAMED: Final = frozenset({"properties", "patternProperties", "dependentSchemas", "dependencies"})
_COMPARED: Final = frozenset({"required", "dependentRequired", "dependencies", "enum"})
_SAME_SINGLE: Final = ("not", "if", "then", "else")


_encode = msgspec.json.Encoder().encode


class _TooManyStepsError(Exception):
    pass


class SchemaWork:
    """The work of validating by one schema."""

    def __init__(
        self, schema: Any, known_documents: Collection[str] = (), *, any_size: bool = False
    ) -> None:
        """
        Args:
            known: addresses of documents that it may refer to, and that cost nothing.
            any_size: it may have any number of objects and references: its bytes are bounded.
        """
        self.problem = ""
        """The reason why the schema must not be used. Empty: it can be used."""
        self.compile_problem = ""
        """The reason why no validator can be compiled in time. Empty: it can. A schema with another
        problem can be compiled, but the work of a validation cannot be estimated."""
        self._documents = known_documents
        self._any_size = any_size
        self.max_unmeasured_bytes = 0
        """Values of at most this many bytes need not be measured."""
        self._schema = schema
        self._patterns: dict[str, tuple[int, bool]] = {}
        self._compared: dict[int, int] = {}
        self._unfolded: dict[int, tuple[int, int]] = {}
        self._circular = False
        try:
            self.compile_problem, self.problem = self._inspect_schema()
            if not self.problem:
                self._references = References(schema)
                steps, unevaluated = self._unfold(schema)
                if not self._circular:
                    self.max_unmeasured_bytes = _bytes_within(MAX_STEPS // steps, unevaluated)
        except RecursionError:
            self.compile_problem = self.problem = "it is nested too deeply"

    def _inspect_schema(self) -> tuple[str, str]:
        """Return why the schema cannot be compiled in time, and why it cannot be compiled or its
        work cannot be estimated."""
        schema = self._schema
        own_name, identity = "", "$id"
        if isinstance(schema, dict):
            identity = "id" if "draft-04" in str(schema.get("$schema")) else "$id"
            own_name = str(schema.get(identity)).partition("#")[0]
        references = 0
        elsewhere = renamed = False
        anchors: set[str] = set()
        for number, part in enumerate(walk_objects(schema)):
            if number >= MAX_SCHEMA_OBJECTS and not self._any_size:
                return (f"it has more than {MAX_SCHEMA_OBJECTS} objects",) * 2
            for word in REFERENCES:
                target = part.get(word)
                if isinstance(target, str):
                    references += 1
                    document = target.partition("#")[0]
                    elsewhere |= document not in ("", own_name, *self._documents)
            for pattern in _patterns(part):
                if pattern not in self._patterns:
                    self._patterns[pattern] = measure_pattern(pattern)
            # A part with its own id changes the target of references.
            renamed |= part is not schema and isinstance(part.get(identity), str)
            for word in ("$anchor", "$dynamicAnchor"):
                anchor = part.get(word)
                if isinstance(anchor, str):
                    renamed |= anchor in anchors
                    anchors.add(anchor)
        if references > MAX_REFERENCES and not self._any_size:
            return (f"it has more than {MAX_REFERENCES} references",) * 2
        if sum(states for states, _ in self._patterns.values()) > MAX_PATTERN_STATES:
            return ("its patterns are too large",) * 2
        if elsewhere:
            return "", "it refers to another document"
        if renamed and references:
            return "", "its references may lead to several places"
        return "", ""

    def _own_steps(self, part: dict[str, Any]) -> int:
        """Return the steps of one part without its subschemas, per byte of a value."""
        steps = 1 + self._compare(part)
        for pattern in _patterns(part):
            states, tries = self._patterns[pattern]
            # A string in JSON has at least three bytes: its quotes and a comma.
            steps += _BACKTRACKS // 3 if tries else states
        return steps

    def _compare(self, part: dict[str, Any]) -> int:
        known = self._compared.get(id(part))
        if known is None:
            known = self._compared[id(part)] = _compared_with(part)
        return known

    def _unfold(self, part: Any) -> tuple[int, int]:
        """Return the steps of a part with its references per byte, and the nesting depth of
        `unevaluated…`."""
        if not isinstance(part, dict):
            return 1, 0
        known = self._unfolded.get(id(part))
        if known is not None:
            # The part is still being unfolded: the schema is recursive.
            self._circular |= known == (0, 0)
            return known
        self._unfolded[id(part)] = (0, 0)
        steps, deepest = self._own_steps(part), 0
        for inner in self._inside(part):
            below, unevaluated = self._unfold(inner)
            steps += below
            deepest = max(deepest, unevaluated)
        found = self._unfolded[id(part)] = (
            steps, deepest + any(word in part for word in _UNEVALUATED),
        )  # fmt: skip
        return found

    def _inside(self, part: dict[str, Any]) -> Iterator[Any]:
        for word, inner in part.items():
            if word in _NAMED:
                yield from _dict(inner).values()
            elif word in REFERENCES:
                yield self._references.target(inner)
            elif word in _LISTED:
                yield from _list(inner)
            if word in _SINGLE:
                yield inner

    def can_validate_part(self, part: Any, value: Any) -> bool:
        """Return whether a value can be validated in time by one part of the schema."""
        return not self.problem and self._can_be_counted(part, value)

    def can_validate_value(self, value: Any) -> bool:
        """Return whether a value of unknown size can be validated in time."""
        if self.problem:
            return False
        try:
            size = len(_encode(value))
        except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
            # Not encodable as JSON: it is counted.
            size = self.max_unmeasured_bytes + 1
        return size <= self.max_unmeasured_bytes or self.can_validate(value)

    def can_validate(self, value: Any) -> bool:
        """Return whether a value can be validated in time."""
        return not self.problem and self._can_be_counted(self._schema, value)

    def _can_be_counted(self, part: Any, value: Any) -> bool:
        count = _StepCounter(self._references, self._patterns, self._compare)
        try:
            return count.steps(part, value) <= MAX_STEPS
        except (_TooManyStepsError, RecursionError):
            return False


class _StepCounter:
    """Counts the steps of one validation."""

    def __init__(
        self,
        references: References,
        patterns: Mapping[str, tuple[int, bool]],
        compare: Callable[[dict[str, Any]], int],
    ) -> None:
        self._references = references
        self._patterns = patterns
        self._compare = compare
        self._remaining_steps = MAX_COUNTED_PAIRS
        self._known_steps: dict[tuple[int, int], int] = {}

    def steps(self, part: Any, value: Any) -> int:
        """Return the steps of a validator without a cache."""
        self._remaining_steps -= 1
        if self._remaining_steps < 0:
            raise _TooManyStepsError
        if not isinstance(part, dict):
            return 1
        # Equal strings and numbers may be one object: their cost is equal.
        pair = (id(part), id(value))
        known_steps = self._known_steps.get(pair)
        if known_steps is not None:
            return known_steps
        # A part that refers to itself for the same value is rejected at compilation.
        self._known_steps[pair] = 1
        steps = self._count_part(part, value)
        for inner, member in self._inside(part, value):
            steps += self.steps(inner, member)
            if steps > MAX_STEPS:
                raise _TooManyStepsError
        if isinstance(value, dict | list) and any(word in part for word in _UNEVALUATED):
            steps *= 1 + len(value)
        self._known_steps[pair] = steps
        return steps

    def _count_part(self, part: dict[str, Any], value: Any) -> int:
        """Return the steps of one part for one value, without subschemas and members."""
        steps = 1 + self._compare(part)
        if isinstance(value, str):
            steps += len(value) // 64
            if isinstance(part.get("pattern"), str):
                steps += self._matching([part["pattern"]], [value])
        elif isinstance(value, dict):
            steps += len(value)
            named = _dict(part.get("patternProperties"))
            if named:
                steps += self._matching(named, value)
        elif isinstance(value, list):
            steps += len(value)
        return steps

    def _matching(self, patterns: Collection[str], texts: Collection[str]) -> int:
        """Return the steps of matching all patterns with all texts."""
        characters = sum(map(len, texts)) + len(texts)
        steps = 0
        for pattern in patterns:
            states, tries = self._patterns[pattern]
            steps += _BACKTRACKS * len(texts) if tries else states * characters
        return steps

    def _inside(self, part: dict[str, Any], value: Any) -> Iterator[tuple[Any, Any]]:
        for word in REFERENCES:
            if word in part:
                yield self._references.target(part[word]), value
        for word in _SAME_LISTED:
            for inner in _list(part.get(word)):
                yield inner, value
        for word in _SAME_SINGLE:
            if word in part:
                yield part[word], value
        for word in _SAME_NAMED:
            for inner in _dict(part.get(word)).values():
                yield inner, value
        if isinstance(value, dict):
            yield from self._members(part, value)
        elif isinstance(value, list):
            for word in ("prefixItems", "items"):
                yield from zip(_list(part.get(word)), value, strict=False)
            for word in _EVERY_ITEM:
                if isinstance(part.get(word), dict):
                    for item in value:
                        yield part[word], item

    def _members(self, part: dict[str, Any], value: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
        named = _dict(part.get("properties"))
        # Every pattern may match a name.
        every = [*_dict(part.get("patternProperties")).values()]
        every += [part[word] for word in _EVERY_MEMBER if word in part]
        for name, member in value.items():
            if "propertyNames" in part:
                yield part["propertyNames"], name
            if name in named:
                yield named[name], member
            for inner in every:
                yield inner, member


def _compared_with(part: dict[str, Any]) -> int:
    """Return the number of comparisons of a value: with required names, and with values of `enum`.
    Strings and numbers are looked up, objects and arrays are compared one by one."""
    if _COMPARED.isdisjoint(part):
        return 0
    size = len(_list(part.get("required")))
    for word in ("dependentRequired", "dependencies"):
        size += sum(len(_list(names)) for names in _dict(part.get(word)).values())
    allowed = _list(part.get("enum"))
    if any(isinstance(item, dict | list) for item in allowed):
        size += _COMPARISON * len(allowed)
    return size


def _patterns(part: dict[str, Any]) -> Iterator[str]:
    if isinstance(part.get("pattern"), str):
        yield part["pattern"]
    yield from _dict(part.get("patternProperties"))


def _bytes_within(product: int, unevaluated: int) -> int:
    """Return the maximum size of a value. An `unevaluated…` visits it again for each member."""
    if unevaluated == 0:
        return product
    return isqrt(product) if unevaluated == 1 else 0


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def measure_pattern(pattern: str) -> tuple[int, bool]:
    """Return a lower bound of the states of a pattern, and whether it needs backtracking: it has
    lookaround, backreferences or possessive quantifiers."""
    # One character for each class and each escape: their content has no quantifiers.
    plain = _CLASS_OR_ESCAPE.sub(_replace_by_character, pattern)
    tries = bool(_TRIES.search(pattern) or _GIVES_NOTHING_BACK.search(plain))
    if _AMBIGUOUS.search(plain):
        states = len(pattern) * _CLASS_STATES
        for count in _REPEATED.finditer(pattern):
            states = min(states * _times(count), _STATE_LIMIT)
        return states, tries
    return _states(plain), tries


def _replace_by_character(match: re.Match[str]) -> str:
    text = match.group()
    return "." if text[0] == "[" or text[1] in _CLASS_ESCAPES else "a"


def _states(plain: str) -> int:
    """Return the states of a pattern in which all parentheses are groups."""
    # For each open group: the number of states before it.
    groups: list[int] = []
    total = last = place = 0
    while place < len(plain):
        sign = plain[place]
        place += 1
        if sign == "(":
            groups.append(total)
            total = last = 0
        elif sign == "{" and (repeated := _REPEATED.match(plain, place - 1)):
            place = repeated.end()
            times = _times(repeated)
            # It was counted once already.
            total = min(total + last * (times - 1), _STATE_LIMIT)
            last = min(last * times, _STATE_LIMIT)
        elif sign not in "*+?":
            last = _CLASS_STATES if sign == "." else 1
            if sign == ")" and groups:
                last += total
                total = groups.pop()
            total += last
    return sum(groups) + total + 1


def _times(repeated: re.Match[str]) -> int:
    return max(1, int(repeated["most"] or repeated["least"] or 1))
