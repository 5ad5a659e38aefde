"""The journal: an append-only audit log with a hash chain."""
