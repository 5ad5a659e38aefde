"""Tests that results of the node match the schemas of the draft."""

from __future__ import annotations

import json
from typing import Any

import pytest

from interlock.aql.language import envelope
from interlock.aql.language.request import read_request
from tests.aql.language.schemas import (
    DANGER_LEVEL,
    INTROSPECTION,
    LEVEL_BY_CATEGORY,
    OPERATION_INPUT,
    OPERATION_RESULT,
    matches_schema,
)
from tests.aql.language.test_limits import DEFAULTS
from tests.aql.operation_catalogs import NEEDED, STRING, Introspection, tool
from tests.support.offerings import offer

INTROSPECT = Introspection(
    offer(
        "s",
        [
            tool("list_items", {"state": {"type": "string", "enum": ["a"]}},
                 annotations={"readOnlyHint": True}),
            tool("create_item", {"title": NEEDED, "size": {"type": "integer", "minimum": 1}}),
            tool("update_item", {"item_id": NEEDED, "title": STRING}),
            tool("delete_item", {"item_id": NEEDED}),
            tool("run_item", {"secret_token": STRING}),
            "drop_database",
        ],
    )
)  # fmt: skip


def list_operations() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = INTROSPECT("operations")["operations"]
    return found


@pytest.mark.spec("AQ-D-1")
def test_introspection_matches_schema() -> None:
    listed, types = INTROSPECT("operations"), INTROSPECT("types")
    answers = [
        listed,
        types,
        INTROSPECT("operations", name="nobody"),
        INTROSPECT("types", name="Nobody"),
    ]
    answers += [INTROSPECT("operations", name=one["name"]) for one in listed["operations"]]
    answers += [INTROSPECT("types", name=one["name"]) for one in types["types"]]
    assert len(answers) > 12
    for answer in answers:
        assert matches_schema(INTROSPECTION, answer), answer
        written = envelope.write_success(json.dumps(answer).encode())
        assert matches_schema(OPERATION_RESULT, json.loads(written))
    assert not matches_schema(INTROSPECTION, {"operations": [{"name": "a", "extra": 1}]})


@pytest.mark.spec("AQ-D-1", "AQ-SCH-1-1")
def test_every_example_matches_request_schema() -> None:
    for one in list_operations():
        details = INTROSPECT("operations", name=one["name"])["operation"]
        for example in details.get("examples", ()):
            assert matches_schema(OPERATION_INPUT, example["request"])
            read_request(json.dumps(example["request"]).encode(), DEFAULTS)
    assert not matches_schema(OPERATION_INPUT, {"operation": "s.create"})
    assert not matches_schema(OPERATION_INPUT, {"params": {}})


@pytest.mark.spec("AQ-SCH-2-1", "AQ-D-1")
def test_danger_matches_schema() -> None:
    for one in list_operations():
        details = INTROSPECT("operations", name=one["name"], include=["danger"])["operation"]
        assert matches_schema(DANGER_LEVEL, details["danger"])
        assert matches_schema(DANGER_LEVEL, details["danger"]["level"])
        category = one["semantic_category"]
        if category in LEVEL_BY_CATEGORY and "drop" not in one["name"]:
            assert details["danger"]["level"] == LEVEL_BY_CATEGORY[category]
    assert not matches_schema(DANGER_LEVEL, "harmless")
    assert not matches_schema(DANGER_LEVEL, {"reason": "because"})
