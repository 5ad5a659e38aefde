"""`interlock claims`: list and remove the owners of segments."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from interlock.tree.store import TreeStore
from tests.support.command_line import CommandLine

pytestmark = pytest.mark.feature("tree")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[CommandLine]:
    one = CommandLine(tmp_path)
    try:
        yield one
    finally:
        one.close()


@pytest.mark.spec("AX-4.2-5", "AX-4.2-7")
def test_lists_and_removes_claims(world: CommandLine) -> None:
    folder = world.folder / "state-of-it"
    world.config(state_dir=str(folder))
    missing = world.run("claims", "list")
    assert missing.returncode == 4
    assert "has run here" in missing.stderr
    folder.mkdir()
    store = TreeStore(folder / "tree.db")
    store.save_claim("edge", "dns:edge.example.com", True)
    store.close()
    (claim,) = json.loads(world.run("claims", "list", "--json").stdout)
    assert (claim["segment"], claim["authority"], claim["verified"]) == (
        "edge", "dns:edge.example.com", True,
    )  # fmt: skip
    assert "proven" in world.run("claims", "list").stdout
    assert world.run("claims", "remove", "other").returncode == 1
    gone = world.run("claims", "remove", "edge")
    assert (gone.returncode, gone.stdout) == (0, "The claim on edge is removed.\n")
    assert json.loads(world.run("claims", "list", "--json").stdout) == []
