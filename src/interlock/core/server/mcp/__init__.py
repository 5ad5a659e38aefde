"""MCP as clients speak it: both eras, over HTTP, stdio and a Unix socket."""
