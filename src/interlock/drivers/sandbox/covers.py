"""Whether what a confined server was kept from is still what it is kept from.

A cover lies on a file or folder, not on its name. Whoever replaces one from outside (many editors
save that way) takes the cover with the old one, and what stands there now is a running server's to
change. Nobody can prevent that, so it is looked for: whoever finds it ends the server.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

_Identity = tuple[int, int]


class Covers:
    """Covered places as they were when a server was started."""

    def __init__(self, places: Iterable[Path]) -> None:
        self.places = frozenset(places)
        names = {name for place in self.places for name in _on_the_way(place)}
        self._marks = {name: mark for name in names if (mark := _identity(name)) is not None}

    def lost(self) -> str:
        """A place at which something else stands now. Empty: there is none."""
        return next((name for name, mark in self._marks.items() if _identity(name) != mark), "")


def _on_the_way(place: Path) -> Iterable[str]:
    """Everything on the way to it, by its name and by its real one: each is held in its place."""
    for path in {os.path.join(os.getcwd(), place), os.path.realpath(place)}:
        parts = path.split("/")
        for end in range(2, len(parts) + 1):
            yield "/".join(parts[:end])


def _identity(name: str) -> _Identity | None:
    try:
        found = os.lstat(name)
    except OSError:
        return None
    return found.st_dev, found.st_ino
