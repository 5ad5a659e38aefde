"""The MCP server: both protocol generations, over HTTP, stdio and a Unix socket."""
