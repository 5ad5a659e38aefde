"""Values of options that several commands read, with words for those that are none, and for those
in the wrong place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="JSON, for programs.")]
Key = Annotated[
    Path | None,
    typer.Option(
        "--key",
        metavar="FILE|NAME",
        help="The key to sign with. Default: $INTERLOCK_KEY, or the one of yours that counts here.",
    ),
]
PassphraseFile = Annotated[
    Path | None,
    typer.Option("--passphrase-file", metavar="FILE", help="Its first line is the passphrase."),
]


def count(text: str | int) -> int:
    """A whole number from 1 on. Raises BadParameter."""
    shown = str(text)
    if not (shown.isascii() and shown.isdigit() and int(shown)):
        raise typer.BadParameter(f"{shown} is no count: write a whole number from 1 on.")
    return int(shown)


def one_of(*words: str) -> Callable[[str], str]:
    """One of these words. Raises BadParameter."""

    def read(text: str) -> str:
        if text not in words:
            raise typer.BadParameter(f"{text} is none of {', '.join(words)}.")
        return text

    return read


def refuse_before_command(context: typer.Context) -> None:
    """A group that does something by itself has options for that. Before the name of a command they
    would be about nothing, and the command about what nobody meant. Raises BadParameter."""
    command = context.invoked_subcommand
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if source is not None and source.name == "COMMANDLINE":
            option = max(parameter.opts, key=len)
            raise typer.BadParameter(
                f"{option} stands before {command}, which does not see it: write it behind, "
                f"{context.command_path} {command} {option} …",
                context,
            )
