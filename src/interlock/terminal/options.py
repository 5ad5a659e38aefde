"""Options that several commands share, and readers of their values: counts, words, durations and
moments. A wrong value, or an option in the wrong place, raises `typer.BadParameter`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Annotated, Final

import typer

from interlock.primitives.durations import DURATION_HINT, SECONDS, parse_duration

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

MAX_DURATION_SECONDS: Final = 100 * SECONDS["y"]


def read_count(text: str | int) -> int:
    """A whole number from 1 on. Raises BadParameter."""
    shown = str(text)
    if not (shown.isascii() and shown.isdigit() and int(shown)):
        raise typer.BadParameter(f"{shown} is no count: write a whole number from 1 on.")
    return int(shown)


def choice_reader(*words: str) -> Callable[[str], str]:
    """One of these words. Raises BadParameter."""

    def read(text: str) -> str:
        if text not in words:
            raise typer.BadParameter(f"{text} is none of {', '.join(words)}.")
        return text

    return read


def read_duration(text: str, option: str, *, zero: bool = False) -> float:
    """The seconds of `30s`, `5m`, `7d` or `30`. Raises typer.BadParameter.

    Args:
        option: by what name the message calls it, such as `--timeout`.
    """
    try:
        number = float(text) if text.replace(".", "", 1).isdecimal() else text
        return parse_duration(number, zero=zero, most=MAX_DURATION_SECONDS)
    except ValueError as wrong:
        raise typer.BadParameter(f"{option}: {wrong}; {DURATION_HINT}.") from None


def read_moment_ns(text: str, now_ns: int) -> int:
    """The moment in nanoseconds. Without a zone it is local time. Raises typer.BadParameter."""
    text = text.strip()
    try:
        return now_ns - int(parse_duration(text, most=MAX_DURATION_SECONDS) * 1e9)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        raise typer.BadParameter(
            f"{text!r} is no moment. Write how long ago, as 30m, 2h or 7d, or a date, as "
            "2026-01-31, 2026-01-31T12:00 or 2026-01-31T12:00:00Z."
        ) from None
    return int(moment * 1e9)


def reject_options_before_command(context: typer.Context) -> None:
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
