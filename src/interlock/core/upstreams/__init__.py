"""The upstreams of a node. Supervisors connect them, clients speak MCP, transports move bytes."""
