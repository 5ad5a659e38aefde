"""Commands of a manifest: they run to their end, with a minimal environment.

No shell is used: a line of text is split into words as a shell would. A command runs in its own
process group. The whole group is killed when the command ends, when its timeout is over, and when
the waiting task is cancelled. Output is kept up to a limit, read to its end, and never shown by
`repr`, because it may contain secrets.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import subprocess
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from msgspec import Struct

from interlock.core.upstreams.transports.process import STDERR, STDOUT, Process

MAX_OUTPUT_BYTES: Final = 256 * 1024
"""Maximum bytes that are kept of each output."""
EXIT_NOT_RUN: Final = 127
"""Exit status of a command that could not be started, as in shells."""
INHERITED_VARIABLES: Final = ("PATH", "HOME", "LANG", "TMPDIR")
"""Variables that a command inherits. All others, in particular secrets, must be passed by name."""

_EXIT_TIMEOUT_SECONDS: Final = 5.0
_OUTPUT_TIMEOUT_SECONDS: Final = 1.0
_MAX_EXCERPT_CHARACTERS: Final = 200


class CommandResult(Struct, frozen=True):
    """The result of a command."""

    status: int
    """Exit status, or a negative signal number."""
    out: str = ""
    err: str = ""
    timed_out: bool = False
    cut: bool = False
    """True if the output exceeded the limit."""
    start_error: str = ""
    """Why the command could not be started, as the rest of a sentence."""

    def __repr__(self) -> str:
        return (
            f"CommandResult(status={self.status}, timed_out={self.timed_out}, "
            f"trouble={self.start_error!r})"
        )

    def exited_with(self, status: int = 0) -> bool:
        """Return whether the command ended by itself with this status."""
        return not self.start_error and not self.timed_out and self.status == status

    @property
    def ending(self) -> str:
        """Return how the command ended, as the rest of a sentence without its output."""
        if self.start_error:
            return self.start_error
        if self.timed_out:
            return "it did not end within its timeout"
        if self.status < 0:
            return f"it was killed by signal {-self.status}"
        return f"exit status {self.status}"

    @property
    def last_line(self) -> str:
        """The last line of output. Use it only for commands that got no secrets."""
        lines = [line.strip() for line in (self.err or self.out).splitlines() if line.strip()]
        # npm's last line is the path of its log, which is not the reason.
        lines = [line for line in lines if "A complete log of this run" not in line] or lines
        text = lines[-1] if lines else ""
        return printable_excerpt(text)


def printable_excerpt(text: str) -> str:
    """Return a printable excerpt of a command's output for a message."""
    return "".join(
        character if character.isprintable() else "\ufffd"
        for character in text[:_MAX_EXCERPT_CHARACTERS]
    )


class CommandRunner(Protocol):
    """A function that runs a command to its end. It never raises for a failed command."""

    async def __call__(
        self,
        cmd: str | Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str | None,
        timeout: float,
        stdin: bytes | None = None,
    ) -> CommandResult: ...


def minimal_environment(variables: Mapping[str, str], *more: str) -> dict[str, str]:
    """Return the environment of a command: inherited variables, with `more` names, and the supplied
    ones."""
    inherited = {
        name: os.environ[name] for name in (*INHERITED_VARIABLES, *more) if name in os.environ
    }
    return {**inherited, **variables}


def split_command(cmd: str | Sequence[str]) -> list[str]:
    """Split a command into words. Raises ValueError if it is invalid."""
    try:
        words = shlex.split(cmd) if isinstance(cmd, str) else list(cmd)
    except ValueError as error:
        raise ValueError(f"it cannot be split into words ({str(error).lower()})") from None
    if not words or not words[0]:
        raise ValueError("it is empty")
    if any("\0" in word for word in words):
        raise ValueError("it contains a NUL character")
    return words


class _OutputCollector:
    """The output of a command."""

    def __init__(self) -> None:
        self.buffers = {STDOUT: bytearray(), STDERR: bytearray()}
        self.cut = False
        self.closed = asyncio.Event()
        """Set when both outputs are closed."""
        self._open = {STDOUT, STDERR}

    def on_pipe_data(self, fd: int, data: bytes) -> None:
        buffer = self.buffers[fd]
        room = MAX_OUTPUT_BYTES - len(buffer)
        self.cut = self.cut or len(data) > room
        buffer += data[: max(room, 0)]

    def on_pipe_closed(self, fd: int) -> None:
        self._open.discard(fd)
        if not self._open:
            self.closed.set()

    def on_exit(self) -> None:
        """Ignored: `Process.gone` reports it."""

    def text_of(self, fd: int) -> str:
        return self.buffers[fd].decode("utf-8", "replace")


