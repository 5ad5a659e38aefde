"""Import of the config files of MCP clients: their locations and their servers.

It only reads files. Its result can be shown: literal secrets are replaced by references, and the
variables to set are listed by name.
"""

from __future__ import annotations

import glob
import json
import math
import re
import shlex
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from interlock.core.config.client_secrets import SecretReplacer, Variable, variable_name
from interlock.core.config.load import parse_config, read_text
from interlock.core.config.model import Config, ServerConfig, Transport
from interlock.core.config.own_node import is_own_url, runs_interlock
from interlock.core.config.problems import ConfigError, InvalidValueError, Problem, quote
from interlock.core.config.quantities import check_url, default_segment
from interlock.core.config.render import to_yaml
from interlock.core.config.secrets import escape

# -- Parsers of the config files of MCP clients: JSON with comments and trailing commas, and TOML.
#
# An error has a position, and never quotes the text, because such files contain secrets.

_STRING_OR_COMMENT: Final = re.compile(r'"(?:\\.|[^"\\])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_STRING_OR_LAST_COMMA: Final = re.compile(r'"(?:\\.|[^"\\])*"|,(?=\s*[}\]])', re.DOTALL)
_TOML_POSITION: Final = re.compile(r"\(at line (\d+), column (\d+)\)")
_NOT_NEWLINE: Final = re.compile(r"[^\n]")


def parse_jsonc(text: str, filename: str) -> Any:
    """Return the value of a JSON text. Raises ConfigError. An empty text is an empty object."""

    def blank(match: re.Match[str]) -> str:
        # Removed text becomes spaces, so that lines and columns stay correct.
        text = match[0]
        return text if text.startswith('"') else _NOT_NEWLINE.sub(" ", text)

    stripped = _STRING_OR_COMMENT.sub(blank, text)
    stripped = _STRING_OR_LAST_COMMA.sub(blank, stripped)
    if not stripped.strip():
        return {}
    try:
        return json.loads(stripped)
    except json.JSONDecodeError as error:
        problem = Problem(
            filename, error.lineno, error.colno, "", "this is not valid JSON", "check this line"
        )
    except (RecursionError, ValueError):
        problem = Problem(filename, 0, 0, "", "this is not usable JSON", "check the file")
    raise ConfigError([problem])


def parse_toml(text: str, filename: str) -> dict[str, Any]:
    """Return the tables of a TOML text. Raises ConfigError."""
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        match = _TOML_POSITION.search(str(error))
        line, column = (int(match[1]), int(match[2])) if match else (0, 0)
    raise ConfigError(
        [Problem(filename, line, column, "", "this is not valid TOML", "check this line")]
    )


# -- Conversion of a server entry of an MCP client to a `ServerConfig`.
#
# It supports the keys of Claude Code, Claude Desktop, Cursor, VS Code (JSON) and Codex (TOML).
# Keys without a counterpart are listed in a note, never dropped silently.

_VARIABLE: Final = re.compile(r"\$\{(?P<body>[^{}]*)\}")
_ENV: Final = re.compile(r"(?:env:)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^{}]*))?")
_FOLDERS: Final = frozenset({"userHome", "workspaceFolder", "workspaceFolderBasename"})
_SEPARATORS: Final = frozenset({"pathSeparator", "/"})

# Keys about the display, approval or start of a server in the client. They can be ignored.
_CLIENT_ONLY_KEYS: Final = frozenset({
    "name", "type", "transport", "alwaysAllow", "autoApprove", "alwaysLoad", "dev", "gallery",
    "version", "required", "supports_parallel_tool_calls", "default_tools_approval_mode", "tools",
    "experimental_environment", "sandboxEnabled", "sandbox", "icon", "description",
})  # fmt: skip
_JSON_KEYS: Final = frozenset({
    "url", "serverUrl", "httpUrl", "command", "args", "env", "cwd", "headers", "disabled",
    "enabled", "timeout",
})  # fmt: skip
_CODEX_KEYS: Final = frozenset({
    "url", "command", "args", "env", "env_vars", "cwd", "bearer_token_env_var", "http_headers",
    "env_http_headers", "enabled", "startup_timeout_sec", "startup_timeout_ms", "tool_timeout_sec",
    "enabled_tools", "disabled_tools",
})  # fmt: skip
_SIGN_IN_KEYS: Final = frozenset({"oauth", "auth", "scopes", "oauth_resource", "headersHelper"})


