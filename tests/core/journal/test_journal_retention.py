"""Retention of journal entries: by age, with clocks that jump, in small steps."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from interlock.core.journal import retention as journal_retention
from interlock.core.journal.chain import append_pages, read_head
from interlock.core.journal.file import open_for_writing
from interlock.core.journal.journal import Entry, Journal, JournalReader
from interlock.core.journal.retention import Retention
from interlock.core.journal.verification import verify
from interlock.core.journal.writer import encode_fragment, join_pages

SECOND = 1_000_000_000
HOUR = 3600.0
START = 1_800_000_000.0


def entry(seconds: float) -> Entry:
    time_ns = int((START + seconds) * SECOND)
    return (time_ns, "local", "mcp", "tools/call", "jira.get", "jira", "read", "ok", 9, "")


class RetentionHarness:
    """A journal file with a wall clock and a monotonic clock."""

    def __init__(self, path: Path, max_age: float | None, max_rows: int | None = None) -> None:
        self.path = path
        self.wall = START
        self.clock = 50.0
        self.connection = open_for_writing(path)
        self.head = read_head(self.connection)
        self.retention = Retention(
            path,
            max_rows=max_rows,
            max_age=max_age,
            wall_ns=lambda: int(self.wall * SECOND),
            clock=lambda: self.clock,
        )

    def advance(self, seconds: float) -> None:
        self.wall += seconds
        self.clock += seconds

    def record(self, *moments: float) -> None:
        pages = join_pages([encode_fragment([entry(moment) for moment in moments])])
        head = append_pages(self.connection, self.head, pages)
        assert head is not None
        self.head = head
        self.retention.count_added(len(moments))

    def apply_retention(self) -> None:
        while self.retention.is_due():
            self.head = self.retention.apply(self.connection, self.head)

    @property
    def stored_times(self) -> list[int]:
        rows = JournalReader(self.path).read(limit=10_000)
        return [round(row.time_ns / SECOND - START) for row in rows if row.face != "journal"]


@pytest.fixture
def scenario(tmp_path: Path) -> Iterator[RetentionHarness]:
    made = RetentionHarness(tmp_path / "journal.db", max_age=HOUR)
    yield made
    made.connection.close()


def test_removes_entries_older_than_limit(scenario: RetentionHarness) -> None:
    for moment in range(0, 7200, 600):
        scenario.record(moment)
    scenario.advance(7200)
    scenario.apply_retention()
    assert scenario.stored_times == list(range(4200, 7200, 600))
    assert verify(scenario.path).is_intact


def test_removes_page_by_its_newest_entry(scenario: RetentionHarness) -> None:
    scenario.record(0, 600)
    scenario.advance(HOUR + 300)
    scenario.apply_retention()
    assert scenario.stored_times == [0, 600]
    scenario.advance(600)
    scenario.apply_retention()
    assert scenario.stored_times == []
    assert verify(scenario.path).is_intact


def test_empties_idle_journal_once(scenario: RetentionHarness) -> None:
    scenario.record(0)
    scenario.record(1)
    for _ in range(30):
        scenario.advance(HOUR)
        scenario.apply_retention()
    assert scenario.stored_times == []
    assert len(JournalReader(scenario.path).read()) == 1
    assert verify(scenario.path).is_intact


def test_checks_age_periodically(scenario: RetentionHarness) -> None:
    scenario.apply_retention()
    assert not scenario.retention.is_due()
    assert scenario.retention.check_interval == HOUR / 16
    scenario.advance(HOUR / 16)
    assert scenario.retention.is_due()
    assert Retention(scenario.path, max_age=1.0).check_interval == 1.0
    assert Retention(scenario.path, max_age=365 * 24 * HOUR).check_interval == HOUR
    assert Retention(scenario.path).check_interval is None
    assert not Retention(scenario.path).is_due()


def test_clock_jump_forward_removes_nothing(
    scenario: RetentionHarness, caplog: pytest.LogCaptureFixture
) -> None:
    scenario.record(0)
    scenario.apply_retention()
    scenario.advance(600)
    scenario.wall += 365 * 24 * HOUR
    scenario.apply_retention()
    assert scenario.stored_times == [0]
    assert "jumped" in caplog.text
    # It was an error, and is corrected.
    scenario.advance(600)
    scenario.wall -= 365 * 24 * HOUR
    scenario.apply_retention()
    assert scenario.stored_times == [0]
    # It holds for an hour: then it is right.
    scenario.advance(2 * HOUR)
    scenario.apply_retention()
    assert scenario.stored_times == []


def test_clock_jump_backward_keeps_entries_longer(scenario: RetentionHarness) -> None:
    for moment in (0, 10):
        scenario.record(moment)
    scenario.wall -= 24 * HOUR
    scenario.advance(HOUR)
    scenario.apply_retention()
    scenario.record(-24 * HOUR + HOUR)
    assert scenario.stored_times == [0, 10, -82800]
    assert [row.seq for row in JournalReader(scenario.path).read()] == [1, 2, 3]


def test_removes_entries_in_small_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_retention, "_MAX_BYTES", 1000)
    harness = RetentionHarness(tmp_path / "journal.db", max_age=None, max_rows=5)
    for moment in range(100):
        harness.record(moment)
    harness.head = harness.retention.apply(harness.connection, harness.head)
    assert 85 <= len(harness.stored_times) < 99
    harness.apply_retention()
    assert len(harness.stored_times) <= 5
    assert verify(tmp_path / "journal.db").is_intact
    harness.connection.close()


def test_two_journals_apply_limits_to_shared_file(tmp_path: Path) -> None:
    one = Journal(tmp_path / "journal.db", max_rows=20, group_seconds=HOUR)
    two = Journal(tmp_path / "journal.db", max_rows=20, group_seconds=HOUR)
    for number in range(100):
        for journal in (one, two):
            journal.record(entry(number))
            assert journal.flush()
    assert one.close().state == two.close().state == "ok"
    verdict = verify(tmp_path / "journal.db")
    assert verdict.findings == []
    assert verdict.entries < 60


def test_delays_retry_after_failed_cut(scenario: RetentionHarness) -> None:
    scenario.record(0)
    scenario.advance(2 * HOUR)
    with closing(sqlite3.connect(scenario.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        scenario.connection.execute("PRAGMA busy_timeout = 0")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            scenario.retention.apply(scenario.connection, scenario.head)
        other.execute("ROLLBACK")
    assert not scenario.connection.in_transaction
    assert not scenario.retention.is_due()
    scenario.advance(HOUR)
    scenario.apply_retention()
    assert scenario.stored_times == []


def test_idle_journal_removes_old_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_retention, "_MIN_INTERVAL_SECONDS", 0.001)
    path = tmp_path / "journal.db"
    journal = Journal(path, max_age=0.05, group_seconds=0.0)
    # Of 1970.
    journal.record((1, "local", "mcp", "tools/call", "jira.get", "jira", "read", "ok", 9, ""))
    assert journal.flush()
    reader = JournalReader(path)
    for _ in range(100_000):
        if [row.verb for row in reader.read()] == ["cut"]:
            break
    else:
        pytest.fail("it is still there")
    journal.close()
    assert verify(path).is_intact
