"""How large a schema is once every reference in it is followed.

Whoever validates follows references, and each place that refers to another is another visit: a
small file can ask for more of them than anybody can wait for. They are counted here, each part of
the schema once, before a schema is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from interlock.protocol.schema_references import REFERENCES, References

MOST_VISITS: Final = 100_000


class Unfolding:
    """Counts the parts of one document."""

    def __init__(self, document: Any, most: int = MOST_VISITS) -> None:
        self._document = document
        self._most = most
        self._known: dict[int, int] = {}
        self._references = References(document)

    @property
    def too_large(self) -> bool:
        """Whether it has more parts than anybody should visit, or lies too deep to be walked."""
        try:
            return self._count(self._document) > self._most
        except RecursionError:
            return True

    def _count(self, part: Any) -> int:
        """How many visits it takes from here on; not exact where it is too many."""
        if not isinstance(part, dict | list):
            return 0
        known = self._known.get(id(part))
        if known is not None:
            return known
        # Who comes here again from below goes round, as deep as the value is and no deeper.
        self._known[id(part)] = 0
        count = 1
        if isinstance(part, list):
            below: Iterator[Any] = iter(part)
        else:
            below = iter(part.values())
            for word in REFERENCES:
                count += self._count(self._references.target(part.get(word)))
        for one in below:
            count += self._count(one)
            if count > self._most:
                break
        self._known[id(part)] = count
        return count
