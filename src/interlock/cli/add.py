"""`interlock add`: add a server to the config file, without changing the rest of the file."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from interlock.terminal import config_source, output

if TYPE_CHECKING:
    from interlock.core.config import ServerConfig

_SHORT: Final = {"-e": "--env", "-H": "--header", "-c": "--config"}


_ENV_HELP: Final = (
    "Set an environment variable for the command. "
    "Write secrets as references: TOKEN='${env:TOKEN}'."
)


def add(
    key: Annotated[
        str, typer.Argument(metavar="KEY", help="Name of the server.", show_default=False)
    ],
    target: Annotated[
        list[str],
        typer.Argument(
            metavar="URL-or-COMMAND",
            help="URL of the server, or the command that starts it, with its arguments.",
            show_default=False,
        ),
    ],
    variables: Annotated[
        list[str] | None,
        typer.Option("--env", "-e", metavar="NAME=VALUE", help=_ENV_HELP, show_default=False),
    ] = None,
    headers: Annotated[
        list[str] | None,
        typer.Option(
            "--header",
            "-H",
            metavar="'NAME: VALUE'",
            help="Send an HTTP header to the URL.",
            show_default=False,
        ),
    ] = None,
    config: config_source.ConfigOption = None,
) -> None:
    """Add a server to the config file. A missing file is created.

    Comments and layout of the file stay. A running node applies the change by itself.

    \b
    Examples:
      interlock add jira http://127.0.0.1:9001/mcp
      interlock add files npx -y @modelcontextprotocol/server-filesystem .
      interlock add db --env PGHOST=localhost -- docker run -i --rm -e PGHOST db-server
      interlock add wiki https://wiki.example.com/mcp -H 'Authorization: Bearer ${env:WIKI}'
    """
    from interlock.cli.check import missing_references
    from interlock.core.config import DEFAULT_NAME, add_server
    from interlock.core.config.load import read_text

    options = {"--env": variables or [], "--header": headers or [], "--config": []}
    arguments = extract_options(target, options)
    if options["--config"]:
        config = Path(options["--config"][-1])
    server = _server(arguments, options["--env"], options["--header"])
    path = config_source.find_config(config) or Path(DEFAULT_NAME)
    exists = path.exists()
    text = read_text(path) if exists else ""
    config_source.write_text(path, add_server(text, key, server, str(path)))
    print(f"Added {key} to {path}{'' if exists else ' (new file)'}")
    for name, value in [*server.env.items(), *server.headers.items()]:
        reference = _secret_reference(key, name, value)
        # A value that cannot be a secret, such as `true`, stays unchanged.
        if "${" not in value and reference != value:
            output.print_note(
                f"Note: {name} looks like a secret, and {path} now contains its plain value. "
                f"Write a reference instead: '{reference}'"
            )
    source = config_source.ConfigSource(path, path.absolute().parent)
    for problem in missing_references(source.load(), source):
        output.print_note(str(problem))
    output.print_note(f"Try it: `interlock doctor{'' if config is None else f' -c {config}'}`")
    note_stdio(path)


def _secret_reference(key: str, name: str, value: str) -> str:
    """Return a reference to write instead of a secret."""
    from interlock.core.config.client_secrets import SecretReplacer

    replacer = SecretReplacer()
    is_header = name.lower() == "authorization" or "-" in name
    return (
        replacer.header(key, name, value) if is_header else replacer.environment(key, name, value)
    )


def note_stdio(path: Path) -> None:
    """Print the command for clients that only start programs."""
    from interlock.terminal.clients import stdio_command

    output.print_note(
        f"Command for a client that only starts programs: {shlex.join(stdio_command(path))}"
    )


def extract_options(arguments: list[str], options: dict[str, list[str]]) -> list[str]:
    """Remove the options of `interlock add` from the arguments after KEY.

    The rest is a URL or a command. A command can have options with the same names
    (`docker run -e NAME`), so options of `add` come before the command. Only after a URL they are
    accepted, too.
    """
    from interlock.core.config.quantities import is_url

    rest = _take_options(arguments, options)
    if rest[:1] == ["--"]:
        return rest[1:]
    if rest and is_url(rest[0]):
        return [rest[0], *_take_options(rest[1:], options)]
    return rest


def _take_options(arguments: list[str], options: dict[str, list[str]]) -> list[str]:
    remaining = list(arguments)
    while remaining and remaining[0].startswith("-") and remaining[0] != "--":
        name, equals, value = remaining.pop(0).partition("=")
        name = _SHORT.get(name, name)
        if name not in options:
            raise typer.BadParameter(
                f"No such option: {name}. List the options: `interlock add --help`"
            )
        if not equals:
            if not remaining:
                raise typer.BadParameter(f"{name} needs a value.")
            value = remaining.pop(0)
        options[name].append(value)
    return remaining


def _server(target: list[str], env: list[str], header: list[str]) -> ServerConfig:
    from interlock.core.config import ServerConfig
    from interlock.core.config.problems import InvalidValueError
    from interlock.core.config.quantities import is_url, split_command

    if not target:
        raise typer.BadParameter("Name a URL, or a command that starts the server.")
    if is_url(target[0]):
        if len(target) > 1:
            raise typer.BadParameter(f"A URL has no arguments. Remove {target[1]!r}.")
        if env:
            raise typer.BadParameter("--env is for a command. With a URL, use --header.")
        return ServerConfig(url=target[0], headers=dict(_header(text) for text in header))
    if header:
        raise typer.BadParameter("--header is for a URL. With a command, use --env.")
    try:
        # A single argument can be a complete command line, quoted for the shell.
        command, args = split_command(target[0]) if len(target) == 1 else (target[0], target[1:])
    except InvalidValueError as error:
        raise typer.BadParameter(f"{error.message}; {error.hint}") from None
    return ServerConfig(command=command, args=args, env=dict(_variable(text) for text in env))


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise typer.BadParameter(f"--env takes NAME=VALUE, but {name!r} has no value.")
    return name, value


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not name.strip() or not colon:
        raise typer.BadParameter("--header takes 'Name: value'.")
    return name.strip(), value.strip()
