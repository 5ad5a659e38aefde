"""Starts the real program in a process of its own, without importing it anew every time.

Most of what a short run of `interlock` costs is Python reading its modules. One process beside the
tests has read them: for every start it splits off a copy of itself, which gets the folder, the
environment, the arguments and the streams that it is to have, and then does what
`python -m interlock` does. Who must see the interpreter itself start uses that command.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Final, NoReturn

import typer.main

import interlock
from interlock.cli.main import main

_READ_BEFORE: Final = ("interlock.cli", "interlock.terminal", "interlock.app")
_LONGEST_ORDER: Final = 1 << 18
_NUMBER_BYTES: Final = 8


@functools.cache
def build_commands_once() -> None:
    """The commands of `interlock` are built once in this process, and not anew for every run."""
    typer.main.get_command = functools.cache(typer.main.get_command)


class WarmProcess:
    """A started program, with the methods of `subprocess.Popen` that tests use."""

    def __init__(self, told: int) -> None:
        self.stdout: IO[str] | None = None
        self.returncode: int | None = None
        self._told = told
        self.pid = self._next_number()

    def poll(self) -> int | None:
        return self._ended_within(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._ended_within(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("interlock", timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _ended_within(self, seconds: float | None) -> int | None:
        if self.returncode is None and select.select([self._told], [], [], seconds)[0]:
            self.returncode = os.waitstatus_to_exitcode(self._next_number())
            os.close(self._told)
        return self.returncode

    def _next_number(self) -> int:
        line = os.read(self._told, _NUMBER_BYTES)
        assert len(line) == _NUMBER_BYTES, "the process that starts others is gone"
        return int.from_bytes(line, "big")


class WarmStarter:
    """The process that starts programs, as the tests use it."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # Made for these two, its streams are as they are for a program between pipes.
        read, write = os.pipe()
        with theirs, open(read, "rb"), open(write, "wb"):
            # It leaves at once, and its own child goes on as nobody's: a test that looks for
            # children that were left behind does not find it. It ends when our socket is closed.
            subprocess.run(
                [sys.executable, __file__, str(theirs.fileno())],
                env=dict(environ),
                stdin=read,
                stdout=write,
                pass_fds=[theirs.fileno()],
                check=True,
            )

    def start(
        self,
        arguments: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        stdin: int,
        stdout: int,
        stderr: int,
    ) -> WarmProcess:
        """Start `interlock` with these arguments and streams."""
        number, tells = os.pipe()
        try:
            order = json.dumps([list(arguments), str(cwd), dict(env)]).encode()
            socket.send_fds(self._ours, [order], [stdin, stdout, stderr, tells])
        finally:
            os.close(tells)
        return WarmProcess(number)


def _serve(orders: socket.socket) -> bool:
    """Fork a process for every request. Return True in a child, False at the end of requests."""
    for package in _READ_BEFORE:
        for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
            importlib.import_module(f"{package}.{module.name}")
    build_commands_once()
    create_app = sys.modules["interlock.cli.app"].create_app
    for command in (
        "",
        *(command.name for command in sys.modules["interlock.cli.app"].list_commands()),
    ):
        typer.main.get_command(create_app([command]))
    gc.collect()
    gc.freeze()
    # Whoever watches over a program is not waited for, and none of them is meant by a Ctrl-C.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        order, supplied, _, _ = socket.recv_fds(orders, _LONGEST_ORDER, 4)
        if not order:
            return False
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            orders.close()
            program = os.fork()
            if program == 0:
                _become(order, supplied)
                return True
            _watch(program, supplied)
        for descriptor in supplied:
            os.close(descriptor)


def _watch(program: int, given: Sequence[int]) -> NoReturn:
    """Report the process id and how the process ended."""
    *streams, tells = given
    # Whoever reads what it writes must see the end of it.
    for descriptor in (0, 1, 2, *streams):
        os.close(descriptor)
    with contextlib.suppress(BrokenPipeError):
        os.write(tells, program.to_bytes(_NUMBER_BYTES, "big"))
        _, status = os.waitpid(program, 0)
        os.write(tells, status.to_bytes(_NUMBER_BYTES, "big"))
    os._exit(0)


def _become(order: bytes, given: Sequence[int]) -> None:
    """Set up the process for this request."""
    arguments, folder, environ = json.loads(order)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, descriptor in enumerate(given[:3]):
        os.dup2(descriptor, number)
    for descriptor in given:
        os.close(descriptor)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environ)
    sys.path[0] = folder
    sys.argv = [str(Path(interlock.__path__[0]) / "__main__.py"), *arguments]


if __name__ == "__main__":
    if os.fork():
        os._exit(0)
    if _serve(socket.socket(fileno=int(sys.argv[1]))):
        sys.exit(main())
