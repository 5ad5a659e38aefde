"""Small valid manifests that each test changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from interlock.core.config.problems import Problem
from interlock.manifests.document import Caution, ReadResult
from interlock.manifests.driver_reader import parse_driver
from interlock.manifests.model import DriverManifest, ToolContract
from interlock.manifests.tool_reader import parse_contract

GONE: Any = object()
"""In place of a value: the field is not there."""


REMOTE = {"kind": "remote", "url": "https://mcp.example.com/v1"}
SERVERS: dict[str, dict[str, Any]] = {
    "binary": {"kind": "binary", "path": "./server"},
    "npm": {"kind": "npm", "package": "@scope/name"},
    "docker": {"kind": "docker", "image": "name:latest"},
    "remote": REMOTE,
}
"""One of every kind."""


def text_of(values: dict[str, Any], body: str = "") -> str:
    """Return a manifest with these fields."""
    kept = {key: value for key, value in values.items() if value is not GONE}
    return f"---\n{yaml.safe_dump(kept, sort_keys=False, allow_unicode=True)}---\n{body}"


def driver_values(**changes: Any) -> dict[str, Any]:
    """Return the fields of a valid driver."""
    return {
        "name": "Files",
        "id": "files-mcp",
        "description": "Reads files.",
        "version": "1.0.0",
        "kind": "mcp",
        "server": {"kind": "npm", "package": "@scope/files", "args": ["."]},
        "transport": "stdio",
        "implements": [entry()],
        **changes,
    }


def entry(tool: str = "fs.read", **changes: Any) -> dict[str, Any]:
    values = {
        "tool": tool,
        "version": "^1.0.0",
        "metadata": {"mcp": {"tool_name": "read_file"}},
        **changes,
    }
    return {key: value for key, value in values.items() if value is not GONE}


def driver_text(**changes: Any) -> str:
    return text_of(driver_values(**changes))


def tool_values(**changes: Any) -> dict[str, Any]:
    """Return the fields of a valid contract."""
    return {
        "name": "Read a file",
        "id": "fs.read",
        "description": "Reads a file as text.",
        "version": "1.0.0",
        "inputs": {
            "type": "object",
            "properties": {"path": {"type": "string"}, "encoding": {"type": "string"}},
            "required": ["path"],
        },
        "outputs": {
            "type": "object",
            "properties": {"contents": {"type": "string"}, "mime": {"type": "string"}},
            "required": ["contents"],
        },
        **changes,
    }


def tool_text(**changes: Any) -> str:
    return text_of(tool_values(**changes))


def secret_values(**changes: Any) -> dict[str, Any]:
    values = {"slug": "acme-api-key", "name": "Key", "description": "Of Acme.", **changes}
    return {key: value for key, value in values.items() if value is not GONE}


def secrets_text(*secrets: dict[str, Any]) -> str:
    return text_of({"secrets": list(secrets or (secret_values(),))})


def driver(**changes: Any) -> DriverManifest:
    return read(**changes).unwrap()


def contract(**changes: Any) -> ToolContract:
    return parse_contract(tool_text(**changes), Path("tools/fs-read/TOOL.md")).unwrap()


def read(
    *, has_code: bool = False, plain_http: bool = False, **changes: Any
) -> ReadResult[DriverManifest]:
    file = Path(".drivers/files-mcp/DRIVER.md")
    return parse_driver(driver_text(**changes), file, has_code=has_code, plain_http=plain_http)


def find_problem(problems: list[Problem], path: str) -> Problem:
    """Return the only problem at a path."""
    (result,) = [problem for problem in problems if problem.path == path]
    return result


def only(reading: Any, path: str) -> str:
    """Return message and hint of the only problem, which is at this path."""
    assert reading.value is None
    (problem,) = reading.problems
    assert problem.path == path, reading.problems
    assert problem.file.endswith("DRIVER.md")
    assert problem.line >= 1
    assert problem.column >= 1
    return f"{problem.message}; {problem.hint}"


def problem_paths(**changes: Any) -> set[str]:
    reading = read(**changes)
    assert (reading.value is None) == bool(reading.problems)
    return {problem.path for problem in reading.problems}


def codes(cautions: list[Caution] | tuple[Caution, ...]) -> set[str]:
    return {caution.code for caution in cautions}


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path
