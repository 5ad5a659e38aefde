"""The tree of nodes (MCP-AX): who registers here, and where this node is registered."""
