"""Vaults: one suite for every backend, the rule of names, and refreshed tokens."""

from __future__ import annotations

import asyncio
import json
import logging
import string
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.core.config.secrets import resolve
from interlock.drivers.vault import (
    ConfigBackend,
    EnvFileBackend,
    EnvironmentBackend,
    MemoryBackend,
    Vault,
    VaultError,
    entry_named,
    read_env_file,
)
from interlock.manifests.definitions import define_secret
from interlock.manifests.model import SecretEntry
from interlock.manifests.secret_handle import SecretBackend, fetch_value
from interlock.manifests.secret_names import variable_name
from tests.drivers.driver_world import inventory, secret
from tests.support.clock import ManualClock

VALUE = "s3cr3t-value-of-stripe"
NEWER = "s3cr3t-value-rotated"

Change = Callable[[str, str], None]
Made = tuple[SecretBackend, Change]


def in_memory(tmp_path: Path) -> Made:
    values: dict[str, str] = {}
    return MemoryBackend(values), values.__setitem__


def environment(tmp_path: Path) -> Made:
    environ: dict[str, str] = {"PATH": "/bin"}

    def change(slug: str, value: str) -> None:
        environ[slug.upper().replace("-", "_")] = value

    return EnvironmentBackend(["STRIPE_*", "*_KEY"], environ), change


def env_file(tmp_path: Path) -> Made:
    path, lines = tmp_path / "secrets.env", ["# of the tests", ""]

    def change(slug: str, value: str) -> None:
        lines.append(f'{slug.upper().replace("-", "_")}="{value}"')
        path.write_text("\n".join(lines), encoding="utf-8")
        path.chmod(0o600)

    return EnvFileBackend(path), change


def configured(tmp_path: Path) -> Made:
    references: dict[str, str] = {}

    def change(slug: str, value: str) -> None:
        (tmp_path / slug).write_text(value, encoding="utf-8")
        references[slug] = f"${{file:{slug}}}"

    return ConfigBackend(
        references, lambda text: resolve(text, environ={}, base_dir=tmp_path)
    ), change


BACKENDS = [in_memory, environment, env_file, configured]


@pytest.fixture(params=BACKENDS, ids=lambda one: one.__name__)
def backend_and_change(request: pytest.FixtureRequest, tmp_path: Path) -> Made:
    result: Made = request.param(tmp_path)
    return result


def fetch_secret(backend: SecretBackend, slug: str) -> str | None:
    return asyncio.run(fetch_value(backend, secret(slug)))


# -- every backend


@pytest.mark.spec("DR-19.binding-4")
def test_finds_stored_value_only(backend_and_change: Made) -> None:
    backend, change = backend_and_change
    assert fetch_secret(backend, "stripe-api-key") is None
    change("stripe-api-key", VALUE)
    assert fetch_secret(backend, "stripe-api-key") == VALUE
    assert fetch_secret(backend, "stripe") is None
    assert fetch_secret(backend, "github-token") is None
    known = {"name": "Key", "description": "Of Stripe."}
    handle = define_secret(known, slug="stripe-api-key", vault=backend, record=lambda row: None)
    assert asyncio.run(handle.reveal({})) == VALUE


@pytest.mark.spec("DR-19.reveal-1")
def test_values_are_neither_cached_nor_printed(
    backend_and_change: Made, caplog: pytest.LogCaptureFixture
) -> None:
    backend, change = backend_and_change
    caplog.set_level(logging.DEBUG)
    vault = Vault([backend])
    entry = secret("stripe-api-key")
    change("stripe-api-key", VALUE)
    assert asyncio.run(vault.value(entry)) == VALUE
    change("stripe-api-key", NEWER)
    assert asyncio.run(vault.value(entry)) == NEWER
    for shown in (repr(vault), repr(backend), str(backend), caplog.text):
        assert VALUE not in shown
        assert NEWER not in shown
    assert VALUE not in repr(vars(vault))
    assert NEWER not in repr(vars(vault))


def test_empty_value_is_missing(backend_and_change: Made) -> None:
    backend, change = backend_and_change
    change("stripe-api-key", "")
    assert fetch_secret(backend, "stripe-api-key") is None
    assert asyncio.run(Vault([backend]).has(secret("stripe-api-key"))) is False


def test_backends_are_asked_in_order() -> None:
    first, second = (
        MemoryBackend({"a-key": "one"}),
        MemoryBackend({"a-key": "two", "b-key": "three"}),
    )
    vault = Vault([first, second])
    assert asyncio.run(vault.value(secret("a-key"))) == "one"
    assert asyncio.run(vault.value(secret("b-key"))) == "three"
    assert asyncio.run(vault.value(secret("c-key"))) is None


