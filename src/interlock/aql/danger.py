"""Danger levels of operations, and the approval that each needs at a level of trust."""

from __future__ import annotations

import re
from typing import Final, Literal

from interlock.core.catalog.effects import EffectLevel
from interlock.protocol.aql_terms import Category, Danger

DangerVerdict = Literal["allow", "confirm", "deny", "introspect_only"]
Trust = Literal["untested", "generated", "validated", "community_reviewed", "certified"]

TRUST: Final[tuple[Trust, ...]] = (
    "untested", "generated", "validated", "community_reviewed", "certified",
)  # fmt: skip
"""In rising order."""

PATTERNS: Final[dict[Danger, tuple[str, ...]]] = {
    Danger.FORBIDDEN: (
        "drop_*", "delete_all*", "truncate_*", "reset_*", "destroy_*", "wipe_*", "*_production",
    ),
    Danger.DANGEROUS: (
        "force_*", "*_permanently", "bulk_delete*", "override_*", "bypass_*", "*_without_backup",
        "purge_*",
    ),
    Danger.SAFE: ("get_*", "list_*", "search_*", "count_*", "check_*", "introspect*"),
}  # fmt: skip
"""Of local names. The highest that fits counts."""


def _one(globs: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(glob.replace("*", ".*") + r"\Z" for glob in globs))


_STRONGER: Final = ("force_", "bulk_")
"""In front of another name they make it no better."""
_COMPILED: Final = {danger: _one(globs) for danger, globs in PATTERNS.items()}

_MATRIX: Final[dict[Danger, tuple[DangerVerdict, ...]]] = {
    Danger.SAFE: ("introspect_only", "allow", "allow", "allow", "allow"),
    Danger.REVERSIBLE: ("deny", "deny", "allow", "allow", "allow"),
    Danger.DESTRUCTIVE: ("deny", "deny", "confirm", "allow", "allow"),
    Danger.DANGEROUS: ("deny", "deny", "deny", "confirm", "allow"),
    Danger.FORBIDDEN: ("deny", "deny", "deny", "deny", "confirm"),
}


def by_name(local: str) -> Danger | None:
    """What a name alone says. None: nothing."""
    names = [local, *(local[len(word) :] for word in _STRONGER if local.startswith(word))]
    for danger, pattern in _COMPILED.items():
        if any(pattern.match(name) for name in (names if danger > Danger.SAFE else names[:1])):
            return danger
    return None


def level(
    local: str, category: Category, effect: EffectLevel, declared: Danger | None = None
) -> tuple[Danger, tuple[str, ...]]:
    """The level of an operation, and the reasons for it. What the config declares decides alone.

    It follows from the effect, as everything that waits for approval does: from `destructive` on
    is what is irreversible, and nothing else.
    """
    if declared is not None:
        return declared, ("declared in the config",)
    named = by_name(local)
    if effect is EffectLevel.READ_ONLY:
        return Danger.SAFE, ()
    if effect is EffectLevel.IRREVERSIBLE:
        reasons = ["what it does cannot be undone"]
        if named is not None and named > Danger.DESTRUCTIVE:
            reasons.append(f"its name is one of {named.label} operations")
            return named, tuple(reasons)
        return Danger.DESTRUCTIVE, tuple(reasons)
    if category is Category.READ:
        if named is Danger.SAFE:
            return Danger.SAFE, ()
        why = "reads by its name, but its server does not say that it only does"
        return Danger.REVERSIBLE, (why,)
    return Danger.REVERSIBLE, (f"{category.value} is reversible unless something else is known",)


def matrix(danger: Danger, trust: Trust) -> DangerVerdict:
    """What may be done with an operation of this level on a server so trusted."""
    return _MATRIX[danger][TRUST.index(trust)]
