"""The few words of the MCP wires that the benchmarks write by hand. Constants only."""

from __future__ import annotations

SESSION_REVISION = "2025-11-25"
STATELESS_REVISION = "2026-07-28"
SESSION_REVISIONS = ("2025-03-26", "2025-06-18", "2025-11-25")

META_PREFIX = "io.modelcontextprotocol/"
SUBSCRIPTION_ID = META_PREFIX + "subscriptionId"

METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
PARSE_ERROR = -32700
UNSUPPORTED_VERSION = -32022

STATELESS_META = (
    '{"io.modelcontextprotocol/protocolVersion":"2026-07-28",'
    '"io.modelcontextprotocol/clientInfo":{"name":"interlock-bench","version":"1"},'
    '"io.modelcontextprotocol/clientCapabilities":{}}'
)
