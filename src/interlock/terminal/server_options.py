"""Options that describe an MCP server on the command line: a command or a URL, with environment
variables or headers. `interlock join` and `interlock topic` use them."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import Annotated, Final
from urllib.parse import urlsplit

import typer

from interlock.core.config import ServerConfig
from interlock.core.config.problems import InvalidValueError
from interlock.core.config.quantities import VARIABLE_PATTERN, check_url, default_segment
from interlock.core.config.secrets import escape

CommandArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="-- COMMAND",
        help="Start the server with this command. Everything after -- belongs to the command.",
        show_default=False,
    ),
]
UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="Use the running server at this URL, instead of a command.",
        show_default=False,
    ),
]
EnvOption = Annotated[
    list[str] | None,
    typer.Option(
        "--env",
        "-e",
        metavar="NAME[=VALUE]",
        help="Set an environment variable for the command. Without a value: pass on the present "
        "value.",
        show_default=False,
    ),
]
HeaderOption = Annotated[
    list[str] | None,
    typer.Option(
        "--header",
        "-H",
        metavar="'NAME: VALUE'",
        help="Send an HTTP header to --url. Write secrets as references: 'Bearer ${env:TOKEN}'.",
        show_default=False,
    ),
]


# -- The server config from these options, and a default name for it. Pure functions.

_RUNNERS: Final = frozenset(
    {"npx", "npm", "pnpm", "yarn", "bun", "bunx", "node", "deno", "uv", "uvx", "pipx", "docker",
     "podman", "sh", "bash", "env", "exec", "run", "dlx", "tool", "x"}
)  # fmt: skip
"""Programs and subcommands that start the actual server, and so do not name it."""
_PYTHON: Final = re.compile(r"python[0-9.]*")
_FILE_EXTENSION: Final = re.compile(r"\.(?:py|js|mjs|cjs|ts|exe|sh|jar)$")
_MCP_AFFIXES: Final = re.compile(r"^(?:mcp[-_.])?(?:server[-_.])?|(?:[-_.](?:mcp|server))+$")
_COMMON_HOSTS: Final = frozenset({"mcp", "api", "www", "localhost"})


def read_server(
    command: list[str], url: str | None, env: list[str], header: list[str]
) -> ServerConfig:
    """Create the config of a server from the options. Its tools keep their names.

    Raises BadParameter.
    """
    if bool(command) == (url is not None):
        raise typer.BadParameter(
            "Name one server: a command after --, or --url with the address of a running server."
        )
    if url is not None:
        if env:
            raise typer.BadParameter("--env is for a command. With --url, use --header.")
        try:
            check_url(url)
        except InvalidValueError as error:
            raise typer.BadParameter(f"--url: {error.message}; {error.hint}.") from None
        return ServerConfig(
            url=url, headers=dict(_read_header(text) for text in header), expose="transparent"
        )
    if header:
        raise typer.BadParameter("--header is for --url. With a command, use --env.")
    # Words of the command line are literal: `${…}` in them is not a reference.
    program, *arguments = [escape(word) for word in command]
    return ServerConfig(
        command=program,
        args=list(arguments),
        env=dict(_read_variable(text) for text in env),
        expose="transparent",
    )


def guess_segment(server: ServerConfig) -> str:
    """Guess a segment from the URL or the command of a server. Empty: no guess is possible."""
    if server.url is not None:
        host = urlsplit(server.url).hostname or ""
        if re.fullmatch(r"[0-9.:]+", host):
            return ""
        labels = [label for label in host.split(".") if label not in _COMMON_HOSTS]
        return _simplify_name(labels[0]) if labels else ""
    words = [server.command or "", *server.args]
    for word in words:
        name = PurePath(word.replace("\\", "/")).name
        # `npx -y @scope/server-files@1.2` → the name, without scope and version.
        name = re.sub(r"(?<=.)@.*$", "", name)
        if word.startswith("-") or name in _RUNNERS or _PYTHON.fullmatch(name):
            continue
        segment = _simplify_name(_FILE_EXTENSION.sub("", name.rpartition(":")[0] or name))
        if segment:
            return segment
    return ""


def _simplify_name(name: str) -> str:
    """Remove the MCP words from a name: `mcp-server-files` → `files`.

    A name of nothing but these words stays unchanged.
    """
    lowered = name.lower()
    return default_segment(_MCP_AFFIXES.sub("", lowered) or lowered)


def _read_variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not re.fullmatch(VARIABLE_PATTERN, name):
        raise typer.BadParameter("--env takes NAME or NAME=VALUE.")
    return name, value if equals else f"${{env:{name}}}"


def _read_header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not name.strip() or not colon:
        raise typer.BadParameter("--header takes 'Name: value'.")
    return name.strip(), value.strip()
