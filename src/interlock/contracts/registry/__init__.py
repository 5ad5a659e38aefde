"""The contract registry: every version of every schema, in a Git repository."""
