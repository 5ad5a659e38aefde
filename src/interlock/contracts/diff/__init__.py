"""Contract comparison: the changes between two versions, which of them break callers, and the
version they need."""
