"""A small MCP server's side of a conversation, for programs that have tools and are no node: the
demo, and subservers written with `interlock.tree.subserver`."""
