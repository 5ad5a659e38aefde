"""JSON Schemas of introspection results, and the tools of two servers."""

from __future__ import annotations

from typing import Any

import jsonschema_rs

from tests.aql.operation_catalogs import NEEDED, STRING, tool
from tests.support.offerings import offer

PARAMETER = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "type": {"type": "string"},
        "required": {"type": "boolean"},
        "description": {"type": "string"},
        "default": {},
        "enum": {"type": "array"},
        "minimum": {"type": "number"},
        "maximum": {"type": "number"},
        "minLength": {"type": "integer"},
        "maxLength": {"type": "integer"},
        "pattern": {"type": "string"},
        "format": {"type": "string"},
        "items": {"type": "object"},
        "sensitive": {"type": "boolean"},
    },
    "required": ["name", "type", "required"],
    "additionalProperties": False,
}
LINE = {
    "type": "object",
    "properties": {
        key: {"type": "string"} for key in ("name", "semantic_category", "endpoint", "description")
    },
    "required": ["name", "semantic_category", "endpoint", "description"],
    "additionalProperties": False,
}
TYPE = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "kind": {"enum": ["enum", "object", "scalar", "union"]},
        "description": {"type": "string"},
    },
    "required": ["name", "kind"],
    "additionalProperties": False,
}
DETAILS = {
    "type": "object",
    "properties": {
        **LINE["properties"],  # type: ignore[dict-item]
        "mcpTool": {"type": "string"},
        "permissions": {
            "type": "object",
            "properties": {"readOnly": {"type": "boolean"}, "destructive": {"type": "boolean"}},
            "required": ["readOnly", "destructive"],
            "additionalProperties": False,
        },
        "parameters": {"type": "array", "items": PARAMETER},
        "returns": TYPE,
        "examples": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"description": {"type": "string"}, "request": {"type": "object"}},
                "required": ["request"],
                "additionalProperties": False,
            },
        },
    },
    "required": [
        "name", "semantic_category", "endpoint", "mcpTool", "description", "permissions",
        "parameters", "returns",
    ],
    "additionalProperties": False,
}  # fmt: skip

GITHUB = offer(
    "github",
    [
        tool(
            "create_issue",
            {
                "owner": {**NEEDED, "description": "Whose repository it is."},
                "repo": NEEDED,
                "title": {**NEEDED, "minLength": 1, "maxLength": 256},
                "labels": {"type": "array", "items": {"type": "string"}},
                "priority": {"type": "integer", "minimum": 1, "maximum": 5, "default": 3},
                "apiKey": STRING,
            },
            description="Open a new issue in a repository, to report a bug or ask for something.",
        ),
        tool(
            "update_issue",
            {
                "owner": NEEDED,
                "repo": NEEDED,
                "issue_number": {"type": "integer", "required": True},
                "title": STRING,
                "state": {"type": "string", "enum": ["open", "closed"]},
            },
        ),
        tool("list_issues", {"owner": NEEDED, "repo": NEEDED, "page": {"type": "integer"}}),
        tool("delete_file", {"path": {**NEEDED, "pattern": "^/"}}),
        tool(
            "search_code",
            {"q": NEEDED, "when": {"type": "string", "format": "date"}},
            annotations={"readOnlyHint": True},
            outputSchema={
                "type": "object",
                "properties": {"totalCount": {"type": "integer"}},
                "required": ["totalCount"],
            },
        ),
        tool(
            "create_milestone",
            {
                "due": {
                    "type": "object",
                    "properties": {"day": STRING, "zone": {"enum": ["utc", "local"]}},
                    "required": ["day"],
                },
                "who": {"oneOf": [{"type": "string"}, {"type": "integer"}]},
            },
        ),
    ],
)
SLACK = offer("slack", [tool("send_message", {"channel": NEEDED, "text": NEEDED})])


def assert_valid(schema: dict[str, Any], value: Any) -> None:
    jsonschema_rs.validator_for(schema).validate(value)
