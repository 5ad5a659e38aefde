"""The query language of MCP-AQL. Pure functions without clock, files or randomness."""
