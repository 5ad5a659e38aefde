"""Tests of the category of a tool: by config, effect or verb, otherwise EXECUTE."""

from __future__ import annotations

import pytest

from interlock.aql import operations as categories
from interlock.aql.operations import classify
from interlock.core.catalog.effects import UNKNOWN_EFFECT, Effect, EffectLevel
from interlock.protocol.aql_terms import Category
from tests.aql.operation_catalogs import NEEDED, STRING, operation_catalog, single_operation, tool
from tests.support.offerings import offer

READS = Effect(EffectLevel.READ_ONLY, True, "annotations")
DESTROYS = Effect(EffectLevel.IRREVERSIBLE, False, "annotations")
ADDS = Effect(EffectLevel.ADDITIVE, False, "config")

KNOWN = {
    Category.CREATE: """
        create_issue create_pull_request create_branch add_comment upload_file register_webhook
        import_dataset insert_row create_or_update_file upsert_record clone_repository fork_repo
        create_user generate_image add_reaction_role save_note invite_member create_directory""",
    Category.READ: """
        get_issue list_issues search_code find_user export_report count_rows read_file fetch
        describe_table get_execution_status get_task_log list_users search get_status
        directory_tree_list pull_request_read get_me view_logs download_file check_health
        validate_schema compare_commits""",
    Category.UPDATE: """
        update_issue edit_message set_topic rename_file move_file patch_page merge_pull_request
        update_profile write_file replace_text assign_copilot close_ticket""",
    Category.DELETE: """
        delete_file remove_member purge_cache unregister_device clear_queue drop_table
        delete_user archive_channel""",
    Category.EXECUTE: """
        execute_job run_tests start_server stop_container resume_workflow trigger_build
        invoke_lambda cancel_task pause_execution send_email post_message publish_package
        deploy_service browser_click frobnicate notify_team query""",
}


@pytest.mark.spec("AQ-8.1-1", "AQ-8.2-1", "AQ-CRU-6.1-1")
def test_classifies_known_tools_as_reviewed() -> None:
    wrong = {
        name: classify(name, UNKNOWN_EFFECT).category.value
        for category, names in KNOWN.items()
        for name in names.split()
        if classify(name, UNKNOWN_EFFECT).category is not category
    }
    assert sum(len(names.split()) for names in KNOWN.values()) >= 60
    assert wrong == {}


@pytest.mark.spec("AQ-OPS-6.2-1")
def test_classifies_every_verb_of_draft() -> None:
    verbs = {
        Category.CREATE: "create add upload register import insert",
        Category.READ: "get list search find export count",
        Category.UPDATE: "update edit set rename move patch merge",
        Category.DELETE: "delete remove purge unregister clear drop",
        Category.EXECUTE: "execute run start stop resume trigger invoke cancel",
    }
    for category, words in verbs.items():
        for word in words.split():
            assert classify(f"{word}_thing", UNKNOWN_EFFECT).category is category, word


@pytest.mark.spec("AQ-8.1-2")
@pytest.mark.parametrize(
    ("name", "effect", "category", "confidence", "needs_review"),
    [
        ("delete_x", READS, Category.DELETE, "medium", True),
        ("search_code", UNKNOWN_EFFECT, Category.READ, "high", False),
        ("frobnicate", UNKNOWN_EFFECT, Category.EXECUTE, "low", True),
        ("frobnicate", READS, Category.READ, "high", False),
        ("run_query", READS, Category.READ, "medium", False),
        ("send_email", READS, Category.EXECUTE, "medium", True),
        ("create_file", DESTROYS, Category.UPDATE, "medium", False),
        ("get_and_clear", UNKNOWN_EFFECT, Category.DELETE, "high", False),
        ("get_thing", DESTROYS, Category.EXECUTE, "medium", True),
        ("slack_thing_post_it", UNKNOWN_EFFECT, Category.EXECUTE, "medium", False),
        ("check_out", UNKNOWN_EFFECT, Category.UPDATE, "high", False),
        ("git_log", READS, Category.READ, "medium", False),
        ("resolve_library", READS, Category.READ, "medium", False),
        ("monitor_delete", UNKNOWN_EFFECT, Category.DELETE, "high", False),
        ("batch_update_rows", UNKNOWN_EFFECT, Category.UPDATE, "high", False),
        ("jira_link_to_epic", UNKNOWN_EFFECT, Category.UPDATE, "medium", False),
        ("place_details", UNKNOWN_EFFECT, Category.EXECUTE, "low", True),
        ("search_replace", UNKNOWN_EFFECT, Category.EXECUTE, "medium", True),
        ("list_evict", UNKNOWN_EFFECT, Category.EXECUTE, "medium", True),
        ("get_lock", UNKNOWN_EFFECT, Category.EXECUTE, "medium", True),
        ("read_then_destroy_all", UNKNOWN_EFFECT, Category.DELETE, "medium", True),
        ("read_then_post", UNKNOWN_EFFECT, Category.EXECUTE, "medium", True),
        ("create_sip_credential_list", UNKNOWN_EFFECT, Category.CREATE, "high", False),
        ("v2_update_access_list", UNKNOWN_EFFECT, Category.UPDATE, "medium", True),
        ("query", UNKNOWN_EFFECT, Category.EXECUTE, "low", True),
        ("query", READS, Category.READ, "high", False),
        ("query_metrics", READS, Category.READ, "high", False),
        ("list_pull_requests", UNKNOWN_EFFECT, Category.READ, "high", False),
        ("get_commit", UNKNOWN_EFFECT, Category.READ, "high", False),
        ("get_email", UNKNOWN_EFFECT, Category.READ, "high", False),
    ],
)
def test_combines_effects_and_verbs(
    name: str, effect: Effect, category: Category, confidence: str, needs_review: bool
) -> None:
    judged = classify(name, effect)
    assert (judged.category, judged.confidence, judged.needs_review) == (
        category, confidence, needs_review,
    )  # fmt: skip
    assert judged.reason


