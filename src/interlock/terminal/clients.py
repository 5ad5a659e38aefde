"""How each MCP client is pointed at a node: lines to paste, with the node's own URL in them."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from interlock.core.config import ClientEntry

NAME = "interlock"


def client_lines(url: str, token_variable: str | None = None) -> list[tuple[str, str]]:
    """(client, what to run or to add) pairs.

    `token_variable` is the environment variable with the bearer token, for a node that wants one.
    """
    if token_variable is None:
        claude = f"claude mcp add --scope user --transport http {NAME} {url}"
        codex = f"codex mcp add {NAME} --url {url}"
        cursor = json.dumps({"mcpServers": {NAME: {"url": url}}})
        vscode = _vscode({"name": NAME, "type": "http", "url": url})
    else:
        header = f'"Authorization: Bearer ${token_variable}"'
        claude = f"claude mcp add --scope user --transport http {NAME} {url} --header {header}"
        codex = f"codex mcp add {NAME} --url {url} --bearer-token-env-var {token_variable}"
        bearer = {"Authorization": f"Bearer ${{env:{token_variable}}}"}
        cursor = json.dumps({"mcpServers": {NAME: {"url": url, "headers": bearer}}})
        vscode = _vscode({"name": NAME, "type": "http", "url": url, "headers": bearer})
    return [
        ("Claude Code", claude),
        ("Cursor", f"{cursor}   in ~/.cursor/mcp.json"),
        ("VS Code", vscode),
        ("Codex", codex),
    ]


def _vscode(entry: dict[str, object]) -> str:
    return f"code --add-mcp {shlex.quote(json.dumps(entry, separators=(',', ':')))}"


def removal_hint(entry: ClientEntry, *, home: Path, cwd: Path) -> str:
    """How to take a server out of a client's own config: a command, or the key to delete."""
    name = shlex.quote(entry.keys[-1])
    folder = entry.path.absolute().parent
    if entry.client == "Claude Code":
        if entry.path.name == ".mcp.json":
            command = f"claude mcp remove {name} --scope project"
            # Claude Code looks in the folder in which it is started.
            return command if folder == cwd else f"(cd {shlex.quote(str(folder))} && {command})"
        scope = "local" if entry.keys[0] == "projects" else "user"
        return f"claude mcp remove {name} --scope {scope}"
    if entry.client == "Codex" and folder == home / ".codex":
        return f"codex mcp remove {name}"
    if entry.path.suffix == ".toml":
        return f"delete [{'.'.join(entry.keys)}] in {entry.path}"
    return f"delete {' > '.join(map(json.dumps, entry.keys))} in {entry.path}"


def stdio_command(config: Path) -> list[str]:
    """The command for a client that only starts programs, from whatever folder and PATH it has."""
    return [*program_command(sys.argv[0]), "stdio", "-c", str(config.absolute())]


def program_command(started_as: str) -> list[str]:
    """How this program is started from elsewhere."""
    program = Path(started_as)
    if program.name == "__main__.py":
        return [sys.executable, "-m", "interlock"]
    # Not on every PATH: it may stand in a virtual environment.
    return [str(program.absolute())] if program.is_file() else [NAME]
