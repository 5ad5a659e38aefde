"""Tests of the types in introspection."""

from __future__ import annotations

import pytest

from tests.aql.introspection_schemas import GITHUB, PARAMETER, SLACK, TYPE, assert_valid
from tests.aql.operation_catalogs import Introspection, builtin_operation


@pytest.fixture
def ask() -> Introspection:
    return Introspection(GITHUB, SLACK)


@pytest.mark.spec("AQ-INT-5.3-1", "AQ-9.1-1", "AQ-2.1-1", "AQ-7.3-1")
def test_lists_language_types(ask: Introspection) -> None:
    listed = {one["name"]: one for one in ask("types")["types"]}
    for one in listed.values():
        assert_valid(TYPE, one)
    assert {
        "SemanticCategory", "OperationInput", "OperationResult", "OperationSuccess",
        "OperationFailure", "EndpointPermissions",
    } <= listed.keys()  # fmt: skip
    assert listed["SemanticCategory"]["kind"] == "enum"
    assert listed["OperationResult"]["kind"] == "union"
    assert ask("types", name="SemanticCategory")["type"]["values"] == [
        "CREATE", "READ", "UPDATE", "DELETE", "EXECUTE",
    ]  # fmt: skip
    assert ask("types", name="OperationResult")["type"]["members"] == [
        "OperationSuccess", "OperationFailure",
    ]  # fmt: skip


@pytest.mark.spec("AQ-INT-3.5-1")
def test_each_kind_has_its_members(ask: Introspection) -> None:
    kinds = {}
    for line in ask("types")["types"]:
        found = ask("types", name=line["name"])["type"]
        kinds[line["kind"]] = found
        extra = {"enum": "values", "object": "fields", "union": "members"}.get(line["kind"])
        assert set(found) <= {"name", "kind", "description", extra}
        if extra is not None:
            assert isinstance(found[extra], list)
        for field in found.get("fields", ()):
            assert_valid(PARAMETER, field)
    assert kinds.keys() == {"enum", "object", "scalar", "union"}


@pytest.mark.spec("AQ-9.2-1", "AQ-INT-8.1-1")
def test_every_named_type_can_be_read() -> None:
    ask = Introspection(GITHUB, SLACK, natives=(builtin_operation("get_note", returns="Note"),))
    named = set()
    for one in ask.operation_catalog.all():
        found = ask(name=one.name)["operation"]
        named |= {found["returns"]["name"], *(each["type"] for each in found["parameters"])}
    for line in ask("types")["types"]:
        found = ask("types", name=line["name"])["type"]
        named |= {each["type"] for each in found.get("fields", ())} | set(found.get("members", ()))
    listed = {line["name"] for line in ask("types")["types"]}
    assert {"Note", "GithubUpdateIssueInput", "GithubSearchCodeResult"} <= listed
    assert "Note" in named
    assert [name for name in sorted(named) if ask("types", name=name)["type"] is None] == []


@pytest.mark.spec("AQ-9.2-1")
def test_nested_parameters_have_shape_and_type(ask: Introspection) -> None:
    found = ask(name="github_create_milestone")["operation"]["parameters"]
    assert 'Shape: {day: string, zone?: "utc"|"local"}' in found[0]["description"]
    assert "Shape: string | integer" in found[1]["description"]
    kind = ask("types", name="GithubCreateMilestoneDue")["type"]
    assert [(one["name"], one["required"]) for one in kind["fields"]] == [
        ("day", True), ("zone", False),
    ]  # fmt: skip
    union = ask("types", name="GithubCreateMilestoneWho")["type"]
    assert (union["kind"], union["members"]) == ("union", ["string", "integer"])


def test_output_schema_defines_return_type(ask: Introspection) -> None:
    told = ask(name="github_search_code")["operation"]["returns"]
    assert told == {"name": "GithubSearchCodeResult", "kind": "object"}
    kind = ask("types", name="GithubSearchCodeResult")["type"]
    assert [one["name"] for one in kind["fields"]] == ["totalCount"]
    assert ask(name="github_list_issues")["operation"]["returns"]["name"] == "ToolResult"
