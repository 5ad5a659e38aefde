"""What a secret is called where slugs cannot stand: `${secrets.NAME}`, an environment variable.

A secret that says which variables it is bound to has those names and no other. Any other has the
name of its slug, and also without its namespace where nobody else could be meant.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Final

from interlock.core.config.problems import BadValue
from interlock.manifests.model import SecretEntry, SecretsInventory

_NO_NAME: Final = re.compile(r"[^A-Z0-9]")


def default_slug(name: str) -> str:
    """`STRIPE_API_KEY` → `stripe-api-key`."""
    return name.lower().replace("_", "-")


def default_name(slug: str) -> str:
    """`stripe-api-key` → `STRIPE_API_KEY`."""
    return _NO_NAME.sub("_", slug.upper())


def variable_of(entry: SecretEntry) -> str:
    """The environment variable that a secret is bound to: as its inventory says, else by rule."""
    return entry.env or default_name(entry.slug)


def entry_named(name: str, inventory: SecretsInventory) -> SecretEntry | None:
    """The secret that `${secrets.NAME}` means. Raises BadValue when it could be two."""
    slugs = _bound(inventory).get(name, ())
    if len(slugs) > 1:
        raise BadValue(
            f"{name} stands for {' and '.join(sorted(slugs))}", "give one of them another variable"
        )
    return inventory.entries[slugs[0]] if slugs else None


def names_of_secrets(inventory: SecretsInventory) -> dict[str, str]:
    """Every name that means one secret, and the slug behind it."""
    return {name: slugs[0] for name, slugs in _bound(inventory).items() if len(slugs) == 1}


def double_claims(
    entries: Iterable[SecretEntry],
) -> dict[int, list[tuple[str, SecretEntry]]]:
    """Which entries claim a slug or a variable that one of another file claims, too: by `id` of the
    entry, what it is and who else."""
    claims: dict[str, list[SecretEntry]] = {}
    for entry in entries:
        variables = {variable_of(entry), *entry.env_names}
        for claim in (entry.slug, *(f"the variable {one}" for one in sorted(variables))):
            claims.setdefault(claim, []).append(entry)
    found: dict[int, list[tuple[str, SecretEntry]]] = {}
    for claim, claimants in claims.items():
        for entry in claimants:
            other = next((one for one in claimants if one.file != entry.file), None)
            if other is not None:
                found.setdefault(id(entry), []).append((claim, other))
    return found


def _bound(inventory: SecretsInventory) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    short: dict[str, str] = {}
    for slug, entry in inventory.entries.items():
        own = dict.fromkeys(one for one in (entry.env, *entry.env_names) if one)
        for name in own or (default_name(slug),):
            found[name] = (*found.get(name, ()), slug)
        if not own and "/" in slug:
            short[slug] = default_name(slug.rpartition("/")[2])
    times = Counter(short.values())
    for slug, name in short.items():
        if times[name] == 1:
            found.setdefault(name, (slug,))
    return found
