"""Names of secrets: slugs, environment names, and ambiguous names."""

from __future__ import annotations

import pytest

from interlock.core.config.problems import InvalidValueError
from interlock.manifests.model import SecretsInventory
from interlock.manifests.secret_names import (
    default_name,
    default_slug,
    find_entry,
    unambiguous_names,
    variable_name,
)
from interlock.manifests.secrets_reader import read_inventory
from tests.manifests.texts import secret_values, secrets_text


def slug_for(name: str, inventory: SecretsInventory) -> str:
    """Return the slug of a name, which both lookups must find."""
    entry = find_entry(name, inventory)
    slug = "" if entry is None else entry.slug
    assert unambiguous_names(inventory).get(name, "") == slug
    return slug


@pytest.mark.spec("DR-19.binding-1")
@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("STRIPE_API_KEY", "stripe-api-key"),
        ("ACME", "acme"),
        ("A_1_B", "a-1-b"),
    ],
)
def test_converts_name_to_slug(name: str, slug: str) -> None:
    assert default_slug(name) == slug
    assert default_name(slug) == name
    inventory = read_inventory(secrets_text(secret_values(slug=slug)))
    assert variable_name(inventory.entries[slug]) == name
    assert slug_for(name, inventory) == slug
    assert slug_for(f"{name}_X", inventory) == ""


@pytest.mark.spec("DR-19.binding-1")
def test_secret_may_define_environment_names() -> None:
    inventory = read_inventory(
        secrets_text(
            secret_values(
                slug="postgres-url", metadata={"bindings": {"env": ["DATABASE_URL", "PG_URL"]}}
            ),
            secret_values(slug="acme", exposures=[{"kind": "env", "name": "ACME_API_KEY"}]),
            secret_values(slug="crm/hub-token"),
            secret_values(slug="aa/twice"),
            secret_values(slug="bb/twice"),
            secret_values(slug="bb/acme"),
            secret_values(slug="cc/acme-api-key"),
        )
    )
    assert {name: slug_for(name, inventory) for name in (
        "DATABASE_URL", "PG_URL", "POSTGRES_URL", "ACME_API_KEY", "CRM_HUB_TOKEN", "HUB_TOKEN",
        "AA_TWICE", "BB_TWICE", "TWICE", "ACME", "CC_ACME_API_KEY",
    )} == {
        "DATABASE_URL": "postgres-url",
        "PG_URL": "postgres-url",
        # What it says takes the place of the rule.
        "POSTGRES_URL": "",
        "ACME_API_KEY": "acme",
        "CRM_HUB_TOKEN": "crm/hub-token",
        # Without its namespace where nobody else could be meant.
        "HUB_TOKEN": "crm/hub-token",
        "AA_TWICE": "aa/twice",
        "BB_TWICE": "bb/twice",
        "TWICE": "",
        "ACME": "bb/acme",
        "CC_ACME_API_KEY": "cc/acme-api-key",
    }  # fmt: skip
    entry = inventory.entries["postgres-url"]
    assert entry.env_names == ("DATABASE_URL", "PG_URL")
    assert variable_name(entry) == "DATABASE_URL"


def test_ambiguous_name_matches_no_secret() -> None:
    both = [
        secret_values(slug="a-key"),
        secret_values(slug="other", metadata={"bindings": {"env": "A_KEY"}}),
    ]
    inventory = read_inventory(secrets_text(*both))
    with pytest.raises(InvalidValueError, match="A_KEY is the name of a-key and other"):
        find_entry("A_KEY", inventory)
    assert unambiguous_names(inventory) == {}