class EntryOrigin(Struct, frozen=True):
    """The context of the entries of one file."""

    home: Path
    folder: Path
    inputs: Mapping[str, Mapping[str, Any]] = {}
    expands: bool = True
    """True if this client replaces ${…}. Codex does not."""


class EntryReader:
    """Reads the entries of one file. `notes` lists what could not be imported."""

    def __init__(self, origin: EntryOrigin, secret_replacer: SecretReplacer) -> None:
        self.origin = origin
        self.secret_replacer = secret_replacer
        self.notes: list[str] = []

    def read_json(self, key: str, entry: Mapping[str, Any]) -> ServerConfig:
        """Read an entry of `mcpServers` or `servers`. Raises InvalidValueError if it is invalid."""
        self._note_rest(key, entry, _JSON_KEYS)
        milliseconds = _seconds(entry.get("timeout")) or 0.0
        enabled = not entry.get("disabled", False) and entry.get("enabled", True) is not False
        return self._server(
            key,
            url=entry_url(entry),
            entry=entry,
            headers=self._texts(key, "headers", entry.get("headers")),
            transport="sse" if entry.get("type", entry.get("transport")) == "sse" else "auto",
            enabled=enabled,
            # Clients treat less than a second as a mistake.
            timeout=milliseconds / 1000 if milliseconds >= 1000 else None,
        )

    def read_codex(self, key: str, entry: Mapping[str, Any]) -> ServerConfig:
        """Read a table of `mcp_servers`. Raises InvalidValueError if it is invalid."""
        self._note_rest(key, entry, _CODEX_KEYS)
        headers = self._texts(key, "http_headers", entry.get("http_headers"))
        for header, variable in _mapping(entry.get("env_http_headers")).items():
            self.secret_replacer.add_variable(str(variable), f"servers.{key}.headers.{header}")
            headers[header] = f"${{env:{variable}}}"
        bearer = entry.get("bearer_token_env_var")
        if bearer:
            self.secret_replacer.add_variable(str(bearer), f"servers.{key}.headers.Authorization")
            headers["Authorization"] = f"Bearer ${{env:{bearer}}}"
        forwarded = {}
        for variable in entry.get("env_vars") or []:
            name = str(variable.get("name") if isinstance(variable, dict) else variable)
            self.secret_replacer.add_variable(name, f"servers.{key}.env.{name}")
            forwarded[name] = f"${{env:{name}}}"
        start = _seconds(entry.get("startup_timeout_sec"))
        if start is None and (milliseconds := _seconds(entry.get("startup_timeout_ms"))):
            start = milliseconds / 1000
        return self._server(
            key,
            url=entry.get("url"),
            entry=entry,
            headers=headers,
            forwarded=forwarded,
            enabled=entry.get("enabled", True) is not False,
            timeout=_seconds(entry.get("tool_timeout_sec")),
            start_timeout=start or 30.0,
            allow=[glob.escape(str(name)) for name in entry.get("enabled_tools") or []],
            deny=[glob.escape(str(name)) for name in entry.get("disabled_tools") or []],
        )

    def _server(
        self,
        key: str,
        *,
        url: Any,
        entry: Mapping[str, Any],
        headers: dict[str, str],
        enabled: bool,
        timeout: float | None,
        transport: Transport = "auto",
        forwarded: Mapping[str, str] | None = None,
        start_timeout: float = 30.0,
        allow: list[str] | None = None,
        deny: list[str] | None = None,
    ) -> ServerConfig:
        command, args = command_line(entry)
        if url and command:
            raise InvalidValueError("it has both a URL and a command")
        shared: dict[str, Any] = {
            "enabled": enabled,
            "timeout": timeout,
            "start_timeout": start_timeout,
            "allow": allow or [],
            "deny": deny or [],
        }
        if url:
            address = check_url(self._convert_variables(str(url), f"servers.{key}.url"))
            return ServerConfig(
                url=self.secret_replacer.url(key, address),
                headers={
                    h: self.secret_replacer.header(key, h, value) for h, value in headers.items()
                },
                transport=transport,
                **shared,
            )
        if not command:
            raise InvalidValueError("it has neither a URL nor a command")
        env = self._texts(key, "env", entry.get("env"))
        cwd = entry.get("cwd")
        return ServerConfig(
            command=self._convert_variables(command, f"servers.{key}.command"),
            args=self.secret_replacer.arguments(
                key, [self._convert_variables(arg, f"servers.{key}.args") for arg in args]
            ),
            env={
                **{
                    name: self.secret_replacer.environment(key, name, value)
                    for name, value in env.items()
                },
                **(forwarded or {}),
            },
            cwd=self._convert_variables(str(cwd), f"servers.{key}.cwd") if cwd else None,
            **shared,
        )

    def _texts(self, key: str, name: str, values: Any) -> dict[str, str]:
        """Return a mapping of texts with references in our notation."""
        texts = {}
        for item, value in _mapping(values).items():
            if isinstance(value, str | int | float):
                text = str(value).lower() if isinstance(value, bool) else str(value)
                texts[str(item)] = self._convert_variables(text, f"servers.{key}.{name}.{item}")
            else:
                self.notes.append(f"{key}: {name}.{item} has no value and is ignored")
        return texts

    def _convert_variables(self, text: str, used_by: str) -> str:
        """Convert ${…} of the client to our notation. Other text stays literal."""
        if not self.origin.expands:
            return escape(text)
        result, start = "", 0
        for match in _VARIABLE.finditer(text):
            result += escape(text[start : match.start()]) + self._variable(match["body"], used_by)
            start = match.end()
        return result + escape(text[start:])

    def _variable(self, body: str, used_by: str) -> str:
        if body in _FOLDERS:
            folder = self.origin.home if body == "userHome" else self.origin.folder
            return escape(folder.name if body.endswith("Basename") else str(folder))
        if body in _SEPARATORS:
            return "/"
        if body.startswith("input:"):
            input_entry = self.origin.inputs.get(body[6:], {})
            name = self.secret_replacer.add_variable(
                variable_name(body[6:]), used_by, str(input_entry.get("description", ""))
            )
            default = input_entry.get("default")
            hidden = input_entry.get("password", False) or not isinstance(default, str)
            usable = not hidden and not set(str(default)) & set("{}$")
            return f"${{env:{name}:-{default}}}" if usable and default else f"${{env:{name}}}"
        variable = _ENV.fullmatch(body)
        if variable is not None:
            name, default = variable["name"], variable["default"]
            if default is None:
                self.secret_replacer.add_variable(name, used_by)
                return f"${{env:{name}}}"
            return f"${{env:{name}:-{default}}}"
        label = f"${{{body}}}" if re.fullmatch(r"[\w.:]+", body) else "${…}"
        self.notes.append(
            f"{used_by}: {label} has a meaning only in the client; imported as plain text"
        )
        return escape(f"${{{body}}}")

    def _note_rest(self, key: str, entry: Mapping[str, Any], read: frozenset[str]) -> None:
        if "envFile" in entry:
            self.notes.append(
                f"{key}: envFile {quote(str(entry['envFile']))} is not read; "
                "set its variables before the node starts"
            )
        for name in sorted(_SIGN_IN_KEYS & set(entry)):
            self.notes.append(
                f"{key}: {name} is not imported; set headers if the server needs a token"
            )
        rest = set(entry) - read - _CLIENT_ONLY_KEYS - _SIGN_IN_KEYS - {"envFile"}
        if rest:
            self.notes.append(f"{key}: not imported: {', '.join(sorted(map(str, rest)))}")


