"""What a tool does to the world, classified once; everything later asks here.

MCP annotations are hints from a server about itself, and so is a capability annotation of MCP-AX.
They may be believed (`trust_annotations`), and the config always has the last word.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from enum import IntEnum
from fnmatch import fnmatchcase
from typing import Any, Final

import msgspec


class EffectLevel(IntEnum):
    """How much harm one call can do, in rising order."""

    READ_ONLY = 0
    ADDITIVE = 1
    MUTATING = 2
    IRREVERSIBLE = 3

    @property
    def word(self) -> str:
        return self.name.lower()


LEVELS: Final = {level.word: level for level in EffectLevel}


class Annotations(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """The hints of an MCP tool. None: the server said nothing."""

    read_only_hint: bool | None = None
    destructive_hint: bool | None = None
    idempotent_hint: bool | None = None
    open_world_hint: bool | None = None


class Effect(msgspec.Struct, frozen=True, gc=False):
    """The classification: how bad, whether doing it twice is doing it once, and who said so."""

    level: EffectLevel
    idempotent: bool
    source: str
    """`config`, `contract`, `annotations` or `default`."""

    @property
    def repeatable(self) -> bool:
        """Whether a call that may have been executed can be sent again without harm.

        What cannot be undone is never done on a guess, whatever the server says of itself.
        """
        if self.level is EffectLevel.IRREVERSIBLE:
            return False
        return self.idempotent or self.level is EffectLevel.READ_ONLY


UNKNOWN: Final = Effect(EffectLevel.MUTATING, False, "default")
"""A tool that says nothing about itself may change things, and is never repeated."""


NO_HINTS: Final = Annotations()


def with_capability(
    annotations: Annotations | None,
    values: Mapping[str, Any],
    declared: Container[str],
    *,
    flagged: bool = False,
) -> Annotations:
    """The hints of a tool that has a capability, too. Where the two contradict each other, the
    worse counts.

    `values` are the lawful ones, `declared` the names of those that somebody really said: that a
    tool cannot be undone is no news when a node below only assumed it, as we would. `flagged`: a
    node below holds it to be irreversible, and may know why what the tool says is not to be
    believed.
    """
    hints = annotations or NO_HINTS
    mutable, reversible = values.get("mutable"), values.get("reversible")
    read_only, destructive = hints.read_only_hint, hints.destructive_hint
    if mutable is not None:
        read_only = not mutable and read_only is not False
    if mutable is not False and reversible is not None:
        if reversible:
            destructive = bool(destructive)
        elif "reversible" in declared or destructive is not None:
            destructive = True
    idempotent = values.get("idempotent")
    if idempotent is None or hints.idempotent_hint is False:
        idempotent = hints.idempotent_hint
    if flagged:
        idempotent = None
        if read_only or destructive is False:
            read_only, destructive = False, True
    return Annotations(read_only, destructive, idempotent, hints.open_world_hint)


def least_level(hints: Any) -> EffectLevel:
    """How much harm a tool says that it does, by the hints that it is listed with, as they came.
    That is believed from anybody; that it does none, from nobody here."""
    if isinstance(hints, Mapping):
        read_only = hints.get("readOnlyHint")
        if hints.get("destructiveHint") is True and read_only is not True:
            return EffectLevel.IRREVERSIBLE
        if read_only is False:
            return EffectLevel.MUTATING
    return EffectLevel.READ_ONLY


def classify(
    name: str,
    annotations: Annotations | None,
    overrides: Mapping[str, str],
    *,
    trusted: bool = True,
) -> Effect:
    """The effect of the upstream's tool `name`.

    A hint that raises the level is believed from anybody; one that lowers it only from a server
    whose annotations are trusted. The first matching override in the config decides alone.
    """
    for pattern, word in overrides.items():
        if fnmatchcase(name, pattern):
            level = LEVELS[word]
            idempotent = trusted and annotations is not None and bool(annotations.idempotent_hint)
            return Effect(level, idempotent or level is EffectLevel.READ_ONLY, "config")
    if annotations is None:
        return UNKNOWN
    if annotations.read_only_hint and trusted:
        return Effect(EffectLevel.READ_ONLY, True, "annotations")
    idempotent = trusted and bool(annotations.idempotent_hint)
    if annotations.destructive_hint:
        return Effect(EffectLevel.IRREVERSIBLE, idempotent, "annotations")
    if annotations.destructive_hint is False and trusted:
        return Effect(EffectLevel.ADDITIVE, idempotent, "annotations")
    return Effect(EffectLevel.MUTATING, idempotent, "default")
