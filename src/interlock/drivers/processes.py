"""Commands that a manifest names: run to their end, with nothing but what they are given.

No shell ever reads them: a line of text is split into words as a shell would, and that is all.
A command has a group of its own, and whatever it started in it ends with it: when the command ends,
when its time is up, and when whoever waits for it is cancelled. What it writes is kept up to a
limit, read to the end, and never shown by `repr`: there may be a secret in it.
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

KEPT: Final = 256 * 1024
"""Bytes that are kept of each of its two outputs."""
NOT_RUN: Final = 127
"""The status of a command that could not be started, as shells have it."""
SAFE: Final = ("PATH", "HOME", "LANG", "TMPDIR")
"""What a command inherits. Everything else, secrets above all, must be given by name."""

_BURIED_WITHIN: Final = 5.0
_LAST_WORDS: Final = 1.0
_SHOWN: Final = 200


class CommandResult(Struct, frozen=True):
    """How a command ended."""

    status: int
    """Its exit status, or a signal's number below zero."""
    out: str = ""
    err: str = ""
    timed_out: bool = False
    cut: bool = False
    """It wrote more than is kept."""
    start_error: str = ""
    """Why it could not be started, as the rest of a sentence."""

    def __repr__(self) -> str:
        return (
            f"CommandResult(status={self.status}, timed_out={self.timed_out}, "
            f"trouble={self.start_error!r})"
        )

    def exited_with(self, status: int = 0) -> bool:
        """Whether it came to its own end, with this status."""
        return not self.start_error and not self.timed_out and self.status == status

    @property
    def ending(self) -> str:
        """How it ended, as the rest of a sentence; not a word of what it wrote."""
        if self.start_error:
            return self.start_error
        if self.timed_out:
            return "it did not end in time"
        if self.status < 0:
            return f"it was ended by signal {-self.status}"
        return f"it ended with status {self.status}"

    @property
    def last_line(self) -> str:
        """The last line that it wrote. Only for commands that were told no secret."""
        lines = [line.strip() for line in (self.err or self.out).splitlines() if line.strip()]
        # npm ends with where its log is, which says nothing of why.
        lines = [line for line in lines if "A complete log of this run" not in line] or lines
        text = lines[-1] if lines else ""
        return printable_excerpt(text)


def printable_excerpt(text: str) -> str:
    """What a command wrote, so that it can stand in a sentence of ours."""
    return "".join(
        character if character.isprintable() else "\ufffd" for character in text[:_SHOWN]
    )


class CommandRunner(Protocol):
    """Runs a command to its end. Never raises for what the command is or does."""

    async def __call__(
        self,
        cmd: str | Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str | None,
        timeout: float,
        stdin: bytes | None = None,
    ) -> CommandResult: ...


def minimal_environment(given: Mapping[str, str], *more: str) -> dict[str, str]:
    """What a command gets: the safe part of ours, with `more` names, and what it is given."""
    inherited = {name: os.environ[name] for name in (*SAFE, *more) if name in os.environ}
    return {**inherited, **given}


def split_command(cmd: str | Sequence[str]) -> list[str]:
    """A command as words. Raises ValueError for one that has none."""
    try:
        words = shlex.split(cmd) if isinstance(cmd, str) else list(cmd)
    except ValueError as bad:
        raise ValueError(f"it cannot be split into words ({str(bad).lower()})") from None
    if not words or not words[0]:
        raise ValueError("it is empty")
    if any("\0" in word for word in words):
        raise ValueError("it holds a NUL character")
    return words


class _OutputCollector:
    """What a command writes."""

    def __init__(self) -> None:
        self.text = {STDOUT: bytearray(), STDERR: bytearray()}
        self.cut = False
        self.silent = asyncio.Event()
        """Nobody holds either output any more."""
        self._open = {STDOUT, STDERR}

    def on_pipe_data(self, fd: int, data: bytes) -> None:
        kept = self.text[fd]
        room = KEPT - len(kept)
        self.cut = self.cut or len(data) > room
        kept += data[: max(room, 0)]

    def on_pipe_closed(self, fd: int) -> None:
        self._open.discard(fd)
        if not self._open:
            self.silent.set()

    def on_exit(self) -> None:
        """`Process.gone` says so too."""

    def said(self, fd: int) -> str:
        return self.text[fd].decode("utf-8", "replace")


