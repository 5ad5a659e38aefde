"""Tests of the index of the contract registry."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from interlock.contracts.registry.git import GitChoice
from interlock.contracts.registry.records import Contract
from interlock.contracts.registry.registry import ContractRegistry
from interlock.errors import InterlockError
from tests.contracts.registry.git_repositories import MEANS, git
from tests.contracts.registry.registry_contracts import RegistryBench, contract, schema

REQUEST = "ToolInvocationRequest"


@pytest.fixture(params=MEANS)
def shelf(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RegistryBench]:
    means: GitChoice = request.param
    one = RegistryBench(tmp_path / "registry", means)
    yield one
    one.close()


def publish_and_get_error(shelf: RegistryBench, *args: object, **kwargs: object) -> InterlockError:
    return get_publish_error(shelf, contract(*args, **kwargs))  # type: ignore[arg-type]


def get_publish_error(shelf: RegistryBench, one: Contract) -> InterlockError:
    with pytest.raises(InterlockError) as raised:
        shelf.put(one)
    return raised.value


def publish_requests(shelf: RegistryBench) -> None:
    more: dict[str, str] = {}
    for version, name in (("2.3.0", "id"), ("2.3.4", "note"), ("2.4.0", "deadline")):
        more[name] = "string"
        shelf.put(
            contract(
                REQUEST,
                version,
                schema(("tool",), tool="string", **more),
                domain="agent",
                source=f"{version}.proto",
            ),
            f"the request at {version}",
        )


# -- the index


def test_rebuilds_missing_stale_or_damaged_index(shelf: RegistryBench) -> None:
    publish_requests(shelf)
    path = shelf.folder / ".git" / "interlock-contracts.db"
    find = shelf.registry.find

    def check() -> None:
        assert find(REQUEST, "2.3.x").version == "2.3.4"
        assert path.exists()

    path.unlink()
    check()
    # Somebody else wrote into it.
    with sqlite3.connect(path) as other:
        other.execute("DELETE FROM contract")
        other.execute("UPDATE copied_commit SET head = 'x'")
        other.execute("DELETE FROM file")
    other.close()
    check()
    shelf.registry.close()
    path.write_bytes(b"no database at all, but long enough to be looked at" * 100)
    check()
    with sqlite3.connect(path) as other:
        other.execute("DROP TABLE contract")
    other.close()
    with pytest.raises(InterlockError, match="Try again"):
        find(REQUEST, "2.3.x")
    check()
    shelf.registry.rebuild()
    check()
    # Another process published meanwhile, or somebody went back by hand.
    beside = shelf.open()
    beside.publish(contract("Order", "1.0.0"), author="x", reason="x")
    beside.close()
    assert shelf.registry.versions("Order") == ["1.0.0"]
    git(shelf.folder, "reset", "--quiet", "--hard", "HEAD~3")
    assert shelf.registry.versions(REQUEST) == ["2.3.0"]
    assert shelf.registry.versions("Order") == []


def test_reads_registry_without_writable_index(shelf: RegistryBench) -> None:
    publish_requests(shelf)
    shelf.close()
    index = shelf.folder / ".git" / "interlock-contracts.db"
    index.unlink()
    # A folder in its place: no file can be made there, whoever asks.
    index.mkdir()
    (index / "x").touch()
    assert shelf.registry.find(REQUEST, "2.3.x").version == "2.3.4"


def test_ignores_manual_changes(shelf: RegistryBench) -> None:
    publish_requests(shelf)
    assert shelf.registry.problems() == []
    path = shelf.folder / "agent" / REQUEST / "2.3.4.schema.json"
    path.write_text('{"type": "string"}\n')
    # Not committed: what was published is found.
    [problem] = shelf.registry.problems()
    assert "edited by hand and not committed" in problem
    assert "2.3.4.schema.json" in problem
    assert shelf.registry.find(REQUEST, "2.3.x").schema()["type"] == "object"
    git(shelf.folder, "commit", "--quiet", "-am", "edit")
    [problem] = shelf.registry.problems()
    assert "edited after publication" in problem
    assert shelf.registry.find(REQUEST, "2.3.x").version == "2.3.0"
    git(shelf.folder, "revert", "--no-edit", "HEAD")
    assert shelf.registry.find(REQUEST, "2.3.x").version == "2.3.4"
    (shelf.folder / "agent" / REQUEST / "2.4.0.schema.provenance.json").unlink()
    git(shelf.folder, "commit", "--quiet", "-am", "remove")
    [problem] = shelf.registry.problems()
    assert "needs both its document and its provenance file" in problem


def test_rejects_repository_of_other_project(shelf: RegistryBench) -> None:
    shelf.folder.mkdir()
    git(shelf.folder, "init", "--quiet")
    (shelf.folder / "main.py").write_text("print()\n")
    git(shelf.folder, "add", ".")
    git(shelf.folder, "commit", "--quiet", "-m", "a program")
    error = publish_and_get_error(shelf)
    assert "not a contract registry" in error.message
    assert error.failure.name == "config_error"
    with pytest.raises(InterlockError, match="not a contract registry"):
        shelf.registry.search()
    assert git(shelf.folder, "log", "--oneline").count("\n") == 1


def test_reading_creates_nothing(tmp_path: Path) -> None:
    registry = ContractRegistry(tmp_path / "registry")
    assert registry.search() == []
    assert registry.history() == []
    assert registry.problems() == []
    assert registry.metrics().head is None
    assert list(tmp_path.iterdir()) == []
