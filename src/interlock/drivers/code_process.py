"""The confined process in which a driver.py runs, seen from the node.

`inspect_code` runs the code once, without any network, to learn what it brings. `CodeProcess` is
the process that serves its hooks: started by the first call that needs it, confined as the driver's
server is, and started again after a crash. A hook that takes too long ends the process.
Whatever comes from the process is a stranger's text: its size, shape and time are bounded.
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
"""Seconds for loading a driver.py."""
HOOK_TIMEOUT_SECONDS: Final = 10.0
"""Seconds for one hook but `execute`, whose time is the call's; and for one that was cancelled."""
MAX_MESSAGE_BYTES: Final = 16 * 1024 * 1024
"""Of one message, in either direction."""
MAX_CALLS: Final = 256
"""That one process has at a time."""
MAX_UNSENT_BYTES: Final = 32 * 1024 * 1024
"""Bytes that a process has not read yet; beyond it, no further call is sent."""
MIN_RESTART_SECONDS: Final = 0.5
MAX_RESTART_SECONDS: Final = 30.0
"""Pause before the process is started again, when it crashed twice and more without an answer."""
_END_TIMEOUT_SECONDS: Final = 30.0
_LINE_SHOWN: Final = 2_000
_MOST_WORDS: Final = 4_000
_PROGRAM: Final = (
    "import sys; sys.path[:] = sys.argv[1:]; from interlock.drivers.code_child import main; main()"
)
_encode = msgspec.json.Encoder().encode


class DriverCode(Struct, frozen=True):
    """A driver.py as it was read: what runs is this, whatever the file says later."""

    driver: str
    """The driver's id."""
    name: str
    file: str
    folder: str
    text: bytes
    digest: str

    def message(self) -> bytes:
        """The first line to the process. Raises InterlockError."""
        try:
            text = self.text.decode("utf-8")
        except UnicodeDecodeError:
            raise unusable(self.driver, "it is not UTF-8") from None
        return _encode({"code": text, "file": self.file, "name": self.name}) + b"\n"


class CodeDescription(Struct, frozen=True):
    """What a driver.py brings, by its own word."""

    values: dict[str, Any]
    hooks: frozenset[str]
    execute: frozenset[str]
    transforms: frozenset[str]


class _Loading(Struct):
    loaded: CodeDescription | None = None
    unusable: str = ""
    undefined: bool = False
    raised: str = ""
    line: int = 0


class HookEnvelope(Struct, frozen=True):
    """The `HookResult` of a hook."""

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
    """What came of one call of a hook, or of one transformer."""

    id: int = 0
    value: Any = None
    envelope: HookEnvelope | None = None
    raised: str = ""
    error: _Error | None = None

    def raised_error(self) -> InterlockError | None:
        """The error that a hook raised on purpose, in the words of the specification."""
        if self.error is None:
            return None
        message = self.error.message[:_MOST_WORDS]
        if is_namespaced(self.error.code):
            return ToolFault(self.error.code, message, retryable=self.error.retryable)
        try:
            failure: Failure = failure_by_name(self.error.failure)
        except KeyError:
            failure = INTERNAL
        return InterlockError(failure, message)


_decode_loading = msgspec.json.Decoder(_Loading).decode
_decode_answer = msgspec.json.Decoder(HookResponse).decode
_decode_answers = msgspec.json.Decoder(list[HookResponse]).decode


def command() -> list[str]:
    """The process's command line."""
    return [sys.executable, "-I", "-c", _PROGRAM, *filter(None, sys.path)]


def unusable(driver: str, why: str) -> InterlockError:
    """A driver.py cannot be used."""
    return InterlockError(TOOL_UNAVAILABLE, f"{ENTRY} of {driver} cannot be imported: {why}.")


async def inspect_code(
    code: DriverCode,
    open_confinement: ConfinementOpener,
    *,
    env: Mapping[str, str],
    timeout: float = LOAD_TIMEOUT_SECONDS,
) -> CodeDescription | None:
    """What a driver.py brings; None: it defines no driver. Raises InterlockError when it cannot be
    confined here, or cannot be used."""
    message = code.message()
    confinement = await open_confinement()
    try:
        argv, full = command(), minimal_environment(env)
        if confinement is not None:
            argv, full = confinement.argv(argv), confinement.environment(full)
        ran = await processes.run(argv, env=full, cwd=code.folder, timeout=timeout, stdin=message)
    finally:
        if confinement is not None:
            await confinement.close()
    if ran.timed_out:
        raise unusable(code.driver, f"it was not loaded within {timeout:g} s")
    return _loaded(code, ran.out.encode(), ran.ending)


def _loaded(code: DriverCode, line: bytes, how: str) -> CodeDescription | None:
    """Raises InterlockError."""
    try:
        found = _decode_loading(line)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        raise unusable(code.driver, f"its process said nothing of use ({how})") from None
    if found.unusable:
        raise unusable(code.driver, found.unusable[:_MOST_WORDS].rstrip("."))
    if found.raised:
        where = f" in line {found.line}" if found.line else ""
        raise unusable(code.driver, f"it raised {processes.printable_excerpt(found.raised)}{where}")
    return found.loaded


