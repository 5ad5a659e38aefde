"""Access to secrets: checked before the vault, and recorded without the value."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from interlock.drivers.processes import run
from interlock.drivers.vault import (
    MemoryBackend,
    SecretRequester,
    SecretValues,
    Vault,
    bind,
    unresolved,
)
from interlock.errors import AUTH_REQUIRED, InterlockError
from interlock.manifests import placeholders
from interlock.manifests.model import AccessEntry, AccessOperation, SecretEntry, SecretsInventory
from interlock.manifests.secret_handle import OPEN, SecretHandle, check_access
from tests.drivers.driver_world import inventory, secret
from tests.support.clock import ManualClock
from tests.support.timeouts import HANG_TIMEOUT
from tests.support.upstreams import run as on_loop

VALUE = "postgres://u:hunter2-hunter2@db/app"
TOOLS = frozenset({"db-query", "db-list"})
ASKER = SecretRequester("postgres-mcp", TOOLS, frozenset({"ops", "cap:db"}), "user-7", "nightly")


class Spy:
    """A backend that tells what it was asked for."""

    def __init__(self, **values: str) -> None:
        self.asked: list[str] = []
        self._values = {name.replace("_", "-"): value for name, value in values.items()}

    async def fetch(self, slug: str, backend: Mapping[str, Any]) -> str | None:
        self.asked.append(slug)
        return self._values.get(slug)


def access_entries(*entries: tuple[str, str]) -> tuple[AccessEntry, ...]:
    return tuple(AccessEntry(kind, value) for kind, value in entries)  # type: ignore[arg-type]


def granted_by(
    entry: SecretEntry, operation: AccessOperation, requester: SecretRequester
) -> str | None:
    result = check_access(entry, operation, requester.context)
    assert result.granted is bool(result.grant)
    return result.grant or None


def bind_secrets(
    names: list[str],
    having: SecretsInventory,
    spy: Spy,
    rows: list[dict[str, Any]],
    requester: SecretRequester = ASKER,
) -> SecretValues:
    return asyncio.run(
        bind(
            names,
            inventory=having,
            vault=Vault([spy]),
            requester=requester,
            record=rows.append,
            now=ManualClock(0.0),
        )
    )


ONES = {
    "role": ("ops", "nobody"),
    "cap": ("cap:db", "cap:none"),
    "tool": ("db-query", "fs-read"),
    "userId": ("user-7", "user-8"),
    "workflow": ("nightly", "daily"),
}


@pytest.mark.spec("DR-19.access-1")
def test_any_matching_entry_grants_access() -> None:
    """Each kind not listed, listed for who asks, or for somebody else."""
    for choice in itertools.product((None, True, False), repeat=len(ONES)):
        entries = [
            (kind, ONES[kind][0 if fits else 1])
            for kind, fits in zip(ONES, choice, strict=True)
            if fits is not None
        ]
        fitting = {f"{kind}:{value}" for kind, value in entries if ONES[kind][0] == value}
        result = granted_by(
            secret("a-key", access={"bind": access_entries(*entries)}), "bind", ASKER
        )
        # An empty list is for nobody; that is what is left of one with unknown kinds only.
        assert result in fitting if fitting else result is None


def test_unlisted_operation_is_open() -> None:
    entry = secret("a-key", access={"reveal": access_entries(("role", "admin"))})
    assert granted_by(entry, "bind", ASKER) == OPEN
    assert granted_by(entry, "reveal", ASKER) is None
    # Who has no name is nobody's user.
    entry = secret("a-key", access={"bind": access_entries(("userId", ""), ("workflow", ""))})
    assert granted_by(entry, "bind", SecretRequester("a-driver")) is None


@pytest.mark.spec("DR-19.access-2", "DR-19.reveal-2", "DR-19.reveal-3")
def test_unauthorized_requester_does_not_reach_vault() -> None:
    spy, rows = Spy(postgres_url=VALUE, a_key="v"), list[dict[str, Any]]()
    having = inventory(
        secret("a-key"),
        secret("postgres-url", access={"bind": access_entries(("tool", "fs-read"))}),
    )
    with pytest.raises(InterlockError) as error:
        bind_secrets(["A_KEY", "POSTGRES_URL"], having, spy, rows)
    assert error.value.failure is AUTH_REQUIRED
    assert "postgres-url" in error.value.message
    assert "db-list, db-query" in error.value.message
    # Not even for the one that it may have.
    assert spy.asked == []
    (row,) = rows
    assert row["type"] == "secret.reveal.denied"
    assert row["slug"] == "postgres-url"
    assert "granted_by" not in row


@pytest.mark.spec("DR-19.reveal-2", "DR-19.reveal-3")
def test_access_by_one_tool_is_granted_and_recorded() -> None:
    spy, rows = Spy(postgres_url=VALUE), list[dict[str, Any]]()
    having = inventory(
        secret("postgres-url", access={"bind": access_entries(("tool", "db-query"))})
    )
    values = bind_secrets(
        ["POSTGRES_URL", "POSTGRES_URL"], having, spy, rows, SecretRequester("pg", TOOLS)
    )
    assert values == {"POSTGRES_URL": VALUE}
    assert rows == [
        {
            "type": "secret.reveal",
            "slug": "postgres-url",
            "actor": "driver:pg",
            "purpose": "spawn",
            "context": {"operation": "bind", "driver": "pg", "tools": ["db-list", "db-query"]},
            "timestamp": "1970-01-01T00:00:00.000Z",
            "granted_by": "tool:db-query",
        }
    ]
    assert VALUE not in json.dumps(rows)
    assert bind_secrets([], having, spy, rows) == {}


def test_unrecordable_access_is_rejected() -> None:
    def record(row: dict[str, Any]) -> None:
        raise OSError("the disk is full")

    handle = SecretHandle(secret("a-key"), Vault([Spy(a_key="v")]), record)
    with pytest.raises(OSError, match="full"):
        asyncio.run(handle.reveal(ASKER.context))


def test_missing_value_error_explains_setup() -> None:
    spy, rows = Spy(), list[dict[str, Any]]()
    with pytest.raises(InterlockError) as missing:
        bind_secrets(
            ["POSTGRES_URL"], inventory(secret("postgres-url", name="The database")), spy, rows
        )
    assert missing.value.failure is AUTH_REQUIRED
    for part in ("postgres-url", "The database", "POSTGRES_URL", "interlock.yaml", "secrets:"):
        assert part in missing.value.message
    assert missing.value.data == {"secret": "postgres-url", "name": "POSTGRES_URL"}
    # Nothing was revealed.
    assert rows == []


def test_name_outside_inventories_is_error() -> None:
    with pytest.raises(InterlockError, match=r"\$\{secrets.NEVER_SEEN\} is not in an inventory"):
        bind_secrets(["NEVER_SEEN"], inventory(), Spy(), [])
    both = inventory(secret("a-key"), secret("other", env="A_KEY"))
    with pytest.raises(InterlockError, match="A_KEY is the name of a-key and other"):
        bind_secrets(["A_KEY"], both, Spy(), [])


def test_vault_error_is_one_sentence() -> None:
    vault = Vault([MemoryBackend({"gh": '{"access_token": "t0ken-old", "expires_at": 1}'})])
    handle = SecretHandle(secret("gh", kind="oauth"), vault, lambda row: None)
    with pytest.raises(InterlockError, match=r"gh is not available: .* sign in again") as error:
        asyncio.run(handle.reveal(ASKER.context))
    assert "t0ken-old" not in error.value.message


@pytest.mark.spec("DR-19.binding-4")
def test_handle_exposes_metadata_and_reveals_value() -> None:
    rows: list[dict[str, Any]] = []
    entry = secret(
        "billing/stripe-api-key",
        kind="opaque",
        access={
            "reveal": access_entries(("role", "ops")),
            "rotate": access_entries(("role", "admin")),
        },
        retention="P7Y",
        pii=True,
        classification=("pci",),
    )
    vault = Vault([MemoryBackend({"billing/stripe-api-key": VALUE})])
    handle = SecretHandle(entry, vault, rows.append)
    assert handle.slug == "billing/stripe-api-key"
    assert handle.namespace == "billing"
    assert handle.kind == "opaque"
    assert handle.access is entry.access
    assert handle.audit == {"retention": "P7Y", "pii": True, "classification": ["pci"]}
    assert handle.check_access("reveal", ASKER.context)
    assert not handle.check_access("rotate", ASKER.context)
    assert asyncio.run(handle.reveal(ASKER.context, purpose="a test")) == VALUE
    (row,) = rows
    assert (row["granted_by"], row["purpose"], row["actor"]) == ("role:ops", "a test", "user-7")
    with pytest.raises(InterlockError):
        asyncio.run(handle.reveal(ASKER.context, operation="rotate"))
    assert rows[1]["type"] == "secret.reveal.denied"
    assert VALUE not in repr(handle)


def test_unresolved_lists_unavailable_names() -> None:
    spy = Spy(a_key="v", b_key="v")
    having = inventory(
        secret("a-key"),
        secret("b-key", access={"bind": access_entries(("tool", "other"))}),
        secret("c-key"),
        secret("d-key", env="TWICE"),
        secret("e-key", env="TWICE"),
    )
    names = ["A_KEY", "B_KEY", "C_KEY", "TWICE", "UNKNOWN", "A_KEY"]
    left = asyncio.run(unresolved(names, inventory=having, vault=Vault([spy]), requester=ASKER))
    assert left == ["B_KEY", "C_KEY", "TWICE", "UNKNOWN"]
    assert "b-key" not in spy.asked


def test_repr_shows_names_only() -> None:
    values = SecretValues({"A_KEY": VALUE})
    assert values["A_KEY"] == VALUE
    for shown in (repr(values), str(values), f"{values}", f"{[values]}", "%s" % values):  # noqa: UP031
        assert VALUE not in shown
        assert "A_KEY" in shown


@pytest.mark.spec("DR-32.server-6", "DR-19.reveal-1")
def test_only_child_process_receives_value(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a manifest's env to the environment of a real process."""
    caplog.set_level(logging.DEBUG)
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.chdir(tmp_path)
    rows: list[dict[str, Any]] = []
    declared = {"DATABASE_URL": "${secrets.POSTGRES_URL}?ssl=1", "PLAIN": "$${kept}"}
    having: SecretsInventory = inventory(secret("postgres-url"))

    async def main() -> None:
        names = {
            name for text in declared.values() for name in placeholders.find_secret_names(text)
        }
        values = await bind(
            names,
            inventory=having,
            vault=Vault([MemoryBackend({"postgres-url": VALUE})]),
            requester=ASKER,
            record=rows.append,
        )
        env = {
            name: placeholders.fill_placeholders(text, values) for name, text in declared.items()
        }
        ran = await run(["env"], env=env, cwd=None, timeout=HANG_TIMEOUT)
        assert f"DATABASE_URL={VALUE}?ssl=1" in ran.out.splitlines()
        assert "PLAIN=${kept}" in ran.out.splitlines()
        logging.getLogger("interlock.drivers").debug("%s %s %s", ran, values, having)

    on_loop(main)
    assert VALUE not in caplog.text
    assert VALUE not in repr(rows)
    assert "POSTGRES_URL" not in os.environ
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or VALUE.encode() not in path.read_bytes()


def test_inventory_entry_has_no_value() -> None:
    assert not {"value", "plaintext", "token"} & set(SecretEntry.__struct_fields__)
