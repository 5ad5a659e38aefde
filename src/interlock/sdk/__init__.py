"""A small MCP server for programs with tools that are not a node: the demo, and subservers written
with `interlock.tree.subserver`."""
