"""Drivers made by hand, for tests of the rooms that run them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from interlock.manifests.model import (
    DriverManifest,
    ImplementedContract,
    McpBinding,
    ServerBlock,
    ToolContract,
)

ECHO = McpBinding("echo", {"text": "message"})


def manifest(folder: Path = Path("/nowhere/echo-mcp"), **fields: Any) -> DriverManifest:
    arguments: dict[str, Any] = {
        "id": "echo-mcp",
        "name": "Echo",
        "description": "",
        "version": "1.0.0",
        "kind": "mcp",
        "implements": (ImplementedContract("text.echo", "^1.0.0", mcp=ECHO),),
        "server": ServerBlock("binary", path="python3", args=("server.py",)),
        **fields,
    }
    return DriverManifest(folder / "DRIVER.md", **arguments)


def contract(**fields: Any) -> ToolContract:
    arguments: dict[str, Any] = {
        "id": "text.echo",
        "name": "Echo",
        "description": "",
        "version": "1.0.0",
        "inputs": {
            "type": "object",
            "properties": {"text": {"type": "string"}},
            "required": ["text"],
        },
        "outputs": {
            "type": "object",
            "properties": {"said": {"type": "string"}},
            "required": ["said"],
        },
        **fields,
    }
    return ToolContract(Path("/nowhere/TOOL.md"), **arguments)
