"""Tests of the decision store: files, duplicates, retention and failures."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from interlock.automation.config import AutomationConfig
from interlock.automation.dismissal import Dismissal
from interlock.automation.store import DecisionStore
from interlock.core.config import LearnedRule
from interlock.errors import CONFIG, UNRECORDABLE, InterlockError
from tests.automation.past_decisions import (
    NOW,
    make_decision_record,
    make_decisions,
    note_arguments,
)
from tests.core.state.delivery import HANG_TIMEOUT
from tests.support.clock import ManualClock

SETTINGS = AutomationConfig(keep=1_000_000.0, max_stored=50)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW + 1_000.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "decisions.db"


def open_store(
    path: Path | None, clock: ManualClock, settings: AutomationConfig = SETTINGS
) -> DecisionStore:
    return DecisionStore(path, deliver=lambda what: what(), settings=settings, wall_clock=clock)


@pytest.fixture
def store(path: Path, clock: ManualClock) -> Iterator[DecisionStore]:
    one = open_store(path, clock)
    yield one
    one.close()


def test_stores_decisions_privately(path: Path, store: DecisionStore, clock: ManualClock) -> None:
    made = make_decisions(note_arguments(3))
    for one in reversed(made):
        store.write(lambda one=one: one)
    store.close()
    other = open_store(path, clock)
    assert other.history() == made
    other.close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_reading_creates_no_file(path: Path, store: DecisionStore) -> None:
    assert store.history() == []
    assert not path.exists()


def test_stores_approval_once(store: DecisionStore) -> None:
    one = make_decision_record(note_arguments(1)[0], approval="same")
    store.write(lambda one=one: one)
    store.write(lambda: make_decision_record(note_arguments(1)[0], "refuse", approval="same"))
    store.close()
    assert store.history() == [one]


def test_two_nodes_share_file(path: Path, store: DecisionStore, clock: ManualClock) -> None:
    other = open_store(path, clock)
    made = make_decisions(note_arguments(4))
    for number, one in enumerate(made):
        (store, other)[number % 2].write(lambda one=one: one)
    store.close()
    other.close()
    assert other.history() == made


def test_removes_old_and_excess_decisions(
    path: Path, store: DecisionStore, clock: ManualClock
) -> None:
    made = make_decisions(note_arguments(120))
    for one in made:
        store.write(lambda one=one: one)
    store.close()
    clock.now = made[-1].time
    assert store.history() == made[-50:]
    # What is not looked at any more is not in the file for ever either.
    later = open_store(path, clock)
    clock.now = made[60].time + SETTINGS.keep
    later.write(lambda: make_decision_record(note_arguments(1)[0], time=clock.now))
    later.close()
    with closing(sqlite3.connect(path)) as file:
        [kept] = file.execute("SELECT count(*) FROM decision").fetchone()
    assert kept == 50
    clock.now += SETTINGS.keep
    assert len(later.history()) == 1
    later.configure(AutomationConfig(keep=1.0))
    clock.now += 2
    assert later.history() == []


def test_keeps_decisions_in_memory_without_file(clock: ManualClock) -> None:
    written = threading.Event()

    def deliver(what: Callable[[], None]) -> None:
        what()
        written.set()

    store = DecisionStore(None, deliver=deliver, settings=SETTINGS, wall_clock=clock)
    one = make_decision_record(note_arguments(1)[0])
    store.write(lambda one=one: one)
    assert written.wait(HANG_TIMEOUT)
    assert store.history() == [one]
    store.close()


def test_write_failure_is_only_logged(
    path: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    path.parent.mkdir(mode=0o700)
    path.write_bytes(b"this is no database, and it is long enough to be seen as none" * 20)
    store = open_store(path, clock)
    store.write(lambda: make_decision_record(note_arguments(1)[0]))
    store.close()
    assert "decision: not stored" in caplog.text
    assert str(path) in store.reason
    with pytest.raises(InterlockError) as trouble:
        store.history()
    assert trouble.value.failure is UNRECORDABLE


def test_rejects_foreign_database(path: Path, clock: ManualClock) -> None:
    path.parent.mkdir(mode=0o700)
    with closing(sqlite3.connect(path)) as file, file:
        file.execute("CREATE TABLE other (x)")
    before = path.read_bytes()
    store = open_store(path, clock)
    with pytest.raises(InterlockError, match="another program") as trouble:
        store.history()
    assert trouble.value.failure is CONFIG
    store.close()
    assert path.read_bytes() == before


def test_skips_unreadable_decision(
    path: Path, store: DecisionStore, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    made = make_decisions(note_arguments(2))
    for one in made:
        store.write(lambda one=one: one)
    store.close()
    with closing(sqlite3.connect(path)) as file, file:
        file.execute("UPDATE decision SET record = x'00' WHERE approval = ?", (made[0].approval,))
    assert store.history() == made[1:]
    assert "unreadable" in caplog.text


_WRITES_AND_DIES = """
import os, signal, sys, threading
from pathlib import Path
from interlock.automation.config import AutomationConfig
from interlock.core.config import LearnedRule
from interlock.automation.store import DecisionStore
from tests.automation.past_decisions import NOW, make_decision_record
told = threading.Semaphore(0)
store = DecisionStore(
    Path(sys.argv[1]), deliver=lambda what: (what(), told.release()),
    settings=AutomationConfig(), wall_clock=lambda: NOW,
)
store.write(lambda: make_decision_record({"path": "/a"}, approval="a", time=NOW))
told.acquire()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_written_decision_survives_kill(path: Path, clock: ManualClock) -> None:
    root = Path(__file__).parents[2]
    ended = subprocess.run(
        [sys.executable, "-c", _WRITES_AND_DIES, str(path)],
        env={**os.environ, "PYTHONPATH": str(root)},
        timeout=HANG_TIMEOUT,
        check=False,
    )
    assert ended.returncode == -9
    store = open_store(path, clock)
    assert [one.approval for one in store.history()] == ["a"]
    store.close()


# -- what nobody wants


def make_dismissal(id: str, **changes: Any) -> Dismissal:
    rule = LearnedRule(name=f"allow-{id}", then="allow", tools=["files.write"])
    return Dismissal(**{"id": id, "rule": rule, "by": "ada", "time": NOW, "agreed": 6, **changes})


def test_stores_and_restores_dismissals(
    path: Path, clock: ManualClock, store: DecisionStore
) -> None:
    # A file that was made before there was any such thing.
    store.write(lambda: make_decision_record(note_arguments(1)[0]))
    assert store.read_dismissals() == []
    store.dismiss(make_dismissal("s2", time=NOW + 1))
    store.dismiss(make_dismissal("s1"))
    store.dismiss(make_dismissal("s1", by="bert", reverted=True))
    again = open_store(path, clock)
    assert again.read_dismissals() == [
        make_dismissal("s1", by="bert", reverted=True),
        make_dismissal("s2", time=NOW + 1),
    ]
    again.restore(["s1", "never"])
    assert store.read_dismissals() == [make_dismissal("s2", time=NOW + 1)]
    again.close()


def test_skips_unreadable_dismissal(
    path: Path, store: DecisionStore, caplog: pytest.LogCaptureFixture
) -> None:
    assert store.read_dismissals() == []
    assert not path.exists()
    store.dismiss(make_dismissal("s1"))
    store.dismiss(make_dismissal("s2"))
    with closing(sqlite3.connect(path)) as file:
        file.execute("UPDATE dismissed SET record = x'00' WHERE id = 's1'")
        file.commit()
    assert [one.id for one in store.read_dismissals()] == ["s2"]
    assert "dismissal s1: unreadable" in caplog.text