async def run(
    cmd: str | Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str | None,
    timeout: float,
    stdin: bytes | None = None,
) -> CommandResult:
    """Run a command to its end or to its timeout (seconds)."""
    output = _OutputCollector()
    try:
        argv = split_command(cmd)
        process = Process(argv, env=minimal_environment(env), cwd=cwd, owner=output)
    except (OSError, ValueError) as error:
        return CommandResult(EXIT_NOT_RUN, start_error=_start_error(error))
    try:
        await process.connect()
        # An ended process has closed its input, and uvloop raises for a write to it.
        if stdin and not process.stdin.is_closing():
            process.stdin.write(stdin)
        process.stdin.close()
        timed_out = not await process.wait_gone(timeout)
    finally:
        # Also on cancellation. Child processes are in the group and are killed too.
        process.signal_group(signal.SIGKILL)
        try:
            await process.wait_gone(_EXIT_TIMEOUT_SECONDS)
            # A process that left the group may hold an output open without a limit. Otherwise the
            # outputs close at once.
            await _set_within(output.closed, _OUTPUT_TIMEOUT_SECONDS)
        finally:
            process.close()
    return CommandResult(
        status=process.status if process.status is not None else EXIT_NOT_RUN,
        out=output.text_of(STDOUT),
        err=output.text_of(STDERR),
        timed_out=timed_out,
        cut=output.cut,
    )


async def run_in_terminal(
    cmd: str | Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str | None,
    timeout: float,
    stdin: bytes | None = None,
) -> CommandResult:
    """Run an interactive command. It has the terminal until it ends."""
    terminal = 0
    if not os.isatty(terminal):
        return CommandResult(EXIT_NOT_RUN, start_error="it needs a terminal, and there is none")
    try:
        child = _start_in_session(split_command(cmd), minimal_environment(env, "TERM"), cwd)
    except (OSError, ValueError) as error:
        return CommandResult(EXIT_NOT_RUN, start_error=_start_error(error))
    own_group = os.getpgrp()
    end_future = asyncio.ensure_future(asyncio.to_thread(child.wait))
    try:
        _give_terminal(terminal, child.pid)
        # It may have been stopped because it used the terminal too early.
        _signal_group(child.pid, signal.SIGCONT)
        done, _ = await asyncio.wait([end_future], timeout=timeout)
    finally:
        _signal_group(child.pid, signal.SIGKILL)
        try:
            await asyncio.wait([end_future], timeout=_EXIT_TIMEOUT_SECONDS)
        finally:
            _give_terminal(terminal, own_group)
    return CommandResult(
        child.returncode if child.returncode is not None else EXIT_NOT_RUN, timed_out=not done
    )


def _start_in_session(
    argv: Sequence[str], env: Mapping[str, str], cwd: str | None
) -> subprocess.Popen[bytes]:
    """Start a process in its own process group, in the session that owns the terminal."""
    return subprocess.Popen(argv, env=env, cwd=cwd, process_group=0)


def _give_terminal(terminal: int, group: int) -> None:
    # A background process is stopped by SIGTTOU for this call unless the signal is blocked.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
    try:
        os.tcsetpgrp(terminal, group)
    except OSError:
        # The group has ended, or the terminal belongs to another session.
        return
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _signal_group(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        # The group has no processes.
        return


async def _set_within(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return


def _start_error(error: OSError | ValueError) -> str:
    """Return why a command could not be started, as the rest of a sentence."""
    if isinstance(error, FileNotFoundError):
        return f"there is no {error.filename}"
    if isinstance(error, OSError):
        return f"{error.filename or 'it'} cannot be run ({str(error.strerror).lower()})"
    return str(error)


# -- Confined commands: version checks, health checks and sign-in refreshes.
#
# They are as untrusted as the driver's server and confined in the same way. The journal records the
# command and how it ended, but not its output.


class ProcessConfinement(Protocol):
    """A confinement that limits a process to the declared network."""

    def argv(self, argv: list[str]) -> list[str]: ...

    def environment(self, env: Mapping[str, str]) -> dict[str, str]: ...


class CommandConfinement(ProcessConfinement, Protocol):
    """A confinement of one command."""

    async def close(self) -> None: ...


ConfinementOpener = Callable[[], Awaitable[CommandConfinement | None]]
"""Opens a confinement. None: the operator allows running without one. Raises InterlockError."""
CommandRecorder = Callable[[str, Mapping[str, Any]], None]
"""Records that a command ran: the outcome and details."""


def confined_runner(
    what: str,
    open_confinement: ConfinementOpener,
    record: CommandRecorder,
    *,
    run: CommandRunner = run,
) -> CommandRunner:
    """Return a runner for one command of a manifest, such as `health_check.cmd`.

    The runner raises InterlockError if the command cannot be confined. The command does not run
    then.
    """

    async def run_confined(
        cmd: str | Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str | None,
        timeout: float,
        stdin: bytes | None = None,
    ) -> CommandResult:
        try:
            argv = split_command(cmd)
        except ValueError as error:
            return CommandResult(EXIT_NOT_RUN, start_error=str(error))
        outcome, row = "refused", {"command": what, "confined": True, "ended": "it did not run"}
        confinement: CommandConfinement | None = None
        try:
            confinement = await open_confinement()
            outcome, row["ended"] = "error", "it was cancelled"
            if confinement is None:
                row["confined"] = False
                result = await run(argv, env=env, cwd=cwd, timeout=timeout, stdin=stdin)
            else:
                result = await run(
                    confinement.argv(argv),
                    env=confinement.environment(minimal_environment(env)),
                    cwd=cwd,
                    timeout=timeout,
                    stdin=stdin,
                )
            outcome, row["ended"] = ("ok" if result.exited_with(0) else "error"), result.ending
            return result
        finally:
            record(outcome, row)
            if confinement is not None:
                await confinement.close()

    return run_confined
