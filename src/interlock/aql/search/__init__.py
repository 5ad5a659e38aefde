"""Finding the operation that somebody means, in their words."""