class _Running:
    """One process, from its start to its end."""

    def __init__(self, owner: CodeProcess, confinement: CommandConfinement | None) -> None:
        self._owner = owner
        self.confinement = confinement
        self.process: Process | None = None
        self._lines = LineDecoder(MAX_MESSAGE_BYTES)
        self._stderr_lines = LineDecoder(64 * 1024)
        self.loading: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.pending: dict[int, asyncio.Future[HookResponse]] = {}
        self.timers: dict[int, asyncio.TimerHandle] = {}
        self.why = ""
        """Why it was ended, if the node did that."""
        self.over = False
        self.connected = False
        """Whether its pipes are the loop's."""

    # -- Owner of the process

    def on_pipe_data(self, fd: int, data: bytes) -> None:
        if fd == STDERR:
            for line in self._stderr_lines.feed(data):
                self._owner.log(line.head if isinstance(line, OversizeLine) else line)
            return
        for line in self._lines.feed(data):
            if isinstance(line, OversizeLine):
                self.kill(f"it wrote more than {MAX_MESSAGE_BYTES} bytes at once")
            elif not self.loading.done():
                self.loading.set_result(line)
            else:
                self._hear(line)

    def _hear(self, line: bytes) -> None:
        try:
            answer = _decode_answer(line)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            self.kill("it wrote something that is no answer")
            return
        waiting = self.pending.pop(answer.id, None)
        timer = self.timers.pop(answer.id, None)
        if timer is not None:
            timer.cancel()
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)
        self._owner.answered()

    def on_pipe_closed(self, fd: int) -> None:
        if fd == STDOUT:
            self.kill("it closed its output")

    def on_exit(self) -> None:
        self.end()

    @property
    def unsent(self) -> int:
        """How many bytes it has not read."""
        stdin = None if self.process is None else self.process.stdin
        return 0 if stdin is None else stdin.get_write_buffer_size()

    def send(self, line: bytes) -> None:
        """Write to it, if it can be written to; its end is heard of otherwise."""
        stdin = None if self.process is None else self.process.stdin
        if stdin is not None and not stdin.is_closing():
            stdin.write(line)

    # -- its end

    def kill(self, why: str) -> None:
        self.why = self.why or why
        if self.process is not None:
            self.process.signal_group(signal.SIGKILL)

    def end(self) -> None:
        """It is gone: whoever waits for it hears so."""
        if self.over:
            return
        self.over = True
        why = self._ending()
        if not self.loading.done():
            self.loading.set_exception(self._owner.unavailable(why))
            # Whoever started it may be gone.
            self.loading.exception()
        for timer in self.timers.values():
            timer.cancel()
        for waiting in self.pending.values():
            if not waiting.done():
                waiting.set_exception(self._owner.unavailable(why))
        self.pending.clear()
        self.timers.clear()
        self._owner.ended(self, why)

    def _ending(self) -> str:
        status = None if self.process is None else self.process.status
        if self.why:
            return self.why
        if status is not None and status < 0:
            return f"it was ended by signal {-status}"
        return f"it ended with status {status}"


