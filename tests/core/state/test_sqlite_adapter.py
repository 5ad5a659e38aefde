"""The file of the state store: who may open it, what a commit costs, and what a crash leaves."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from interlock.core.state import sqlite_adapter
from interlock.core.state.sqlite_adapter import SqliteAdapter
from interlock.core.state.store import StaleRevisionError, StateStore
from interlock.errors import CONFIG, UNRECORDABLE, InterlockError
from tests.core.state.test_state_adapters import (
    EVENTS,
    LAMPS,
    OTHERS,
    Lamp,
    next_changes,
    open_store,
)
from tests.support.timeouts import HANG_TIMEOUT

WRITER = textwrap.dedent(
    """
    import asyncio, json, sys
    from pathlib import Path
    from interlock.core.state.sqlite_adapter import SqliteAdapter
    from interlock.core.state.store import StateStore
    from tests.core.state.test_state_adapters import LAMPS, Lamp

    async def main():
        store = StateStore(SqliteAdapter(Path(sys.argv[1])))
        await store.start()
        lamps = store.bucket(LAMPS)
        await asyncio.gather(*(write(lamps, worker) for worker in range(8)))

    async def write(lamps, worker):
        revision = await lamps.create(f"lamp-{worker}", Lamp("red", 0))
        for level in range(1, 1_000_000):
            revision = await lamps.update(f"lamp-{worker}", Lamp("red", level), revision)
            print(json.dumps([worker, level]), flush=True)

    asyncio.run(main())
    """
)


def start_program(source: str, path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", source, str(path)], stdout=subprocess.PIPE, text=True,
        cwd=Path(__file__).parents[3], env={**os.environ, "PYTHONPATH": "."},
    )  # fmt: skip


async def start_failure(path: Path) -> InterlockError:
    adapter = SqliteAdapter(path)
    with pytest.raises(InterlockError) as raised:
        await adapter.start()
    await adapter.close()
    return raised.value


# -- opening


async def test_file_is_private(tmp_path: Path) -> None:
    path = tmp_path / "state" / "state.db"
    async with open_store(SqliteAdapter(path)) as store:
        await store.bucket(LAMPS).create("hall", Lamp("red"))
        for file in path.parent.iterdir():
            assert stat.S_IMODE(file.stat().st_mode) & 0o077 == 0, file


async def test_records_survive_restart(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    for level in range(3):
        async with open_store(SqliteAdapter(path)) as store:
            entry = await store.bucket(LAMPS).get("hall")
            assert (0 if entry is None else entry.value.level) == level
            await store.bucket(LAMPS).put("hall", Lamp("red", level + 1))


async def test_rejects_file_of_other_program(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    with closing(sqlite3.connect(path)) as file:
        file.execute("CREATE TABLE lamp (id)")
    before = path.read_bytes()
    error = await start_failure(path)
    assert error.failure is CONFIG
    assert str(path) in error.message
    assert path.read_bytes() == before


async def test_rejects_file_of_newer_version(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    async with open_store(SqliteAdapter(path)):
        pass
    with closing(sqlite3.connect(path)) as file:
        file.execute("PRAGMA user_version = 99")
    assert (await start_failure(path)).failure is CONFIG


async def test_rejects_file_that_is_no_database(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    path.write_bytes(b"no database" * 1000)
    assert (await start_failure(path)).failure is CONFIG
    assert path.read_bytes() == b"no database" * 1000


async def test_rejects_damaged_file(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    async with open_store(SqliteAdapter(path)) as store:
        for number in range(200):
            await store.bucket(OTHERS).create(f"lamp-{number}", Lamp("x" * 500))
    data = bytearray(path.read_bytes())
    for page in range(2, len(data) // 4096):
        data[page * 4096 : page * 4096 + 64] = b"\xff" * 64
    path.write_bytes(data)
    assert (await start_failure(path)).failure is CONFIG


async def test_full_disk_fails_writes_until_there_is_room(tmp_path: Path) -> None:
    adapter = SqliteAdapter(tmp_path / "state.db")
    async with open_store(adapter) as store:
        lamps = store.bucket(LAMPS)
        await lamps.create("hall", Lamp("red"))
        assert adapter._connection is not None
        adapter._connection.execute("PRAGMA max_page_count = 1")
        with pytest.raises(InterlockError) as raised:
            await lamps.create("yard", Lamp("x" * 100_000))
        assert raised.value.failure is UNRECORDABLE
        assert adapter.problem == raised.value.message
        assert await lamps.get("hall") is not None
        assert await lamps.get("yard") is None
        # The connection was opened again, without the limit.
        await lamps.create("yard", Lamp("x" * 100_000))
        assert adapter.problem == ""


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
async def test_folder_that_cannot_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert (await start_failure(tmp_path / "state.db")).failure is UNRECORDABLE


async def test_rejects_use_after_close(tmp_path: Path) -> None:
    async with open_store(SqliteAdapter(tmp_path / "state.db")) as store:
        lamps = store.bucket(LAMPS)
    with pytest.raises(InterlockError) as raised:
        await lamps.create("hall", Lamp("red"))
    assert raised.value.failure is UNRECORDABLE
    with pytest.raises(InterlockError) as raised:
        await lamps.get("hall")
    assert raised.value.failure is UNRECORDABLE


async def test_opens_file_with_first_use(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    store = StateStore(SqliteAdapter(path))
    assert not path.exists()
    lamps = store.bucket(LAMPS)
    await asyncio.gather(*(lamps.create(f"lamp-{n}", Lamp("red")) for n in range(5)))
    assert await lamps.keys() == [f"lamp-{n}" for n in range(5)]
    await store.close()


async def test_unused_store_has_no_file(tmp_path: Path) -> None:
    store = StateStore(SqliteAdapter(tmp_path / "state.db"))
    await store.close()
    assert list(tmp_path.iterdir()) == []


# -- commits


async def test_concurrent_writes_share_commits(tmp_path: Path) -> None:
    adapter = SqliteAdapter(tmp_path / "state.db")
    async with open_store(adapter) as store:
        lamps = store.bucket(LAMPS)
        await asyncio.gather(*(lamps.create(f"lamp-{n}", Lamp("red")) for n in range(500)))
        assert adapter.commits < 50
        assert len(await lamps.list()) == 500


async def test_failed_write_does_not_fail_others_of_its_commit(tmp_path: Path) -> None:
    async with open_store(SqliteAdapter(tmp_path / "state.db")) as store:
        lamps = store.bucket(LAMPS)
        await lamps.create("hall", Lamp("red"))
        results = await asyncio.gather(
            lamps.create("a", Lamp("red")), lamps.create("hall", Lamp("red")),
            lamps.create("b", Lamp("red")), return_exceptions=True,
        )  # fmt: skip
        assert [isinstance(result, int) for result in results] == [True, False, True]


async def test_forces_only_what_must_be_forced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = SqliteAdapter(tmp_path / "state.db")
    async with open_store(adapter) as store:

        def synchronous() -> int:
            assert adapter._connection is not None
            return int(adapter._connection.execute("PRAGMA synchronous").fetchone()[0])

        await store.bucket(LAMPS).create("hall", Lamp("red"))
        assert synchronous() == 2
        await store.bucket(OTHERS).create("hall", Lamp("red"))
        assert (synchronous(), adapter._unforced_since) == (1, None)
        forced = asyncio.Event()
        loop = asyncio.get_running_loop()
        force = adapter._force

        def force_and_tell() -> None:
            force()
            loop.call_soon_threadsafe(forced.set)

        monkeypatch.setattr(adapter, "_force", force_and_tell)
        monkeypatch.setattr(sqlite_adapter, "SOON_SECONDS", 0.01)
        await store.stream(EVENTS).append(Lamp("red"))
        assert synchronous() == 1
        async with asyncio.timeout(HANG_TIMEOUT):
            await forced.wait()
        assert adapter._unforced_since is None


async def test_forgets_deletions_after_many_revisions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_adapter, "KEPT_REVISIONS", 10)
    adapter = SqliteAdapter(tmp_path / "state.db")
    async with open_store(adapter) as store:
        lamps = store.bucket(LAMPS)
        await lamps.put("yard", Lamp("red"))
        watch = lamps.watch()
        await next_changes(watch)
        for number in range(20):
            await lamps.put(f"lamp-{number}", Lamp("red"))
            await lamps.delete(f"lamp-{number}")
        # The watch missed too much to be told of deletions: it gets everything again.
        changes, is_complete = await next_changes(watch)
        assert ([change.key for change in changes], is_complete) == (["yard"], True)
        with closing(sqlite3.connect(adapter.path)) as file:
            # Each deletion is a revision after that of its record.
            assert file.execute("SELECT count(*) FROM record").fetchone() == (1 + 5,)


# -- several processes


@pytest.fixture
def runtime_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A runtime folder with a path that is short enough for sockets."""
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        yield Path(folder)


