"""The effect of a tool: the one classification that every view and protocol uses.

The first of these that says something decides: the config (`effects`), the annotations of MCP and
the capability of MCP-AX, inference from name, description and parameters (`effect_inference`), the
config's default for tools that say nothing (`unannotated`). Tools are classified when the catalog
changes. Only calls of tools whose parameter says what they do are judged one by one.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from enum import IntEnum
from fnmatch import fnmatchcase
from typing import Any, Final, Literal

import msgspec

from interlock.core.catalog.effect_inference import EffectChoice, EffectKind, Inference, infer

Unannotated = Literal["infer", "confirm", "allow"]
"""What is assumed of tools whose annotations do not say what they do."""


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
    """`config`, `contract`, `annotations`, `inferred` or `default`."""
    reason: str = ""
    """Of what was inferred or assumed: from which word, or by which setting."""
    choices: tuple[EffectChoice, ...] = ()
    """Parameters whose values say what a call does. Calls with only harmless values in them are
    `mutating`; all others have the level of the tool."""
    hint_ignored: bool = False
    """Whether a destructive hint was ignored that a server library writes for every tool."""

    @property
    def assumed(self) -> bool:
        """Whether no annotation and no config says what the tool does."""
        return self.source in ("inferred", "default")

    def of_arguments(self, arguments: Mapping[str, Any]) -> EffectLevel:
        """The level of one call, by its arguments, none of which is given twice."""
        if self.choices and all(choice.is_harmless(arguments) for choice in self.choices):
            return EffectLevel.MUTATING
        return self.level

    @property
    def repeatable(self) -> bool:
        """Whether a call that may have been executed can be sent again without harm.

        What cannot be undone is never done on a guess, whatever the server says of itself.
        """
        if self.level is EffectLevel.IRREVERSIBLE:
            return False
        return self.idempotent or self.level is EffectLevel.READ_ONLY


UNKNOWN: Final = Effect(EffectLevel.MUTATING, False, "default")
"""A tool of which no annotation and no word tells anything: it may change things, and is never
repeated."""

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
        if hints.get("destructiveHint") is True:
            return EffectLevel.IRREVERSIBLE
        if read_only is False:
            return EffectLevel.MUTATING
    return EffectLevel.READ_ONLY


BOILERPLATE: Final = Annotations(False, True, False, True)
"""MCP's defaults, written out. Some server libraries write them for every tool, reads included."""
BOILERPLATE_FROM: Final = 5
"""From so many such tools of a server on, they are taken for the library's words."""


def is_boilerplate(annotations: Annotations | None) -> bool:
    """Whether the hints are MCP's defaults, written out."""
    return annotations == BOILERPLATE


def classify(
    name: str,
    annotations: Annotations | None,
    overrides: Mapping[str, str],
    *,
    trusted: bool = True,
    unannotated: Unannotated = "infer",
    description: str = "",
    schema: Any = None,
    boilerplate: bool = False,
) -> Effect:
    """The effect of the upstream's tool `name`.

    A hint that raises the level is believed from anybody; one that lowers it only from a server
    whose annotations are trusted. The first matching override in the config decides alone.

    Args:
        unannotated: What is assumed where the annotations do not decide.
        schema: The input schema, decoded.
        boilerplate: The server's library writes MCP's defaults for every tool, and nobody else
            says that this one is irreversible.
    """
    for pattern, word in overrides.items():
        if fnmatchcase(name, pattern):
            level = LEVELS[word]
            idempotent = trusted and annotations is not None and bool(annotations.idempotent_hint)
            return Effect(level, idempotent or level is EffectLevel.READ_ONLY, "config")
    hints = annotations or NO_HINTS
    idempotent = trusted and bool(hints.idempotent_hint)
    if hints.destructive_hint:
        if boilerplate and is_boilerplate(annotations) and unannotated == "infer":
            found = infer(name, description, schema)
            if found.kind is EffectKind.READS:
                why = f"{found.reason}; its library marks every tool as destructive"
                return Effect(EffectLevel.MUTATING, False, "inferred", why, hint_ignored=True)
        # Together with `readOnlyHint` the worse of the two counts.
        return Effect(EffectLevel.IRREVERSIBLE, idempotent, "annotations")
    if hints.read_only_hint and trusted:
        return Effect(EffectLevel.READ_ONLY, True, "annotations")
    if hints.destructive_hint is False and trusted:
        return Effect(EffectLevel.ADDITIVE, idempotent, "annotations")
    if unannotated == "allow":
        return Effect(EffectLevel.MUTATING, idempotent, "default")
    return _assumed(infer(name, description, schema), idempotent, unannotated)


def _assumed(found: Inference, idempotent: bool, unannotated: Unannotated) -> Effect:
    """The effect of a tool that nobody says anything about. That it reads is never believed so far
    that a call would be repeated: it only keeps the tool from waiting for approval."""
    if found.kind is EffectKind.IRREVERSIBLE:
        return Effect(EffectLevel.IRREVERSIBLE, idempotent, "inferred", found.reason, found.choices)
    if unannotated == "confirm" and found.kind is not EffectKind.READS:
        return Effect(EffectLevel.IRREVERSIBLE, idempotent, "default", "unannotated: confirm")
    if found.kind is EffectKind.UNKNOWN:
        return Effect(EffectLevel.MUTATING, idempotent, "default")
    return Effect(EffectLevel.MUTATING, idempotent, "inferred", found.reason)
