"""Tests of `introspect`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from interlock.aql.introspection import DETAILED_MATCHES, QUERIES, SHORTENED
from interlock.aql.language.errors import AqlError, is_safe_message
from interlock.aql.operations import AFTER, FIRST
from interlock.core.catalog.snapshot import View
from interlock.protocol.aql_terms import SPEC_VERSION
from tests.aql.introspection_schemas import GITHUB, LINE, SLACK, assert_valid
from tests.aql.operation_catalogs import (
    NEEDED,
    Introspection,
    builtin_operation,
    find_view,
    snapshot,
    tool,
)
from tests.support.offerings import offer


@pytest.fixture
def ask() -> Introspection:
    return Introspection(GITHUB, SLACK)


@pytest.mark.spec("AQ-7.3-1", "AQ-INT-3.2-1", "AQ-INT-8.1-1", "AQ-INT-4.1-1", "AQ-OPS-5.1-1")
def test_list_is_complete_and_minimal(ask: Introspection) -> None:
    data = ask()
    assert set(data) == {"_protocol", "operations"}
    for line in data["operations"]:
        assert_valid(LINE, line)
        assert len(line["description"]) <= 100
    assert [line["name"] for line in data["operations"]] == [
        one.name for one in ask.operation_catalog.all()
    ]
    assert data["operations"][0] == {
        "name": "introspect",
        "semantic_category": "READ",
        "endpoint": "read",
        "description": data["operations"][0]["description"],
    }


@pytest.mark.spec("AQ-INT-3.1-1")
@pytest.mark.parametrize("query", ["foo", "", "OPERATIONS", None, 7])
def test_rejects_unknown_query_and_lists_queries(ask: Introspection, query: Any) -> None:
    with pytest.raises(AqlError) as caught:
        ask(query)
    assert caught.value.code == "INVALID_QUERY_TYPE"
    assert all(one in caught.value.message for one in QUERIES)
    assert is_safe_message(caught.value.message)


@pytest.mark.spec("AQ-7.2-1")
def test_introspect_is_read_operation_with_query(ask: Introspection) -> None:
    found = ask(name="introspect")["operation"]
    assert found["semantic_category"] == "READ"
    by_name = {one["name"]: one for one in found["parameters"]}
    assert by_name["query"]["required"] is True
    assert by_name["name"]["required"] is False
    assert by_name["query"]["type"] == by_name["name"]["type"] == "string"
    assert found["returns"] == {"name": "IntrospectionData", "kind": "union"}


@pytest.mark.spec("AQ-INT-4.1.1-1", "AQ-INT-4.1.1-2", "AQ-INT-4.1.1-3")
@pytest.mark.parametrize(
    ("query", "mode"),
    [("aql", "semantic"), ("aql-single", "single"), ("aql-all", "all"), ("auto", "semantic")],
)
def test_list_describes_protocol(query: str, mode: str) -> None:
    limits = {"limits": {"batch": 50}}
    ask = Introspection(GITHUB, face=find_view(f"view={query}"), protocol_info=lambda _: limits)
    told = ask()["_protocol"]
    assert told["version"] == SPEC_VERSION == "1.0.0-draft"
    assert told["conformance"] == "level-2"
    assert told["mode"] == mode
    assert told["limits"] == {"batch": 50}
    assert {"batch", "field_selection", "pagination", "confirmation"} <= told["capabilities"].keys()
    assert ask("capabilities") == {"capabilities": told}
    assert ask(search="issue")["_protocol"]["version"] == SPEC_VERSION


@pytest.mark.spec("AQ-INT-8.3-2")
def test_search_with_parameters_suffices_for_call(ask: Introspection) -> None:
    data = ask(search="report a bug in a repository", include=["parameters"])
    best = data["operations"][0]
    assert best["name"] == "github_create_issue"
    assert best["mcpTool"] == "mcp_aql_create"
    assert [one["name"] for one in best["parameters"] if one["required"]] == [
        "owner", "repo", "title",
    ]  # fmt: skip
    assert sum("parameters" in one for one in data["operations"]) <= DETAILED_MATCHES
    for line in data["operations"][DETAILED_MATCHES:]:
        assert_valid(LINE, line)


@pytest.mark.spec("AQ-INT-8.3-2")
def test_limits_search_results_of_large_catalog() -> None:
    many = [tool(f"get_issue_{n}", {"id": NEEDED}) for n in range(500)]
    ask = Introspection(offer("big", many))
    found = ask(search="issue")["operations"]
    assert 0 < len(found) < 15
    assert len(ask(search="issue", first=50)["operations"]) == 50
    assert len(ask(search="issue", first=10_000)["operations"]) <= 100
    assert len(json.dumps(ask(search="issue", include=["parameters"]))) < 5_000


@pytest.mark.parametrize("wish", ["", " ", "日本語", "\x00", "((((", "a" * 10_000])
def test_accepts_any_search_text(ask: Introspection, wish: str) -> None:
    assert "operations" in ask(search=wish)


def test_filters_lists_and_searches(ask: Introspection) -> None:
    def names(**params: Any) -> list[str]:
        return [one["name"] for one in ask(**params)["operations"]]

    assert names(namespace="slack") == ["slack_send_message"]
    assert names(namespace="nobody") == []
    assert names(category="DELETE") == ["github_delete_file"]
    assert names(search="message", namespace="github") == [
        name for name in names(search="message", namespace="github") if name.startswith("github")
    ]
    assert all(
        one["semantic_category"] == "READ"
        for one in ask(search="issue", category="READ")["operations"]
    )


def test_hides_forbidden_operations() -> None:
    view = View("guest", lambda tool: tool.upstream == "slack")
    ask = Introspection(GITHUB, SLACK, view=view)
    assert {one["name"] for one in ask()["operations"]} == {"introspect", "slack_send_message"}
    assert ask(name="github_create_issue") == {"operation": None}
    assert "github" not in json.dumps(ask(search="create an issue on github"))
    assert "Github" not in json.dumps(ask("types"))
    assert ask("types", name="GithubUpdateIssueInput") == {"type": None}
    assert "github" not in json.dumps(ask("adapter_info"))


def test_namespace_view_shows_local_names() -> None:
    ask = Introspection(GITHUB, SLACK, face=find_view("view=aql&namespace=github"))
    names = {one["name"] for one in ask()["operations"]}
    assert "create_issue" in names
    assert "introspect" in names
    assert not any("slack" in name for name in names)
    found = ask(name="create_issue")["operation"]
    assert found["name"] == "create_issue"
    assert found["examples"][0]["request"]["operation"] == "create_issue"
    assert ask(name="slack_send_message") == {"operation": None}
    assert "slack" not in json.dumps(ask(search="send a message"))


@pytest.mark.spec("AQ-OPS-4.4.2-1", "AQ-INT-7.3-1")
def test_pages_return_every_operation_once(ask: Introspection) -> None:
    whole = [one["name"] for one in ask()["operations"]]
    walked: list[str] = []
    page = ask(first=3)
    while True:
        walked += [one["name"] for one in page["operations"]]
        if not page["pageInfo"]["hasNextPage"]:
            break
        page = ask(first=3, after=page["pageInfo"]["endCursor"])
        assert page["pageInfo"]["hasPreviousPage"]
    assert walked == whole == [one["name"] for one in ask()["operations"]]
    by_name = {one["name"]: one for one in ask(name="introspect")["operation"]["parameters"]}
    other = Introspection(natives=(builtin_operation("list_things", parameters=(FIRST, AFTER)),))
    listing = other(name="list_things")["operation"]["parameters"]
    assert listing[:2] == [by_name["first"], by_name["after"]]


@pytest.mark.parametrize("change", ["flip", "kind", "filter", "text"])
def test_rejects_changed_or_foreign_cursor(ask: Introspection, change: str) -> None:
    cursor = ask(first=2)["pageInfo"]["endCursor"]
    params: dict[str, Any] = {"first": 2, "after": cursor}
    query = "operations"
    if change == "flip":
        params["after"] = ("A" if cursor[0] != "A" else "B") + cursor[1:]
    elif change == "kind":
        query = "types"
    elif change == "filter":
        params["category"] = "READ"
    else:
        params["after"] = "not a cursor"
    with pytest.raises(AqlError) as caught:
        ask(query, **params)
    assert caught.value.code == "VALIDATION_INVALID_TYPE"
    assert is_safe_message(caught.value.message)


def test_pages_long_list_by_default() -> None:
    many = [tool(f"get_thing_{n}") for n in range(300)]
    ask = Introspection(offer("big", many), response_bytes=lambda: 20_000)
    data = ask()
    assert 0 < len(data["operations"]) < 300
    assert data["pageInfo"]["hasNextPage"] is True
    ((code, message, details),) = ask.warnings
    assert code == SHORTENED
    assert details["total"] == 301
    assert is_safe_message(message)
    after = ask(first=100, after=data["pageInfo"]["endCursor"])
    assert after["operations"][0]["name"] not in {one["name"] for one in data["operations"]}


def test_returns_installed_reports() -> None:
    ask = Introspection(
        GITHUB,
        reports={
            "quota_status": lambda _: {"quotas": []},
            "adapter_info": lambda _: {"version": "1"},
        },
    )
    assert ask("quota_status") == {"quota_status": {"quotas": []}}
    assert ask("safety_policy") == {"safety_policy": None}
    told = ask("adapter_info")["adapter_info"]
    assert told["version"] == "1"
    assert told["namespaces"] == [
        {"namespace": "github", "operations": 6, "trust_level": "validated"}
    ]
    assert told["by_category"]["CREATE"] == 2
    assert told["operations"] == 7
    assert 0 < told["tokens"]["view"] < 1_500


@pytest.mark.spec("AQ-INT-6.1-1", "AQ-INT-7.3-1")
def test_introspection_and_validation_share_signature(ask: Introspection) -> None:
    assert "github_create_issue" in {one["name"] for one in ask()["operations"]}
    changed = offer("github", [tool("create_issue", {"headline": NEEDED})])
    ask.snapshot = snapshot(changed, natives=ask.builtin_operations)
    found = ask(name="github_create_issue")["operation"]
    (required,) = [one for one in found["parameters"] if one["required"]]
    assert required["name"] == "headline"
    signature = ask.operation_catalog.find("github_create_issue").signature  # type: ignore[union-attr]
    assert signature.required == {"headline"}
    assert found["examples"][0]["request"]["params"].keys() == signature.required


@pytest.mark.parametrize("first", [None, 100])
def test_pages_full_descriptions(first: int | None) -> None:
    many = [tool(f"get_thing_{number:02}", {"id": NEEDED}) for number in range(50)]
    ask = Introspection(offer("s", many))
    names: list[str] = []
    more: dict[str, Any] = {} if first is None else {"first": first}
    while True:
        data = ask(include=["parameters"], **more)
        assert len(data["operations"]) <= 20
        names += [one["name"] for one in data["operations"]]
        if not data["pageInfo"]["hasNextPage"]:
            break
        more["after"] = data["pageInfo"]["endCursor"]
    assert names == [one.name for one in ask.operation_catalog.all()]