@pytest.mark.parametrize("length", [5, 120])
async def test_other_store_on_file_sees_changes(
    tmp_path: Path, runtime_folder: Path, length: int
) -> None:
    path = tmp_path / ("x" * length) / "state.db"
    path.parent.mkdir(mode=0o700)
    async with open_store(SqliteAdapter(path)) as one, open_store(SqliteAdapter(path)) as two:
        watch = two.bucket(LAMPS).watch()
        assert await next_changes(watch) == ([], True)
        waiting = asyncio.ensure_future(next_changes(watch))
        revision = await one.bucket(LAMPS).create("hall", Lamp("red"))
        assert await waiting == ([("hall", revision, Lamp("red"))], False)
        with pytest.raises(StaleRevisionError):
            await two.bucket(LAMPS).create("hall", Lamp("blue"))


async def test_removes_socket_of_ended_process(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    program = start_program(WRITER, path)
    assert program.stdout is not None
    program.stdout.readline()
    program.kill()
    program.wait(HANG_TIMEOUT)
    program.stdout.close()
    folder = tmp_path / "state.db.peers"
    assert len(list(folder.iterdir())) == 1
    adapter = SqliteAdapter(path)
    async with open_store(adapter) as store:
        await store.bucket(LAMPS).put("hall", Lamp("red"))
        # The datagrams are sent after the write was acknowledged.
        await store.bucket(LAMPS).put("hall", Lamp("red"))
        assert len(list(folder.iterdir())) == 1


@pytest.mark.parametrize("round_", range(3))
async def test_acknowledged_writes_survive_kill(tmp_path: Path, round_: int) -> None:
    path = tmp_path / "state.db"
    program = start_program(WRITER, path)
    assert program.stdout is not None
    acknowledged: dict[int, int] = {}
    for _ in range(200 + 50 * round_):
        worker, level = json.loads(program.stdout.readline())
        acknowledged[worker] = level
    os.kill(program.pid, signal.SIGKILL)
    for line in program.stdout.read().splitlines():
        if line.endswith("]"):
            worker, level = json.loads(line)
            acknowledged[worker] = level
    program.wait(HANG_TIMEOUT)
    program.stdout.close()
    async with open_store(SqliteAdapter(path)) as store:
        for worker, level in acknowledged.items():
            entry = await store.bucket(LAMPS).get(f"lamp-{worker}")
            assert entry is not None
            # One update may have been committed without its acknowledgement.
            assert entry.value.level in (level, level + 1)


async def test_several_processes_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    source = textwrap.dedent(
        """
        import asyncio, sys
        from pathlib import Path
        from interlock.core.state.sqlite_adapter import SqliteAdapter
        from interlock.core.state.store import StaleRevisionError, StateStore, StateStore
        from tests.core.state.test_state_adapters import LAMPS, Lamp

        async def main():
            store = StateStore(SqliteAdapter(Path(sys.argv[1])))
            await store.start()
            lamps = store.bucket(LAMPS)
            done = 0
            while done < 50:
                entry = await lamps.get("counter")
                try:
                    if entry is None:
                        await lamps.create("counter", Lamp("red", 1))
                    else:
                        level = entry.value.level + 1
                        await lamps.update("counter", Lamp("red", level), entry.revision)
                except StaleRevisionError:
                    continue
                done += 1
            await store.close()

        asyncio.run(main())
        """
    )
    programs = [start_program(source, path) for _ in range(3)]
    for program in programs:
        assert program.wait(HANG_TIMEOUT) == 0
        assert program.stdout is not None
        program.stdout.close()
    async with open_store(SqliteAdapter(path)) as store:
        entry = await store.bucket(LAMPS).get("counter")
        assert entry is not None
        assert entry.value.level == 150


async def test_missing_socket_folder_does_not_end_writes(tmp_path: Path) -> None:
    async with open_store(SqliteAdapter(tmp_path / "state.db")) as store:
        lamps = store.bucket(LAMPS)
        await lamps.put("hall", Lamp("red"))
        shutil.rmtree(tmp_path / "state.db.peers")
        async with asyncio.timeout(HANG_TIMEOUT):
            for level in range(3):
                await lamps.put("hall", Lamp("red", level))


async def test_reports_sockets_that_cannot_be_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = SqliteAdapter(tmp_path / "state.db")
    monkeypatch.setattr(adapter._peers, "_path", tmp_path / ("x" * 200))
    async with asyncio.timeout(HANG_TIMEOUT):
        for _ in range(2):
            with pytest.raises(InterlockError) as raised:
                await StateStore(adapter).bucket(LAMPS).put("hall", Lamp("red"))
            assert raised.value.failure is UNRECORDABLE
        await adapter.close()
