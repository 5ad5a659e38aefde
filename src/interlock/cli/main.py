"""The entry point of the program: from `sys.argv` to an exit code."""

from __future__ import annotations

import gc
import sys
from typing import Final

from interlock.terminal import streams

_GC_THRESHOLDS: Final = (50_000, 20, 100)
"""Imports create many objects and release few. With the default thresholds, garbage collection
takes a fifth of the start time."""
_INTERRUPTED: Final = 130
"""The same as `output.INTERRUPTED`, which may not be imported yet."""


def main() -> int:
    """Run the command line. A mistake of the user ends in a message, never in a traceback."""
    gc.set_threshold(*_GC_THRESHOLDS)
    streams.prepare_streams()
    try:
        code = _run()
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError as error:
        return streams.print_os_error(error)
    except KeyboardInterrupt:
        # Ctrl-C is also possible while a command is imported, which takes a while.
        return _INTERRUPTED
    return code


def _run() -> int:
    arguments = sys.argv[1:]
    if arguments in (["version"], ["--version"]):
        # Scripts use this often, and it needs no other imports.
        from interlock.cli.about import version_text

        print(version_text())
        return 0
    from interlock.cli.app import run_app
    from interlock.errors import InterlockError
    from interlock.terminal import output

    try:
        run_app(arguments)
    except InterlockError as error:
        return output.print_failure(error)
    except SystemExit as exit_request:
        # Usage errors, --help and typer.Exit.
        return exit_request.code if isinstance(exit_request.code, int) else output.OK
    return output.OK
