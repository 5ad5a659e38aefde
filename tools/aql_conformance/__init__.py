"""Conformance of a live node with MCP-AQL: evidence from its responses, and checks of it."""
