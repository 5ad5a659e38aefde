"""Tests of the token cost and the documentation of the search."""

from __future__ import annotations

import json

import pytest

from tests.aql.test_introspected_calls import IntrospectedNode
from tests.support.offerings import offer

CHARACTERS_PER_TOKEN = 4
FIVE_PARAMETERS = json.dumps(
    {
        "name": "create_event",
        "description": "Create an event in a calendar.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "title": {"type": "string", "description": "What it is called."},
                "start": {"type": "string", "description": "When it begins."},
                "end": {"type": "string", "description": "When it ends."},
                "guests": {"type": "array", "items": {"type": "string"}},
                "remind": {"type": "boolean"},
            },
            "required": ["title", "start"],
        },
    }
).encode()


@pytest.mark.spec("AQ-INT-7.1-1")
def test_search_and_details_cost_few_tokens() -> None:
    node = IntrospectedNode(offer("calendar", [FIVE_PARAMETERS, "list_events"]))
    found = node.ask("introspect", {"query": "operations", "search": "put lunch in my diary"})
    names = [one["name"] for one in found["data"]["operations"]]
    assert "calendar_create_event" in names
    line = next(one for one in found["data"]["operations"] if one["name"] == names[0])
    assert len(json.dumps(line)) / CHARACTERS_PER_TOKEN <= 100
    details = node.details("calendar_create_event")
    assert len(details["parameters"]) >= 5
    spoken = json.dumps(details, separators=(",", ":"))
    assert len(spoken) / CHARACTERS_PER_TOKEN <= 300


@pytest.mark.spec("AQ-INT-8.3-1")
def test_introspect_documents_search_filters() -> None:
    node = IntrospectedNode(offer("calendar", ["list_events"]))
    documented = {one["name"] for one in node.details("introspect")["parameters"]}
    assert documented >= {"search", "namespace", "category", "first", "after", "include"}
    for params in ({"search": "events"}, {"namespace": "calendar"}, {"category": "READ"}):
        answer = node.ask("introspect", {"query": "operations", **params})
        assert answer["success"] is True
