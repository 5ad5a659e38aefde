"""Setup lines for MCP clients: commands and config entries with the URL of the node."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from interlock.core.config import ClientEntry

SERVER_NAME = "interlock"


def client_lines(url: str, token_variable: str | None = None) -> list[tuple[str, str]]:
    """Return the name of each client with the command to run or the entry to add.

    Args:
        token_variable: the environment variable with the bearer token. None: the node needs no
            token.
    """
    if token_variable is None:
        claude = f"claude mcp add --scope user --transport http {SERVER_NAME} {url}"
        codex = f"codex mcp add {SERVER_NAME} --url {url}"
        cursor = json.dumps({"mcpServers": {SERVER_NAME: {"url": url}}})
        vscode = _vscode_command({"name": SERVER_NAME, "type": "http", "url": url})
    else:
        header = f'"Authorization: Bearer ${token_variable}"'
        claude = (
            f"claude mcp add --scope user --transport http {SERVER_NAME} {url} --header {header}"
        )
        codex = f"codex mcp add {SERVER_NAME} --url {url} --bearer-token-env-var {token_variable}"
        bearer = {"Authorization": f"Bearer ${{env:{token_variable}}}"}
        cursor = json.dumps({"mcpServers": {SERVER_NAME: {"url": url, "headers": bearer}}})
        vscode = _vscode_command(
            {"name": SERVER_NAME, "type": "http", "url": url, "headers": bearer}
        )
    return [
        ("Claude Code", claude),
        ("Cursor", f"{cursor}   in ~/.cursor/mcp.json"),
        ("VS Code", vscode),
        ("Codex", codex),
    ]


def _vscode_command(entry: dict[str, object]) -> str:
    return f"code --add-mcp {shlex.quote(json.dumps(entry, separators=(',', ':')))}"


def removal_hint(entry: ClientEntry, *, home: Path, cwd: Path) -> str:
    """Describe how to remove a server from a client's config: a command, or the key to delete."""
    name = shlex.quote(entry.keys[-1])
    folder = entry.path.absolute().parent
    if entry.client == "Claude Code":
        if entry.path.name == ".mcp.json":
            command = f"claude mcp remove {name} --scope project"
            # Claude Code reads the project config of the folder in which it is started.
            return command if folder == cwd else f"(cd {shlex.quote(str(folder))} && {command})"
        scope = "local" if entry.keys[0] == "projects" else "user"
        return f"claude mcp remove {name} --scope {scope}"
    if entry.client == "Codex" and folder == home / ".codex":
        return f"codex mcp remove {name}"
    if entry.path.suffix == ".toml":
        return f"delete [{'.'.join(entry.keys)}] in {entry.path}"
    return f"delete {' > '.join(map(json.dumps, entry.keys))} in {entry.path}"


def stdio_command(config: Path) -> list[str]:
    """Return the command for a client that only starts programs.

    The command has absolute paths, because the client's working folder and PATH are unknown.
    """
    return [*program_command(sys.argv[0]), "stdio", "-c", str(config.absolute())]


def program_command(argv0: str) -> list[str]:
    """Return the command that starts this program from any folder."""
    program = Path(argv0)
    if program.name == "__main__.py":
        return [sys.executable, "-m", "interlock"]
    # The program may be in a virtual environment that is not on the PATH.
    return [str(program.absolute())] if program.is_file() else [SERVER_NAME]
