"""Tests of the way from an AQL request to a tool call."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Raw

from interlock.aql.config import AqlConfig
from interlock.core.call import Client, Credentials
from interlock.core.config.trust import PolicyConfig, RuleConfig
from interlock.errors import UNKNOWN_TOOL, InterlockError
from interlock.protocol.mcp import TOOLS_LIST, Era
from interlock.trust.policy.policy import Policy
from tests.aql.view_pipeline import (
    ALL,
    AUTO,
    FIVE,
    READS,
    SINGLE,
    object_schema,
    text_result,
    view_pipeline,
)
from tests.support.calls import STATELESS, tool_call
from tests.support.offerings import definition, offer


@pytest.mark.parametrize("view", [FIVE, SINGLE, ALL])
def test_operation_becomes_call_of_tool(view: Any) -> None:
    node = view_pipeline()
    endpoint = "mcp_aql" if view is SINGLE else "mcp_aql_read"
    params = {"owner": "o", "number": 7}
    call = node.begin(endpoint, {"operation": "hub_get_issue", "params": params}, view=view)
    assert node.sent_calls == [("get_issue", params)]
    assert call.name == "hub.get_issue"
    node.last.answer(**text_result('{"title":"A bug"}'))
    assert node.last_envelope() == {"success": True, "data": {"title": "A bug"}}
    [entry] = node.journal.entries
    assert (entry["name"], entry["outcome"]) == ("hub.get_issue", "ok")


def test_keeps_bytes_without_renamed_parameters() -> None:
    node = view_pipeline()
    raw = b'{"operation":"hub_get_issue","params":{"owner" : "\\u00e9",  "number":7 }}'
    call = node.begin("mcp_aql_read", raw)
    assert bytes(call.arguments) == b'{"owner" : "\\u00e9",  "number":7 }'


@pytest.mark.spec("AQ-OPS-2.2-1", "AQ-OPS-8.1-1")
@pytest.mark.parametrize("name", ["Hub_Get_Issue", "hub.get_issue", "hub__get_issue", "nothing"])
def test_rejects_other_spellings_of_operation(name: str) -> None:
    node = view_pipeline()
    error = node.error(name, "mcp_aql_read", owner="o", number=1)
    assert error["code"] == "NOT_FOUND_OPERATION"
    assert node.sent_calls == []


@pytest.mark.spec("AQ-ERR-4.8-1")
def test_typo_returns_similar_operation() -> None:
    error = view_pipeline().error("hub_get_isue", "mcp_aql_read")
    assert error["details"]["operation"] == "hub_get_isue"
    assert error["details"]["available"][0] == "hub_get_issue"


def test_operation_of_absent_server_names_server_status() -> None:
    node = view_pipeline()
    node.stage.get_absent_servers = lambda: {"my-files": "connecting", "broken": "failed"}
    error = node.error("my_files_list_all", "mcp_aql_read")
    assert error["code"] == "NOT_FOUND_OPERATION"
    assert "'my-files' is connecting" in error["message"]
    assert error["details"]["server_state"] == "connecting"
    assert error["details"]["retryable"] is True
    assert node.error("broken_thing", "mcp_aql_read")["details"]["retryable"] is False
    error = node.error("hub_get_isue", "mcp_aql_read")
    assert error["details"]["available"][0] == "hub_get_issue"


def test_limited_caller_does_not_see_absent_servers() -> None:
    node = view_pipeline()
    rule = RuleConfig(name="hub", tools=["hub.*"], then="allow")
    policy = Policy(PolicyConfig(default="deny", rules=[rule]), node.rig.catalog)
    node.authorizer.set_policy(policy)
    node.stage.get_absent_servers = lambda: {"files": "connecting"}
    error = node.error("files_list_all", "mcp_aql_read")
    assert "connecting" not in json.dumps(error)


def test_tool_name_suggests_its_operation() -> None:
    error = view_pipeline().error("hub.createIssue", "mcp_aql_create")
    assert error["details"]["available"][0] == "hub_create_issue"


@pytest.mark.spec("AQ-6.2-1", "AQ-GK-6.1-1")
@pytest.mark.spec("AQ-OPS-6.3-1")
@pytest.mark.spec("AQ-EPM-4.6-1")
@pytest.mark.parametrize(
    ("operation", "home"),
    [
        ("hub_get_issue", "mcp_aql_read"),
        ("hub_create_issue", "mcp_aql_create"),
        ("hub_update_issue", "mcp_aql_update"),
        ("hub_delete_repo", "mcp_aql_delete"),
        ("hub_run_report", "mcp_aql_execute"),
    ],
)
def test_every_operation_has_one_endpoint(operation: str, home: str) -> None:
    node = view_pipeline()
    for endpoint in FIVE.tools:
        if endpoint == home:
            continue
        error = node.error(operation, endpoint)
        assert error["code"] == "VALIDATION_ENDPOINT_MISMATCH"
        assert home in error["message"]
        assert error["details"] == {
            "operation": operation,
            "expected_endpoint": home,
            "actual_endpoint": endpoint,
        }
    assert node.sent_calls == []


@pytest.mark.spec("AQ-3.2-1")
def test_reports_wrong_endpoint_before_parameters() -> None:
    error = view_pipeline().error("hub_get_issue", "mcp_aql_delete", nonsense=1)
    assert error["code"] == "VALIDATION_ENDPOINT_MISMATCH"


@pytest.mark.spec("AQ-3.2-1")
@pytest.mark.parametrize(
    "params",
    [
        {"owner": "o"},
        {"owner": 7, "number": 1},
        {"owner": "o", "number": "one"},
        {"owner": "o", "number": 1, "more": 1},
    ],
)
def test_sends_no_call_with_invalid_parameters(params: Any) -> None:
    node = view_pipeline()
    assert node.error("hub_get_issue", **params)["code"].startswith("VALIDATION_")
    assert node.sent_calls == []


@pytest.mark.spec("AQ-6.2-1")
def test_rejects_another_endpoint_after_calls_of_the_right_one() -> None:
    node = view_pipeline()
    request = {"operation": "hub_get_issue", "params": {"owner": "o", "number": 1}}
    for number in (1, 2):
        node.begin("mcp_aql_read", request)
        node.last.answer(**text_result("{}"))
        assert node.last_envelope()["success"] is True
        for endpoint in FIVE.tools:
            if endpoint != "mcp_aql_read":
                error = node.ask(endpoint, request)["error"]
                assert error["code"] == "VALIDATION_ENDPOINT_MISMATCH"
        assert len(node.sent_calls) == number


def test_all_view_accepts_single_and_family_endpoint() -> None:
    node = view_pipeline()
    node.begin("mcp_aql", {"operation": "hub_run_report", "params": {}}, view=ALL)
    assert node.error("hub_run_report", "mcp_aql_read", view=ALL)["code"].endswith("MISMATCH")
    assert len(node.sent_calls) == 1


def test_rejects_tool_name_in_view() -> None:
    node = view_pipeline()
    error = node.rig.refused(tool_call("hub.get_issue", {"owner": "o", "number": 1}, view=FIVE))
    assert error.failure is UNKNOWN_TOOL
    assert "mcp_aql_read" in error.message
    assert node.sent_calls == []


def test_auto_view_accepts_tools_and_operations() -> None:
    node = view_pipeline()
    node.rig.begin(tool_call("hub.get_issue", {"owner": "o", "number": 1}, view=AUTO))
    node.last.answer(**text_result("as it is"))
    assert node.rig.done[-1][1] == text_result("as it is")
    node.begin(
        "mcp_aql_read",
        {"operation": "hub_get_issue", "params": {"owner": "o", "number": 1}},
        view=AUTO,
    )
    node.last.answer(**text_result("[]"))
    assert node.last_envelope() == {"success": True, "data": []}


def test_auto_view_lists_by_catalog_size() -> None:
    def listed(tokens: int) -> list[str]:
        node = view_pipeline(AqlConfig(auto_tokens=tokens))
        call = tool_call(view=AUTO)
        call.method = TOOLS_LIST
        node.rig.begin(call)
        return [tool["name"] for tool in node.rig.done[-1][1]["tools"]]

    assert "hub__get_issue" in listed(100_000)
    assert listed(1) == list(FIVE.tools)


@pytest.mark.parametrize("client", [STATELESS])
def test_view_lists_only_endpoints(client: Any) -> None:
    node = view_pipeline()
    for view, names in ((FIVE, list(FIVE.tools)), (SINGLE, ["mcp_aql"])):
        call = tool_call(view=view, client=client)
        call.method = TOOLS_LIST
        node.rig.begin(call)
        result = node.rig.done[-1][1]
        assert [tool["name"] for tool in result["tools"]] == names
    call = tool_call(view=FIVE, cursor="x")
    call.method = TOOLS_LIST
    assert node.rig.refused(call).failure.name == "invalid_cursor"


def test_rejects_unauthenticated_caller_without_details() -> None:
    node = view_pipeline(None, tokens={"t": "clerk"})
    arguments: Any
    for arguments in (
        {"operation": "hub_get_issue"},
        {"operation": "no_such"},
        {"operations": []},
        b"[]",
    ):
        stranger = Credentials("203.0.113.9")
        call = tool_call("mcp_aql_read", arguments, view=FIVE, credentials=stranger)
        assert node.rig.refused(call).failure.name == "unauthenticated"


def test_internal_operations_are_not_callable_as_tools() -> None:
    node = view_pipeline()
    for name in ("aql.batch", "aql.preview", "aql.read_modify_write"):
        for view in (None, AUTO):
            error = node.rig.refused(tool_call(name, {}, view=view))
            assert error.failure is UNKNOWN_TOOL, name
    for name in ("batch", "preview", "read_modify_write", "aql_batch"):
        assert node.error(name, "mcp_aql_read")["code"] == "NOT_FOUND_OPERATION"


def test_catalog_change_changes_operations() -> None:
    node = view_pipeline()
    assert node.error("late_look", "mcp_aql_read")["code"] == "NOT_FOUND_OPERATION"
    late = offer("late", [definition("look", annotations=READS, inputSchema=object_schema())])
    node.rig.catalog.publish(late)
    node.rig.upstreams["late"] = node.rig.upstreams["hub"]
    node.begin("mcp_aql_read", {"operation": "late_look"})
    node.last.answer(**text_result("{}"))
    assert node.last_envelope()["success"] is True
    node.rig.catalog.withdraw("late")
    assert node.error("late_look", "mcp_aql_read")["code"] == "NOT_FOUND_OPERATION"


def test_does_not_suggest_invisible_operations() -> None:
    node = view_pipeline()
    rule = RuleConfig(name="no", then="deny", tools=["hub.get_issue"])
    node.authorizer.set_policy(Policy(PolicyConfig(default="allow", rules=[rule])))
    error = node.error("hub_get_isue", "mcp_aql_read")
    assert "hub_get_issue" not in error["details"]["available"]


def test_drops_parameter_headers_of_endpoint() -> None:
    node = view_pipeline()
    call = node.begin(
        "mcp_aql_read",
        {"operation": "hub_list_issues"},
        header_params=[(b"Mcp-Param-owner", b"x")],
    )
    assert call.header_params is None


@pytest.mark.spec("AQ-MCP-5.2-1")
def test_reads_progress_token_from_arguments() -> None:
    node = view_pipeline()
    asked = {"operation": "hub_list_issues", "_meta": {"progressToken": "inner"}}
    call = node.begin("mcp_aql_read", asked)
    assert call.meta is not None
    assert bytes(call.meta["progressToken"]) == b'"inner"'
    call = node.begin("mcp_aql_read", asked, meta={"progressToken": "outer"})
    assert call.meta is not None
    assert json.loads(bytes(call.meta["progressToken"])) == "outer"


@pytest.mark.spec("AQ-MCP-5.5-1")
def test_passes_progress_to_client() -> None:
    node = view_pipeline()
    heard: list[tuple[str, Any]] = []
    node.begin(
        "mcp_aql_read",
        {"operation": "hub_list_issues"},
        meta={"progressToken": 5},
        on_notification=lambda _, method, params: heard.append((method, bytes(params))),
    )
    node.last.say("notifications/progress", b'{"progressToken":5,"progress":1}')
    assert heard == [("notifications/progress", b'{"progressToken":5,"progress":1}')]


def test_catalog_bug_is_internal_error() -> None:
    node = view_pipeline()

    def broken(*_: Any) -> Any:
        raise RuntimeError("at /src/x.py:1")

    node.stage.operation_catalog = broken  # type: ignore[method-assign]
    error = node.ask("mcp_aql_read", {"operation": "hub_list_issues"})["error"]
    assert error["code"] == "INTERNAL_ERROR"
    assert "RuntimeError" not in json.dumps(error)


def test_unknown_tool_is_mcp_error() -> None:
    node = view_pipeline()
    error = node.rig.refused(tool_call("mcp_aql", {}, view=FIVE))
    assert isinstance(error, InterlockError)
    assert error.failure.code == -32602


def test_client_request_continues_same_operation() -> None:
    node = view_pipeline()
    asks = {
        "resultType": "input_required",
        "inputRequests": {"q": {"method": "elicitation/create", "params": {"message": "Sure?"}}},
        "requestState": "s1",
    }
    client = Client(Era.STATELESS, "2026-07-28", "tests", b'{"elicitation":{"form":{}}}')
    asked = {"operation": "hub_create_issue", "params": {"owner": "o", "issue_title": "t"}}
    node.begin("mcp_aql_create", asked, client=client)
    node.last.answer(**asks)
    _, question = node.rig.done[-1]
    assert question["resultType"] == "input_required"
    state = question["requestState"]
    assert state != "s1"
    extra = {
        "requestState": Raw(json.dumps(state).encode()),
        "inputResponses": Raw(b'{"q":{"action":"accept","content":{}}}'),
    }
    # In another spelling it is the same request; with another value it is not.
    same = {"operation": "hub_create_issue", "params": {"issueTitle": "t", "owner": "o"}}
    node.begin("mcp_aql_create", same, client=client, extra_params=dict(extra))
    assert node.last.call.extra_params is not None
    assert json.loads(bytes(node.last.call.extra_params["requestState"])) == "s1"
    node.last.answer(**text_result("{}"))
    assert node.last_envelope()["success"] is True
    other = {"operation": "hub_create_issue", "params": {"owner": "x", "issue_title": "t"}}
    call = tool_call("mcp_aql_create", other, view=FIVE, client=client, extra_params=dict(extra))
    assert node.rig.refused(call).failure.name == "invalid_request_state"
