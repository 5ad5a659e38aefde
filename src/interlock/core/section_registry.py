"""The sections of the config that features have, by reference: see `core/config/feature_sections`.

Apart from the config, so that a program can register them and read no config.
"""

from __future__ import annotations

from collections.abc import Iterable

_references: tuple[str, ...] = ()


def register_sections(references: Iterable[str]) -> None:
    """Add sections, each as `module:object` below `interlock`: a `SectionDefinition`."""
    global _references
    _references = tuple(dict.fromkeys((*_references, *references)))


def registered_sections() -> tuple[str, ...]:
    """The references, in the order in which they were added."""
    return _references
