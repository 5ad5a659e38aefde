"""What `--help` and a misplaced option say, put right where the library that prints them does not.

It breaks paragraphs where the source breaks them, whatever the width of the terminal, gives flags a
type as if they wanted a value, puts braces around what must be given, as if they were to be typed,
and calls an option unknown that belongs behind the command.
"""

from __future__ import annotations

import inspect
import re
import shlex
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import typer

_AS_IT_STANDS: Final = "\b"
"""A paragraph that begins with it keeps its lines: examples, tables."""
_IN_BRACES: Final = re.compile(r"\{(.*)\}((?:\.\.\.)?)")


def join_paragraph_lines(text: str) -> str:
    """The paragraphs, each in one line, so that a terminal of any width breaks them well."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(
        one if one.startswith(_AS_IT_STANDS) else " ".join(one.split("\n")) for one in paragraphs
    )


def fix_help(command: Any, names: Sequence[str], parent: typer.Context | None = None) -> None:
    """Mend the help of a command, and of those within. `names`: the options that ask for it."""
    command.help = command.help and join_paragraph_lines(command.help)
    context = typer.Context(command, parent=parent, help_option_names=list(names))
    for option in command.get_params(context):
        if getattr(option, "is_flag", False):
            option.metavar = ""
        if option.param_type_name == "argument":
            option.get_usage_pieces = partial(_usage, option)
    for one in _commands(command).values():
        fix_help(one, names, context)


def suggest_order(command: Any, arguments: Sequence[str]) -> str | None:
    """What to write instead, where an option of a command was written before that command."""
    at = next((number for number, one in enumerate(arguments) if one in _commands(command)), 0)
    option = arguments[0].partition("=")[0] if at else ""
    if not at or option in _options(command):
        return None
    asked, end = command, at
    while end < len(arguments) and arguments[end] in _commands(asked):
        asked, end = _commands(asked)[arguments[end]], end + 1
    if option not in _options(asked):
        return None
    # Right after the command: what stands further on may be for another program.
    return shlex.join(["interlock", *arguments[at:end], *arguments[:at], *arguments[end:]])


def _usage(argument: Any, context: typer.Context) -> list[str]:
    """How an argument stands in the line that shows how a command is called."""
    pieces = type(argument).get_usage_pieces(argument, context)
    return [_IN_BRACES.sub(r"\1\2", piece) for piece in pieces]


def _options(command: Any) -> set[str]:
    return {name for param in command.params for name in param.opts}


def _commands(command: Any) -> dict[str, Any]:
    return getattr(command, "commands", {})
