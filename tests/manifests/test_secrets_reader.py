"""SECRETS.md: its entries, access rules, and no values (AIP-19)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from interlock.core.config.problems import ConfigError
from interlock.manifests.model import AccessEntry, SecretEntry
from interlock.manifests.secrets_reader import parse_inventory, read_inventory
from tests.manifests.texts import GONE, secret_values, secrets_text, text_of, write

FILE = Path(".secrets/SECRETS.md")


def paths(*secrets: dict[str, Any]) -> set[str]:
    reading = parse_inventory(secrets_text(*secrets), FILE)
    assert (reading.value is None) == bool(reading.problems)
    return {problem.path for problem in reading.problems}


def read_entry(**changes: Any) -> SecretEntry:
    (entry,) = read_inventory(secrets_text(secret_values(**changes))).entries.values()
    return entry


@pytest.mark.spec("DR-19.inventory-1")
@pytest.mark.parametrize(
    "key", ["value", "plaintext", "ciphertext", "secret", "data", "key", "token"]
)
@pytest.mark.parametrize("place", ["entry", "metadata", "backend"])
def test_rejects_value_keys_by_name(key: str, place: str) -> None:
    secret = "hunter2hunter2"
    changes = {key: secret} if place == "entry" else {place: {"deep": {key: secret}}}
    reading = parse_inventory(secrets_text(secret_values(**changes)), FILE)
    (problem,) = reading.problems
    assert problem.path.endswith(f".{key}")
    assert f"{key} is not allowed" in problem.message
    assert problem.line > 1
    assert secret not in str(problem)


@pytest.mark.spec("DR-19.inventory-1")
def test_rejects_secret_text_without_repeating_it() -> None:
    secret = "ghp_0123456789abcdefghijABCDEFGHIJ"
    reading = parse_inventory(secrets_text(secret_values(description=f"It is {secret}.")), FILE)
    (problem,) = reading.problems
    assert problem.path == "secrets[0].description"
    assert secret not in str(problem)


@pytest.mark.spec("DR-19.inventory-2")
@pytest.mark.parametrize("name", ["slug", "name", "description"])
def test_requires_mandatory_fields(name: str) -> None:
    (problem,) = parse_inventory(secrets_text(secret_values(**{name: GONE})), FILE).problems
    assert problem.message == f"{name} is missing"


@pytest.mark.spec("DR-19.inventory-2")
@pytest.mark.parametrize(
    ("slug", "fine"),
    [
        ("ab", True),
        ("stripe-api-key", True),
        ("crm/hubspot-oauth-token", True),
        ("a" * 80, True),
        ("a", False),
        ("a" * 81, False),
        ("-ab", False),
        ("ab-", False),
        ("Ab", False),
        ("a_b", False),
        ("a/b/cd", False),
        ("1ab", False),
    ],
)
def test_checks_slugs(slug: str, fine: bool) -> None:
    assert (paths(secret_values(slug=slug)) == set()) is fine


@pytest.mark.spec("DR-19.inventory-2")
def test_reads_optional_fields() -> None:
    assert read_entry().kind == "opaque"
    for kind in ("opaque", "oauth", "keypair", "json"):
        assert read_entry(kind=kind).kind == kind
    assert paths(secret_values(kind="password")) == {"secrets[0].kind"}
    assert read_entry(backend="vault://kv/acme").backend == {"uri": "vault://kv/acme"}
    assert read_entry(backend={"driver": "kv"}).backend == {"driver": "kv"}
    assert paths(secret_values(backend="kv/acme")) == {"secrets[0].backend"}
    assert read_entry(tags=["finance"]).tags == ("finance",)
    assert read_entry(metadata={"a": {"b": 1}}).metadata == {"a": {"b": 1}}
    assert paths(secret_values(owner="x")) == {"secrets[0].owner"}


@pytest.mark.spec("DR-19.inventory-3")
def test_rejects_duplicate_slug() -> None:
    text = secrets_text(secret_values(), secret_values(name="Other"))
    (problem,) = parse_inventory(text, FILE).problems
    assert "acme-api-key is already listed on line" in problem.message


@pytest.mark.spec("DR-19.inventory-4")
@pytest.mark.parametrize(
    ("retention", "fine"),
    [
        ("P7Y", True),
        ("7y", True),
        ("90d", True),
        ("P1Y6M", True),
        ("PT12H", True),
        ("12h", True),
        ("P", False),
        ("7 years", False),
        ("y", False),
        ("7x", False),
    ],
)
def test_checks_retention(retention: str, fine: bool) -> None:
    assert (paths(secret_values(audit={"retention": retention})) == set()) is fine


@pytest.mark.spec("DR-19.inventory-4")
def test_reads_audit_and_exposures() -> None:
    plain = read_entry()
    assert (plain.retention, plain.pii, plain.classification) == ("", False, ())
    whole = read_entry(audit={"retention": "P7Y", "pii": True, "classification": ["restricted"]})
    assert (whole.retention, whole.pii, whole.classification) == ("P7Y", True, ("restricted",))
    assert paths(secret_values(audit={"pii": "yes"})) == {"secrets[0].audit.pii"}
    assert paths(secret_values(audit={"keep": "7y"})) == {"secrets[0].audit.keep"}
    shown = read_entry(
        exposures=[
            {"kind": "foo", "anything": 1},
            {"kind": "file", "path": "x"},
            {"kind": "env", "name": "ACME"},
            {"kind": "egress-substitute"},
        ]
    )
    assert shown.env == "ACME"


@pytest.mark.spec("DR-19.access-1")
def test_reads_access_rules() -> None:
    entry = read_entry(
        access={
            "reveal": [{"role": "admin"}, {"userId": "u1"}, {"team": "x"}],
            "bind": [{"tool": "db-query"}, {"workflow": "w"}, {"cap": "cap://secret/x"}],
            "rotate": [],
        }
    )
    assert entry.access == {
        "reveal": (AccessEntry("role", "admin"), AccessEntry("userId", "u1")),
        "bind": (
            AccessEntry("tool", "db-query"),
            AccessEntry("workflow", "w"),
            AccessEntry("cap", "cap://secret/x"),
        ),
        "rotate": (),
    }
    for grant in ({"role": "a", "tool": "b"}, {}):
        reading = parse_inventory(secrets_text(secret_values(access={"bind": [grant]})), FILE)
        (problem,) = reading.problems
        assert problem.path == "secrets[0].access.bind[0]"
        assert "exactly one of role" in problem.hint
    assert paths(secret_values(access={"read": []})) == {"secrets[0].access.read"}


@pytest.mark.parametrize(
    "text", [text_of({"secrets": []}), text_of({"secret": []}), text_of({"secrets": "x"})]
)
def test_rejects_inventory_without_list(text: str) -> None:
    with pytest.raises(ConfigError):
        read_inventory(text)


def test_reads_file_with_lines(tmp_path: Path) -> None:
    path = write(tmp_path / "SECRETS.md", secrets_text(secret_values(), secret_values(slug="x-y")))
    result = read_inventory(path)
    assert [entry.line for entry in result.entries.values()] == [3, 6]
    with pytest.raises(ConfigError, match="no such file"):
        read_inventory(tmp_path / "none.md")
