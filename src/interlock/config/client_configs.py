"""The config files of MCP clients: where they are, and what servers they hold.

Reads files, writes none. What it returns can be shown: literal secrets have become references,
and the variables to set are listed by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from interlock.config.client_formats import EntryReader, Origin, command_line, entry_url
from interlock.config.client_secrets import SecretLift, Variable
from interlock.config.jsonc import parse_jsonc, parse_toml
from interlock.config.load import parse_config, read_text
from interlock.config.model import Config, ServerConfig
from interlock.config.own_node import is_own_url, runs_interlock
from interlock.config.problems import BadValue, ConfigError, quoted
from interlock.config.quantities import default_segment
from interlock.config.render import to_yaml

_PROJECT_FILES: Final = (
    ("Claude Code", ".mcp.json"),
    ("Cursor", ".cursor/mcp.json"),
    ("VS Code", ".vscode/mcp.json"),
    ("VS Code", ".vscode/settings.json"),
    ("Codex", ".codex/config.toml"),
)
_PROFILES: Final = (".config", "Library/Application Support", "AppData/Roaming")
_USER_FILES: Final = (
    ("Claude Code", ".claude.json"),
    *(("Claude Desktop", f"{place}/Claude/claude_desktop_config.json") for place in _PROFILES),
    ("Cursor", ".cursor/mcp.json"),
    *(
        ("VS Code", f"{place}/{edition}/User/{name}")
        for place in _PROFILES
        for edition in ("Code", "Code - Insiders")
        for name in ("mcp.json", "settings.json")
    ),
    ("Codex", ".codex/config.toml"),
)


class ClientConfigFile(Struct, frozen=True):
    """A config file of an MCP client that exists on this machine."""

    client: str
    path: Path
    project: bool
    """Whether it belongs to a project folder rather than to the user."""


class ClientImport(Struct, frozen=True):
    """The servers that were found, the variables they need, and what a person should know."""

    servers: dict[str, ServerConfig]
    variables: list[Variable]
    notes: list[str]


def find_client_configs(home: Path, cwd: Path) -> list[ClientConfigFile]:
    """The files that exist: the project's first, then the user's."""
    found = [
        ClientConfigFile(client, cwd / name, True)
        for client, name in _PROJECT_FILES
        if _holds_servers(cwd / name)
    ]
    seen = {file.path for file in found}
    for client, name in _USER_FILES:
        if home / name not in seen and _holds_servers(home / name):
            found.append(ClientConfigFile(client, home / name, False))
    return found


def read_client_config(path: Path, *, home: Path, cwd: Path) -> ClientImport:
    """The servers of one client's file. Raises ConfigError for a file that cannot be read."""
    return import_client_configs([path], home=home, cwd=cwd)


def import_client_configs(
    paths: Iterable[Path], *, home: Path, cwd: Path, own: Config | None = None
) -> ClientImport:
    """The servers of several files as one set: the same server twice is one, and two servers of
    one name both stay. The node of the config `own` is no server of itself.

    A file that cannot be read is a note among several, and a ConfigError when it is the only one.
    """
    lift = SecretLift()
    servers: dict[str, ServerConfig] = {}
    notes: list[str] = []
    documents: dict[Path, dict[str, Any]] = {}
    failed: list[ConfigError] = []
    for path in dict.fromkeys(paths):
        try:
            text = read_text(path, "check the path")
            documents[path] = _document(path, text)
        except ConfigError as error:
            failed.append(error)
            notes.append(f"left out: {error.problems[0]}")
        else:
            lift.reserve(text)
    if failed and not documents:
        raise ConfigError(problem for error in failed for problem in error.problems)
    for path, document in documents.items():
        for key, server in _read_file(path, document, home, cwd, lift, notes, own or Config()):
            _merge(servers, key, server, notes)
    return ClientImport(servers, sorted(lift.variables.values()), notes)


def import_note(found: ClientImport) -> str:
    """What to tell the person who imported: variables to set, then notes. Never a value."""
    lines = []
    if found.variables:
        lines.append("Set these environment variables before the node starts:")
        for variable in found.variables:
            about = f" ({variable.description})" if variable.description else ""
            lines.append(f"  {variable.name}  for {variable.used_by}{about}")
    lines += [f"Note: {note}" for note in found.notes]
    return "\n".join(lines)


