"""How large a schema is once every reference in it is followed.

Whoever validates follows references, and each place that refers to another is another visit: a
small file can ask for more of them than anybody can wait for. They are counted here, each part of
the schema once, before a schema is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import unquote

from interlock.protocol.json_pointer import at_pointer

MOST_VISITS: Final = 100_000
_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
_ANCHORS: Final = ("$anchor", "$dynamicAnchor")


class Unfolding:
    """Counts the parts of one document."""

    def __init__(self, document: Any, most: int = MOST_VISITS) -> None:
        self._document = document
        self._most = most
        self._known: dict[int, int] = {}
        self._places: dict[str, Any] = {}
        for part in _parts(document):
            for word in _ANCHORS:
                if isinstance(part.get(word), str):
                    self._places["#" + part[word]] = part
            if isinstance(part.get("$id"), str):
                self._places[_last(part["$id"])] = part

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
            for word in _REFERENCES:
                count += self._count(self._target(part.get(word)))
        for one in below:
            count += self._count(one)
            if count > self._most:
                break
        self._known[id(part)] = count
        return count

    def _target(self, reference: Any) -> Any:
        if not isinstance(reference, str):
            return None
        place, _, fragment = reference.partition("#")
        document = self._places.get(_last(place)) if place else self._document
        if not fragment:
            return document
        if fragment.startswith("/"):
            return at_pointer(document, unquote(fragment))
        return self._places.get("#" + fragment)


def _parts(document: Any) -> Iterator[dict[str, Any]]:
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
