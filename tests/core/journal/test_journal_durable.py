"""Durable entries: when the journal reports them as written, and when it reports failure."""

from __future__ import annotations

import asyncio
import resource
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from interlock.core.journal import journal as journal_module
from interlock.core.journal import writer as journal_writer
from interlock.core.journal.file import cannot_open, open_for_writing
from interlock.core.journal.journal import Entry, Journal, JournalReader, OnWritten
from interlock.core.journal.verification import verify
from interlock.core.journal.writer import Fragment
from tests.support.timeouts import HANG_TIMEOUT

# Long enough that no group ends by itself: whatever is written was asked for.
NEVER = 3600.0


def entry(number: int, outcome: str = "dispatching") -> Entry:
    return (number, "local", "mcp", "tools/call", "jira.create", "jira", "mutating", outcome, 0, "")


def times(path: Path) -> list[int]:
    return [row.time_ns for row in JournalReader(path).read(limit=1_000_000)]


class RecordingCallback:
    """A callback that stores its results and lets a test wait for them."""

    def __init__(self) -> None:
        self.results: list[bool] = []
        self._event = threading.Event()

    def __call__(self, kept: bool) -> None:
        self.results.append(kept)
        self._event.set()

    def wait(self) -> bool:
        assert self._event.wait(HANG_TIMEOUT)
        return self.results[0]


@contextmanager
def locked_by_other(path: Path) -> Iterator[None]:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    opened = Journal(tmp_path / "journal.db", group_seconds=NEVER)
    yield opened
    opened.close()


def test_entry_is_in_file_before_callback(journal: Journal) -> None:
    seen: list[list[int]] = []
    callback = RecordingCallback()

    def look(kept: bool) -> None:
        seen.append(times(journal.path))
        callback(kept)

    journal.record_durably(entry(1), look)
    assert callback.wait()
    assert seen == [[1]]
    assert journal.syncs == journal.commits == 1


def test_writes_earlier_entries_first(journal: Journal) -> None:
    callback = RecordingCallback()
    for number in range(600):
        journal.record(entry(number, "ok"))
    journal.record_durably(entry(600), callback)
    assert callback.wait()
    assert times(journal.path) == list(range(601))


def test_ordinary_entry_does_not_sync(journal: Journal) -> None:
    callback = RecordingCallback()
    journal.record_durably(entry(1), callback)
    assert callback.wait()
    journal.record(entry(2, "ok"))
    assert journal.flush()
    assert (journal.commits, journal.syncs) == (2, 1)


class SlowDisk(Journal):
    """A journal whose commits wait for the test."""

    def __init__(self, path: Path, **settings: Any) -> None:
        self.begun = threading.Event()
        self.go_on = threading.Event()
        super().__init__(path, group_seconds=NEVER, **settings)

    def _take_batch(self) -> tuple[list[Fragment], int, bool]:
        taken = super()._take_batch()
        self.begun.set()
        assert self.go_on.wait(HANG_TIMEOUT)
        return taken


def test_entries_during_sync_share_next_commit(tmp_path: Path) -> None:
    journal = SlowDisk(tmp_path / "journal.db")
    delivered: list[tuple[int, bool]] = []
    enough = threading.Event()

    def deliver(thens: list[OnWritten], kept: bool) -> None:
        delivered.append((len(thens), kept))
        if sum(count for count, _ in delivered) == 51:
            enough.set()

    journal.deliver = deliver
    journal.record_durably(entry(0), lambda kept: None)
    assert journal.begun.wait(HANG_TIMEOUT)
    for number in range(1, 51):
        journal.record_durably(entry(number), lambda kept: None)
    journal.go_on.set()
    assert enough.wait(HANG_TIMEOUT)
    assert delivered == [(1, True), (50, True)]
    assert (journal.commits, journal.syncs) == (2, 2)
    journal.close()


