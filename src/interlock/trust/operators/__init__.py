"""The people who approve calls: who they are, who made them operators, and their sessions."""
