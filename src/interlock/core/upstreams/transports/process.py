"""A process of our own: started with pipes and a group of its own, watched until its end.

Not asyncio's `subprocess_exec`: under uvloop a child gets each of its pipes twice, and everything
that this process inherited on top. It could then close its output, and nobody would notice.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Final, Protocol

from interlock.channels.lines import PipeEnd

STDIN: Final = 0
STDOUT: Final = 1
STDERR: Final = 2

# What a started process inherits. Everything else, secrets above all, must be given by name.
INHERITED: Final = (
    "HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER", "LANG", "LC_ALL", "LC_CTYPE", "TZ",
    "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR",
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
    "SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE",
    "PYENV_ROOT", "PYENV_VERSION", "NVM_DIR", "VOLTA_HOME", "UV_CACHE_DIR",
    "SYSTEMROOT", "APPDATA", "LOCALAPPDATA", "USERPROFILE", "PATHEXT", "TEMP", "TMP",
)  # fmt: skip


def child_environment(given: Mapping[str, str]) -> dict[str, str]:
    """The environment of a started process: the harmless part of ours, and what it was given."""
    inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
    return {**inherited, **given}


class ProcessOwner(Protocol):
    """Who started a process, and hears of it."""

    def pipe_read(self, fd: int, data: bytes) -> None:
        """It wrote to its stdout or stderr."""

    def pipe_ended(self, fd: int) -> None:
        """One of its three pipes is closed at its end."""

    def exited(self) -> None:
        """It is dead, and so is everything it started in its group."""


class _Pipe(asyncio.Protocol):
    """Our end of one pipe."""

    def __init__(self, owner: ProcessOwner, fd: int) -> None:
        self._owner = owner
        self._fd = fd

    def data_received(self, data: bytes) -> None:
        self._owner.pipe_read(self._fd, data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._owner.pipe_ended(self._fd)


class Process:
    """One process. Raises OSError or ValueError when it cannot be started."""

    def __init__(
        self, argv: Sequence[str], *, env: Mapping[str, str], cwd: str | None, owner: ProcessOwner
    ) -> None:
        with ExitStack() as unless_started, ExitStack() as in_any_case:
            their_input, our_input = _pipe(in_any_case, unless_started)
            our_output, their_output = _pipe(unless_started, in_any_case)
            our_errors, their_errors = _pipe(unless_started, in_any_case)
            self._popen = subprocess.Popen(
                list(argv),
                stdin=their_input,
                stdout=their_output,
                stderr=their_errors,
                env=dict(env),
                cwd=cwd,
                # A session, and with it a group: what it starts can be ended with it.
                start_new_session=True,
            )
            unless_started.pop_all()
        self._ends = {STDIN: our_input, STDOUT: our_output, STDERR: our_errors}
        """The ends of its pipes that no transport has taken over yet."""
        self.pid = self._popen.pid
        self.stdin: Any = None
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._owner = owner
        self._pipes: list[asyncio.BaseTransport] = []
        self._watch()

    @property
    def status(self) -> int | None:
        """Its exit status, or a signal's number below zero; None while it lives."""
        return self._popen.returncode

    async def connect(self) -> None:
        """Attach our ends of the pipes to the loop."""
        attaching = asyncio.get_running_loop().create_task(self._attach())
        try:
            await asyncio.shield(attaching)
        except asyncio.CancelledError:
            # It takes a few turns of the loop. Cut short, nobody would know who closes what.
            await attaching
            raise

    async def _attach(self) -> None:
        loop = asyncio.get_running_loop()
        for fd in (STDIN, STDOUT, STDERR):
            end: Any = PipeEnd(
                self._ends.pop(fd), ours_to_close=isinstance(loop, asyncio.BaseEventLoop)
            )
            protocol = partial(_Pipe, self._owner, fd)
            if fd == STDIN:
                self.stdin, _ = await loop.connect_write_pipe(protocol, end)
                self._pipes.append(self.stdin)
            else:
                transport, _ = await loop.connect_read_pipe(protocol, end)
                self._pipes.append(transport)

    def signal_group(self, number: int) -> None:
        """Signal it and what it started. After its end: nothing, its number may be another's."""
        if self._popen.returncode is None:
            try:
                os.killpg(self.pid, number)
            except (ProcessLookupError, PermissionError):
                # Everybody in the group is gone already.
                return

    async def gone_within(self, seconds: float) -> bool:
        done, _ = await asyncio.wait([self.gone], timeout=seconds)
        return bool(done)

    def close(self) -> None:
        """Let go of the pipes."""
        for transport in self._pipes:
            transport.close()
        while self._ends:
            os.close(self._ends.popitem()[1])

    # -- its end

    def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            watched = os.pidfd_open(self.pid)
        except (AttributeError, OSError):
            # No such thing here (macOS, old kernels): a thread waits instead.
            threading.Thread(
                target=self._wait, args=(loop,), name=f"wait-{self.pid}", daemon=True
            ).start()
            return

        def ended() -> None:
            loop.remove_reader(watched)
            os.close(watched)
            # Before it is buried its number cannot become another's.
            self.signal_group(signal.SIGKILL)
            self._popen.wait()
            self._ended()

        loop.add_reader(watched, ended)

    def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        self._popen.wait()
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
        try:
            loop.call_soon_threadsafe(self._ended)
        except RuntimeError:
            # The loop is closed: nobody is left to hear of it.
            return

    def _ended(self) -> None:
        if not self.gone.done():
            self.gone.set_result(None)
        self._owner.exited()


def _pipe(reader_until: ExitStack, writer_until: ExitStack) -> tuple[int, int]:
    """A new pipe: where to read, where to write, and who sees to it that each is closed."""
    reader, writer = os.pipe()
    reader_until.callback(os.close, reader)
    writer_until.callback(os.close, writer)
    return reader, writer
