"""Commands of the tree."""
