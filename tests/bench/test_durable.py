"""The durable benchmark: its counts and bars."""

from __future__ import annotations

from pathlib import Path

from bench import durable
from interlock.core.journal.reader import JournalReader


def test_single_call_syncs_once(tmp_path: Path) -> None:
    figure = durable.journal_alone(tmp_path / "journal.db", 1, 0.05)
    assert figure.syncs_per_call == 1.0
    assert figure.per_second > 0
    assert JournalReader(tmp_path / "journal.db").tail(1)[0].outcome == "dispatching"
    assert durable.commits(tmp_path / "journal.db") >= 1


def test_concurrent_calls_share_syncs(tmp_path: Path) -> None:
    figure = durable.journal_alone(tmp_path / "journal.db", 16, 0.1)
    assert figure.syncs_per_call is not None
    assert figure.syncs_per_call < 1.0


def test_measures_disk_rate(tmp_path: Path) -> None:
    assert durable.disk(tmp_path, 0.02).per_second > 0


def test_missed_bar_reports_extra_syncs() -> None:
    valid = {
        "disk": {"per_second": 1000.0, "syncs_per_call": None},
        "journal c1": {"per_second": 900.0, "syncs_per_call": 1.0},
        "journal c16": {"per_second": 9000.0, "syncs_per_call": 0.1},
        "node mutating c1": {"per_second": 700.0, "syncs_per_call": 1.01},
        "node mutating c16": {"per_second": 5000.0, "syncs_per_call": 0.2},
    }
    assert [bar.met for bar in durable.judge(valid)] == [True] * 5  # type: ignore[arg-type]
    worse = {**valid, "journal c1": {"per_second": 900.0, "syncs_per_call": 2.0}}
    assert durable.judge(worse)[0].met is False  # type: ignore[arg-type]
    assert durable.judge({})[0].met is None
