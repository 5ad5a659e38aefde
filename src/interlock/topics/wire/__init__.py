"""MCPx v0.1: envelopes, what stands in them, and what belongs together. Pure."""
