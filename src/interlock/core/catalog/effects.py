"""The effect of a tool: the one classification that all views and protocols use.

The first source that decides wins: the config (`effects`), the annotations of MCP and the
capability of MCP-AX, inference from name, description and parameters (`effect_inference`), the
config's default for tools without annotations (`unannotated`). Tools are classified when the
catalog changes. Calls are classified one by one only if a parameter decides what they do.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from enum import IntEnum
from fnmatch import fnmatchcase
from typing import Any, Final, Literal

import msgspec

from interlock.core.catalog.effect_inference import EffectChoice, EffectKind, Inference, infer

Unannotated = Literal["infer", "confirm", "allow"]
"""The classification of tools without conclusive annotations."""


class EffectLevel(IntEnum):
    """The harm that one call can do, in ascending order."""

    READ_ONLY = 0
    ADDITIVE = 1
    MUTATING = 2
    IRREVERSIBLE = 3

    @property
    def label(self) -> str:
        return self.name.lower()


LEVELS: Final = {level.label: level for level in EffectLevel}


class Annotations(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """The hints of an MCP tool. None: not declared."""

    read_only_hint: bool | None = None
    destructive_hint: bool | None = None
    idempotent_hint: bool | None = None
    open_world_hint: bool | None = None


class Effect(msgspec.Struct, frozen=True, gc=False):
    """The classification of a tool: its level, whether it is idempotent, and the source."""

    level: EffectLevel
    idempotent: bool
    source: str
    """`config`, `contract`, `annotations`, `inferred` or `default`."""
    reason: str = ""
    """For inferred and default effects: the decisive word or setting."""
    choices: tuple[EffectChoice, ...] = ()
    """Parameters whose values decide what a call does. Calls with only harmless values are
    `mutating`. All others have the level of the tool."""
    is_hint_ignored: bool = False
    """True if a destructive hint was ignored that a server library sets for every tool."""

    @property
    def is_assumed(self) -> bool:
        """True if neither an annotation nor the config classifies the tool."""
        return self.source in ("inferred", "default")

    def level_for(self, arguments: Mapping[str, Any]) -> EffectLevel:
        """Return the level of one call. The arguments must not have duplicate keys."""
        if self.choices and all(choice.is_harmless(arguments) for choice in self.choices):
            return EffectLevel.MUTATING
        return self.level

    @property
    def repeatable(self) -> bool:
        """True if a call that may have been executed can be sent again without harm.

        Irreversible calls are never repeated, whatever the server says about the tool.
        """
        if self.level is EffectLevel.IRREVERSIBLE:
            return False
        return self.idempotent or self.level is EffectLevel.READ_ONLY


UNKNOWN_EFFECT: Final = Effect(EffectLevel.MUTATING, False, "default")
"""The effect of a tool without annotations and known words: it may change things, and is never
repeated."""

NO_HINTS: Final = Annotations()


def merge_capability(
    annotations: Annotations | None,
    values: Mapping[str, Any],
    declared_names: Container[str],
    *,
    is_flagged_below: bool = False,
) -> Annotations:
    """Return the hints of a tool combined with its capability. If they contradict, the worse wins.

    Args:
        values: the valid values of the capability.
        declared_names: the names of values that the tool or an operator declared. An assumption of
            a subnode that the tool is irreversible is ignored, because this node assumes the same.
        is_flagged_below: a subnode classifies the tool as irreversible, perhaps for reasons that
            this node does not know.
    """
    hints = annotations or NO_HINTS
    mutable, reversible = values.get("mutable"), values.get("reversible")
    read_only, destructive = hints.read_only_hint, hints.destructive_hint
    if mutable is not None:
        read_only = not mutable and read_only is not False
    if mutable is not False and reversible is not None:
        if reversible:
            destructive = bool(destructive)
        elif "reversible" in declared_names or destructive is not None:
            destructive = True
    idempotent = values.get("idempotent")
    if idempotent is None or hints.idempotent_hint is False:
        idempotent = hints.idempotent_hint
    if is_flagged_below:
        idempotent = None
        if read_only or destructive is False:
            read_only, destructive = False, True
    return Annotations(read_only, destructive, idempotent, hints.open_world_hint)


def minimum_level(hints: Any) -> EffectLevel:
    """Return the minimum level of a tool by its listed hints. Hints that raise the level are
    believed from any server, hints that lower it are ignored here."""
    if isinstance(hints, Mapping):
        read_only = hints.get("readOnlyHint")
        if hints.get("destructiveHint") is True:
            return EffectLevel.IRREVERSIBLE
        if read_only is False:
            return EffectLevel.MUTATING
    return EffectLevel.READ_ONLY


BOILERPLATE: Final = Annotations(False, True, False, True)
"""MCP's default hints, written out. Some server libraries set them for every tool, even readers."""
MIN_BOILERPLATE_TOOLS: Final = 5
"""With this many such tools, the hints of a server count as set by its library."""


def is_boilerplate(annotations: Annotations | None) -> bool:
    """Return whether the hints are MCP's defaults, written out."""
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
    """Classify the upstream's tool `name`.

    A hint that raises the level is believed from any server. A hint that lowers it is believed only
    if the server's annotations are trusted. The first matching override in the config wins over
    everything else.

    Args:
        unannotated: how the tool is classified if the annotations do not decide.
        schema: the decoded input schema.
        boilerplate: the server's library sets MCP's default hints for every tool, and no other
            source classifies this one as irreversible.
    """
    for pattern, label in overrides.items():
        if fnmatchcase(name, pattern):
            level = LEVELS[label]
            idempotent = trusted and annotations is not None and bool(annotations.idempotent_hint)
            return Effect(level, idempotent or level is EffectLevel.READ_ONLY, "config")
    hints = annotations or NO_HINTS
    idempotent = trusted and bool(hints.idempotent_hint)
    if hints.destructive_hint:
        if boilerplate and is_boilerplate(annotations) and unannotated == "infer":
            inference = infer(name, description, schema)
            if inference.kind is EffectKind.READS:
                reason = f"{inference.reason}; its library marks every tool as destructive"
                return Effect(EffectLevel.MUTATING, False, "inferred", reason, is_hint_ignored=True)
        # In a contradiction with `readOnlyHint` the worse of the two wins.
        return Effect(EffectLevel.IRREVERSIBLE, idempotent, "annotations")
    if hints.read_only_hint and trusted:
        return Effect(EffectLevel.READ_ONLY, True, "annotations")
    if hints.destructive_hint is False and trusted:
        return Effect(EffectLevel.ADDITIVE, idempotent, "annotations")
    if unannotated == "allow":
        return Effect(EffectLevel.MUTATING, idempotent, "default")
    return _effect_of_inference(infer(name, description, schema), idempotent, unannotated)


def _effect_of_inference(
    inference: Inference, idempotent: bool, unannotated: Unannotated
) -> Effect:
    """Return the effect of a tool without annotations. An inferred read-only tool needs no
    approval, but its calls are not repeated."""
    if inference.kind is EffectKind.IRREVERSIBLE:
        return Effect(
            EffectLevel.IRREVERSIBLE, idempotent, "inferred", inference.reason, inference.choices
        )
    if unannotated == "confirm" and inference.kind is not EffectKind.READS:
        return Effect(EffectLevel.IRREVERSIBLE, idempotent, "default", "unannotated: confirm")
    if inference.kind is EffectKind.UNKNOWN:
        return Effect(EffectLevel.MUTATING, idempotent, "default")
    return Effect(EffectLevel.MUTATING, idempotent, "inferred", inference.reason)
