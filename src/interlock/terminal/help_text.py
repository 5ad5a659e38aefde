"""Corrections to the help texts and usage errors of typer.

Typer breaks paragraphs where the source does, whatever the width of the terminal. It shows a value
type for flags, and braces around required arguments, as if the user had to type them. An option
before the command that it belongs to is reported as unknown.
"""

from __future__ import annotations

import inspect
import re
import shlex
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import typer

_KEEP_LINES: Final = "\b"
"""A paragraph that begins with this character keeps its line breaks: examples, tables."""
_BRACES_PATTERN: Final = re.compile(r"\{(.*)\}((?:\.\.\.)?)")


def join_paragraph_lines(text: str) -> str:
    """Join each paragraph to one line, so that it is wrapped at the width of the terminal."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(
        paragraph if paragraph.startswith(_KEEP_LINES) else " ".join(paragraph.split("\n"))
        for paragraph in paragraphs
    )


def fix_help(command: Any, names: Sequence[str], parent: typer.Context | None = None) -> None:
    """Correct the help of a command and of its subcommands.

    Args:
        names: the options that print the help.
    """
    command.help = command.help and join_paragraph_lines(command.help)
    context = typer.Context(command, parent=parent, help_option_names=list(names))
    for option in command.get_params(context):
        if getattr(option, "is_flag", False):
            option.metavar = ""
        if option.param_type_name == "argument":
            option.get_usage_pieces = partial(_usage_pieces, option)
    for subcommand in _commands(command).values():
        fix_help(subcommand, names, context)


def suggest_order(command: Any, arguments: Sequence[str]) -> str | None:
    """Return the correct command line if an option is written before its command, else None."""
    command_index = next(
        (index for index, argument in enumerate(arguments) if argument in _commands(command)), 0
    )
    option = arguments[0].partition("=")[0] if command_index else ""
    if not command_index or option in _options(command):
        return None
    invoked, end = command, command_index
    while end < len(arguments) and arguments[end] in _commands(invoked):
        invoked, end = _commands(invoked)[arguments[end]], end + 1
    if option not in _options(invoked):
        return None
    # Put the option right after the command: later arguments can belong to another program.
    return shlex.join(
        ["interlock", *arguments[command_index:end], *arguments[:command_index], *arguments[end:]]
    )


def _usage_pieces(argument: Any, context: typer.Context) -> list[str]:
    """Return an argument for the usage line, without braces."""
    pieces = type(argument).get_usage_pieces(argument, context)
    return [_BRACES_PATTERN.sub(r"\1\2", piece) for piece in pieces]


def _options(command: Any) -> set[str]:
    return {name for param in command.params for name in param.opts}


def _commands(command: Any) -> dict[str, Any]:
    return getattr(command, "commands", {})
