"""Tests that a build without a feature leaves out."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.test_without import modules_that_import, without


def write(root: Path, name: str, text: str) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.feature("topics", "contracts", "drivers")
def test_without_removes_dependent_features() -> None:
    assert without("topics") == ["topics"]
    assert without("contracts") == ["contracts", "drivers"]


def test_excludes_modules_that_import_feature(tmp_path: Path) -> None:
    direct = write(tmp_path, "tests/test_direct.py", "from interlock.topics.room import Room\n")
    helper = write(tmp_path, "tests/rooms.py", "import interlock.topics\n")
    through = write(tmp_path, "tests/test_through.py", "from tests.rooms import room\n")
    below = write(tmp_path, "tests/test_below.py", "from tests.topics.peers import peer\n")
    bench = write(tmp_path, "bench/load.py", "from tests import rooms\n")
    write(tmp_path, "tests/test_late.py", "def test() -> None:\n    import interlock.topics\n")
    write(tmp_path, "tests/test_other.py", "import interlock.topics_of_others\n")
    result = modules_that_import(tmp_path, ["topics"])
    assert result == sorted([bench, direct, helper, through, below])
