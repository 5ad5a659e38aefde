"""What the node keeps on disk. SQLite for one machine; imports nothing of the pipeline."""
