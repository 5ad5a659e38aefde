"""The store of driver states: private, shared by processes, intact after a kill."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from interlock.drivers.sign_in_store import SCHEMA_VERSION, SignInRecord, SqliteSignInStore
from interlock.errors import CONFIG, INTERNAL, InterlockError

KEY = ("github-mcp", "w", "user-1")


@pytest.fixture
def store(tmp_path: Path) -> SqliteSignInStore:
    return SqliteSignInStore(tmp_path / "deep" / "drivers.db", clock=lambda: 7.0)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_reading_creates_no_file(store: SqliteSignInStore) -> None:
    assert store.state(*KEY) is None
    assert store.list_records() == []
    assert not store.delete("github-mcp")
    assert not store.path.exists()


def test_file_is_private(store: SqliteSignInStore) -> None:
    before = os.umask(0)
    try:
        store.save(*KEY, authed=True, refreshed_at=1.0)
    finally:
        os.umask(before)
    assert mode(store.path) == 0o600
    assert mode(store.path.parent) == 0o700


@pytest.mark.spec("DR-30.auth-4")
def test_state_is_keyed_by_driver_workspace_and_user(store: SqliteSignInStore) -> None:
    store.save(*KEY, authed=True, refreshed_at=5.5)
    again = SqliteSignInStore(store.path)
    assert again.state(*KEY) == (True, 5.5)
    assert again.state("github-mcp", "w", "user-2") is None
    assert again.state("github-mcp", "other", "user-1") is None
    assert again.state("jira-mcp", "w", "user-1") is None
    again.save(*KEY, authed=False, refreshed_at=0.0)
    assert store.state(*KEY) == (False, 0.0)


def test_lists_and_deletes_records(store: SqliteSignInStore) -> None:
    store.save("b-mcp", "w", "user-1", authed=True, refreshed_at=1.0)
    store.save("a-mcp", "w", "user-2", authed=False, refreshed_at=0.0)
    store.save("a-mcp", "w", "user-1", authed=True, refreshed_at=2.0)
    assert store.list_records() == [
        SignInRecord("a-mcp", "w", "user-1", True, 2.0, 7.0),
        SignInRecord("a-mcp", "w", "user-2", False, 0.0, 7.0),
        SignInRecord("b-mcp", "w", "user-1", True, 1.0, 7.0),
    ]
    assert store.delete("a-mcp")
    assert not store.delete("a-mcp")
    assert [record.driver for record in store.list_records()] == ["b-mcp"]


def test_concurrent_writers_lose_nothing(store: SqliteSignInStore) -> None:
    def keep(number: int) -> None:
        for turn in range(5):
            store.save("a-mcp", "w", f"user-{number}", authed=True, refreshed_at=float(turn))

    threads = [threading.Thread(target=keep, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for item in threads:
        item.join()
    assert [record.refreshed_at for record in store.list_records()] == [4.0] * 6


_WRITES = """
import sys
from pathlib import Path
from interlock.drivers.sign_in_store import SqliteSignInStore
store = SqliteSignInStore(Path(sys.argv[1]))
number = 0
while True:
    number += 1
    store.save("a-mcp", "w", "user-1", authed=True, refreshed_at=float(number))
    print(number, flush=True)
"""


@pytest.mark.spec("DR-30.auth-4")
def test_written_state_survives_kill(store: SqliteSignInStore) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", _WRITES, str(store.path)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    last = 0
    with child, child.stdout:
        for line in child.stdout:
            last = int(line)
            if last == 20:
                child.kill()
                break
        rest = child.stdout.read().split()
    last = int(rest[-1]) if rest else last
    kept = store.state("a-mcp", "w", "user-1")
    assert kept is not None
    # It may have got a little further than it could say.
    assert kept[0] is True
    assert last <= kept[1] <= last + 1
    store.save("a-mcp", "w", "user-1", authed=False, refreshed_at=0.0)


def test_refuses_database_of_other_program(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as file:
        file.execute("CREATE TABLE theirs (x)")
    file.close()
    with pytest.raises(InterlockError, match="another program's database") as error:
        SqliteSignInStore(path).save(*KEY, authed=True, refreshed_at=1.0)
    assert error.value.failure is CONFIG


def test_refuses_file_of_newer_version(store: SqliteSignInStore) -> None:
    store.save(*KEY, authed=True, refreshed_at=1.0)
    with sqlite3.connect(store.path) as file:
        file.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    file.close()
    with pytest.raises(InterlockError, match="newer Interlock"):
        store.state(*KEY)


def test_reports_invalid_database(tmp_path: Path) -> None:
    path = tmp_path / "drivers.db"
    path.write_bytes(b"not a database, whatever it is" * 100)
    with pytest.raises(InterlockError, match="cannot be used") as error:
        SqliteSignInStore(path).state(*KEY)
    assert error.value.failure is INTERNAL
    assert str(path) in error.value.message
