"""What tools cost a model that is shown them: one estimate, by which views are compared wherever
somebody is told of it.

A model is shown a tool's name, its description and its input schema. What else a list has (titles,
annotations, schemas of results, `_meta`) is for its client.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec import Raw

from interlock.core.catalog.offering import Tool
from interlock.protocol.jsonrpc import decode_members, encode_members, encode_value

CHARACTERS_PER_TOKEN: Final = 4
"""A rule of thumb for English text and JSON; models differ by a quarter or so either way."""
_SHOWN: Final = ("description", "inputSchema")

Counts = Callable[[bytes], int]
"""A tokenizer: how many tokens a text has."""


def estimated(text: bytes) -> int:
    """Tokens, where nobody brought a tokenizer."""
    return -(-len(text) // CHARACTERS_PER_TOKEN)


def definition_tokens(definition: bytes | Raw, count: Counts = estimated) -> int:
    """Of a tool as it stands in a list."""
    members = decode_members(definition)
    return count(encode_members({one: members[one] for one in ("name", *_SHOWN) if one in members}))


def tool_tokens(tool: Tool, count: Counts = estimated) -> int:
    """Of a tool of the catalog."""
    members = decode_members(b"{" + tool.listed[1:])
    shown = {"name": Raw(encode_value(tool.canonical))}
    shown |= {one: members[one] for one in _SHOWN if one in members}
    return count(encode_members(shown))