def entry_url(entry: Mapping[str, Any]) -> Any:
    """Return the URL of a server under any of the keys of clients. None: it has a command."""
    return entry.get("url") or entry.get("serverUrl") or entry.get("httpUrl")


def command_line(entry: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Return program and arguments. An empty program: there is none. Raises InvalidValueError."""
    command, args = entry.get("command"), entry.get("args") or []
    if isinstance(command, list):
        words = [str(word) for word in command]
        return (words[0], [*words[1:], *map(str, args)]) if words else ("", [])
    if not isinstance(command, str) or not isinstance(args, list):
        return "", []
    if not args and " " in command and not command.startswith(("/", "~")):
        try:
            words = shlex.split(command)
        except ValueError:
            raise InvalidValueError("a quote in its command is not closed") from None
        return words[0], words[1:]
    return command, [str(arg) for arg in args]


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _seconds(value: Any) -> float | None:
    """Return a number of seconds that is valid as a timeout, else None."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if number and 0 < value < math.inf else None


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

_ALWAYS_SET: Final = frozenset({"HOME", "LOGNAME", "PATH", "PWD", "SHELL", "TMPDIR", "USER"})
"""Variables that are always set."""

Keys = tuple[str, ...]


class ClientConfigFile(Struct, frozen=True):
    """A config file of an MCP client that exists on this machine."""

    client: str
    path: Path
    project: bool
    """True if it belongs to a project folder, not to the user."""


class ClientEntry(Struct, frozen=True):
    """A server in the config file of a client, which still connects to it directly."""

    client: str
    """Empty for a file of an unknown client."""
    path: Path
    keys: tuple[str, ...]
    """The keys that lead to it in the file."""
    server: str
    """The name of the imported server; empty for the node itself."""


class ClientImport(Struct, frozen=True):
    """The imported servers, the variables that they need, and notes for the user."""

    servers: dict[str, ServerConfig]
    variables: list[Variable]
    notes: list[str]
    entries: list[ClientEntry] = []
    """The locations of the servers, and of the node itself, in the files."""


def find_client_configs(home: Path, cwd: Path) -> list[ClientConfigFile]:
    """Return the existing files: the project's first, then the user's."""
    files = [
        ClientConfigFile(client, cwd / name, True)
        for client, name in _PROJECT_FILES
        if _may_have_servers(cwd / name)
    ]
    project_paths = {file.path for file in files}
    for client, name in _USER_FILES:
        if home / name not in project_paths and _may_have_servers(home / name):
            files.append(ClientConfigFile(client, home / name, False))
    return files


def read_client_config(path: Path, *, home: Path, cwd: Path) -> ClientImport:
    """Import the servers of one file. Raises ConfigError if it cannot be read."""
    return import_client_configs([path], home=home, cwd=cwd)


def import_client_configs(
    paths: Iterable[Path], *, home: Path, cwd: Path, node_config: Config | None = None
) -> ClientImport:
    """Import the servers of several files. Duplicates are imported once. Different servers with
    the same name get different names.

    Args:
        node_config: the config of the importing node, which is not imported as a server.

    Raises:
        ConfigError: no file can be read. If only some cannot be read, notes report them.
    """
    secret_replacer = SecretReplacer()
    servers: dict[str, ServerConfig] = {}
    notes: list[str] = []
    entries: list[ClientEntry] = []
    documents: dict[Path, dict[str, Any]] = {}
    failed: list[ConfigError] = []
    for path in dict.fromkeys(paths):
        try:
            text = read_text(path, "check the path")
            documents[path] = _document(path, text)
        except ConfigError as error:
            failed.append(error)
            notes.append(f"not imported: {error.problems[0]}")
        else:
            secret_replacer.reserve(text)
    if failed and not documents:
        raise ConfigError(problem for error in failed for problem in error.problems)
    for path, document in documents.items():
        client = client_of(path)
        for locations, server in _read_file(
            path, document, home, cwd, secret_replacer, notes, node_config or Config()
        ):
            name = "" if server is None else _merge(servers, locations[0][-1], server, notes)
            entries += [ClientEntry(client, path, keys, name) for keys in locations]
        if path.name == ".claude.json":
            notes += _note_other_folders(document, cwd)
    return ClientImport(servers, sorted(secret_replacer.variables.values()), notes, entries)


def client_of(path: Path) -> str:
    """Return the client of a file by its name. Empty: it is unknown."""
    absolute_path = path.absolute().as_posix()
    files = (*_PROJECT_FILES, *_USER_FILES)
    return next((client for client, name in files if absolute_path.endswith(f"/{name}")), "")


def format_import(result: ClientImport) -> str:
    """Format the result for the user: variables to set, then notes, without values."""
    lines = []
    variables = [variable for variable in result.variables if variable.name not in _ALWAYS_SET]
    if variables:
        lines.append("Set these environment variables before the node starts:")
        for variable in variables:
            about = f" ({variable.description})" if variable.description else ""
            lines.append(f"  {variable.name}  for {variable.used_by}{about}")
    lines += [f"Note: {note}" for note in result.notes]
    return "\n".join(lines)


def _may_have_servers(path: Path) -> bool:
    try:
        if not path.is_file():
            return False
        # Settings and state files exist on most machines, and most have no MCP servers.
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
    secret_replacer: SecretReplacer,
    notes: list[str],
    node_config: Config,
) -> Iterator[tuple[list[Keys], ServerConfig | None]]:
    """Yield each server with its locations in the file. None: the node itself."""
    toml = path.suffix == ".toml"
    inside = path.parent.name in (".vscode", ".cursor", ".codex")
    folder = path.parent.parent if inside and path.parent.parent != home else cwd
    inputs = [*_items(document, "inputs"), *_items(_table(document, "mcp"), "inputs")]
    origin = EntryOrigin(
        home=home,
        folder=folder,
        inputs={
            str(item["id"]): item for item in inputs if isinstance(item, dict) and "id" in item
        },
        expands=not toml,
    )
    reader = EntryReader(origin, secret_replacer)
    tables = [("mcp_servers",)] if toml else _json_tables(cwd)
    # Two servers may have the same name, such as one of the user and one of the project.
    unique_entries: dict[tuple[str, str], tuple[Any, list[Keys]]] = {}
    for table in tables:
        for key, entry in _table_at(document, table).items():
            identity = (key, json.dumps(entry, sort_keys=True, default=str))
            unique_entries.setdefault(identity, (entry, []))[1].append((*table, key))
    for (key, _), (entry, locations) in unique_entries.items():
        try:
            if not key or not isinstance(entry, dict):
                raise InvalidValueError("it is not a server")
            # Before the entry is read: its variables are not needed either.
            _reject_this_node(entry, node_config)
            server = reader.read_codex(key, entry) if toml else reader.read_json(key, entry)
            _check_usable(key, server)
        except InvalidValueError as bad:
            reader.notes.append(f"{path.name}: {quote(key)} is not imported: {bad.message}")
            if isinstance(bad, _ThisNodeError):
                yield locations, None
        else:
            yield locations, server
    notes += reader.notes


