"""Vaults: one suite for every backend, the rule of names, and sign-ins that are renewed."""

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
from tests.drivers.life_world import inventory, secret
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
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Made:
    result: Made = request.param(tmp_path)
    return result


def fetched(backend: SecretBackend, slug: str) -> str | None:
    return asyncio.run(fetch_value(backend, secret(slug)))


# -- every backend


@pytest.mark.spec("DR-19.binding-4")
def test_what_is_there_is_found_and_nothing_else(made: Made) -> None:
    backend, change = made
    assert fetched(backend, "stripe-api-key") is None
    change("stripe-api-key", VALUE)
    assert fetched(backend, "stripe-api-key") == VALUE
    assert fetched(backend, "stripe") is None
    assert fetched(backend, "github-token") is None
    known = {"name": "Key", "description": "Of Stripe."}
    handle = define_secret(known, slug="stripe-api-key", vault=backend, record=lambda row: None)
    assert asyncio.run(handle.reveal({})) == VALUE


@pytest.mark.spec("DR-19.reveal-1")
def test_nothing_is_kept_and_nothing_is_shown(made: Made, caplog: pytest.LogCaptureFixture) -> None:
    backend, change = made
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


def test_an_empty_value_is_none(made: Made) -> None:
    backend, change = made
    change("stripe-api-key", "")
    assert fetched(backend, "stripe-api-key") is None
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


def test_a_backend_is_told_what_the_inventory_says() -> None:
    heard: list[tuple[str, Mapping[str, Any]]] = []

    class Spy:
        async def fetch(self, slug: str, backend: Mapping[str, Any]) -> str | None:
            heard.append((slug, backend))
            return None

    entry = secret("pay/stripe-api-key", backend={"kind": "hsm", "path": "kv/1"}, env="STRIPE")
    assert asyncio.run(Vault([Spy()]).value(entry)) is None
    assert heard == [("pay/stripe-api-key", {"kind": "hsm", "path": "kv/1", "env": "STRIPE"})]


def test_of_the_environment_only_what_is_allowed() -> None:
    environ = {"SHOP_KEY": "one", "SHOP_ID": "two", "DATABASE_PASSWORD": "three"}
    for allowed, there in (
        ([], []),
        (["SHOP_KEY"], ["shop-key"]),
        (["SHOP_*"], ["shop-key", "shop-id"]),
        (["shop_*", "SHOP", "KEY"], []),
    ):
        backend = EnvironmentBackend(allowed, environ)
        found = [one for one in ("shop-key", "shop-id", "database-password")
                 if fetched(backend, one)]  # fmt: skip
        assert found == there


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
def test_from_a_name_to_a_secret(name: str, entry: SecretEntry) -> None:
    listed = inventory(entry, secret("something-else"))
    assert variable_name(entry) == name
    assert entry_named(name, listed) is entry
    assert entry_named(f"{name}_NOT", listed) is None
    environ = {name: VALUE}
    assert asyncio.run(Vault([EnvironmentBackend([name], environ)]).value(entry)) == VALUE


@pytest.mark.spec("DR-19.binding-1")
def test_an_override_takes_the_place_of_the_rule() -> None:
    listed = inventory(secret("github-oauth-access-token", env="GITHUB_TOKEN"))
    assert entry_named("GITHUB_OAUTH_ACCESS_TOKEN", listed) is None
    several = inventory(secret("db", env="DATABASE_URL", env_names=("DATABASE_URL", "PG_URL")))
    assert entry_named("PG_URL", several) is several.entries["db"]


def test_a_name_that_could_be_two_is_refused() -> None:
    listed = inventory(secret("a-key"), secret("other", env="A_KEY"))
    with pytest.raises(VaultError, match="A_KEY is the name of a-key and other"):
        entry_named("A_KEY", listed)


# -- files of variables


def test_lines_as_many_programs_write_them() -> None:
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
def test_what_is_written_in_quotes_is_read_as_it_was(given_values: dict[str, str]) -> None:
    text = "".join(f'{name}="{value}"\n' for name, value in given_values.items())
    assert read_env_file(text) == given_values


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    for name, value in read_env_file(text).items():
        assert "\n" not in value
        assert name.isidentifier()


def test_a_file_that_others_can_read_is_warned_of_once(tmp_path: Path) -> None:
    path, warned = tmp_path / "secrets.env", list[str]()
    path.write_text(f"A_KEY={VALUE}\n", encoding="utf-8")
    path.chmod(0o644)
    backend = EnvFileBackend(path, warn=warned.append)
    assert fetched(backend, "a-key") == VALUE
    assert fetched(backend, "a-key") == VALUE
    (warning,) = warned
    assert f"chmod 600 {path}" in warning
    assert VALUE not in warning


