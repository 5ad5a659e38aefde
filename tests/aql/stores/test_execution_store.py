"""Tests of stored executions and notes: order, permissions, `kill -9` and failures."""

from __future__ import annotations

import os
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from interlock.aql.execution_states import ExecutionState
from interlock.aql.execution_store import Execution, ExecutionStore
from interlock.errors import InterlockError
from tests.core.state.delivery import HANG_TIMEOUT, Told

Loop = Told[bool]
OWNER = ("clerk", "token", "")


@pytest.fixture
def loop() -> Told[bool]:
    return Told[bool]()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "executions.db"


@pytest.fixture
def store(path: Path, loop: Told[bool]) -> Iterator[ExecutionStore]:
    store = ExecutionStore(path, deliver=loop.deliver)
    yield store
    store.close()


def execution(id: str = "exec_1", **more: Any) -> Execution:
    more.setdefault("created", 1.0)
    return Execution(
        id=id, owner=OWNER, operation="s_build", tool="s.build", category="EXECUTE", **more
    )


def write_record(
    store: ExecutionStore, loop: Told[bool], one: Execution, result: bytes | None = None
) -> bool:
    number = len(loop.became) + 1
    store.write(one, result, loop.then)
    return loop.wait(number)[-1]


def test_loads_stored_executions(store: ExecutionStore, loop: Told[bool]) -> None:
    one = execution("one", created=2.0, arguments=b'{"x":1}', status=ExecutionState.RUNNING)
    error = {"code": "X", "message": "m", "details": {"n": 2**80}}
    other = execution("other", error=error, progress={"percentage": 5.0})
    assert write_record(store, loop, one)
    assert write_record(store, loop, other)
    done = execution("one", created=2.0, status=ExecutionState.COMPLETED, size=4)
    assert write_record(store, loop, done, b"null")
    assert store.load() == [other, done]
    assert store.result("one") == b"null"
    assert store.result("other") is None
    assert store.result("nobody") is None
    store.delete(["other"])
    assert write_record(store, loop, done), "a retry leaves no result behind"
    assert store.result("one") is None
    assert [one.id for one in store.load()] == ["one"]


def test_groups_writes_in_few_commits(store: ExecutionStore, loop: Told[bool]) -> None:
    for number in range(200):
        store.write(execution(f"e{number}"), None, loop.then)
    assert loop.wait(200) == [True] * 200
    assert store.commits < 100


def test_only_owner_can_read_file(store: ExecutionStore, loop: Told[bool]) -> None:
    write_record(store, loop, execution())
    for found in store.path.parent.iterdir():  # type: ignore[union-attr]
        assert stat.S_IMODE(found.stat().st_mode) == 0o600


def test_waits_for_disk(store: ExecutionStore, loop: Told[bool]) -> None:
    write_record(store, loop, execution())
    with store._file.lock:
        [synchronous] = store._file.connect().execute("PRAGMA synchronous").fetchone()
    assert synchronous == 2


def test_running_executions_belong_to_their_node(path: Path, loop: Told[bool]) -> None:
    one, other = (ExecutionStore(path, deliver=loop.deliver) for _ in range(2))
    try:
        write_record(one, loop, execution("one", status=ExecutionState.RUNNING))
        assert other.load() == []
        other.delete(["one"])
        write_record(other, loop, execution("other"))
        assert [found.id for found in one.load()] == ["one"]
    finally:
        one.close()
    try:
        assert [found.id for found in other.load()] == ["one", "other"]
    finally:
        other.close()
    assert [found.name for found in path.parent.glob("*.lock")] == []


def test_failed_write_does_not_affect_others(store: ExecutionStore, loop: Told[bool]) -> None:
    store.write(execution("bad", progress={"total": object()}), None, loop.then)
    store.write(execution("good"), None, loop.then)
    assert loop.wait(2) == [False, True]
    assert [one.id for one in store.load()] == ["good"]


def test_closed_store_writes_nothing(store: ExecutionStore, loop: Told[bool]) -> None:
    write_record(store, loop, execution())
    store.close()
    assert write_record(store, loop, execution("late")) is False


def test_other_thread_may_close_store(path: Path, loop: Told[bool]) -> None:
    store = ExecutionStore(path, deliver=loop.deliver)
    write_record(store, loop, execution(), b"null")
    assert store.result("exec_1") == b"null"
    failed: list[BaseException] = []

    def close() -> None:
        try:
            store.close()
        except BaseException as error:
            failed.append(error)

    closing = threading.Thread(target=close)
    closing.start()
    closing.join(HANG_TIMEOUT)
    assert failed == []


def test_rejects_foreign_database(path: Path, loop: Told[bool]) -> None:
    path.parent.mkdir()
    with sqlite3.connect(path) as file:
        file.execute("CREATE TABLE theirs (x)")
    file.close()
    before = path.read_bytes()
    store = ExecutionStore(path, deliver=loop.deliver)
    assert write_record(store, loop, execution()) is False
    assert "another program's" in store.reason
    with pytest.raises(InterlockError):
        store.load()
    store.close()
    assert path.read_bytes() == before


def test_skips_damaged_record(store: ExecutionStore, loop: Told[bool]) -> None:
    write_record(store, loop, execution("good"))
    write_record(store, loop, execution("bad"))
    store._file.run_now(
        lambda file: file.execute("UPDATE execution SET record = x'ff' WHERE id = 'bad'")
    )
    assert [one.id for one in store.load()] == ["good"]


def test_reports_folder_in_place_of_file(path: Path, loop: Told[bool]) -> None:
    path.mkdir(parents=True)
    store = ExecutionStore(path, deliver=loop.deliver)
    assert write_record(store, loop, execution()) is False
    assert str(path) in store.reason
    with pytest.raises(InterlockError):
        store.result("x")
    store.close()
    os.rmdir(path)
    store = ExecutionStore(path, deliver=loop.deliver)
    assert write_record(store, loop, execution())
    store.close()


WRITER = """
import os, sys, threading
from pathlib import Path
from interlock.aql.execution_states import ExecutionState
from interlock.aql.execution_store import Execution
from interlock.aql.execution_store import ExecutionStore
from tests.core.state.delivery import HANG_TIMEOUT, Told

store = ExecutionStore(Path(sys.argv[1]), deliver=lambda run: run())

def one(number):
    return Execution(
        id=f"e{number}", owner=("clerk", "token", ""), operation="s_build", tool="s.build",
        category="EXECUTE", created=float(number), status=ExecutionState.RUNNING,
    )

def write(number):
    def told(written):
        assert written
        # What somebody is told of is on the disk by then.
        os.write(1, f"{number}\\n".encode())
        write(number + 1)
    store.write(one(number), None, told)

write(0)
threading.Event().wait()
"""


@pytest.mark.spec("AQ-2.3.4-1")
def test_confirmed_writes_survive_kill(path: Path, loop: Told[bool]) -> None:
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert writer.stdout is not None
        told = [int(writer.stdout.readline()) for _ in range(25)]
        os.kill(writer.pid, signal.SIGKILL)
        told += [int(line) for line in writer.stdout if line.endswith("\n")]
    finally:
        writer.kill()
        writer.wait(HANG_TIMEOUT)
        assert writer.stdout is not None
        writer.stdout.close()
    store = ExecutionStore(path, deliver=loop.deliver)
    try:
        kept = {one.id: one.status for one in store.load()}
    finally:
        store.close()
    assert {f"e{number}" for number in told} <= kept.keys()
    assert set(kept.values()) == {ExecutionState.RUNNING}
    assert len(kept) <= len(told) + 1, "and nothing that was never begun"