class _ThisNodeError(InvalidValueError):
    """An entry for the node that imports it."""


def _reject_this_node(entry: Mapping[str, Any], node_config: Config) -> None:
    url = entry_url(entry)
    command, args = command_line(entry)
    # A stdio-only client reaches a URL through a program with the URL as an argument.
    urls = [*([url] if isinstance(url, str) else []), *args]
    listen, path = node_config.listen, node_config.path
    if any(is_own_url(url, listen, path) for url in urls):
        raise _ThisNodeError(f"it is this node itself, at {listen}{path}")
    if runs_interlock([command, *args]):
        raise _ThisNodeError("it runs `interlock stdio`, which is this node itself")


def _check_usable(key: str, server: ServerConfig) -> None:
    """Raise InvalidValueError for a server that changes when it is written and read again."""
    servers = {key: replace(server, segment="usable")}
    try:
        is_unchanged = parse_config(to_yaml(servers)).servers == servers
    except ConfigError as error:
        raise InvalidValueError(error.problems[0].message) from None
    if not is_unchanged:
        raise InvalidValueError("it cannot be written as YAML")


def _json_tables(cwd: Path) -> list[Keys]:
    """Return the key paths of servers in JSON files of clients."""
    return [
        ("mcp", "servers"),
        ("mcp.servers",),
        ("servers",),
        ("mcpServers",),
        ("projects", str(cwd), "mcpServers"),
    ]