async def run(
    cmd: str | Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str | None,
    timeout: float,
    stdin: bytes | None = None,
) -> CommandResult:
    """Run a command to its end, or to the end of its time (seconds)."""
    heard = _OutputCollector()
    try:
        argv = split_command(cmd)
        process = Process(argv, env=minimal_environment(env), cwd=cwd, owner=heard)
    except (OSError, ValueError) as error:
        return CommandResult(NOT_RUN, start_error=_start_error(error))
    try:
        await process.connect()
        # One that ended already has closed its input, and uvloop raises for a write to it.
        if stdin and not process.stdin.is_closing():
            process.stdin.write(stdin)
        process.stdin.close()
        timed_out = not await process.wait_gone(timeout)
    finally:
        # Also when this is cancelled. Its children are in its group, and end with it.
        process.signal_group(signal.SIGKILL)
        try:
            await process.wait_gone(_BURIED_WITHIN)
            # One that left the group may hold an output for ever; the others are silent at once.
            await _set_within(heard.silent, _LAST_WORDS)
        finally:
            process.close()
    return CommandResult(
        status=process.status if process.status is not None else NOT_RUN,
        out=heard.said(STDOUT),
        err=heard.said(STDERR),
        timed_out=timed_out,
        cut=heard.cut,
    )


async def run_in_terminal(
    cmd: str | Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str | None,
    timeout: float,
    stdin: bytes | None = None,
) -> CommandResult:
    """Run a command that speaks with the human at this terminal: it gets it until it ends."""
    terminal = 0
    if not os.isatty(terminal):
        return CommandResult(NOT_RUN, start_error="it asks a human, and there is no terminal here")
    try:
        child = _start_in_session(split_command(cmd), minimal_environment(env, "TERM"), cwd)
    except (OSError, ValueError) as error:
        return CommandResult(NOT_RUN, start_error=_start_error(error))
    ours = os.getpgrp()
    ending = asyncio.ensure_future(asyncio.to_thread(child.wait))
    try:
        _give_terminal(terminal, child.pid)
        # It may have asked for the terminal before it had it, and sleep since then.
        _signal_group(child.pid, signal.SIGCONT)
        done, _ = await asyncio.wait([ending], timeout=timeout)
    finally:
        _signal_group(child.pid, signal.SIGKILL)
        try:
            await asyncio.wait([ending], timeout=_BURIED_WITHIN)
        finally:
            _give_terminal(terminal, ours)
    return CommandResult(
        child.returncode if child.returncode is not None else NOT_RUN, timed_out=not done
    )


def _start_in_session(
    argv: Sequence[str], env: Mapping[str, str], cwd: str | None
) -> subprocess.Popen[bytes]:
    """A process with a group of its own, in the session that has the terminal."""
    return subprocess.Popen(argv, env=env, cwd=cwd, process_group=0)


def _give_terminal(terminal: int, group: int) -> None:
    # Who is not in the foreground is stopped for asking, unless it does not listen.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
    try:
        os.tcsetpgrp(terminal, group)
    except OSError:
        # The group is gone already, or the terminal is another session's: nothing to give.
        return
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _signal_group(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        # Everybody in it is gone.
        return


async def _set_within(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return


def _start_error(error: OSError | ValueError) -> str:
    """Why a command could not be started, as the rest of a sentence."""
    if isinstance(error, FileNotFoundError):
        return f"there is no {error.filename}"
    if isinstance(error, OSError):
        return f"{error.filename or 'it'} cannot be run ({str(error.strerror).lower()})"
    return str(error)


# -- Confined commands: version and health checks, and what keeps a sign-in fresh.
#
# They are as foreign as the driver's server, so they are confined as it is. The journal gets which
# command it was and how it ended, and nothing of what it wrote.


class ProcessConfinement(Protocol):
    """What keeps a started server from the network that it did not declare."""

    def argv(self, argv: list[str]) -> list[str]: ...

    def environment(self, env: Mapping[str, str]) -> dict[str, str]: ...


class CommandConfinement(ProcessConfinement, Protocol):
    """A confinement for one command."""

    async def close(self) -> None: ...


ConfinementOpener = Callable[[], Awaitable[CommandConfinement | None]]
"""Gives a confinement. None: the operator lets it go without. Raises InterlockError."""
CommandRecorder = Callable[[str, Mapping[str, Any]], None]
"""Writes down that a command was run: a word, and what is known of it."""


def confined(
    what: str,
    open_confinement: ConfinementOpener,
    tell: CommandRecorder,
    *,
    run: CommandRunner = run,
) -> CommandRunner:
    """What runs one command of a manifest, such as `health_check.cmd`.

    Where it cannot be confined it is not run: that raises InterlockError.
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
        except ValueError as bad:
            return CommandResult(NOT_RUN, start_error=str(bad))
        word, row = "refused", {"command": what, "confined": True, "ended": "it was not run"}
        confinement: CommandConfinement | None = None
        try:
            confinement = await open_confinement()
            word, row["ended"] = "error", "nobody waited for its end"
            if confinement is None:
                row["confined"] = False
                ran = await run(argv, env=env, cwd=cwd, timeout=timeout, stdin=stdin)
            else:
                ran = await run(
                    confinement.argv(argv),
                    env=confinement.environment(minimal_environment(env)),
                    cwd=cwd,
                    timeout=timeout,
                    stdin=stdin,
                )
            word, row["ended"] = ("ok" if ran.exited_with(0) else "error"), ran.ending
            return ran
        finally:
            tell(word, row)
            if confinement is not None:
                await confinement.close()

    return run_confined
