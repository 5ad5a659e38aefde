"""A real gateway in a thread of its own, with participants of the library in it, for programs that
run beside it."""

from __future__ import annotations

import asyncio
import os
import pty
import re
import struct
import subprocess
import termios
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from fcntl import ioctl
from typing import Any, TypeVar

import pytest

from interlock.topics.client import Participant
from interlock.topics.config import ParticipantConfig, TopicConfig
from tests.support.command_line import INTERLOCK, CommandLine
from tests.support.waiting import HANG_TIMEOUT, wait_until
from tests.topics.topic_server import TopicServer

T = TypeVar("T")

OPS = TopicConfig(
    participants=[
        ParticipantConfig(callers=["agent"], profile="proposal_only"),
        ParticipantConfig(callers=["worker"], profile="response_only"),
        ParticipantConfig(callers=["human"], profile="full_access"),
        ParticipantConfig(callers=["boss"], profile="read_only"),
    ]
)
_STYLE = re.compile(r"\x1b\[[0-9;]*m")


class TopicRoom:
    """The topic `ops`; the token of NAME is `t-NAME`."""

    def __init__(self) -> None:
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._leave = asyncio.Event()
        self.url = ""
        self.rooms: TopicServer
        self._stack = AsyncExitStack()
        self._stays: dict[Participant, AsyncExitStack] = {}
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._live(),))

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(HANG_TIMEOUT)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._leave.set)
        self._thread.join(HANG_TIMEOUT)
        self._loop.close()

    async def _live(self) -> None:
        self.rooms = TopicServer(rooms={"ops": OPS})
        await self.rooms.start()
        self.url = f"ws://127.0.0.1:{self.rooms.http.port}/ws"
        self._ready.set()
        async with self._stack:
            await self._leave.wait()
        await self.rooms.stop()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """On the loop of the gateway."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(HANG_TIMEOUT)

    def join(
        self, name: str, prepare: Callable[[Participant], None] = lambda _: None
    ) -> Participant:
        """A participant, for as long as the room."""

        async def come() -> Participant:
            one = Participant(self.url, topic="ops", token=f"t-{name}")
            prepare(one)
            stay = AsyncExitStack()
            await stay.enter_async_context(one.connected())
            self._stays[one] = stay
            self._stack.push_async_callback(stay.aclose)
            return one

        return self.do(come())

    def leave(self, one: Participant) -> None:
        """It goes before the others do."""
        self.do(self._stays.pop(one).aclose())

    def until_there(self, name: str) -> None:
        wait_until(f"{name} is there", lambda: name in self.rooms.present)


class Terminal:
    """A program at a terminal, and what is on its screen."""

    def __init__(
        self,
        world: CommandLine,
        *arguments: str,
        columns: int = 100,
        rows: int = 30,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.rows = rows
        self.ours, theirs = pty.openpty()
        ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.before = termios.tcgetattr(theirs)
        own = {**world.environ, "TERM": "xterm-256color"}
        own.pop("COLUMNS", None)
        own.update(environ or {})
        self.process = subprocess.Popen(
            [*INTERLOCK, *arguments],
            cwd=world.cwd,
            env=own,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        self._theirs = theirs
        self.written = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self.ours, 65536)
            except OSError:
                return
            if not data:
                return
            self.written += data.decode(errors="replace")

    @property
    def screen(self) -> list[str]:
        """The rows of the last frame that is whole."""
        frames = self.written.split("\x1b[H")
        for frame in reversed(frames[1:]):
            rows = _STYLE.sub("", frame).split("\r\n")
            if len(rows) == self.rows:
                return rows
        return []

    def wait_for(self, words: str) -> None:
        def found() -> bool:
            return any(words in row for row in self.screen)

        try:
            wait_until(words, found)
        except AssertionError:
            raise AssertionError(
                f"{words!r} was not on the screen:\n" + "\n".join(self.screen or [self.written])
            ) from None

    def wait_for_words(self, words: str) -> None:
        """Before there is a screen, or after it."""
        wait_until(words, lambda: words in self.written)

    def type(self, text: str) -> None:
        os.write(self.ours, text.encode())

    def end(self) -> int:
        return self.process.wait(HANG_TIMEOUT)

    @property
    def settings(self) -> list[Any]:
        """How the terminal is set now."""
        return termios.tcgetattr(self._theirs)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._theirs)
        self._reader.join(HANG_TIMEOUT)
        os.close(self.ours)


@contextmanager
def at_terminal(
    world: CommandLine,
    *arguments: str,
    columns: int = 100,
    rows: int = 30,
    environ: Mapping[str, str] | None = None,
) -> Iterator[Terminal]:
    terminal = Terminal(world, *arguments, columns=columns, rows=rows, environ=environ)
    try:
        yield terminal
    finally:
        terminal.close()


@pytest.fixture
def room() -> Iterator[TopicRoom]:
    one = TopicRoom()
    one.start()
    try:
        yield one
    finally:
        one.stop()
