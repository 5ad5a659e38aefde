"""`interlock add`: put a server into the config, without touching the rest of the file."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from interlock.terminal import config_source, output

if TYPE_CHECKING:
    from interlock.core.config import ServerConfig

_SHORT: Final = {"-e": "--env", "-H": "--header", "-c": "--config"}


_ENV_HELP: Final = "A variable for the command. Secrets by reference: TOKEN='${env:TOKEN}'."


def add(
    key: Annotated[str, typer.Argument(metavar="KEY", help="What to call it.", show_default=False)],
    target: Annotated[
        list[str],
        typer.Argument(
            metavar="URL-or-COMMAND",
            help="Where it answers, or how it is started. What follows a command belongs to it.",
            show_default=False,
        ),
    ],
    env: Annotated[
        list[str] | None,
        typer.Option("--env", "-e", metavar="NAME=VALUE", help=_ENV_HELP, show_default=False),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            "--header",
            "-H",
            metavar="'NAME: VALUE'",
            help="An HTTP header for the URL.",
            show_default=False,
        ),
    ] = None,
    config: config_source.ConfigOption = None,
) -> None:
    """Add a server to the config, which is made when it is not there.

    Comments and layout of the file stay. A running node takes the change up by itself.

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

    options = {"--env": env or [], "--header": header or [], "--config": []}
    words = own_options(target, options)
    if options["--config"]:
        config = Path(options["--config"][-1])
    server = _server(words, options["--env"], options["--header"])
    path = config_source.find_config(config) or Path(DEFAULT_NAME)
    exists = path.exists()
    text = read_text(path) if exists else ""
    config_source.write_text(path, add_server(text, key, server, str(path)))
    print(f"Added {key} to {path}{'' if exists else ' (new file)'}")
    for name, value in [*server.env.items(), *server.headers.items()]:
        instead = _reference(key, name, value)
        # What is as good as nothing, such as `true`, stays as it is.
        if "${" not in value and instead != value:
            output.print_note(
                f"Note: {name} looks like a secret and now stands in {path} as it is. "
                f"'{instead}' would refer to it instead."
            )
    source = config_source.ConfigSource(path, path.absolute().parent)
    for missing in missing_references(source.load(), source):
        output.print_note(str(missing))
    output.print_note(f"Try it: interlock doctor{'' if config is None else f' -c {config}'}")
    note_stdio(path)


def _reference(key: str, name: str, value: str) -> str:
    """What to write instead of a secret."""
    from interlock.core.config.client_secrets import SecretReplacer

    lift = SecretReplacer()
    header = name.lower() == "authorization" or "-" in name
    return lift.header(key, name, value) if header else lift.environment(key, name, value)


def note_stdio(path: Path) -> None:
    """How a client that only starts programs gets to what was just written."""
    from interlock.terminal.clients import stdio_command

    output.print_note(f"For a client that only starts programs: {shlex.join(stdio_command(path))}")


def own_options(words: list[str], options: dict[str, list[str]]) -> list[str]:
    """Take our own options out of what follows KEY; what is left is a URL or a command.

    A command's options look like ours (`docker run -e NAME`), so ours stand before it, and only a
    URL may have them behind it.
    """
    from interlock.core.config.quantities import is_url

    left = _leading_options(words, options)
    if left[:1] == ["--"]:
        return left[1:]
    if left and is_url(left[0]):
        return [left[0], *_leading_options(left[1:], options)]
    return left


def _leading_options(words: list[str], options: dict[str, list[str]]) -> list[str]:
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] != "--":
        name, equals, value = rest.pop(0).partition("=")
        name = _SHORT.get(name, name)
        if name not in options:
            raise typer.BadParameter(f"there is no option {name}; see: interlock add --help")
        if not equals:
            if not rest:
                raise typer.BadParameter(f"{name} wants a value.")
            value = rest.pop(0)
        options[name].append(value)
    return rest


def _server(target: list[str], env: list[str], header: list[str]) -> ServerConfig:
    from interlock.core.config import ServerConfig
    from interlock.core.config.problems import BadValue
    from interlock.core.config.quantities import is_url, split_command

    if not target:
        raise typer.BadParameter("what is to be added: a URL, or a command?")
    if is_url(target[0]):
        if len(target) > 1:
            raise typer.BadParameter(f"a URL stands alone; what is {target[1]!r}?")
        if env:
            raise typer.BadParameter("--env is for a command; a URL takes --header.")
        return ServerConfig(url=target[0], headers=dict(_header(one) for one in header))
    if header:
        raise typer.BadParameter("--header is for a URL; a command takes --env.")
    try:
        # One word may be a whole command line, quoted for the shell.
        command, args = split_command(target[0]) if len(target) == 1 else (target[0], target[1:])
    except BadValue as bad:
        raise typer.BadParameter(f"{bad.message}; {bad.hint}") from None
    return ServerConfig(command=command, args=args, env=dict(_variable(one) for one in env))


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise typer.BadParameter(f"--env wants NAME=VALUE, and {name!r} has no value.")
    return name, value


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not name.strip() or not colon:
        raise typer.BadParameter("--header wants 'Name: value'.")
    return name.strip(), value.strip()
