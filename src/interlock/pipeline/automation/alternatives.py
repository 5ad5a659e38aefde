"""What one argument was, as few alternatives: values, folders, a range of numbers, or any text.

Each of them fits only what is like something that was seen. What is a secret by its name, what is
hidden, lists and objects are never left open; nor is a text that says where something goes, or an
argument whose texts are not nearly all prose.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final

import msgspec

from interlock.pipeline.automation.conditions import (
    Below,
    Piece,
    absent,
    below,
    between,
    is_usable,
    one_of,
    present,
)
from interlock.pipeline.automation.decision import is_long_prose, is_long_text
from interlock.pipeline.automation.folders import NEARLY_ALL, holding
from interlock.pipeline.automation.prose import is_prose, is_working

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


class Value(msgspec.Struct, frozen=True):
    """One value."""

    key: tuple[str, bytes]

    @property
    def value(self) -> Any:
        return msgspec.json.decode(self.key[1])

    def fits(self, value: Any, hidden: bool) -> bool:
        return not hidden and key_of(value) == self.key


class Folder(msgspec.Struct, frozen=True):
    """Paths below one folder."""

    below: Below

    def fits(self, value: Any, hidden: bool) -> bool:
        return not hidden and isinstance(value, str) and self.below.holds(value)


class Range(msgspec.Struct, frozen=True):
    """Numbers."""

    least: int | float
    most: int | float
    whole: bool

    def fits(self, value: Any, hidden: bool) -> bool:
        of_its_kind = isinstance(value, int) or not self.whole
        return not hidden and _is_number(value) and of_its_kind and self.least <= value <= self.most

    def contains(self, other: Range) -> bool:
        return (
            self.least <= other.least
            and other.most <= self.most
            and (other.whole or not self.whole)
        )


class Open(msgspec.Struct, frozen=True):
    """Any text."""

    def fits(self, value: Any, hidden: bool) -> bool:
        return isinstance(value, str) and (not hidden or is_long_text(value))


class Absent(msgspec.Struct, frozen=True):
    """It is not there."""

    def fits(self, value: Any, hidden: bool) -> bool:
        return False


ABSENT: Final = Absent()
Alternative = Value | Folder | Range | Open | Absent


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
) -> list[Alternative]:
    """The narrowest way to say what it was, for each value and whether something of it is hidden.
    Empty: there is none, and no rule may have this argument."""
    plain = [value for value, hidden in values if not hidden]
    ways: list[list[Alternative]] = [
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
        return [Open()]
    # So few values can be named, however seldom each was there.
    distinct = sorted({key_of(one) for one in plain if is_usable(one)})
    return [Value(one) for one in distinct] if len(distinct) <= MOST_VALUES else []


def _values(plain: Sequence[Any], seen: int) -> list[Value]:
    """The values, if they are few, and each was there often enough."""
    counted = Counter(key_of(one) for one in plain if is_usable(one))
    often = sorted(key for key, times in counted.items() if times >= seen)
    return [Value(one) for one in often] if len(often) <= MOST_VALUES else []


def _folders(plain: Sequence[Any], seen: int, finer: int) -> list[Folder]:
    texts = [one for one in plain if isinstance(one, str)]
    return [Folder(one) for one in holding(texts, seen, finer, MOST_VALUES)]


def ranges_of(plain: Sequence[Any], seen: int) -> list[Range]:
    """From the least to the most that was seen. A gap that is wider than all the rest was not
    looked at by anybody: there are ranges on both sides of it, if there was enough on both."""
    numbers = sorted(one for one in plain if _is_number(one) and is_usable(one))
    often = [one for one in _parted(numbers) if len(one) >= seen]
    largest = sorted(often, key=len, reverse=True)[:MOST_VALUES]
    return [
        Range(one[0], one[-1], all(isinstance(number, int) for number in one))
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


def piece_for(name: str, alternatives: Sequence[Alternative]) -> list[Piece]:
    """What one sentence says of them; nothing where anything or nothing may be there."""
    optional = any(isinstance(one, Absent) for one in alternatives)
    values = [one.value for one in alternatives if isinstance(one, Value)]
    folders = [one.below for one in alternatives if isinstance(one, Folder)]
    ranges = [one for one in alternatives if isinstance(one, Range)]
    if values:
        return [one_of(name, values, optional=optional)]
    if folders:
        return [below(name, folders, optional=optional)]
    if ranges:
        [one] = ranges
        return [between(name, one.least, one.most, whole=one.whole, optional=optional)]
    if any(isinstance(one, Open) for one in alternatives):
        return [] if optional else [present(name)]
    return [absent(name)]
