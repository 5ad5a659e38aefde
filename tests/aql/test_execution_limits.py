"""Tests of the storage limits of executions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from interlock.aql import executions
from interlock.aql.executions import is_retryable
from interlock.aql.language.errors import AqlError
from interlock.core.call import Call, principal
from interlock.trust.policy.decision import Decision
from tests.aql.execution_bench import CLERK, GUARD
from tests.aql.test_executions import OWNER, find_record, open_bench
from tests.trust.decision_steps import danger_step

LONG = {"text": "x" * 1_000}


async def test_omits_arguments_of_final_failures(tmp_path: Path) -> None:
    async with open_bench(tmp_path / "executions.db") as bench:
        error = AqlError("PERMISSION_DENIED", "No.")
        bench.rig.authorizer.install(danger_step(_rejecting_step(error), everywhere=True))
        id = (await bench.start(arguments=LONG))["execution_id"]
        kept = find_record(bench, id)
        assert kept.error is not None
        assert kept.error["code"] == "PERMISSION_DENIED"
        assert kept.arguments == b""
        await bench.settle()
        [stored] = bench.store.load()
        assert (stored.id, stored.arguments) == (id, b"")
        with pytest.raises(AqlError) as refused:
            await bench.executions.retry(bench.asked(), id)
        assert refused.value.code == "CONFLICT_INVALID_STATE"


async def test_counts_bytes_of_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executions, "MAX_CALLER_BYTES", 5_000)
    monkeypatch.setattr("interlock.aql.executions.MAX_CALLER_BYTES", 5_000)

    async with open_bench() as bench:
        other = (await bench.start(arguments=LONG, caller=GUARD))["execution_id"]
        bench.last.answer_error(-32000, "no")
        ids = []
        for _ in range(10):
            ids.append((await bench.start(arguments=LONG))["execution_id"])
            bench.last.answer_error(-32000, "no")
        # The oldest went, of nobody but who has too much.
        left = [one.id for one in bench.executions.all_of(OWNER)]
        assert left == ids[-len(left) :]
        assert 3 <= len(left) <= 4
        assert bench.executions.find(principal(GUARD), other)
        assert 0 < bench.executions._storage_budget.bytes_of(OWNER) <= 5_000
        # What runs is never forgotten, and no more is begun than fits.
        for _ in range(4):
            await bench.start(arguments=LONG)
        with pytest.raises(AqlError) as refused:
            await bench.start(arguments=LONG)
        assert refused.value.code == "RATE_LIMIT_EXCEEDED"
        assert refused.value.data == {"limit_type": "execution_bytes", "limit": 5_000}


async def test_releases_bytes_of_removed_executions() -> None:
    async with open_bench(keep=60.0) as bench:
        for end in ("answer", "fail", "cancel"):
            id = (await bench.start(arguments=LONG))["execution_id"]
            if end == "answer":
                bench.last.answer(content=[{"type": "text", "text": "done"}])
            elif end == "fail":
                bench.last.answer_error(-32000, "no")
            else:
                bench.executions.cancel(OWNER, id)
        room = bench.executions._storage_budget
        assert room.total == room.bytes_of(OWNER) > 1_000
        bench.now += 61
        assert bench.executions.all_of(OWNER) == []
        assert (room.total, room.bytes_of(OWNER)) == (0, 0)


async def test_limits_bytes_of_all_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executions, "MAX_TOTAL_BYTES", 3_500)

    async with open_bench() as bench:
        for caller in (CLERK, GUARD, CLERK, GUARD, CLERK):
            await bench.start(arguments=LONG, caller=caller)
            bench.last.answer_error(-32000, "no")
        assert bench.executions._storage_budget.total <= 3_500
        assert len(bench.executions.all_of(OWNER)) < 3


@pytest.mark.parametrize(
    ("code", "again"),
    [
        ("PERMISSION_DENIED", False),
        ("VALIDATION_MISSING_PARAM", False),
        ("NOT_FOUND_OPERATION", False),
        ("CONFIRMATION_REQUIRED", True),
        ("RATE_LIMIT_EXCEEDED", True),
        ("INTERNAL_ERROR", True),
    ],
)
def test_is_retryable_by_code(code: str, again: bool) -> None:
    assert is_retryable({"code": code}) is again


def _rejecting_step(error: AqlError) -> Callable[[Call, Decision], Decision]:
    def refuse(call: Call, decided: Decision) -> Decision:
        raise error

    return refuse
