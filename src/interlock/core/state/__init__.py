"""Base classes of the SQLite stores."""
