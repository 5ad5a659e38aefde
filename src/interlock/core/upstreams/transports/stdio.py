"""A transport to a child process: newline-delimited messages over its stdin and stdout.

The process has a process group of its own, so that everything it starts ends with it. Its stderr is
kept for error messages. Specification: MCP 2025-11-25, "Transports", stdio.
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

EXIT_TIMEOUT_SECONDS: Final = 2.0
"""The time that a process may take to exit by itself, and again after each signal."""
EXIT_DETAILS_SECONDS: Final = 0.05
"""The time for which exit details are collected: exit status, closed pipes, the last output."""
_MAX_STDERR_LINES: Final = 200
_MAX_LINE_LENGTH: Final = 2_000
_MAX_DETAIL_LENGTH: Final = 200
STDERR_LABEL: Final = ", stderr: "
"""Separates the reason of an exit from the last line of stderr."""
_MAX_UNWRITTEN_BYTES: Final = 16 * 1024 * 1024

# The beginning of a response. An `id` further inside may belong to a nested object.
_RESPONSE_PATTERN: Final = re.compile(
    rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(\d{1,18})\s*,'
    rb'\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"(?:result|error)"\s*:'
)


def find_response_id(head: bytes) -> int | None:
    """Return the id of the request that a truncated line responds to, if it is certain."""
    match = _RESPONSE_PATTERN.match(head)
    return None if match is None else int(match[1])


class StdioTransport(SingleChannel):
    """A started process as a transport."""

    receiver: TransportReceiver

    def __init__(
        self,
        label: str,
        stderr: deque[str] | None = None,
        mask: Callable[[str], str] | None = None,
    ) -> None:
        self.label = label
        self.receiver = EarlyReceiver()
        self.stderr: deque[str] = deque(maxlen=_MAX_STDERR_LINES) if stderr is None else stderr
        self.pid: int | None = None
        self._mask = mask
        self._process: Process | None = None
        self._stdin: Any = None
        self._lines = LineDecoder(MAX_MESSAGE)
        self._stderr_lines = LineDecoder(64 * 1024)
        self._last_stderr_line = ""
        self._closed_pipes: set[int] = set()
        self._is_unusable = False
        """True if the process cannot serve any more, running or not."""
        self._lost_timer: asyncio.TimerHandle | None = None
        self._is_closing = False
        self._is_lost = False

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
        """Start the process. Raises InterlockError with advice if it cannot start."""
        transport = cls(label, stderr, mask)
        try:
            transport._process = process = Process(argv, env=env, cwd=cwd, owner=transport)
        except FileNotFoundError:
            missing = _describe_missing(argv[0], cwd)
            raise InterlockError(
                UPSTREAM_UNAVAILABLE,
                f"Cannot start {label}: {missing} was not found. Install it, or correct `command` "
                "or PATH.",
            ) from None
        except OSError as exc:
            raise InterlockError(
                UPSTREAM_UNAVAILABLE, f"Cannot start {label}: {argv[0]!r}: {exc.strerror}."
            ) from None
        except ValueError as exc:
            raise InterlockError(
                UPSTREAM_UNAVAILABLE,
                f"Cannot start {label}: `command`, `args` or `env` is invalid: {exc}.",
            ) from None
        transport.pid = process.pid
        try:
            await process.connect()
        except BaseException:
            transport._release()
            raise
        transport._stdin = process.stdin
        return transport

    # -- ProcessOwner

    def on_pipe_data(self, fd: int, data: bytes) -> None:
        if fd == STDOUT:
            for line in self._lines.feed(data):
                if isinstance(line, OversizeLine):
                    self._on_oversized_line(line)
                else:
                    self.receiver.deliver(line, None)
        else:
            for line in self._stderr_lines.feed(data):
                self._on_stderr_line(line.head if isinstance(line, OversizeLine) else line)

    def _on_oversized_line(self, line: OversizeLine) -> None:
        reason = line.error().message
        self.stderr.append(f"[interlock] {reason}")
        id = find_response_id(line.head)
        if id is not None:
            self.receiver.on_unreadable_response(id, reason)

    def _on_stderr_line(self, line: bytes) -> None:
        text = line[:_MAX_LINE_LENGTH].decode("utf-8", "replace")
        if self._mask is not None:
            text = self._mask(text)
        self.stderr.append(text)
        if not text.isspace():
            self._last_stderr_line = text

    def on_pipe_closed(self, fd: int) -> None:
        if fd == STDERR and (tail := self._stderr_lines.close()):
            self._on_stderr_line(tail)
        self._closed_pipes.add(fd)
        self._check_usable()

    def on_exit(self) -> None:
        self._check_usable()

    def _check_usable(self) -> None:
        """Report the process as lost if it has exited or closed its stdin or stdout."""
        if self._is_closing or self._is_lost:
            return
        has_exited = self._exit_status() is not None
        if has_exited and {STDOUT, STDERR} <= self._closed_pipes:
            self._report_lost()
        elif has_exited or STDIN in self._closed_pipes or STDOUT in self._closed_pipes:
            self._is_unusable = True
            # The rest usually arrives within a moment: a response, stderr, the exit status. Not
            # always: another process may hold its pipes open.
            if self._lost_timer is None:
                self._lost_timer = asyncio.get_running_loop().call_later(
                    EXIT_DETAILS_SECONDS, self._report_lost
                )

    def _report_lost(self) -> None:
        if self._lost_timer is not None:
            self._lost_timer.cancel()
        if self._is_closing or self._is_lost:
            return
        self._is_lost = self._is_unusable = True
        if self._process is not None:
            self._process.signal_group(signal.SIGKILL)
        self.receiver.on_transport_lost(self._describe_end())

    def _exit_status(self) -> int | None:
        return None if self._process is None else self._process.status

    def _describe_end(self) -> str:
        code = self._exit_status()
        if code is not None and code < 0:
            reason = f"ended by {_signal_name(-code)}"
        elif code is not None:
            reason = f"exit status {code}"
        elif STDOUT in self._closed_pipes:
            reason = "it closed its output"
        else:
            reason = "it closed its input"
        # An unterminated line counts too: it is often the relevant one.
        if tail := self._stderr_lines.close():
            self._on_stderr_line(tail)
        detail = self._last_stderr_line.strip()
        if len(detail) > _MAX_DETAIL_LENGTH:
            detail = (
                f"{detail[:_MAX_DETAIL_LENGTH].rpartition(' ')[0] or detail[:_MAX_DETAIL_LENGTH]} …"
            )
        return f"{reason}{STDERR_LABEL}{redact(detail)}" if detail else reason

    # -- UpstreamTransport

    def send(self, request: TransportRequest, payload: bytes, headers: bytes) -> None:
        if self._is_unusable or self._stdin is None or self._stdin.is_closing():
            request.fail(
                UPSTREAM_LOST,
                f"{self.label} is not running: {self._describe_end()}",
                was_sent=False,
            )
            if self._is_lost:
                # The process may have ended before this receiver was attached.
                self.receiver.on_transport_lost(self._describe_end())
            else:
                # A request is waiting, so do not wait for exit details.
                self._report_lost()
            return
        if self._stdin.get_write_buffer_size() > _MAX_UNWRITTEN_BYTES:
            request.fail(
                UPSTREAM_UNAVAILABLE,
                f"{self.label} does not read its stdin; more than "
                f"{_MAX_UNWRITTEN_BYTES // 1024**2} MiB are unread.",
                was_sent=False,
            )
            return
        self._stdin.write(remove_line_breaks(payload) + b"\n")

    def send_long_lived(self, request: TransportRequest, payload: bytes, headers: bytes) -> None:
        self.send(request, payload, headers)

    def post(self, payload: bytes, headers: bytes) -> None:
        if self._stdin is None or self._stdin.is_closing():
            return
        # A process that sends requests but never reads must not fill the memory with responses.
        if self._stdin.get_write_buffer_size() <= _MAX_UNWRITTEN_BYTES:
            self._stdin.write(remove_line_breaks(payload) + b"\n")

    async def post_and_wait(self, payload: bytes) -> None:
        # Messages are read in the order in which they are written.
        self.post(payload, b"")

    def remove_request(self, request: TransportRequest) -> None:
        """Do nothing: a response with an unknown id is ignored."""

    async def close(self) -> None:
        """Close stdin and wait, then send SIGTERM, then SIGKILL (MCP, "Shutdown", stdio)."""
        self._is_closing = True
        if self._lost_timer is not None:
            self._lost_timer.cancel()
        process = self._process
        if process is None:
            return
        try:
            if self._stdin is not None:
                self._stdin.close()
            for signal_number in (signal.SIGTERM, signal.SIGKILL):
                if await process.wait_gone(EXIT_TIMEOUT_SECONDS):
                    break
                process.signal_group(signal_number)
            else:
                await process.wait_gone(EXIT_TIMEOUT_SECONDS)
        finally:
            # Also after a cancellation.
            self._release()

    def _release(self) -> None:
        self._is_closing = True
        if self._process is not None:
            self._process.signal_group(signal.SIGKILL)
            self._process.close()


def _describe_missing(program: str, cwd: str | None) -> str:
    if cwd is not None and not os.path.isdir(cwd):
        return f"the folder {cwd!r}"
    return f"{program!r}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
