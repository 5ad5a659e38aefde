"""The catalog as operations: names, categories, parameters, introspection, search."""
