"""Stands in for the server of a driver: a small one of the official SDK, over stdio, HTTP or SSE.

Its tools are those of AIP-32's examples. What it is asked is written to a file, if one is named.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
from pathlib import Path
from typing import Any

import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp_types import ToolAnnotations

server = MCPServer("stand-in", version="3.2.1", log_level="CRITICAL")
READS = ToolAnnotations(read_only_hint=True)


def record_call(tool: str, **arguments: Any) -> None:
    path = os.environ.get("STAND_IN_NOTES")
    if path:
        with open(path, "a", encoding="utf-8") as notes:
            notes.write(json.dumps({"tool": tool, "arguments": arguments}) + "\n")


@server.tool(annotations=READS, title="Read")
def read_file(path: str, head: int | None = None) -> dict[str, str]:
    """Reads a file."""
    record_call("read_file", path=path, **({} if head is None else {"head": head}))
    text = Path(path).read_text(encoding="utf-8")
    return {"contents": text, "mime_type": "text/plain"}


@server.tool(annotations=ToolAnnotations(read_only_hint=False, destructive_hint=True))
def write_file(path: str, content: str) -> dict[str, Any]:
    """Writes a file."""
    record_call("write_file", path=path, content=content)
    Path(path).write_text(content, encoding="utf-8")
    return {"written": len(content)}


@server.tool(annotations=READS)
def list_directory(path: str) -> dict[str, list[str]]:
    """Lists a folder."""
    record_call("list_directory", path=path)
    return {"entries": sorted(os.listdir(path))}


@server.tool(annotations=READS)
def query(query: str) -> dict[str, list[Any]]:
    """Asks a database."""
    record_call("query", query=query)
    return {"rows": [{"sum": 1}]}


@server.tool(annotations=READS)
def list_tables() -> dict[str, list[str]]:
    """Names the tables of a database."""
    record_call("list_tables", secret=len(os.environ.get("DATABASE_URL", "")))
    return {"tables": ["a", "b"]}


@server.tool(annotations=READS)
def secret_length() -> dict[str, int]:
    """How long the token is that it was given."""
    return {"length": len(os.environ.get("STAND_IN_TOKEN", ""))}


@server.tool()
def say_words(words: str) -> str:
    return words.upper()


@server.prompt()
def greet() -> str:
    """A greeting."""
    return "Hello."


@server.resource("note://{name}")
def note(name: str) -> str:
    """A note."""
    return name


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--version", action="store_true")
    parser.add_argument("--transport", choices=("stdio", "http", "sse"), default="stdio")
    options, _ = parser.parse_known_args()
    if options.version:
        print("stand-in v0.6.2")
        return
    if options.transport == "stdio":
        server.run()
        return
    app = server.sse_app() if options.transport == "sse" else server.streamable_http_app()
    listening = socket.create_server(("127.0.0.1", 0))
    print(listening.getsockname()[1], flush=True)
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1)
    uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    main()
