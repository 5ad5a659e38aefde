"""Manifests of drivers and contracts: DRIVER.md, TOOL.md and SECRETS.md, read strictly.

A manifest is untrusted text. This package reads it into typed structs, or reports problems with a
file, a line and a suggestion. It starts nothing, connects to nothing and never holds a secret.
"""
