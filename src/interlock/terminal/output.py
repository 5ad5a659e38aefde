"""What the command line says, and the exit codes by which scripts understand it.

Results go to stdout, everything about them to stderr. The codes are part of the interface: they
are in `--help` and do not change.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from interlock.errors import CONFIG, UPSTREAM_LOST, UPSTREAM_UNAVAILABLE, InterlockError

if TYPE_CHECKING:
    from rich.console import Console

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
BAD_CONFIG: Final = 3
UNREACHABLE: Final = 4
INTERRUPTED: Final = 130

_WIDE: Final = 10_000

EXIT_CODES_HELP: Final = (
    "Exit codes: 0 done · 1 it failed (a tool's error, a check that found problems) · "
    "2 wrong usage · 3 a problem with the config · 4 a node or an upstream cannot be reached · "
    "130 interrupted"
)


def print_problem(message: str) -> None:
    """A sentence about what went wrong, on stderr. Whoever else is quoted in it takes over nothing:
    here as in a note, what a terminal would obey is left out."""
    print(f"interlock: {sanitize(message)}", file=sys.stderr)


def print_note(message: str) -> None:
    """Something worth knowing that is not the result, on stderr."""
    print(sanitize(message), file=sys.stderr)


def print_failure(error: InterlockError) -> int:
    """Tell a person about an error; returns the exit code that tells a script."""
    problems = (error.data or {}).get("problems") or []
    if any(one["file"] for one in problems):
        # Every problem starts with its place, so that editors and terminals can jump there.
        print_note(error.message)
    else:
        print_problem(error.message)
    return exit_code(error)


def exit_code(error: InterlockError) -> int:
    if error.failure is CONFIG:
        return BAD_CONFIG
    if error.failure in (UPSTREAM_UNAVAILABLE, UPSTREAM_LOST):
        return UNREACHABLE
    return FAILED


def sanitize(text: str) -> str:
    """Text that came from elsewhere, without what could take over a terminal."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in "\n\t" else "\ufffd" for one in text)


def confirm(question: str) -> bool:
    """Whether whoever sits there says yes. Ctrl-C ends the command, and nothing was decided."""
    import typer

    try:
        return typer.confirm(question, err=True)
    except typer.Abort:
        print(file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None


def print_json(value: Any) -> None:
    """A result for a program, on stdout."""
    import msgspec

    encoded = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    # JSON escapes only some of what a terminal obeys.
    print(sanitize(encoded) if sys.stdout.isatty() else encoded)


def create_console(*, stderr: bool = False) -> Console:
    """Where coloured output goes. It is plain text when nobody looks at it."""
    from rich.console import Console

    out = Console(stderr=stderr, highlight=False, markup=False, emoji=False)
    if not out.is_terminal:
        # A pipe has no width: whoever reads it wants the whole line.
        out.width = _WIDE
    return out
