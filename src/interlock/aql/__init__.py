"""MCP-AQL: the catalog as operations, behind five endpoints or one."""
