"""Drivers at work: their servers, started when they are needed and confined; their secrets, their
sign-in, installation and health; and the upstream by which a contract's call reaches one of them.

What is decided about a call, and how it is translated, is in `catalog/drivers`; what the files say
is in `manifests`.
"""
