"""What may change in a contract without breaking who relies on it: versions, changes, verdicts."""
