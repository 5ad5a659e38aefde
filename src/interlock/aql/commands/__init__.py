"""The commands for operations and for the safety loop."""
