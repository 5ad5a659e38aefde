"""A small evidence bundle that passes at Level 2, made anew for every test that spoils it."""

from __future__ import annotations

from typing import Any


def failure(code: str, message: str) -> dict[str, Any]:
    return {"success": False, "error": {"code": code, "message": message}}


def lamp_details() -> dict[str, Any]:
    return {
        "name": "set_lamp",
        "semantic_category": "UPDATE",
        "endpoint": "update",
        "mcpTool": "mcp_aql_update",
        "description": "Sets a lamp.",
        "permissions": {"readOnly": False, "destructive": True},
        "parameters": [
            {"name": "lamp_id", "type": "string", "required": True},
            {"name": "input", "type": "object", "required": False, "default": {}},
        ],
        "returns": {"name": "Lamp", "kind": "object"},
    }


def bundle() -> dict[str, Any]:
    missing = failure("VALIDATION_MISSING_PARAM", "Missing required parameter 'lamp_id'.")
    unknown = failure("VALIDATION_UNKNOWN_PARAM", "Unknown parameter 'lampid'. Valid: 'lamp_id'.")
    lamp = {"success": True, "data": {"colour": "red", "level": 3, "tags": ["a"]}}
    return {
        "implementation": "lamps",
        "version": "1",
        "spec_version": "1.0.0-draft",
        "endpoint_modes": ["crude", "single"],
        "capabilities": {"field_selection": True, "batch_operations": True},
        "introspection": {
            "operations_list": {
                "success": True,
                "data": {
                    "_protocol": {"version": "1.0.0-draft", "session_id": "s"},
                    "operations": [
                        {
                            "name": "set_lamp",
                            "semantic_category": "UPDATE",
                            "endpoint": "update",
                            "description": "Sets a lamp.",
                        }
                    ],
                },
            },
            "types_list": {
                "success": True,
                "data": {"types": [{"name": "Lamp", "kind": "object"}]},
            },
            "operation_details": [lamp_details()],
        },
        "accepted_parameters": {"set_lamp": ["lamp_id", "input"]},
        "parameter_tests": {
            "missing_required": [
                {"operation": "set_lamp", "parameter": "lamp_id", "response": missing}
            ],
            "unknown_parameter": [
                {"operation": "set_lamp", "parameter": "lampid", "response": unknown}
            ],
            "optional_defaults": [
                {
                    "operation": "set_lamp",
                    "parameter": "level",
                    "expected_value_path": "data.level",
                    "expected_value": 3,
                    "response": lamp,
                }
            ],
        },
        "error_tests": [{"name": "typo", "must_mention": ["lampid"], "response": unknown}],
        "round_trip_tests": [
            {"name": "lamp", "expected_fields": {"data.tags.0": "a"}, "read_response": lamp}
        ],
        "update_preservation_tests": [
            {"name": "lamp", "preserved_fields": {"data.colour": "red"}, "read_response": lamp}
        ],
        "batch_example": {
            "success": True,
            "data": None,
            "results": [{"index": 0, "operation": "set_lamp", "result": missing}],
            "summary": {"total": 1, "succeeded": 0, "failed": 1},
        },
        "constraint_tests": [{"name": "limit", "documented": True, "response": missing}],
        "semantic_tests": [
            {
                "name": "found",
                "response_text": "set_lamp takes lamp_id.",
                "tool_calls": [{"operation": "introspect", "params": {"query": "operations"}}],
                "structural": {"required_patterns": ["set_lamp"]},
                "semantic": {
                    "phrase_groups": [["takes", "needs"]],
                    "expected_operations": ["introspect"],
                    "expected_parameters": ["lamp_id"],
                },
            }
        ],
    }
