"""Conformance of a live node with MCP-AQL: evidence gathered from its answers, and checks of it."""
