"""Tests of blocks: a blocked agent cannot call tools until an operator lifts the block."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from interlock.aql.language.errors import AqlError
from interlock.aql.safety import blocks as blocks_module
from interlock.aql.safety import store as aql_safety
from interlock.aql.safety.evaluation import StepVerdict
from interlock.aql.safety.patterns import normalize_hint
from interlock.aql.safety.reports import StepReport
from interlock.aql.safety.store import CodeAttempts, SafetyStore
from interlock.core.call import Call, Caller
from interlock.errors import UNRECORDABLE, InterlockError
from interlock.trust.policy.decision import PolicyAction, make_decision
from tests.aql.safety.guarded_pipeline import GuardedPipeline, challenge_id, notification_types
from tests.support.calls import LOCAL, SESSION
from tests.support.timeouts import HANG_TIMEOUT

ALLOW = make_decision(PolicyAction.ALLOW, "default:allow")


@pytest.mark.spec("AQ-8.6.4-1", "AQ-8.8.3-2", "AQ-8.6-2", "AQ-8.8.1-1", "AQ-8.7.3-4", "AQ-8.8.3-1")
async def test_denied_step_blocks_its_agent_until_approval(tmp_path: Path) -> None:
    node = GuardedPipeline(tmp_path)
    await node.begin()
    await node.begin("deputy", "robot")
    stopped = await node.report("drop_table users")
    assert (stopped["continue"], stopped["stopped"]) == (False, True)
    assert notification_types(stopped) == ["danger_zone"]
    id = challenge_id(stopped)
    # Everything of it is refused, whatever it is called and wherever it comes from.
    for operation, params in [
        ("execute_agent", {"element_name": "another"}),
        ("record_execution_step", {"element_name": "agent", "next_action_hint": "list_x y"}),
        ("complete_execution", {"element_name": "agent"}),
        ("abort_execution", {"element_name": "agent"}),
    ]:
        error = await node.get_builtin_error(operation, **params)
        assert error.code == "PERMISSION_DENIED"
        assert error.data is not None
        assert error.data["reason"] == "hard_blocked"
        assert error.data["verification_id"] == id
        assert error.data["directive"]["stopped"] is True
    assert (await node.get_call_error("list_issues")).data["reason"] == "hard_blocked"  # type: ignore[index]
    # Another principal works on, and is told; what the other wrote is not told to it.
    told = await node.report("list_issues of docs", "deputy", "robot")
    assert told["continue"] is True
    assert notification_types(told) == ["danger_zone"]
    assert challenge_id(told) == id
    assert "drop_table" not in str(told)
    assert await node.call_executes("list_issues", "deputy")
    await node.approve(await node.wait_for_approval("unblock"))
    assert notification_types(await node.report("list_issues of docs", "deputy", "robot")) == []
    assert notification_types(await node.report("list_issues of docs")) == []
    assert await node.call_executes("list_issues")
    assert [word for word in node.list_outcomes("ada") if word in ("blocked", "unblocked")] == [
        "blocked",
        "unblocked",
    ]
    node.close()


@pytest.mark.spec("AQ-8.8.3-1", "AQ-8.7.3-4")
async def test_block_survives_restart(tmp_path: Path) -> None:
    node = GuardedPipeline(tmp_path)
    await node.begin()
    id = challenge_id(await node.report("drop_table users"))
    await node.wait_for_approval("unblock")
    code = node.code(id)
    node.close()

    again = GuardedPipeline(tmp_path, keys=node.keys)
    assert (await again.get_call_error("list_issues")).data["reason"] == "hard_blocked"  # type: ignore[index]
    error = await again.get_builtin_error("execute_agent", element_name="new")
    assert error.data is not None
    assert error.data["verification_id"] == id
    # The code is gone with the process that drew it; who wrote it down can still enter it.
    assert again.codes.reveal(id) is None
    assert (await again.read_builtin("verify_challenge", challenge_id=id, code=code))["unblocked"]
    # The execution of before still runs, and is watched.
    assert (await again.get_call_error("list_issues")).data["reason"] == "unreported_action"  # type: ignore[index]
    told = await again.report("list_issues of docs")
    assert told["continue"]
    assert "danger_zone" not in notification_types(told)
    assert await again.call_executes("list_issues")
    again.close()

    third = GuardedPipeline(tmp_path, keys=node.keys)
    assert (await third.report("list_issues of docs"))["continue"]
    third.close()


@pytest.mark.spec("AQ-8.8.3-1", "AQ-8.6.4-1")
async def test_operator_renews_challenge_and_lifts_block(tmp_path: Path) -> None:
    node = GuardedPipeline(tmp_path)
    await node.begin()
    await node.report("drop_table users")
    # Nobody answered in time: the block stays, and can be asked about again.
    node.pass_time(400)
    assert not await node.call_executes("list_issues")
    assert len(node.loop.blocks) == 1
    [block] = node.loop.blocks
    node.loop.renew_challenge(block)
    await node.approve(await node.wait_for_approval("unblock"))
    assert len(node.loop.blocks) == 0
    assert "unblocked" in node.list_outcomes("ada")
    assert (await node.report("list_issues of docs"))["continue"]
    node.close()


async def test_checks_next_operation_in_addition_to_description(tmp_path: Path) -> None:
    node = GuardedPipeline(tmp_path)
    await node.begin()
    # A kind name for something that is denied.
    assert (await node.report("look at the notes", next_operation="s_drop_table"))["stopped"]
    await node.approve(await node.wait_for_approval("unblock"))
    # Said in words that let nobody think of it, and then done: it is stopped there.
    going = await node.report("get s.drop_table documentation text")
    assert going.get("stopped") is True
    node.close()


async def test_blocks_denied_call_despite_harmless_report(tmp_path: Path) -> None:
    node = GuardedPipeline(tmp_path, deny=["drop_table"])
    await node.begin()
    going = await node.report("remove the old table of the archive")
    assert going["continue"] is False
    await node.approve(await node.wait_for_approval("proceed"))
    assert (await node.report("remove the old table of the archive"))["continue"]
    error = await node.get_call_error("drop_table")
    assert error.data is not None
    assert error.data["reason"] == "hard_blocked"
    assert not node.upstream.started
    assert len(node.loop.blocks) == 1
    node.close()


async def test_processes_with_shared_file_sync_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_read, really_read = threading.Event(), blocks_module._read

    def slow_read(*args: Any) -> Any:
        assert may_read.wait(HANG_TIMEOUT)
        return really_read(*args)

    one = GuardedPipeline(tmp_path)
    (tmp_path / "beside").mkdir()
    two = GuardedPipeline(tmp_path / "beside", keys=one.keys)
    two.loop.store = two.loop.blocks._store = one.loop.store
    await one.begin()
    await one.report("drop_table users")
    error = await two.call_builtin("execute_agent", element_name="new")
    record = two.approvals.find(error["structuredContent"]["confirmation_id"])
    assert record is not None
    with pytest.raises(InterlockError, match="Blocked"):
        await two.approve(record)
    assert len(two.loop.blocks) == 1
    await one.approve(await one.wait_for_approval("unblock"))
    two.pass_time(2)
    # Nobody waits for the file: whoever asks again is told.
    monkeypatch.setattr(blocks_module, "_read", slow_read)
    await two.get_builtin_error("execute_agent", element_name="newer")
    may_read.set()
    await two.loop.block_sync.close()
    assert (await two.call_builtin("execute_agent", element_name="newer"))["structuredContent"]
    assert len(two.loop.blocks) == 0
    # It was lifted by somebody, and both journals say so.
    assert (
        one.list_outcomes("ada").count("unblocked")
        == two.list_outcomes("ada").count("unblocked")
        == 1
    )
    one.close()
    two.close()


async def test_blocks_although_file_is_not_writable(tmp_path: Path) -> None:
    class Broken:
        def __init__(self, keeper: Any) -> None:
            self.load, self.delete, self.close = keeper.load, keeper.delete, keeper.close

        def save(self, record: Any, *, wait: bool = True) -> None:
            raise InterlockError(UNRECORDABLE, "The disk is full.")

        save_unless_lifted = save

    node = GuardedPipeline(tmp_path)
    await node.begin()
    broken: Any = Broken(node.loop.store)
    node.loop.blocks._store = node.loop.challenges._store = broken
    stopped = await node.report("drop_table users")
    assert stopped["stopped"] is True
    node.pass_time(2)
    assert (await node.get_call_error("list_issues")).data["reason"] == "hard_blocked"  # type: ignore[index]
    # And nobody begins an execution that a restart would forget.
    node.loop.store = broken
    told = await node.call_builtin("execute_agent", "deputy", element_name="robot")
    record = node.approvals.find(told["structuredContent"]["confirmation_id"])
    assert record is not None
    with pytest.raises(InterlockError, match="disk is full"):
        await node.approve(record)
    assert all(who[0] != "deputy" for who in node.loop.watched)
    node.close()


def delete_file(path: Path) -> None:
    path.unlink()


def replace_file(path: Path) -> None:
    """Replace the file by a store without blocks."""
    store = SafetyStore(path.with_name("another.db"))
    store.save(CodeAttempts(("visitor", "token", ""), (1.0,)))
    store.close()
    path.with_name("another.db").rename(path)


def empty_file(path: Path) -> None:
    path.write_bytes(b"")


def delete_records(path: Path) -> None:
    with sqlite3.connect(path) as file:
        file.execute("DELETE FROM record")


@pytest.mark.parametrize("lose", [delete_file, replace_file, empty_file, delete_records])
async def test_removing_file_lifts_no_block(tmp_path: Path, lose: Callable[[Path], None]) -> None:
    node = GuardedPipeline(tmp_path)
    await node.begin()
    await node.report("drop_table users")
    await node.wait_for_approval("unblock")
    lose(tmp_path / "safety.db")
    for _ in range(3):
        node.pass_time(2)
        assert (await node.get_call_error("list_issues")).data["reason"] == "hard_blocked"  # type: ignore[index]
        await node.loop.block_sync.close()
    assert (
        "Blocked" in (await node.get_builtin_error("execute_agent", element_name="other")).message
    )
    assert "unblocked" not in node.list_outcomes()
    # It is in the journal, and on disk again: nor does a restart free anybody.
    assert {"rewritten", "block_kept"} & set(node.list_outcomes())
    node.close()
    again = GuardedPipeline(tmp_path, keys=node.keys)
    assert (await again.get_call_error("list_issues")).data["reason"] == "hard_blocked"  # type: ignore[index]
    again.close()


async def test_file_locked_elsewhere_does_not_delay_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Who waits for the file would be noticed.
    monkeypatch.setattr(aql_safety, "_BUSY_SECONDS", 86_400.0)

    node = GuardedPipeline(tmp_path)
    await node.begin()
    await node.report("drop_table users")
    await node.wait_for_approval("unblock")
    writer = sqlite3.connect(tmp_path / "safety.db", isolation_level=None)
    writer.execute("BEGIN EXCLUSIVE")
    node.pass_time(2)
    assert (await node.get_call_error("list_issues")).data["reason"] == "hard_blocked"  # type: ignore[index]
    assert node.loop.block_sync.task is not None
    await node.loop.block_sync.close()
    assert len(node.loop.blocks) == 1
    writer.close()
    node.close()


async def test_stale_sync_does_not_restore_lifted_block(tmp_path: Path) -> None:
    node = GuardedPipeline(tmp_path)
    await node.begin()
    await node.report("drop_table users")
    before = node.loop.store.load()
    assert before.blocks
    await node.approve(await node.wait_for_approval("unblock"))
    assert node.loop.blocks.sync(before) == []
    assert len(node.loop.blocks) == 0
    # Nor does what lifted one block lift the next.
    lifted = node.loop.store.load()
    assert [lift.owner[0] for lift in lifted.lifts] == ["ada"]
    node.pass_time(5)
    await node.report("drop_table users")
    assert node.loop.blocks.sync(lifted) == []
    assert len(node.loop.blocks) == 1
    node.close()


def other_request(verb: str, upstream: str = "s") -> Call:
    call = Call(verb, "test", LOCAL, SESSION, upstream=upstream)
    call.caller = Caller("ada", kind="token")
    return call


@pytest.mark.spec("AQ-8.6.3-1")
async def test_checks_requests_without_tools(tmp_path: Path) -> None:
    node = GuardedPipeline(tmp_path)
    watch = node.loop.watch
    node.loop.runs.start(Caller("ada", kind="token"), "agent", None, "")
    # What is understood here only reads.
    for verb in ("resources/read", "prompts/get", "completion/complete"):
        assert watch(other_request(verb), ALLOW) is ALLOW
    # What nobody but the server understands may be anything, and is held as an action.
    with pytest.raises(AqlError, match="Not reported"):
        watch(other_request("vault/open"), ALLOW)
    assert node.loop.violations == 1
    hint = StepReport("", normalize_hint("x"), node.rig.clock(), 0, "vault/open")
    [agent] = node.loop.runs.runs_of(("ada", "token", ""))
    hint.execution = agent.execution.id
    node.loop.reports.add(agent.execution.owner, hint)
    with pytest.raises(AqlError, match="needs a confirmation"):
        watch(other_request("vault/open"), ALLOW)
    hint.approved_tier = "confirm"
    node.loop.reports.add(agent.execution.owner, hint)
    assert watch(other_request("vault/open"), ALLOW) is ALLOW
    node.loop.block(agent, "drop_table", StepVerdict("stop", 3, [], "Denied."))
    for verb in ("resources/read", "prompts/get", "vault/open", "tasks/get"):
        with pytest.raises(AqlError, match="Blocked"):
            watch(other_request(verb), ALLOW)
    for verb, upstream in [
        ("tools/list", ""),
        ("resources/list", ""),
        ("mcpax/confirm", ""),
        ("tasks/cancel", "s"),
    ]:
        assert watch(other_request(verb, upstream), ALLOW) is ALLOW
    node.close()
