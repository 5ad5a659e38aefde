"""Secrets of a workspace: merged inventories, and missing secrets."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.manifests.folders import Folder, rejection_reasons
from tests.manifests.texts import secret_values, secrets_text, write

SECRET_ENV = {"kind": "npm", "package": "x", "env": {"KEY": "${secrets.ACME_API_KEY}"}}


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


@pytest.mark.spec("DR-19.inventory-5", "DR-19.inventory-3")
def test_merges_inventories_and_rejects_duplicate_slug(folder: Folder) -> None:
    folder.tool()
    folder.secrets(".secrets", secret_values(slug="one-key"))
    folder.secrets(".secrets/deep", secret_values(slug="two-key"))
    auth = {"ref": "./SECRETS.md"}
    folder.driver("a-mcp", auth=auth)
    folder.secrets(".drivers/a-mcp", secret_values(slug="three-key"))
    result = folder.load()
    assert sorted(result.secrets.entries) == ["one-key", "three-key", "two-key"]
    assert not result.rejected_files
    # In two: neither counts, and a driver whose inventory is one of them is refused.
    twice = folder.secrets(".secrets/more", secret_values(slug="one-key", name="Other"))
    again = folder.secrets(".drivers/a-mcp", secret_values(slug="two-key"))
    result = folder.load()
    first, deep = (folder.root / ".secrets" / item / "SECRETS.md" for item in ("", "deep"))
    for value, other, slug in ((first, twice, "one-key"), (deep, again, "two-key")):
        assert f"{slug} is listed here and in {other}" in rejection_reasons(result, value)
        assert f"{slug} is listed here and in {value}" in rejection_reasons(result, other)
    assert not result.secrets.entries
    assert not result.drivers


@pytest.mark.spec("DR-19.inventory-5")
def test_drivers_may_share_inventory(folder: Folder) -> None:
    folder.tool()
    folder.secrets("shared")
    for name in ("a-mcp", "b-mcp"):
        folder.driver(
            name,
            server=SECRET_ENV,
            auth={"ref": "./shared/SECRETS.md", "state": {"env": ["ACME_API_KEY"]}},
        )
    result = folder.load()
    assert sorted(result.drivers) == ["a-mcp@1", "b-mcp@1"]
    assert result.secret_names["ACME_API_KEY"] == "acme-api-key"


@pytest.mark.spec("DR-19.binding-3")
def test_names_secret_missing_from_inventories(folder: Folder) -> None:
    folder.tool()
    auth = {"state": {"env": ["ACME_API_KEY"]}}
    path = folder.driver(server=SECRET_ENV, auth=auth)
    assert "lists the secret ACME_API_KEY" in rejection_reasons(folder.load(), path)
    remote = {"kind": "remote", "url": "https://a.example/"}
    other = folder.driver("b-mcp", server=remote, transport="sse", auth=auth)
    assert "lists the secret ACME_API_KEY" in rejection_reasons(folder.load(), other)
    folder.secrets()
    result = folder.load()
    assert sorted(result.drivers) == ["b-mcp@1", "files-mcp@1"]
    folder.secrets(
        ".secrets",
        secret_values(),
        secret_values(slug="other", metadata={"bindings": {"env": "ACME_API_KEY"}}),
    )
    assert "ACME_API_KEY is the name of acme-api-key and other" in rejection_reasons(
        folder.load(), path
    )


@pytest.mark.parametrize(
    ("ref", "message"),
    [
        ("./none.md", "there is no file"),
        ("../../../SECRETS.md", "leads out"),
        ("./bad.md", "bad.md"),
    ],
)
def test_unusable_inventory_rejects_driver(folder: Folder, ref: str, message: str) -> None:
    inside = Folder(folder.root / "ws")
    inside.tool()
    write(folder.root / "SECRETS.md", secrets_text())
    write(inside.root / "bad.md", "---\nsecrets: 1\n---\n")
    path = inside.driver(auth={"ref": ref})
    result = inside.load()
    assert message in rejection_reasons(result, path)
    assert result.rejected_files[path].problems[0].path == "auth.ref"
