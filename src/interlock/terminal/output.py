"""Output of the command line, and its exit codes.

Results go to stdout. Notes, warnings and errors go to stderr. The exit codes are a public
interface: they are in `--help` and do not change.
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

_PIPE_WIDTH: Final = 10_000

EXIT_CODES_HELP: Final = (
    "Exit codes: 0 success · 1 failure (a tool error, or a check found problems) · "
    "2 wrong usage · 3 config error · 4 cannot reach a node or an upstream · "
    "130 interrupted"
)


def print_problem(message: str) -> None:
    """Print an error on stderr.

    The message can quote text of other programs, so control characters are removed.
    """
    print(f"interlock: {sanitize(message)}", file=sys.stderr)


def print_note(message: str) -> None:
    """Print a message that is not the result on stderr, without control characters."""
    print(sanitize(message), file=sys.stderr)


def print_failure(error: InterlockError) -> int:
    """Print an error and return its exit code."""
    problems = (error.data or {}).get("problems") or []
    if any(problem["file"] for problem in problems):
        # Each problem begins with `file:line:column`, so that editors and terminals can jump to it.
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
    """Replace control characters in untrusted text, so that it cannot control the terminal."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in "\n\t" else "\ufffd" for char in text)


def confirm(question: str) -> bool:
    """Ask the user a yes-or-no question. Ctrl-C ends the command without a decision."""
    import typer

    try:
        return typer.confirm(question, err=True)
    except typer.Abort:
        print(file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None


def print_json(value: Any) -> None:
    """Print a result as JSON on stdout."""
    import msgspec

    encoded = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    # JSON escapes only some of the control characters.
    print(sanitize(encoded) if sys.stdout.isatty() else encoded)


def create_console(*, stderr: bool = False) -> Console:
    """Create a console for coloured output. The output is plain text if it is not a terminal."""
    from rich.console import Console

    console = Console(stderr=stderr, highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        # A pipe has no width, and programs need complete lines.
        console.width = _PIPE_WIDTH
    return console
