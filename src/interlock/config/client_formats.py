"""One server entry of an MCP client's config to a `ServerConfig`.

Knows the keys of Claude Code, Claude Desktop, Cursor and VS Code (JSON) and of Codex (TOML). What
has no counterpart here is named in a note, never dropped in silence.
"""

from __future__ import annotations

import glob
import math
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from interlock.config.client_secrets import SecretLift, variable_name
from interlock.config.model import ServerConfig, Transport
from interlock.config.problems import BadValue, quoted
from interlock.config.quantities import check_url
from interlock.config.secrets import escape

_VARIABLE: Final = re.compile(r"\$\{(?P<body>[^{}]*)\}")
_ENV: Final = re.compile(r"(?:env:)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^{}]*))?")
_FOLDERS: Final = frozenset({"userHome", "workspaceFolder", "workspaceFolderBasename"})
_SEPARATORS: Final = frozenset({"pathSeparator", "/"})

# Keys that say how the client shows, approves or starts a server: nothing is lost without them.
_OF_THE_CLIENT: Final = frozenset({
    "name", "type", "transport", "alwaysAllow", "autoApprove", "alwaysLoad", "dev", "gallery",
    "version", "required", "supports_parallel_tool_calls", "default_tools_approval_mode", "tools",
    "experimental_environment", "sandboxEnabled", "sandbox", "icon", "description",
})  # fmt: skip
_READ_FROM_JSON: Final = frozenset({
    "url", "serverUrl", "httpUrl", "command", "args", "env", "cwd", "headers", "disabled",
    "enabled", "timeout",
})  # fmt: skip
_READ_FROM_CODEX: Final = frozenset({
    "url", "command", "args", "env", "env_vars", "cwd", "bearer_token_env_var", "http_headers",
    "env_http_headers", "enabled", "startup_timeout_sec", "startup_timeout_ms", "tool_timeout_sec",
    "enabled_tools", "disabled_tools",
})  # fmt: skip
_SIGN_IN: Final = frozenset({"oauth", "auth", "scopes", "oauth_resource", "headersHelper"})


class Origin(Struct, frozen=True):
    """What the entries of one file may refer to."""

    home: Path
    folder: Path
    inputs: Mapping[str, Mapping[str, Any]] = {}
    expands: bool = True
    """Whether this client replaces ${…} at all; Codex does not."""


