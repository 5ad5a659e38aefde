"""Where the references of a JSON Schema lead, within its document. Pure; nothing here raises."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import unquote

from interlock.protocol.json_pointer import at_pointer

REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
_ANCHORS: Final = ("$anchor", "$dynamicAnchor")


class References:
    """Finds the parts of one document that others refer to."""

    def __init__(self, document: Any) -> None:
        self._document = document
        self._places: dict[str, Any] = {}
        for part in parts_of(document):
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
            return at_pointer(document, unquote(fragment))
        return self._places.get("#" + fragment)


def parts_of(document: Any) -> Iterator[dict[str, Any]]:
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
