"""Channels that show verification codes to people: a desktop window, or a command of the operator,
such as one that sends an e-mail or a text message.

The code is written to the program's standard input, never to its command line or environment, where
other processes could read it. Output of the programs is discarded, because it would end up in logs.

The terminal and the approval page need no channel: operators fetch codes there after signing in.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from interlock.aql.config import ChannelConfig
from interlock.aql.safety.codes import VerificationCodes
from interlock.core.config.secrets import resolve

AT_TERMINAL_OR_PAGE: Final = ("terminal", "page")
TIMEOUT_SECONDS: Final = 30.0
"""Seconds. A program that takes longer is killed."""
_TITLE: Final = "Interlock: approval needed"

_log = logging.getLogger("interlock.safety")


class CommandChannel:
    """Writes codes to the standard input of a program."""

    def __init__(
        self, command: Sequence[str], environ: Mapping[str, str], timeout: float = TIMEOUT_SECONDS
    ) -> None:
        self._command = tuple(command)
        self._environ = dict(environ)
        self._timeout = timeout
        self._tasks: set[asyncio.Task[None]] = set()

    def show(self, challenge_id: str, code: str, sentence: str) -> None:
        message = f"{sentence}\n\n{code}\n\nChallenge {challenge_id}\n".encode()
        task = asyncio.get_running_loop().create_task(self._run(message))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, message: bytes) -> None:
        devnull = asyncio.subprocess.DEVNULL
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=devnull,
                stderr=devnull,
                env=self._environ,
                start_new_session=True,
            )
        except OSError as error:
            _log.error("code channel %s: cannot start: %s", self._command[0], error.strerror)
            return
        try:
            async with asyncio.timeout(self._timeout):
                assert process.stdin is not None
                await _write(process.stdin, message)
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
            _log.error("code channel %s: timed out, killed", self._command[0])
            return
        except asyncio.CancelledError:
            process.kill()
            await process.wait()
            raise
        if process.returncode:
            _log.error("code channel %s: exit status %d", self._command[0], process.returncode)

    async def wait_written(self) -> None:
        """Wait until every code is written to its program."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await self.wait_written()


class AlertChannel(CommandChannel):
    """Announces a code without showing it, for programs that take text only on their command
    line."""

    def show(self, challenge_id: str, code: str, sentence: str) -> None:
        super().show(challenge_id, "Show the code: `interlock operator`", sentence)


async def _write(stdin: asyncio.StreamWriter, message: bytes) -> None:
    """Write all of it and close the input.

    A program that has ended is ignored: its status counts.
    """
    if not stdin.is_closing():
        stdin.write(message)
        with suppress(ConnectionError):
            await stdin.drain()
    stdin.close()


def make_desktop_channel(
    environ: Mapping[str, str], find_program: Callable[[str], str | None] = shutil.which
) -> CommandChannel | None:
    """Return a channel for a window of this desktop. None: there is no desktop or no program."""
    if not (environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY")):
        return None
    window = find_program("zenity")
    if window is not None:
        # zenity reads its text from standard input.
        command = (window, "--text-info", f"--title={_TITLE}", "--width=480", "--height=240")
        return CommandChannel(command, environ, timeout=600.0)
    notify = find_program("notify-send")
    if notify is not None:
        # notify-send takes text on its command line, where others could read it, so the code is not
        # shown.
        return AlertChannel((notify, _TITLE, "Run: `interlock operator`"), environ)
    return None


def install_channels(
    configs: Sequence[ChannelConfig],
    codes: VerificationCodes,
    environ: Mapping[str, str],
    base_dir: Path,
    find_program: Callable[[str], str | None] = shutil.which,
) -> list[CommandChannel]:
    """Create and activate the channels of the config. Returns the channels to close later.

    Raises:
        InterlockError: A reference in a command cannot be resolved.
    """
    channels: list[CommandChannel] = []
    for config in configs:
        if config.kind == "command":
            command = [resolve(part, environ=environ, base_dir=base_dir) for part in config.command]
            channels.append(CommandChannel(command, environ))
        elif config.kind == "desktop":
            channel = make_desktop_channel(environ, find_program)
            if channel is None:
                _log.warning(
                    "code channel desktop: no window is available. Run `interlock operator`."
                )
            else:
                channels.append(channel)
    is_shown_at_terminal = (
        any(config.kind in AT_TERMINAL_OR_PAGE for config in configs) or not channels
    )
    codes.set_channels(list(channels), shown_at_terminal=is_shown_at_terminal)
    return channels
