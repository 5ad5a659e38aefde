"""Options that several commands share, and parsers of their values: counts, choices, durations and
times. A wrong value, or an option in the wrong place, raises `typer.BadParameter`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Annotated, Final

import typer

from interlock.primitives.durations import DURATION_HINT, SECONDS, parse_duration

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Key = Annotated[
    Path | None,
    typer.Option(
        "--key",
        metavar="FILE|NAME",
        help="Sign with this key. Default: $INTERLOCK_KEY, or your only key that is enrolled here.",
    ),
]
PassphraseFile = Annotated[
    Path | None,
    typer.Option(
        "--passphrase-file", metavar="FILE", help="Read the passphrase from this file's first line."
    ),
]

MAX_DURATION_SECONDS: Final = 100 * SECONDS["y"]


def read_count(text: str | int) -> int:
    """Read a whole number from 1. Raises BadParameter."""
    digits = str(text)
    if not (digits.isascii() and digits.isdigit() and int(digits)):
        raise typer.BadParameter(f"Must be a whole number, at least 1. Found {digits!r}.")
    return int(digits)


def choice_reader(*choices: str) -> Callable[[str], str]:
    """Create a parser that accepts only these words. The parser raises BadParameter."""

    def read(text: str) -> str:
        if text not in choices:
            raise typer.BadParameter(f"Must be one of {', '.join(choices)}. Found {text!r}.")
        return text

    return read


def read_duration(text: str, option: str, *, zero: bool = False) -> float:
    """Return the seconds of `30s`, `5m`, `7d` or `30`. Raises typer.BadParameter.

    Args:
        option: the name of the option for the error message, such as `--timeout`.
        zero: accept 0.
    """
    try:
        number = float(text) if text.replace(".", "", 1).isdecimal() else text
        return parse_duration(number, allow_zero=zero, maximum=MAX_DURATION_SECONDS)
    except ValueError as error:
        raise typer.BadParameter(f"{option}: {error}; {DURATION_HINT}.") from None


def read_moment_ns(text: str, now_ns: int) -> int:
    """Return a time in nanoseconds, from an age or a date. A date without a zone is local time.

    Raises typer.BadParameter.
    """
    text = text.strip()
    try:
        return now_ns - int(parse_duration(text, maximum=MAX_DURATION_SECONDS) * 1e9)
    except ValueError:
        pass
    try:
        timestamp = datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        raise typer.BadParameter(
            f"{text!r} is not a time. Write an age such as 30m, 2h or 7d, or a date such as "
            "2026-01-31, 2026-01-31T12:00 or 2026-01-31T12:00:00Z."
        ) from None
    return int(timestamp * 1e9)


def reject_options_before_command(context: typer.Context) -> None:
    """Reject options of a command group that are written before a subcommand.

    The options are for the group without a subcommand. The subcommand would ignore them, and run on
    a target that the user did not select. Raises BadParameter.
    """
    command = context.invoked_subcommand
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if source is not None and source.name == "COMMANDLINE":
            option = max(parameter.opts, key=len)
            raise typer.BadParameter(
                f"{option} must come after {command}. Write: "
                f"{context.command_path} {command} {option} …",
                context,
            )
