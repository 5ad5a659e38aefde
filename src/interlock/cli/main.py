"""The entry of the program: from `sys.argv` to an exit code, with a sentence for every mistake."""

from __future__ import annotations

import gc
import sys
from typing import Final

from interlock.terminal import streams

_COLLECT_AFTER: Final = (50_000, 20, 100)
"""A program that imports makes much and drops little: to look for rubbish all the while costs a
fifth of its start."""
_INTERRUPTED: Final = 130
"""As in `say`, which may not be there yet."""


def main() -> int:
    """Run the command line. Whatever a person got wrong ends in a message, never a traceback."""
    gc.set_threshold(*_COLLECT_AFTER)
    streams.prepare_streams()
    try:
        code = _run()
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError as error:
        return streams.print_os_error(error)
    except KeyboardInterrupt:
        # Also before there is a command at all: importing one takes a while.
        return _INTERRUPTED
    return code


def _run() -> int:
    arguments = sys.argv[1:]
    if arguments in (["version"], ["--version"]):
        # Scripts ask this often, and it needs none of the rest.
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
    except SystemExit as end:
        # Everything that the app ends by itself: usage errors, --help, typer.Exit.
        return end.code if isinstance(end.code, int) else output.OK
    return output.OK
