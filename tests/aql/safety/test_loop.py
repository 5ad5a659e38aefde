"""Tests of the safety loop with real calls: only reported calls are executed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from interlock.aql.safety.loop import IDLE_SECONDS
from interlock.aql.safety.operator_api import OperatorApi
from interlock.errors import DENIED, InterlockError
from tests.aql.safety.guarded_pipeline import GuardedPipeline, notification_types
from tests.support.timeouts import HANG_TIMEOUT


def run(test: Any) -> None:
    async def within() -> None:
        async with asyncio.timeout(HANG_TIMEOUT):
            await test

    asyncio.run(within())


@pytest.mark.spec("AQ-8.6-1", "AQ-8.6.2-1", "AQ-8.6.2-3", "AQ-8.6.3-1", "AQ-8.6.3-3")
async def test_rejects_unreported_calls(tmp_path: Path) -> None:
    node = GuardedPipeline(tmp_path)
    # Nobody has an execution: calls are as ever.
    assert await node.call_executes("list_issues")
    assert not node.loop.watched
    await node.begin()
    error = await node.get_call_error("list_issues")
    assert error.failure is DENIED
    assert error.data is not None
    assert error.data["reason"] == "unreported_action"
    assert node.loop.violations == 1
    assert "unreported_action" in node.list_outcomes("ada")
    # Others are not watched.
    assert await node.call_executes("list_issues", "deputy")
    directive = await node.report("list_issues of the repository docs")
    assert directive["continue"]
    assert "error" in notification_types(directive)
    assert await node.call_executes("list_issues")
    # One report, one call.
    assert (await node.get_call_error("list_issues")).data["reason"] == "unreported_action"  # type: ignore[index]
    # Another action than the one reported.
    assert (await node.report("list issues of docs"))["continue"]
    assert not await node.call_executes("delete_repo")
    assert await node.call_executes("list_issues")
    order = [(one["verb"], one["outcome"]) for one in node.journal.entries]
    assert order.index(("safety", "step_continue")) < len(order) - 1
    details = [one["detail"] for one in node.journal.entries if one["outcome"] == "step_continue"]
    assert "list_issues of the repository docs" in details[0]
    node.close()


@pytest.mark.spec("AQ-8.6.2-2", "AQ-8.6.2-4", "AQ-8.5.4-2")
async def test_execution_needs_approval_and_ends(tmp_path: Path) -> None:
    node = GuardedPipeline(tmp_path)
    held = await node.read_builtin("execute_agent", element_name="agent")
    assert held["confirmation_id"]
    assert not node.loop.watched
    id = await node.begin(max_autonomous_steps=3)
    unreported = await node.get_call_error("list_issues")
    assert unreported.data is not None
    assert unreported.data["reason"] == "unreported_action"
    # Approval gives watched trust: each step still gets a directive.
    assert "continue" in await node.report("list_issues of docs")
    # Two run: which one is meant has to be said.
    other = await node.begin(risk_tolerance="conservative")
    error = await node.get_builtin_error(
        "record_execution_step", element_name="agent", next_action_hint="list_issues of docs"
    )
    assert error.code == "VALIDATION_MISSING_PARAM"
    assert "continue" in await node.report("list_issues of docs", execution_id=id)
    ended = await node.read_builtin("complete_execution", execution_id=id, summary="All listed.")
    assert ended["status"] == "completed"
    gone = await node.get_builtin_error(
        "record_execution_step",
        element_name="agent",
        execution_id=id,
        next_action_hint="list_issues",
    )
    assert gone.code == "CONFLICT_INVALID_STATE"
    aborted = await node.read_builtin("abort_execution", execution_id=other, reason="Enough.")
    assert aborted["status"] == "cancelled"
    assert not node.loop.watched
    assert await node.call_executes("list_issues")
    # Nobody ends or reports for somebody else.
    mine = await node.begin("deputy", "robot")
    foreign = await node.get_builtin_error("abort_execution", execution_id=mine)
    assert foreign.code == "NOT_FOUND_RESOURCE"
    node.close()


@pytest.mark.spec("AQ-8.6.3-2", "AQ-8.6.3-3")
@pytest.mark.parametrize(
    ("params", "code"),
    [
        ({"element_name": "agent"}, "VALIDATION_MISSING_PARAM"),
        ({"next_action_hint": "list_issues"}, "VALIDATION_MISSING_PARAM"),
        ({"element_name": "agent", "next_action_hint": ""}, "VALIDATION_INVALID_TYPE"),
        ({"element_name": "agent", "next_action_hint": " \n\t"}, "VALIDATION_INVALID_TYPE"),
        ({"element_name": "agent", "next_action_hint": "\u200b\u2060"}, "VALIDATION_INVALID_TYPE"),
        ({"element_name": "agent", "next_action_hint": 7}, "VALIDATION_INVALID_TYPE"),
        ({"element_name": "agent", "next_action_hint": "x" * 2**20}, "VALIDATION_OUT_OF_RANGE"),
        (
            {"element_name": "agent", "next_action_hint": "list_issues", "outcome": "ok"},
            "VALIDATION_INVALID_ENUM",
        ),
    ],
)
async def test_rejects_invalid_reports(tmp_path: Path, params: dict[str, Any], code: str) -> None:
    from interlock.aql.language.errors import AqlError
    from interlock.aql.request import AqlRequest
    from interlock.aql.safety.operations import StepOperations
    from interlock.protocol.aql_terms import PLAIN_VIEW
    from tests.aql.safety.guarded_pipeline import agent_call

    node = GuardedPipeline(tmp_path)
    await node.begin()
    call = agent_call("list_issues")
    call.caller = node.loop.runs.runs_of(next(iter(node.loop.watched)))[0].caller
    operation = node.catalog_builder.build(node.rig.catalog.current).find("record_execution_step")
    assert operation is not None
    with pytest.raises(AqlError) as raised:
        await StepOperations(node.loop).record_execution_step(
            AqlRequest(operation, PLAIN_VIEW, None, params=params, call=call)
        )
    assert raised.value.code == code
    # By the pipeline, the schema says the same.
    assert isinstance(await node.call_builtin("record_execution_step", **params), InterlockError)
    node.close()


@pytest.mark.spec("AQ-8.5.4-2")
async def test_accepts_both_parameter_spellings(tmp_path: Path) -> None:
    node = GuardedPipeline(tmp_path)
    await node.begin()
    operation = node.catalog_builder.build(node.rig.catalog.current).find("record_execution_step")
    assert operation is not None
    signature = operation.signature
    assert signature.aliases["nextActionHint"] == "next_action_hint"
    assert signature.aliases["stepDescription"] == "step_description"
    assert all(name == name.lower() for name in signature.names)
    node.close()


@pytest.mark.spec("AQ-8.7.2-2", "AQ-8.7.1-1", "AQ-8.7.5-1")
@pytest.mark.parametrize("stages", [[1, 2, 3, 4, 5], []])
async def test_step_limit_pauses_agent(tmp_path: Path, stages: list[int]) -> None:
    node = GuardedPipeline(tmp_path, max_steps=3, stages=stages)
    await node.begin()
    remaining = []
    for _ in range(3):
        directive = await node.report("list_issues of docs")
        assert directive["continue"] is True
        assert isinstance(directive["factors"], list)
        remaining.append(directive["stepsRemaining"])
    assert remaining == [2, 1, 0]
    over = await node.report("list_issues of docs")
    assert (over["continue"], over["reason"]) == (False, "Step limit exceeded")
    assert notification_types(over) == ["autonomy_pause"]
    # A human may let it go on, for as many steps again.
    record = await node.wait_for_approval("proceed")
    await node.approve(record)
    assert (await node.report("list_issues of docs"))["stepsRemaining"] == 2
    assert [
        one.execution.max_steps for one in node.loop.runs.runs_of(next(iter(node.loop.watched)))
    ] == [6]
    node.close()


@pytest.mark.spec("AQ-8.6.4-2", "AQ-8.7.3-3", "AQ-8.6.2-1")
async def test_paused_step_needs_approval_and_passes_once(tmp_path: Path) -> None:
    node = GuardedPipeline(tmp_path)
    await node.begin()
    hint = "delete_repo docs"
    for _ in range(2):
        paused = await node.report(hint)
        assert paused["continue"] is False
        assert "stopped" not in paused
        assert notification_types(paused) == ["autonomy_pause"]
    record = await node.wait_for_approval("proceed")
    assert len([one for one in node.approvals.pending() if one.tool == "aql.proceed"]) == 1
    assert hint in record.shown.decode()
    await node.approve(record)
    going = await node.report(hint)
    assert going["continue"] is True
    assert notification_types(going) == []
    # What it does is held by the policy or by the loop, as what it is.
    assert await node.call_executes("delete_repo")
    assert (await node.report("delete_repo docs"))["continue"] is False
    node.close()


async def test_pause_names_approval_page_and_ends_with_execution(
    tmp_path: Path,
) -> None:
    node = GuardedPipeline(tmp_path)
    id = await node.begin()
    for hint in ("delete_repo docs", "delete_repo wiki"):
        [*_, told] = (await node.report(hint))["notifications"]
        record = next(one for one in node.approvals.pending() if hint in one.shown.decode())
        about = told["metadata"]
        assert (about["approvalId"], about["hint"]) == (record.id, hint)
        url = node.approvals.approval_url(record.id)
        assert about.get("url") == url
        assert (url or f"`interlock approve {record.id}`") in told["message"]
    # One that a human decided is told no more; the other is.
    await node.approve(record)
    [left] = (await node.report("list_issues of docs"))["notifications"]
    assert left["metadata"]["hint"] == "delete_repo docs"
    [waits] = node.approvals.pending()
    gone = asyncio.Event()
    unhear = node.approvals.watch(lambda one: gone.set() if one.is_final else None)
    await node.read_builtin("abort_execution", execution_id=id)
    await asyncio.wait_for(gone.wait(), 5)
    unhear()
    assert node.approvals.pending() == []
    over = node.approvals.find(waits.id)
    assert over is not None
    assert over.state == "refused"
    node.close()


@pytest.mark.spec("AQ-8.6.1-2")
async def test_only_execute_agent_starts_the_loop(tmp_path: Path) -> None:
    node = GuardedPipeline(tmp_path)
    error = await node.get_builtin_error(
        "record_execution_step", element_name="agent", next_action_hint="list_issues of docs"
    )
    assert error.code == "CONFLICT_INVALID_STATE"
    assert not node.loop.watched
    assert await node.call_executes("list_issues")
    node.close()


@pytest.mark.spec("AQ-8.6.4-1")
async def test_rejects_the_action_of_a_paused_step(tmp_path: Path) -> None:
    node = GuardedPipeline(tmp_path)
    await node.begin()
    paused = await node.report("list_issues of docs", outcome="failure")
    assert paused["continue"] is False
    error = await node.get_call_error("list_issues")
    assert error.data is not None
    assert error.data["reason"] == "unreported_action"
    node.close()


async def test_operator_lists_and_ends_executions(tmp_path: Path) -> None:
    node = GuardedPipeline(tmp_path)
    desk = OperatorApi(node.loop)
    id = await node.begin()
    await node.begin("deputy")
    await node.report("delete_repo docs")
    mine = next(one for one in desk.list_challenges()["executions"] if one["id"] == id)
    assert (mine["caller"], mine["element_name"], mine["steps"]) == ("ada", "agent", 1)
    assert mine["last_step"]
    # Whoever sees tools is told whom it has to do with, and what helps.
    told = await node.get_call_error("list_issues")
    assert f"`interlock operator end {id}`" in told.message
    assert "'ada'" in told.message
    with pytest.raises(InterlockError):
        await desk.end("exec_", "clerk")
    ended = await desk.end(id[:13], "clerk")
    assert ended["state"] == "cancelled"
    assert [one["caller"] for one in desk.list_challenges()["executions"]] == ["deputy"]
    assert await node.call_executes("list_issues")
    assert "execution_cancelled" in node.list_outcomes("clerk")
    with pytest.raises(InterlockError):
        await desk.end(id, "clerk")
    node.close()


async def test_idle_execution_ends(tmp_path: Path) -> None:
    node = GuardedPipeline(tmp_path)
    await node.begin()
    node.pass_time(IDLE_SECONDS - 10)
    assert (await node.report("list_issues of docs"))["continue"] is True
    assert await node.call_executes("list_issues")
    node.pass_time(IDLE_SECONDS - 10)
    assert "running as 'ada'" in (await node.get_call_error("list_issues")).message
    assert [who[0] for who in node.loop.runs.owners()] == ["ada"]
    node.pass_time(20)
    assert await node.call_executes("list_issues")
    assert node.loop.watched == {}
    node.close()


@pytest.mark.spec("AQ-8.7.3-2", "AQ-GK-7.1-1")
async def test_reports_pending_approval_until_decision(tmp_path: Path) -> None:
    node = GuardedPipeline(tmp_path, default="safe", requires_approval=[])
    await node.begin()
    going = await node.report("delete_repo docs", next_operation="s_delete_repo", execution_id="")
    # The node knows that this cannot be undone: even said plainly, it is confirmed.
    assert going["continue"] is False
    await node.approve(await node.wait_for_approval("proceed"))
    assert (await node.report("delete_repo docs", next_operation="s_delete_repo"))["continue"]
    held = (await node.start_call("delete_repo", name="docs"))["structuredContent"]
    waits = await node.report("list_issues of docs")
    assert waits["continue"] is False
    assert notification_types(waits) == ["permission_pending"]
    # A proof that is none clears nothing.
    record = node.approvals.find(held["confirmation_id"])
    assert record is not None
    with pytest.raises(InterlockError):
        await node.approvals.confirm(record.id, "no.proof.this")
    assert notification_types(await node.report("list_issues of docs")) == ["permission_pending"]
    # The same call again needs no other report: it only asks what became of it.
    again = (await node.start_call("delete_repo", name="docs"))["structuredContent"]
    assert again["confirmation_id"] == held["confirmation_id"]
    task = asyncio.ensure_future(node.approvals.confirm(record.id, node.proof(record)))
    (await node.reached(1)).answer(content=[{"type": "text", "text": "gone"}])
    await task
    kept = await node.start_call("delete_repo", name="docs")
    assert kept["content"][0]["text"] == "gone"
    after = await node.report("list_issues of docs")
    assert after["continue"] is True
    assert notification_types(after) == []
    node.close()


@pytest.mark.spec("AQ-8.6.4-3", "AQ-ESL-8.3-1")
async def test_monitoring_mode_journals_and_lets_calls_pass(tmp_path: Path) -> None:
    node = GuardedPipeline(tmp_path, mode="monitoring")
    await node.begin()
    told = await node.report("drop_table users")
    assert told["continue"] is True
    assert "stopped" not in told
    assert any("drop_*" in factor for factor in told["factors"])
    assert len(node.loop.blocks) == 0
    assert not node.human.codes
    assert await node.call_executes("list_issues")
    assert await node.call_executes("drop_table")
    assert len(node.loop.blocks) == 0
    words = node.list_outcomes("ada")
    assert {"would_stop", "would_refuse_unreported"} <= set(words)
    node.close()


@pytest.mark.spec("AQ-8.6.4-3", "AQ-8.6.7-1", "AQ-8.6.1-1", "AQ-8.6.1-2")
@pytest.mark.parametrize("mode", ["logging", "disabled"])
async def test_off_mode_checks_nothing(tmp_path: Path, mode: str) -> None:
    node = GuardedPipeline(tmp_path, mode=mode)
    await node.begin()
    assert not node.loop.watched
    told = await node.report("drop_table users")
    assert "continue" not in told
    assert told["step"] == 1
    assert await node.call_executes("drop_table")
    assert len(node.loop.blocks) == 0
    assert ("step_reported" in node.list_outcomes("ada")) is (mode == "logging")
    # By another config it is watched from the next call on.
    node.configure(mode="enforcing")
    assert not await node.call_executes("list_issues")
    node.configure(mode=mode)
    assert await node.call_executes("list_issues")
    node.close()


async def test_report_allows_only_named_operation_and_parameters(tmp_path: Path) -> None:
    node = GuardedPipeline(tmp_path)
    await node.begin()
    going = await node.report(
        "create an issue about tests",
        next_operation="s_create_issue",
        next_params={"title": "x", "labelIds": [1]},
    )
    assert going["continue"]
    assert not await node.call_executes("create_issue", title="y", labelIds=[1])
    assert not await node.call_executes("get_issue")
    assert await node.call_executes("create_issue", labelIds=[1], title="x")
    node.close()


async def test_report_expires(tmp_path: Path) -> None:
    node = GuardedPipeline(tmp_path, report_holds=60.0)
    await node.begin()
    await node.report("list_issues of docs")
    node.pass_time(61)
    assert not await node.call_executes("list_issues")
    await node.report("list_issues of docs")
    # A wall clock that is set back gives no more time, and one set forward takes none.
    node.wall -= 10_000
    node.rig.clock.advance(59)
    assert await node.call_executes("list_issues")
    node.close()


async def test_completed_execution_removes_its_reports(tmp_path: Path) -> None:
    node = GuardedPipeline(tmp_path)
    first = await node.begin()
    await node.begin(element="second")
    await node.report("list_issues of docs", execution_id=first)
    await node.read_builtin("complete_execution", execution_id=first)
    assert not await node.call_executes("list_issues")
    node.close()


@pytest.mark.spec("AQ-8.7.3-1")
async def test_notifies_once(tmp_path: Path) -> None:
    node = GuardedPipeline(tmp_path)
    await node.begin()
    assert not await node.call_executes("list_issues")
    first = await node.report("list_issues of docs")
    [told] = first["notifications"]
    assert told["type"] == "error"
    assert told["metadata"]["operation"] == "s_list_issues"
    assert told["timestamp"].endswith("Z")
    assert notification_types(await node.report("list_issues of docs")) == []
    node.close()


async def test_limits_pending_approvals_of_one_agent(tmp_path: Path) -> None:
    node = GuardedPipeline(tmp_path, max_steps=1_000)
    await node.begin()
    for number in range(40):
        assert not (await node.report(f"delete_user {number}"))["continue"]
    await node.report("drop_table users")
    await node.approve(await node.wait_for_approval("unblock"))
    waiting = [one for one in node.approvals.pending() if one.tool == "aql.proceed"]
    assert len(waiting) == 10
    node.close()
