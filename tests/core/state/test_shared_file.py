"""A file that a node and the command line share: change detection, locks and errors."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from interlock.contracts.tool_records import ObservedTool, ToolRecordStore, create_record
from interlock.core.state.database import DatabaseKind, transaction
from interlock.core.state.shared_database import SharedFile
from interlock.errors import CONFIG, TOO_BUSY, InterlockError
from tests.support.timeouts import HANG_TIMEOUT

KIND = DatabaseKind(0x494C5453, 1, ("CREATE TABLE word (it TEXT)",), "The store of words", "words")
COUNT = "SELECT count(*) FROM word"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "words.db"


@pytest.fixture
def file(path: Path) -> Iterator[SharedFile]:
    opened = open_shared(path)
    yield opened
    opened.close()


def open_shared(path: Path | None, *, checked: bool = False) -> SharedFile:
    return SharedFile(
        path, KIND, busy_timeout=2.0, removal_effect="no word is known", check_integrity=checked
    )


def count(file: SharedFile) -> int:
    with file.reading() as reading:
        return int(reading.execute(COUNT).fetchone()[0])


def test_notices_only_external_writes(path: Path, file: SharedFile) -> None:
    other = open_shared(path)
    with file.writing() as writing:
        writing.execute("INSERT INTO word VALUES ('one')")
    assert not file.was_changed_externally()
    assert other.was_changed_externally()
    assert not other.was_changed_externally()
    assert count(other) == 1
    other.close()


@pytest.mark.parametrize("patience", [None, 0.1])
def test_closed_file_raises_without_waiting(path: Path, patience: float | None) -> None:
    file = open_shared(path)
    file.close()
    for _ in range(2):
        with pytest.raises(InterlockError, match="cannot be used"), file.reading(patience) as it:
            it.execute(COUNT)
        assert not file._lock.locked()


def test_failed_write_is_rolled_back(file: SharedFile) -> None:
    def write() -> None:
        with file.writing() as writing:
            writing.execute("INSERT INTO word VALUES ('one')")
            raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        write()
    assert count(file) == 0
    with file.writing() as writing:
        writing.execute("INSERT INTO word VALUES ('two')")
    assert count(file) == 1


def test_does_not_roll_back_ended_transaction(file: SharedFile) -> None:
    file.connection.execute("CREATE TABLE once (it TEXT UNIQUE ON CONFLICT ROLLBACK)")
    twice = [("one",), ("one",)]
    with pytest.raises(sqlite3.IntegrityError), transaction(file.connection) as writing:
        writing.executemany("INSERT INTO once VALUES (?)", twice)
    assert not file.connection.in_transaction


def test_short_timeout_does_not_wait_for_other_process(path: Path, file: SharedFile) -> None:
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    with pytest.raises(InterlockError, match="used by another program") as caught:
        with file.reading(0) as reading:
            reading.execute(COUNT)
    assert caught.value.failure is TOO_BUSY
    # The next one has as much patience as ever.
    assert file.connection.execute("PRAGMA busy_timeout").fetchone() == (2000,)
    holder.execute("ROLLBACK")
    holder.close()
    assert count(file) == 0


def test_short_timeout_does_not_wait_for_other_thread(file: SharedFile) -> None:
    inside, done = threading.Event(), threading.Event()

    def write() -> None:
        with file.writing():
            inside.set()
            done.wait(HANG_TIMEOUT)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert inside.wait(HANG_TIMEOUT)
        with pytest.raises(InterlockError, match="is being written") as caught, file.reading(0):
            pass
        assert caught.value.failure is TOO_BUSY
    finally:
        done.set()
        writer.join()


def test_error_for_broken_file_explains_removal(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"no database at all, " * 100)
    with pytest.raises(InterlockError) as caught:
        open_shared(path)
    assert caught.value.failure is CONFIG
    assert caught.value.message.startswith(f"The store of words {path} cannot be used: ")
    assert caught.value.message.endswith(
        "Restore it from a copy, or remove it: then no word is known."
    )


@pytest.mark.parametrize("checked", [False, True], ids=["unchecked", "checked"])
def test_integrity_check_finds_unreadable_page(path: Path, checked: bool) -> None:
    file = open_shared(path)
    with file.writing() as writing:
        writing.executemany("INSERT INTO word VALUES (?)", [("x" * 900,)] * 50)
    file.close()
    raw = bytearray(path.read_bytes())
    raw[2 * 4096 : 5 * 4096] = b"\xff" * (3 * 4096)
    path.write_bytes(raw)
    if checked:
        with pytest.raises(InterlockError) as caught:
            open_shared(path, checked=True)
        assert caught.value.failure is CONFIG
    else:
        open_shared(path).close()


def test_peek_does_not_wait_for_writer(tmp_path: Path) -> None:
    """It is asked for on the loop, where everybody else would wait as well."""
    path = tmp_path / "sightings.db"
    tool_records = ToolRecordStore(path)
    tool_records.write([create_record(ObservedTool("shop.echo", "shop", "d", b"{}"), 1.0)])
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    assert tool_records.peek("shop.echo") is None
    holder.execute("ROLLBACK")
    holder.close()
    result = tool_records.peek("shop.echo")
    assert result is not None
    assert result.digest == "d"
    tool_records.close()
