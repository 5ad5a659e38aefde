"""The app: every command, in the order in which `--help` shows them."""

from __future__ import annotations

from typing import Annotated

import typer

from interlock.cli import about, say
from interlock.cli.up import up

app = typer.Typer(
    help="Interlock: many MCP servers behind one endpoint.",
    epilog=say.EXIT_CODES_HELP,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        about.version()
        raise typer.Exit


@app.callback()
def interlock(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Many MCP servers behind one endpoint."""


app.command()(up)
app.command()(about.schema)
app.command()(about.version)
