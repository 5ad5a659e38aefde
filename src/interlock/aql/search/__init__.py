"""Search for operations by a description of the task."""
