"""How much work it is to validate a value by a JSON Schema. Pure; nothing here raises.

A validator holds the interpreter lock, so nothing else in the process runs meanwhile. A schema of
a few lines can ask for hours: references that double at every level, patterns that backtrack or
that expand to a million states, an `enum` of objects compared with every item of a list. So the
work is estimated before a validator is compiled or asked. A step is about 20 ns of a validator.

Most schemas are bounded by themselves: the parts of the schema, with all references followed, times
the bytes of the value. That product is known once the schema is read (`unmeasured`), so an ordinary
call pays for one comparison. Schemas that refer to themselves, and values that are too long for
the product, are counted part by part (`allows`).
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

# -- Where the references of a JSON Schema lead, within its document. Pure; nothing here raises.

REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
_ANCHORS: Final = ("$anchor", "$dynamicAnchor")


class References:
    """Finds the parts of one document that others refer to."""

    def __init__(self, document: Any) -> None:
        self._document = document
        self._places: dict[str, Any] = {}
        for part in walk_objects(document):
            for word in _ANCHORS:
                if isinstance(part.get(word), str):
                    self._places["#" + part[word]] = part
            if isinstance(part.get("$id"), str):
                self._places[_last(part["$id"])] = part

    def target(self, reference: Any) -> Any:
        """What a reference leads to. None: nothing of this document."""
        if not isinstance(reference, str):
            return None
        place, _, fragment = reference.partition("#")
        document = self._places.get(_last(place)) if place else self._document
        if not fragment:
            return document
        if fragment.startswith("/"):
            return resolve_pointer(document, unquote(fragment))
        return self._places.get("#" + fragment)


def walk_objects(document: Any) -> Iterator[dict[str, Any]]:
    """Every object in it, however deep it lies."""
    waiting = [document]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            yield part
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part


def _last(uri: str) -> str:
    """What is left of a URI, whatever it is relative to."""
    return uri.partition("#")[0].rstrip("/").rpartition("/")[2]


# -- Whether it can be said in time what of a value does not fit a schema.
#
# Whether a value fits is found out quickly: a validator remembers what it has looked at. Why it
# does not fit is collected without that memory. Where references lead to the same part of a
# schema in several ways, and from there again, the same member is looked at twice, four times,
# eight times, and a few dozen braces would take longer than anybody can wait. All errors are
# collected before the first is told, so that a long list of which nothing fits takes seconds,
# too. So looks are counted first, each pair of a part and a member once, and not too many of
# them. Pure; nothing here raises.

MAX_REPEATED_VISITS: Final = 500
"""Looks at what was looked at before. Each costs up to a tenth of a millisecond."""
MAX_VISITS: Final = 40_000
"""Looks that are counted before it is given up. Each may find something, and to tell what takes a
hundredth of a millisecond, whether anybody wants to hear of it or not."""
UNEXPLAINED: Final = (
    "it does not fit, but there are so many places to look at, or so many ways to them, that "
    "nobody looks where: send something smaller or flatter to find out"
)
"""What is said instead."""

_SAME_LISTED: Final = ("allOf", "anyOf", "oneOf")
_SAME_ONE: Final = ("not", "if", "then", "else")
_SAME_NAMED: Final = ("dependentSchemas", "dependencies")
_BRANCHES: Final = ("anyOf", "oneOf")
_ASKED_FOR: Final = ("dependentRequired", "dependencies")
_EVERY_MEMBER: Final = ("additionalProperties", "unevaluatedProperties")
_EVERY_ITEM: Final = ("items", "additionalItems", "unevaluatedItems", "contains")

_Pair = tuple[int, int]


class _TooMany(Exception):
    pass


def collect_errors(validator: Any, schema: Any, value: Any, most: int) -> list[Any] | None:
    """What `validator`, made of `schema`, has against a value: the first errors. None: to find out
    would take too long."""
    if not can_be_explained(schema, value):
        return _first_error(validator, schema, value)
    try:
        return list(islice(validator.iter_errors(value), most))
    except ValueError:
        # Nested deeper than it follows while it collects.
        return None


def _first_error(validator: Any, schema: Any, value: Any) -> list[Any] | None:
    """The first of too many, where it is found as quickly as that there is one: each part is looked
    at once for each member, and none of them collects what is wrong with its branches."""
    if _says(schema, (*REFERENCES, *_BRANCHES)):
        return None
    try:
        validator.validate(value)
    except ValueError as error:
        return [error] if hasattr(error, "instance_path") else None
    return []


def can_be_explained(schema: Any, value: Any) -> bool:
    """Whether the errors of a value may be collected."""
    looks = _Looks(schema)
    try:
        return looks.count(schema, value) - looks.pairs <= MAX_REPEATED_VISITS
    except (_TooMany, RecursionError):
        return False


class _Looks:
    """Counts the looks that it takes, by one schema."""

    def __init__(self, document: Any) -> None:
        self._references = References(document)
        self.pairs = 0
        """What there is to look at, each once."""
        self._left = MAX_VISITS
        self._known: dict[_Pair, int] = {}
        self._alone: dict[int, tuple[int, int]] = {}

    def count(self, part: Any, value: Any) -> int:
        """How often something is looked at from here on, as if nothing were remembered."""
        if not isinstance(part, dict):
            return 0
        if not isinstance(value, dict | list):
            # Equal ones may be the same object: each is another member all the same.
            looks, different = self._at_scalar(part)
            self.pairs += different
            self._spend(looks)
            return looks
        pair = (id(part), id(value))
        known = self._known.get(pair)
        if known is not None:
            return known
        self._spend(1 + (_asked_for(part) if isinstance(value, dict) else 0))
        self.pairs += 1
        # Who comes here again with the same member goes round: that is refused elsewhere.
        self._known[pair] = 1
        looks = 1
        for inner, seen in self._below(part, value):
            looks += self.count(inner, seen)
        if looks - self.pairs > MAX_REPEATED_VISITS:
            raise _TooMany
        self._known[pair] = looks
        return looks

    def _spend(self, looks: int) -> None:
        self._left -= looks
        if self._left < 0:
            raise _TooMany

    def _at_scalar(self, part: dict[str, Any]) -> tuple[int, int]:
        """How many looks a member without members takes, and at how many parts."""
        known = self._alone.get(id(part))
        if known is None:
            self._alone[id(part)] = (1, 1)
            looks, different = 1, {id(part)}
            waiting = [part]
            for inner, _ in self._below(part, None):
                if isinstance(inner, dict):
                    looks += self._at_scalar(inner)[0]
            while waiting:
                for inner, _ in self._below(waiting.pop(), None):
                    if isinstance(inner, dict) and id(inner) not in different:
                        different.add(id(inner))
                        waiting.append(inner)
            if looks - len(different) > MAX_REPEATED_VISITS:
                raise _TooMany
            known = self._alone[id(part)] = (looks, len(different))
        return known

    def _below(self, part: dict[str, Any], value: Any) -> Iterator[tuple[Any, Any]]:
        for found in self._next(part, value):
            # Also what comes to nothing takes its time.
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
    # Which patterns fit a name is not asked: each may.
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


def _asked_for(part: dict[str, Any]) -> int:
    """How many members it may miss: each is an error of its own."""
    lists = [part.get("required")]
    lists += [one for word in _ASKED_FOR for one in _named(part.get(word)).values()]
    return sum(len(_listed(one)) for one in lists)


def _says(schema: Any, words: Sequence[str]) -> bool:
    return any(word in part for part in walk_objects(schema) for word in words)


MAX_STEPS: Final = 5_000_000
"""Of one validation: about a tenth of a second."""
MAX_COUNTED_PAIRS: Final = 20_000
"""Pairs of a part and a member that are counted for one value. Counting takes time as well."""
MAX_SCHEMA_OBJECTS: Final = 10_000
"""Objects of a schema. To compile that many takes 100 ms."""
MAX_REFERENCES: Final = 2_000
"""Of a schema: to compile that many takes 50 ms."""
MAX_PATTERN_STATES: Final = 40_000
"""Of all patterns of a schema together. To compile that many takes 100 ms."""
BACKTRACK_LIMIT: Final = 50_000
"""Steps of one pattern that is matched by trying. They take 2 ms."""

_BACKTRACKS: Final = 2 * BACKTRACK_LIMIT
"""What such a pattern is counted as, whatever it is held against."""
_CLASS_STATES: Final = 10
"""Of a class of characters, which is several ranges of bytes in UTF-8."""
_ENOUGH: Final = 10 * MAX_PATTERN_STATES
_COMPARISON: Final = 20
"""Steps of comparing a value with an object."""
_CLASS_ESCAPES: Final = frozenset("dDwWsSpP")
_TRIES: Final = re.compile(r"\\[1-9aeg-moqyzACE-OQRTUVX-Z]|\(\?(?:[=!>(~|]|<[=!])")
_GIVES_NOTHING_BACK: Final = re.compile(r"(?:[*+?]|\{[\d,\s]+\})\+")
_CLASS_OR_ESCAPE: Final = re.compile(r"\\.|\[\^?(?:\\.|[^\[\](){}\\])+\]", re.DOTALL)
_AMBIGUOUS: Final = re.compile(r"[\[\]\\]|\(\?(?![:=!>]|<|P<)")
"""Signs whose meaning depends on the dialect, and flags that change it."""
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


class _TooMuchError(Exception):
    pass


class SchemaWork:
    """The work of validating by one schema."""

    def __init__(
        self, schema: Any, known_documents: Collection[str] = (), *, any_size: bool = False
    ) -> None:
        """
        Args:
            known: Addresses of documents that it may refer to, and that cost nothing.
            any_size: It may have any number of objects and references: its bytes are bounded.
        """
        self.problem = ""
        """Why no validator should be made of it. Empty: one can be made."""
        self.compile_problem = ""
        """Why no validator can be compiled in time. Empty: one can be. A schema may have another
        problem and be compiled, but the work of validating by it cannot be estimated."""
        self._documents = known_documents
        self._any_size = any_size
        self.max_unmeasured_bytes = 0
        """Values that are written in so many bytes need not be measured."""
        self._schema = schema
        self._patterns: dict[str, tuple[int, bool]] = {}
        self._compared: dict[int, int] = {}
        self._unfolded: dict[int, tuple[int, int]] = {}
        self._circular = False
        try:
            self.compile_problem, self.problem = self._look_over()
            if not self.problem:
                self._references = References(schema)
                steps, unevaluated = self._unfold(schema)
                if not self._circular:
                    self.max_unmeasured_bytes = _bytes_within(MAX_STEPS // steps, unevaluated)
        except RecursionError:
            self.compile_problem = self.problem = "it is nested too deeply"

    def _look_over(self) -> tuple[str, str]:
        """What makes it impossible to compile the schema in time, and what makes it impossible to
        do that or to estimate its work."""
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
            # References in it would be relative to it, or lead to it by its own name.
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

    def _own(self, part: dict[str, Any]) -> int:
        """The steps that one part takes, without what is in it, for each byte of a value."""
        steps = 1 + self._compare(part)
        for pattern in _patterns(part):
            states, tries = self._patterns[pattern]
            # A text has its quotes and a comma.
            steps += _BACKTRACKS // 3 if tries else states
        return steps

    def _compare(self, part: dict[str, Any]) -> int:
        known = self._compared.get(id(part))
        if known is None:
            known = self._compared[id(part)] = _compared_with(part)
        return known

    def _unfold(self, part: Any) -> tuple[int, int]:
        """The steps that a part takes for each byte, its references followed, and how many
        `unevaluated…` lie in each other."""
        if not isinstance(part, dict):
            return 1, 0
        known = self._unfolded.get(id(part))
        if known is not None:
            # On its way down still: it refers to itself.
            self._circular |= known == (0, 0)
            return known
        self._unfolded[id(part)] = (0, 0)
        steps, deepest = self._own(part), 0
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
        """Whether a value can be validated in time by one part of the schema alone."""
        return not self.problem and self._can_be_counted(part, value)

    def can_validate_value(self, value: Any) -> bool:
        """Whether a value whose length in bytes is not known can be validated in time."""
        if self.problem:
            return False
        try:
            size = len(_encode(value))
        except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
            # No JSON: it is counted.
            size = self.max_unmeasured_bytes + 1
        return size <= self.max_unmeasured_bytes or self.can_validate(value)

    def can_validate(self, value: Any) -> bool:
        """Whether a value can be validated in time."""
        return not self.problem and self._can_be_counted(self._schema, value)

    def _can_be_counted(self, part: Any, value: Any) -> bool:
        count = _Count(self._references, self._patterns, self._compare)
        try:
            return count.steps(part, value) <= MAX_STEPS
        except (_TooMuchError, RecursionError):
            return False


class _Count:
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
        self._left = MAX_COUNTED_PAIRS
        self._known: dict[tuple[int, int], int] = {}

    def steps(self, part: Any, value: Any) -> int:
        """As if a validator remembered nothing."""
        self._left -= 1
        if self._left < 0:
            raise _TooMuchError
        if not isinstance(part, dict):
            return 1
        # Texts and numbers that are equal may be one object: they cost the same then.
        pair = (id(part), id(value))
        known = self._known.get(pair)
        if known is not None:
            return known
        # A part that leads to itself for the same value is refused when it is compiled.
        self._known[pair] = 1
        steps = self._at(part, value)
        for inner, member in self._inside(part, value):
            steps += self.steps(inner, member)
            if steps > MAX_STEPS:
                raise _TooMuchError
        if isinstance(value, dict | list) and any(word in part for word in _UNEVALUATED):
            steps *= 1 + len(value)
        self._known[pair] = steps
        return steps

    def _at(self, part: dict[str, Any], value: Any) -> int:
        """The steps of one part for one value, without what is in either."""
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
        """The steps of matching each of some patterns with each of some texts."""
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
        # Which patterns match a name is not asked: each may.
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
    """What a value is compared with: names that are asked for, and values of which it may be one.
    Texts and numbers are looked up, objects and arrays are compared one by one."""
    if _COMPARED.isdisjoint(part):
        return 0
    size = len(_list(part.get("required")))
    for word in ("dependentRequired", "dependencies"):
        size += sum(len(_list(names)) for names in _dict(part.get(word)).values())
    allowed = _list(part.get("enum"))
    if any(isinstance(one, dict | list) for one in allowed):
        size += _COMPARISON * len(allowed)
    return size


def _patterns(part: dict[str, Any]) -> Iterator[str]:
    if isinstance(part.get("pattern"), str):
        yield part["pattern"]
    yield from _dict(part.get("patternProperties"))


def _bytes_within(product: int, unevaluated: int) -> int:
    """How long a value may be. An `unevaluated…` looks at it once more for each member."""
    if unevaluated == 0:
        return product
    return isqrt(product) if unevaluated == 1 else 0


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def measure_pattern(pattern: str) -> tuple[int, bool]:
    """About how many states a pattern has, at least, and whether it is matched by trying: it looks
    around, refers back or gives nothing back."""
    # One sign for each class and each escaped character: what is in them repeats nothing.
    plain = _CLASS_OR_ESCAPE.sub(_one_sign, pattern)
    tries = bool(_TRIES.search(pattern) or _GIVES_NOTHING_BACK.search(plain))
    if _AMBIGUOUS.search(plain):
        states = len(pattern) * _CLASS_STATES
        for count in _REPEATED.finditer(pattern):
            states = min(states * _times(count), _ENOUGH)
        return states, tries
    return _states(plain), tries


def _one_sign(found: re.Match[str]) -> str:
    text = found.group()
    return "." if text[0] == "[" or text[1] in _CLASS_ESCAPES else "a"


def _states(plain: str) -> int:
    """The states of a pattern whose parentheses all make groups."""
    # Of each group that is open: the states before it.
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
            total = min(total + last * (times - 1), _ENOUGH)
            last = min(last * times, _ENOUGH)
        elif sign not in "*+?":
            last = _CLASS_STATES if sign == "." else 1
            if sign == ")" and groups:
                last += total
                total = groups.pop()
            total += last
    return sum(groups) + total + 1


def _times(repeated: re.Match[str]) -> int:
    return max(1, int(repeated["most"] or repeated["least"] or 1))
