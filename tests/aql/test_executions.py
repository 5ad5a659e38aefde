"""Tests of executions: calls that continue after the response."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from interlock.aql.execution_states import ExecutionState
from interlock.aql.execution_store import Execution
from interlock.aql.executions import data_in, may_have_taken_effect, read_progress
from interlock.aql.language.errors import AqlError, is_safe_message
from interlock.core.call import Caller, principal
from interlock.errors import InterlockError
from interlock.protocol.mcp import PROGRESS
from tests.aql.execution_bench import CLERK, GUARD, Bench, ClientSession

OWNER = principal(CLERK)


def with_bench(
    test: Callable[[Bench], Awaitable[None]], path: Path | None = None, **more: Any
) -> Bench:
    """Run a test with a bench in one event loop, and close the bench."""

    async def run() -> Bench:
        bench = Bench(path, **more)
        try:
            await test(bench)
        finally:
            bench.close()
        return bench

    return asyncio.run(run())


@asynccontextmanager
async def open_bench(path: Path | None = None, **more: Any) -> AsyncIterator[Bench]:
    """Run a test with a bench in one event loop, and close the bench."""

    bench = Bench(path, **more)
    try:
        yield bench
    finally:
        bench.close()


def find_record(bench: Bench, id: str) -> Execution:
    return bench.executions.find(OWNER, id).record


@pytest.mark.spec("AQ-8.4-1", "AQ-8.4.3-1")
async def test_responds_at_once_and_completes_later() -> None:
    async with open_bench() as bench:
        shown = await bench.start(arguments={"speed": 5})
        id = shown["execution_id"]
        assert shown["status"] == "running"
        assert shown["started_at"] == "2023-11-14T22:13:20.000Z"
        assert "finished_at" not in shown
        assert json.loads(bytes(bench.last.call.arguments)) == {"speed": 5}
        assert bench.last.call.name == "s.build"
        bench.now += 5
        bench.last.answer(content=[], structuredContent={"built": 7})
        ended = bench.executions.describe(find_record(bench, id))
        assert ended["status"] == "completed"
        assert ended["finished_at"] == "2023-11-14T22:13:25.000Z"
        assert "error" not in ended
        await bench.settle()
        live = bench.executions.find(OWNER, id)
        assert live.result is None, "it is on the disk, and need not be kept in memory"
        assert data_in(bench.executions.result(live) or b"") == {"built": 7}


@pytest.mark.spec("AQ-8.4.3-1")
async def test_failed_execution_shows_error() -> None:
    async with open_bench() as bench:
        id = (await bench.start())["execution_id"]
        bench.last.answer_error(-32000, "The disk is gone.")
        shown = bench.executions.describe(find_record(bench, id))
        assert shown["status"] == "failed"
        assert shown["error"]["code"] == "INTERNAL_ERROR"
        assert shown["error"]["message"] == "The disk is gone."
        assert "finished_at" in shown


async def test_journals_execution_like_call() -> None:
    async with open_bench() as bench:
        await bench.start()
        bench.last.answer(content=[])
        [entry] = bench.rig.journal.entries
        assert entry["name"] == "s.build"
        assert entry["outcome"] == "ok"


@pytest.mark.spec("AQ-8.4-1", "AQ-8.4.4-2", "AQ-8.4.2-1")
async def test_cancel_notifies_upstream() -> None:
    async with open_bench() as bench:
        id = (await bench.start())["execution_id"]
        shown = bench.executions.cancel(OWNER, id)
        assert shown["status"] == "cancelled"
        assert "finished_at" in shown
        assert bench.last.abandoned == ["The caller cancelled the execution."]
        assert find_record(bench, id).arguments == b"", "nobody will run it again"
        with pytest.raises(AqlError) as again:
            bench.executions.cancel(OWNER, id)
        assert again.value.code == "CONFLICT_INVALID_STATE"


@pytest.mark.spec("AQ-8.4.4-2")
async def test_cancels_pending_execution() -> None:
    async with open_bench() as bench:
        starting = asyncio.ensure_future(bench.start())
        await asyncio.sleep(0)
        [one] = bench.executions.all_of(OWNER)
        assert one.status is ExecutionState.PENDING
        bench.executions.cancel(OWNER, one.id)
        assert (await starting)["status"] == "cancelled"
        assert not bench.server.started, "it never left"
        await bench.settle()
        assert bench.store._file.run_now(_statuses) == {one.id: "cancelled"}


async def test_cancelled_start_cancels_execution() -> None:
    async with open_bench() as bench:
        starting = asyncio.ensure_future(bench.start())
        await asyncio.sleep(0)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        [one] = bench.executions.all_of(OWNER)
        assert one.status is ExecutionState.CANCELLED
        assert not bench.server.started


def _statuses(file: sqlite3.Connection) -> dict[str, str]:
    from interlock.aql.execution_store import _decode

    rows = file.execute("SELECT id, record FROM execution").fetchall()
    return {id: _decode(raw).status.value for id, raw in rows}


async def test_retry_starts_another_attempt() -> None:
    async with open_bench() as bench:
        id = (await bench.start(arguments={"x": 1}))["execution_id"]
        bench.last.answer_error(-32000, "no")
        shown, doubtful = await bench.executions.retry(bench.asked(), id)
        assert doubtful, "its server failed somewhere on the way"
        assert shown["execution_id"] == id
        assert shown["status"] == "running"
        assert shown["attempt"] == 2
        assert "error" not in shown
        assert "finished_at" not in shown
        assert bytes(bench.last.call.arguments) == b'{"x": 1}'
        bench.last.answer(content=[])
        assert find_record(bench, id).status is ExecutionState.COMPLETED


async def test_retry_reports_possible_repeated_effect() -> None:
    async with open_bench() as bench:
        id = (await bench.start())["execution_id"]
        bench.last.lose(sent=True)
        _, doubtful = await bench.executions.retry(bench.asked(), id)
        assert doubtful


async def test_retry_after_rejection_or_read_is_safe() -> None:
    async with open_bench() as bench:
        id = (await bench.start("s_look"))["execution_id"]
        bench.last.answer_error(-32000, "no")
        _, doubtful = await bench.executions.retry(bench.asked(), id)
        assert not doubtful, "reading twice is reading once"
        assert not may_have_taken_effect({"code": "PERMISSION_DENIED"})
        assert not may_have_taken_effect({"code": "CONFIRMATION_REQUIRED"})


async def test_rejects_retry_of_removed_operation() -> None:
    async with open_bench() as bench:
        id = (await bench.start())["execution_id"]
        bench.last.answer_error(-32000, "no")
        bench.operation_catalog._all.pop("s_build")
        with pytest.raises(AqlError) as gone:
            await bench.executions.retry(bench.asked(), id)
        assert gone.value.code == "NOT_FOUND_OPERATION"
        assert find_record(bench, id).status is ExecutionState.FAILED


@pytest.mark.parametrize(
    "other",
    [GUARD, Caller("clerk", kind="jwt"), Caller("clerk", kind="token", parent_caller="carl")],
)
async def test_hides_executions_of_other_callers(other: Caller) -> None:
    async with open_bench() as bench:
        id = (await bench.start())["execution_id"]
        refusals = []
        for wanted in (id, "exec_" + "0" * 24):
            with pytest.raises(AqlError) as refused:
                bench.executions.find(principal(other), wanted)
            assert refused.value.code == "NOT_FOUND_RESOURCE"
            refusals.append(refused.value.message.replace(wanted, "…"))
        assert refusals[0] == refusals[1]
        assert bench.executions.all_of(principal(other)) == []
        with pytest.raises(AqlError):
            bench.executions.cancel(principal(other), id)
        with pytest.raises(AqlError):
            await bench.executions.retry(bench.asked(caller=other), id)
        assert find_record(bench, id).status is ExecutionState.RUNNING


@pytest.mark.spec("AQ-2.3.3-2", "AQ-2.3.3-1")
async def test_session_end_cancels_execution() -> None:
    async with open_bench() as bench:
        session = ClientSession()
        told: list[str] = []
        id = (await bench.start(session=session))["execution_id"]
        session.on_close.append(lambda: told.append("another"))
        session.end()
        ended = find_record(bench, id)
        assert ended.status is ExecutionState.CANCELLED
        assert ended.finished is not None
        assert bench.last.abandoned == ["The session of the execution has ended."]
        assert told == ["another"], "others who wait for its end are told, too"


async def test_closed_session_starts_nothing() -> None:
    async with open_bench() as bench:
        session = ClientSession()
        starting = asyncio.ensure_future(bench.start(session=session))
        await asyncio.sleep(0)
        session.end()
        assert (await starting)["status"] == "cancelled"
        assert not bench.server.started


async def test_finished_execution_leaves_session() -> None:
    async with open_bench() as bench:
        session = ClientSession()
        await bench.start(session=session)
        bench.last.answer(content=[])
        assert session.on_close == []


async def test_survives_session_if_configured() -> None:
    async with open_bench(survive_session=True) as bench:
        session = ClientSession()
        id = (await bench.start(session=session))["execution_id"]
        session.end()
        assert find_record(bench, id).status is ExecutionState.RUNNING


@pytest.mark.spec("AQ-8.4.3-2")
async def test_progress_never_decreases() -> None:
    async with open_bench() as bench:
        id = (await bench.start())["execution_id"]
        assert bench.last.call.meta is not None, "its upstream is asked for progress"
        seen = []
        for said in (
            {"progress": 1, "total": 4},
            {"progress": 3, "total": 4, "message": "packing"},
            {"progress": 2, "total": 4},
            {"progress": 99, "total": 4},
            {"progress": -5, "total": 4},
            {"progress": 5},
        ):
            bench.last.say(PROGRESS, json.dumps({"progressToken": id, **said}).encode())
            seen.append(find_record(bench, id).progress)
        percentages = [one["percentage"] for one in seen if one is not None]
        assert percentages == [25.0, 75.0, 75.0, 100.0, 100.0, 100.0]
        assert seen[1] == {"percentage": 75.0, "current": 3, "total": 4, "message": "packing"}
        bench.last.answer(content=[])


@pytest.mark.spec("AQ-8.4.3-2")
@pytest.mark.parametrize(
    "said",
    [
        {}, {"progress": 5}, {"progress": "5", "total": "10"}, {"progress": 1, "total": 0},
        {"progress": True, "total": True}, {"message": ""}, {"message": 7},
        {"progress": 10**400, "total": 10**400}, [], "x", None,
    ],
)  # fmt: skip
def test_ignores_invalid_progress(said: Any) -> None:
    assert read_progress(None, json.dumps(said).encode()) is None


async def test_limits_concurrent_executions_per_caller() -> None:
    async with open_bench(concurrent=2) as bench:
        await bench.start()
        await bench.start()
        with pytest.raises(AqlError) as refused:
            await bench.start()
        assert refused.value.code == "RATE_LIMIT_EXCEEDED"
        assert is_safe_message(refused.value.message)
        await bench.start(caller=GUARD)
        bench.server.started[0].answer(content=[])
        await bench.start()


async def test_removes_oldest_executions() -> None:
    async with open_bench(max_stored=3, keep=60.0) as bench:
        ids = []
        for _ in range(4):
            ids.append((await bench.start())["execution_id"])
            bench.last.answer(content=[])
        assert [one.id for one in bench.executions.all_of(OWNER)] == ids[1:]
        bench.now += 61
        assert bench.executions.all_of(OWNER) == []
        await bench.settle()
        assert bench.store._file.run_now(_statuses) == {}


async def test_limits_stored_executions() -> None:
    async with open_bench(max_stored=1) as bench:
        await bench.start()
        with pytest.raises(AqlError) as refused:
            await bench.start()
        assert refused.value.code == "RATE_LIMIT_EXCEEDED"


@pytest.mark.spec("AQ-2.3.4-1")
def test_completed_execution_survives_restart(tmp_path: Path) -> None:
    path = tmp_path / "executions.db"
    ids: list[str] = []

    async def before(bench: Bench) -> None:
        ids.append((await bench.start())["execution_id"])
        bench.last.answer(content=[], structuredContent={"built": 7})

    async def later(bench: Bench) -> None:
        bench.executions.load()
        live = bench.executions.find(OWNER, ids[0])
        assert live.record.status is ExecutionState.COMPLETED
        assert data_in(bench.executions.result(live) or b"") == {"built": 7}

    with_bench(before, path)
    with_bench(later, path)


def test_restart_fails_running_execution_and_allows_retry(tmp_path: Path) -> None:
    path = tmp_path / "executions.db"
    ids: list[str] = []

    async def before(bench: Bench) -> None:
        ids.append((await bench.start(arguments={"x": 1}))["execution_id"])

    async def later(bench: Bench) -> None:
        bench.executions.load()
        shown = bench.executions.describe(find_record(bench, ids[0]))
        assert shown["status"] == "failed"
        assert shown["error"]["details"] == {"reason": "lost"}
        assert shown["started_at"] == "2023-11-14T22:13:20.000Z"
        assert is_safe_message(shown["error"]["message"])
        again, doubtful = await bench.executions.retry(bench.asked(), ids[0])
        assert again["status"] == "running"
        assert doubtful
        assert bytes(bench.last.call.arguments) == b'{"x": 1}'

    with_bench(before, path)
    with_bench(later, path)


async def test_starts_nothing_if_store_fails(tmp_path: Path) -> None:
    path = tmp_path / "executions.db"

    async with open_bench(path) as bench:
        await bench.start()
        bench.last.answer(content=[])
        await bench.settle()
        limit_pages(bench)
        with pytest.raises(InterlockError) as refused:
            await bench.start(arguments={"text": "x" * 9_000})
        assert refused.value.failure.name == "journal_unavailable"
        assert is_safe_message(refused.value.message)
        assert str(tmp_path) not in refused.value.message
        assert len(bench.server.started) == 1, "it never left"
        assert len(bench.executions.all_of(OWNER)) == 1
        assert "full" in bench.store.reason


async def test_keeps_result_in_memory_until_stored(tmp_path: Path) -> None:
    path = tmp_path / "executions.db"

    async with open_bench(path) as bench:
        id = (await bench.start())["execution_id"]
        limit_pages(bench)
        bench.last.answer(content=[], structuredContent={"built": "x" * 9_000})
        await bench.settle()
        live = bench.executions.find(OWNER, id)
        assert live.record.status is ExecutionState.COMPLETED
        assert data_in(bench.executions.result(live) or b"") == {"built": "x" * 9_000}
        limit_pages(bench, False)
        await bench.start()
        bench.last.answer(content=[])
        await bench.settle()
        await bench.settle()
        assert set(bench.store._file.run_now(_statuses).values()) == {"completed"}
        assert live.result is None


def limit_pages(bench: Bench, is_full: bool = True) -> None:
    """Limit the pages of the store, so that SQLite reports a full disk."""

    def limit(file: sqlite3.Connection) -> None:
        [pages] = file.execute("PRAGMA page_count").fetchone()
        file.execute(f"PRAGMA max_page_count = {pages if is_full else 1_000_000}")

    with bench.store._file.lock:
        limit(bench.store._file.connect())
    keep = bench.store._file._prepare

    def prepare(file: sqlite3.Connection) -> None:
        keep(file)
        limit(file)

    bench.store._file._prepare = prepare  # type: ignore[method-assign]


async def test_required_input_fails_execution() -> None:
    async with open_bench() as bench:
        id = (await bench.start())["execution_id"]
        live = bench.executions.find(OWNER, id)
        call = live.call
        assert call is not None
        from interlock.core.call import Outcome
        from interlock.protocol.mcp import Era

        needed = b'{"resultType":"input_required","inputRequests":{}}'
        bench.executions._on_done(live, call, Outcome(needed, Era.STATELESS), None)
        error = find_record(bench, id).error
        assert error is not None
        assert error["code"] == "CONFLICT_INVALID_STATE"
        assert is_safe_message(error["message"])
