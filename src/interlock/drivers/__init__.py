"""Drivers (AIP-32): MCP servers declared as files, bound to the contracts that they serve."""
