"""`interlock import`: import the servers of the MCP clients on this machine."""

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
            help="Client config files to read. Default: all that are found on this machine.",
            show_default=False,
        ),
    ] = None,
    write: Annotated[
        bool, typer.Option("--write", help="Add the servers to the config file. Default: print.")
    ] = False,
    config: config_source.ConfigOption = None,
) -> None:
    """Import the servers of Claude Code, Claude Desktop, Cursor, VS Code and Codex.

    Without --write, the servers are printed as a config. Secrets become references to environment
    variables, and the variables to set are listed. The files of the clients are never changed:
    --write prints the commands that connect the clients to Interlock and remove their direct
    connections.

    \b
    Examples:
      interlock import                       print the servers, change nothing
      interlock import .mcp.json --write     import one file into the config
      interlock import > interlock.yaml
    """
    from interlock.core.config import (
        DEFAULT_NAME,
        Config,
        ConfigError,
        format_import,
        import_client_configs,
        load_config,
        to_yaml,
    )

    home, cwd = Path.home(), Path.cwd()
    config_paths = paths or _find_client_paths(home, cwd)
    target = config_source.find_config(config) or Path(DEFAULT_NAME)
    try:
        existing_config = load_config(target) if target.exists() else Config()
    except ConfigError:
        # `--write` reports the error. Without it, the present config does not matter.
        existing_config = Config()
    imported_keys: set[str] = set()
    imported = import_client_configs(config_paths, home=home, cwd=cwd, node_config=existing_config)
    if not imported.servers:
        output.print_problem(f"No servers in {', '.join(map(str, config_paths))}.")
    elif write:
        imported_keys = _add_servers(imported, target)
    else:
        print(to_yaml(imported.servers), end="")
    note = format_import(imported)
    if note:
        output.print_note(note)
    if imported.servers:
        from interlock.terminal.assumed_effects import (
            CHANGE_HINT,
            INFERENCE_NOTE,
            UNANNOTATED_TEXTS,
        )

        output.print_note(
            f"{UNANNOTATED_TEXTS[existing_config.unannotated]} {INFERENCE_NOTE} {CHANGE_HINT}. "
            "`interlock tools` lists them."
        )
    if imported_keys:
        _print_next_steps(imported, imported_keys, load_config(target), home, cwd)
    if not imported.servers:
        raise typer.Exit(output.FAILED)


def _find_client_paths(home: Path, cwd: Path) -> list[Path]:
    from interlock.core.config import find_client_configs

    files = find_client_configs(home, cwd)
    if not files:
        output.print_problem(
            "No config of an MCP client was found. Name the files: `interlock import FILE`. "
            "Or add a server yourself: `interlock add NAME URL-or-COMMAND`"
        )
        raise typer.Exit(output.FAILED)
    for file in files:
        output.print_note(f"# {file.client}: {file.path}")
    return [file.path for file in files]


def _add_servers(imported: ClientImport, path: Path) -> set[str]:
    """Add the servers to the config. Return the names of the imported servers that it has now."""
    from msgspec.structs import replace

    from interlock.cli.add import note_stdio
    from interlock.core.config import add_server, parse_config
    from interlock.core.config.load import read_text
    from interlock.terminal.config_source import write_text

    text = read_text(path) if path.exists() else ""
    existing_servers = parse_config(text, str(path)).servers
    added_keys = []
    unchanged_keys = set()
    for key, server in imported.servers.items():
        if key not in existing_servers:
            text = add_server(text, key, server, str(path))
            added_keys.append(key)
        elif replace(existing_servers[key], segment=server.segment) == server:
            unchanged_keys.add(key)
        else:
            output.print_note(
                f"Note: {path} has another server named {key}, which stays unchanged. "
                f"The server {key} of the client was not imported."
            )
    if added_keys:
        write_text(path, text)
        print(f"Added {', '.join(added_keys)} to {path}")
    else:
        print(f"Nothing to add to {path}")
    note_stdio(path)
    return unchanged_keys.union(added_keys)


def _print_next_steps(
    imported: ClientImport, imported_keys: set[str], config: Config, home: Path, cwd: Path
) -> None:
    """Print how to connect the clients to Interlock, and how to remove direct connections."""
    from interlock.cli.foreground import find_token_variable, url_for_others
    from interlock.terminal.clients import client_lines, removal_hint

    connected_clients = {entry.client for entry in imported.entries if not entry.server}
    entries = [entry for entry in imported.entries if entry.server in imported_keys]
    clients = {entry.client for entry in entries} - connected_clients
    scheme = "http" if config.tls is None else "https"
    url = url_for_others(f"{scheme}://{config.listen}{config.path}")
    lines = dict(client_lines(url, find_token_variable(config)))
    setup_lines = [lines[client] for client in lines if client in clients]
    if setup_lines:
        output.print_note("Connect your clients to Interlock:")
        for line in setup_lines:
            output.print_note(f"  {line}")
    output.print_note(
        "Your clients still connect to these servers directly. Remove those connections:"
    )
    for line in dict.fromkeys(removal_hint(entry, home=home, cwd=cwd) for entry in entries):
        output.print_note(f"  {line}")
