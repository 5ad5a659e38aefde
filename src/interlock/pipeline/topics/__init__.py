"""Topics: rooms in which agents and people talk, and what each of them may say there."""
