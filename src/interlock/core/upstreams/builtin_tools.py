"""The node's own tools: an upstream that the node itself is.

An aggregator says of itself how many notifications of its subservers it had to drop. A call is
answered in the moment in which it is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from interlock.core.call import Call, ClientSession, Outcome
from interlock.core.deferred_request import ANSWERED
from interlock.core.ports import ResponseHandler, UpstreamRequest
from interlock.errors import UNKNOWN_TOOL, InterlockError
from interlock.protocol.jsonrpc import decode_value, encode_value
from interlock.protocol.mcp import Era, summarize_result, write_tool_error
from interlock.protocol.mcpax import DROPPED_TOOL

_DEFINITION: Final = encode_value(
    {
        "name": DROPPED_TOOL,
        "title": "Notifications dropped",
        "description": "How many notifications of registered subservers this node has dropped, "
        "because they came faster than they may be passed on.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "segment": {"type": "string", "description": "Only those of this subserver."}
            },
            "additionalProperties": False,
        },
        "outputSchema": {
            "type": "object",
            "properties": {
                "total": {"type": "integer", "minimum": 0},
                "by_subserver": {
                    "type": "object",
                    "additionalProperties": {"type": "integer", "minimum": 0},
                },
            },
            "required": ["total", "by_subserver"],
        },
        "annotations": {
            "readOnlyHint": True,
            "destructiveHint": False,
            "idempotentHint": True,
            "openWorldHint": False,
        },
    }
)


class BuiltinTools:
    """What the node itself serves."""

    key = ""
    timeout: float | None = None
    capabilities: Mapping[str, Any] = {}
    definitions: tuple[bytes, ...] = (_DEFINITION,)
    """As a server lists them."""

    def __init__(self, dropped: Callable[[], Mapping[str, int]]) -> None:
        """`dropped`: how many notifications of each subserver were dropped, by its segment."""
        self._dropped = dropped

    def start(self, call: Call, back: ResponseHandler) -> UpstreamRequest:
        route = call.route
        if route is None or route.upstream_name != DROPPED_TOOL:
            raise InterlockError(UNKNOWN_TOOL, f"The node has no tool {call.name[:100]!r}.")
        call.is_dispatched = True
        result = self._count(decode_value(call.arguments))
        back.on_result(call, Outcome(result, Era.SESSION, summarize_result(result)), None)
        return ANSWERED

    def _count(self, arguments: Any) -> bytes:
        counts = dict(self._dropped())
        segment = arguments.get("segment") if isinstance(arguments, dict) else None
        if segment is not None:
            if segment not in counts:
                return write_tool_error(
                    f"No subserver {str(segment)[:63]!r} has registered with this node.",
                    "unknown_subserver",
                    {"known": sorted(counts)},
                )
            counts = {segment: counts[segment]}
        total = sum(counts.values())
        text = f"{total} notifications were dropped."
        worst = sorted((number, name) for name, number in counts.items() if number)
        if worst:
            shares = ", ".join(f"{name}: {number}" for number, name in reversed(worst))
            text = f"{total} notifications were dropped ({shares})."
        return encode_value(
            {
                "content": [{"type": "text", "text": text}],
                "structuredContent": {"total": total, "by_subserver": counts},
                "isError": False,
            }
        )

    def set_log_level(self, level: str, session: ClientSession | None) -> None:
        """It says nothing of its own accord."""

    def session_key(self, call: Call) -> object | None:
        return None

    async def subscribe(self, uri: str, call: Call | None) -> None:
        """It has no resources."""

    async def unsubscribe(self, uri: str, call: Call | None) -> None:
        """It has no resources."""

    async def wait_until_ready(self, seconds: float) -> bool:
        return True
