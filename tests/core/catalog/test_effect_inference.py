"""Effects that are inferred from names, descriptions and parameters."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.core.catalog.effect_inference import EffectKind, infer
from interlock.core.catalog.effects import Annotations, EffectLevel, classify
from tests.support.offerings import definition, offer

HOLD, READ, CHANGE = EffectKind.IRREVERSIBLE, EffectKind.READS, EffectKind.CHANGES


def one_of(*values: str, name: str = "action") -> dict[str, Any]:
    return {"type": "object", "properties": {name: {"type": "string", "enum": list(values)}}}


@pytest.mark.parametrize(
    ("name", "description", "kind"),
    [
        ("delete_station", "Delete a weather station permanently.", HOLD),
        ("deleteStation", "", HOLD),
        ("stations-remove", "", HOLD),
        ("notes.purge", "", HOLD),
        ("send_email", "", HOLD),
        ("slack_post_message", "", HOLD),
        ("create_payment", "", HOLD),
        ("create_tweet", "", HOLD),
        ("publish_article", "", HOLD),
        ("execute", "", HOLD),
        ("execute_sql", "", HOLD),
        ("run_query", "", HOLD),
        ("run_command", "", HOLD),
        ("merge_pull_request", "", HOLD),
        ("write_file", "", HOLD),
        ("get_and_delete", "", HOLD),
        ("set_contents", "Completely overwrites the existing file.", HOLD),
        ("tidy", "Deletes all old records.", HOLD),
        ("station", "Removes a station. This cannot be undone.", HOLD),
        ("set_file_permissions", "", HOLD),
        ("reinvite_member", "", HOLD),
        ("sendmail", "", HOLD),
        ("DeleteStation2", "", HOLD),
        ("doDeleteAll", "", HOLD),
        ("code_runner", "", HOLD),
        ("message-sender", "", HOLD),
        ("process_refund", "", HOLD),
        ("update_org_subscription", "", HOLD),
        ("book_flight", "", HOLD),
        ("add_collaborator", "", HOLD),
        ("approve_device", "", HOLD),
        ("grant_role", "", HOLD),
        ("save_file", "", HOLD),
        ("replace_file_contents", "", HOLD),
        ("start_deployment", "", HOLD),
        ("station", "Tool for deleting stations.", HOLD),
        ("station", "Create, update, delete stations.", HOLD),
        ("check_station", "Deletes the station.", HOLD),
        ("browser_put", "Perform an HTTP PUT request", HOLD),
        ("dry_run_deploy", "", HOLD),
        ("preview_and_send", "", HOLD),
        ("validate_then_delete", "", HOLD),
        ("create_message_preview", "", HOLD),
        ("delete_station", "Dry run by default. Only previews what would happen.", HOLD),
        ("get_forecast", "", READ),
        ("list_deleted_items", "", READ),
        ("get_delete_status", "", READ),
        ("list_pull_requests", "", READ),
        ("get_workflow_run", "", READ),
        ("run_query", "Run a read-only SQL query", READ),
        ("forecast_for", "Returns the forecast. It never deletes anything.", READ),
        ("get_block", "", READ),
        ("fetch_sender", "", READ),
        ("add", "Add two numbers.", CHANGE),
        ("create_book", "", CHANGE),
        ("approve_timesheet", "", CHANGE),
        ("create_issue", "", CHANGE),
        ("update_page", "Update a page. Use delete_page to delete one.", CHANGE),
        ("create_draft_email", "", CHANGE),
        ("set_title", "Set the title. Does not overwrite existing content.", CHANGE),
        ("frobnicate", "", EffectKind.UNKNOWN),
    ],
)
def test_infers_kind_from_words(name: str, description: str, kind: EffectKind) -> None:
    assert infer(name, description).kind is kind


def test_reason_names_word_and_place() -> None:
    assert infer("delete_x").reason == "`delete` in its name"
    assert infer("tidy", "Deletes it.").reason == "`deletes` in its description"
    assert "`sql`" in infer("db", "", {"properties": {"sql": {"type": "string"}}}).reason


def test_judges_each_call_by_parameter_value() -> None:
    effect = classify("manage", None, {}, schema=one_of("list", "create", "delete", "frobnicate"))
    assert (effect.level, effect.source) == (EffectLevel.IRREVERSIBLE, "inferred")
    assert effect.level_for({"action": "list"}) is EffectLevel.MUTATING
    assert effect.level_for({"action": "create"}) is EffectLevel.MUTATING
    for others in ({}, {"action": None}, {"action": ["list"]}, {"action": "LIST"},
                   {"action": "delete"}, {"action": "frobnicate"}, {"Action": "list"}):  # fmt: skip
        assert effect.level_for(others) is EffectLevel.IRREVERSIBLE, others


def test_judges_http_methods() -> None:
    effect = classify("http_request", None, {}, schema=one_of("GET", "POST", name="method"))
    assert effect.level_for({"method": "GET"}) is EffectLevel.MUTATING
    assert effect.level_for({"method": "POST"}) is EffectLevel.IRREVERSIBLE


def test_judges_each_call_by_referenced_values() -> None:
    schema = {
        "properties": {"action": {"$ref": "#/$defs/Action"}},
        "$defs": {"Action": {"enum": ["list", "delete"]}},
    }
    effect = classify("stations", None, {}, schema=schema)
    assert effect.level_for({"action": "list"}) is EffectLevel.MUTATING
    assert effect.level_for({"action": "delete"}) is EffectLevel.IRREVERSIBLE


@pytest.mark.parametrize(
    "schema",
    [
        {
            "properties": {
                "what": {"anyOf": [{"properties": {"operation": {"const": "delete-all"}}}]}
            }
        },
        {"properties": {"steps": {"items": {"properties": {"op": {"enum": ["add", "remove"]}}}}}},
        {"oneOf": [{"properties": {"action": {"const": "deploy"}}}]},
        {
            "properties": {
                "action": {"enum": ["list", "delete"]},
                "then": {"properties": {"action": {"enum": ["delete"]}}},
            }
        },
    ],
)
def test_nested_choice_does_not_lower_effect(schema: Any) -> None:
    effect = classify("update_stations", None, {}, schema=schema)
    assert effect.level_for({"action": "list"}) is EffectLevel.IRREVERSIBLE


def test_judges_overwrite_switch_for_each_call() -> None:
    schema: Any = {"properties": {"overwrite": {"type": "boolean", "default": False}}}
    effect = classify("copy_station", None, {}, schema=schema)
    for harmless in ({}, {"overwrite": False}):
        assert effect.level_for(harmless) is EffectLevel.MUTATING
    other: Any
    for other in (True, 1, "false", "yes", []):
        assert effect.level_for({"overwrite": other}) is EffectLevel.IRREVERSIBLE
    schema["properties"]["overwrite"]["default"] = True
    effect = classify("copy_station", None, {}, schema=schema)
    assert effect.level_for({}) is EffectLevel.IRREVERSIBLE


def test_free_text_choice_keeps_irreversible_effect() -> None:
    free = {"type": "object", "properties": {"action": {"type": "string"}}}
    effect = classify("manage_users", None, {}, schema=free)
    assert effect.level is EffectLevel.IRREVERSIBLE
    assert effect.level_for({"action": "list"}) is EffectLevel.IRREVERSIBLE


def test_destructive_name_ignores_harmless_values() -> None:
    effect = classify("delete_item", None, {}, schema=one_of("list", "delete"))
    assert effect.level_for({"action": "list"}) is EffectLevel.IRREVERSIBLE


def test_filter_is_not_choice() -> None:
    assert infer("list_todos", "", one_of("assigned", "merge_removed")).kind is READ


@pytest.mark.parametrize("name", ["get_x", "list_all", "frobnicate", "create_x", "delete_x"])
def test_inferred_effect_is_never_repeatable_or_read_only(name: str) -> None:
    effect = classify(name, None, {})
    assert not effect.repeatable
    assert effect.level >= EffectLevel.MUTATING


@pytest.mark.parametrize(
    ("annotations", "overrides"),
    [
        (Annotations(destructive_hint=True), {}),
        (Annotations(read_only_hint=True, destructive_hint=True), {}),
        (None, {"man*": "irreversible"}),
        (Annotations(read_only_hint=True), {"man*": "irreversible"}),
    ],
)
def test_arguments_do_not_lower_declared_effect(
    annotations: Annotations | None, overrides: dict[str, str]
) -> None:
    schema = one_of("list", "create", "delete")
    assert classify("manage", None, {}, schema=schema).choices
    effect = classify("manage", annotations, overrides, schema=schema)
    assert effect.level_for({"action": "list"}) is EffectLevel.IRREVERSIBLE


def test_annotations_override_inference() -> None:
    for hints, level in (
        (Annotations(read_only_hint=True), EffectLevel.READ_ONLY),
        (Annotations(destructive_hint=False), EffectLevel.ADDITIVE),
    ):
        assert classify("delete_x", hints, {}).level is level
        assert classify("delete_x", hints, {}, trusted=False).level is EffectLevel.IRREVERSIBLE
    assert classify("get_x", Annotations(destructive_hint=True), {}).level is (
        EffectLevel.IRREVERSIBLE
    )


@pytest.mark.parametrize(
    ("unannotated", "irreversible"),
    [
        ("infer", {"delete_x"}),
        ("confirm", {"delete_x", "create_x", "frobnicate"}),
        ("allow", set()),
    ],
)
def test_applies_default_for_unannotated_tools(unannotated: Any, irreversible: set[str]) -> None:
    names = ("get_x", "create_x", "frobnicate", "delete_x")
    result = {name: classify(name, None, {}, unannotated=unannotated).level for name in names}
    assert {name for name in names if result[name] is EffectLevel.IRREVERSIBLE} == irreversible


DEFAULTS = {
    "readOnlyHint": False, "destructiveHint": True, "idempotentHint": False, "openWorldHint": True,
}  # fmt: skip


def levels(names: list[str], **settings: Any) -> dict[str, str]:
    tools = [definition(name, annotations=DEFAULTS) for name in names]
    return {tool.upstream_name: tool.effect_name for tool in offer("s", tools, **settings).tools}


def test_ignores_library_default_annotations() -> None:
    names = ["get_a", "get_b", "get_c", "get_d", "delete_x", "frobnicate"]
    result = levels(names)
    assert {name for name, word in result.items() if word == "mutating"} == set(names[:4])
    # Too few of them: then it is what their author says.
    assert set(levels(names[:4]).values()) == {"irreversible"}
    assert set(levels(names, unannotated="confirm").values()) == {"irreversible"}
    assert all(
        tool.effect.is_hint_ignored == (tool.effect_name == "mutating")
        for tool in offer("s", [definition(name, annotations=DEFAULTS) for name in names]).tools
    )


def test_respects_annotations_that_differ_from_defaults() -> None:
    hints = {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": True,
             "openWorldHint": True}  # fmt: skip
    tools = [definition(f"delete_{n}", annotations=DEFAULTS) for n in range(5)]
    made = offer("s", [*tools, definition("get_x", annotations=hints)])
    assert {tool.effect_name for tool in made.tools} == {"irreversible"}


JSON = st.recursive(
    st.none() | st.booleans() | st.text(max_size=8) | st.integers(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=12,
)


@given(st.text(max_size=40), st.text(max_size=80), JSON)
def test_infers_effect_of_any_definition(name: str, description: str, schema: Any) -> None:
    assert infer(name, description, schema).kind in EffectKind
    assert infer(name, description, {"properties": schema}).kind in EffectKind
    assert infer(name, description, {"properties": {"action": schema}}).kind in EffectKind


@pytest.mark.parametrize(
    ("name", "description"),
    [
        ("get_report", "Gets the report, then deletes it."),
        ("read_mail", "Reads a mail and permanently removes it from the server."),
        ("list_tmp", "Lists temp files and sends them by email."),
        ("get_x", "Get x. This cannot be undone."),
    ],
)
def test_description_overrides_harmless_name(name: str, description: str) -> None:
    assert infer(name, description).kind is EffectKind.IRREVERSIBLE


@pytest.mark.parametrize(
    ("name", "description"),
    [
        ("get_message", "Gets a message that others can edit or delete."),
        ("list_deleted", "Lists files that users deleted. Deletes nothing."),
        ("read_log", "Reads the log without removing entries."),
    ],
)
def test_reading_tool_stays_read_only_despite_description_of_others(
    name: str, description: str
) -> None:
    assert infer(name, description).kind is EffectKind.READS


def _schema(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def _one_of(*values: str) -> dict[str, Any]:
    return {"type": "string", "enum": list(values)}


TEXT: dict[str, Any] = {"type": "string"}
FLAG: dict[str, Any] = {"type": "boolean"}


@pytest.mark.parametrize(
    ("name", "description", "schema", "arguments"),
    [
        ("shell", "", _schema(action=_one_of("start", "kill"), command=TEXT), {"action": "start"}),
        ("run_python", "", _schema(mode=_one_of("start", "kill"), code=TEXT), {"mode": "start"}),
        ("manage_db", "", _schema(action=_one_of("list", "drop"), sql=TEXT), {"action": "list"}),
        ("manage_x", "", _schema(action=_one_of("update", "delete"), operation=TEXT),
         {"action": "update", "operation": "delete"}),
        ("manage_file", "", _schema(action=_one_of("write", "delete"), overwrite=FLAG),
         {"action": "write", "overwrite": True}),
        ("manage_repo", "Permanently deletes history.", _schema(action=_one_of("update", "delete")),
         {"action": "update"}),
        ("update_item", "", _schema(overwrite=FLAG, hard_delete=FLAG), {"hard_delete": True}),
        ("widget", "", _schema(action=TEXT, force=FLAG), {"action": "delete"}),
        ("update_db", "", _schema(sql=TEXT, force=FLAG), {"sql": "DROP TABLE x"}),
        ("execute_sql", "Execute any SQL. This is not read-only.", _schema(sql=TEXT), {}),
        ("execute_sql", "Execute any SQL. For read-only statements prefer query_sql.",
         _schema(sql=TEXT), {}),
        ("archive_project", "There is no backup and this cannot be undone.", None, {}),
        ("fetch", "", _schema(url=TEXT, method=_one_of("GET", "PUT")),
         {"url": "x", "method": "PUT"}),
        ("fetch", "", _schema(url=TEXT, method=TEXT), {"url": "x", "method": "DELETE"}),
    ],
)  # fmt: skip
def test_harmful_parameter_overrides_harmless_parameter(
    name: str, description: str, schema: Any, arguments: dict[str, Any]
) -> None:
    inferred = infer(name, description, schema)
    assert inferred.kind is EffectKind.IRREVERSIBLE
    harmless = bool(inferred.choices) and all(
        choice.is_harmless(arguments) for choice in inferred.choices
    )
    assert not harmless


def test_harmless_values_stay_allowed() -> None:
    inferred = infer("manage", "Manages stations.", _schema(action=_one_of("list", "delete")))
    assert all(choice.is_harmless({"action": "list"}) for choice in inferred.choices)
    assert inferred.choices
    both = _schema(action=_one_of("list", "delete"), force=FLAG)
    inferred = infer("manage", "", both)
    assert all(choice.is_harmless({"action": "list"}) for choice in inferred.choices)
    reads = infer("run_query", "Runs a read-only SQL query.", _schema(sql=TEXT))
    assert reads.kind is EffectKind.READS
