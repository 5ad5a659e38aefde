"""The app: every command, in the order in which `--help` shows them.

A command is imported when it is the one that was asked for. Whoever asks for the list of them, or
for one that there is not, gets them all.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Sequence
from typing import Annotated, Any, Final, NamedTuple

import typer

from interlock.cli import about
from interlock.terminal import help_text
from interlock.terminal import output as say

_COMPLETION: Final = "_INTERLOCK_COMPLETE"
"""The shell sets it when it asks what could come next."""
HELP_OPTIONS: Final = ("-h", "--help")


class _Command(NamedTuple):
    """Where a command, or a group of them, is to be found."""

    name: str
    module: str
    panel: str
    attribute: str = ""
    """Where it is not called like the command."""
    settings: dict[str, Any] | None = None

    def add_to(self, app: typer.Typer) -> None:
        module = importlib.import_module(f"interlock.{self.module}")
        found = getattr(module, self.attribute or self.name)
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=self.name, rich_help_panel=self.panel)
        else:
            app.command(self.name, rich_help_panel=self.panel, context_settings=self.settings)(
                found
            )


_RUN, _CONFIG, _USE, _TRUST, _LOOK = "Run", "Config", "Use", "Trust", "Look"
COMMANDS: Final = (
    _Command("up", "cli.up", _RUN),
    _Command("stdio", "cli.stdio", _RUN),
    _Command("join", "tree.commands.join", _RUN),
    _Command("check", "cli.check", _CONFIG),
    # Whatever follows KEY is read by the command itself: a server's options look like ours.
    _Command("add", "cli.add", _CONFIG, settings={"allow_interspersed_args": False}),
    _Command("import", "cli.import_clients", _CONFIG, "import_clients"),
    _Command("login", "cli.login", _CONFIG),
    _Command("logout", "cli.login", _CONFIG),
    _Command("schema", "cli.about", _CONFIG),
    _Command("tools", "cli.tools", _USE),
    _Command("call", "cli.call", _USE),
    _Command("drivers", "drivers.commands.drivers", _USE),
    _Command("contracts", "contracts.commands.contracts", _USE),
    _Command("operations", "aql.commands.operations", _USE),
    _Command("topic", "topics.commands.topic", _USE),
    _Command("approvals", "cli.approvals", _TRUST),
    _Command("approve", "cli.approvals", _TRUST),
    _Command("refuse", "cli.approvals", _TRUST),
    _Command("operator", "aql.commands.operator", _TRUST),
    _Command("keys", "cli.keys", _TRUST),
    _Command("token", "cli.token", _TRUST),
    _Command("policy", "cli.policy", _TRUST),
    _Command("pins", "cli.pins", _TRUST),
    _Command("automation", "automation.commands", _TRUST),
    _Command("audit", "cli.audit", _TRUST),
    _Command("doctor", "cli.doctor", _LOOK),
    _Command("status", "cli.status", _LOOK),
    _Command("tree", "tree.commands.tree", _LOOK),
    _Command("claims", "tree.commands.claims", _LOOK),
    _Command("journal", "cli.journal", _LOOK),
    _Command("version", "cli.about", _LOOK),
)


def app_for(arguments: Sequence[str]) -> typer.Typer:
    """The app with at least the command that these arguments ask for."""
    asked = arguments[0] if arguments and _COMPLETION not in os.environ else ""
    return _app_with(asked if any(asked == command.name for command in COMMANDS) else None)


def run_app(arguments: Sequence[str]) -> None:
    """Do what these arguments ask for. Ends like a program: by SystemExit, or by an error."""
    command = typer.main.get_command(app_for(arguments))
    help_text.make_readable(command, HELP_OPTIONS)
    instead = help_text.misplaced(command, arguments)
    if instead is not None:
        say.problem(f"{arguments[0]} comes after the command: {instead}")
        raise SystemExit(say.USAGE)
    command(args=list(arguments), prog_name="interlock")


@functools.cache
def _app_with(only: str | None) -> typer.Typer:
    app = typer.Typer(
        epilog=say.EXIT_CODES_HELP,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": list(HELP_OPTIONS)},
    )
    app.callback()(interlock)
    for command in COMMANDS:
        if only in (None, command.name):
            command.add_to(app)
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
