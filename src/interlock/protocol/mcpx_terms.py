"""The words of MCPx v0.1: what is written on its wire, and how much of it there may be."""

from __future__ import annotations

from typing import Final

PROTOCOL: Final = "mcpx/v0.1"
GATEWAY: Final = "system:gateway"
WELCOME: Final = "system/welcome"
PRESENCE: Final = "system/presence"
ERROR: Final = "system/error"
JOIN: Final = "join"
LEAVE: Final = "leave"

MAX_ENVELOPE_BYTES: Final = 1024 * 1024
"""The most bytes of an envelope."""
MAX_GATEWAY_ENVELOPE_BYTES: Final = 16 * 1024 * 1024
"""A welcome names everybody who is there, and what each may send: it may be longer."""
MAX_PARTICIPANT_ID: Final = 128
"""The most characters of a participant's id."""
TOPIC_PATTERN: Final = r"^[A-Za-z0-9._-]{1,128}$"

REPLACED_CODE: Final = 4009
"""Closed, because the same participant came in by another connection."""
FORBIDDEN_CODE: Final = 4003
"""Closed, because it may not be here any longer."""
SLOW_READER_CODE: Final = 1013
"""Closed, because it did not read."""
SHUTTING_DOWN_CODE: Final = 1001
"""Closed, because the gateway stops."""

SUBPROTOCOL: Final = "mcpx"
BEARER_SUBPROTOCOL: Final = "mcpx.bearer."
"""How a browser, which cannot send an Authorization header, shows its token."""

TOPIC_SERVER: Final = "topic"
"""By what the journal calls this way in."""
REVISION: Final = "2025-06-18"
"""The MCP that is spoken in rooms, where nobody has agreed on another."""

CANCELLED: Final = "notifications/cancelled"
PROGRESS: Final = "notifications/progress"

GUEST: Final = "guest"
"""The kind, and the name, of a caller without credentials."""
