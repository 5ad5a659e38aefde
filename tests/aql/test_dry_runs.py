"""Tests of dry runs and of merged updates."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from interlock.aql.config import AqlConfig, OperationConfig
from interlock.core.config.trust import RuleConfig
from tests.aql.view_pipeline import (
    FIVE,
    READS,
    SINGLE,
    ViewPipeline,
    gated_pipeline,
    object_schema,
    read_result,
    text_result,
    view_pipeline,
)
from tests.support.calls import tool_call
from tests.support.offerings import definition, offer

DELETE = {"owner": "o", "repo": "r"}


@pytest.mark.spec("AQ-OPS-4.4.1-1")
@pytest.mark.parametrize("also", [{"params": {**DELETE, "dry_run": True}}, {"_dry_run": True}])
async def test_dry_run_describes_without_call(tmp_path: Path, also: Any) -> None:
    node = gated_pipeline(tmp_path)
    assert node.gated is not None
    envelope = node.ask(
        "mcp_aql_delete", {"operation": "hub_delete_repo", "params": DELETE, **also}
    )
    data = envelope["data"]
    assert data["dry_run"] is True
    assert (data["operation"], data["tool"]) == ("hub_delete_repo", "hub.delete_repo")
    assert data["category"] == "DELETE"
    assert data["danger_level"] in ("destructive", "dangerous")
    assert data["arguments"] == DELETE
    assert data["decision"] == "confirm"
    assert data["requires_confirmation"] is True
    assert node.sent_calls == []
    assert node.gated.approvals.pending() == []
    node.gated.close()


@pytest.mark.parametrize(
    ("endpoint", "operation", "params"),
    [
        ("mcp_aql_read", "hub_get_issue", {"owner": "o", "number": 1}),
        ("mcp_aql_create", "hub_create_issue", {"owner": "o", "issue_title": "t"}),
        ("mcp_aql_update", "hub_update_issue", {"issue_id": "1", "input": {"title": "t"}}),
        ("mcp_aql_execute", "hub_run_report", {}),
    ],
)
@pytest.mark.parametrize("more", [{}, {"_async": True}, {"_meta": {}}])
def test_every_operation_has_dry_run(endpoint: str, operation: str, params: Any, more: Any) -> None:
    node = view_pipeline()
    top = {"operation": operation, "params": params, "_dry_run": True, **more}
    inside = {"operation": operation, "params": {**params, "_dry_run": True, **more}}
    for asked in (top, inside):
        data = node.ask(endpoint, asked)["data"]
        assert (data["dry_run"], data["operation"]) == (True, operation)
    assert node.sent_calls == []
    assert [one["outcome"] for one in node.journal.entries if one["name"] == operation] == []


def test_any_true_dry_run_flag_wins() -> None:
    node = view_pipeline()
    params = {"owner": "o", "repo": "r"}
    asked = {"operation": "hub_delete_repo", "params": {**params, "dry_run": False}}
    assert node.ask("mcp_aql_delete", {**asked, "_dry_run": True})["data"]["dry_run"] is True
    wrong = node.ask("mcp_aql_read", {"operation": "hub_list_issues", "_dry_run": "yes"})
    assert wrong["error"]["code"] == "VALIDATION_INVALID_TYPE"
    assert node.sent_calls == []


@pytest.mark.parametrize("more", [{}, {"_async": True}])
async def test_dry_run_of_batch_covers_every_item(more: Any) -> None:
    node = view_pipeline()
    operations = [
        {"operation": "hub_delete_repo", "params": DELETE},
        {"operation": "hub_delete_repo", "params": DELETE, "_dry_run": False},
        {"operation": "hub_get_issue", "params": {"owner": "o", "number": 1}},
        {"operation": "hub_get_issue", "params": {"owner": "o"}},
    ]
    asked = {"operations": operations, "_dry_run": True, **more}
    call = tool_call("mcp_aql", asked, view=SINGLE)
    envelope = node.read(read_result(await node.pipeline.run(call)))
    results = [one["result"] for one in envelope["results"]]
    assert [one["success"] for one in results] == [True, True, True, False]
    assert all(one["data"]["dry_run"] is True for one in results[:3])
    assert envelope["summary"]["succeeded"] == 3
    assert node.sent_calls == []


def test_dry_run_reports_invalid_parameters() -> None:
    node = view_pipeline()
    error = node.error("hub_create_issue", owner="o", issue_title="t", priority=9, dry_run=True)
    assert error["code"] == "VALIDATION_OUT_OF_RANGE"
    assert error["details"]["param_name"] == "priority"
    error = node.error("hub_create_issue", owner="o", dry_run=True)
    assert error["code"] == "VALIDATION_MISSING_PARAM"
    error = node.error("hub_create_issue", owner="o", issue_title="t", dry_run="yes")
    assert error["code"] == "VALIDATION_INVALID_TYPE"
    assert node.sent_calls == []


def test_a_dry_run_hides_secrets() -> None:
    node = view_pipeline()
    params = {"owner": "o", "issue_title": "t", "api_key": "s3cret-value", "dry_run": True}
    answer = node.call("hub_create_issue", **params)  # type: ignore[arg-type]
    assert answer["success"] is True
    assert "s3cret" not in json.dumps(answer)
    node.begin(
        "mcp_aql_create", {"operation": "hub_create_issue", "params": {**params, "dry_run": False}}
    )
    assert len(node.sent_calls) == 1


def test_dry_run_can_be_repeated() -> None:
    node = view_pipeline()
    for _ in range(3):
        answer = node.call("hub_delete_repo", **DELETE, dry_run=True)  # type: ignore[arg-type]
        assert answer["data"]["decision"] == "allow"
    assert node.rig.under_way == 0
    assert node.sent_calls == []


def test_read_operation_has_no_dry_run() -> None:
    error = view_pipeline().error("hub_get_issue", owner="o", number=1, dry_run=True)
    assert error["code"] == "VALIDATION_UNKNOWN_PARAM"


# -- read, merge, write


def merging_node() -> ViewPipeline:
    setting = OperationConfig(read_modify_write="hub_get_issue_by_id", identifiers=["issue_id"])
    return view_pipeline(AqlConfig(operations={"hub.update_issue": setting}), hub_with_reader())


def hub_with_reader() -> Any:
    return offer(
        "hub",
        [
            definition(
                "get_issue_by_id",
                inputSchema=object_schema("issue_id", issue_id="string"),
                annotations=READS,
            ),
            definition(
                "update_issue",
                inputSchema=object_schema(
                    "issue_id",
                    issue_id="string",
                    title="string",
                    bodyText="string",
                    settings={"type": "object"},
                ),
            ),
        ],
    )


@pytest.mark.spec("AQ-4.5.1-2", "AQ-4.5.1-1")
@pytest.mark.parametrize("view", [FIVE, SINGLE])
async def test_merges_update_if_configured(view: Any) -> None:
    node = merging_node()
    change = {"title": "new", "settings": {"a": {"x": 2}}}
    call = tool_call(
        node.endpoint_of("hub_update_issue", view),
        {"operation": "hub_update_issue", "params": {"issue_id": "1", "input": change}},
        view=view,
    )
    task = asyncio.ensure_future(node.pipeline.run(call))
    state = {
        "issue_id": "1",
        "title": "old",
        "bodyText": "kept",
        "settings": {"a": {"x": 1, "y": 1}, "b": True},
        "created": "yesterday",
    }
    (await node.wait_for_call(1)).answer(**text_result(json.dumps(state)))
    (await node.wait_for_call(2)).answer(**text_result('{"ok":true}'))
    answer = node.read(read_result(await task))
    assert answer == {"success": True, "data": {"ok": True}}
    assert node.sent_calls == [
        ("get_issue_by_id", {"issue_id": "1"}),
        (
            "update_issue",
            {
                "issue_id": "1",
                "title": "new",
                "bodyText": "kept",
                "settings": {"a": {"x": 2, "y": 1}, "b": True},
            },
        ),
    ]


@pytest.mark.spec("AQ-4.5.1-2")
def test_sends_other_updates_unchanged() -> None:
    node = view_pipeline()
    node.begin(
        "mcp_aql_update",
        {"operation": "hub_update_issue", "params": {"issue_id": "1", "input": {"title": "t"}}},
    )
    assert node.sent_calls == [("update_issue", {"issue_id": "1", "title": "t"})]


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (text_result("Not found", isError=True), "NOT_FOUND_RESOURCE"),
        (text_result("[1]"), "CONFLICT_INVALID_STATE"),
    ],
)
async def test_failed_read_prevents_write(answer: Any, code: str) -> None:
    node = merging_node()
    call = tool_call(
        "mcp_aql_update",
        {"operation": "hub_update_issue", "params": {"issue_id": "1", "input": {"title": "t"}}},
        view=FIVE,
    )
    task = asyncio.ensure_future(node.pipeline.run(call))
    (await node.wait_for_call(1)).answer(**answer)
    told = node.read(read_result(await task))
    assert told["error"]["code"] == code
    assert len(node.sent_calls) == 1


async def test_merged_update_needs_approval(tmp_path: Path) -> None:
    setting = OperationConfig(read_modify_write="hub_get_issue_by_id")
    rule = RuleConfig(name="ask", then="confirm", tools=["hub.update_*"])
    node = gated_pipeline(
        tmp_path,
        AqlConfig(operations={"hub.update_issue": setting}),
        offerings=[hub_with_reader()],
        default="allow",
        rules=[rule],
    )
    call = tool_call(
        "mcp_aql_update",
        {"operation": "hub_update_issue", "params": {"issue_id": "1", "input": {"title": "t"}}},
        view=FIVE,
    )
    task = asyncio.ensure_future(node.pipeline.run(call))
    (await node.wait_for_call(1)).answer(**text_result('{"title":"old"}'))
    told = node.read(read_result(await task))
    assert told["error"]["code"] == "CONFIRMATION_REQUIRED"
    assert told["error"]["details"]["operation"] == "hub_update_issue"
    assert [name for name, _ in node.sent_calls] == ["get_issue_by_id"]
    assert node.gated is not None
    node.gated.close()
