"""Chunks and pages of the journal: no entry is lost at their bounds."""

from __future__ import annotations

import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from interlock.core.journal import writer as journal_writer
from interlock.core.journal.journal import Entry, Journal, JournalReader
from interlock.core.journal.writer import (
    CHUNK_ENTRIES,
    PAGE_BYTES,
    PAGE_ENTRIES,
    Fragment,
    encode_fragment,
    join_pages,
)
from tests.support.timeouts import HANG_TIMEOUT

NEVER = 3600.0


def entry(number: int, name: str = "jira.get", detail: str = "") -> Entry:
    return (number, "loopback", "mcp", "tools/call", name, "jira", "read", "ok", 9, detail)


def times(path: Path) -> list[int]:
    return [row.time_ns for row in JournalReader(path).read(limit=1_000_000)]


@pytest.fixture
def fast_thread_switches() -> Iterator[None]:
    """Switch threads as often as possible."""
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(switch)


@pytest.mark.parametrize("count", [0, 1, 255, 256, 257, 511, 512, 513])
def test_keeps_every_entry_around_chunk_bounds(tmp_path: Path, count: int) -> None:
    journal = Journal(tmp_path / "journal.db", group_seconds=NEVER)
    for number in range(count):
        journal.record(entry(number))
    assert journal.health().pending == count
    assert journal.flush()
    assert times(journal.path) == list(range(count))
    journal.record(entry(count))
    assert journal.close() == ("ok", "", 0, 0, count + 1, 0)
    assert times(journal.path) == list(range(count + 1))


