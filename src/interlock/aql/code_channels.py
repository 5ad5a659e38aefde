"""Ways by which a code reaches a human: a window on the desktop, or a command of the operator's
own, such as one that sends an e-mail or a text message. The code goes to the program's input, and
never onto its command line or into its environment, where others could read it. What programs say
is thrown away: it would be logged otherwise.

The terminal and the page need nothing here: operators fetch codes there after they signed in.
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

AT_DESK: Final = ("terminal", "page")
WITHIN: Final = 30.0
"""A program that takes longer is ended."""
_TITLE: Final = "Interlock: an agent waits"

_log = logging.getLogger("interlock.safety")


class CommandChannel:
    """Gives codes to a program's input."""

    def __init__(
        self, command: Sequence[str], environ: Mapping[str, str], within: float = WITHIN
    ) -> None:
        self._command = tuple(command)
        self._environ = dict(environ)
        self._within = within
        self._tasks: set[asyncio.Task[None]] = set()

    def show(self, challenge_id: str, code: str, sentence: str) -> None:
        said = f"{sentence}\n\n{code}\n\nChallenge {challenge_id}\n".encode()
        task = asyncio.get_running_loop().create_task(self._run(said))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, said: bytes) -> None:
        nowhere = asyncio.subprocess.DEVNULL
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=nowhere,
                stderr=nowhere,
                env=self._environ,
                start_new_session=True,
            )
        except OSError as error:
            _log.error("a code cannot be shown: %s: %s", self._command[0], error.strerror)
            return
        try:
            async with asyncio.timeout(self._within):
                assert process.stdin is not None
                await _write(process.stdin, said)
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
            _log.error("a code may not be shown: %s did not end in time", self._command[0])
            return
        except asyncio.CancelledError:
            process.kill()
            await process.wait()
            raise
        if process.returncode:
            _log.error("a code was not shown: %s failed", self._command[0])

    async def settle(self) -> None:
        """Until every code is given to its program."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await self.settle()


class AlertChannel(CommandChannel):
    """Tells that a code waits, and not the code: for programs that take text on their command line
    only."""

    def show(self, challenge_id: str, code: str, sentence: str) -> None:
        super().show(challenge_id, "The code: interlock operator", sentence)


async def _write(stdin: asyncio.StreamWriter, said: bytes) -> None:
    """All of it, and its end. A program that ended already is told nothing: its status counts."""
    if not stdin.is_closing():
        stdin.write(said)
        with suppress(ConnectionError):
            await stdin.drain()
    stdin.close()


def desktop(
    environ: Mapping[str, str], which: Callable[[str], str | None] = shutil.which
) -> CommandChannel | None:
    """A window of this desktop. None: there is none, or nothing to open one with."""
    if not (environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY")):
        return None
    window = which("zenity")
    if window is not None:
        # It reads the text that it shows from its input.
        command = (window, "--text-info", f"--title={_TITLE}", "--width=480", "--height=240")
        return CommandChannel(command, environ, within=600.0)
    notify = which("notify-send")
    if notify is not None:
        # It takes words on its command line, where anybody could read them: the code is not shown.
        return AlertChannel((notify, _TITLE, "Run: interlock operator"), environ)
    return None


def channels_of(
    configs: Sequence[ChannelConfig],
    codes: VerificationCodes,
    environ: Mapping[str, str],
    base_dir: Path,
    which: Callable[[str], str | None] = shutil.which,
) -> list[CommandChannel]:
    """Put the channels of the config in place. Returns those that must be closed. Raises
    InterlockError for a command whose references cannot be resolved."""
    made: list[CommandChannel] = []
    for one in configs:
        if one.kind == "command":
            words = [resolve(word, environ=environ, base_dir=base_dir) for word in one.command]
            made.append(CommandChannel(words, environ))
        elif one.kind == "desktop":
            channel = desktop(environ, which)
            if channel is None:
                _log.warning("no window can be opened: codes are shown by `interlock operator`.")
            else:
                made.append(channel)
    at_desk = any(one.kind in AT_DESK for one in configs) or not made
    codes.show_on(list(made), at_desk=at_desk)
    return made