class EntryReader:
    """Reads the entries of one file; `notes` says what could not be taken over."""

    def __init__(self, origin: Origin, lift: SecretLift) -> None:
        self.origin = origin
        self.lift = lift
        self.notes: list[str] = []

    def read_json(self, key: str, entry: Mapping[str, Any]) -> ServerConfig:
        """An entry of `mcpServers` or `servers`. Raises BadValue for one that cannot be used."""
        self._note_rest(key, entry, _READ_FROM_JSON)
        milliseconds = _seconds(entry.get("timeout")) or 0.0
        enabled = not entry.get("disabled", False) and entry.get("enabled", True) is not False
        return self._server(
            key,
            url=entry_url(entry),
            entry=entry,
            headers=self._texts(key, "headers", entry.get("headers")),
            transport="sse" if entry.get("type", entry.get("transport")) == "sse" else "auto",
            enabled=enabled,
            # Clients take less than a second for a mistake.
            timeout=milliseconds / 1000 if milliseconds >= 1000 else None,
        )

    def read_codex(self, key: str, entry: Mapping[str, Any]) -> ServerConfig:
        """A table of `mcp_servers`. Raises BadValue for one that cannot be used."""
        self._note_rest(key, entry, _READ_FROM_CODEX)
        headers = self._texts(key, "http_headers", entry.get("http_headers"))
        for header, variable in _mapping(entry.get("env_http_headers")).items():
            self.lift.needs(str(variable), f"servers.{key}.headers.{header}")
            headers[header] = f"${{env:{variable}}}"
        bearer = entry.get("bearer_token_env_var")
        if bearer:
            self.lift.needs(str(bearer), f"servers.{key}.headers.Authorization")
            headers["Authorization"] = f"Bearer ${{env:{bearer}}}"
        forwarded = {}
        for variable in entry.get("env_vars") or []:
            name = str(variable.get("name") if isinstance(variable, dict) else variable)
            self.lift.needs(name, f"servers.{key}.env.{name}")
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
            raise BadValue("it has both a URL and a command")
        shared: dict[str, Any] = {
            "enabled": enabled,
            "timeout": timeout,
            "start_timeout": start_timeout,
            "allow": allow or [],
            "deny": deny or [],
        }
        if url:
            address = check_url(self._translated(str(url), f"servers.{key}.url"))
            return ServerConfig(
                url=self.lift.url(key, address),
                headers={h: self.lift.header(key, h, value) for h, value in headers.items()},
                transport=transport,
                **shared,
            )
        if not command:
            raise BadValue("it has neither a URL nor a command")
        env = self._texts(key, "env", entry.get("env"))
        cwd = entry.get("cwd")
        return ServerConfig(
            command=self._translated(command, f"servers.{key}.command"),
            args=self.lift.arguments(
                key, [self._translated(arg, f"servers.{key}.args") for arg in args]
            ),
            env={
                **{name: self.lift.environment(key, name, value) for name, value in env.items()},
                **(forwarded or {}),
            },
            cwd=self._translated(str(cwd), f"servers.{key}.cwd") if cwd else None,
            **shared,
        )

    def _texts(self, key: str, name: str, values: Any) -> dict[str, str]:
        """A mapping of texts, each in our reference language."""
        texts = {}
        for item, value in _mapping(values).items():
            if isinstance(value, str | int | float):
                text = str(value).lower() if isinstance(value, bool) else str(value)
                texts[str(item)] = self._translated(text, f"servers.{key}.{name}.{item}")
            else:
                self.notes.append(f"{key}: {name}.{item} has no value and is left out")
        return texts

    def _translated(self, text: str, used_by: str) -> str:
        """The client's ${…} in our words; what is no variable of the client stays literal."""
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
            asked = self.origin.inputs.get(body[6:], {})
            name = self.lift.needs(
                variable_name(body[6:]), used_by, str(asked.get("description", ""))
            )
            default = asked.get("default")
            hidden = asked.get("password", False) or not isinstance(default, str)
            usable = not hidden and not set(str(default)) & set("{}$")
            return f"${{env:{name}:-{default}}}" if usable and default else f"${{env:{name}}}"
        variable = _ENV.fullmatch(body)
        if variable is not None:
            name, default = variable["name"], variable["default"]
            if default is None:
                self.lift.needs(name, used_by)
                return f"${{env:{name}}}"
            return f"${{env:{name}:-{default}}}"
        shown = f"${{{body}}}" if re.fullmatch(r"[\w.:]+", body) else "${…}"
        self.notes.append(f"{used_by}: {shown} is known to the client only; kept as plain text")
        return escape(f"${{{body}}}")

    def _note_rest(self, key: str, entry: Mapping[str, Any], read: frozenset[str]) -> None:
        if "envFile" in entry:
            self.notes.append(
                f"{key}: envFile {quoted(str(entry['envFile']))} is not read; "
                "set its variables before the node starts"
            )
        for name in sorted(_SIGN_IN & set(entry)):
            self.notes.append(f"{key}: {name} is not taken over; set headers if it needs a token")
        rest = set(entry) - read - _OF_THE_CLIENT - _SIGN_IN - {"envFile"}
        if rest:
            self.notes.append(f"{key}: not taken over: {', '.join(sorted(map(str, rest)))}")


def entry_url(entry: Mapping[str, Any]) -> Any:
    """Where the server answers, under any of the keys that clients use; None when it is started."""
    return entry.get("url") or entry.get("serverUrl") or entry.get("httpUrl")


def command_line(entry: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Program and arguments; an empty program when there is none. Raises BadValue."""
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
            raise BadValue("a quote in its command is not closed") from None
        return words[0], words[1:]
    return command, [str(arg) for arg in args]


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _seconds(value: Any) -> float | None:
    """A number of seconds that can be a timeout, else None."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if number and 0 < value < math.inf else None
