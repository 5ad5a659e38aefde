"""The query language of MCP-AQL: pure, no clock, no files, no chance."""
