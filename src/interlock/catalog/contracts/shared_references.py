"""References that two documents have in common, and whether they lead to the same.

What a name such as `#/$defs/Address` stands for is the same in both documents if it is written in
the same words, and everything it refers to is.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from interlock.catalog.contracts.documents import Document, Node

_REFERENCES: Final = re.compile(rb'"\$(?:ref|dynamicRef|recursiveRef)":("(?:[^"\\]|\\.)*")')
_MOST_BYTES: Final = 40_000_000


def text_of(value: Any) -> bytes:
    """A schema as bytes that are the same when every word of it is."""
    return msgspec.json.encode(value, order="sorted")


def references_in(text: bytes) -> set[str]:
    """Everything that a schema refers to."""
    return {msgspec.json.decode(one, type=str) for one in _REFERENCES.findall(text)}


class SharedReferences:
    """References of the same name on both sides."""

    def __init__(self, one: Document, other: Document) -> None:
        self.same: frozenset[str] = frozenset()
        """Those that lead to the same in both documents, through everything they lead on to."""
        self.changed: dict[str, tuple[Node, Node]] = {}
        """Those that lead to something else now."""
        self._mentioned_by: dict[str, set[str]] = {}
        # In another draft the same words mean something else.
        if one.one_resource and other.one_resource and one.draft == other.draft:
            self._compare(one, other)

    def _compare(self, one: Document, other: Document) -> None:
        here = references_in(text_of(one.root))
        there = references_in(text_of(other.root))
        same: set[str] = set()
        unsure: list[str] = sorted(here ^ there)
        looked = 0
        for target in sorted(here & there):
            (old, address), (new, elsewhere) = one.resolve(target), other.resolve(target)
            if old is None or new is None:
                # Out of both documents, to one address: whatever is there is the same for both.
                outside = old is new and address == elsewhere and not target.startswith("#")
                same.add(target) if outside else unsure.append(target)
                continue
            was, now = text_of(old.value), text_of(new.value)
            looked += len(was) + len(now)
            if looked > _MOST_BYTES:
                self.changed.clear()
                return
            self.changed[target] = (old, new)
            for mentioned in references_in(was) | references_in(now):
                self._mentioned_by.setdefault(mentioned, set()).add(target)
            if was == now:
                same.add(target)
            else:
                unsure.append(target)
        self.same = frozenset(same - self.mentioning(unsure))
        for target in self.same:
            self.changed.pop(target, None)

    def mentioned_by(self, target: str) -> set[str]:
        """What refers to this, without a way over others."""
        return self._mentioned_by.get(target, set())

    def mentioning(self, targets: list[str]) -> set[str]:
        """These, and all that lead to one of them, over however many others."""
        found = set(targets)
        waiting = list(targets)
        while waiting:
            more = self._mentioned_by.get(waiting.pop(), set()) - found
            found |= more
            waiting += more
        return found
