"""The danger levels of operations, and the verdict for each level and trust level."""

from __future__ import annotations

import re
from typing import Final, Literal

from interlock.core.catalog.effects import EffectLevel
from interlock.protocol.aql_terms import Category, Danger

DangerVerdict = Literal["allow", "confirm", "deny", "introspect_only"]
Trust = Literal["untested", "generated", "validated", "community_reviewed", "certified"]

TRUST_LEVELS: Final[tuple[Trust, ...]] = (
    "untested", "generated", "validated", "community_reviewed", "certified",
)  # fmt: skip
"""Trust levels in ascending order."""

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
"""Globs of local names. The highest matching level applies."""


def _compile_globs(globs: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(glob.replace("*", ".*") + r"\Z" for glob in globs))


_INTENSIFYING_PREFIXES: Final = ("force_", "bulk_")
"""Prefixes that never lower the danger of the rest of the name."""
_COMPILED: Final = {danger: _compile_globs(globs) for danger, globs in PATTERNS.items()}

_MATRIX: Final[dict[Danger, tuple[DangerVerdict, ...]]] = {
    Danger.SAFE: ("introspect_only", "allow", "allow", "allow", "allow"),
    Danger.REVERSIBLE: ("deny", "deny", "allow", "allow", "allow"),
    Danger.DESTRUCTIVE: ("deny", "deny", "confirm", "allow", "allow"),
    Danger.DANGEROUS: ("deny", "deny", "deny", "confirm", "allow"),
    Danger.FORBIDDEN: ("deny", "deny", "deny", "deny", "confirm"),
}


def danger_of_name(local: str) -> Danger | None:
    """Return the danger level that a name suggests. None: the name suggests none."""
    names = [
        local,
        *(local[len(prefix) :] for prefix in _INTENSIFYING_PREFIXES if local.startswith(prefix)),
    ]
    for danger, pattern in _COMPILED.items():
        if any(pattern.match(name) for name in (names if danger > Danger.SAFE else names[:1])):
            return danger
    return None


def classify_danger(
    local: str, category: Category, effect: EffectLevel, declared: Danger | None = None
) -> tuple[Danger, tuple[str, ...]]:
    """Return the danger level of an operation, and the reasons for it.

    A level in the config overrides everything else. Otherwise the level follows from the effect,
    like the need for approval: irreversible operations are at least `destructive`, and no other
    operations are.
    """
    if declared is not None:
        return declared, ("set in the config",)
    name_danger = danger_of_name(local)
    if effect is EffectLevel.READ_ONLY:
        return Danger.SAFE, ()
    if effect is EffectLevel.IRREVERSIBLE:
        reasons = ["its effect cannot be undone"]
        if name_danger is not None and name_danger > Danger.DESTRUCTIVE:
            reasons.append(f"its name matches the patterns of {name_danger.label} operations")
            return name_danger, tuple(reasons)
        return Danger.DESTRUCTIVE, tuple(reasons)
    if category is Category.READ:
        if name_danger is Danger.SAFE:
            return Danger.SAFE, ()
        reason = "the name suggests reading, but the server does not declare it read-only"
        return Danger.REVERSIBLE, (reason,)
    return Danger.REVERSIBLE, (f"{category.value} is reversible unless declared otherwise",)


def verdict_of(danger: Danger, trust: Trust) -> DangerVerdict:
    """Return the verdict for an operation of this level on a server with this trust."""
    return _MATRIX[danger][TRUST_LEVELS.index(trust)]