@pytest.mark.spec("AQ-8.1-2")
def test_config_overrides_category() -> None:
    found = operation_catalog(
        offer("s", ["delete_x"]), operations={"s.delete_*": {"category": "READ"}}
    ).find("s_delete_x")
    assert found is not None
    assert (found.category, found.confidence) == (Category.READ, "high")
    assert found.origins["category"] == "override"


@pytest.mark.spec("AQ-8.1-2")
def test_untrusted_hints_only_raise_category() -> None:
    listed = [
        tool("frobnicate", annotations={"readOnlyHint": True}),
        tool("get_thing", annotations={"destructiveHint": True}),
    ]
    found = operation_catalog(offer("s", listed, trust_annotations=False))
    assert found.find("s_frobnicate").category is Category.EXECUTE  # type: ignore[union-attr]
    assert found.find("s_get_thing").category is Category.EXECUTE  # type: ignore[union-attr]
    trusting = operation_catalog(offer("s", listed))
    assert trusting.find("s_frobnicate").category is Category.READ  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "hints", [{"readOnlyHint": False}, {"destructiveHint": False}, {"destructiveHint": True}]
)
@pytest.mark.parametrize("trusted", [True, False])
def test_mutating_hint_prevents_read_category(hints: dict[str, bool], trusted: bool) -> None:
    listed = [tool("get_thing", annotations=hints), tool("simulate_research_query")]
    found = operation_catalog(offer("s", listed, trust_annotations=trusted))
    for one in found.all():
        assert one.category is Category.EXECUTE
        assert one.needs_review


def test_mutating_effect_in_config_prevents_read_category() -> None:
    found = operation_catalog(
        offer("s", ["get_thing", "get_other"], effects={"get_thing": "mutating"})
    )
    assert found.find("s_get_thing").category is Category.EXECUTE  # type: ignore[union-attr]
    assert found.find("s_get_other").category is Category.READ  # type: ignore[union-attr]


def test_title_annotation_does_not_affect_category() -> None:
    titled = single_operation(
        tool("get_thing", annotations={"title": "Get the thing", "idempotentHint": True})
    )
    assert titled.category is Category.READ


@pytest.mark.spec("AQ-8.3-1")
def test_decides_ambiguous_names_and_records_reason() -> None:
    either = single_operation(tool("create_or_update_file", {"path": NEEDED, "text": STRING}))
    assert either.category is Category.CREATE
    assert "may not exist" in either.origins["category_reason"]
    sent = single_operation(tool("send_email", {"to": NEEDED, "text": STRING}))
    assert sent.category is Category.EXECUTE
    assert "external" in sent.origins["category_reason"]
    assert classify("get_or_create_user", UNKNOWN_EFFECT).category is Category.CREATE


@pytest.mark.spec("AQ-CRU-6.3-1")
@pytest.mark.parametrize(
    ("name", "effect", "category"),
    [
        ("frobnicate", READS, Category.READ),
        ("frobnicate", ADDS, Category.CREATE),
        ("remove_x", UNKNOWN_EFFECT, Category.DELETE),
        ("restart_x", UNKNOWN_EFFECT, Category.EXECUTE),
        ("modify_x", UNKNOWN_EFFECT, Category.UPDATE),
        ("upsert_x", UNKNOWN_EFFECT, Category.CREATE),
        ("archive_x", UNKNOWN_EFFECT, Category.DELETE),
        ("hide_x", UNKNOWN_EFFECT, Category.DELETE),
        ("publish_x", UNKNOWN_EFFECT, Category.EXECUTE),
    ],
)
def test_follows_decision_tree(name: str, effect: Effect, category: Category) -> None:
    assert classify(name, effect).category is category


@pytest.mark.spec("AQ-8.5.1-2")
def test_http_methods_have_categories() -> None:
    assert categories.category_of_http_method("post") is Category.CREATE
    assert categories.category_of_http_method("GET") is Category.READ
    assert (
        categories.category_of_http_method("PUT")
        is categories.category_of_http_method("PATCH")
        is Category.UPDATE
    )
    assert categories.category_of_http_method("DELETE") is Category.DELETE
    assert categories.category_of_http_method("TRACE") is Category.EXECUTE


def test_ignores_server_name_prefix_of_tools() -> None:
    assert single_operation(tool("list_delete_item"), key="list").category is Category.DELETE
    assert single_operation(tool("notion_get_page"), key="notion").category is Category.READ


@pytest.mark.spec("AQ-4.5-2")
def test_update_needs_more_than_one_parameter() -> None:
    assert single_operation(tool("close_issue", {"id": NEEDED})).category is Category.EXECUTE
    assert (
        single_operation(tool("close_issue", {"id": NEEDED, "why": STRING})).category
        is Category.UPDATE
    )


@pytest.mark.spec("AQ-EPM-2.2-1")
def test_recognizes_action_names() -> None:
    good = "create read update delete execute discover query manage operate authorize read_only"
    assert all(categories.is_action(name) for name in good.split())
    assert not any(categories.is_action(name) for name in ("users", "billing", "github", "x"))


def test_category_does_not_change_effect() -> None:
    listed = operation_catalog(
        offer("s", ["delete_x"]), operations={"s.*": {"category": "READ", "danger": "safe"}}
    ).all()
    assert [one.tool.effect.level for one in listed] == [EffectLevel.IRREVERSIBLE]
