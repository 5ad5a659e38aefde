"""The MCPx v0.1 message format: envelopes, payloads, threads and proposals. No I/O."""
