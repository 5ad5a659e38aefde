"""The app: every command, in the order in which `--help` shows them.

A command is imported when it is the one that was asked for. Whoever asks for the list of them, or
for one that there is not, gets them all.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Sequence
from typing import Annotated, Final

import typer

from interlock.app.features import load_features
from interlock.cli import about
from interlock.core.feature import Command
from interlock.terminal import help_text, output

_COMPLETION: Final = "_INTERLOCK_COMPLETE"
"""The shell sets it when it asks what could come next."""
HELP_OPTIONS: Final = ("-h", "--help")


_RUN, _CONFIG, _USE, _TRUST, _LOOK = "Run", "Config", "Use", "Trust", "Look"
_OWN: Final = (
    Command("up", "cli.up", _RUN),
    Command("stdio", "cli.stdio", _RUN),
    Command("check", "cli.check", _CONFIG),
    # Whatever follows KEY is read by the command itself: a server's options look like ours.
    Command("add", "cli.add", _CONFIG, settings={"allow_interspersed_args": False}),
    Command("import", "cli.import_clients", _CONFIG, "import_clients"),
    Command("login", "cli.login", _CONFIG),
    Command("logout", "cli.login", _CONFIG),
    Command("schema", "cli.about", _CONFIG),
    Command("tools", "cli.tools", _USE),
    Command("call", "cli.call", _USE),
    Command("approvals", "cli.approvals", _TRUST),
    Command("approve", "cli.approvals", _TRUST),
    Command("refuse", "cli.approvals", _TRUST),
    Command("keys", "cli.keys", _TRUST),
    Command("token", "cli.token", _TRUST),
    Command("policy", "cli.policy", _TRUST),
    Command("pins", "cli.pins", _TRUST),
    Command("audit", "cli.audit", _TRUST),
    Command("doctor", "cli.doctor", _LOOK),
    Command("status", "cli.status", _LOOK),
    Command("journal", "cli.journal", _LOOK),
    Command("version", "cli.about", _LOOK),
)


def commands() -> tuple[Command, ...]:
    """The commands of the program and of its features, those of a panel together."""
    found = [*_OWN, *(command for feature in load_features() for command in feature.commands)]
    panels = list(dict.fromkeys(command.panel for command in found))
    return tuple(sorted(found, key=lambda command: panels.index(command.panel)))


def add_command(app: typer.Typer, command: Command) -> None:
    """Import a command, and add it to the program."""
    module = importlib.import_module(f"interlock.{command.module}")
    found = getattr(module, command.attribute or command.name)
    if isinstance(found, typer.Typer):
        app.add_typer(found, name=command.name, rich_help_panel=command.panel)
    else:
        app.command(command.name, rich_help_panel=command.panel, context_settings=command.settings)(
            found
        )


def app_for(arguments: Sequence[str]) -> typer.Typer:
    """The app with at least the command that these arguments ask for."""
    asked = arguments[0] if arguments and _COMPLETION not in os.environ else ""
    return _app_with(asked if any(asked == command.name for command in commands()) else None)


def run_app(arguments: Sequence[str]) -> None:
    """Do what these arguments ask for. Ends like a program: by SystemExit, or by an error."""
    command = typer.main.get_command(app_for(arguments))
    help_text.fix_help(command, HELP_OPTIONS)
    instead = help_text.suggest_order(command, arguments)
    if instead is not None:
        output.print_problem(f"{arguments[0]} comes after the command: {instead}")
        raise SystemExit(output.USAGE)
    command(args=list(arguments), prog_name="interlock")


@functools.cache
def _app_with(only: str | None) -> typer.Typer:
    app = typer.Typer(
        epilog=output.EXIT_CODES_HELP,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": list(HELP_OPTIONS)},
    )
    app.callback()(interlock)
    for command in commands():
        if only in (None, command.name):
            add_command(app, command)
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        about.version()
        raise typer.Exit


def interlock(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Interlock: many MCP servers behind one endpoint, and nothing irreversible without a human.

    \b
    Begin with:
      interlock up --demo             look around
      interlock import --write        take over the servers of your MCP clients
      interlock up                    run them behind one endpoint
    """
