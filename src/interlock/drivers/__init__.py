"""MCP servers that are declared as files (AIP-32) and the contracts that they serve (AIP-14)."""