def test_backend_receives_inventory_fields() -> None:
    messages: list[tuple[str, Mapping[str, Any]]] = []

    class Spy:
        async def fetch(self, slug: str, backend: Mapping[str, Any]) -> str | None:
            messages.append((slug, backend))
            return None

    entry = secret("pay/stripe-api-key", backend={"kind": "hsm", "path": "kv/1"}, env="STRIPE")
    assert asyncio.run(Vault([Spy()]).value(entry)) is None
    assert messages == [("pay/stripe-api-key", {"kind": "hsm", "path": "kv/1", "env": "STRIPE"})]


def test_environment_backend_reads_allowed_variables() -> None:
    environ = {"SHOP_KEY": "one", "SHOP_ID": "two", "DATABASE_PASSWORD": "three"}
    for allowed, there in (
        ([], []),
        (["SHOP_KEY"], ["shop-key"]),
        (["SHOP_*"], ["shop-key", "shop-id"]),
        (["shop_*", "SHOP", "KEY"], []),
    ):
        backend = EnvironmentBackend(allowed, environ)
        actual = [item for item in ("shop-key", "shop-id", "database-password")
                 if fetch_secret(backend, item)]  # fmt: skip
        assert actual == there


# -- names


@pytest.mark.spec("DR-19.binding-1")
@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("STRIPE_API_KEY", secret("stripe-api-key")),
        ("KEY2", secret("key2")),
        ("POSTGRES_URL", secret("postgres-url")),
        ("BILLING_STRIPE_API_KEY", secret("billing/stripe-api-key")),
        # An exposure, or metadata.bindings.env, says otherwise.
        ("GITHUB_TOKEN", secret("github-oauth-access-token", env="GITHUB_TOKEN")),
    ],
)
def test_secret_is_found_by_variable_name(name: str, entry: SecretEntry) -> None:
    listing = inventory(entry, secret("something-else"))
    assert variable_name(entry) == name
    assert entry_named(name, listing) is entry
    assert entry_named(f"{name}_NOT", listing) is None
    environ = {name: VALUE}
    assert asyncio.run(Vault([EnvironmentBackend([name], environ)]).value(entry)) == VALUE


@pytest.mark.spec("DR-19.binding-1")
def test_env_binding_overrides_name_rule() -> None:
    listing = inventory(secret("github-oauth-access-token", env="GITHUB_TOKEN"))
    assert entry_named("GITHUB_OAUTH_ACCESS_TOKEN", listing) is None
    several = inventory(secret("db", env="DATABASE_URL", env_names=("DATABASE_URL", "PG_URL")))
    assert entry_named("PG_URL", several) is several.entries["db"]


def test_rejects_ambiguous_name() -> None:
    listing = inventory(secret("a-key"), secret("other", env="A_KEY"))
    with pytest.raises(VaultError, match="A_KEY is the name of a-key and other"):
        entry_named("A_KEY", listing)


# -- files of variables


def test_parses_common_env_file_lines() -> None:
    text = "\n".join(
        [
            "# a comment",
            "PLAIN=value",
            "export EXPORTED=yes",
            " SPACED = around ",
            'DOUBLE="two words"',
            "SINGLE='it # stays'",
            "URL=postgres://u:p@h/db?a=b",
            "EMPTY=",
            'HALF="open',
            "TWICE=first",
            "TWICE=second",
            "no line of ours",
            "9DIGIT=no",
            "WINDOWS=line\r",
        ]
    )
    assert read_env_file(text) == {
        "PLAIN": "value",
        "EXPORTED": "yes",
        "SPACED": "around",
        "DOUBLE": "two words",
        "SINGLE": "it # stays",
        "URL": "postgres://u:p@h/db?a=b",
        "EMPTY": "",
        "HALF": '"open',
        "TWICE": "second",
        "WINDOWS": "line",
    }
    assert read_env_file("") == {}


names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,20}", fullmatch=True)
values = st.text(alphabet=string.printable.replace("\n", "").replace("\r", "") + "äß€")


@given(st.dictionaries(names, values))
def test_quoted_values_are_read_unchanged(given_values: dict[str, str]) -> None:
    text = "".join(f'{name}="{value}"\n' for name, value in given_values.items())
    assert read_env_file(text) == given_values


@given(st.text())
def test_arbitrary_text_is_readable(text: str) -> None:
    for name, value in read_env_file(text).items():
        assert "\n" not in value
        assert name.isidentifier()


