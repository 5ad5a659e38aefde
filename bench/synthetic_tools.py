"""Tool definitions that look like the ones real servers publish. Pure data, the same on every run.

Real servers' tools cost a median of about 157 tokens each, some 600 bytes of JSON; these are in
that range, with nested objects, enumerations, defaults and annotations.
"""

from __future__ import annotations

from typing import Any

VERBS = (
    "list",
    "get",
    "create",
    "update",
    "delete",
    "search",
    "export",
    "archive",
    "assign",
    "move",
)
NOUNS = (
    "issue",
    "page",
    "board",
    "sprint",
    "comment",
    "user",
    "label",
    "release",
    "branch",
    "file",
)

ECHO_TOOL: dict[str, Any] = {
    "name": "echo",
    "description": "Give the text back as it came.",
    "inputSchema": {
        "type": "object",
        "properties": {"text": {"type": "string"}, "n": {"type": "integer"}},
        "required": ["text", "n"],
    },
    "annotations": {"readOnlyHint": True, "idempotentHint": True},
}


def synthetic_tool(number: int) -> dict[str, Any]:
    """The tool with this number: a verb on a noun, in a numbered project space."""
    verb = VERBS[number % len(VERBS)]
    noun = NOUNS[number // len(VERBS) % len(NOUNS)]
    space = number // (len(VERBS) * len(NOUNS))
    name = f"{verb}_{noun}" if space == 0 else f"{verb}_{noun}_{space}"
    reads = verb in ("list", "get", "search", "export")
    return {
        "name": name,
        "description": (
            f"{verb.capitalize()} a {noun} in the project. "
            f"Use it when the {noun} is known by its key, and prefer search when it is not. "
            f"The answer holds the {noun} with its fields, links and history."
        ),
        "inputSchema": {
            "type": "object",
            "properties": {
                "project": {"type": "string", "description": "The project's short key."},
                f"{noun}_id": {"type": "string", "description": f"The {noun}'s id."},
                "fields": {"type": "array", "items": {"type": "string"}, "maxItems": 50},
                "state": {"type": "string", "enum": ["open", "active", "done", "dropped"]},
                "limit": {"type": "integer", "minimum": 1, "maximum": 100, "default": 20},
            },
            "required": ["project"],
        },
        "annotations": {"readOnlyHint": reads, "destructiveHint": verb == "delete"},
    }


def tool_list(synthetic: int) -> list[dict[str, Any]]:
    """``echo``, and as many synthetic tools as asked for."""
    return [ECHO_TOOL, *(synthetic_tool(number) for number in range(synthetic))]
