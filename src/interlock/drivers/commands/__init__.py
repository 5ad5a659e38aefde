"""Commands of drivers."""
