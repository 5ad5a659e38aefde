"""Tests of batches: order, failures, approvals and invalid batches."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.aql.config import AqlConfig, AqlLimits
from interlock.aql.operations import BuiltinOperation, OperationSnapshot
from interlock.aql.request import AqlRequest
from interlock.core.call import Call
from interlock.core.config.trust import RuleConfig
from interlock.errors import InterlockError
from interlock.protocol.aql_terms import Category, OperationView
from tests.aql.view_pipeline import (
    FIVE,
    SINGLE,
    ViewPipeline,
    gated_pipeline,
    read_result,
    text_result,
    view_pipeline,
)
from tests.support.calls import tool_call
from tests.support.clock import run_ready_tasks
from tests.support.timeouts import HANG_TIMEOUT

GET = {"operation": "hub_get_issue", "params": {"owner": "o", "number": 1}}
LIST = {"operation": "hub_list_issues"}
RUN = {"operation": "hub_run_report", "params": {}}
CREATE = {"operation": "hub_create_issue", "params": {"owner": "o", "issue_title": "t"}}
DELETE = {"operation": "hub_delete_repo", "params": {"owner": "o", "repo": "r"}}


def start_batch(
    node: ViewPipeline,
    items: Any,
    endpoint: str = "mcp_aql",
    view: OperationView = SINGLE,
    **also: Any,
) -> tuple[Call, asyncio.Task[Any]]:
    fields = {key: also.pop(key) for key in ("meta", "on_notification") if key in also}
    call = tool_call(endpoint, {"operations": items, **also}, view=view, **fields)
    return call, asyncio.ensure_future(node.pipeline.run(call))


def run_test(test: Callable[[], Awaitable[None]]) -> None:
    async def within() -> None:
        async with asyncio.timeout(HANG_TIMEOUT):
            await test()

    asyncio.run(within())


async def read_response(node: ViewPipeline, task: asyncio.Task[Any]) -> dict[str, Any]:
    return node.read(read_result(await task))


@pytest.mark.spec("AQ-OPS-7.1-1")
@pytest.mark.spec("AQ-OPS-7.3-1")
async def test_runs_items_in_order_and_continues_after_failure() -> None:
    node = view_pipeline()
    _, task = start_batch(node, [CREATE, {"operation": "nothing"}, RUN])
    first = await node.wait_for_call(1)
    await run_ready_tasks(20)
    assert len(node.sent_calls) == 1, "the next one waits for the first"
    first.answer(**text_result('{"id":1}'))
    (await node.wait_for_call(2)).answer(**text_result("done"))
    answer = await read_response(node, task)
    assert answer["success"] is True
    assert answer["data"] is None
    assert answer["summary"] == {"total": 3, "succeeded": 2, "failed": 1}
    one, two, three = answer["results"]
    assert (one["index"], one["operation"]) == (0, "hub_create_issue")
    assert one["result"] == {"success": True, "data": {"id": 1}}
    assert two["result"]["error"]["code"] == "NOT_FOUND_OPERATION"
    assert three["result"]["success"] is True
    assert [name for name, _ in node.sent_calls] == ["createIssue", "run_report"]
    # Each has its own entry in the journal, and the batch one of its own.
    names = [entry["name"] for entry in node.journal.entries]
    assert names == ["hub.createissue", "mcp_aql", "hub.run_report", "aql.batch"]


@pytest.mark.spec("AQ-OPS-7-1")
@pytest.mark.spec("AQ-9.3-1")
async def test_runs_read_items_concurrently_and_keeps_order() -> None:
    node = view_pipeline()
    _, task = start_batch(node, [GET, LIST] * 6)
    await node.wait_for_call(8)
    await run_ready_tasks(20)
    upstream = node.hub
    assert len(upstream.started) == 8
    upstream.started[7].answer(**text_result("[7]"))
    await node.wait_for_call(9)
    for number in (0, 1, 2, 3, 4, 5, 6, 8):
        upstream.started[number].answer(**text_result(f"[{number}]"))
    for number in (9, 10, 11):
        (await node.wait_for_call(number + 1)).answer(**text_result(f"[{number}]"))
    answer = await read_response(node, task)
    assert [one["result"]["data"] for one in answer["results"]] == [[n] for n in range(12)]


@pytest.mark.spec("AQ-OPS-7.4-1")
async def test_item_of_other_endpoint_fails_alone() -> None:
    node = view_pipeline()
    _, task = start_batch(node, [CREATE, DELETE], "mcp_aql_create", FIVE)
    (await node.wait_for_call(1)).answer(**text_result("{}"))
    answer = await read_response(node, task)
    error = answer["results"][1]["result"]["error"]
    assert error["code"] == "VALIDATION_ENDPOINT_MISMATCH"
    assert error["details"]["actual_endpoint"] == "mcp_aql_create"
    assert len(node.sent_calls) == 1


@pytest.mark.spec("AQ-OPS-7.1-1", "AQ-OPS-7.3-1")
@pytest.mark.spec("AQ-OPS-7-1")
@pytest.mark.parametrize(
    "arguments",
    [
        {"operations": []},
        {"operations": [LIST] * 51},
        {"operations": {}},
        {"operations": "x"},
        {"operations": None},
        {"operations": [LIST], "operation": "hub_list_issues"},
        {"operations": [LIST], "params": {}},
    ],
)
def test_rejects_invalid_batches(arguments: Any) -> None:
    node = view_pipeline()
    envelope = node.ask("mcp_aql", arguments, view=SINGLE)
    assert envelope["error"]["code"] == "BATCH_VALIDATION_ERROR"
    assert node.sent_calls == []
    assert node.rig.done[-1][1]["isError"] is True


@pytest.mark.spec("AQ-OPS-7-1")
async def test_accepts_batch_as_operation_name() -> None:
    node = view_pipeline()
    _, task = start_batch(node, [LIST], operation="batch")
    (await node.wait_for_call(1)).answer(**text_result("[]"))
    answer = await read_response(node, task)
    assert answer["success"] is True
    assert answer["results"][0]["result"]["data"] == []


@pytest.mark.parametrize(
    ("name", "near"),
    [("_dryRun", "_dry_run"), ("_confirmation", None), ("_fields", None), ("_xyz", None)],
)
def test_rejects_options_of_single_requests(name: str, near: str | None) -> None:
    node = view_pipeline()
    error = node.ask("mcp_aql", {"operations": [RUN], name: True}, view=SINGLE)["error"]
    assert error["code"] == "VALIDATION_UNKNOWN_PARAM"
    assert error["details"]["unknown_params"] == [name]
    assert error["details"].get("did_you_mean") == near
    assert ("into each operation" in error["message"]) is (name in ("_confirmation", "_fields"))
    assert node.sent_calls == []


def test_rejects_request_without_operation_or_operations() -> None:
    envelope = view_pipeline().ask("mcp_aql", {}, view=SINGLE)
    assert envelope["error"]["code"] == "VALIDATION_MISSING_PARAM"


@pytest.mark.spec("AQ-4.7.5-1")
def test_rejects_batch_of_ten_megabytes() -> None:
    huge = {"operations": [{"operation": "x", "params": {"a": "b" * 10_000_000}}]}
    error = view_pipeline().ask("mcp_aql", huge, view=SINGLE)["error"]
    assert error["code"] == "VALIDATION_PAYLOAD_TOO_LARGE"


@pytest.mark.parametrize(
    "item",
    [
        7, None, "x", [], {}, {"operation": 7}, {"operation": ""}, {"operation": "x", "params": 1},
        {"operations": [LIST]}, {"operation": "batch"}, {"operation": "aql.batch"},
        {"operation": "introspect", "params": {"operations": [LIST]}},
    ],
)  # fmt: skip
async def test_malformed_item_fails_alone(item: Any) -> None:
    node = view_pipeline()
    _, task = start_batch(node, [item, LIST])
    (await node.wait_for_call(1)).answer(**text_result("{}"))
    answer = await read_response(node, task)
    assert answer["summary"] == {"total": 2, "succeeded": 1, "failed": 1}
    assert answer["results"][0]["result"]["success"] is False


async def test_reports_progress_per_item() -> None:
    node = view_pipeline()
    heard: list[Any] = []
    _, task = start_batch(
        node,
        [RUN, RUN],
        meta={"progressToken": "p"},
        on_notification=lambda _, __, params: heard.append(json.loads(bytes(params))),
    )
    for number in (1, 2):
        exchange = await node.wait_for_call(number)
        assert exchange.call.meta is None
        exchange.answer(**text_result("{}"))
    await read_response(node, task)
    assert heard == [{"progressToken": "p", "progress": number, "total": 2} for number in (1, 2)]


async def test_cancelled_batch_cancels_its_calls() -> None:
    node = view_pipeline()
    call, task = start_batch(node, [RUN, RUN])
    exchange = await node.wait_for_call(1)
    node.pipeline.cancel(call)
    with pytest.raises(InterlockError):
        await task
    await run_ready_tasks(20)
    assert exchange.abandoned
    assert len(node.sent_calls) == 1
    assert node.rig.under_way == 0


@pytest.mark.parametrize("item", [RUN, LIST])
async def test_timeout_returns_completed_items(item: Any) -> None:
    node = view_pipeline(None, timeout=10.0)
    _, task = start_batch(node, [item, RUN, RUN] if item is RUN else [item] * 9)
    (await node.wait_for_call(1)).answer(**text_result("{}"))
    await node.wait_for_call(2)
    # Every item has its own time, and all together the time of one call.
    node.rig.clock.advance(11)
    answer = await read_response(node, task)
    assert answer["success"] is True
    assert answer["results"][0]["result"]["success"] is True
    assert answer["summary"]["failed"] == answer["summary"]["total"] - 1
    assert len(answer["results"]) == answer["summary"]["total"]
    assert node.rig.under_way == 0


async def test_child_calls_declare_no_client_capabilities() -> None:
    node = view_pipeline()
    _, task = start_batch(node, [LIST])
    exchange = await node.wait_for_call(1)
    assert exchange.call.client.capabilities == b"{}"
    exchange.answer(**text_result("{}"))
    await read_response(node, task)


async def test_replaces_results_beyond_response_limit() -> None:
    limits = AqlLimits(response_bytes=1024 * 1024)
    node = view_pipeline(AqlConfig(limits=limits))
    _, task = start_batch(node, [RUN] * 3)
    for number in (1, 2, 3):
        (await node.wait_for_call(number)).answer(**text_result("x" * 400_000))
    answer = await read_response(node, task)
    codes = [one["result"].get("error", {}).get("code") for one in answer["results"]]
    assert codes == [None, None, "VALIDATION_PAYLOAD_TOO_LARGE"]
    assert "was executed" in answer["results"][2]["result"]["error"]["message"]


# -- humans

ASKS = [RuleConfig(name="ask", then="confirm", tools=["hub.delete_repo", "hub.get_issue"])]


@pytest.mark.spec("AQ-OPS-7.5.2-1")
@pytest.mark.spec("AQ-OPS-7.5.5-1")
@pytest.mark.spec("AQ-OPS-7.5.3-1")
async def test_halts_for_approval_and_returns_pending_operations(tmp_path: Path) -> None:
    node = gated_pipeline(tmp_path, default="allow", rules=ASKS)
    assert node.gated is not None
    _, task = start_batch(node, [CREATE, DELETE, RUN])
    (await node.wait_for_call(1)).answer(**text_result("{}"))
    answer = await read_response(node, task)
    assert answer["success"] is True
    assert answer["summary"] == {
        "total": 3, "succeeded": 1, "failed": 0, "halted": 1, "pending": 1,
    }  # fmt: skip
    halted = answer["halted_at"]
    assert (halted["index"], halted["operation"]) == (1, "hub_delete_repo")
    error = halted["result"]["error"]
    assert error["code"] == "CONFIRMATION_REQUIRED"
    assert answer["pending_operations"] == [RUN]
    assert [name for name, _ in node.sent_calls] == ["createIssue"]
    # A human says yes: that executes it.
    token = error["details"]["confirmation_token"]
    approval = node.gated.approvals.find(token.removeprefix("conf_"))
    assert approval is not None
    confirming = asyncio.ensure_future(
        node.gated.approvals.confirm(approval.id, node.gated.proof(approval))
    )
    (await node.wait_for_call(2)).answer(**text_result('{"gone":true}'))
    await confirming
    params = {**DELETE["params"], "confirmation_token": token}  # type: ignore[dict-item]
    again = {"operation": "hub_delete_repo", "params": params}
    _, task = start_batch(node, [again, *answer["pending_operations"]])
    (await node.wait_for_call(3)).answer(**text_result("{}"))
    answer = await read_response(node, task)
    assert answer["summary"] == {"total": 2, "succeeded": 2, "failed": 0}
    assert answer["results"][0]["result"]["data"] == {"gone": True}
    assert [name for name, _ in node.sent_calls] == ["createIssue", "delete_repo", "run_report"]
    node.gated.close()


@pytest.mark.spec("AQ-OPS-7.5.4-1")
@pytest.mark.parametrize("items", [[DELETE, RUN], [GET, LIST]])
async def test_skip_setting_continues_without_approval(tmp_path: Path, items: Any) -> None:
    config = AqlConfig(batch_confirmation="skip")
    node = gated_pipeline(tmp_path, config, default="allow", rules=ASKS)
    _, task = start_batch(node, items)
    (await node.wait_for_call(1)).answer(**text_result("{}"))
    answer = await read_response(node, task)
    assert answer["summary"] == {
        "total": 2, "succeeded": 1, "failed": 0, "pending_confirmation": 1,
    }  # fmt: skip
    assert answer["results"][0]["status"] == "pending_confirmation"
    assert "halted_at" not in answer
    assert node.gated is not None
    node.gated.close()


_item = st.sampled_from([GET, LIST, RUN, CREATE, {"operation": "x"}, {}, 7, None])


@settings(max_examples=60, deadline=None)
@given(st.lists(_item, min_size=1, max_size=8), st.lists(st.booleans(), min_size=8, max_size=8))
async def test_every_item_has_result_at_its_index(items: list[Any], well: list[bool]) -> None:
    node = view_pipeline()
    _, task = start_batch(node, items)
    upstream = node.hub
    answered = 0
    for _ in range(500):
        if task.done():
            break
        while answered < len(upstream.started):
            exchange = upstream.started[answered]
            if well[answered % 8]:
                exchange.answer(**text_result("{}"))
            else:
                exchange.answer(**text_result("not found", isError=True))
            answered += 1
        await asyncio.sleep(0)
    answer = await read_response(node, task)
    assert [one["index"] for one in answer["results"]] == list(range(len(items)))
    summary = answer["summary"]
    assert summary["succeeded"] + summary["failed"] == summary["total"] == len(items)
    good = sum(1 for one in items if one in (GET, LIST, RUN, CREATE))
    assert answered == good
    assert summary["succeeded"] == sum(well[n % 8] for n in range(good))


async def test_yields_between_builtin_items() -> None:
    passed = 0
    seen: list[int] = []
    ended = asyncio.Event()

    async def somebody_else() -> None:
        nonlocal passed
        while not ended.is_set():
            passed += 1
            await asyncio.sleep(0)

    def answer(_: AqlRequest) -> dict[str, Any]:
        seen.append(passed)
        return {}

    native = BuiltinOperation(
        name="ponder",
        category=Category.READ,
        effect="read_only",
        description="Takes its time.",
        free=True,
        answer=answer,
    )
    node = view_pipeline(natives=[native])
    other = asyncio.ensure_future(somebody_else())
    items = [{"operation": "ponder"} for _ in range(20)]
    call = tool_call("mcp_aql_read", {"operations": items}, view=FIVE)
    told = json.loads(read_result(await node.pipeline.run(call))["content"][0]["text"])
    ended.set()
    await other
    assert told["summary"]["succeeded"] == len(seen) == 20
    assert len(set(seen)) == 20, "several in one turn"


async def test_suggests_similar_name_once(monkeypatch: pytest.MonkeyPatch) -> None:
    node = view_pipeline()
    looked: list[str] = []
    near = OperationSnapshot.find_similar

    def counted(operation_catalog: OperationSnapshot, name: str, limit: int = 5) -> list[str]:
        looked.append(name)
        return near(operation_catalog, name, limit)

    monkeypatch.setattr(OperationSnapshot, "find_similar", counted)
    items = [{"operation": f"hub_get_isue{number}"} for number in range(50)]
    call = tool_call("mcp_aql_read", {"operations": items}, view=FIVE)
    told = json.loads(read_result(await node.pipeline.run(call))["content"][0]["text"])
    codes = [one["result"]["error"]["code"] for one in told["results"]]
    assert codes == ["NOT_FOUND_OPERATION"] * 50
    assert looked == ["hub_get_isue0"]
    assert "hub_get_issue" in json.dumps(told["results"][0])


@pytest.mark.spec("AQ-OPS-7.3-1")
@pytest.mark.parametrize(("policy", "is_error"), [("mcp", True), ("aql", False)])
async def test_batch_without_success_is_marked(policy: Any, is_error: bool) -> None:
    node = view_pipeline(AqlConfig(is_error=policy))
    _, task = start_batch(node, [{"operation": "nothing"}, {"operation": "nothing_else"}])
    result = read_result(await task)
    assert result.get("isError", False) is is_error
    answer = node.read(result)
    assert answer["success"] is True, "the batch itself was processed"
    assert answer["summary"] == {"total": 2, "succeeded": 0, "failed": 2}
    (warning,) = answer["warnings"]
    assert warning["code"] == "BATCH_NONE_SUCCEEDED_WARNING"
    assert warning["message"] == "No operation of this batch succeeded: 2 failed."


@pytest.mark.spec("AQ-OPS-7.5.2-1")
async def test_batch_pending_at_first_item_says_that_nothing_ran(
    tmp_path: Path,
) -> None:
    node = gated_pipeline(tmp_path, default="allow", rules=ASKS)
    assert node.gated is not None
    _, task = start_batch(node, [DELETE, RUN])
    result = read_result(await task)
    assert result["isError"] is True
    answer = node.read(result)
    assert answer["success"] is True, "it halted, and a halt is no failure"
    assert answer["summary"]["halted"] == 1
    (warning,) = answer["warnings"]
    assert warning["details"] == {"failed": 0, "pending_confirmation": 1, "not_started": 1}
    assert node.sent_calls == []
    node.gated.close()


async def test_batch_with_one_success_is_no_error() -> None:
    node = view_pipeline()
    _, task = start_batch(node, [{"operation": "nothing"}, RUN])
    (await node.wait_for_call(1)).answer(**text_result("{}"))
    result = read_result(await task)
    assert "isError" not in result
    assert "warnings" not in node.read(result)
