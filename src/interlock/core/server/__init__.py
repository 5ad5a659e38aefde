"""The server that clients connect to: HTTP and MCP. It only translates; the pipeline decides."""
