"""Drivers and contracts as files: DRIVER.md, TOOL.md and SECRETS.md, read strictly.

A manifest is untrusted text. This room makes typed structs of it, or problems with a file, a line
and a suggestion; it starts nothing, connects to nothing and never holds a secret.
"""
