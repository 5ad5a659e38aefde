"""A dictionary with a maximum number of entries."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class BoundedDict(OrderedDict[K, V]):
    """A dictionary of at most `max_size` entries. Another entry removes the oldest.

    The oldest entry is the one that was written longest ago. Reading does not count, so that it
    is as fast as in a plain dictionary. `touch` reads and counts (least recently used).
    """

    __slots__ = ("max_size",)

    def __init__(self, max_size: int) -> None:
        super().__init__()
        self.max_size = max_size

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > self.max_size:
            self.popitem(last=False)

    def touch(self, key: K) -> V | None:
        """Return the value and make the entry the newest. None: there is no such entry."""
        value = self.get(key)
        if value is not None:
            self.move_to_end(key)
        return value
