"""Terms and limits of the MCPx v0.1 protocol."""

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
"""Maximum size of an envelope."""
MAX_GATEWAY_ENVELOPE_BYTES: Final = 16 * 1024 * 1024
"""Maximum size of an envelope of the gateway: a welcome lists all participants and their grants."""
MAX_PARTICIPANT_ID: Final = 128
"""Maximum characters of a participant id."""
TOPIC_PATTERN: Final = r"^[A-Za-z0-9._-]{1,128}$"

REPLACED_CODE: Final = 4009
"""Close code: the same participant has connected again."""
FORBIDDEN_CODE: Final = 4003
"""Close code: the participant has lost its access."""
SLOW_READER_CODE: Final = 1013
"""Close code: the participant did not read its messages."""
SHUTTING_DOWN_CODE: Final = 1001
"""Close code: the gateway shuts down."""

SUBPROTOCOL: Final = "mcpx"
BEARER_SUBPROTOCOL: Final = "mcpx.bearer."
"""The subprotocol prefix with the token of a browser, which cannot send an Authorization header."""

TOPIC_SERVER: Final = "topic"
"""The server name of topics in calls and in the journal."""
REVISION: Final = "2025-06-18"
"""The MCP revision in topics, where it is not negotiated."""

CANCELLED: Final = "notifications/cancelled"
PROGRESS: Final = "notifications/progress"

GUEST: Final = "guest"
"""The kind and the name of a caller without credentials."""
