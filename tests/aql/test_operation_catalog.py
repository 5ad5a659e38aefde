"""Tests of the operation catalog: list, find, keep and suggest operations."""

from __future__ import annotations

from typing import Any

import pytest

from interlock.aql.config import AqlConfig
from interlock.aql.operations import OperationCatalogBuilder
from interlock.core.catalog.catalog import Catalog
from interlock.protocol.aql_terms import BUILTIN_KEY, Category
from tests.aql.operation_catalogs import (
    NEEDED,
    builtin_offering,
    builtin_operation,
    config,
    operation_catalog,
    tool,
)
from tests.support.line_count import count_lines_run
from tests.support.offerings import merged, offer


def test_lists_builtin_operations_first() -> None:
    found = operation_catalog(
        offer("s", ["get_x"]),
        natives=(builtin_operation("zap_it"), builtin_operation("introspect")),
    )
    assert [one.name for one in found.all()] == ["introspect", "zap_it", "s_get_x"]
    assert found.for_tool(found.all()[2].tool) is found.find("s_get_x")
    assert found.find("nothing") is None
    assert found.find("") is None


def test_excludes_language_steps() -> None:
    found = operation_catalog(natives=(builtin_operation("batch"), builtin_operation("introspect")))
    assert [one.name for one in found.all()] == ["introspect"]
    assert found.find("batch") is None
    assert found.find_builtin("batch").name == "batch"  # type: ignore[union-attr]
    assert found.find_builtin("introspect") is found.find("introspect")
    assert found.find_builtin("nothing") is None
    # Also where the book was told nothing of them: they can be judged, and not be named.
    known = OperationCatalogBuilder(AqlConfig(), (builtin_operation("introspect"),))
    found = known.build(
        merged(
            builtin_offering(
                builtin_operation("batch", Category.EXECUTE), builtin_operation("introspect")
            )
        )
    )
    assert len(found.all()) == 1
    step = next(one for one in found.snapshot.by_name.values() if one.upstream_name == "batch")
    assert found.for_tool(step).name == ""
    assert found.find("") is None


def test_finds_hidden_operation_without_listing() -> None:
    catalog = Catalog(server_info=b"{}")
    own = builtin_operation("introspect")
    catalog.publish(builtin_offering(own))
    catalog.hide_tools(BUILTIN_KEY, frozenset({"aql.introspect"}))
    catalog.publish(offer("s", ["get_x", "get_y"]))
    catalog.hide_tools("s", frozenset({"s.get_y"}))
    found = OperationCatalogBuilder(AqlConfig(), (own,)).build(catalog.current)
    assert [one.name for one in found.all()] == ["introspect", "s_get_x"]
    held = found.find("s_get_y")
    assert held is not None
    assert found.for_tool(held.tool) is held


def test_keeps_operation_while_tool_is_unchanged() -> None:
    operations = OperationCatalogBuilder(AqlConfig())
    one, other = offer("a", ["get_x"]), offer("b", ["get_x"])
    first = operations.build(merged(one, other))
    signature = first.find("a_get_x").signature  # type: ignore[union-attr]
    second = operations.build(merged(one, offer("b", ["get_x", "get_y"])))
    assert second is not first
    assert second.number != first.number
    assert second.find("a_get_x") is first.find("a_get_x")
    assert second.find("a_get_x").signature is signature  # type: ignore[union-attr]
    assert second.find("b_get_x") is not first.find("b_get_x")


def test_builds_snapshot_once_per_config() -> None:
    operations = OperationCatalogBuilder(AqlConfig())
    snapshot = merged(offer("a", ["get_x"]))
    first = operations.build(snapshot)
    assert operations.build(snapshot) is first
    operations.configure(config(operations={"a.*": {"name": "mine"}}))
    second = operations.build(snapshot)
    assert second.find("mine") is not None
    assert second.number != first.number


def test_name_collision_renames_existing_operation() -> None:
    operations = OperationCatalogBuilder(AqlConfig())
    here = offer("a", ["b_c"])
    assert operations.build(merged(here)).find("a_b_c") is not None
    found = operations.build(merged(here, offer("a_b", ["c"])))
    assert found.find("a_b_c") is None
    assert len({one.name for one in found.all()}) == 2


def test_suggests_similar_names() -> None:
    found = operation_catalog(
        offer("github", ["create_issue", "create_pull_request", "list_issues", "delete_file"]),
        offer("jira", ["create_issue"]),
        natives=(builtin_operation("introspect"),),
    )
    assert found.find_similar("github_create_isue")[0] == "github_create_issue"
    assert set(found.find_similar("create_issue")[:2]) == {
        "github_create_issue",
        "jira_create_issue",
    }
    assert found.find_similar("github.create_issue")[0] == "github_create_issue"
    assert found.find_similar("github__list_issues")[0] == "github_list_issues"
    assert found.find_similar("GitHub.CreatePullRequest")[0] == "github_create_pull_request"
    assert found.find_similar("introspct")[0] == "introspect"
    assert found.find_similar("") == []
    assert found.find_similar("日本語") == []
    assert found.find_similar("x" * 100_000) == []
    assert len(found.find_similar("create", limit=2)) <= 2


def test_suggests_only_visible_names() -> None:
    found = operation_catalog(offer("a", ["get_secret"]), offer("b", ["get_secret"]))
    seen = found.find_similar("get_secret", sees=lambda tool: tool.upstream == "b")
    assert seen == ["b_get_secret"]
    assert found.find_similar("a.get_secret", sees=lambda tool: tool.upstream == "b") == [
        "b_get_secret"
    ]


def test_build_work_grows_linearly() -> None:
    def work(servers: int) -> int:
        offerings = [
            offer(f"s{n}", [tool(f"{verb}_thing_{m}", {"id": NEEDED, "a": {}}) for m in range(10)
                            for verb in ("get", "update", "create", "delete", "run")])
            for n in range(servers)
        ]  # fmt: skip
        snapshot = merged(*offerings)
        found: list[Any] = []
        lines = count_lines_run(
            lambda: found.extend(OperationCatalogBuilder(AqlConfig()).build(snapshot).all())
        )
        assert len(found) == 50 * servers
        return lines

    assert work(12) < 2.5 * work(6)


@pytest.mark.spec("AQ-6.1-1")
def test_category_flags() -> None:
    assert {one.value: (one.is_read_only, one.is_destructive) for one in Category} == {
        "CREATE": (False, False),
        "READ": (True, False),
        "UPDATE": (False, True),
        "DELETE": (False, True),
        "EXECUTE": (False, True),
    }
