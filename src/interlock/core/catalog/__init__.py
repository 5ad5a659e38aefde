"""The merged namespace: naming, effects, offerings, and the snapshot that callers see."""
