"""Schema generation: each type has one source, from which its Protobuf, JSON Schema and OpenAPI
forms are generated. The generated files are checked against the source.

The modules here are pure, with two exceptions: `protobuf_compiler.py` starts the Protobuf compiler
and `sources.py` reads a folder. Nothing here writes files.
"""
