"""How a call of a tool is written on the command line, by every command that makes one.
`arguments.read_arguments` reads the words, `read_timeout` how long to wait."""

from __future__ import annotations

from typing import Annotated

import typer

from interlock.terminal.times import read_duration

WordsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE",
        help="Its arguments: key=value, key=@file, key:=JSON.",
        show_default=False,
    ),
]
JsonOption = Annotated[
    str | None,
    typer.Option(
        "--json",
        metavar="OBJECT",
        help="All arguments as a JSON object; @file reads it from a file.",
        show_default=False,
    ),
]
JsonOutputOption = Annotated[
    bool,
    typer.Option(
        "--json-output",
        help="Print the structured result as JSON; the whole result when it has none.",
    ),
]


def check_given_once(words: list[str] | None, json: str | None) -> None:
    """Raises BadParameter."""
    if json is not None and words:
        raise typer.BadParameter("give the arguments as key=value or as --json, not both.")


def read_timeout(text: str | None) -> float | None:
    """What --timeout says, in seconds. Raises BadParameter."""
    return None if text is None else read_duration(text, "--timeout")
