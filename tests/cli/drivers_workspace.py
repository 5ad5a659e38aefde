"""Drivers and contracts of a test, written into the folder of its world."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from interlock.drivers.commands.new import manifest_text
from tests.support.command_line import CommandLine
from tests.support.timeouts import HANG_TIMEOUT

STAND_IN = str(Path(__file__).with_name("stand_in_server.py"))
STARTED = {"kind": "binary", "path": sys.executable, "args": [STAND_IN]}
PATH_INPUT = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}


def contract(world: CommandLine, id: str = "fs-read", **more: Any) -> Path:
    """Write a TOOL.md."""
    fields: dict[str, Any] = {
        "name": id,
        "id": id,
        "description": f"The contract {id}.",
        "version": "1.0.0",
        "inputs": PATH_INPUT,
        "outputs": {
            "type": "object",
            "properties": {"contents": {"type": "string"}},
            "required": ["contents"],
        },
        **more,
    }
    return _written(world.cwd / "tools" / id / "TOOL.md", fields)


def entry(contract: str = "fs-read", tool: str = "read_file", **more: Any) -> dict[str, Any]:
    """An entry of `implements`."""
    mcp = {"tool_name": tool, "result_extract": "$.contents", **more.pop("mcp", {})}
    return {"tool": contract, "version": "^1.0.0", "metadata": {"mcp": mcp}, **more}


def driver(world: CommandLine, id: str = "files-mcp", **more: Any) -> Path:
    """Write a DRIVER.md, of a driver whose server is the stand-in unless it says otherwise."""
    fields: dict[str, Any] = {
        "name": id,
        "id": id,
        "description": f"The driver {id}.",
        "version": "1.0.0",
        "kind": "mcp",
        "server": STARTED,
        "transport": "stdio",
        "implements": [entry()],
        **more,
    }
    return _written(world.cwd / ".drivers" / id / "DRIVER.md", fields)


def secrets(world: CommandLine, driver: str, *slugs: str) -> Path:
    """Write a SECRETS.md beside a driver."""
    listing = [{"slug": slug, "name": slug, "description": f"The secret {slug}."} for slug in slugs]
    return _written(world.cwd / ".drivers" / driver / "SECRETS.md", {"secrets": listing})


def _written(path: Path, fields: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(manifest_text(fields, "# Words"), encoding="utf-8")
    return path


@contextmanager
def listening(transport: str) -> Iterator[str]:
    """The stand-in over HTTP or SSE; its URL."""
    process = subprocess.Popen(
        [sys.executable, STAND_IN, "--transport", transport],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    try:
        port = int(process.stdout.readline())
        yield f"http://127.0.0.1:{port}/{'sse' if transport == 'sse' else 'mcp'}"
    finally:
        process.terminate()
        process.wait(HANG_TIMEOUT)
        process.stdout.close()
