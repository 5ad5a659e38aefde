"""What requests and answers must look like, as schemas of our own: the draft's are not in the tree.

They say what the draft's `operation-input`, `operation-result`, `batch-operation` and
`danger-level` say, and are as strict about members that do not belong there.
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
            "additionalProperties": False,
        },
    ]
}


def fits(schema: dict[str, Any], value: Any) -> bool:
    return jsonschema_rs.is_valid(schema, value)
