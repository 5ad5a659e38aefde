"""The three standard streams, made safe to use, and the size of the terminal.

A closed stream is redirected to the null device. A failed write ends in an error message. If the
reader of a pipe stops (`interlock tools | head`), that is not a failure: the command continues to
its end, with its normal exit code. A command that runs without end checks `is_stdout_open`.
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
_ENCODING_ERRORS: Final = "backslashreplace"
"""The error handler for characters that the encoding of a stream does not have."""
FAILED: Final = 1


_closed_streams: Final[set[int]] = set()
"""File descriptors of streams whose readers have closed them."""


class OutputError(OSError):
    """A failed write to stdout or stderr."""


class _TolerantWriter(io.FileIO):
    """A stream that ignores a closed reader or a closed terminal."""

    def __init__(self, fd: int) -> None:
        super().__init__(fd, "w", closefd=False)
        self._closed_reader_errors = {errno.EPIPE, errno.EIO} if os.isatty(fd) else {errno.EPIPE}

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            # Buffered data must not cause a second error when the process ends.
            redirect_to_null(self.fileno())
            if error.errno in self._closed_reader_errors:
                _closed_streams.add(self.fileno())
                return len(data)
            raise OutputError(error.errno, error.strerror) from None


def prepare_streams() -> None:
    """Make the streams of this process safe. Streams that were replaced before stay unchanged."""
    for fd in (_STDIN, _STDOUT, _STDERR):
        try:
            os.fstat(fd)
        except OSError:
            # `open` returns the lowest free number. Because the order is ascending, it is `fd`.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    if sys.stdin is None:
        sys.stdin = open(_STDIN, encoding="utf-8", closefd=False)  # noqa: SIM115
    if sys.stdout is sys.__stdout__:
        sys.stdout = _open_stream(_STDOUT, sys.stdout, _ENCODING_ERRORS)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _open_stream(_STDERR, sys.stderr, _ENCODING_ERRORS)


def is_stdout_open() -> bool:
    """Return whether stdout still has a reader. Flush the last output before."""
    return _STDOUT not in _closed_streams


def terminal_size(terminal: int) -> tuple[int, int]:
    """Return the columns and lines of a terminal, as the terminal itself reports them.

    $COLUMNS is not used first: it can belong to another terminal, and output for a wider terminal
    is cut off.
    """
    try:
        columns, lines = os.get_terminal_size(terminal)
    except OSError:
        columns = lines = 0
    if not columns or not lines:
        # A serial line does not report its size.
        columns, lines = shutil.get_terminal_size()
    return columns, lines


def redirect_to_null(fd: int) -> None:
    """Redirect a file descriptor to the null device, so that later writes are discarded."""
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, fd)
    os.close(null)


def print_os_error(error: OSError) -> int:
    """Print an error of the operating system and return the exit code."""
    reason = error.strerror or str(error)
    if isinstance(error, OutputError):
        message = f"Cannot write the output: {reason}."
    else:
        file_prefix = f"{error.filename}: " if error.filename else ""
        message = f"{file_prefix}{reason}."
    try:
        print(f"interlock: {message}", file=sys.stderr, flush=True)
    except OSError:
        # The failed stream is stderr itself. Only the exit code can report the error.
        return FAILED
    return FAILED


def _open_stream(fd: int, replaced_stream: IO[str] | None, errors: str) -> io.TextIOWrapper:
    line_buffered = fd == _STDERR or os.isatty(fd)
    if isinstance(replaced_stream, io.TextIOWrapper):
        # Keep an error handler that the user chose. The default handlers are replaced, because they
        # raise an error in the middle of a line.
        default_handlers = (
            {"strict", "surrogateescape"}
            if replaced_stream.encoding.lower() != "utf-8"
            else {"strict"}
        )
        errors = (
            errors
            if (replaced_stream.errors or "strict") in default_handlers
            else replaced_stream.errors or errors
        )
        # $PYTHONUNBUFFERED is set.
        line_buffered = line_buffered or replaced_stream.write_through
    return io.TextIOWrapper(
        io.BufferedWriter(_TolerantWriter(fd)),
        encoding=getattr(replaced_stream, "encoding", None) or "utf-8",
        errors=errors,
        line_buffering=line_buffered,
    )
