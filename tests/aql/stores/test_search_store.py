"""Tests of stored usage and vectors."""

from __future__ import annotations

import sqlite3
import stat
from pathlib import Path

import pytest

from interlock.aql.search.store import SearchStore
from interlock.aql.search.usage import Usage
from interlock.errors import InterlockError


def test_usage_survives_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "search.db"
    memory = SearchStore(path)
    usage = Usage(clock=lambda: 1_000.0)
    usage.record("a.b", "clerk", True)
    usage.record("a.b", "clerk", False)
    memory.save_usage(usage)
    assert usage.take_changes() == []
    memory.close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    again = SearchStore(path)
    known = Usage(again.tallies(), clock=lambda: 1_000.0)
    assert known.score_of("a.b", "clerk") == usage.score_of("a.b", "clerk")
    assert known.score_of("a.b") == usage.score_of("a.b")
    again.close()


def test_stores_vectors_by_digest(tmp_path: Path) -> None:
    memory = SearchStore(tmp_path / "search.db")
    memory.save_vectors({"d1": b"\0" * 8, "d2": b"\1" * 8})
    assert memory.vectors(["d2", "d3"]) == {"d2": b"\1" * 8}
    memory.close()


def test_rejects_foreign_database(tmp_path: Path) -> None:
    path = tmp_path / "search.db"
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE theirs (x)")
    other.commit()
    other.close()
    before = path.read_bytes()
    with pytest.raises(InterlockError, match="another program's database"):
        SearchStore(path)
    in_memory = SearchStore.open(path)
    in_memory.save_vectors({"d": b"x"})
    assert in_memory.vectors(["d"]) == {"d": b"x"}
    in_memory.close()
    assert path.read_bytes() == before


def test_retries_failed_write(tmp_path: Path) -> None:
    path = tmp_path / "search.db"
    memory = SearchStore(path)
    usage = Usage(clock=lambda: 1_000.0)
    usage.record("a.b", "", True)
    memory._file.execute("PRAGMA query_only = ON")
    memory.save_usage(usage)
    assert usage.changed_keys == {("a.b", "")}
    memory._file.execute("PRAGMA query_only = OFF")
    memory.save_usage(usage)
    assert [key for key, _ in memory.tallies()] == [("a.b", "")]
    memory.close()


def test_rejects_invalid_file(tmp_path: Path) -> None:
    path = tmp_path / "search.db"
    path.write_bytes(b"not a database, and long enough to be looked at" * 30)
    with pytest.raises(InterlockError):
        SearchStore(path)
