"""Contracts of tools: their registry, what changed between versions, and whom that breaks."""
