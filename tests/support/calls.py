"""Calls and tools for tests of the pipeline's stages."""

from __future__ import annotations

import json
from typing import Any

from msgspec import Raw

from interlock.core.call import Call, Client, Credentials
from interlock.core.catalog.offering import Tool
from interlock.protocol.mcp import TOOLS_CALL, Era
from tests.support.offerings import definition, offer

LOCAL = Credentials("local")
SESSION = Client(Era.SESSION, "2025-11-25", "tests")
WITH_EXTENSION = Client(
    Era.SESSION, "2025-11-25", "tests", b'{"extensions":{"org.example/shared":{}}}'
)
STATELESS = Client(Era.STATELESS, "2026-07-28", "tests")


def tool_call(name: str = "s.t", arguments: Any = None, **fields: Any) -> Call:
    """Return a call of a tool, as a server makes it. `arguments` may be raw bytes."""
    if isinstance(arguments, bytes):
        fields["arguments"] = Raw(arguments)
    elif arguments is not None:
        fields["arguments"] = Raw(json.dumps(arguments).encode())
    meta = fields.pop("meta", None)
    if meta is not None:
        fields["meta"] = {key: Raw(json.dumps(value).encode()) for key, value in meta.items()}
    fields.setdefault("credentials", LOCAL)
    fields.setdefault("client", SESSION)
    return Call(TOOLS_CALL, "test", name=name, **fields)


def tool_with(schema: Any, name: str = "t", *, http: bool = False) -> Tool:
    """Return the only tool of an upstream, with this schema."""
    raw = schema if isinstance(schema, bytes) else definition(name, inputSchema=schema)
    [tool] = offer("s", [raw], http=http).tools
    return tool
