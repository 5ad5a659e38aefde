"""The tree of nodes (MCP-AX): subservers that register with this node, and its own registration."""
