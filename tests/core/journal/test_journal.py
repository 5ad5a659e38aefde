"""The journal: recording, commits, reading, searching and limits."""

from __future__ import annotations

import asyncio
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from interlock.core.journal import retention as journal_retention
from interlock.core.journal.journal import Entry, Journal, JournalReader
from tests.support.timeouts import HANG_TIMEOUT

# Long enough that only `flush` or `close` ends a group: then groups are what the test makes them.
NEVER = 3600.0


def entry(number: int, name: str = "jira.create_issue", outcome: str = "ok") -> Entry:
    return (number, "loopback", "mcp", "tools/call", name, "jira", "additive", outcome, 412, "")


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    opened = Journal(tmp_path / "journal.db", group_seconds=NEVER)
    yield opened
    opened.close()


def test_reads_entries_in_recorded_order(journal: Journal) -> None:
    for number in range(5000):
        journal.record(entry(number))
    assert journal.flush()
    rows = journal.read(limit=10_000)
    assert [row.seq for row in rows] == list(range(1, 5001))
    assert [tuple(row[1:]) for row in rows] == [entry(number) for number in range(5000)]


def test_writes_group_in_one_commit(journal: Journal) -> None:
    for group in range(3):
        for number in range(1000):
            journal.record(entry(group * 1000 + number))
        assert journal.flush()
    assert journal.commits == 3
    assert journal.health().written == 3000


