"""Topics (MCPx): rooms in which agents and people talk, and propose calls."""
