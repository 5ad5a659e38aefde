"""Calls that wait for a human: written down, answered by a proof, let through exactly once."""
