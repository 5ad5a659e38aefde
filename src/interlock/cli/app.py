"""The typer app: every command, in the order of `--help`.

Only the requested command is imported. `--help` and an unknown command import all of them.
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

_COMPLETION_VARIABLE: Final = "_INTERLOCK_COMPLETE"
"""The shell sets this environment variable when it requests completions."""
HELP_OPTIONS: Final = ("-h", "--help")


_RENAMED_COMMANDS: Final = {
    ("refuse",): ("reject",),
    ("keys", "admit"): ("keys", "approve"),
    ("keys", "refuse"): ("keys", "reject"),
    ("pins", "forget"): ("pins", "remove"),
    ("token", "forget"): ("token", "remove"),
    ("claims", "forget"): ("claims", "remove"),
}
_RUN, _CONFIG, _USE, _TRUST, _LOOK = "Run", "Config", "Use", "Trust", "Look"
_GENERAL_COMMANDS: Final = (
    Command("up", "cli.up", _RUN),
    Command("stdio", "cli.stdio", _RUN),
    Command("check", "cli.check", _CONFIG),
    # The command itself reads the arguments after KEY: options of a server can have the same names.
    Command("add", "cli.add", _CONFIG, settings={"allow_interspersed_args": False}),
    Command("import", "cli.import_clients", _CONFIG, "import_clients"),
    Command("login", "cli.login", _CONFIG),
    Command("logout", "cli.login", _CONFIG),
    Command("schema", "cli.about", _CONFIG),
    Command("tools", "cli.tools", _USE),
    Command("call", "cli.call", _USE),
    Command("approvals", "cli.approvals", _TRUST),
    Command("approve", "cli.approvals", _TRUST),
    Command("reject", "cli.approvals", _TRUST),
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


def list_commands() -> tuple[Command, ...]:
    """Return the general commands and those of the features, grouped by help panel."""
    all_commands = [
        *_GENERAL_COMMANDS,
        *(command for feature in load_features() for command in feature.commands),
    ]
    panels = list(dict.fromkeys(command.panel for command in all_commands))
    return tuple(sorted(all_commands, key=lambda command: panels.index(command.panel)))


def add_command(app: typer.Typer, command: Command) -> None:
    """Import a command and add it to the app."""
    module = importlib.import_module(f"interlock.{command.module}")
    attribute = getattr(module, command.attribute or command.name)
    if isinstance(attribute, typer.Typer):
        app.add_typer(attribute, name=command.name, rich_help_panel=command.panel)
    else:
        app.command(command.name, rich_help_panel=command.panel, context_settings=command.settings)(
            attribute
        )


def create_app(arguments: Sequence[str]) -> typer.Typer:
    """Create the app with at least the command in these arguments."""
    name = arguments[0] if arguments and _COMPLETION_VARIABLE not in os.environ else ""
    return _create_app(name if any(name == command.name for command in list_commands()) else None)


def run_app(arguments: Sequence[str]) -> None:
    """Run the command in these arguments. It ends with SystemExit or with an error."""
    _reject_renamed_command(arguments)
    command = typer.main.get_command(create_app(arguments))
    help_text.fix_help(command, HELP_OPTIONS)
    corrected = help_text.suggest_order(command, arguments)
    if corrected is not None:
        output.print_problem(f"{arguments[0]} must come after the command. Write: {corrected}")
        raise SystemExit(output.USAGE)
    command(args=list(arguments), prog_name="interlock")


def _reject_renamed_command(arguments: Sequence[str]) -> None:
    for old, new in _RENAMED_COMMANDS.items():
        if tuple(arguments[: len(old)]) == old:
            output.print_problem(
                f"`interlock {' '.join(old)}` has a new name. Use: interlock {' '.join(new)}"
            )
            raise SystemExit(output.USAGE)


@functools.cache
def _create_app(command_name: str | None) -> typer.Typer:
    app = typer.Typer(
        epilog=output.EXIT_CODES_HELP,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": list(HELP_OPTIONS)},
    )
    app.callback()(interlock)
    for command in list_commands():
        if command_name in (None, command.name):
            add_command(app, command)
    return app


def _print_version(is_requested: bool) -> None:
    if is_requested:
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
    """Run many MCP servers behind one endpoint. Irreversible calls need the approval of a person.

    \b
    Begin with:
      interlock up --demo             start a node with a demo server
      interlock import --write        import the servers of your MCP clients
      interlock up                    run the servers behind one endpoint
    """