def test_encodes_pending_entries_except_last_chunk(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db", group_seconds=NEVER)
    for number in range(10 * CHUNK_ENTRIES + 1):
        journal.record(entry(number))
    assert [fragment.entries for fragment in journal._fragments] == [CHUNK_ENTRIES] * 10
    assert len(journal._pending) == 1
    journal.close()


def test_writes_large_group_as_several_pages_in_one_commit(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db", group_seconds=NEVER)
    journal.record(entry(0))
    assert journal.flush()
    for number in range(1, 10_001):
        journal.record(entry(number))
    assert journal.flush()
    assert journal.commits == 2
    with closing(sqlite3.connect(journal.path)) as shell:
        pages = shell.execute(
            "SELECT last_seq, count, newest_ns, json_array_length(body), typeof(body) FROM page "
            "ORDER BY last_seq"
        ).fetchall()
    assert len(pages) == 7
    end = 0
    for last_seq, count, newest_ns, length, kind in pages:
        end += count
        assert (last_seq, newest_ns, length, kind) == (end, end - 1, count, "text")
        assert count <= PAGE_ENTRIES
    rows = journal.read(limit=20_000)
    assert [(row.seq, row.time_ns) for row in rows] == [(n + 1, n) for n in range(10_001)]
    journal.close()


def test_splits_entries_above_commit_limit(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db", group_seconds=NEVER)
    for number in range(40_000):
        journal.record(entry(number))
    assert journal.close() == ("ok", "", 0, 0, 40_000, 0)
    assert 2 <= journal.commits <= 4
    assert times(journal.path) == list(range(40_000))


@pytest.mark.usefixtures("fast_thread_switches")
def test_concurrent_recorders_keep_order_without_loss(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db", group_seconds=0.0)
    start = threading.Barrier(4)

    def run(thread: int) -> None:
        start.wait()
        for number in range(10_000):
            journal.record(entry(number, name=f"thread.{thread}"))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert journal.close() == ("ok", "", 0, 0, 40_000, 0)
    rows = JournalReader(journal.path).read(limit=100_000)
    assert [row.seq for row in rows] == list(range(1, 40_001))
    for number in range(4):
        mine = [row.time_ns for row in rows if row.name == f"thread.{number}"]
        assert mine == list(range(10_000))


@pytest.mark.usefixtures("fast_thread_switches")
def test_close_during_recording_accounts_for_every_entry(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db", group_seconds=0.0)
    half_way = threading.Barrier(4)

    def run() -> None:
        for number in range(4_000):
            if number == 2_000:
                half_way.wait()
            journal.record(entry(number))

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    half_way.wait()
    journal.close()
    for thread in threads:
        thread.join()
    health = journal.health()
    assert health.written + health.lost + health.pending == 12_000
    # The last commit may also say how many were lost by then.
    verbs = [row.verb for row in JournalReader(journal.path).read(limit=20_000)]
    assert verbs.count("tools/call") == health.written
    assert health.written >= 6_000


def test_recorder_does_not_wait_for_lock(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db", group_seconds=NEVER)
    with journal._lock:
        for number in range(3 * CHUNK_ENTRIES):
            journal.record(entry(number))
        assert not journal._fragments
    assert journal.close() == ("ok", "", 0, 0, 3 * CHUNK_ENTRIES, 0)
    assert times(journal.path) == list(range(3 * CHUNK_ENTRIES))


def test_applies_pending_limit_across_chunks(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db", max_pending=1000, group_seconds=NEVER)
    with closing(sqlite3.connect(journal.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        for number in range(600):
            journal.record(entry(number))
        while not journal.health().reason:
            journal.flush(0.01)
        for number in range(600, 1500):
            journal.record(entry(number))
        health = journal.health()
        assert (health.state, health.pending, health.lost, health.written) == (
            "failing",
            1000,
            500,
            0,
        )
        other.execute("ROLLBACK")
    assert journal.flush()
    assert journal.health() == ("ok", "", 0, 500, 1000, 0)
    rows = journal.read(limit=2000)
    assert [row.time_ns for row in rows[:1000]] == list(range(1000))
    assert [row.verb for row in rows[1000:]] == ["lost"]
    assert rows[1000].detail.startswith("500 entries")
    journal.close()


class UnprintableValue:
    """A value whose text cannot be built."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


def deep_list() -> list[Any]:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    return deep


@pytest.mark.parametrize(
    ("invalid", "results"),
    [
        ((7, "", "", "", "lone \ud800", "", "", "", 1, ""), ("lone \\ud800", "")),
        ((7, "", "", "", "n"), ("n", "")),
        ((7, "", "", "", "n", "", "", "", 1, "x" * (PAGE_BYTES + 1)), ("n", "x" * 2000)),
        (
            (7, "", "", "", UnprintableValue(), "", "", "", 1, ""),
            ("<UnprintableValue: RuntimeError>", ""),
        ),
        (None, ("", "None")),
        ("0123456789", ("", "0123456789")),
        (dict.fromkeys(range(1, 11)), ("", str(dict.fromkeys(range(1, 11))))),
    ],
    ids=["surrogate", "short", "long", "unprintable", "none", "text", "mapping"],
)
@pytest.mark.parametrize("place", [0, 128, 255, 256])
def test_unencodable_entry_keeps_its_neighbours(
    tmp_path: Path, invalid: Any, results: tuple[str, str], place: int
) -> None:
    journal = Journal(tmp_path / "journal.db", group_seconds=NEVER)
    # Longer than a sanitize_entry text may be: the sound ones must be stored as they came.
    recorded: list[Any] = [entry(number, detail="y" * 3000) for number in range(300)]
    recorded[place] = invalid
    for item in recorded:
        journal.record(item)
    assert journal.close() == ("ok", "", 0, 0, 300, 0)
    rows = JournalReader(journal.path).read()
    assert len(rows) == 300
    for number, row in enumerate(rows):
        if number == place:
            assert (row.name, row.detail) == results
        else:
            assert tuple(row[1:]) == recorded[number]


@pytest.mark.parametrize("make", [lambda: None, deep_list, lambda: ("later",), lambda: (2**70,)])
def test_counts_unencodable_entry_above_limit(tmp_path: Path, make: Callable[[], Any]) -> None:
    journal = Journal(tmp_path / "journal.db", max_pending=1, group_seconds=NEVER)
    journal.record(make())
    journal.record(make())
    assert journal.close() == ("ok", "", 0, 1, 1, 0)
    assert JournalReader(journal.path).tail(1)[0].verb == "lost"


def test_notices_moved_file_without_flush(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_writer, "_IDENTITY_SECONDS", 0.0)
    journal = Journal(tmp_path / "journal.db", group_seconds=0.0)
    journal.path.rename(tmp_path / "aside.db")
    journal.record(entry(1))
    with journal._progress:
        assert journal._progress.wait_for(lambda: journal._written == 1, HANG_TIMEOUT)
    assert times(journal.path) == [1]
    journal.close()


def test_splits_pages_at_limits() -> None:
    thousand = Fragment(b"1", 1000, 5)
    assert [page.entries for page in join_pages([thousand] * 5)] == [2000, 2000, 1000]
    large = Fragment(b"2" * (PAGE_BYTES // 2 + 1), 1, 9)
    assert [page.entries for page in join_pages([large, large, thousand])] == [1, 1001]
    assert join_pages([Fragment(b"1", 1, 5), Fragment(b"2", 1, 9), Fragment(b"3", 1, 7)]) == [
        (b"[1,2,3]", 3, 9)
    ]
    assert join_pages([]) == []


def test_fragment_has_newest_time() -> None:
    fragment = encode_fragment([entry(5), entry(9), entry(7)])
    assert (fragment.entries, fragment.newest_ns) == (3, 9)
    assert encode_fragment([entry(5), (2**70,)]).newest_ns == 2**63 - 1
