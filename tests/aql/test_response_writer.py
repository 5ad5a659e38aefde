"""Tests of responses: server results as data, failures, and results that pass unchanged."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from interlock.aql.config import AqlConfig, AqlLimits, OperationConfig
from interlock.core.call import Client, Outcome
from interlock.errors import InterlockError, failure_by_name
from interlock.protocol.mcp import TASKS_GET, Era, summarize_result
from tests.aql.view_pipeline import FIVE, ViewPipeline, read_result, text_result, view_pipeline
from tests.support.calls import SESSION, STATELESS, tool_call

LISTED = {"operation": "hub_list_issues"}
IMAGE = {"type": "image", "data": "aGk=", "mimeType": "image/png"}


def list_issues(node: ViewPipeline, **fields: Any) -> None:
    node.begin("mcp_aql_read", {**LISTED, **fields.pop("also", {})}, **fields)


def last_result(node: ViewPipeline) -> dict[str, Any]:
    _, result = node.rig.done[-1]
    assert isinstance(result, dict)
    return result


# -- data


@pytest.mark.spec("AQ-5.1-3")
def test_returns_server_results_as_data() -> None:
    node = view_pipeline()
    for result, data in (
        ({"content": [], "structuredContent": {"a": 1}}, {"a": 1}),
        (text_result('[{"id":1}]'), [{"id": 1}]),
        (text_result("prose"), {"content": [{"type": "text", "text": "prose"}]}),
        (text_result("7"), {"content": [{"type": "text", "text": "7"}]}),
        ({"content": []}, {"content": []}),
    ):
        list_issues(node)
        node.last.answer(**result)
        assert node.last_envelope() == {"success": True, "data": data}


@pytest.mark.spec("AQ-5.1-3")
def test_image_follows_envelope() -> None:
    node = view_pipeline()
    list_issues(node)
    node.last.answer(content=[{"type": "text", "text": "a dot"}, IMAGE])
    result = last_result(node)
    assert result["content"][1:] == [IMAGE]
    [_, shown] = node.last_envelope()["data"]["content"]
    assert shown == {"$block": 0, "type": "image", "mimeType": "image/png", "encoding": "base64"}


@pytest.mark.parametrize(
    ("client", "structured"),
    [
        (SESSION, True),
        (STATELESS, True),
        (Client(Era.SESSION, "2025-06-18"), True),
        (Client(Era.SESSION, "2025-03-26"), False),
        (Client(Era.SESSION, "2024-11-05"), False),
    ],
)
def test_structured_content_depends_on_client_version(client: Any, structured: bool) -> None:
    node = view_pipeline()
    list_issues(node, client=client)
    node.last.answer(**text_result("{}"))
    result = last_result(node)
    assert ("structuredContent" in result) is structured
    assert ("resultType" in result) is (client.era is Era.STATELESS)
    assert "isError" not in result
    node = view_pipeline(AqlConfig(structured_content=False))
    list_issues(node, client=client)
    node.last.answer(**text_result("{}"))
    assert "structuredContent" not in last_result(node)


@pytest.mark.spec("AQ-OPS-3.4-1")
def test_returns_request_id_and_duration() -> None:
    node = view_pipeline()
    list_issues(node, also={"_request_id": "r-1"})
    node.rig.clock.advance(0.25)
    node.last.answer(**text_result("{}"))
    assert node.last_envelope()["_meta"] == {"request_id": "r-1", "duration_ms": 250}


@pytest.mark.spec("AQ-FS-2.1-1")
def test_selects_fields() -> None:
    for also in ({"params": {"fields": ["id"]}}, {"_fields": ["id"]}):
        node = view_pipeline()
        list_issues(node, also=also)
        node.last.answer(**text_result('[{"id":1,"b":2},{"id":2,"b":3}]'))
        assert node.last_envelope()["data"] == [{"id": 1}, {"id": 2}]
    node = view_pipeline()
    error = node.error("hub_list_issues", fields=7)
    assert error["code"] == "VALIDATION_INVALID_TYPE"
    assert node.sent_calls == []


@pytest.mark.spec("AQ-4.7.6-1")
@pytest.mark.parametrize("also", [{}, {"_fields": ["id", "due"]}, {"_preset": "standard"}])
def test_keeps_fields_without_a_value(also: Any) -> None:
    node = view_pipeline()
    list_issues(node, also=also)
    node.last.answer(**text_result('[{"id":1,"due":null}]'))
    assert node.last_envelope()["data"] == [{"id": 1, "due": None}]


def test_shapes_server_lists_by_underscore_parameters() -> None:
    items = [{"id": n, "state": "open" if n % 2 else "closed"} for n in range(5)]
    node = view_pipeline()
    list_issues(node, also={"_filter": {"state": "open"}, "_first": 1})
    node.last.answer(**text_result(json.dumps({"issues": items})))
    assert [one["id"] for one in node.last_envelope()["data"]["items"]] == [1]
    list_issues(node, also={"_first": 1})
    node.last.answer(**text_result("prose"))
    assert node.last_envelope()["error"]["code"] == "VALIDATION_INVALID_STATE"
    mixed = node.ask("mcp_aql_read", {**LISTED, "_first": 1, "_page": 2})
    assert mixed["error"]["code"] == "VALIDATION_INVALID_TYPE"


def list_with_options(data: Any, **also: Any) -> dict[str, Any]:
    """Return the envelope of a list call whose server returned this data."""
    node = view_pipeline()
    list_issues(node, also=also)
    node.last.answer(**text_result(data if isinstance(data, str) else json.dumps(data)))
    return node.last_envelope()


GRAPH = {"entities": [{"id": 1}, {"id": 2}], "relations": [{"from": 1}], "total": 9, "none": []}


def test_items_parameter_selects_list() -> None:
    error = list_with_options(GRAPH, _first=1)["error"]
    assert error["code"] == "VALIDATION_INVALID_STATE"
    assert "returned 3 lists" in error["message"]
    assert "'_items'" in error["message"]
    assert error["details"]["lists"] == ["entities", "relations", "none"]
    data = list_with_options(GRAPH, _items="entities", _first=1)["data"]
    assert data["items"] == [{"id": 1}]
    assert data["pageInfo"]["totalCount"] == 2
    assert list_with_options(GRAPH, _items="none", _first=1)["data"]["items"] == []
    error = list_with_options(GRAPH, _items="total", _first=1)["error"]
    assert "named 'total'" in error["message"]
    node = view_pipeline()
    wrong = node.ask("mcp_aql_read", {**LISTED, "_items": 7})
    assert wrong["error"]["details"]["param_name"] == "_items"
    assert node.sent_calls == []


def test_keeps_members_beside_list() -> None:
    data = list_with_options(GRAPH, _items="entities", _first=1, _fields=["id"])["data"]
    assert data["relations"] == GRAPH["relations"]
    assert data["total"] == 9
    assert "entities" not in data
    alone = list_with_options({"entities": [], "total": 0}, _first=1)["data"]
    assert (alone["items"], alone["total"]) == ([], 0)
    counted = list_with_options(GRAPH, _items="relations", _aggregate={"n": {"count": True}})[
        "data"
    ]
    assert counted == {"aggregations": {"n": 1}}


def test_selects_fields_of_page_items() -> None:
    items = [{"id": n, "b": n} for n in range(3)]
    data = list_with_options(items, _first=2, _fields=["id"])["data"]
    assert data["items"] == [{"id": 0}, {"id": 1}]
    data = list_with_options(items, _first=1, _edges=True, _fields=["b"])["data"]
    assert data["edges"][0]["node"] == {"b": 0}


def test_warns_of_unknown_fields() -> None:
    [warning] = list_with_options("some prose", _fields=["x"])["warnings"]
    assert warning["code"] == "VALIDATION_UNKNOWN_FIELD_WARNING"
    assert "warnings" not in list_with_options("some prose", _preset="full")
    for more in ({}, {"_first": 1}):
        answer = list_with_options([{"id": 1}, {"id": 2, "b": 3}], _fields=["id", "bogus"], **more)
        [warning] = answer["warnings"]
        assert warning["details"] == {"unknown_fields": ["bogus"], "valid_fields": ["b", "id"]}
    assert "warnings" not in list_with_options([], _fields=["x"])
    assert "warnings" not in list_with_options([{"id": 1}, {"b": 3}], _fields=["id", "b"])


def test_warns_of_shortened_page() -> None:
    answer = list_with_options([{"id": n} for n in range(150)], _first=500)
    assert len(answer["data"]["items"]) == 100
    [warning] = answer["warnings"]
    assert warning["code"] == "VALIDATION_TRUNCATED_WARNING"


def test_warns_of_slow_and_deprecated_operations() -> None:
    old = OperationConfig(deprecated="2026-01-01", replacement="hub_search")
    node = view_pipeline(AqlConfig(slow_ms=100, operations={"hub.list_*": old}))
    list_issues(node)
    node.rig.clock.advance(0.3)
    node.last.answer(**text_result("{}"))
    warnings = {one["code"]: one for one in node.last_envelope()["warnings"]}
    slow = warnings["PERFORMANCE_SLOW_QUERY_WARNING"]
    assert slow["details"]["duration_ms"] == 300
    assert warnings["DEPRECATION_WARNING"]["details"]["replacement"] == "hub_search"


# -- failures


@pytest.mark.spec("AQ-MCP-4.1-1")
@pytest.mark.spec("AQ-MCP-4.2-1")
def test_aql_setting_marks_only_internal_errors() -> None:
    node = view_pipeline(AqlConfig(is_error="aql"))
    list_issues(node)
    node.last.answer(**text_result("Not found", isError=True))
    assert node.last_envelope()["error"]["code"] == "NOT_FOUND_RESOURCE"
    assert "isError" not in last_result(node)
    list_issues(node)
    node.last.lose(sent=True)
    assert node.last_envelope()["error"]["code"] == "INTERNAL_ERROR"
    assert last_result(node)["isError"] is True


@pytest.mark.spec("AQ-MCP-4.1-2")
def test_mcp_setting_marks_every_failure() -> None:
    node = view_pipeline()
    assert node.error("nothing", "mcp_aql_read")["code"] == "NOT_FOUND_OPERATION"
    assert last_result(node)["isError"] is True
    list_issues(node)
    node.last.answer(**text_result("Not found", isError=True))
    assert node.last_envelope()["error"]["code"] == "NOT_FOUND_RESOURCE"
    assert last_result(node)["isError"] is True
    list_issues(node)
    node.last.answer(**text_result("[]"))
    assert node.last_envelope()["success"] is True
    assert "isError" not in last_result(node)


TRACE = 'Traceback (most recent call last):\n  File "/srv/app/main.py", line 7, in run\n'


@pytest.mark.spec("AQ-INT-8.1.3-1")
@pytest.mark.parametrize("is_result", [True, False])
def test_the_stack_trace_of_a_server_is_in_no_response(is_result: bool) -> None:
    node = view_pipeline()
    list_issues(node)
    if is_result:
        node.last.answer(**text_result(f"{TRACE}TypeError: broken", isError=True))
    else:
        node.last.answer_error(-32000, f"{TRACE}TypeError: broken")
    error = node.last_envelope()["error"]
    assert "TypeError" not in error["message"]
    said = json.dumps(error)
    assert not any(word in said for word in ("Traceback", "main.py", "/srv/app"))


@pytest.mark.spec("AQ-ERR-7.1-1")
def test_logs_internal_error_with_correlation_id(caplog: Any) -> None:
    node = view_pipeline()
    list_issues(node)
    with caplog.at_level(logging.WARNING, "interlock.aql"):
        node.last.fail(make_error("upstream_protocol_error"))
    details = node.last_envelope()["error"]["details"]
    assert details["correlation_id"] in caplog.text
    assert "hub.list_issues" in caplog.text


def make_error(name: str) -> InterlockError:
    return InterlockError(failure_by_name(name), "It looks at us at night.")


@pytest.mark.parametrize(
    "result",
    [
        b"[]", b'"text"', b'{"content":7}', b'{"content":[7]}', b"\xff\xfe", b"{", b"",
        b'{"content":[{"type":"text","text":"\xff"}]}',
    ],
)  # fmt: skip
def test_handles_invalid_results(result: bytes) -> None:
    node = view_pipeline()
    list_issues(node)
    node.last._settle(Outcome(result, Era.SESSION, summarize_result(Raw(result))), None)
    _, told = node.rig.done[-1]
    if isinstance(told, dict):
        assert node.read(told)["error"]["code"] == "INTERNAL_ERROR"
    else:
        # What says of itself what no result may say is refused for every client.
        assert isinstance(told, InterlockError)


@pytest.mark.spec("AQ-4.7.5-1")
def test_rejects_too_large_result() -> None:
    node = view_pipeline(AqlConfig(limits=AqlLimits(response_bytes=1024 * 1024)))
    list_issues(node)
    node.last.answer(**text_result("x" * 1_100_000))
    error = node.last_envelope()["error"]
    assert error["code"] == "VALIDATION_PAYLOAD_TOO_LARGE"
    assert error["details"]["limit_type"] == "response_size"


@pytest.mark.spec("AQ-OPS-8.4-1")
def test_failures_show_no_secret() -> None:
    secret = "ghp_" + "a1B2" * 8
    node = view_pipeline()
    list_issues(node)
    node.last.answer(**text_result(f"bad credentials {secret}", isError=True))
    node.last_envelope()
    list_issues(node)
    node.last.answer_error(-32000, f"token={secret} was refused")
    node.last_envelope()
    node.error("hub_create_issue", owner="o", issue_title="t", api_key={"k": secret})
    node.error("hub_create_issue", owner="o", issue_title="t", kind=secret)
    assert secret not in json.dumps(node.corpus)


# -- what is not wrapped


@pytest.mark.spec("AQ-MCP-4.2-1")
@pytest.mark.parametrize(
    "name",
    [
        "unauthenticated", "unknown_session", "cancelled", "header_mismatch",
        "invalid_request_state", "unsupported_protocol_version",
    ],
)  # fmt: skip
def test_passes_protocol_errors(name: str) -> None:
    node = view_pipeline()
    list_issues(node)
    node.last.fail(make_error(name))
    error = node.rig.done[-1][1]
    assert isinstance(error, InterlockError)
    assert error.failure.name == name


def test_passes_url_elicitation_error() -> None:
    node = view_pipeline()
    list_issues(node)
    node.last.answer_error(-32042, "Go there first.")
    assert getattr(node.rig.done[-1][1], "code", None) == -32042


@pytest.mark.parametrize("kind", ["input_required", "task"])
def test_passes_client_requests_and_tasks(kind: str) -> None:
    node = view_pipeline()
    call = tool_call("mcp_aql_read", LISTED, view=FIVE, client=STATELESS)
    raw = json.dumps({"resultType": kind, "taskId": "t"}).encode()
    outcome = Outcome(raw, Era.STATELESS, summarize_result(Raw(raw)))
    node.stage.resolve_operation(start_call(node, call))
    assert node.stage.write_response(call, outcome, None) == (outcome, None)
    # Those that the node makes itself say so, too.
    plain = Outcome(raw, Era.STATELESS)
    assert node.stage.write_response(call, plain, None) == (plain, None)


def start_call(node: ViewPipeline, call: Any) -> Any:
    node.pipeline.admission(call)
    return call


def test_wraps_task_result() -> None:
    node = view_pipeline()
    call = tool_call("task", view=FIVE, client=STATELESS)
    call.method, call.upstream = TASKS_GET, "hub"
    task = {"resultType": "complete", "taskId": "t", "status": "completed"}
    for inner, success in ((text_result("{}"), True), (text_result("no", isError=True), False)):
        raw = json.dumps({**task, "result": inner}).encode()
        told, error = node.stage.write_response(call, Outcome(raw, Era.STATELESS), None)
        assert error is None
        assert told is not None
        shown = read_result(told)
        assert shown["taskId"] == "t"
        assert node.read(shown["result"])["success"] is success
    for raw in (json.dumps(task).encode(), b'{"result":7}', b"[]"):
        same = Outcome(raw, Era.STATELESS)
        assert node.stage.write_response(call, same, None) == (same, None)


def test_passes_other_methods() -> None:
    node = view_pipeline()
    call = tool_call("x", view=FIVE)
    call.method = "resources/read"
    outcome = Outcome(b"{}", Era.SESSION)
    assert node.stage.write_response(call, outcome, None) == (outcome, None)


@pytest.mark.spec("AQ-9.3-1")
@pytest.mark.spec("AQ-9.3.1-1")
def test_independent_requests_end_in_any_order() -> None:
    node = view_pipeline()
    list_issues(node, also={"_request_id": "slow"})
    slow = node.last
    list_issues(node, also={"_request_id": "fast"})
    node.last.answer(**text_result("{}"))
    assert node.last_envelope()["_meta"]["request_id"] == "fast"
    slow.answer(**text_result("{}"))
    assert node.last_envelope()["_meta"]["request_id"] == "slow"


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)
_blocks = st.lists(
    st.fixed_dictionaries({"type": st.just("text"), "text": st.text()})
    | st.just(IMAGE)
    | st.fixed_dictionaries({"type": st.text(max_size=5)}),
    max_size=3,
)


@settings(max_examples=150, deadline=None)
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "content": _blocks | _json,
            "structuredContent": _json,
            "isError": st.booleans() | st.none(),
            "_meta": _json,
        },
    )
)
def test_any_server_result_becomes_envelope(result: dict[str, Any]) -> None:
    node = view_pipeline()
    list_issues(node)
    node.last.answer(**result)
    _, told = node.rig.done[-1]
    if isinstance(told, dict) and told.get("content"):
        envelope = node.read(told)
        if envelope["success"] and result.get("structuredContent") is not None:
            assert envelope["data"] == result["structuredContent"]
    else:
        assert isinstance(told, InterlockError)


async def test_writes_response_in_event_loop() -> None:
    node = view_pipeline()
    call = tool_call("mcp_aql_read", LISTED, view=FIVE)
    task = asyncio.ensure_future(node.pipeline.run(call))
    await asyncio.sleep(0)
    node.last.answer(**text_result("{}"))
    assert node.read(read_result(await task))["success"] is True
