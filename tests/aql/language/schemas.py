"""JSON Schemas of AQL requests and responses, written for the tests.

They say what the draft's `operation-input`, `operation-result`, `batch-operation`,
`introspection-response` and `danger-level` say, and are as strict about members that do not belong
there.
"""

from __future__ import annotations

from typing import Any, Final

import jsonschema_rs

OPERATION: Final = {"type": "string", "pattern": "^[a-z][a-z0-9_]*$"}
CODE: Final = {"type": "string", "pattern": "^[A-Z][A-Z0-9_]*$"}

OPERATION_INPUT: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["operation"],
    "properties": {"operation": OPERATION, "params": {"type": "object"}},
    "additionalProperties": True,
}
WARNINGS: Final[dict[str, Any]] = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["code", "message"],
        "properties": {
            "code": CODE,
            "message": {"type": "string", "minLength": 1},
            "details": {"type": "object"},
            "severity": {"enum": ["low", "medium", "high"]},
        },
        "additionalProperties": False,
    },
}
FAILURE: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["success", "error"],
    "properties": {
        "success": {"const": False},
        "error": {
            "type": "object",
            "required": ["code", "message"],
            "properties": {
                "code": CODE,
                "message": {"type": "string", "minLength": 1},
                "details": {"type": "object"},
            },
            "additionalProperties": False,
        },
        "confirmation": {"type": "object"},
        "deprecated": {"type": "boolean"},
        "deprecationMessage": {"type": "string"},
        "deprecatedSince": {"type": "string"},
        "removalVersion": {"type": "string"},
    },
    "additionalProperties": False,
}
SUMMARY: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["total", "succeeded", "failed"],
    "additionalProperties": {"type": "integer", "minimum": 0},
}
SUCCESS: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["success", "data"],
    "properties": {
        "success": {"const": True},
        "data": True,
        "warnings": WARNINGS,
        "_meta": {"type": "object"},
        "results": {"type": "array"},
        "summary": SUMMARY,
    },
    "additionalProperties": False,
}
OPERATION_RESULT: Final[dict[str, Any]] = {"oneOf": [SUCCESS, FAILURE]}
ITEM: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["index", "operation", "result"],
    "properties": {
        "index": {"type": "integer", "minimum": 0},
        "operation": {"type": "string"},
        "status": {"enum": ["pending_confirmation"]},
        "result": OPERATION_RESULT,
    },
    "additionalProperties": False,
}
BATCH: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["success", "data", "results", "summary"],
    "properties": {
        "success": {"const": True},
        "data": {"const": None},
        "results": {"type": "array", "items": ITEM},
        "summary": SUMMARY,
        "halted_at": ITEM,
        "pending_operations": {"type": "array", "items": OPERATION_INPUT},
        "warnings": WARNINGS,
        "_meta": {"type": "object"},
    },
    "additionalProperties": False,
}
LEVELS: Final = ["safe", "reversible", "destructive", "dangerous", "forbidden"]
DANGER_LEVEL: Final[dict[str, Any]] = {
    "oneOf": [
        {"enum": LEVELS},
        {
            "type": "object",
            "required": ["level"],
            "properties": {
                "level": {"enum": LEVELS},
                "reason": {"type": "string"},
                "requires_confirmation": {"type": "boolean", "default": False},
                "hook_blockable": {"type": "boolean", "default": True},
            },
        },
    ]
}
LEVEL_BY_CATEGORY: Final = {
    "READ": "safe",
    "CREATE": "reversible",
    "UPDATE": "reversible",
    "DELETE": "destructive",
}
"""The level of a category whose operations say nothing else. Those of EXECUTE have any."""

_CATEGORY: Final = {"enum": ["CREATE", "READ", "UPDATE", "DELETE", "EXECUTE"]}
_TEXT: Final = {"type": "string"}
_PARAMETER: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["name", "type", "required"],
    "properties": {
        "name": _TEXT, "type": _TEXT, "required": {"type": "boolean"}, "description": _TEXT,
        "default": True, "enum": {"type": "array"}, "minimum": {"type": "number"},
        "maximum": {"type": "number"}, "minLength": {"type": "integer"},
        "maxLength": {"type": "integer"}, "pattern": _TEXT, "format": _TEXT, "items": True,
        "sensitive": {"type": "boolean"},
    },
    "additionalProperties": False,
}  # fmt: skip
_TYPE_INFO: Final[dict[str, Any]] = {
    "name": _TEXT,
    "kind": {"enum": ["enum", "object", "scalar", "union"]},
    "description": _TEXT,
}
_INFO: Final[dict[str, Any]] = {
    "name": OPERATION, "semantic_category": _CATEGORY, "endpoint": _TEXT, "description": _TEXT,
}  # fmt: skip
_DETAILS: Final[dict[str, Any]] = {
    "type": "object",
    "required": [*_INFO, "mcpTool", "permissions", "parameters", "returns"],
    "properties": {
        **_INFO,
        "mcpTool": _TEXT,
        "permissions": {
            "type": "object",
            "required": ["readOnly", "destructive"],
            "properties": {"readOnly": {"type": "boolean"}, "destructive": {"type": "boolean"}},
            "additionalProperties": False,
        },
        "parameters": {"type": "array", "items": _PARAMETER},
        "returns": {"type": "object", "required": ["name", "kind"], "properties": _TYPE_INFO},
        "examples": {"type": "array"},
        "computed_fields": True,
        "aggregation_support": True,
        "relationship_capabilities": True,
        "lifecycle": True,
    },
    "additionalProperties": False,
}


def _only(name: str, value: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "required": [name],
        "properties": {name: value, "_protocol": {"type": "object", "required": ["version"]}},
        "additionalProperties": False,
    }


def _members(properties: dict[str, Any], *optional: str) -> dict[str, Any]:
    return {
        "type": "object",
        "required": [name for name in properties if name not in optional],
        "properties": properties,
        "additionalProperties": False,
    }


INTROSPECTION: Final[dict[str, Any]] = {
    "oneOf": [
        _only("operations", {"type": "array", "items": _members(_INFO)}),
        _only("operation", {"oneOf": [{"type": "null"}, _DETAILS]}),
        _only("types", {"type": "array", "items": _members(_TYPE_INFO, "description")}),
        _only(
            "type",
            {
                "oneOf": [
                    {"type": "null"},
                    _members(
                        {
                            **_TYPE_INFO,
                            "values": {"type": "array"},
                            "fields": {"type": "array", "items": _PARAMETER},
                            "members": {"type": "array"},
                        },
                        "description", "values", "fields", "members",
                    ),
                ]
            },
        ),
    ]
}  # fmt: skip


def matches_schema(schema: dict[str, Any], value: Any) -> bool:
    return jsonschema_rs.is_valid(schema, value)
