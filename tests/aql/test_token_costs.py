"""Tests of the token estimate of tools, operations and views."""

from __future__ import annotations

import json

from msgspec import Raw

from interlock.aql import view
from interlock.aql.commands.operations import build_listing
from interlock.core.catalog.token_costs import (
    count_definition_tokens,
    count_tool_tokens,
    estimate_tokens,
)
from interlock.core.config import parse_config
from interlock.terminal.tool_table import read_listing
from tests.aql.operation_catalogs import NEEDED, operation_catalog, tool
from tests.aql.test_views import make_views
from tests.support.offerings import offer

MUCH = {
    "title": "T" * 4_000,
    "annotations": {"readOnlyHint": True, "title": "t" * 4_000},
    "outputSchema": {"type": "object", "description": "d" * 4_000},
}
CONFIG = parse_config("servers: {s: 'http://127.0.0.1:9/mcp'}", "interlock.yaml")


def test_counts_only_visible_definition_parts() -> None:
    bare = tool("get_x", {"id": NEEDED}, description="Get x.")
    whole = tool("get_x", {"id": NEEDED}, description="Get x.", **MUCH)
    assert count_definition_tokens(bare) == count_definition_tokens(whole) < 40
    found = [operation_catalog(offer("s", [one])).all()[0].tool for one in (bare, whole)]
    assert count_tool_tokens(found[0]) == count_tool_tokens(found[1]) < 40


def test_all_reports_show_same_token_cost() -> None:
    listed = [
        tool(f"s.get_{at}", {"id": NEEDED}, description="Get it." * at, **MUCH) for at in range(5)
    ]
    by_tools = sum(one.tokens for one in read_listing([Raw(one) for one in listed], CONFIG))
    shelf = build_listing([Raw(one) for one in listed], CONFIG, [])
    by_operations = sum(count_definition_tokens(raw) for raw in shelf.plain)
    face = make_views().find_view("aql")
    by_adapter_info = view.token_costs(face, shelf.operation_catalog, None)["plain"]
    by_auto = sum(count_tool_tokens(one) for one in shelf.operation_catalog.snapshot.tools)
    assert by_tools == by_operations == by_adapter_info == by_auto


def test_view_cost_equals_cost_of_endpoints() -> None:
    face = make_views().find_view("aql")
    found = operation_catalog(offer("s", ["get_x"]))
    shown = [
        {key: one[key] for key in ("name", "description", "inputSchema")}
        for one in view.endpoints(face, found, None)
    ]
    counted = sum(
        estimate_tokens(json.dumps(one, separators=(",", ":"), ensure_ascii=False).encode())
        for one in shown
    )
    assert view.token_costs(face, found, None)["view"] == counted
