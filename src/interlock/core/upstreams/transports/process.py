"""A child process with three pipes and a process group of its own.

This module does not use asyncio's `subprocess_exec`: under uvloop a child inherits each of its
pipes twice, and all other open files of this process. It could then close its output unnoticed.
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

# The environment that a child inherits. Everything else, secrets above all, must be configured.
INHERITED: Final = (
    "HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER", "LANG", "LC_ALL", "LC_CTYPE", "TZ",
    "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR",
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
    "SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE",
    "PYENV_ROOT", "PYENV_VERSION", "NVM_DIR", "VOLTA_HOME", "UV_CACHE_DIR",
    "SYSTEMROOT", "APPDATA", "LOCALAPPDATA", "USERPROFILE", "PATHEXT", "TEMP", "TMP",
)  # fmt: skip


def child_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a child: the inherited variables and those of its config."""
    inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
    return {**inherited, **environment}


class ProcessOwner(Protocol):
    """Receives the events of a process."""

    def on_pipe_data(self, fd: int, data: bytes) -> None:
        """Handle data from its stdout or stderr."""

    def on_pipe_closed(self, fd: int) -> None:
        """Handle that the child closed one of its three pipes."""

    def on_exit(self) -> None:
        """Handle that the process has ended, with everything in its group."""


class _Pipe(asyncio.Protocol):
    """This process's end of one pipe."""

    def __init__(self, owner: ProcessOwner, fd: int) -> None:
        self._owner = owner
        self._fd = fd

    def data_received(self, data: bytes) -> None:
        self._owner.on_pipe_data(self._fd, data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._owner.on_pipe_closed(self._fd)


class Process:
    """A started process. The constructor raises OSError or ValueError if it cannot start."""

    def __init__(
        self, argv: Sequence[str], *, env: Mapping[str, str], cwd: str | None, owner: ProcessOwner
    ) -> None:
        with ExitStack() as undo_on_error, ExitStack() as always_close:
            child_stdin, parent_stdin = _create_pipe(always_close, undo_on_error)
            parent_stdout, child_stdout = _create_pipe(undo_on_error, always_close)
            parent_stderr, child_stderr = _create_pipe(undo_on_error, always_close)
            self._popen = subprocess.Popen(
                list(argv),
                stdin=child_stdin,
                stdout=child_stdout,
                stderr=child_stderr,
                env=dict(env),
                cwd=cwd,
                # A new session is a new process group: its children can be ended with it.
                start_new_session=True,
            )
            undo_on_error.pop_all()
        self._unattached = {STDIN: parent_stdin, STDOUT: parent_stdout, STDERR: parent_stderr}
        """Pipe ends that no asyncio transport has taken over yet."""
        self.pid = self._popen.pid
        self.stdin: Any = None
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._owner = owner
        self._pipes: list[asyncio.BaseTransport] = []
        self._watch()

    @property
    def status(self) -> int | None:
        """The exit status, or the negative number of a signal. None: the process is running."""
        return self._popen.returncode

    async def connect(self) -> None:
        """Attach the pipes to the event loop."""
        task = asyncio.get_running_loop().create_task(self._attach())
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            # Attaching takes a few turns of the loop. If it were interrupted, the owner of each
            # pipe end would be unknown.
            await task
            raise

    async def _attach(self) -> None:
        loop = asyncio.get_running_loop()
        for fd in (STDIN, STDOUT, STDERR):
            pipe_end: Any = PipeEnd(
                self._unattached.pop(fd), owns_descriptor=isinstance(loop, asyncio.BaseEventLoop)
            )
            protocol = partial(_Pipe, self._owner, fd)
            if fd == STDIN:
                self.stdin, _ = await loop.connect_write_pipe(protocol, pipe_end)
                self._pipes.append(self.stdin)
            else:
                transport, _ = await loop.connect_read_pipe(protocol, pipe_end)
                self._pipes.append(transport)

    def signal_group(self, number: int) -> None:
        """Send a signal to its group. After its end do nothing: its pid may be reused."""
        if self._popen.returncode is None:
            try:
                os.killpg(self.pid, number)
            except (ProcessLookupError, PermissionError):
                # All processes of the group have ended.
                return

    async def wait_gone(self, seconds: float) -> bool:
        done, _ = await asyncio.wait([self.gone], timeout=seconds)
        return bool(done)

    def close(self) -> None:
        """Close the pipes."""
        for transport in self._pipes:
            transport.close()
        while self._unattached:
            os.close(self._unattached.popitem()[1])

    # -- its end

    def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            pidfd = os.pidfd_open(self.pid)
        except (AttributeError, OSError):
            # No pidfd on macOS and old kernels: a thread waits instead.
            threading.Thread(
                target=self._wait, args=(loop,), name=f"wait-{self.pid}", daemon=True
            ).start()
            return

        def on_exit() -> None:
            loop.remove_reader(pidfd)
            os.close(pidfd)
            # Until it is reaped its pid cannot be reused.
            self.signal_group(signal.SIGKILL)
            self._popen.wait()
            self._on_exit()

        loop.add_reader(pidfd, on_exit)

    def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        self._popen.wait()
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
        try:
            loop.call_soon_threadsafe(self._on_exit)
        except RuntimeError:
            # The loop is closed, so there is no owner left to notify.
            return

    def _on_exit(self) -> None:
        if not self.gone.done():
            self.gone.set_result(None)
        self._owner.on_exit()


def _create_pipe(close_reader: ExitStack, close_writer: ExitStack) -> tuple[int, int]:
    """Create a pipe. Each stack closes one of its ends."""
    reader, writer = os.pipe()
    close_reader.callback(os.close, reader)
    close_writer.callback(os.close, writer)
    return reader, writer
