"""Problems of a config that can be read: what they are about, and where in the file that is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from interlock.core.config import Problem
from interlock.core.config.load import places_in
from interlock.core.config.problems import KeyPath, format_path
from interlock.terminal.config_source import ConfigSource

Doubt = tuple[KeyPath, str, str]
"""The value, what is odd about it, and what to do."""


def placed(found: Iterable[Doubt], source: ConfigSource) -> Iterator[Problem]:
    """With the line of the file that each is about. Raises ConfigError."""
    places = {} if source.path is None else places_in(source.path)
    for path, message, hint in found:
        # What a short form was split into has no place of its own.
        known = next((path[:end] for end in range(len(path), 0, -1) if path[:end] in places), ())
        line, column = places.get(known, (0, 0))
        file = "" if source.path is None else str(source.path)
        yield Problem(file, line, column, format_path(path), message, hint)