class CodeProcess:
    """Serves the hooks of one driver.py, as long as its driver is used."""

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
        """Set by the node, before the first call."""
        self.env: Mapping[str, str] = {}
        self._running: _Running | None = None
        self._starting: asyncio.Task[_Running] | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False
        self._last_id = 0
        self._crashes = 0
        """Since it last answered."""
        self._again_at = 0.0

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
        """Call a hook. `bounded`: it has a time of its own, and not only its call's. Raises
        InterlockError."""
        running = await self._ready()
        if running.over:
            # It ended between its start and now: nobody would answer.
            raise self.unavailable(running.why or "it ended")
        if len(running.pending) >= MAX_CALLS or running.unsent > MAX_UNSENT_BYTES:
            raise InterlockError(TOO_BUSY, f"{ENTRY} of {self._code.driver} has too many calls.")
        self._last_id += 1
        id = self._last_id
        line = _encode({"id": id, "hook": hook, **message})
        if len(line) > MAX_MESSAGE_BYTES:
            raise InterlockError(
                PAYLOAD_TOO_LARGE,
                f"{hook} in {ENTRY} of {self._code.driver} takes at most {MAX_MESSAGE_BYTES} bytes.",
            )
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[HookResponse] = loop.create_future()
        running.pending[id] = waiting
        if bounded:
            running.timers[id] = loop.call_later(
                self.hook_timeout, self._overdue, running, id, hook
            )
        running.send(line + b"\n")
        try:
            return await waiting
        except asyncio.CancelledError:
            self._cancel(running, id, hook)
            raise

    def answers(self, value: Any) -> list[HookResponse]:
        """What transformers made, out of the value of one answer. Raises InterlockError."""
        try:
            return _decode_answers(_encode(value))
        except msgspec.MsgspecError:
            raise self.unavailable("it answered something else than was asked") from None

    def _cancel(self, running: _Running, id: int, hook: str) -> None:
        """Nobody waits any more. A hook that does not end within its time ends the process."""
        if running.over or id not in running.pending:
            return
        running.send(_encode({"cancel": id}) + b"\n")
        if id not in running.timers:
            running.timers[id] = asyncio.get_running_loop().call_later(
                self.hook_timeout, self._overdue, running, id, hook
            )

    def _overdue(self, running: _Running, id: int, hook: str) -> None:
        waiting = running.pending.pop(id, None)
        running.timers.pop(id, None)
        why = f"{hook} in {ENTRY} of {self._code.driver} took longer than {self.hook_timeout:g} s"
        if waiting is not None and not waiting.done():
            waiting.set_exception(InterlockError(DEADLINE_EXCEEDED, f"{why}.", {"hook": hook}))
        # Nothing else ends a function that runs.
        running.kill(f"{hook} took longer than {self.hook_timeout:g} s")
        self._let_go(running)

    # -- its life

    async def _ready(self) -> _Running:
        running = self._running
        if running is not None and not running.over and not running.why:
            return running
        if self._closed:
            raise self.unavailable("the driver is no more")
        if self._starting is None:
            left = self._again_at - asyncio.get_running_loop().time()
            if left > 0:
                raise self.unavailable(f"it crashed and is started again in {left:.1f} s")
            self._starting = asyncio.get_running_loop().create_task(
                self._start(), name=f"code:{self._code.driver}"
            )
            self._starting.add_done_callback(self._started)
        # Many may wait for the same: one who leaves must not end it for the others.
        return await asyncio.shield(self._starting)

    def _started(self, task: asyncio.Task[_Running]) -> None:
        self._starting = None
        if not task.cancelled():
            # Whoever waited for it may be gone.
            task.exception()

    async def _start(self) -> _Running:
        message = self._code.message()
        assert self.open_confinement is not None, "no call comes before the driver is made"
        confinement = await self.open_confinement()
        running = _Running(self, confinement)
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
                running.connected = True
                if running.over:
                    running.process.close()
            running.send(message)
            try:
                async with asyncio.timeout(self._load_timeout):
                    line = await running.loading
            except TimeoutError:
                raise self.unavailable(
                    f"it was not loaded within {self._load_timeout:g} s"
                ) from None
            if _loaded(self._code, line, "") is None:
                raise self.unavailable("it defines no driver")
        except BaseException:
            running.kill("it did not get ready")
            if running.process is None:
                running.end()
            else:
                await running.process.gone_within(_END_TIMEOUT_SECONDS)
            self._crashed()
            raise
        self._running = running
        return running

    def answered(self) -> None:
        self._crashes = 0

    def _crashed(self) -> None:
        self._crashes += 1
        if self._crashes > 1:
            pause = exponential_delay(self._crashes - 2, MIN_RESTART_SECONDS, MAX_RESTART_SECONDS)
            self._again_at = asyncio.get_running_loop().time() + pause

    def _let_go(self, running: _Running) -> None:
        """The next call starts another."""
        if self._running is running:
            self._running = None

    def ended(self, running: _Running, why: str) -> None:
        """A process is gone."""
        if self._running is running:
            self._running = None
            if not self._closed:
                self._crashed()
                _log.warning("%s of %s ended: %s", ENTRY, self._code.driver, why)
        if running.process is not None and running.connected:
            running.process.close()
        if running.confinement is not None:
            task = asyncio.get_running_loop().create_task(running.confinement.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def unavailable(self, why: str) -> InterlockError:
        return InterlockError(
            TOOL_UNAVAILABLE, f"{ENTRY} of {self._code.driver} does not run: {why}."
        )

    def log(self, line: bytes) -> None:
        """What it wrote to stderr."""
        text = line[:_LINE_SHOWN].decode("utf-8", "replace").rstrip()
        if text:
            _log.info("%s of %s: %s", ENTRY, self._code.driver, redact(text))

    async def end(self, why: str) -> None:
        """End the process that runs now. The next call starts another."""
        running = self._running
        if running is not None:
            running.kill(why)
            self._let_go(running)
            if running.process is not None:
                await running.process.gone_within(_END_TIMEOUT_SECONDS)

    async def close(self, *, immediately: Callable[[], bool] = lambda: True) -> None:
        """End it for good. Calls under way are waited for, unless it is to be `at_once`."""
        loop = asyncio.get_running_loop()
        until = loop.time() + _END_TIMEOUT_SECONDS
        # Two ends of the wait, of which one is nobody's event.
        while self.is_busy and not immediately() and loop.time() < until:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        self._closed = True
        starting = self._starting
        if starting is not None:
            starting.cancel()
            with contextlib.suppress(asyncio.CancelledError, InterlockError):
                await starting
        await self.end("the driver is no more")
        await asyncio.gather(*self._closing, return_exceptions=True)