def _holds_servers(path: Path) -> bool:
    try:
        if not path.is_file():
            return False
        # Settings and state files exist everywhere; most have nothing to do with MCP.
        shared = path.name in ("settings.json", ".claude.json", "config.toml")
        return not shared or b"mcp" in path.read_bytes()
    except OSError:
        return False


def _document(path: Path, text: str) -> dict[str, Any]:
    parse = parse_toml if path.suffix == ".toml" else parse_jsonc
    document = parse(text, str(path))
    if not isinstance(document, dict):
        raise ConfigError.of(
            "this is not the config of an MCP client", "name another file", file=str(path)
        )
    return document


def _read_file(
    path: Path,
    document: dict[str, Any],
    home: Path,
    cwd: Path,
    lift: SecretLift,
    notes: list[str],
    own: Config,
) -> Iterator[tuple[str, ServerConfig]]:
    toml = path.suffix == ".toml"
    inside = path.parent.name in (".vscode", ".cursor", ".codex")
    folder = path.parent.parent if inside and path.parent.parent != home else cwd
    inputs = [*_items(document, "inputs"), *_items(_table(document, "mcp"), "inputs")]
    origin = Origin(
        home=home,
        folder=folder,
        inputs={
            str(item["id"]): item for item in inputs if isinstance(item, dict) and "id" in item
        },
        expands=not toml,
    )
    reader = EntryReader(origin, lift)
    entries = _table(document, "mcp_servers") if toml else _json_entries(document, cwd)
    for key, entry in entries.items():
        try:
            if not key or not isinstance(entry, dict):
                raise BadValue("it is not a server")
            # Before it is read: the variables that it names are not needed either.
            _refuse_this_node(entry, own)
            server = reader.read_codex(key, entry) if toml else reader.read_json(key, entry)
            _check_usable(key, server)
        except BadValue as bad:
            reader.notes.append(f"{path.name}: {quoted(key)} is left out: {bad.message}")
        else:
            yield key, server
    notes += reader.notes


def _refuse_this_node(entry: Mapping[str, Any], own: Config) -> None:
    url = entry_url(entry)
    command, args = command_line(entry)
    # A client that speaks only stdio reaches a URL through a program that is given it.
    urls = [*([url] if isinstance(url, str) else []), *args]
    if any(is_own_url(one, own.listen, own.path) for one in urls):
        raise BadValue(f"it is this node itself, at {own.listen}{own.path}")
    if runs_interlock([command, *args]):
        raise BadValue("it runs interlock stdio, which is this node itself")


def _check_usable(key: str, server: ServerConfig) -> None:
    """Raise BadValue for a server that would not read back from a file as it is."""
    named = replace(server, segment="usable")
    try:
        same = parse_config(to_yaml({key: named})).servers == {key: named}
    except ConfigError as error:
        raise BadValue(error.problems[0].message) from None
    if not same:
        raise BadValue("it cannot be written as YAML")


def _json_entries(document: Mapping[str, Any], cwd: Path) -> dict[str, Any]:
    """Every place in which a client of the JSON kind keeps servers."""
    project = _table(_table(document, "projects"), str(cwd))
    return {
        **_table(_table(document, "mcp"), "servers"),
        **_table(document, "mcp.servers"),
        **_table(document, "servers"),
        **_table(document, "mcpServers"),
        **_table(project, "mcpServers"),
    }


def _merge(
    servers: dict[str, ServerConfig], key: str, server: ServerConfig, notes: list[str]
) -> None:
    name, number = key, 2
    while name in servers and _unnamed(servers[name]) != server:
        name, number = f"{key}-{number}", number + 1
    if name in servers:
        return
    if name != key:
        notes.append(f"two servers are called {quoted(key)}; one is now {quoted(name)}")
    taken = {other.segment for other in servers.values()}
    stem = default_segment(name) or "server"
    segment, number = stem, 2
    while segment in taken:
        segment, number = f"{stem[:60]}-{number}", number + 1
    servers[name] = replace(server, segment=segment)


def _unnamed(server: ServerConfig) -> ServerConfig:
    return replace(server, segment="")


def _table(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = document.get(name)
    return value if isinstance(value, dict) else {}


def _items(document: Mapping[str, Any], name: str) -> list[Any]:
    value = document.get(name)
    return value if isinstance(value, list) else []


__all__ = [
    "ClientConfigFile",
    "ClientImport",
    "find_client_configs",
    "import_client_configs",
    "import_note",
    "read_client_config",
    "to_yaml",
]
