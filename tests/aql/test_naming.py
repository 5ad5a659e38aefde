"""Tests of the names of operations and parameters."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.aql import operations as naming
from interlock.protocol.aql_terms import RESERVED_OPERATIONS, Category
from tests.aql.operation_catalogs import FIVE, builtin_operation, find_view, operation_catalog, tool
from tests.support.offerings import definition, offer

LAWFUL = re.compile(r"[a-z][a-z0-9_]*\Z")


def names(*offerings: object, **settings: object) -> dict[str, str]:
    return {one.canonical: one.name for one in operation_catalog(*offerings, **settings).all()}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("create_issue", "create_issue"),
        ("createIssue", "create_issue"),
        ("per-page", "per_page"),
        ("HTTPServer", "http_server"),
        ("getHTTPResponse2", "get_http_response2"),
        ("API-post-page", "api_post_page"),
        ("__a__b__", "a_b"),
        ("日本", ""),
        ("", ""),
    ],
)
def test_converts_to_snake_case(text: str, expected: str) -> None:
    assert naming.to_snake_case(text) == expected


@pytest.mark.spec("AQ-8.5-1")
def test_names_operation_after_server_and_tool() -> None:
    assert names(offer("github", ["create_issue", "createRelease", "get-me"])) == {
        "github.create_issue": "github_create_issue",
        "github.createrelease": "github_create_release",
        "github.get-me": "github_get_me",
    }


@pytest.mark.spec("AQ-8.5.2-1")
def test_keeps_root_segment_and_prefixes_leading_digit() -> None:
    assert names(offer("7zip", ["pack"], root="edge")) == {"edge.7zip.pack": "edge_7zip_pack"}
    assert names(offer("7zip", ["2pack"])) == {"7zip.2pack": "n_7zip_n_2pack"}


@pytest.mark.spec("AQ-8.5-1")
def test_hash_distinguishes_colliding_names() -> None:
    found = names(offer("a", ["b-c", "b_c"]))
    assert found["a.b_c"] == "a_b_c"
    assert re.fullmatch(r"a_b_c_[0-9a-f]{6}", found["a.b-c"])
    assert names(offer("a", ["b_c", "b-c"])) == found


def test_ambiguous_name_belongs_to_no_server() -> None:
    found = names(offer("a", ["b_c"]), offer("a_b", ["c"]))
    assert len(set(found.values())) == 2
    assert "a_b_c" not in found.values()


@pytest.mark.spec("AQ-8.5.4-1")
def test_builtin_operations_keep_reserved_names() -> None:
    own = builtin_operation("list_notes")
    found = operation_catalog(
        offer("execute", ["agent"]),
        offer("list", ["notes"]),
        offer("github", ["introspect"]),
        natives=(builtin_operation("introspect"), own),
    )
    assert found.find("introspect").builtin is not None  # type: ignore[union-attr]
    assert found.find("execute_agent") is None
    assert found.find("execute_agent_tool").canonical == "execute.agent"  # type: ignore[union-attr]
    assert found.find("list_notes").builtin is own  # type: ignore[union-attr]
    assert found.find("list_notes_tool").canonical == "list.notes"  # type: ignore[union-attr]
    assert found.find("github_introspect").canonical == "github.introspect"  # type: ignore[union-attr]


def test_appends_suffix_until_name_is_free() -> None:
    own = (builtin_operation("get_thing"), builtin_operation("get_thing_tool"))
    found = operation_catalog(offer("get", ["thing"]), natives=own)
    assert [one.name for one in found.all()][2:] == ["get_thing_tool_tool"]


@pytest.mark.spec("AQ-8.5.4-1")
def test_renames_tool_with_reserved_name() -> None:
    for name in RESERVED_OPERATIONS:
        found = operation_catalog(offer("x", [name]), operations={f"x.{name}": {"name": name}})
        assert [one.name for one in found.all()] == [f"{name}_tool"]


@pytest.mark.spec("AQ-8.5.4-1")
def test_reserved_operations_have_category_of_draft() -> None:
    assert {name: category.value for name, category in RESERVED_OPERATIONS.items()} == {
        "introspect": "READ",
        "execute_agent": "EXECUTE",
        "record_execution_step": "CREATE",
        "complete_execution": "EXECUTE",
        "abort_execution": "EXECUTE",
        "confirm_operation": "EXECUTE",
        "verify_challenge": "CREATE",
    }
    for name, category in RESERVED_OPERATIONS.items():
        found = operation_catalog(natives=(builtin_operation(name, Category.DELETE),)).find(name)
        assert found is not None
        assert found.category is category


def test_config_renames_operations() -> None:
    settings = {"operations": {"github.create_*": {"name": "new_issue"}}}
    assert names(offer("github", ["create_issue"]), **settings) == {
        "github.create_issue": "new_issue"
    }
    both = names(offer("github", ["create_issue", "create_pr"]), **settings)
    assert all(re.fullmatch(r"new_issue_[0-9a-f]{6}", name) for name in both.values())
    assert len(set(both.values())) == 2


@pytest.mark.spec("AQ-8.5.4-1")
def test_namespace_view_uses_local_names() -> None:
    found = operation_catalog(
        offer("github", ["create_issue", "introspect", "execute_agent"]),
        offer("jira", ["create_issue"]),
        natives=(builtin_operation("introspect"),),
    )
    inside = find_view("view=aql&namespace=github")
    one = found.find_in("create_issue", inside)
    assert one is not None
    assert one.canonical == "github.create_issue"
    assert found.find_in("github_create_issue", inside) is one
    assert found.name_in(one, inside) == "create_issue"
    assert found.find_in("jira_create_issue", inside) is None
    assert found.find_in("introspect", inside).builtin is not None  # type: ignore[union-attr]
    other = found.find("github_introspect")
    assert other is not None
    assert found.name_in(other, inside) == "github_introspect"
    assert found.find_in("execute_agent", inside) is None
    assert FIVE is not None
    assert found.find_in("create_issue", FIVE) is None
    assert found.name_in(one, FIVE) == "github_create_issue"


tool_names = st.text(
    alphabet=st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=80
)


@pytest.mark.spec("AQ-8.5.2-1")
@given(st.lists(tool_names, min_size=1, max_size=12, unique=True), st.randoms())
def test_names_are_valid_unique_and_independent_of_order(
    listed: list[str], chance: random.Random
) -> None:
    tools = [definition(name) for name in listed]
    first = names(offer("a", tools), offer("a-b", tools))
    shuffled = tools[:]
    chance.shuffle(shuffled)
    assert names(offer("a-b", shuffled), offer("a", shuffled)) == first
    assert len(set(first.values())) == len(first)
    assert all(LAWFUL.match(name) for name in first.values())


# -- parameters


@pytest.mark.spec("AQ-4.3-3")
def test_numbers_colliding_parameter_names() -> None:
    assert naming.derive_parameter_names(["userId", "user_id", "per-page"]) == {
        "userId": "user_id_2",
        "user_id": "user_id",
        "per-page": "per_page",
    }


@pytest.mark.spec("AQ-4.2-2")
def test_renames_reserved_and_invalid_parameter_names() -> None:
    found = naming.derive_parameter_names(
        ["_meta", "2fa", "", "日本", "__proto__", "operation", "größe"]
    )
    assert found["_meta"] == "x_meta"
    assert found["2fa"] == "p_2fa"
    assert found["__proto__"] == "x_proto"
    assert found["operation"] == "operation"
    assert found["größe"] == "gr_e"
    assert re.fullmatch(r"p_[0-9a-f]{6}", found[""])
    assert re.fullmatch(r"p_[0-9a-f]{6}", found["日本"])
    assert len(set(found.values())) == len(found)


@pytest.mark.spec("AQ-4.3-1")
@given(st.lists(st.text(max_size=40), max_size=30, unique=True))
def test_parameter_names_are_valid_and_unique(keys: list[str]) -> None:
    found = naming.derive_parameter_names(keys)
    assert list(found) == keys
    assert all(LAWFUL.match(name) for name in found.values())
    assert len(set(found.values())) == len(keys)
    assert all(found[key] == key for key in keys if LAWFUL.match(key))


def test_limits_name_length() -> None:
    name = "get" + "Very" * 200 + "Long"
    (one,) = operation_catalog(offer("s", [tool(name)])).all()
    assert LAWFUL.match(one.name)
    assert len(one.name) < 400
