"""The three standard streams, made safe to use: one that is closed leads nowhere, a reader that
has gone changes nothing, and what cannot be written is told in a sentence. And how large the
terminal behind one is.

Whoever reads a pipe may stop reading (`interlock tools | head`): that is not a failure, so the
command goes on to its end, and its exit code says what it always says. One that has no end of its
own asks whether anybody `is_read`.
"""

from __future__ import annotations

import errno
import io
import os
import shutil
import sys
from typing import IO, Any, Final

_STDIN: Final = 0
_STDOUT: Final = 1
_STDERR: Final = 2
_UNWRITTEN: Final = "backslashreplace"
"""What becomes of a character that the encoding of a stream does not have."""
FAILED: Final = 1


_left: Final[set[int]] = set()
"""Streams whose readers have gone."""


class OutputError(OSError):
    """Something could not be written to stdout or stderr."""


class _Patient(io.FileIO):
    """A stream whose reader may leave, or whose terminal may be closed."""

    def __init__(self, fd: int) -> None:
        super().__init__(fd, "w", closefd=False)
        self._gone = {errno.EPIPE, errno.EIO} if os.isatty(fd) else {errno.EPIPE}

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            # What is still in buffers must not fail once more when the process ends.
            redirect_to_null(self.fileno())
            if error.errno in self._gone:
                _left.add(self.fileno())
                return len(data)
            raise OutputError(error.errno, error.strerror) from None


def prepare_streams() -> None:
    """Make the streams of this process safe. Those that were replaced already stay as they are."""
    for fd in (_STDIN, _STDOUT, _STDERR):
        try:
            os.fstat(fd)
        except OSError:
            # The lowest free number is the missing one: they are looked at in order.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    if sys.stdin is None:
        sys.stdin = open(_STDIN, encoding="utf-8", closefd=False)  # noqa: SIM115
    if sys.stdout is sys.__stdout__:
        sys.stdout = _opened(_STDOUT, sys.stdout, _UNWRITTEN)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _opened(_STDERR, sys.stderr, _UNWRITTEN)


def is_stdout_open() -> bool:
    """Whether stdout leads anywhere still. What was written last has to be flushed before."""
    return _STDOUT not in _left


def terminal_size(terminal: int) -> tuple[int, int]:
    """Its columns and lines, as it says itself: $COLUMNS may be another's, and what is laid out for
    a wider one is not seen."""
    try:
        columns, lines = os.get_terminal_size(terminal)
    except OSError:
        columns = lines = 0
    if not columns or not lines:
        # A serial line does not know.
        columns, lines = shutil.get_terminal_size()
    return columns, lines


def redirect_to_null(fd: int) -> None:
    """Whatever is written there from now on is gone."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, fd)
    os.close(nowhere)


def print_os_error(error: OSError) -> int:
    """Tell of something that the system refused; returns the exit code."""
    reason = error.strerror or str(error)
    if isinstance(error, OutputError):
        message = f"the output cannot be written: {reason}."
    else:
        where = f"{error.filename}: " if error.filename else ""
        message = f"{where}{reason}."
    try:
        print(f"interlock: {message}", file=sys.stderr, flush=True)
    except OSError:
        # stderr itself is what cannot be written: the exit code is all that is left.
        return FAILED
    return FAILED


def _opened(fd: int, old: IO[str] | None, errors: str) -> io.TextIOWrapper:
    eager = fd == _STDERR or os.isatty(fd)
    if isinstance(old, io.TextIOWrapper):
        # Whoever chose what becomes of characters that an encoding lacks has their way; an error
        # in the middle of a line is nobody's choice.
        lacking = {"strict", "surrogateescape"} if old.encoding.lower() != "utf-8" else {"strict"}
        errors = errors if (old.errors or "strict") in lacking else old.errors or errors
        # As $PYTHONUNBUFFERED asks for.
        eager = eager or old.write_through
    return io.TextIOWrapper(
        io.BufferedWriter(_Patient(fd)),
        encoding=getattr(old, "encoding", None) or "utf-8",
        errors=errors,
        line_buffering=eager,
    )
