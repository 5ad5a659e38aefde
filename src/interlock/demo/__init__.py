"""A small MCP server to try a node with: real tools, nothing to install, nothing to break.

`python -m interlock.demo` speaks MCP over stdin and stdout, in both eras. It knows nothing of a
node; a node starts it like any other upstream.
"""
