"""The gateway: many MCP servers behind one endpoint. It imports no feature."""
