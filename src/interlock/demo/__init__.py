"""A small MCP server to try a node: working tools without installation and without side effects.

`python -m interlock.demo` speaks MCP over stdin and stdout, in both protocol generations. It does
not know about nodes: a node starts it like any other upstream.
"""
