"""Estimates of the tokens that tools cost a model, to compare views.

A model sees the name, description and input schema of a tool. The rest of a listing (titles,
annotations, output schemas, `_meta`) is for its client.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec import Raw

from interlock.core.catalog.offering import Tool
from interlock.protocol.jsonrpc import decode_members, encode_members, encode_value

CHARACTERS_PER_TOKEN: Final = 4
"""An approximation for English text and JSON. Models differ by about a quarter."""
_SHOWN: Final = ("description", "inputSchema")

TokenCounter = Callable[[bytes], int]
"""Counts the tokens of a text."""


def estimate_tokens(text: bytes) -> int:
    """Estimate the tokens of a text without a tokenizer."""
    return -(-len(text) // CHARACTERS_PER_TOKEN)


def count_definition_tokens(definition: bytes | Raw, count: TokenCounter = estimate_tokens) -> int:
    """Count the tokens of a tool definition in a list."""
    members = decode_members(definition)
    return count(
        encode_members(
            {member: members[member] for member in ("name", *_SHOWN) if member in members}
        )
    )


def count_tool_tokens(tool: Tool, count: TokenCounter = estimate_tokens) -> int:
    """Count the tokens of a tool of the catalog."""
    members = decode_members(b"{" + tool.listed[1:])
    visible_members = {"name": Raw(encode_value(tool.canonical))}
    visible_members |= {member: members[member] for member in _SHOWN if member in members}
    return count(encode_members(visible_members))
