"""`interlock up` on a terminal of its own, and what it shows there."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.command_line import INTERLOCK, CommandLine
from tests.support.waiting import HANG_TIMEOUT, wait_until


class Screen:
    """A running node, and everything that it wrote on its terminal so far."""

    def __init__(self, process: subprocess.Popen[bytes], terminal: int) -> None:
        self.process = process
        self.shown = b""
        self._terminal = terminal

    def sees(self, *words: bytes) -> bool:
        """Whether all of them were shown."""
        while select.select([self._terminal], [], [], 0)[0]:
            try:
                self.shown += os.read(self._terminal, 65536)
            except OSError:
                break
        return all(word in self.shown for word in words)

    def interrupt(self) -> int:
        """Press Ctrl-C, and read on until it has ended; its status."""
        self.process.send_signal(signal.SIGINT)
        wait_until("the end", lambda: (self.sees(), self.process.poll())[1] is not None)
        self.sees()
        return self.process.returncode


@contextmanager
def screen(world: CommandLine, **environ: str) -> Iterator[Screen]:
    """Ended by force when the block leaves it running."""
    terminal, its_side = pty.openpty()
    process = subprocess.Popen(
        [*INTERLOCK, "up"],
        cwd=world.cwd,
        env={**world.environ, "TERM": "xterm", "LINES": "40", **environ},
        stdin=its_side,
        stdout=its_side,
        stderr=its_side,
        start_new_session=True,
    )
    os.close(its_side)
    try:
        yield Screen(process, terminal)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(HANG_TIMEOUT)
        os.close(terminal)
