"""`interlock import`: take over the servers that MCP clients on this machine already know."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from interlock.cli import say, where

if TYPE_CHECKING:
    from interlock.config import ClientImport


def import_clients(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILE",
            help="Client configs. Default: those found on this machine.",
            show_default=False,
        ),
    ] = None,
    write: Annotated[
        bool, typer.Option("--write", help="Add them to the config instead of printing them.")
    ] = False,
    config: where.ConfigOption = None,
) -> None:
    """Show the servers of Claude Code, Claude Desktop, Cursor, VS Code and Codex as a config.

    Secrets that stand in those files become references to environment variables; which ones to
    set is listed. Nothing is changed without --write, and never a client's own file.

    \b
    Examples:
      interlock import                       what would be taken over
      interlock import .mcp.json --write     from one file, into the config
      interlock import > interlock.yaml
    """
    from interlock.config import (
        DEFAULT_NAME,
        Config,
        ConfigError,
        import_client_configs,
        import_note,
        load_config,
        to_yaml,
    )

    home, cwd = Path.home(), Path.cwd()
    chosen = paths or _found(home, cwd)
    target = where.find(config) or Path(DEFAULT_NAME)
    try:
        own = load_config(target) if target.exists() else Config()
    except ConfigError:
        # It matters when it is to be written, and is told then.
        own = Config()
    found = import_client_configs(chosen, home=home, cwd=cwd, own=own)
    if not found.servers:
        say.problem(f"no servers in {', '.join(map(str, chosen))}.")
    elif write:
        _write(found, target)
    else:
        print(to_yaml(found.servers), end="")
    note = import_note(found)
    if note:
        say.note(note)
    if not found.servers:
        raise typer.Exit(say.FAILED)


def _found(home: Path, cwd: Path) -> list[Path]:
    from interlock.config import find_client_configs

    files = find_client_configs(home, cwd)
    if not files:
        say.problem(
            "no config of an MCP client was found. Name the files to read: interlock import FILE, "
            "or write down a server yourself: interlock add NAME URL-or-COMMAND"
        )
        raise typer.Exit(say.FAILED)
    for file in files:
        say.note(f"# {file.client}: {file.path}")
    return [file.path for file in files]


def _write(found: ClientImport, path: Path) -> None:
    from interlock.cli.add import note_stdio, write_text
    from interlock.config import add_server, parse_config
    from interlock.config.load import read_text

    text = read_text(path) if path.exists() else ""
    there = parse_config(text, str(path)).servers
    added = []
    for key, server in found.servers.items():
        if key in there:
            say.note(f"Note: {key} is in {path} already and stays as it is there.")
            continue
        text = add_server(text, key, server, str(path))
        added.append(key)
    if added:
        write_text(path, text)
    print(f"{path}: {'added ' + ', '.join(added) if added else 'nothing new'}")
    note_stdio(path)
