"""How a server is named on the command line by those who bring one along: a command or a URL, and
what it is given. `join_target.server_of` reads them."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import Annotated, Final
from urllib.parse import urlsplit

import typer

from interlock.core.config import ServerConfig
from interlock.core.config.problems import BadValue
from interlock.core.config.quantities import VARIABLE_PATTERN, check_url, default_segment
from interlock.core.config.secrets import escape

CommandArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="-- COMMAND",
        help="How the server is started. Everything behind -- belongs to it.",
        show_default=False,
    ),
]
UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="A server that runs already, instead of a command.",
        show_default=False,
    ),
]
EnvOption = Annotated[
    list[str] | None,
    typer.Option(
        "--env",
        "-e",
        metavar="NAME[=VALUE]",
        help="A variable for the command; without a value, the one that is set here.",
        show_default=False,
    ),
]
HeaderOption = Annotated[
    list[str] | None,
    typer.Option(
        "--header",
        "-H",
        metavar="'NAME: VALUE'",
        help="An HTTP header for --url. Secrets by reference: 'Bearer ${env:TOKEN}'.",
        show_default=False,
    ),
]


# -- The server that `interlock join` is given: how it is reached, and what to call it. Pure.

_RUNNERS: Final = frozenset(
    {"npx", "npm", "pnpm", "yarn", "bun", "bunx", "node", "deno", "uv", "uvx", "pipx", "docker",
     "podman", "sh", "bash", "env", "exec", "run", "dlx", "tool", "x"}
)  # fmt: skip
"""Words that stand before what a command line is really about."""
_PYTHON: Final = re.compile(r"python[0-9.]*")
_ENDING: Final = re.compile(r"\.(?:py|js|mjs|cjs|ts|exe|sh|jar)$")
_ABOUT_MCP: Final = re.compile(r"^(?:mcp[-_.])?(?:server[-_.])?|(?:[-_.](?:mcp|server))+$")
_COMMON_HOSTS: Final = frozenset({"mcp", "api", "www", "localhost"})


def read_server(
    command: list[str], url: str | None, env: list[str], header: list[str]
) -> ServerConfig:
    """The server, shown as itself. Raises BadParameter."""
    if bool(command) == (url is not None):
        raise typer.BadParameter(
            "name one server: a command behind --, or --url with the address of one that runs."
        )
    if url is not None:
        if env:
            raise typer.BadParameter("--env is for a command; --url takes --header.")
        try:
            check_url(url)
        except BadValue as bad:
            raise typer.BadParameter(f"--url: {bad.message}; {bad.hint}.") from None
        return ServerConfig(
            url=url, headers=dict(_header(one) for one in header), expose="transparent"
        )
    if header:
        raise typer.BadParameter("--header is for --url; a command takes --env.")
    # What stands on a command line is meant as it stands.
    program, *arguments = [escape(word) for word in command]
    return ServerConfig(
        command=program,
        args=list(arguments),
        env=dict(_variable(one) for one in env),
        expose="transparent",
    )


def guess_segment(server: ServerConfig) -> str:
    """A segment for a server whose user gave none; empty when nothing fits."""
    if server.url is not None:
        host = urlsplit(server.url).hostname or ""
        if re.fullmatch(r"[0-9.:]+", host):
            return ""
        labels = [one for one in host.split(".") if one not in _COMMON_HOSTS]
        return _plain(labels[0]) if labels else ""
    words = [server.command or "", *server.args]
    for word in words:
        name = PurePath(word.replace("\\", "/")).name
        # `npx -y @scope/server-files@1.2`: the name, without scope and version.
        name = re.sub(r"(?<=.)@.*$", "", name)
        if word.startswith("-") or name in _RUNNERS or _PYTHON.fullmatch(name):
            continue
        found = _plain(_ENDING.sub("", name.rpartition(":")[0] or name))
        if found:
            return found
    return ""


def _plain(name: str) -> str:
    """`mcp-server-files` → `files`; one that is nothing but such words stays."""
    lowered = name.lower()
    return default_segment(_ABOUT_MCP.sub("", lowered) or lowered)


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not re.fullmatch(VARIABLE_PATTERN, name):
        raise typer.BadParameter("--env wants NAME or NAME=VALUE.")
    return name, value if equals else f"${{env:{name}}}"


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not name.strip() or not colon:
        raise typer.BadParameter("--header wants 'Name: value'.")
    return name.strip(), value.strip()
