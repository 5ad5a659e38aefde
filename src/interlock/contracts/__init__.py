"""Contracts of tools: their registry, the changes between versions, and the callers that a
change breaks."""
