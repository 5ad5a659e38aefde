"""One source per type: what Protobuf, JSON Schema and OpenAPI say of the same thing is generated
from one of them, and held against the others.

Everything here is data in, data out, but for two modules: `protobuf_compiler.py` starts the
Protobuf compiler and `discovery.py` reads a folder. Nothing here writes.
"""
