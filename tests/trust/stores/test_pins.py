"""The store of pins: two processes on one file, accepted contracts, and failing disks."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from interlock.errors import CONFIG, TOO_BUSY, InterlockError
from interlock.trust.pin_store import (
    REQUEST_LIFETIME_SECONDS,
    NodePinStore,
    Pin,
    PinStore,
    SeenContract,
    SeenRemoval,
)
from tests.support.timeouts import HANG_TIMEOUT

ONE = Pin("files.delete", "d1", b'{"name":"delete"}', "ada", 1000.0)
OTHER = SeenContract("files.delete", "d2", b'{"name":"delete","title":"x"}', 2000.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "pins.db"


@pytest.fixture
def store(path: Path) -> Iterator[PinStore]:
    one = PinStore(path, clock=lambda: 5000.0)
    yield one
    one.close()


def test_stored_pins_can_be_loaded(path: Path, store: PinStore) -> None:
    store.write([ONE, OTHER])
    other = PinStore(path)
    assert other.pins() == [ONE]
    assert other.pin("files.delete") == ONE
    assert other.pin("files.other") is None
    assert other.digests() == {"files.delete": "d1"}
    assert other.all_seen() == {"files.delete": OTHER}
    other.close()
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_accept_applies_only_to_shown_contract(store: PinStore) -> None:
    """What was seen meanwhile stays seen: it was not shown to anybody."""
    store.write([ONE, OTHER])
    newer = OTHER._replace(digest="d3")
    store.write([newer])
    pin = store.accept(OTHER, "bert")
    assert pin == Pin("files.delete", "d2", OTHER.definition, "bert", 5000.0)
    assert store.pins() == [pin]
    assert store.find_seen_contract("files.delete") == newer
    store.accept(newer, "bert")
    assert store.find_seen_contract("files.delete") is None


def test_restored_contract_clears_seen_change(store: PinStore) -> None:
    store.write([ONE, OTHER])
    store.write([SeenRemoval("files.delete")])
    assert store.all_seen() == {}
    assert store.pins() == [ONE]


def test_removed_pin_is_gone(store: PinStore) -> None:
    store.write([ONE, OTHER])
    assert store.remove("files.delete")
    assert not store.remove("files.delete")
    assert (store.pins(), store.all_seen()) == ([], {})


def test_external_change_is_reported_to_other_processes_only(path: Path, store: PinStore) -> None:
    other = PinStore(path)
    store.write([ONE])
    assert not store.was_changed_externally()
    assert other.was_changed_externally()
    assert not other.was_changed_externally()
    other.remove("files.delete")
    assert store.was_changed_externally()
    other.close()


def test_contract_request_expires(path: Path) -> None:
    now = [1000.0]
    store = PinStore(path, clock=lambda: now[0])
    store.write([OTHER])
    store.request_contract("files.delete")
    # What was seen before may be old.
    assert store.find_seen_contract("files.delete") is None
    assert store.requested_tools() == ["files.delete"]
    store.write([OTHER])
    assert store.requested_tools() == []
    store.request_contract("files.x")
    now[0] += REQUEST_LIFETIME_SECONDS
    assert store.requested_tools() == []
    store.close()


def test_failed_write_stores_nothing(store: PinStore) -> None:
    bad: Any = Pin("files.x", None, b"", "", 0.0)  # type: ignore[arg-type]
    with pytest.raises(InterlockError):
        store.write([ONE, bad])
    assert store.pins() == []
    store.write([ONE])
    assert store.pins() == [ONE]


def test_refuses_unreadable_file(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"this is no database" * 100)
    for opened in (PinStore, PinStore.open):
        with pytest.raises(InterlockError) as error:
            opened(path)
        assert error.value.failure is CONFIG
        assert "every tool must be accepted again" in error.value.message


def test_detects_corrupt_page_at_start(path: Path, store: PinStore) -> None:
    store.write([ONE._replace(tool=f"t{n}", definition=b"x" * 500) for n in range(100)])
    store.close()
    whole = bytearray(path.read_bytes())
    whole[3 * 4096 : 3 * 4096 + 4096] = b"\xff" * 4096
    path.write_bytes(whole)
    with pytest.raises(InterlockError) as error:
        PinStore.open(path)
    assert error.value.failure is CONFIG


def test_refuses_file_of_other_program(path: Path) -> None:
    path.parent.mkdir()
    with sqlite3.connect(path) as file:
        file.execute("CREATE TABLE theirs (x)")
    file.close()
    with pytest.raises(InterlockError, match="another program's database"):
        PinStore(path)


def test_refuses_file_of_newer_version(path: Path, store: PinStore) -> None:
    store.close()
    with sqlite3.connect(path) as file:
        file.execute("PRAGMA user_version = 99")
    file.close()
    with pytest.raises(InterlockError, match="newer Interlock"):
        PinStore(path)


def test_unusable_folder_keeps_pins_in_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "state").write_text("a file where a folder should be")
    store = PinStore.open(tmp_path / "state" / "pins.db")
    assert "when the node stops" in caplog.text
    store.write([ONE])
    assert store.pins() == [ONE]
    store.close()


def test_locked_file_times_out(path: Path, store: PinStore) -> None:
    store.write([ONE])
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    with pytest.raises(InterlockError) as error:
        store.pin("files.delete", timeout=0)
    assert error.value.failure is TOO_BUSY
    holder.execute("ROLLBACK")
    holder.close()
    assert store.pin("files.delete", timeout=0) == ONE


# -- the keeper


class PinListener:
    """Where the keeper delivers; a test waits for what it said."""

    def __init__(self) -> None:
        self.changes: list[tuple[dict[str, str | None], list[str]]] = []
        self._happened = threading.Semaphore(0)

    def __call__(self, changes: Any, wanted: Any) -> None:
        self.changes.append((dict(changes), list(wanted)))
        self._happened.release()

    def next(self) -> tuple[dict[str, str | None], list[str]]:
        assert self._happened.acquire(timeout=HANG_TIMEOUT)
        return self.changes[-1]


class NodePins:
    """A keeper that looks only when it is told to, and somebody else with the same file."""

    def __init__(self, path: Path) -> None:
        self.told = PinListener()
        self.other = PinStore(path)
        self.keeper = NodePinStore(
            PinStore(path), lambda what: what(), interval=1000.0, clock=lambda: 7.0
        )
        self.keeper.on_changed = self.told
        self.keeper.start()

    def written(self) -> PinStore:
        """The file once everything has been written."""
        self.keeper.close()
        return self.other


@pytest.fixture
def node_pins(path: Path) -> Iterator[NodePins]:
    one = NodePins(path)
    yield one
    one.keeper.close()
    one.other.close()


def test_stores_pins_of_node(node_pins: NodePins) -> None:
    node_pins.keeper.store_pin("a.x", "d", b"{}", "ada")
    node_pins.keeper.record_seen("a.x", "e", b"{1}")
    node_pins.keeper.record_seen("a.y", "e", b"{1}")
    node_pins.keeper.remove_seen("a.y")
    store = node_pins.written()
    assert store.pins() == [Pin("a.x", "d", b"{}", "ada", 7.0)]
    assert store.all_seen() == {"a.x": SeenContract("a.x", "e", b"{1}", 7.0)}
    assert not node_pins.told.changes


def test_notices_external_changes(node_pins: NodePins) -> None:
    node_pins.other.write([ONE])
    node_pins.keeper.sync()
    assert node_pins.told.next() == ({"files.delete": "d1"}, [])
    node_pins.other.request_contract("files.x")
    node_pins.keeper.sync()
    assert node_pins.told.next() == ({}, ["files.x"])
    node_pins.other.remove("files.delete")
    node_pins.keeper.sync()
    assert node_pins.told.next()[0] == {"files.delete": None}


def test_polls_external_changes_by_itself(path: Path) -> None:
    """Nobody has to poke it."""
    told, other = PinListener(), PinStore(path)
    keeper = NodePinStore(PinStore(path), lambda what: what(), interval=0.01)
    keeper.on_changed = told
    keeper.start()
    other.write([ONE])
    assert told.next() == ({"files.delete": "d1"}, [])
    keeper.close()
    other.close()


def test_loads_existing_pins_at_start(path: Path, store: PinStore) -> None:
    store.write([ONE, OTHER])
    keeper = NodePinStore(PinStore(path), lambda what: what())
    assert keeper.digests() == {"files.delete": "d1"}
    assert keeper.seen_digests() == {"files.delete": "d2"}
    assert keeper.definition("files.delete") == ONE.definition
    assert keeper.definition("files.x") is None
    keeper.close()


def test_failed_write_is_retried(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """On a disk that is full."""
    store = PinStore(path)
    [pages] = store._file.connection.execute("PRAGMA page_count").fetchone()
    store._file.connection.execute(f"PRAGMA max_page_count = {pages}")
    keeper = NodePinStore(store, lambda what: what(), clock=lambda: 7.0)
    keeper.store_pin("a.x", "d", b"x" * 20_000, "ada")
    keeper._process_queue()
    keeper._process_queue()
    assert "full" in str(keeper.problem)
    assert caplog.text.count("full") == 1
    # Who asks meanwhile is told.
    assert keeper.definition("a.x") == b"x" * 20_000
    keeper.store_pin("a.y", "d", b"{}", "ada")
    store._file.connection.execute("PRAGMA max_page_count = 1000000")
    keeper._process_queue()
    assert str(keeper.problem) == "None"
    other = PinStore(path)
    assert other.digests() == {"a.x": "d", "a.y": "d"}
    other.close()
    keeper.close()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_read_only_file_is_reported(path: Path, store: PinStore) -> None:
    store.write([ONE])
    store.close()
    path.chmod(0o400)
    keeper = NodePinStore(PinStore(path), lambda what: what())
    assert keeper.digests() == {"files.delete": "d1"}
    keeper.store_pin("a.x", "d", b"{}", "ada")
    keeper._process_queue()
    assert keeper.problem is not None
    keeper.close()