def test_reports_failure_when_disk_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "_WATCH_INTERVAL_SECONDS", 0.0)
    now = [0.0]
    journal = SlowDisk(tmp_path / "journal.db", clock=lambda: now[0], wait=30.0)
    callback = RecordingCallback()
    journal.record_durably(entry(1), callback)
    assert journal.begun.wait(HANG_TIMEOUT)
    now[0] = 29.0
    assert journal.late_count == 0
    assert callback.results == []
    assert journal.health().state == "ok"
    now[0] = 30.0
    assert callback.wait() is False
    assert journal.late_count == 1
    health = journal.health()
    assert (health.state, health.late) == ("slow", 1)
    assert "1 write waited longer than 30 s" in health.reason
    # The disk comes back: the entry is written all the same, and nobody is told twice.
    journal.go_on.set()
    assert journal.flush()
    assert journal.health()[:2] == ("ok", "")
    assert journal.health().late == 1
    journal.close()
    assert callback.results == [False]
    assert times(journal.path) == [1]


def test_reports_failure_for_locked_file_and_recovers(journal: Journal) -> None:
    first, second = RecordingCallback(), RecordingCallback()
    with locked_by_other(journal.path):
        journal.record_durably(entry(1), first)
        assert first.wait() is False
        assert journal.health().state == "failing"
    assert journal.flush()
    journal.record_durably(entry(2), second)
    assert second.wait() is True
    assert times(journal.path) == [1, 2]
    assert (first.results, second.results) == ([False], [True])


def test_reports_failure_for_full_disk_and_recovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = 6

    def open_small(path: Path) -> sqlite3.Connection:
        connection = open_for_writing(path)
        connection.execute(f"PRAGMA max_page_count = {pages}")
        return connection

    monkeypatch.setattr(journal_writer, "open_for_writing", open_small)
    # The entry alone is larger than what the disk has left.
    large = (*entry(1)[:9], "x" * 40_000)
    journal = Journal(tmp_path / "journal.db", group_seconds=NEVER)
    callback = RecordingCallback()
    journal.record_durably(large, callback)
    assert callback.wait() is False
    assert "full" in journal.health().reason
    # Asked again within the moment, it does not try again: it says no.
    again: list[bool] = []
    monkeypatch.setattr(journal_module, "_RETRY_SECONDS", 3600.0)
    journal.record_durably(entry(2), again.append)
    assert again == [False]
    monkeypatch.setattr(journal_module, "_RETRY_SECONDS", 0.0)
    pages = 10_000
    later = RecordingCallback()
    journal.record_durably(entry(3), later)
    assert later.wait() is True
    assert journal.health().state == "ok"
    assert times(journal.path) == [1, 3]
    journal.close()


def test_reports_failure_for_write_error_and_recovers(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db", group_seconds=NEVER)
    first, second = RecordingCallback(), RecordingCallback()
    journal.record_durably(entry(1), first)
    assert first.wait()
    write_journal = journal.path.with_name("journal.db-wal").stat().st_size
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (write_journal, limits[1]))
    try:
        journal.record_durably(entry(2), second)
        assert second.wait() is False
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert journal.flush()
    assert journal.close().state == "ok"
    assert times(journal.path) == [1, 2]
    assert verify(journal.path).is_intact


def test_starts_with_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = True

    def open_on_a_full_disk(path: Path) -> sqlite3.Connection:
        connection = open_for_writing(path)
        if full:
            # SQLite's own words for it: a table that does not fit.
            pages = connection.execute("PRAGMA page_count").fetchone()[0]
            connection.execute(f"PRAGMA max_page_count = {pages}")
            try:
                connection.execute("CREATE TABLE large AS SELECT zeroblob(1000000)")
            except sqlite3.Error as error:
                connection.close()
                raise cannot_open(path, error) from error
        return connection

    monkeypatch.setattr(journal_writer, "open_for_writing", open_on_a_full_disk)
    journal = Journal(tmp_path / "journal.db", group_seconds=NEVER)
    assert "full" in journal.health().reason
    callback, later = RecordingCallback(), RecordingCallback()
    journal.record_durably(entry(1), callback)
    assert callback.wait() is False
    full = False
    assert journal.flush()
    journal.record_durably(entry(2), later)
    assert later.wait() is True
    journal.close()
    assert times(journal.path) == [1, 2]


def test_closed_or_full_journal_reports_failure(tmp_path: Path) -> None:
    results: list[bool] = []
    journal = Journal(tmp_path / "journal.db", max_pending=1, group_seconds=NEVER)
    journal.record(entry(1, "ok"))
    journal.record_durably(entry(2), results.append)
    assert results == [False]
    journal.close()
    journal.record_durably(entry(3), results.append)
    assert results == [False, False]
    assert times(journal.path) == [1]


