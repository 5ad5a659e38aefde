"""The access store: stored tokens, external changes, and broken files."""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
from pathlib import Path

import pytest

from interlock.errors import CONFIG, InterlockError
from interlock.trust.identity.api_tokens import AccessSnapshot
from interlock.trust.identity.token_store import SCHEMA_VERSION, AccessReader, AccessStore

NOW = 1_800_000_000.0


def store_at(folder: Path, now: float = NOW) -> AccessStore:
    return AccessStore(folder / "state" / "access.db", clock=lambda: now)


def test_token_is_stored_without_its_secret(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    assert store.tokens() == []
    assert not store.path.exists()
    made, shown = store.create("agent", may=["call"], roles=["r"], scopes=["read"], expires=NOW + 9)
    assert store.tokens() == [made]
    assert (made.created, made.expires, made.last_used, made.revoked) == (NOW, NOW + 9, None, None)
    assert store.create("other")[0].scopes is None
    secret = shown.split("_", 2)[2].encode()
    for path in store.path.parent.iterdir():
        assert secret not in path.read_bytes()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(store.path.parent.stat().st_mode) == 0o700


def test_finds_token_by_id_before_name(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    first, _ = store.create("agent")
    second, _ = store.create("agent")
    named_so, _ = store.create(first.id)
    assert store.find(first.id) == [first]
    assert {item.id for item in store.find("agent")} == {first.id, second.id}
    assert store.find("nobody") == []
    assert store.find(named_so.id) == [named_so]


@pytest.mark.spec("ST-4.8.5-2")
def test_token_is_revoked_once(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    made, _ = store.create("agent")
    assert store.revoke([made.id, "unknown"]) == 1
    assert store_at(tmp_path, NOW + 5).revoke([made.id]) == 0
    (kept,) = store.tokens()
    assert kept.revoked == NOW
    assert kept.state(NOW) == "revoked"
    assert store.remove([made.id]) == 1
    assert store.tokens() == []


def test_revokes_external_tokens_and_subjects(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    assert store.revocations() == []
    store.revoke_external("subject", "corp:somebody")
    store.revoke_external("jti", "t-1")
    store_at(tmp_path, NOW - 50).revoke_external("subject", "corp:somebody")
    access = store.read()
    assert access == AccessSnapshot(subjects={"corp:somebody": NOW}, jtis=frozenset({"t-1"}))
    store_at(tmp_path, NOW + 50).revoke_external("subject", "corp:somebody")
    assert store.read().subjects == {"corp:somebody": NOW + 50}
    assert {revocation.kind for revocation in store.revocations()} == {"subject", "jti"}


def test_last_use_never_decreases(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    made, _ = store.create("agent")
    store.record_uses({made.id: NOW + 10, "unknown": NOW})
    store.record_uses({made.id: NOW + 5})
    assert store.tokens()[0].last_used == NOW + 10


def test_reader_reads_external_changes_once(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    reader = AccessReader(store.path)
    try:
        assert reader.read_changes() is None
        assert not store.path.exists()
        made, _ = store.create("agent")
        assert reader.read_changes() == AccessSnapshot({made.id: made})
        assert reader.read_changes() is None
        store.revoke([made.id])
        changes = reader.read_changes()
        assert changes is not None
        assert changes.tokens[made.id].revoked == NOW
        assert reader.read_changes() is None
    finally:
        reader.close()


def test_reader_notices_replaced_and_removed_file(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    store.create("agent")
    other = AccessStore(tmp_path / "other.db")
    made, _ = other.create("restored")
    reader = AccessReader(store.path)
    try:
        assert reader.read_changes() is not None
        os.replace(other.path, store.path)
        assert reader.read_changes() == AccessSnapshot({made.id: made})
        store.path.unlink()
        assert reader.read_changes() == AccessSnapshot()
        assert reader.read_changes() is None
    finally:
        reader.close()


def test_reader_does_not_wait_for_writer(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    store.create("agent")
    reader = AccessReader(store.path)
    assert reader.read_changes() is not None
    writer = sqlite3.connect(store.path, isolation_level=None)
    try:
        writer.execute("BEGIN EXCLUSIVE")
        writer.execute("UPDATE token SET revoked = 1")
        assert reader.read_changes() is None
        writer.execute("COMMIT")
        changes = reader.read_changes()
        assert changes is not None
        assert [token.revoked for token in changes.tokens.values()] == [1.0]
    finally:
        writer.close()
        reader.close()


@pytest.mark.parametrize(
    "content",
    [b"not a database, but long enough to look at" * 50, b"SQLite format 3\0" + b"x" * 999],
)
def test_reports_broken_file(tmp_path: Path, content: bytes) -> None:
    store = store_at(tmp_path)
    store.path.parent.mkdir(mode=0o700)
    store.path.write_bytes(content)
    for act in (store.read, store.tokens, lambda: AccessReader(store.path).read_changes()):
        with pytest.raises(InterlockError) as error:
            act()
        assert error.value.failure is CONFIG
        assert "cannot be used" in error.value.message
    assert store.path.read_bytes() == content


def test_refuses_file_of_other_program_or_version(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    store.path.parent.mkdir()
    with sqlite3.connect(store.path) as other:
        other.execute("CREATE TABLE theirs (x)")
    other.close()
    with pytest.raises(InterlockError, match="another program's database"):
        store.create("agent")
    with sqlite3.connect(store.path) as other:
        assert other.execute("SELECT name FROM sqlite_master").fetchall() == [("theirs",)]
    other.close()
    store.path.unlink()
    store.create("agent")
    with sqlite3.connect(store.path) as newer:
        newer.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    newer.close()
    with pytest.raises(InterlockError, match="newer Interlock"):
        store.read()


def test_rejects_store_with_unreadable_row(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    store.create("agent")
    with sqlite3.connect(store.path) as file:
        file.execute("UPDATE token SET may = 'nonsense'")
    file.close()
    with pytest.raises(InterlockError, match="cannot be used"):
        store.read()


def test_file_is_private(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    store.create("agent")
    store.path.chmod(0o644)
    store.tokens()
    assert stat.S_IMODE(store.path.stat().st_mode) == 0o600
    target = tmp_path / "elsewhere.db"
    link = AccessStore(tmp_path / "link.db")
    link.path.symlink_to(target)
    with pytest.raises(InterlockError, match="cannot be used"):
        link.create("agent")
    assert not target.exists()


def test_concurrent_writers_lose_nothing(tmp_path: Path) -> None:
    store = store_at(tmp_path)

    def make(number: int) -> None:
        for turn in range(5):
            store.create(f"agent-{number}-{turn}")

    threads = [threading.Thread(target=make, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(store.tokens()) == 20