def _note_other_folders(document: Mapping[str, Any], cwd: Path) -> Iterator[str]:
    """Yield a note for each other folder with servers in the state of Claude Code."""
    for folder in _table(document, "projects"):
        names = _table_at(document, ("projects", folder, "mcpServers"))
        if names and folder != str(cwd):
            yield (
                f".claude.json: {', '.join(map(quote, names))} of the folder {folder} "
                "is not imported: run `interlock import` in that folder"
            )


def _merge(
    servers: dict[str, ServerConfig], key: str, server: ServerConfig, notes: list[str]
) -> str:
    """Add a server unless it exists. Return its name."""
    name, number = key, 2
    while name in servers and _without_segment(servers[name]) != server:
        name, number = f"{key}-{number}", number + 1
    if name in servers:
        return name
    if name != key:
        notes.append(f"two servers are called {quote(key)}; one is now {quote(name)}")
    segments = {other.segment for other in servers.values()}
    stem = default_segment(name) or "server"
    segment, number = stem, 2
    while segment in segments:
        segment, number = f"{stem[:60]}-{number}", number + 1
    servers[name] = replace(server, segment=segment)
    return name


def _without_segment(server: ServerConfig) -> ServerConfig:
    return replace(server, segment="")


def _table(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = document.get(name)
    return value if isinstance(value, dict) else {}


def _table_at(document: Mapping[str, Any], keys: Keys) -> dict[str, Any]:
    table = dict(document)
    for key in keys:
        table = _table(table, key)
    return table


def _items(document: Mapping[str, Any], name: str) -> list[Any]:
    value = document.get(name)
    return value if isinstance(value, list) else []


__all__ = [
    "ClientConfigFile",
    "ClientEntry",
    "ClientImport",
    "find_client_configs",
    "format_import",
    "import_client_configs",
    "read_client_config",
    "to_yaml",
]
