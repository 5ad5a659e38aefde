"""A link to a process that the node starts: newline-delimited messages over its stdin and stdout.

The process gets a group of its own, so that everything it starts ends with it. Its stderr is kept
for whoever has to find out what went wrong.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Self

from interlock.core.config import redact
from interlock.core.upstreams.transports.process import STDERR, STDIN, STDOUT, Process
from interlock.core.upstreams.transports.transport import (
    MAX_MESSAGE,
    EarlyReceiver,
    SingleChannel,
    TransportReceiver,
    TransportRequest,
)
from interlock.errors import UPSTREAM_LOST, UPSTREAM_UNAVAILABLE, InterlockError
from interlock.protocol.jsonrpc import remove_line_breaks
from interlock.protocol.lines import LineDecoder, OversizeLine

POLITE: Final = 2.0
"""How long a process may take to leave by itself, and again after it was asked to."""
LAST_WORDS: Final = 0.05
"""How long the signs of an end are collected: exit status, closed pipes, what it wrote last."""
_STDERR_LINES: Final = 200
_LINE_SHOWN: Final = 2_000
_WORDS_SHOWN: Final = 200
STDERR_SAID: Final = ", stderr: "
"""Between the reason for which a process is gone and the last line that it wrote to stderr."""
_MOST_UNWRITTEN: Final = 16 * 1024 * 1024

# How an answer begins. An `id` further in may belong to anything: only this place is certain.
_ANSWER: Final = re.compile(
    rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(\d{1,18})\s*,'
    rb'\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"(?:result|error)"\s*:'
)


def answered_id(head: bytes) -> int | None:
    """Which request a line that begins like this answers, if that can be seen."""
    match = _ANSWER.match(head)
    return None if match is None else int(match[1])


class StdioTransport(SingleChannel):
    """One started process."""

    receiver: TransportReceiver

    def __init__(
        self,
        label: str,
        stderr: deque[str] | None = None,
        mask: Callable[[str], str] | None = None,
    ) -> None:
        self.label = label
        self.receiver = EarlyReceiver()
        self.stderr: deque[str] = deque(maxlen=_STDERR_LINES) if stderr is None else stderr
        self.pid: int | None = None
        self._mask = mask
        self._process: Process | None = None
        self._stdin: Any = None
        self._lines = LineDecoder(MAX_MESSAGE)
        self._stderr_lines = LineDecoder(64 * 1024)
        self._last_words = ""
        self._ended: set[int] = set()
        self._useless = False
        """It cannot serve any more, whether it lives or not."""
        self._verdict: asyncio.TimerHandle | None = None
        self._closing = False
        self._lost = False

    @classmethod
    async def start(
        cls,
        label: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str | None,
        stderr: deque[str] | None = None,
        mask: Callable[[str], str] | None = None,
    ) -> Self:
        """Start the process. Raises InterlockError with what to do when it cannot be."""
        link = cls(label, stderr, mask)
        try:
            link._process = process = Process(argv, env=env, cwd=cwd, owner=link)
        except FileNotFoundError:
            what = _what_is_missing(argv[0], cwd)
            raise InterlockError(
                UPSTREAM_UNAVAILABLE,
                f"Cannot start {label}: {what} was not found. Is it installed and on the PATH?",
            ) from None
        except OSError as exc:
            raise InterlockError(
                UPSTREAM_UNAVAILABLE, f"Cannot start {label}: {argv[0]!r}: {exc.strerror}."
            ) from None
        except ValueError as exc:
            raise InterlockError(
                UPSTREAM_UNAVAILABLE,
                f"Cannot start {label}: {exc} in its command line or environment.",
            ) from None
        link.pid = process.pid
        try:
            await process.connect()
        except BaseException:
            link._let_go()
            raise
        link._stdin = process.stdin
        return link

    # -- Owner of the process

    def pipe_read(self, fd: int, data: bytes) -> None:
        if fd == STDOUT:
            for line in self._lines.feed(data):
                if isinstance(line, OversizeLine):
                    self._too_long(line)
                else:
                    self.receiver.deliver(line, None)
        else:
            for line in self._stderr_lines.feed(data):
                self._hear(line.head if isinstance(line, OversizeLine) else line)

    def _too_long(self, line: OversizeLine) -> None:
        why = line.error().message
        self.stderr.append(f"[interlock] {why}")
        id = answered_id(line.head)
        if id is not None:
            self.receiver.undelivered(id, why)

    def _hear(self, line: bytes) -> None:
        text = line[:_LINE_SHOWN].decode("utf-8", "replace")
        if self._mask is not None:
            text = self._mask(text)
        self.stderr.append(text)
        if not text.isspace():
            self._last_words = text

    def pipe_ended(self, fd: int) -> None:
        if fd == STDERR and (tail := self._stderr_lines.close()):
            self._hear(tail)
        self._ended.add(fd)
        self._judge()

    def exited(self) -> None:
        self._judge()

    def _judge(self) -> None:
        """Without its input, its output or its life a process is of no use any more."""
        if self._closing or self._lost:
            return
        exited = self._status() is not None
        if exited and {STDOUT, STDERR} <= self._ended:
            self._declare_lost()
        elif exited or STDIN in self._ended or STDOUT in self._ended:
            self._useless = True
            # A moment's wait usually brings the rest: an answer, its last words, its exit
            # status. Not always: somebody else may hold on to its pipes.
            if self._verdict is None:
                self._verdict = asyncio.get_running_loop().call_later(
                    LAST_WORDS, self._declare_lost
                )

    def _declare_lost(self) -> None:
        if self._verdict is not None:
            self._verdict.cancel()
        if self._closing or self._lost:
            return
        self._lost = self._useless = True
        if self._process is not None:
            self._process.signal_group(signal.SIGKILL)
        self.receiver.lost(self._why())

    def _status(self) -> int | None:
        return None if self._process is None else self._process.status

    def _why(self) -> str:
        code = self._status()
        if code is not None and code < 0:
            what = f"ended by {_signal_name(-code)}"
        elif code is not None:
            what = f"exit status {code}"
        elif STDOUT in self._ended:
            what = "it closed its output"
        else:
            what = "it closed its input"
        # A line that was never finished counts too: often it is the one that matters.
        if tail := self._stderr_lines.close():
            self._hear(tail)
        words = self._last_words.strip()
        if len(words) > _WORDS_SHOWN:
            words = f"{words[:_WORDS_SHOWN].rpartition(' ')[0] or words[:_WORDS_SHOWN]} …"
        return f"{what}{STDERR_SAID}{redact(words)}" if words else what

    # -- Link

    def send(self, ticket: TransportRequest, payload: bytes, headers: bytes) -> None:
        if self._useless or self._stdin is None or self._stdin.is_closing():
            ticket.fail(UPSTREAM_LOST, f"{self.label} is not running: {self._why()}", sent=False)
            if self._lost:
                # It may have ended before this receiver was there to hear of it.
                self.receiver.lost(self._why())
            else:
                # Somebody needs it now: its last words are not worth the wait.
                self._declare_lost()
            return
        if self._stdin.get_write_buffer_size() > _MOST_UNWRITTEN:
            ticket.fail(UPSTREAM_UNAVAILABLE, f"{self.label} does not read its input.", sent=False)
            return
        self._stdin.write(remove_line_breaks(payload) + b"\n")

    def send_open(self, ticket: TransportRequest, payload: bytes, headers: bytes) -> None:
        self.send(ticket, payload, headers)

    def post(self, payload: bytes, headers: bytes) -> None:
        if self._stdin is None or self._stdin.is_closing():
            return
        # A process that asks and asks but never reads must not fill our memory with answers.
        if self._stdin.get_write_buffer_size() <= _MOST_UNWRITTEN:
            self._stdin.write(remove_line_breaks(payload) + b"\n")

    async def hand_over(self, payload: bytes) -> None:
        # What is written first is read first.
        self.post(payload, b"")

    def drop(self, ticket: TransportRequest) -> None:
        """Nothing to do: the answer comes with an id that nobody waits for, and is dropped."""

    async def close(self) -> None:
        """Ask the process to leave, the way the specification wants it; insist when it stays."""
        self._closing = True
        if self._verdict is not None:
            self._verdict.cancel()
        process = self._process
        if process is None:
            return
        try:
            if self._stdin is not None:
                self._stdin.close()
            for insist in (signal.SIGTERM, signal.SIGKILL):
                if await process.gone_within(POLITE):
                    break
                process.signal_group(insist)
            else:
                await process.gone_within(POLITE)
        finally:
            # Also when nobody waits for the polite way any more.
            self._let_go()

    def _let_go(self) -> None:
        self._closing = True
        if self._process is not None:
            self._process.signal_group(signal.SIGKILL)
            self._process.close()


def _what_is_missing(program: str, cwd: str | None) -> str:
    if cwd is not None and not os.path.isdir(cwd):
        return f"the folder {cwd!r}"
    return f"{program!r}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
