"""What clients connect to: HTTP and MCP. It translates, and decides nothing."""