def test_writer_commits_group_without_flush(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db", group_seconds=0.001)
    for number in range(100):
        journal.record(entry(number))
    # Nobody asks for a flush: the writer must wake up, gather and commit on its own.
    with journal._progress:
        assert journal._progress.wait_for(lambda: journal._written == 100, HANG_TIMEOUT)
    assert journal.commits < 100
    journal.close()


def test_wakes_sleeping_writer_for_each_entry(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db", group_seconds=0.0)
    for number in range(300):
        journal.record(entry(number))
        with journal._progress:
            assert journal._progress.wait_for(
                lambda n=number: journal._written == n + 1, HANG_TIMEOUT
            )
    journal.close()


class RecordsInBetween(Journal):
    """A journal with an entry that arrives between the last check and the writer's sleep."""

    @property
    def _idle(self) -> bool:
        return bool(Journal._idle.__get__(self))  # type: ignore[attr-defined]

    @_idle.setter
    def _idle(self, value: bool) -> None:
        if value and self._commits == 1:
            self.record(entry(2))
        Journal._idle.__set__(self, value)  # type: ignore[attr-defined]


def test_wakes_writer_that_is_falling_asleep(tmp_path: Path) -> None:
    journal = RecordsInBetween(tmp_path / "journal.db", group_seconds=0.0)
    journal.record(entry(1))
    with journal._progress:
        assert journal._progress.wait_for(lambda: journal._written == 2, HANG_TIMEOUT)
    journal.close()


def test_flush_of_empty_journal_returns_immediately(journal: Journal) -> None:
    assert journal.flush(0)
    assert journal.commits == 0


def test_flushes_from_event_loop(journal: Journal) -> None:
    async def run() -> bool:
        journal.record(entry(1))
        return await journal.flush_async()

    assert asyncio.run(run())
    assert len(journal.read()) == 1


def test_loses_no_entry_between_threads(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db", group_seconds=0.0)
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:

        def run(thread: int) -> None:
            for number in range(5000):
                journal.record(entry(number, name=f"thread.{thread}"))
                if number % 500 == 0:
                    assert journal.flush()

        threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert journal.flush()
    finally:
        sys.setswitchinterval(switch)
    rows = journal.read(limit=100_000)
    for thread_number in range(4):
        mine = [row.time_ns for row in rows if row.name == f"thread.{thread_number}"]
        assert mine == list(range(5000))
    assert journal.close().lost == 0


def test_close_writes_pending_entries(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db", group_seconds=NEVER)
    journal.record(entry(1))
    assert journal.close() == ("ok", "", 0, 0, 1, 0)
    assert journal.close().written == 1
    assert [row.time_ns for row in JournalReader(journal.path).read()] == [1]


def test_counts_entries_after_close_as_lost(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db")
    journal.close()
    journal.record(entry(1))
    assert journal.health().lost == 1


def test_reopened_journal_continues_numbering(tmp_path: Path) -> None:
    for number in range(3):
        journal = Journal(tmp_path / "journal.db")
        journal.record(entry(number))
        journal.close()
    assert [(row.seq, row.time_ns) for row in JournalReader(tmp_path / "journal.db").read()] == [
        (1, 0),
        (2, 1),
        (3, 2),
    ]


def test_file_and_folder_are_private(tmp_path: Path) -> None:
    path = tmp_path / "state" / "journal.db"
    journal = Journal(path)
    journal.record(entry(1))
    assert journal.flush()
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    for file in (path, path.with_name("journal.db-wal"), path.with_name("journal.db-shm")):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    journal.close()


def test_uses_wal_mode(journal: Journal) -> None:
    with sqlite3.connect(journal.path) as shell:
        assert shell.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    shell.close()


def test_sqlite_shell_sees_pages_as_rows(journal: Journal) -> None:
    for number in range(3):
        journal.record(entry(number, name=f"jira.tool_{number}"))
    assert journal.flush()
    journal.record(entry(3, name='a "quoted" näme'))
    assert journal.flush()
    with sqlite3.connect(journal.path) as shell:
        rows = shell.execute("SELECT seq, time_ns, name, duration_us FROM entry").fetchall()
    shell.close()
    assert rows == [
        (1, 0, "jira.tool_0", 412),
        (2, 1, "jira.tool_1", 412),
        (3, 2, "jira.tool_2", 412),
        (4, 3, 'a "quoted" näme', 412),
    ]


def test_reads_after_number_across_pages(journal: Journal) -> None:
    for number in range(1, 31):
        journal.record(entry(number))
        if number % 10 == 0:
            assert journal.flush()
    assert [row.seq for row in journal.read(after_seq=8, limit=5)] == [9, 10, 11, 12, 13]
    assert [row.seq for row in journal.read(after_seq=20)] == list(range(21, 31))
    assert journal.read(after_seq=30) == []
    assert [row.seq for row in journal.tail(12)] == list(range(19, 31))


def test_searches_by_name_caller_outcome_and_time(journal: Journal) -> None:
    for number in range(10):
        journal.record(entry(number, name=f"jira.tool_{number}"))
    assert journal.flush()
    journal.record(entry(10, name="files.read", outcome="tool_error"))
    journal.record((11, "token:ci", "mcp", "tools/call", "files.read", "f", "r", "ok", 1, ""))
    assert journal.flush()

    def search_times(**question: object) -> list[int]:
        return [row.time_ns for row in journal.search(**question)]  # type: ignore[arg-type]

    assert search_times(name="files.*") == [11, 10]
    assert search_times(name="jira.tool_[12]") == [2, 1]
    assert search_times(name="JIRA.*") == []
    assert search_times(outcome="tool_error") == [10]
    assert search_times(caller="token:ci") == [11]
    assert search_times(since_ns=8) == [11, 10, 9, 8]
    assert search_times(name="jira.*", since_ns=8) == [9, 8]
    assert search_times(limit=2) == [11, 10]
    assert search_times(limit=0) == []


def test_retention_keeps_newest_entries_up_to_limit(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db", max_rows=100, group_seconds=NEVER)
    for number in range(1, 1001):
        journal.record(entry(number))
        if number % 30 == 0:
            assert journal.flush()
    assert journal.flush()
    journal.close()
    rows = JournalReader(journal.path).read(limit=10_000)
    assert [row.seq for row in rows] == list(range(rows[0].seq, rows[-1].seq + 1))
    assert 100 <= len(rows) < 140
    # What the journal noted about itself when it removed some is among them.
    numbers = [row.time_ns for row in rows if row.face != "journal"]
    assert numbers == list(range(numbers[0], 1001))
    assert len(numbers) >= 90


def test_retention_applies_lowered_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_retention, "_MAX_PAGES", 64)
    journal = Journal(tmp_path / "journal.db", group_seconds=NEVER)
    for number in range(300):
        journal.record(entry(number))
        assert journal.flush()
    journal.close()
    journal = Journal(tmp_path / "journal.db", max_rows=10, group_seconds=NEVER)
    journal.record(entry(300))
    assert journal.flush()
    # Small bites: one commit has deleted at most that much.
    assert len(journal.read(limit=1000)) >= 301 - 64
    for number in range(5):
        journal.record(entry(301 + number))
        assert journal.flush()
    journal.close()
    rows = JournalReader(journal.path).read()
    assert len(rows) == 11
    assert [row.time_ns for row in rows if row.face != "journal"] == list(range(301, 306))


def test_reader_sees_whole_commits(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db", group_seconds=0.0)
    stop = threading.Event()
    problems: list[str] = []

    def read_on() -> None:
        reader = JournalReader(journal.path)
        seen = 0
        while not stop.is_set():
            rows = reader.read(limit=100_000)
            if [row.seq for row in rows] != list(range(1, len(rows) + 1)) or len(rows) < seen:
                problems.append(f"{len(rows)} rows after {seen}")
            seen = len(rows)

    thread = threading.Thread(target=read_on)
    thread.start()
    for number in range(50):
        for _ in range(20):
            journal.record(entry(number))
        assert journal.flush()
    stop.set()
    thread.join()
    assert not problems
    assert journal.close() == ("ok", "", 0, 0, 1000, 0)


CHILD = """
import sys
from interlock.core.journal import retention as journal_retention
from interlock.core.journal.journal import Journal
journal = Journal(sys.argv[1], group_seconds=float(sys.argv[3]))
every = int(sys.argv[5])
for number in range(int(sys.argv[2])):
    journal.record((number, sys.argv[4], "mcp", "tools/call", "n", "u", "e", "ok", 1, ""))
    if number % every == every - 1 and not journal.flush(30):
        sys.exit("not flushed: " + journal.health().reason)
print("flushed", flush=True)
journal.record((-1, "unflushed", "", "", "", "", "", "", 1, ""))
sys.stdin.read()
"""


@pytest.mark.parametrize(("count", "every"), [(1000, 100), (1028, 257), (1024, 256), (5000, 5000)])
def test_flushed_entries_survive_kill_9(tmp_path: Path, count: int, every: int) -> None:
    path = tmp_path / "journal.db"
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(path), str(count), str(NEVER), "child", str(every)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"flushed\n"
    child.kill()
    child.communicate()
    rows = JournalReader(path).read(limit=10_000)
    assert [row.time_ns for row in rows if row.caller == "child"] == list(range(count))
    journal = Journal(path)
    journal.record(entry(7))
    journal.close()
    assert JournalReader(path).tail(1)[0].time_ns == 7


def test_two_processes_share_journal(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    children = [
        subprocess.Popen(
            [sys.executable, "-c", CHILD, str(path), "2000", "0.001", caller, "100"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for caller in ("one", "two")
    ]
    for child in children:
        output, _ = child.communicate(b"")
        assert child.returncode == 0
        assert output == b"flushed\n"
    rows = JournalReader(path).read(limit=10_000)
    assert [row.seq for row in rows] == list(range(1, len(rows) + 1))
    for caller in ("one", "two"):
        assert [row.time_ns for row in rows if row.caller == caller] == list(range(2000))
