"""The node's own tools, as an upstream.

A node counts the notifications of its subservers that it had to drop. Calls complete immediately.
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
        "title": "Rejected notifications",
        "description": "Return how many notifications of registered subservers this node has "
        "rejected because they exceeded the rate limit.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "segment": {"type": "string", "description": "Count only those of this subserver."}
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
    """The upstream with the node's own tools."""

    key = ""
    timeout: float | None = None
    capabilities: Mapping[str, Any] = {}
    definitions: tuple[bytes, ...] = (_DEFINITION,)
    """The tools, as a server lists them."""

    def __init__(self, get_counts: Callable[[], Mapping[str, int]]) -> None:
        """
        Args:
            get_counts: returns the number of dropped notifications per segment.
        """
        self._get_counts = get_counts

    def start(self, call: Call, handler: ResponseHandler) -> UpstreamRequest:
        route = call.route
        if route is None or route.upstream_name != DROPPED_TOOL:
            raise InterlockError(UNKNOWN_TOOL, f"The node has no tool {call.name[:100]!r}.")
        call.is_dispatched = True
        result = self._count(decode_value(call.arguments))
        handler.on_result(call, Outcome(result, Era.SESSION, summarize_result(result)), None)
        return ANSWERED

    def _count(self, arguments: Any) -> bytes:
        counts = dict(self._get_counts())
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
        text = f"{total} notifications were rejected."
        sorted_counts = sorted((number, name) for name, number in counts.items() if number)
        if sorted_counts:
            details = ", ".join(f"{name}: {number}" for number, name in reversed(sorted_counts))
            text = f"{total} notifications were rejected ({details})."
        return encode_value(
            {
                "content": [{"type": "text", "text": text}],
                "structuredContent": {"total": total, "by_subserver": counts},
                "isError": False,
            }
        )

    def set_log_level(self, level: str, session: ClientSession | None) -> None:
        """Do nothing: it sends no log messages."""

    def session_key(self, call: Call) -> object | None:
        return None

    async def subscribe(self, uri: str, call: Call | None) -> None:
        """Do nothing: it has no resources."""

    async def unsubscribe(self, uri: str, call: Call | None) -> None:
        """Do nothing: it has no resources."""

    async def wait_until_ready(self, seconds: float) -> bool:
        return True