def test_close_resolves_durable_entries(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db", group_seconds=NEVER)
    callback, broken = RecordingCallback(), RecordingCallback()
    journal.record_durably(entry(1), callback)
    journal.close()
    assert callback.results == [True]
    journal = Journal(tmp_path / "journal.db", group_seconds=NEVER)
    with locked_by_other(journal.path):
        journal.record_durably(entry(2), broken)
        journal.close()
    assert broken.results == [False]


def test_failing_callback_does_not_affect_others(journal: Journal) -> None:
    callback = RecordingCallback()

    def fails(kept: bool) -> None:
        raise ValueError("a fault of somebody who waits")

    journal.record_durably(entry(1), fails)
    journal.record_durably(entry(2), callback)
    assert callback.wait()
    journal.record_durably(entry(3), fails)
    assert journal.flush()
    assert journal.health().state == "ok"


def test_failing_delivery_does_not_stop_writer(journal: Journal) -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    journal.deliver = lambda thens, kept: (
        [loop.call_soon_threadsafe(t, kept) for t in thens] and None
    )
    journal.record_durably(entry(1), lambda kept: None)
    assert journal.flush()
    journal.record(entry(2, "ok"))
    assert journal.flush()
    assert journal.health().state == "ok"


def test_calls_back_once_for_each_thread(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db", group_seconds=0.0)
    lock = threading.Lock()
    callback: list[int] = []
    missing: list[int] = []

    def run(thread: int) -> None:
        for number in range(200):
            this = thread * 1000 + number
            done = threading.Event()

            def then(kept: bool, this: int = this, done: threading.Event = done) -> None:
                with lock:
                    (callback if kept else missing).append(this)
                done.set()

            journal.record(entry(-1, "ok"))
            journal.record_durably(entry(this), then)
            if not done.wait(HANG_TIMEOUT):
                missing.append(this)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    journal.close()
    assert not missing
    requested = sorted(t * 1000 + n for t in range(8) for n in range(200))
    assert sorted(callback) == requested
    assert sorted(time for time in times(journal.path) if time >= 0) == requested
    assert journal.syncs <= 1600


CHILD = """
import sys
from interlock.core.journal.journal import Journal
journal = Journal(sys.argv[1], group_seconds=3600.0)
def told(number, kept):
    print(number, kept, flush=True)
for number in range(50):
    journal.record_durably(
        (number, "child", "mcp", "tools/call", "n", "u", "mutating", "dispatching", 0, ""),
        lambda kept, number=number: told(number, kept),
    )
sys.stdin.read()
"""


def test_durable_entries_survive_kill_9(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    promised = []
    for _ in range(20):
        number, kept = child.stdout.readline().split()
        assert kept == b"True"
        promised.append(int(number))
    child.kill()
    child.communicate()
    assert set(promised) <= set(times(path))


COUNTED = """
import sys, threading
from interlock.core.journal.journal import Journal
journal = Journal(sys.argv[1], group_seconds=3600.0)
for number in range(int(sys.argv[2])):
    told = threading.Event()
    journal.record_durably(
        (number, "child", "mcp", "tools/call", "n", "u", "mutating", "dispatching", 0, ""),
        lambda kept: told.set(),
    )
    assert told.wait(float(sys.argv[3]))
"""


def count_syncs(path: Path, log: Path, calls: int) -> int:
    """Return how often a process with consecutive durable calls synced the disk."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed: what the disk is asked for cannot be counted")
    command = [strace, "-f", "-o", str(log), "-e", "trace=fsync,fdatasync"]
    done = subprocess.run(
        [*command, sys.executable, "-c", COUNTED, str(path), str(calls), str(HANG_TIMEOUT)],
        capture_output=True,
        text=True,
        timeout=HANG_TIMEOUT,
    )
    if "PTRACE" in done.stderr or "ptrace" in done.stderr:
        pytest.skip("strace may not trace here: what the disk is asked for cannot be counted")
    assert done.returncode == 0, done.stderr
    return sum("sync(" in line for line in log.read_text().splitlines())


def test_durable_call_syncs_exactly_once(tmp_path: Path) -> None:
    few = count_syncs(tmp_path / "few.db", tmp_path / "few.log", 5)
    many = count_syncs(tmp_path / "many.db", tmp_path / "many.log", 55)
    # Opening and closing the file cost the same both times.
    assert many - few == 50
