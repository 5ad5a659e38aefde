"""What is not shown of what an upstream lists, and why.

One bad entry never hides the others: it is set aside with the reason, and shown to the operator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Raw

from interlock.errors import ProtocolError
from interlock.protocol.jsonrpc import NULL, decode_members, decode_value

MAX_ENTRIES: Final = 10_000
"""More entries of one kind from one upstream are set aside: a list must not fill the memory."""

MAX_REASONS: Final = 100
"""Why an entry is not shown is said of so many; of the rest only how many they are."""

T = TypeVar("T")


class SetAside(msgspec.Struct, frozen=True, gc=False):
    """An entry of a list that is not shown, and why."""

    name: str
    """As the upstream has it, cut when it is long; `?` where there is none."""
    reason: str
    kind: str = "tool"
    """`tool`, `prompt`, `resource` or `template`."""


class SetAsides:
    """Collects the reasons of one kind, but not without end."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._first: list[SetAside] = []
        self._more = 0

    def add(self, name: str, reason: str) -> None:
        if len(self._first) >= MAX_REASONS:
            self._more += 1
            return
        cut = name if len(name) <= 100 else name[:100] + "…"
        self._first.append(SetAside(cut, reason, self._kind))

    @property
    def count(self) -> int:
        """How many entries there are, of which not all have their reason said."""
        return len(self._first) + self._more

    def all(self) -> tuple[SetAside, ...]:
        if self._more:
            rest = SetAside("and others", f"{self._more} more, for reasons like these.", self._kind)
            return (*self._first, rest)
        return tuple(self._first)


class UnusableEntry(Exception):
    """An entry that no client should see."""

    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        self.reason = reason


def usable(
    entries: Iterable[Raw | bytes],
    set_aside: SetAsides,
    read: Callable[[bytes], T],
    name_of: Callable[[T], str],
    wanted: Callable[[str], bool] = lambda _: True,
) -> list[T]:
    """What `read` makes of the entries, in their order, each name once."""
    kept: list[T] = []
    seen: set[str] = set()
    for raw in entries:
        try:
            entry = read(bytes(raw))
        except UnusableEntry as unusable:
            set_aside.add(unusable.name, unusable.reason)
            continue
        name = name_of(entry)
        if name in seen:
            set_aside.add(name, "The upstream lists this more than once.")
            continue
        seen.add(name)
        if not wanted(name):
            continue
        if len(kept) >= MAX_ENTRIES:
            set_aside.add(name, f"More than {MAX_ENTRIES} entries of this kind.")
            continue
        kept.append(entry)
    return kept


def take_apart(
    raw: bytes, decode: Callable[[bytes], T], named_by: str, longest: int
) -> tuple[T, dict[str, Raw]]:
    """The members that the node reads, and all of them raw but the one that names the entry."""
    try:
        members = decode_members(raw)
    except ProtocolError:
        raise UnusableEntry("?", "The entry is not an object.") from None
    # MCP knows no null members here, and clients refuse a whole list for one.
    members = without_nulls(members)
    name = value_of(members, named_by)
    name = name if isinstance(name, str) and name else "?"
    try:
        raw.decode()
        entry = decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise UnusableEntry(name, f"The definition is not valid: {exc}.") from None
    # What decodes has this member, and it is a string: the last one, where it stands twice.
    named = value_of(members, named_by)
    if not named:
        raise UnusableEntry("?", f"`{named_by}` is empty.")
    if len(named) > longest:
        raise UnusableEntry(named, f"`{named_by}` is longer than {longest} characters.")
    del members[named_by]
    return entry, members


def without_nulls(members: dict[str, Raw]) -> dict[str, Raw]:
    return {name: value for name, value in members.items() if bytes(value) != NULL}


def value_of(members: dict[str, Raw], key: str) -> Any:
    """A member's value; None for what is not there or cannot be read."""
    try:
        return decode_value(members[key])
    except (KeyError, ProtocolError):
        return None
