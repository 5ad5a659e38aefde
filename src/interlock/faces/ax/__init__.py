"""A node as seen by its parent in the tree: what it answers there, and how it registers."""
