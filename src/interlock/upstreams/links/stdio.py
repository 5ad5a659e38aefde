"""A link to a process that the node starts: newline-delimited messages over its stdin and stdout.

The process gets a group of its own, so that everything it starts ends with it. Its stderr is kept
for whoever has to find out what went wrong.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from interlock.errors import UPSTREAM_LOST, UPSTREAM_UNAVAILABLE, InterlockError
from interlock.protocol.jsonrpc import on_one_line
from interlock.protocol.lines import LineDecoder, Oversize
from interlock.upstreams.links.link import NobodyYet, Receiver, Ticket

POLITE: Final = 2.0
"""How long a process may take to leave by itself, and again after it was asked to."""
_LAST_WORDS: Final = 0.05
_STDERR_LINES: Final = 200
_LINE_SHOWN: Final = 2_000
_MOST_UNWRITTEN: Final = 16 * 1024 * 1024

# What a started process inherits. Everything else, secrets above all, must be given by name.
_INHERITED: Final = (
    "HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER", "LANG", "LC_ALL", "LC_CTYPE", "TZ",
    "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR",
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
    "SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE",
    "PYENV_ROOT", "PYENV_VERSION", "NVM_DIR", "VOLTA_HOME", "UV_CACHE_DIR",
    "SYSTEMROOT", "APPDATA", "LOCALAPPDATA", "USERPROFILE", "PATHEXT", "TEMP", "TMP",
)  # fmt: skip


def child_environment(given: Mapping[str, str]) -> dict[str, str]:
    """The environment of a started process: the harmless part of ours, and what it was given."""
    inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    return {**inherited, **given}


class StdioLink(asyncio.SubprocessProtocol):
    """One started process."""

    is_http = False
    receiver: Receiver

    def __init__(self, label: str, stderr: deque[str] | None = None) -> None:
        self.label = label
        self.receiver = NobodyYet()
        self.stderr: deque[str] = deque(maxlen=_STDERR_LINES) if stderr is None else stderr
        self.pid: int | None = None
        self._transport: asyncio.SubprocessTransport | None = None
        self._stdin: Any = None
        self._lines = LineDecoder()
        self._stderr_lines = LineDecoder(64 * 1024)
        self._exited: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._output_ended = False
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
    ) -> StdioLink:
        """Start the process. Raises InterlockError with what to do when it cannot be."""
        loop = asyncio.get_running_loop()
        try:
            transport, link = await loop.subprocess_exec(
                lambda: cls(label, stderr),
                *argv,
                env=dict(env),
                cwd=cwd,
                start_new_session=True,
            )
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
        link.pid = transport.get_pid()
        return link

    # -- asyncio.SubprocessProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods, but not the base class.
        self._transport = process = cast(asyncio.SubprocessTransport, transport)
        self._stdin = process.get_pipe_transport(0)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 1:
            for line in self._lines.feed(data):
                if isinstance(line, Oversize):
                    self.stderr.append(f"[interlock] {line.error().message}")
                else:
                    self.receiver.deliver(line, None)
        else:
            for line in self._stderr_lines.feed(data):
                if not isinstance(line, Oversize):
                    self.stderr.append(line[:_LINE_SHOWN].decode("utf-8", "replace"))

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 1:
            self._output_ended = True
            # A process that closed its stdout can never answer again, whether it lives or not.
            # A moment's wait usually brings its exit status, and with it a better reason.
            asyncio.get_running_loop().call_later(_LAST_WORDS, self._declare_lost)

    def process_exited(self) -> None:
        if not self._exited.done():
            self._exited.set_result(None)
        # What the process itself started must not outlive it.
        self._signal_group(signal.SIGKILL)
        if self._output_ended:
            self._declare_lost()

    def connection_lost(self, exc: Exception | None) -> None:
        self._declare_lost()

    def _declare_lost(self) -> None:
        if self._closing or self._lost:
            return
        self._lost = True
        self._output_ended = True
        self._signal_group(signal.SIGKILL)
        self.receiver.lost(self._why())

    def _why(self) -> str:
        code = self._transport.get_returncode() if self._transport is not None else None
        if code is None:
            what = "it closed its output"
        elif code < 0:
            what = f"it was ended by {_signal_name(-code)}"
        else:
            what = f"it exited with status {code}"
        last = next((line for line in reversed(self.stderr) if line.strip()), None)
        return what if last is None else f"{what}; its last words: {last.strip()[:200]}"

    # -- Link

    def send(self, ticket: Ticket, payload: bytes, headers: bytes) -> None:
        if self._stdin is None or self._stdin.is_closing() or self._output_ended:
            ticket.fail(UPSTREAM_LOST, f"{self.label} is not running: {self._why()}", sent=False)
            return
        if self._stdin.get_write_buffer_size() > _MOST_UNWRITTEN:
            ticket.fail(UPSTREAM_UNAVAILABLE, f"{self.label} does not read its input.", sent=False)
            return
        self._stdin.write(on_one_line(payload) + b"\n")

    def send_open(self, ticket: Ticket, payload: bytes, headers: bytes) -> None:
        self.send(ticket, payload, headers)

    def post(self, payload: bytes, headers: bytes) -> None:
        if self._stdin is not None and not self._stdin.is_closing():
            self._stdin.write(on_one_line(payload) + b"\n")

    def drop(self, ticket: Ticket) -> None:
        """Nothing to do: the answer comes with an id that nobody waits for, and is dropped."""

    async def close(self) -> None:
        """Ask the process to leave, the way the specification wants it; insist when it stays."""
        self._closing = True
        if self._stdin is not None:
            self._stdin.close()
        for insist in (signal.SIGTERM, signal.SIGKILL):
            if await self._gone_within(POLITE):
                break
            self._signal_group(insist)
        else:
            await self._gone_within(POLITE)
        self._signal_group(signal.SIGKILL)
        if self._transport is not None:
            self._transport.close()

    async def _gone_within(self, seconds: float) -> bool:
        done, _ = await asyncio.wait([self._exited], timeout=seconds)
        return bool(done)

    def _signal_group(self, number: int) -> None:
        if self.pid is None:
            return
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            # Everybody in the group is gone already.
            return


def _what_is_missing(program: str, cwd: str | None) -> str:
    if cwd is not None and not os.path.isdir(cwd):
        return f"the folder {cwd!r}"
    return f"{program!r}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
