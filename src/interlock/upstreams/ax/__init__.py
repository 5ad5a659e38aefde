"""Subservers: servers and nodes that dial in and register, as MCP-AX describes it."""