@pytest.mark.parametrize(
    ("content", "why"),
    [(b"A_KEY=\xff\n", "is not UTF-8"), (b"#" * (1024 * 1024 + 1), "larger than 1 MiB")],
)
def test_a_file_that_is_none(tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "secrets.env"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(VaultError, match=why):
        fetched(EnvFileBackend(path), "a-key")


def test_a_folder_instead_of_a_file(tmp_path: Path) -> None:
    with pytest.raises(VaultError, match="cannot be read"):
        fetched(EnvFileBackend(tmp_path), "a-key")


def test_a_reference_that_leads_nowhere_names_its_variable(tmp_path: Path) -> None:
    backend = ConfigBackend(
        {"a-key": "${env:NOT_SET_ANYWHERE}"},
        lambda text: resolve(text, environ={}, base_dir=tmp_path),
    )
    with pytest.raises(VaultError, match=r"drivers\.secrets\.a-key: .*NOT_SET_ANYWHERE"):
        fetched(backend, "a-key")


# -- sign-ins


def grant(token: str, **more: Any) -> str:
    return json.dumps({"access_token": token, "refresh_token": "r3fresh-token", **more})


def oauth_vault(
    kept: str, clock: ManualClock, renewed: str | None = None
) -> tuple[Vault, list[Any]]:
    asked: list[Any] = []

    async def renew(entry: SecretEntry, said: Mapping[str, Any]) -> str:
        asked.append((entry.slug, dict(said)))
        return renewed or ""

    given_renew = None if renewed is None else renew
    return Vault([MemoryBackend({"gh": kept})], renew=given_renew, now=clock), asked


GH = secret("gh", kind="oauth")


@pytest.mark.parametrize(
    "kept",
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
def test_a_token_that_has_not_ended_is_bound(kept: str) -> None:
    vault, asked = oauth_vault(kept, ManualClock(1_000_000.0), renewed="another")
    assert asyncio.run(vault.value(GH)) == "t0ken-of-now"
    assert asked == []


@pytest.mark.spec("DR-19.binding-2")
@pytest.mark.parametrize(
    "moment",
    [{"expires_at": 999_999}, {"expiresAt": 1_000_000}, {"expiresAt": "1970-01-12T13:46:39Z"},
     {"expires_at": "1970-01-12T13:46:39"}],
)  # fmt: skip
def test_one_that_has_ended_is_renewed_and_the_new_one_bound(moment: dict[str, Any]) -> None:
    kept = grant("t0ken-of-old", **moment)
    vault, asked = oauth_vault(kept, ManualClock(1_000_000.0), renewed=grant("t0ken-of-now"))
    assert asyncio.run(vault.value(GH)) == "t0ken-of-now"
    ((slug, said),) = asked
    assert slug == "gh"
    assert said["refresh_token"] == "r3fresh-token"
    # A bare token will do.
    vault, _ = oauth_vault(kept, ManualClock(1_000_000.0), renewed="t0ken-of-now")
    assert asyncio.run(vault.value(GH)) == "t0ken-of-now"


def test_one_that_has_ended_and_cannot_be_renewed() -> None:
    kept = grant("t0ken-of-old", expires_at=1)
    vault, _ = oauth_vault(kept, ManualClock(1_000_000.0))
    with pytest.raises(VaultError, match="token of gh has expired: sign in again") as trouble:
        asyncio.run(vault.value(GH))
    assert "t0ken" not in str(trouble.value)
    vault, _ = oauth_vault(
        kept, ManualClock(1_000_000.0), renewed=grant("t0ken-of-old", expires_at=2)
    )
    with pytest.raises(VaultError, match="so has the renewed token"):
        asyncio.run(vault.value(GH))
    # Whether there is one at all does not renew anything.
    vault, asked = oauth_vault(kept, ManualClock(1_000_000.0), renewed="x")
    assert asyncio.run(vault.has(GH))
    assert asked == []


def test_other_kinds_are_bound_as_they_are() -> None:
    text = grant("inside", expires_at=1)
    vault = Vault([MemoryBackend({"gh": text})])
    for kind in ("opaque", "json", "keypair"):
        assert asyncio.run(vault.value(secret("gh", kind=kind))) == text
