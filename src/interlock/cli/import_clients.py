"""`interlock import`: take over the servers that MCP clients on this machine already know."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from interlock.terminal import config_source, output

if TYPE_CHECKING:
    from interlock.core.config import ClientImport, Config


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
    config: config_source.ConfigOption = None,
) -> None:
    """Show the servers of Claude Code, Claude Desktop, Cursor, VS Code and Codex as a config.

    Secrets in those files become references to environment variables; the ones to set are listed.
    Nothing is changed without --write, and never a client's own file: --write prints how to
    connect the clients to Interlock, and how to remove their direct connections.

    \b
    Examples:
      interlock import                       what would be taken over
      interlock import .mcp.json --write     from one file, into the config
      interlock import > interlock.yaml
    """
    from interlock.core.config import (
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
    target = config_source.find_config(config) or Path(DEFAULT_NAME)
    try:
        own = load_config(target) if target.exists() else Config()
    except ConfigError:
        # It matters when it is to be written, and is told then.
        own = Config()
    direct: set[str] = set()
    found = import_client_configs(chosen, home=home, cwd=cwd, own=own)
    if not found.servers:
        output.print_problem(f"no servers in {', '.join(map(str, chosen))}.")
    elif write:
        direct = _write(found, target)
    else:
        print(to_yaml(found.servers), end="")
    note = import_note(found)
    if note:
        output.print_note(note)
    if found.servers:
        from interlock.terminal.assumed_effects import (
            CHANGE_HINT,
            INFERENCE_NOTE,
            UNANNOTATED_TEXTS,
        )

        output.print_note(
            f"{UNANNOTATED_TEXTS[own.unannotated]} {INFERENCE_NOTE} {CHANGE_HINT}. "
            "`interlock tools` lists them."
        )
    if direct:
        _say_next(found, direct, load_config(target), home, cwd)
    if not found.servers:
        raise typer.Exit(output.FAILED)


def _found(home: Path, cwd: Path) -> list[Path]:
    from interlock.core.config import find_client_configs

    files = find_client_configs(home, cwd)
    if not files:
        output.print_problem(
            "no config of an MCP client was found. Name the files to read: interlock import FILE, "
            "or write down a server yourself: interlock add NAME URL-or-COMMAND"
        )
        raise typer.Exit(output.FAILED)
    for file in files:
        output.print_note(f"# {file.client}: {file.path}")
    return [file.path for file in files]


def _write(found: ClientImport, path: Path) -> set[str]:
    """Add the servers to the config; returns the names of those that the config has now."""
    from msgspec.structs import replace

    from interlock.cli.add import note_stdio
    from interlock.core.config import add_server, parse_config
    from interlock.core.config.load import read_text
    from interlock.terminal.config_source import write_text

    text = read_text(path) if path.exists() else ""
    there = parse_config(text, str(path)).servers
    added = []
    same = set()
    for key, server in found.servers.items():
        if key not in there:
            text = add_server(text, key, server, str(path))
            added.append(key)
        elif replace(there[key], segment=server.segment) == server:
            same.add(key)
        else:
            output.print_note(
                f"Note: {path} already has another server {key}, which stays as it is. "
                f"The {key} of the client was not imported."
            )
    if added:
        write_text(path, text)
        print(f"Added {', '.join(added)} to {path}")
    else:
        print(f"Nothing to add to {path}")
    note_stdio(path)
    return same.union(added)


def _say_next(found: ClientImport, direct: set[str], config: Config, home: Path, cwd: Path) -> None:
    """How the clients reach Interlock, and how they stop going around it."""
    from interlock.cli.foreground import token_variable, url_for_others
    from interlock.terminal.clients import client_lines, removal_hint

    connected = {one.client for one in found.entries if not one.server}
    entries = [one for one in found.entries if one.server in direct]
    clients = {one.client for one in entries} - connected
    scheme = "http" if config.tls is None else "https"
    url = url_for_others(f"{scheme}://{config.listen}{config.path}")
    lines = dict(client_lines(url, token_variable(config)))
    to_add = [lines[client] for client in lines if client in clients]
    if to_add:
        output.print_note("Connect your clients to Interlock:")
        for line in to_add:
            output.print_note(f"  {line}")
    output.print_note(
        "Your clients still connect to these servers directly. Remove those connections:"
    )
    for line in dict.fromkeys(removal_hint(one, home=home, cwd=cwd) for one in entries):
        output.print_note(f"  {line}")
