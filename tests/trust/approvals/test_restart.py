"""Approvals survive a restart: pending calls stay pending, and nothing runs twice."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

from interlock.errors import ALREADY_DECIDED, CONFIRMATION_EXPIRED, UPSTREAM_LOST, InterlockError
from interlock.trust.approvals.record import APPROVED, DISPATCHING
from interlock.trust.approvals.store import ApprovalStore
from tests.support.calls import tool_call
from tests.trust.approvals.gated import Gated, wipe

WIPED = {"content": [{"type": "text", "text": "wiped"}]}


async def stop_in_state(folder: Path, state: str) -> Gated:
    """A node that stopped when its one approval was in this state."""
    gated = Gated(folder)
    approval = await gated.hold()
    if state != "pending":
        entry = gated.approvals._inbox.entries.get(approval.id)
        assert entry is not None
        step = approval.with_state(APPROVED, by="clerk", proof="operator", decided=gated.wall)
        for item in (step, step.with_state(DISPATCHING))[: 1 if state == APPROVED else 2]:
            over = asyncio.get_running_loop().create_future()
            gated.approvals._inbox.save(entry, item, over.set_result)
            await over
    gated.close()
    return gated


async def test_pending_approval_survives_restart(tmp_path: Path) -> None:
    before = await stop_in_state(tmp_path, "pending")
    gated = Gated(tmp_path, keys=before.keys)
    [approval] = gated.approvals.pending()
    assert (await gated.hold()).id == approval.id
    assert await gated.confirm(approval) == WIPED
    assert await gated.ask() == WIPED
    gated.close()


async def test_approved_call_runs_when_repeated_after_restart(tmp_path: Path) -> None:
    before = await stop_in_state(tmp_path, APPROVED)
    gated = Gated(tmp_path, keys=before.keys)
    [approval] = gated.approvals.recent()
    assert approval.state == APPROVED
    # Not by itself, nor by another proof.
    assert gated.upstream.started == []
    with pytest.raises(InterlockError) as error:
        await gated.approvals.confirm(approval.id, gated.proof(approval))
    assert error.value.failure is ALREADY_DECIDED
    over = gated.start(wipe())
    twin = gated.start(wipe())
    exchange = await gated.reached()
    exchange.answer(**WIPED)
    assert await over == WIPED
    assert await twin == WIPED
    assert len(gated.upstream.started) == 1
    record = gated.approvals.find(approval.id)
    assert record is not None
    assert record.state == "done"
    assert (await gated.hold()).id != approval.id
    gated.close()


async def test_repeated_call_after_restart_is_sent_without_additions(tmp_path: Path) -> None:
    before = await stop_in_state(tmp_path, APPROVED)
    gated = Gated(tmp_path, keys=before.keys)
    again = wipe(b'{ "disk":"\\u0061" }', extra_params={"force": Raw(b"true")})
    over = gated.start(again)
    exchange = await gated.reached()
    assert bytes(exchange.call.arguments) == b'{"disk": "a"}'
    assert exchange.call.extra_params is None
    exchange.answer(**WIPED)
    assert await over == WIPED
    gated.close()


async def test_approved_call_expires_after_restart(tmp_path: Path) -> None:
    before = await stop_in_state(tmp_path, APPROVED)
    gated = Gated(tmp_path, keys=before.keys)
    [approval] = gated.approvals.recent()
    gated.wall += 301
    assert (await gated.hold()).id != approval.id
    assert gated.upstream.started == []
    gated.close()


async def test_dispatched_call_is_lost_after_restart(tmp_path: Path) -> None:
    before = await stop_in_state(tmp_path, DISPATCHING)
    gated = Gated(tmp_path, keys=before.keys)
    error = await gated.ask()
    assert error.failure is UPSTREAM_LOST
    assert "outcome is unknown" in error.message
    [approval] = gated.approvals.recent()
    assert approval.state == "lost"
    with pytest.raises(InterlockError) as late:
        await gated.approvals.confirm(approval.id, gated.proof(approval))
    assert late.value.failure is ALREADY_DECIDED
    assert gated.upstream.started == []
    gated.close()
    # Told once, on record, and it stays so.
    again = Gated(tmp_path, keys=before.keys)
    assert [approval.state for approval in again.approvals.recent()] == ["lost"]
    assert (await again.hold()).id != approval.id
    again.close()


@pytest.mark.parametrize("clock", [-3600.0, 301.0])
async def test_clock_jump_during_downtime_expires_approvals(tmp_path: Path, clock: float) -> None:
    gated = Gated(tmp_path)
    approval = await gated.hold()
    gated.close()
    again = Gated(tmp_path, keys=gated.keys, now=gated.wall + clock)
    with pytest.raises(InterlockError) as error:
        await again.approvals.confirm(approval.id, again.proof(approval))
    assert error.value.failure in (CONFIRMATION_EXPIRED, ALREADY_DECIDED)
    assert again.upstream.started == []
    assert again.approvals.pending() == []
    again.close()


async def test_outcomes_survive_restart(tmp_path: Path) -> None:
    gated = Gated(tmp_path)
    first = await gated.hold()
    await gated.confirm(first)
    second = await gated.hold(wipe({"disk": "b"}))
    await gated.approvals.reject(second.id, local=True, reason="no")
    third = await gated.hold(wipe({"disk": "c"}))
    await gated.confirm(third)
    assert await gated.ask(wipe({"disk": "c"})) == WIPED
    gated.close()
    again = Gated(tmp_path, keys=gated.keys)
    assert await again.ask() == WIPED
    response = await again.ask(wipe({"disk": "b"}))
    assert response.failure.name == "approval_refused"
    # Collected before: a new call.
    assert (await again.hold(wipe({"disk": "c"}))).id != third.id
    assert again.upstream.started == []
    again.close()


async def test_nodes_sharing_state_folder_keep_separate_approvals(tmp_path: Path) -> None:
    """Two that share a state folder: none takes from the other while it lives."""

    one = Gated(tmp_path)
    approval = await one.hold()
    other = Gated(tmp_path, keys=one.keys)
    assert other.approvals.recent() == []
    with pytest.raises(InterlockError) as error:
        await other.approvals.confirm(approval.id, other.proof(approval))
    assert error.value.failure.name == "unknown_approval"
    own = await other.hold()
    assert own.id != approval.id
    assert await one.confirm(approval) == WIPED
    one.close()
    other.close()
    heir = Gated(tmp_path, keys=one.keys)
    assert {approval.id for approval in heir.approvals.recent()} == {approval.id, own.id}
    heir.close()


async def test_unreadable_store_blocks_only_confirmed_calls(tmp_path: Path) -> None:
    (tmp_path / "approvals.db").write_bytes(b"this is no database" * 100)
    gated = Gated(tmp_path)
    assert gated.approvals.recent() == []
    assert (await gated.ask()).failure.name == "journal_unavailable"

    over = gated.start(tool_call("s.look", {}))
    gated.upstream.last.answer(content=[])
    assert await over == {"content": []}
    gated.close()


def test_refuses_database_of_other_program(tmp_path: Path) -> None:
    import sqlite3

    path = tmp_path / "approvals.db"
    with sqlite3.connect(path) as file:
        file.execute("CREATE TABLE recipes (name TEXT)")
    store = ApprovalStore(path, deliver=lambda run: run())
    with pytest.raises(InterlockError) as error:
        store.load()
    assert "another program" in error.value.message
    store.close()
    with sqlite3.connect(path) as file:
        assert file.execute("SELECT name FROM sqlite_master").fetchall() == [("recipes",)]


async def test_oversized_result_is_not_retained(tmp_path: Path) -> None:
    gated = Gated(tmp_path)
    approval = await gated.hold()
    task: asyncio.Task[Any] = asyncio.ensure_future(
        gated.approvals.confirm(approval.id, gated.proof(approval))
    )
    exchange = await gated.reached()
    text = "x" * (1024 * 1024)
    exchange.answer(content=[{"type": "text", "text": text}])
    assert json.loads((await task).result)["content"][0]["text"] == text
    late = await gated.ask()
    assert "too long" in late["content"][0]["text"]
    gated.close()
