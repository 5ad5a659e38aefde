"""The confined process that runs a driver.py, from the node's side.

`inspect_code` runs the code once, without network, to learn which hooks it has. `CodeProcess` is
the process that serves the hooks. The first call that needs it starts it. It is confined like the
driver's server and restarted after a crash. A hook that exceeds its timeout ends the process. All
data from the process is untrusted: its size, shape and time are limited.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from interlock.core.config import redact
from interlock.core.upstreams.transports.process import STDERR, STDOUT, Process
from interlock.drivers import processes
from interlock.drivers.errors import ToolFault, is_namespaced
from interlock.drivers.processes import CommandConfinement, ConfinementOpener, minimal_environment
from interlock.errors import (
    DEADLINE_EXCEEDED,
    INTERNAL,
    PAYLOAD_TOO_LARGE,
    TOO_BUSY,
    TOOL_UNAVAILABLE,
    Failure,
    InterlockError,
    failure_by_name,
)
from interlock.primitives.backoff import exponential_delay
from interlock.protocol.lines import LineDecoder, OversizeLine

_log = logging.getLogger("interlock.drivers")

ENTRY: Final = "driver.py"
LOAD_TIMEOUT_SECONDS: Final = 30.0
"""Timeout of loading a driver.py."""
HOOK_TIMEOUT_SECONDS: Final = 10.0
"""Timeout of a hook, and of a cancelled call. `execute` has the timeout of its call."""
MAX_MESSAGE_BYTES: Final = 16 * 1024 * 1024
"""Maximum size of a message in either direction."""
MAX_CALLS: Final = 256
"""Maximum number of concurrent calls of a process."""
MAX_UNSENT_BYTES: Final = 32 * 1024 * 1024
"""Limit of bytes that a process has not read yet. Above it, no further call is sent."""
MIN_RESTART_SECONDS: Final = 0.5
MAX_RESTART_SECONDS: Final = 30.0
"""Delay before a restart if the process crashed at least twice without a response."""
_END_TIMEOUT_SECONDS: Final = 30.0
_MAX_LOG_BYTES: Final = 2_000
_MAX_MESSAGE_CHARACTERS: Final = 4_000
_PROGRAM: Final = (
    "import sys; sys.path[:] = sys.argv[1:]; from interlock.drivers.code_child import main; main()"
)
_encode = msgspec.json.Encoder().encode


class DriverCode(Struct, frozen=True):
    """The code of a driver.py as it was read. This code runs, even if the file changes later."""

    driver: str
    """Id of the driver."""
    name: str
    file: str
    folder: str
    text: bytes
    digest: str

    def message(self) -> bytes:
        """Return the first line for the process. Raises InterlockError."""
        try:
            text = self.text.decode("utf-8")
        except UnicodeDecodeError:
            raise unusable(self.driver, "the file is not UTF-8") from None
        return _encode({"code": text, "file": self.file, "name": self.name}) + b"\n"


class CodeDescription(Struct, frozen=True):
    """The description of a driver.py, as the code reports it."""

    values: dict[str, Any]
    hooks: frozenset[str]
    execute: frozenset[str]
    transforms: frozenset[str]


class _LoadResponse(Struct):
    loaded: CodeDescription | None = None
    unusable: str = ""
    undefined: bool = False
    raised: str = ""
    line: int = 0


class HookEnvelope(Struct, frozen=True):
    """The `HookResult` that a hook returned."""

    ok: bool = True
    value: Any = None
    code: str = ""
    message: str = ""
    retryable: bool = False


class _Error(Struct):
    failure: str
    message: str
    code: str = ""
    retryable: bool = False


class HookResponse(Struct, frozen=True):
    """The response to a call of a hook or of a transformer."""

    id: int = 0
    value: Any = None
    envelope: HookEnvelope | None = None
    raised: str = ""
    error: _Error | None = None

    def raised_error(self) -> InterlockError | None:
        """Return the InterlockError that a hook raised, or None."""
        if self.error is None:
            return None
        message = self.error.message[:_MAX_MESSAGE_CHARACTERS]
        if is_namespaced(self.error.code):
            return ToolFault(self.error.code, message, retryable=self.error.retryable)
        try:
            failure: Failure = failure_by_name(self.error.failure)
        except KeyError:
            failure = INTERNAL
        return InterlockError(failure, message)


_decode_loading = msgspec.json.Decoder(_LoadResponse).decode
_decode_response = msgspec.json.Decoder(HookResponse).decode
_decode_responses = msgspec.json.Decoder(list[HookResponse]).decode


def command() -> list[str]:
    """Return the command line of the process."""
    return [sys.executable, "-I", "-c", _PROGRAM, *filter(None, sys.path)]


def unusable(driver: str, reason: str) -> InterlockError:
    """Return the error for a driver.py that cannot be used."""
    return InterlockError(TOOL_UNAVAILABLE, f"Cannot load {ENTRY} of {driver}: {reason}.")


async def inspect_code(
    code: DriverCode,
    open_confinement: ConfinementOpener,
    *,
    env: Mapping[str, str],
    timeout: float = LOAD_TIMEOUT_SECONDS,
) -> CodeDescription | None:
    """Return the description of a driver.py. None: it defines no driver. Raises InterlockError if
    the code cannot be confined or cannot be used."""
    message = code.message()
    confinement = await open_confinement()
    try:
        argv, variables = command(), minimal_environment(env)
        if confinement is not None:
            argv, variables = confinement.argv(argv), confinement.environment(variables)
        result = await processes.run(
            argv, env=variables, cwd=code.folder, timeout=timeout, stdin=message
        )
    finally:
        if confinement is not None:
            await confinement.close()
    if result.timed_out:
        raise unusable(code.driver, f"it was not loaded within {timeout:g} s")
    return _decode_load_response(code, result.out.encode(), result.ending)


def _decode_load_response(code: DriverCode, line: bytes, end_text: str) -> CodeDescription | None:
    """Decode the response to the load request. Raises InterlockError."""
    try:
        response = _decode_loading(line)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        raise unusable(code.driver, f"its process sent no valid response ({end_text})") from None
    if response.unusable:
        raise unusable(code.driver, response.unusable[:_MAX_MESSAGE_CHARACTERS].rstrip("."))
    if response.raised:
        location = f" in line {response.line}" if response.line else ""
        raise unusable(
            code.driver, f"it raised {processes.printable_excerpt(response.raised)}{location}"
        )
    return response.loaded


class _RunningProcess:
    """One process, from its start to its exit."""

    def __init__(self, owner: CodeProcess, confinement: CommandConfinement | None) -> None:
        self._owner = owner
        self.confinement = confinement
        self.process: Process | None = None
        self._lines = LineDecoder(MAX_MESSAGE_BYTES)
        self._stderr_lines = LineDecoder(64 * 1024)
        self.loading: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.pending: dict[int, asyncio.Future[HookResponse]] = {}
        self.timers: dict[int, asyncio.TimerHandle] = {}
        self.kill_reason = ""
        """Reason if the node killed the process."""
        self.has_ended = False
        self.is_connected = False
        """True if the pipes are attached to the event loop."""

    # -- Owner of the process

    def on_pipe_data(self, fd: int, data: bytes) -> None:
        if fd == STDERR:
            for line in self._stderr_lines.feed(data):
                self._owner.log(line.head if isinstance(line, OversizeLine) else line)
            return
        for line in self._lines.feed(data):
            if isinstance(line, OversizeLine):
                self.kill(f"it sent a line of more than {MAX_MESSAGE_BYTES} bytes")
            elif not self.loading.done():
                self.loading.set_result(line)
            else:
                self._on_response(line)

    def _on_response(self, line: bytes) -> None:
        try:
            response = _decode_response(line)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            self.kill("it sent an invalid response")
            return
        future = self.pending.pop(response.id, None)
        timer = self.timers.pop(response.id, None)
        if timer is not None:
            timer.cancel()
        if future is not None and not future.done():
            future.set_result(response)
        self._owner.on_response()

    def on_pipe_closed(self, fd: int) -> None:
        if fd == STDOUT:
            self.kill("it closed its output")

    def on_exit(self) -> None:
        self.end()

    @property
    def unread_byte_count(self) -> int:
        """Bytes that the process has not read."""
        stdin = None if self.process is None else self.process.stdin
        return 0 if stdin is None else stdin.get_write_buffer_size()

    def send(self, line: bytes) -> None:
        """Write a line if the input is open. The exit of the process is reported separately."""
        stdin = None if self.process is None else self.process.stdin
        if stdin is not None and not stdin.is_closing():
            stdin.write(line)

    # -- exit

    def kill(self, reason: str) -> None:
        self.kill_reason = self.kill_reason or reason
        if self.process is not None:
            self.process.signal_group(signal.SIGKILL)

    def end(self) -> None:
        """Fail all pending calls after the process has exited."""
        if self.has_ended:
            return
        self.has_ended = True
        reason = self._describe_end()
        if not self.loading.done():
            self.loading.set_exception(self._owner.unavailable(reason))
            # Mark the exception as retrieved: the starter may have been cancelled.
            self.loading.exception()
        for timer in self.timers.values():
            timer.cancel()
        for future in self.pending.values():
            if not future.done():
                future.set_exception(self._owner.unavailable(reason))
        self.pending.clear()
        self.timers.clear()
        self._owner.on_exit(self, reason)

    def _describe_end(self) -> str:
        status = None if self.process is None else self.process.status
        if self.kill_reason:
            return self.kill_reason
        if status is not None and status < 0:
            return f"it was ended by signal {-status}"
        return f"it ended with status {status}"


class CodeProcess:
    """The process that serves the hooks of one driver.py, until the driver is removed."""

    def __init__(
        self,
        code: DriverCode,
        *,
        hook_timeout: float = HOOK_TIMEOUT_SECONDS,
        load_timeout: float = LOAD_TIMEOUT_SECONDS,
    ) -> None:
        self._code = code
        self.hook_timeout = hook_timeout
        self._load_timeout = load_timeout
        self.open_confinement: ConfinementOpener | None = None
        """Set by the node before the first call."""
        self.env: Mapping[str, str] = {}
        self._running: _RunningProcess | None = None
        self._start_task: asyncio.Task[_RunningProcess] | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False
        self._last_id = 0
        self._crashes = 0
        """Crashes since the last response."""
        self._restart_at = 0.0

    @property
    def pid(self) -> int | None:
        running = self._running
        return None if running is None or running.process is None else running.process.pid

    @property
    def is_busy(self) -> bool:
        return self._running is not None and bool(self._running.pending)

    # -- calls

    async def call(
        self, hook: str, message: Mapping[str, Any], *, bounded: bool = True
    ) -> HookResponse:
        """Call a hook. Raises InterlockError.

        Args:
            bounded: apply the hook timeout, in addition to the deadline of the call.
        """
        process = await self._ensure_ready()
        if process.has_ended:
            # The process exited after it became ready.
            raise self.unavailable(process.kill_reason or "it ended")
        if len(process.pending) >= MAX_CALLS or process.unread_byte_count > MAX_UNSENT_BYTES:
            raise InterlockError(
                TOO_BUSY,
                f"{ENTRY} of {self._code.driver} has too many concurrent calls. Try again later.",
            )
        self._last_id += 1
        id = self._last_id
        line = _encode({"id": id, "hook": hook, **message})
        if len(line) > MAX_MESSAGE_BYTES:
            raise InterlockError(
                PAYLOAD_TOO_LARGE,
                f"{hook} in {ENTRY} of {self._code.driver} takes at most {MAX_MESSAGE_BYTES} "
                "bytes.",
            )
        loop = asyncio.get_running_loop()
        future: asyncio.Future[HookResponse] = loop.create_future()
        process.pending[id] = future
        if bounded:
            process.timers[id] = loop.call_later(
                self.hook_timeout, self._on_timeout, process, id, hook
            )
        process.send(line + b"\n")
        try:
            return await future
        except asyncio.CancelledError:
            self._cancel(process, id, hook)
            raise

    def decode_results(self, value: Any) -> list[HookResponse]:
        """Decode the results of transformers. Raises InterlockError."""
        try:
            return _decode_responses(_encode(value))
        except msgspec.MsgspecError:
            raise self.unavailable("it sent an invalid response") from None

    def _cancel(self, running: _RunningProcess, id: int, hook: str) -> None:
        """Cancel a call. A hook that does not end within its timeout ends the process."""
        if running.has_ended or id not in running.pending:
            return
        running.send(_encode({"cancel": id}) + b"\n")
        if id not in running.timers:
            running.timers[id] = asyncio.get_running_loop().call_later(
                self.hook_timeout, self._on_timeout, running, id, hook
            )

    def _on_timeout(self, running: _RunningProcess, id: int, hook: str) -> None:
        future = running.pending.pop(id, None)
        running.timers.pop(id, None)
        reason = (
            f"{hook} in {ENTRY} of {self._code.driver} took longer than {self.hook_timeout:g} s"
        )
        if future is not None and not future.done():
            future.set_exception(InterlockError(DEADLINE_EXCEEDED, f"{reason}.", {"hook": hook}))
        # A running function can only be ended with its process.
        running.kill(f"{hook} took longer than {self.hook_timeout:g} s")
        self._detach(running)

    # -- lifecycle

    async def _ensure_ready(self) -> _RunningProcess:
        running = self._running
        if running is not None and not running.has_ended and not running.kill_reason:
            return running
        if self._closed:
            raise self.unavailable("the driver was removed")
        if self._start_task is None:
            remaining = self._restart_at - asyncio.get_running_loop().time()
            if remaining > 0:
                raise self.unavailable(f"it crashed and restarts in {remaining:.1f} s")
            self._start_task = asyncio.get_running_loop().create_task(
                self._start(), name=f"code:{self._code.driver}"
            )
            self._start_task.add_done_callback(self._on_started)
        # Several calls may wait for one start. Cancelling one of them must not cancel the start.
        return await asyncio.shield(self._start_task)

    def _on_started(self, task: asyncio.Task[_RunningProcess]) -> None:
        self._start_task = None
        if not task.cancelled():
            # Mark the exception as retrieved: the waiting calls may have been cancelled.
            task.exception()

    async def _start(self) -> _RunningProcess:
        message = self._code.message()
        assert self.open_confinement is not None, "calls start after the driver was created"
        confinement = await self.open_confinement()
        running = _RunningProcess(self, confinement)
        try:
            argv, env = command(), minimal_environment(self.env)
            if confinement is not None:
                argv, env = confinement.argv(argv), confinement.environment(env)
            try:
                running.process = Process(argv, env=env, cwd=self._code.folder, owner=running)
            except (OSError, ValueError) as error:
                raise self.unavailable(f"it cannot be started ({error})") from None
            try:
                await running.process.connect()
            finally:
                running.is_connected = True
                if running.has_ended:
                    running.process.close()
            running.send(message)
            try:
                async with asyncio.timeout(self._load_timeout):
                    line = await running.loading
            except TimeoutError:
                raise self.unavailable(
                    f"it was not loaded within {self._load_timeout:g} s"
                ) from None
            if _decode_load_response(self._code, line, "") is None:
                raise self.unavailable("it defines no driver")
        except BaseException:
            running.kill("it did not become ready")
            if running.process is None:
                running.end()
            else:
                await running.process.wait_gone(_END_TIMEOUT_SECONDS)
            self._record_crash()
            raise
        self._running = running
        return running

    def on_response(self) -> None:
        self._crashes = 0

    def _record_crash(self) -> None:
        self._crashes += 1
        if self._crashes > 1:
            pause = exponential_delay(self._crashes - 2, MIN_RESTART_SECONDS, MAX_RESTART_SECONDS)
            self._restart_at = asyncio.get_running_loop().time() + pause

    def _detach(self, running: _RunningProcess) -> None:
        """Detach a process, so that the next call starts another."""
        if self._running is running:
            self._running = None

    def on_exit(self, running: _RunningProcess, reason: str) -> None:
        """Clean up after a process has exited."""
        if self._running is running:
            self._running = None
            if not self._closed:
                self._record_crash()
                _log.warning("driver %s: %s ended: %s", self._code.driver, ENTRY, reason)
        if running.process is not None and running.is_connected:
            running.process.close()
        if running.confinement is not None:
            task = asyncio.get_running_loop().create_task(running.confinement.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def unavailable(self, reason: str) -> InterlockError:
        return InterlockError(
            TOOL_UNAVAILABLE, f"{ENTRY} of {self._code.driver} is not running: {reason}."
        )

    def log(self, line: bytes) -> None:
        """Log a line of stderr."""
        text = line[:_MAX_LOG_BYTES].decode("utf-8", "replace").rstrip()
        if text:
            _log.info("driver %s: %s: %s", self._code.driver, ENTRY, redact(text))

    async def end(self, reason: str) -> None:
        """End the running process. The next call starts another."""
        running = self._running
        if running is not None:
            running.kill(reason)
            self._detach(running)
            if running.process is not None:
                await running.process.wait_gone(_END_TIMEOUT_SECONDS)

    async def close(self, *, immediately: Callable[[], bool] = lambda: True) -> None:
        """End the process permanently.

        Args:
            immediately: returns True if running calls must not be waited for.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _END_TIMEOUT_SECONDS
        # Polling, because one of the two conditions has no event.
        while self.is_busy and not immediately() and loop.time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        self._closed = True
        starting = self._start_task
        if starting is not None:
            starting.cancel()
            with contextlib.suppress(asyncio.CancelledError, InterlockError):
                await starting
        await self.end("the driver was removed")
        await asyncio.gather(*self._closing, return_exceptions=True)
