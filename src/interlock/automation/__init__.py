"""Progressive automation: what humans decided becomes a rule that a human accepts."""
