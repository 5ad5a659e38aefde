"""Tests of the translation of parameters: names, places, forms and errors."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.aql.config import AqlConfig
from tests.aql.view_pipeline import (
    FIVE,
    READS,
    SINGLE,
    ViewPipeline,
    object_schema,
    text_result,
    view_pipeline,
)
from tests.support.offerings import definition, offer

GOOD = {"owner": "o", "issue_title": "t"}


def create_issue(node: ViewPipeline, **params: Any) -> Any:
    return node.begin("mcp_aql_create", {"operation": "hub_create_issue", "params": params})


def get_error(params: Any, operation: str = "hub_create_issue", **top: Any) -> dict[str, Any]:
    """Send an invalid request and return the error. No call may reach the server."""
    node = view_pipeline()
    asked = {"operation": operation, "params": params, **top}
    envelope = node.ask(node.endpoint_of(operation), asked)
    assert node.sent_calls == []
    assert envelope["success"] is False
    error: dict[str, Any] = envelope["error"]
    return error


def test_translates_parameter_names() -> None:
    node = view_pipeline()
    create_issue(node, **GOOD, api_key="k")
    assert node.sent_calls == [("createIssue", {"owner": "o", "issueTitle": "t", "apiKey": "k"})]


@pytest.mark.spec("AQ-OPS-4.1-1")
def test_accepts_server_spelling_as_alias() -> None:
    node = view_pipeline()
    create_issue(node, owner="o", issueTitle="t")
    create_issue(node, owner="o", issueTitle="t", issue_title="t")
    assert [arguments for _, arguments in node.sent_calls] == [
        {"owner": "o", "issueTitle": "t"}
    ] * 2
    error = get_error({"owner": "o", "issueTitle": "t", "issue_title": "other"})
    assert error["code"] == "VALIDATION_INVALID_TYPE"
    assert error["details"]["reason"] == "ambiguous"
    assert error["details"]["param_name"] == "issue_title"


def test_aliases_can_be_turned_off() -> None:
    node = view_pipeline(AqlConfig(aliases=False))
    error = node.error("hub_create_issue", owner="o", issueTitle="t")
    assert error["code"] == "VALIDATION_MISSING_PARAM"


def test_equal_requests_have_equal_bytes() -> None:
    node = view_pipeline()
    one = create_issue(node, owner="o", issue_title="t", count=1)
    other = create_issue(node, count=1, issueTitle="t", owner="o")
    assert bytes(one.arguments) == bytes(other.arguments)


@pytest.mark.spec("AQ-GK-6.1-1")
def test_params_override_top_level_with_warning() -> None:
    node = view_pipeline()
    asked = {"operation": "hub_get_issue", "params": {"owner": "a", "number": 1}, "owner": "b"}
    node.begin("mcp_aql_read", asked)
    assert node.sent_calls == [("get_issue", {"owner": "a", "number": 1})]
    node.last.answer(**text_result("{}"))
    [warning] = node.last_envelope()["warnings"]
    assert warning["code"] == "VALIDATION_DUPLICATE_PARAM_WARNING"
    assert warning["details"]["params"] == ["owner"]
    # Alike in both places is no contradiction.
    node.begin("mcp_aql_read", {**asked, "owner": "a"})
    node.last.answer(**text_result("{}"))
    assert "warnings" not in node.last_envelope()


@pytest.mark.spec("AQ-GK-6.1-1", "AQ-4.5.3-5")
def test_rejects_identifier_in_input() -> None:
    error = get_error(
        {"issue_id": "1", "input": {"issue_id": "2", "title": "t"}}, "hub_update_issue"
    )
    assert error["code"] == "VALIDATION_UNKNOWN_FIELD"
    assert error["details"]["unknown_fields"] == ["issue_id"]


def test_operation_in_params_is_parameter() -> None:
    error = get_error({**GOOD, "operation": "hub_delete_repo"})
    assert error["code"] == "VALIDATION_UNKNOWN_PARAM"
    assert error["details"]["unknown_params"] == ["operation"]


# -- unknown and missing


@pytest.mark.spec("AQ-4.6-1")
@pytest.mark.spec("AQ-4.6.2-2")
def test_rejects_unknown_parameters_and_lists_valid_names() -> None:
    error = get_error({**GOOD, "force_create": True, "admin_override": True})
    assert error["code"] == "VALIDATION_UNKNOWN_PARAM"
    assert error["details"]["operation"] == "hub_create_issue"
    assert error["details"]["unknown_params"] == ["force_create", "admin_override"]
    assert {"owner", "issue_title", "priority"} <= set(error["details"]["valid_params"])


def test_suggests_similar_parameter() -> None:
    assert get_error({**GOOD, "prority": 1})["details"]["did_you_mean"] == "priority"


@pytest.mark.spec("AQ-4.6.1-1")
def test_underscore_members_are_not_sent() -> None:
    assert get_error(GOOD, stranger=1)["code"] == "VALIDATION_UNKNOWN_PARAM"
    assert get_error({**GOOD, "stranger": 1})["code"] == "VALIDATION_UNKNOWN_PARAM"
    node = view_pipeline()
    asked = {
        "operation": "hub_create_issue",
        "params": {**GOOD, "_meta": {}, "_async": False},
        "_request_id": "r-1",
    }
    node.begin("mcp_aql_create", asked)
    assert node.sent_calls == [("createIssue", {"owner": "o", "issueTitle": "t"})]


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("_dryRun", "_dry_run"),
        ("_dryrun", "_dry_run"),
        ("_dry-run", "_dry_run"),
        ("_confirmation_token", "confirmation_token"),
        ("_idempotency_key", None),
        ("_execution_id", None),
        ("_owner", "owner"),
        ("_xyz", None),
        # What is for those that read means nothing here.
        ("_first", None),
    ],
)
def test_rejects_unknown_underscore_members(name: str, near: str | None, inside: bool) -> None:
    error = get_error({**GOOD, name: True}) if inside else get_error(GOOD, **{name: True})  # type: ignore[arg-type]
    assert error["code"] == "VALIDATION_UNKNOWN_PARAM"
    assert error["details"]["unknown_params"] == [name]
    assert {"_dry_run", "_request_id", "_meta"} <= set(error["details"]["valid_params"])
    assert error["details"].get("did_you_mean") == near
    assert near is None or f"'{near}'" in error["message"]


def test_suggests_underscore_page_parameters() -> None:
    error = get_error({"_frist": 2}, "hub_list_issues")
    assert error["details"]["did_you_mean"] == "_first"
    assert get_error({"first": 2}, "hub_list_issues")["details"]["did_you_mean"] == "_first"
    assert get_error({"dry_run": True}, "hub_list_issues")["details"]["did_you_mean"] == "_dry_run"


def test_suggests_renamed_underscore_parameter() -> None:
    schema = object_schema(_secret_mode="string")
    node = view_pipeline(None, offer("hub", [definition("make_it", inputSchema=schema)]))
    error = node.error("hub_make_it", _secret_mode="on")
    assert error["details"]["did_you_mean"] == "x_secret_mode"
    assert node.sent_calls == []


def test_decodes_escaped_underscore() -> None:
    node = view_pipeline(None, offer("hub", [definition("run_it", inputSchema={"type": "object"})]))
    raw = b'{"operation":"hub_run_it","params":{"\\u005fdry_run":true}}'
    assert node.ask("mcp_aql_execute", raw)["data"]["dry_run"] is True
    assert node.sent_calls == []


def test_lists_enum_values_as_json() -> None:
    places = ["New York", "Flat White", 'x"y', 7]
    schema = object_schema(location={"enum": places})
    node = view_pipeline(None, offer("hub", [definition("make_it", inputSchema=schema)]))
    error = node.error("hub_make_it", location="Paris")
    assert error["code"] == "VALIDATION_INVALID_ENUM"
    assert error["details"]["allowed"] == places
    listed = error["message"].partition("one of: ")[2].rstrip(".")
    assert listed.startswith('"New York", ')
    assert json.loads(f"[{listed}]") == places


def test_names_missing_parameter_with_type_and_description() -> None:
    error = get_error({"issue_title": "t"})
    assert error["code"] == "VALIDATION_MISSING_PARAM"
    assert error["details"]["param_name"] == "owner"
    assert error["details"]["expected_type"] == "string"
    assert "Whose it is" in error["message"]
    assert "'owner'" in error["message"]


def test_suggests_misspelled_missing_parameter() -> None:
    error = get_error({"ownr": "o", "issue_title": "t"})
    assert error["code"] == "VALIDATION_MISSING_PARAM"
    assert error["details"]["given"] == "ownr"
    assert error["details"]["did_you_mean"] == "owner"
    assert "You sent 'ownr'. Did you mean 'owner'?" in error["message"]
    assert "did_you_mean" not in get_error({"zzz": "o", "issue_title": "t"})["details"]


@pytest.mark.parametrize(
    "params",
    [
        {"issue_id": "1", "title": "t", "bodyText": "b"},
        {"issue_id": "1", "title": "t", "input": {"body_text": "b"}},
        {"issue_id": "1", "title": "t", "input": {"title": "t", "bodyText": "b"}},
    ],
)
def test_update_accepts_flat_parameters(params: Any) -> None:
    node = view_pipeline()
    node.begin("mcp_aql_update", {"operation": "hub_update_issue", "params": params})
    assert node.sent_calls == [("update_issue", {"issue_id": "1", "title": "t", "bodyText": "b"})]


@pytest.mark.spec("AQ-GK-6.1-1")
def test_rejects_conflicting_flat_and_input_values() -> None:
    error = get_error({"issue_id": "1", "title": "t", "input": {"title": "u"}}, "hub_update_issue")
    assert error["code"] == "VALIDATION_INVALID_TYPE"
    assert error["details"]["actual_type"] == "two values"


@pytest.mark.spec("AQ-4.5.3-1")
def test_update_without_changes_returns_shape() -> None:
    error = get_error({"issue_id": "1"}, "hub_update_issue")
    assert error["code"] == "VALIDATION_MISSING_PARAM"
    assert error["details"]["param_name"] == "input"
    assert error["details"]["expected_shape"]["issue_id"] == "…"
    assert "title" in error["details"]["expected_shape"]["input"]


def test_names_mistakes_around_input() -> None:
    error = get_error({"issue_id": "1", "input": {"titel": "t"}}, "hub_update_issue")
    assert error["details"]["did_you_mean"] == "title"
    error = get_error(
        {"issue_id": "1", "input": {"title": "t", "issue_id": "2"}}, "hub_update_issue"
    )
    assert "belong beside 'input': 'issue_id'" in error["message"]
    error = get_error({"isue_id": "1", "input": {"title": "t"}}, "hub_update_issue")
    assert error["details"]["did_you_mean"] == "issue_id"


def test_names_missing_nested_field_with_type() -> None:
    inner = object_schema(
        "name", name={"type": "string", "description": "Of a person."}, age="integer"
    )
    people = {"type": "array", "items": inner}
    schema = object_schema(people=people)
    node = view_pipeline(None, offer("hub", [definition("make_it", inputSchema=schema)]))
    error = node.error("hub_make_it", people=[{"age": 7}])
    assert error["details"]["param_name"] == "people.0.name"
    assert error["details"]["expected_type"] == "string"
    assert "Expected: string (Of a person)." in error["message"]
    error = node.error("hub_make_it", people=[{"name": "a", "age": "x"}])
    assert error["details"]["expected_type"] == "integer"


@pytest.mark.spec("AQ-OPS-5.4-1", "AQ-OPS-8.1-1")
@pytest.mark.parametrize(
    ("params", "code"),
    [
        ({"issue_title": 7, "zzz": 1, "priority": 99}, "VALIDATION_MISSING_PARAM"),
        ({**GOOD, "owner": 7, "zzz": 1, "priority": 99}, "VALIDATION_INVALID_TYPE"),
        ({**GOOD, "zzz": 1, "priority": 99}, "VALIDATION_UNKNOWN_PARAM"),
        ({**GOOD, "priority": 99}, "VALIDATION_OUT_OF_RANGE"),
    ],
)
def test_reports_errors_in_order(params: Any, code: str) -> None:
    assert get_error(params)["code"] == code


@pytest.mark.spec("AQ-4.7.2-1")
@pytest.mark.parametrize(
    ("params", "code", "details"),
    [
        (
            {"owner": 7},
            "VALIDATION_INVALID_TYPE",
            {"param_name": "owner", "expected_type": "string", "actual_type": "integer"},
        ),
        ({"priority": 0}, "VALIDATION_OUT_OF_RANGE", {"param_name": "priority", "minimum": 1}),
        (
            {"kind": "other"},
            "VALIDATION_INVALID_ENUM",
            {"param_name": "kind", "allowed": ["bug", "wish"]},
        ),
        ({"due": "04/02/2026"}, "VALIDATION_PATTERN_MISMATCH", {"param_name": "due"}),
        ({"count": 2**53}, "VALIDATION_OUT_OF_RANGE", {"param_name": "count"}),
        ({"issue_title": None}, "VALIDATION_INVALID_TYPE", {"actual_type": "null"}),
    ],
)
def test_reports_invalid_values_by_caller_names(params: Any, code: str, details: Any) -> None:
    error = get_error({**GOOD, **params})
    assert error["code"] == code
    assert details.items() <= error["details"].items()


def test_messages_contain_no_values() -> None:
    for params in ({"owner": ["s3cret-value"]}, {"kind": "s3cret-value"}, {"due": "s3cret-value"}):
        assert "s3cret" not in json.dumps(get_error({**GOOD, **params}))


@pytest.mark.spec("AQ-4.5.3-3")
def test_names_nested_values_by_path() -> None:
    node = view_pipeline()
    error = node.error("hub_update_issue", issue_id="1", input={"labels": ["a", 7]})
    assert error["code"] == "VALIDATION_INVALID_TYPE"
    assert error["details"]["param_name"] == "input.labels.1"


@pytest.mark.spec("AQ-4.7.4-1")
def test_rejects_base64_without_padding() -> None:
    schema = object_schema("file", file={"type": "string", "contentEncoding": "base64"})
    node = view_pipeline(None, offer("hub", [definition("create_file", inputSchema=schema)]))
    error = node.error("hub_create_file", file="aGk")
    assert error["code"] == "VALIDATION_PATTERN_MISMATCH"
    assert error["details"]["param_name"] == "file"
    assert node.sent_calls == []
    node.begin("mcp_aql_create", {"operation": "hub_create_file", "params": {"file": "aGk="}})
    assert node.sent_calls == [("create_file", {"file": "aGk="})]


# -- UPDATE


def test_flattens_update_for_server() -> None:
    node = view_pipeline()
    params = {"issue_id": "1", "input": {"title": "t", "body_text": None}}
    node.begin("mcp_aql_update", {"operation": "hub_update_issue", "params": params})
    assert node.sent_calls == [("update_issue", {"issue_id": "1", "title": "t", "bodyText": None})]


@pytest.mark.spec("AQ-4.5.3-1", "AQ-4.5.3-2", "AQ-4.5.3-3")
@pytest.mark.parametrize(
    ("params", "code"),
    [
        ({"issue_id": "1"}, "VALIDATION_MISSING_PARAM"),
        ({"input": {}}, "VALIDATION_MISSING_PARAM"),
        ({"issue_id": "1", "input": "title"}, "VALIDATION_INVALID_TYPE"),
        ({"issue_id": "1", "input": [1]}, "VALIDATION_INVALID_TYPE"),
        ({"issue_id": "1", "input": {"titel": "t"}}, "VALIDATION_UNKNOWN_FIELD"),
        ({"issue_id": "1", "titel": "t"}, "VALIDATION_MISSING_PARAM"),
        ({"issue_id": "1", "titel": "t", "input": {}}, "VALIDATION_UNKNOWN_PARAM"),
        ({"issue_id": "1", "input": {"title": None}}, "VALIDATION_INVALID_TYPE"),
    ],
)
def test_rejects_invalid_updates(params: Any, code: str) -> None:
    assert get_error(params, "hub_update_issue")["code"] == code


# -- strange tools


def test_open_schema_passes_unknown_parameters() -> None:
    schema = {"type": "object", "properties": {"aB": {"type": "string"}}}
    schema["additionalProperties"] = True  # type: ignore[assignment]
    node = view_pipeline(
        None, offer("hub", [definition("look", inputSchema=schema, annotations=READS)])
    )
    node.begin("mcp_aql_read", {"operation": "hub_look", "params": {"a_b": "x", "other": 1}})
    assert node.sent_calls == [("look", {"aB": "x", "other": 1})]


def test_passes_parameters_with_reserved_names() -> None:
    schema = object_schema(operation="string", params="string", fields="string", dry_run="string")
    node = view_pipeline(None, offer("hub", [definition("make", inputSchema=schema)]))
    params = {"operation": "a", "params": "b", "fields": "c", "dry_run": "d"}
    node.begin("mcp_aql", {"operation": "hub_make", "params": params}, view=SINGLE)
    assert node.sent_calls == [("make", params)]


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.floats(allow_nan=False),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
_NAMES = ["operation", "params", "operations", "owner", "issue_title", "issueTitle", "input"]
_METAS = ["_async", "_dry_run", "_meta", "_request_id", "_fields", "_confirmation", "_filter"]
_keys = st.sampled_from([*_NAMES, *_METAS, "issue_id", "title", "number"]) | st.text(max_size=6)
_asked = st.fixed_dictionaries(
    {
        "operation": st.sampled_from(
            ["hub_create_issue", "hub_update_issue", "hub_get_issue", "hub_list_issues", "x"]
        )
    },
    optional={"params": st.dictionaries(_keys, _json, max_size=5)},
).flatmap(lambda base: st.dictionaries(_keys, _json, max_size=3).map(lambda more: {**more, **base}))


@settings(max_examples=150, deadline=None)
@given(_asked | _json)
def test_any_request_is_sent_or_rejected_with_aql_code(asked: Any) -> None:
    node = view_pipeline()
    for endpoint, view in (("mcp_aql", SINGLE), ("mcp_aql_read", FIVE)):
        before = len(node.sent_calls)
        call = node.begin(endpoint, asked, view=view)
        if call in list(node.pipeline.running_calls()):
            assert len(node.sent_calls) == before + 1
            name, arguments = node.sent_calls[-1]
            tool = node.rig.catalog.find(f"hub.{name.lower()}")
            assert tool is not None
            assert not any(key.startswith("_") for key in arguments)
            node.last.answer(**text_result("{}"))
            assert "success" in node.last_envelope()
        else:
            assert len(node.sent_calls) == before
            envelope = node.last_envelope()
            assert envelope["success"] is False or envelope["data"]["dry_run"] is True
            if not envelope["success"]:
                assert envelope["error"]["code"] != "INTERNAL_ERROR", envelope
