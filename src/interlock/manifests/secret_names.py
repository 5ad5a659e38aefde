"""Names of secrets in `${secrets.NAME}` and in environment variables.

A secret that declares its variables has those names only. Any other secret has the name of its slug
and, if that is unambiguous, the name without its namespace.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Final

from interlock.core.config.problems import InvalidValueError
from interlock.manifests.model import SecretEntry, SecretsInventory

_NO_NAME: Final = re.compile(r"[^A-Z0-9]")


def default_slug(name: str) -> str:
    """`STRIPE_API_KEY` → `stripe-api-key`."""
    return name.lower().replace("_", "-")


def default_name(slug: str) -> str:
    """`stripe-api-key` → `STRIPE_API_KEY`."""
    return _NO_NAME.sub("_", slug.upper())


def variable_name(entry: SecretEntry) -> str:
    """Return the environment variable of a secret: as its inventory declares, or by its slug."""
    return entry.env or default_name(entry.slug)


def find_entry(name: str, inventory: SecretsInventory) -> SecretEntry | None:
    """Return the secret for `${secrets.NAME}`. Raises InvalidValueError for an ambiguous name."""
    slugs = _slugs_by_name(inventory).get(name, ())
    if len(slugs) > 1:
        raise InvalidValueError(
            f"{name} is the name of {' and '.join(sorted(slugs))}",
            "set another variable for one of them",
        )
    return inventory.entries[slugs[0]] if slugs else None


def unambiguous_names(inventory: SecretsInventory) -> dict[str, str]:
    """Return every unambiguous name, and the slug of its secret."""
    return {name: slugs[0] for name, slugs in _slugs_by_name(inventory).items() if len(slugs) == 1}


def find_conflicts(
    entries: Iterable[SecretEntry],
) -> dict[int, list[tuple[str, SecretEntry]]]:
    """Return the entries whose slug or variable is also claimed by an entry of another file: by
    `id` of the entry, the claim and the other entry."""
    claims: dict[str, list[SecretEntry]] = {}
    for entry in entries:
        variables = {variable_name(entry), *entry.env_names}
        for claim in (entry.slug, *(f"the variable {name}" for name in sorted(variables))):
            claims.setdefault(claim, []).append(entry)
    conflicts: dict[int, list[tuple[str, SecretEntry]]] = {}
    for claim, claimants in claims.items():
        for entry in claimants:
            other = next((other for other in claimants if other.file != entry.file), None)
            if other is not None:
                conflicts.setdefault(id(entry), []).append((claim, other))
    return conflicts


def _slugs_by_name(inventory: SecretsInventory) -> dict[str, tuple[str, ...]]:
    slugs: dict[str, tuple[str, ...]] = {}
    short_names: dict[str, str] = {}
    for slug, entry in inventory.entries.items():
        declared = dict.fromkeys(name for name in (entry.env, *entry.env_names) if name)
        for name in declared or (default_name(slug),):
            slugs[name] = (*slugs.get(name, ()), slug)
        if not declared and "/" in slug:
            short_names[slug] = default_name(slug.rpartition("/")[2])
    counts = Counter(short_names.values())
    for slug, name in short_names.items():
        if counts[name] == 1:
            slugs.setdefault(name, (slug,))
    return slugs