def test_warns_once_about_readable_secret_file(tmp_path: Path) -> None:
    path, warned = tmp_path / "secrets.env", list[str]()
    path.write_text(f"A_KEY={VALUE}\n", encoding="utf-8")
    path.chmod(0o644)
    backend = EnvFileBackend(path, warn=warned.append)
    assert fetch_secret(backend, "a-key") == VALUE
    assert fetch_secret(backend, "a-key") == VALUE
    (warning,) = warned
    assert f"chmod 600 {path}" in warning
    assert VALUE not in warning


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"A_KEY=\xff\n", "is not UTF-8"), (b"#" * (1024 * 1024 + 1), "larger than 1 MiB")],
)
def test_rejects_invalid_secret_file(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "secrets.env"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(VaultError, match=reason):
        fetch_secret(EnvFileBackend(path), "a-key")


def test_rejects_folder_as_secret_file(tmp_path: Path) -> None:
    with pytest.raises(VaultError, match="cannot be read"):
        fetch_secret(EnvFileBackend(tmp_path), "a-key")


def test_unresolved_reference_names_variable(tmp_path: Path) -> None:
    backend = ConfigBackend(
        {"a-key": "${env:NOT_SET_ANYWHERE}"},
        lambda text: resolve(text, environ={}, base_dir=tmp_path),
    )
    with pytest.raises(VaultError, match=r"drivers\.secrets\.a-key: .*NOT_SET_ANYWHERE"):
        fetch_secret(backend, "a-key")


# -- sign-ins


def grant(token: str, **more: Any) -> str:
    return json.dumps({"access_token": token, "refresh_token": "r3fresh-token", **more})


def oauth_vault(
    kept: str, clock: ManualClock, renewed: str | None = None
) -> tuple[Vault, list[Any]]:
    requests: list[Any] = []

    async def renew(entry: SecretEntry, said: Mapping[str, Any]) -> str:
        requests.append((entry.slug, dict(said)))
        return renewed or ""

    given_renew = None if renewed is None else renew
    return Vault([MemoryBackend({"gh": kept})], renew=given_renew, now=clock), requests


GH = secret("gh", kind="oauth")


@pytest.mark.parametrize(
    "token",
    [
        grant("t0ken-of-now"),
        grant("t0ken-of-now", expires_at=1_000_001),
        grant("t0ken-of-now", expiresAt=1_000_001_000_000),
        grant("t0ken-of-now", expiresAt="2999-01-01T00:00:00Z"),
        json.dumps({"accessToken": "t0ken-of-now", "expires_at": None}),
        # A bare token, as some put it.
        "t0ken-of-now",
    ],
)
def test_valid_token_is_not_refreshed(token: str) -> None:
    vault, asked = oauth_vault(token, ManualClock(1_000_000.0), renewed="another")
    assert asyncio.run(vault.value(GH)) == "t0ken-of-now"
    assert asked == []


@pytest.mark.spec("DR-19.binding-2")
@pytest.mark.parametrize(
    "moment",
    [{"expires_at": 999_999}, {"expiresAt": 1_000_000}, {"expiresAt": "1970-01-12T13:46:39Z"},
     {"expires_at": "1970-01-12T13:46:39"}],
)  # fmt: skip
def test_expired_token_is_refreshed(moment: dict[str, Any]) -> None:
    kept = grant("t0ken-of-old", **moment)
    vault, asked = oauth_vault(kept, ManualClock(1_000_000.0), renewed=grant("t0ken-of-now"))
    assert asyncio.run(vault.value(GH)) == "t0ken-of-now"
    ((slug, said),) = asked
    assert slug == "gh"
    assert said["refresh_token"] == "r3fresh-token"
    # A bare token will do.
    vault, _ = oauth_vault(kept, ManualClock(1_000_000.0), renewed="t0ken-of-now")
    assert asyncio.run(vault.value(GH)) == "t0ken-of-now"


def test_expired_token_without_refresh_is_error() -> None:
    kept = grant("t0ken-of-old", expires_at=1)
    vault, _ = oauth_vault(kept, ManualClock(1_000_000.0))
    with pytest.raises(VaultError, match="token of gh has expired: sign in again") as error:
        asyncio.run(vault.value(GH))
    assert "t0ken" not in str(error.value)
    vault, _ = oauth_vault(
        kept, ManualClock(1_000_000.0), renewed=grant("t0ken-of-old", expires_at=2)
    )
    with pytest.raises(VaultError, match="so has the renewed token"):
        asyncio.run(vault.value(GH))
    # Whether there is one at all does not renew anything.
    vault, asked = oauth_vault(kept, ManualClock(1_000_000.0), renewed="x")
    assert asyncio.run(vault.has(GH))
    assert asked == []


def test_other_kinds_are_returned_unchanged() -> None:
    text = grant("inside", expires_at=1)
    vault = Vault([MemoryBackend({"gh": text})])
    for kind in ("opaque", "json", "keypair"):
        assert asyncio.run(vault.value(secret("gh", kind=kind))) == text
