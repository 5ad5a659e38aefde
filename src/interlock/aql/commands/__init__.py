"""Commands of operations and of the safety loop."""
