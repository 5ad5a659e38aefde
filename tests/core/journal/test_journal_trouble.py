"""Failures of the journal: full disks, locks, broken files, limits, unstorable entries."""

from __future__ import annotations

import os
import resource
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from interlock import errors
from interlock.core.journal import writer as journal_writer
from interlock.core.journal.chain import append_pages, read_head
from interlock.core.journal.file import SCHEMA_VERSION, open_for_writing
from interlock.core.journal.journal import Entry, Journal, JournalReader
from interlock.core.journal.verification import read_chain_head, verify
from interlock.core.journal.writer import encode_fragment, join_pages
from interlock.errors import InterlockError
from tests.support.timeouts import HANG_TIMEOUT

NEVER = 3600.0


def entry(number: int, detail: str = "") -> Entry:
    return (number, "loopback", "mcp", "tools/call", "jira.get", "jira", "read", "ok", 9, detail)


def times(path: Path) -> list[int]:
    return [row.time_ns for row in JournalReader(path).read(limit=1_000_000)]


@contextmanager
def locked_by_other(path: Path) -> Iterator[None]:
    """Hold a write lock on another connection, like another process."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


def wait_for_failure(journal: Journal) -> str:
    """Wait until the writer reports a failure, and return its reason."""
    with journal._progress:
        journal._commit_now.set()
    while not journal.health().reason:
        journal.flush(0.01)
    return journal.health().reason


def test_keeps_entries_for_full_database_and_recovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = 6

    def open_small(path: Path) -> sqlite3.Connection:
        connection = open_for_writing(path)
        connection.execute(f"PRAGMA max_page_count = {pages}")
        return connection

    monkeypatch.setattr(journal_writer, "open_for_writing", open_small)
    journal = Journal(tmp_path / "journal.db", group_seconds=NEVER)
    journal.record(entry(1))
    assert journal.flush()
    for number in range(2, 1002):
        journal.record(entry(number))
    reason = wait_for_failure(journal)
    assert "database or disk is full" in reason
    assert str(journal.path) in reason
    assert "Free some space" in reason
    health = journal.health()
    assert (health.state, health.pending, health.lost, health.written) == ("failing", 1000, 0, 1)
    pages = 10_000
    assert journal.flush()
    assert journal.health() == ("ok", "", 0, 0, 1001, 0)
    assert times(journal.path) == list(range(1, 1002))
    journal.close()


def test_keeps_entries_after_write_error_and_recovers(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db", group_seconds=NEVER)
    journal.record(entry(1))
    assert journal.flush()
    write_journal = journal.path.with_name("journal.db-wal").stat().st_size
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    for number in range(2, 1002):
        journal.record(entry(number))
    resource.setrlimit(resource.RLIMIT_FSIZE, (write_journal, limits[1]))
    try:
        reason = wait_for_failure(journal)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "disk I/O error" in reason
    assert journal.flush()
    assert times(journal.path) == list(range(1, 1002))
    assert journal.close() == ("ok", "", 0, 0, 1001, 0)


def test_retries_locked_database(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db", group_seconds=NEVER)
    journal.record(entry(1))
    with locked_by_other(journal.path):
        reason = wait_for_failure(journal)
        assert "locked" in reason
        assert "Another process" in reason
        assert journal.health().pending == 1
    assert journal.flush()
    assert journal.close() == ("ok", "", 0, 0, 1, 0)


def test_writer_retries_without_request(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db", group_seconds=0.0)
    with locked_by_other(journal.path):
        journal.record(entry(1))
        wait_for_failure(journal)
    with journal._progress:
        assert journal._progress.wait_for(lambda: journal._written == 1, HANG_TIMEOUT)
    journal.close()


def test_journals_count_of_entries_above_limit(tmp_path: Path) -> None:
    journal = Journal(
        tmp_path / "journal.db",
        max_pending=100,
        group_seconds=NEVER,
        wall_ns=lambda: 1_800_000_000_000_000_000,
    )
    second = 1_000_000_000
    for number in range(150):
        journal.record(entry(number * second))
    assert journal.health() == ("ok", "", 100, 50, 0, 0)
    assert journal.flush()
    journal.record(entry(999 * second))
    assert journal.flush()
    rows = journal.read()
    assert [row.time_ns for row in rows[:100]] == [number * second for number in range(100)]
    notice = rows[100]
    assert (notice.face, notice.verb, notice.outcome) == ("journal", "lost", "internal_error")
    assert notice.time_ns == 1_800_000_000_000_000_000
    assert notice.detail.startswith(
        "50 entries between 1970-01-01T00:01:40.000Z and 1970-01-01T00:02:29.000Z"
    )
    assert [row.time_ns for row in rows[101:]] == [999 * second]
    assert journal.close() == ("ok", "", 0, 50, 101, 0)


def test_close_of_failing_journal_reports_lost_entries(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db", group_seconds=NEVER)
    for number in range(10):
        journal.record(entry(number))
    with locked_by_other(journal.path):
        health = journal.close()
    assert (health.state, health.pending, health.lost, health.written) == ("failing", 0, 10, 0)


def test_begins_new_journal_after_move(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db", group_seconds=NEVER)
    journal.record(entry(1))
    assert journal.flush()
    aside = tmp_path / "aside.db"
    journal.path.rename(aside)
    journal.record(entry(2))
    assert journal.flush()
    # It says which journal was there before, and so does whoever verifies it.
    begun, second = journal.read()
    assert (begun.face, begun.verb, begun.name) == ("journal", "begun", "1")
    assert second.time_ns == 2
    assert times(aside) == [1]
    assert journal.close() == ("ok", "", 0, 0, 2, 0)
    verdict = verify(journal.path)
    assert verdict.is_intact
    assert str(read_chain_head(aside)) in verdict.notes[0]


def test_two_writers_begin_one_journal_after_move(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    one = Journal(path, group_seconds=NEVER)
    two = Journal(path, group_seconds=NEVER)
    for number, journal in enumerate([one, two]):
        journal.record(entry(number))
        assert journal.flush()
    for file in tmp_path.glob("journal.db*"):
        file.rename(tmp_path / f"aside-{file.name}")
    for number, journal in enumerate([one, two]):
        journal.record(entry(10 + number))
        assert journal.flush()
    rows = one.read()
    assert [row.name for row in rows if row.verb == "begun"] == ["1", "2"]
    assert [row.time_ns for row in rows if row.verb != "begun"] == [10, 11]
    assert one.close().state == two.close().state == "ok"
    assert verify(path).is_intact


def restore_first_entries(path: Path) -> None:
    """Replace the journal with an older copy."""
    older = path.with_name("older.db")
    with closing(sqlite3.connect(path)) as shell, closing(sqlite3.connect(older)) as copy:
        shell.backup(copy)
        cut_end(older)
    for name in ("journal.db-wal", "journal.db-shm"):
        path.with_name(name).unlink(missing_ok=True)
    older.rename(path)


def cut_end(path: Path, after: int = 5) -> None:
    with closing(sqlite3.connect(path)) as shell, shell:
        shell.execute("DELETE FROM page WHERE last_seq > ?", (after,))


def rewrite_end(path: Path) -> None:
    with closing(open_for_writing(path)) as file:
        file.execute("DELETE FROM page WHERE last_seq > 5")
        fragments = [encode_fragment([entry(number)]) for number in range(100, 110)]
        head = append_pages(
            file, read_head(file), [join_pages([fragment])[0] for fragment in fragments]
        )
        assert head is not None
        assert head.seq > 10


@pytest.mark.parametrize(
    "harm",
    [
        cut_end,
        rewrite_end,
        restore_first_entries,
        lambda path: cut_end(path, 0),
    ],
)
def test_rejects_truncated_journal(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    path = tmp_path / "journal.db"
    journal = Journal(path, group_seconds=NEVER)
    for number in range(10):
        journal.record(entry(number))
        assert journal.flush()
    harm(path)
    results: list[bool] = []
    done = Event()

    def then(kept: bool) -> None:
        results.append(kept)
        done.set()

    journal.record_durably(entry(11), then)
    assert done.wait(HANG_TIMEOUT)
    assert results == [False]
    reason = wait_for_failure(journal)
    assert "wrote entries up to 10" in reason
    assert "Move it aside" in reason
    # Nor by asking again: it is held against what this node wrote, not against what it found.
    assert not journal.flush(0.05)
    for file in tmp_path.glob("journal.db*"):
        file.rename(tmp_path / f"aside-{file.name}")
    assert journal.flush()
    assert journal.close().state == "ok"
    assert [row.verb for row in journal.read()] == ["begun", "tools/call"]
    assert "entries up to 10" in verify(path).notes[0]


def test_recovers_when_broken_file_is_moved(
    tmp_path: Path,
) -> None:
    path = tmp_path / "journal.db"
    Journal(path).close()
    journal = Journal(path, group_seconds=NEVER)
    for name in ("journal.db", "journal.db-wal"):
        with open(tmp_path / name, "r+b") as file:
            file.write(b"this is not a database any more " * 300)
    journal.record(entry(1))
    reason = wait_for_failure(journal)
    assert "Move it aside" in reason
    assert "journal.db-wal" in reason
    for name in ("journal.db", "journal.db-wal", "journal.db-shm"):
        if (tmp_path / name).exists():
            (tmp_path / name).rename(tmp_path / f"broken-{name}")
    assert journal.flush()
    assert times(path) == [1]
    journal.close()


def test_rejects_file_that_is_not_database(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    path.write_bytes(b"plain text\n" * 1000)
    with pytest.raises(InterlockError) as caught:
        JournalReader(path).tail()
    assert caught.value.failure is errors.INTERNAL
    assert str(path) in caught.value.message
    assert "Move it aside" in caught.value.message
    # A damaged journal keeps no node from serving: it says so, and promises nothing.
    journal = Journal(path, group_seconds=NEVER)
    health = journal.health()
    assert health.state == "failing"
    assert health.reason == caught.value.message
    journal.record(entry(1))
    results: list[bool] = []
    journal.deliver = lambda thens, kept: results.extend([kept] * len(thens))
    journal.record_durably(entry(2), lambda kept: None)
    assert not journal.flush(0.01)
    journal.close()
    assert results == [False]
    assert path.read_bytes() == b"plain text\n" * 1000


def test_rejects_journal_with_changed_end(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = Journal(path)
    for number in range(3):
        journal.record(entry(number))
        assert journal.flush()
    journal.close()
    with closing(sqlite3.connect(path)) as shell, shell:
        shell.execute("UPDATE page SET body = replace(body, 'jira', 'jura') WHERE last_seq = 3")
    journal = Journal(path, group_seconds=NEVER)
    reason = journal.health().reason
    assert "with entries 3 to 3, was changed" in reason
    assert "interlock audit verify" in reason
    journal.record(entry(4))
    assert wait_for_failure(journal) == reason
    for file in tmp_path.glob("journal.db*"):
        file.rename(tmp_path / f"aside-{file.name}")
    assert journal.flush()
    assert journal.close().state == "ok"
    assert times(path) == [4]


def test_rejects_newer_schema(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    Journal(path).close()
    with closing(sqlite3.connect(path)) as shell:
        shell.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    for opening in (Journal, lambda p: JournalReader(p).tail()):
        with pytest.raises(
            InterlockError, match=rf"newer Interlock .*version {SCHEMA_VERSION + 1}"
        ) as caught:
            opening(path)
        assert caught.value.failure is errors.CONFIG


def test_rejects_database_of_other_program(tmp_path: Path) -> None:
    path = tmp_path / "cookies.db"
    with closing(sqlite3.connect(path)) as shell:
        shell.execute("CREATE TABLE page (url TEXT)")
    with pytest.raises(InterlockError, match="another program's database"):
        Journal(path)


def test_rejects_uncreatable_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InterlockError, match=r"cannot be opened.*File exists"):
        Journal(tmp_path / "file" / "journal.db")
    with pytest.raises(InterlockError, match="There is no journal"):
        JournalReader(tmp_path / "none.db").read()
    assert not (tmp_path / "none.db").exists()
    (tmp_path / "empty.db").touch()
    with pytest.raises(InterlockError, match="empty"):
        JournalReader(tmp_path / "empty.db").read()


def test_rejects_read_only_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "closed").mkdir(mode=0o555)
    # Reached from inside, because the folders above may be closed to a stranger as well.
    monkeypatch.chdir(tmp_path)
    user = os.geteuid()
    if user == 0:  # to root every folder is open
        os.seteuid(65534)
    try:
        with pytest.raises(InterlockError, match="Make the file and its folder writable"):
            Journal("closed/journal.db")
    finally:
        os.seteuid(user)


def test_rejects_invalid_page(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = Journal(path)
    journal.record(entry(1))
    journal.close()
    with closing(sqlite3.connect(path)) as shell, shell:
        shell.execute("UPDATE page SET body = '[[1]]'")
    with pytest.raises(InterlockError, match="contains an invalid page"):
        JournalReader(path).read()


@pytest.mark.parametrize(
    ("mangle", "column", "kept"),
    [
        (lambda e: (*e[:4], "lone \ud800 surrogate", *e[5:]), 4, r"lone \ud800 surrogate"),
        (lambda e: (*e[:4], b"bytes", *e[5:]), 4, "bytes"),
        (lambda e: (*e[:4], object, *e[5:]), 4, "<class 'object'>"),
        (lambda e: e[:5], 5, ""),
        (lambda e: (*e, "more"), 9, ""),
        (lambda e: (2**70, *e[1:]), 0, 2**63 - 1),
        (lambda e: ("later", *e[1:]), 0, 0),
        (lambda e: (*e[:9], "x" * 5_000_000), 9, "x" * 2000),
    ],
)
def test_replaces_unstorable_entry(
    tmp_path: Path, mangle: Callable[[Entry], Any], column: int, kept: object
) -> None:
    journal = Journal(tmp_path / "journal.db", group_seconds=NEVER)
    journal.record(entry(1))
    journal.record(mangle(entry(2)))
    journal.record(entry(3))
    assert journal.close() == ("ok", "", 0, 0, 3, 0)
    rows = JournalReader(journal.path).read()
    assert [row.time_ns for row in rows][::2] == [1, 3]
    assert tuple(rows[0][1:]) == entry(1)
    if column == 4 and kept == "bytes":
        # Encoders are free to spell bytes; what counts is that the call is in the record.
        assert isinstance(rows[1].name, str)
    else:
        assert rows[1][column + 1] == kept


def test_recording_never_raises(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db", max_pending=1, group_seconds=NEVER)
    os.unlink(journal.path)
    for number in range(10):
        journal.record(entry(number))
    assert journal.close().written == 1
