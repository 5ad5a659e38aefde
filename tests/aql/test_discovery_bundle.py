"""Tests of the export and import of discovery bundles."""

from __future__ import annotations

import json
from typing import Any

import pytest

from interlock.aql import bundle
from interlock.aql.config import AqlConfig
from interlock.aql.operations import OperationCatalogBuilder
from tests.support.offerings import merged, offer

ORIGINS = {
    "direct_source_metadata",
    "deterministic_normalization",
    "heuristic_classification",
    "manual_override",
}


def definitions() -> list[dict[str, Any]]:
    """Return thirty tools of one server, with and without annotations."""
    found: list[dict[str, Any]] = [
        {
            "name": f"{verb}{thing}",
            "description": f"{verb} a {thing}.",
            "inputSchema": {
                "type": "object",
                "properties": {
                    "thingId": {"type": "string", "description": "Which"},
                    "a/b~c": {"type": "integer"},
                },
                "required": ["thingId"],
            },
        }
        for verb in ("create", "get", "update", "delete", "frobnicate")
        for thing in ("Issue", "Page", "User", "File", "Order")
    ]
    found += [
        {
            "name": f"show_{number}",
            "title": "Shows",
            "inputSchema": {"type": "object"},
            "outputSchema": {"type": "object"},
            "annotations": {"readOnlyHint": True},
            "_meta": {"vendor/x": number},
        }
        for number in range(5)
    ]
    return found


@pytest.fixture(scope="module")
def exported() -> dict[str, Any]:
    offering = offer("acme", [json.dumps(one).encode() for one in definitions()])
    config = AqlConfig()
    made = bundle.export(offering, OperationCatalogBuilder(config).build(merged(offering)))
    again: dict[str, Any] = json.loads(json.dumps(made))
    return again


@pytest.mark.spec("AQ-DB-1-1")
def test_export_contains_tools_and_operations(exported: dict[str, Any]) -> None:
    assert exported["source"]["server"] == "acme"
    captured = {one["name"]: one for one in exported["raw_capture"]["tools"]}
    assert captured == {one["name"]: one for one in definitions()}
    operations = exported["normalized_bundle"]["operations"]
    assert len(operations) == 30
    one = next(each for each in operations if each["source_tool_name"] == "updateIssue")
    assert one["operation_name"] == "acme_update_issue"
    assert one["endpoint"] == "UPDATE"
    assert one["maps_to"] == {"method": "tools/call", "name": "updateIssue"}
    assert one["returns"] == "object"
    params = {each["original_name"]: each for each in one["params"]}
    assert params["thingId"]["name"] == "thing_id"
    assert params["a/b~c"]["source_path"] == "/inputSchema/properties/a~1b~0c"
    for key in ("endpoint_confidence", "danger_level", "needs_review", "review_reasons",
                "provenance"):  # fmt: skip
        assert key in one


@pytest.mark.spec("AQ-DB-1-1")
def test_read_bundle_restores_operations(exported: dict[str, Any]) -> None:
    again = bundle.read_bundle(exported)
    made = {one.name: (one.category.value, one.danger.label) for one in again.all()}
    assert made == {
        one["operation_name"]: (one["endpoint"], one["danger_level"])
        for one in exported["normalized_bundle"]["operations"]
    }


@pytest.mark.spec("AQ-DB-2-1")
def test_inferences_name_source_and_uncertain_operations_need_review(
    exported: dict[str, Any],
) -> None:
    flagged = set()
    for one in exported["normalized_bundle"]["operations"]:
        sources = one["provenance"]["inference_sources"]
        assert sources.keys() >= {"operation_name", "endpoint", "danger_level", "params"}
        assert set(sources.values()) <= ORIGINS
        assert {each["inference_source"] for each in one["params"]} <= ORIGINS
        if one["needs_review"]:
            flagged.add(one["operation_name"])
            assert one["review_reasons"]
    assert flagged >= {f"acme_frobnicate_{thing}" for thing in ("issue", "page", "user")}
    warned = {one["operation"] for one in exported["warnings"] if one["code"] == "NEEDS_REVIEW"}
    assert warned == flagged


def test_operator_settings_are_manual_overrides() -> None:
    from interlock.aql.config import OperationConfig

    offering = offer("acme", ["frobnicate"])
    config = AqlConfig(operations={"acme.*": OperationConfig(category="READ", name="look")})
    made = bundle.export(offering, OperationCatalogBuilder(config).build(merged(offering)))
    one = made["normalized_bundle"]["operations"][0]
    assert (one["operation_name"], one["endpoint"]) == ("look", "READ")
    sources = one["provenance"]["inference_sources"]
    assert sources["operation_name"] == sources["endpoint"] == "manual_override"


def test_export_restores_original_descriptions() -> None:
    raw = json.dumps(
        {"name": "x", "description": "Its own.", "inputSchema": {"type": "object"}}
    ).encode()
    offering = offer("acme", [raw], descriptions={"x": "The operator's."})
    made = bundle.export(offering, OperationCatalogBuilder(AqlConfig()).build(merged(offering)))
    assert made["raw_capture"]["tools"] == [json.loads(raw)]


@pytest.mark.parametrize("wrong", [{}, {"source": 1}, {"source": {}, "raw_capture": {"tools": 3}}])
def test_rejects_invalid_bundle(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="discovery bundle"):
        bundle.read_bundle(wrong)
