"""Event loops that find leaks, supervisors to wait for, and calls as the pipeline makes them."""

from __future__ import annotations

import asyncio
import functools
import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Raw

from interlock.core.call import (
    Call,
    Client,
    ClientRequest,
    ClientSession,
    Credentials,
    NotificationHandler,
    Outcome,
)
from interlock.core.catalog.offering import Tool, read_offering
from interlock.core.config import ServerConfig, resolve_server
from interlock.core.upstreams.connection import Connector
from interlock.core.upstreams.oauth.bearer import OAuthBearer
from interlock.core.upstreams.secret_mask import secret_values
from interlock.core.upstreams.supervisor import State, Supervisor
from interlock.errors import InterlockError
from interlock.protocol.mcp import Era
from tests.support.async_tests import LOOPS, checked
from tests.support.timeouts import HANG_TIMEOUT

T = TypeVar("T")

SERVERS = Path(__file__).parents[1] / "core" / "upstreams" / "servers"
OWN_INFO = b'{"name":"interlock-test","version":"0"}'


# -- running

SETTLING: set[Callable[[], None]] = set()
"""Of servers in threads of this process: each waits until it has closed what it was asked by. Their
files are not those of whoever asked."""


@contextmanager
def leak_check() -> Iterator[None]:
    """Fail on leaked processes and files."""
    _open_long_lived_resources()
    # What earlier tests left to the collector must not go in between.
    gc.collect()
    _settle()
    files, running = open_files(), set(child_pids())
    try:
        yield
        gc.collect()
    finally:
        left_running = _end_children(set(child_pids()) - running)
    _settle()
    now = open_files()
    assert now == files, f"{now} instead of {files}"
    assert not left_running, left_running


def run(
    body: Callable[[], Coroutine[Any, Any, None]],
    *,
    loop: str = "uvloop",
    seconds: float = 2 * HANG_TIMEOUT,
) -> None:
    """Run a coroutine on a loop. Fails on tasks, processes and files that are left behind, and on
    errors that the loop reports.
    """
    with leak_check(), asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(checked(body, seconds)())
        gc.collect()
        runner.run(asyncio.sleep(0))


def _end_children(pids: set[int]) -> list[str]:
    """Kill leaked child processes and return them, so that only this test fails."""
    remaining = []
    for pid in pids:
        try:
            remaining.append(f"{pid}: {Path(f'/proc/{pid}/stat').read_text(encoding='utf-8')[:60]}")
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        except (FileNotFoundError, ProcessLookupError, ChildProcessError):
            continue  # ended and reaped meanwhile
    return remaining


def _settle() -> None:
    for settled in SETTLING:
        settled()


@functools.cache
def _open_long_lived_resources() -> None:
    """libuv keeps a pipe for signals from the first use to the end of the process."""

    async def main() -> None:
        stdio_server = await asyncio.create_subprocess_exec("true")
        await stdio_server.wait()

    for factory in LOOPS.values():
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(main())


def other_tasks() -> set[asyncio.Task[Any]]:
    return asyncio.all_tasks() - {asyncio.current_task()}


def open_files() -> dict[str, str]:
    """Return the open files of this process by number."""
    result = {}
    for number in os.listdir("/proc/self/fd"):
        try:
            result[number] = os.readlink(f"/proc/self/fd/{number}")
        except FileNotFoundError:
            continue  # the listing's own
    return result


def child_pids() -> list[int]:
    """Return the child processes that this process has not reaped."""
    result: list[int] = []
    for thread in os.listdir("/proc/self/task"):
        try:
            text = Path(f"/proc/self/task/{thread}/children").read_text(encoding="ascii")
        except FileNotFoundError:
            continue
        result += map(int, text.split())
    return result


def is_running(pid: int) -> bool:
    """Return whether a process runs. An unreaped process does not run."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in ("Z", "X")


async def wait_for_exit(pid: int) -> None:
    """Wait until a process has ended, also if another process is its parent."""
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(watched, ended.set)
    try:
        await with_timeout(ended.wait())
    finally:
        loop.remove_reader(watched)
        os.close(watched)


async def with_timeout(awaitable: Awaitable[T], seconds: float = HANG_TIMEOUT) -> T:
    async with asyncio.timeout(seconds):
        return await awaitable


# -- a supervisor under observation


class ManualSleep:
    """The sleep of a supervisor: takes no time, and can be blocked."""

    def __init__(self, poke: Callable[[], None]) -> None:
        self.taken: list[float] = []
        self.sleeping = 0
        self._poke = poke
        self._permits: asyncio.Semaphore | None = None

    def hold(self) -> None:
        """Block every sleep until `wake` ends it."""
        self._permits = asyncio.Semaphore(0)

    def wake(self, count: int = 1) -> None:
        assert self._permits is not None
        for _ in range(count):
            self._permits.release()

    async def __call__(self, seconds: float) -> None:
        self.taken.append(seconds)
        self.sleeping += 1
        self._poke()
        try:
            if self._permits is not None:
                await self._permits.acquire()
            await asyncio.sleep(0)
        finally:
            self.sleeping -= 1


class StartedCall:
    """A pending call. Await it for its outcome. `exchange` is its pending request."""

    def __init__(
        self, supervisor: Supervisor, call: Call, hear: NotificationHandler | None
    ) -> None:
        self.times_ended = 0
        self._future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        call.on_notification = hear
        self.questions: asyncio.Queue[ClientRequest] = asyncio.Queue()
        """What the upstream asked on the way."""
        self.exchange = supervisor.start(call, self)

    def on_notification(self, call: Call, method: str, params: bytes | Raw) -> None:
        if call.on_notification is not None:
            call.on_notification(call, method, params)

    def on_request(
        self, ask: ClientRequest, call: Call | None, session: ClientSession | None
    ) -> None:
        self.questions.put_nowait(ask)

    def on_result(self, call: Call, outcome: Outcome | None, error: InterlockError | None) -> None:
        self.times_ended += 1
        if self._future.done():
            return
        if error is not None:
            self._future.set_exception(error)
            # Not every test awaits every call.
            self._future.exception()
        else:
            assert outcome is not None
            self._future.set_result(outcome)

    def __await__(self) -> Generator[Any, None, Outcome]:
        return self._future.__await__()


class SupervisorHarness:
    """A supervisor and all its reports."""

    def __init__(
        self,
        server: ServerConfig,
        *,
        key: str = "up",
        jitter: float = 1.0,
        bearer: OAuthBearer | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if server.sessions == "auto":
            # What these tests look at is one connection; who gets one of its own is seen elsewhere.
            server = msgspec.structs.replace(server, sessions="shared")
        self.states: list[State] = []
        self.listed: list[list[str]] = []
        self.withdrawn = 0
        self.on_tools: Callable[[Supervisor], None] | None = None
        self._waiting: list[tuple[Callable[[], Any], asyncio.Future[None]]] = []
        self.sleeps = ManualSleep(self.notify_waiters)
        self.connector = Connector(
            key,
            server,
            node_info=OWN_INFO,
            resolve=lambda item: resolve_server(item, environ=os.environ, base_dir=Path.cwd()),
            clock=asyncio.get_running_loop().time,
            secrets=lambda item: secret_values(item, environ=os.environ, base_dir=Path.cwd()),
            bearer=bearer,
        )
        self.supervisor = Supervisor(
            key,
            server,
            self.connector,
            on_offer=self._tools,
            on_withdrawn=self._withdrawn,
            on_state=self._state,
            sleep=self.sleeps,
            clock=clock,
            jitter=lambda: jitter,
        )

    def _tools(self, one: Supervisor) -> None:
        self.listed.append([_name(raw) for raw in one.raw_offering.tools])
        if self.on_tools is not None:
            self.on_tools(one)
        self.notify_waiters()

    def _withdrawn(self, one: Supervisor) -> None:
        self.withdrawn += 1
        self.notify_waiters()

    def _state(self, one: Supervisor) -> None:
        self.states.append(one.state)
        self.notify_waiters()

    def notify_waiters(self) -> None:
        for condition, future in self._waiting:
            if not future.done() and condition():
                future.set_result(None)

    async def until(self, condition: Callable[[], Any], seconds: float = HANG_TIMEOUT) -> None:
        """Wait until a report makes the condition true."""
        if condition():
            return
        entry = (condition, asyncio.get_running_loop().create_future())
        self._waiting.append(entry)
        try:
            await with_timeout(entry[1], seconds)
        except TimeoutError:
            raise AssertionError(
                f"states {self.states}, problem {self.supervisor.problem!r}, "
                f"naps {self.sleeps.taken}, lists {len(self.listed)}"
            ) from None
        finally:
            self._waiting.remove(entry)

    async def ready(self) -> SupervisorHarness:
        await self.until(lambda: self.supervisor.state is State.READY)
        return self

    async def state(self, state: State) -> None:
        await self.until(lambda: self.supervisor.state is state)

    @property
    def era(self) -> Era:
        assert self.supervisor.upstream_client is not None
        return self.supervisor.upstream_client.era

    # -- calls

    def tool(self, name: str) -> Tool:
        one = self.supervisor
        offering = read_offering("up", one.server, one.raw_offering.tools, http=one.is_http)
        return next(tool for tool in offering.tools if tool.upstream_name == name)

    def start(
        self,
        tool: str,
        arguments: dict[str, Any] | None = None,
        *,
        hear: NotificationHandler | None = None,
        token: Any = None,
        meta: dict[str, Any] | None = None,
        era: Era = Era.SESSION,
    ) -> StartedCall:
        """Send a call as the pipeline does."""
        members = {key: Raw(json.dumps(value).encode()) for key, value in (meta or {}).items()}
        if token is not None:
            members["progressToken"] = Raw(json.dumps(token).encode())
        call = Call(
            method="tools/call",
            server="test",
            credentials=Credentials("local"),
            client=Client(era, "2025-11-25"),
            name=tool,
            arguments=json.dumps(arguments or {}).encode(),
            meta=members or None,
            route=self.tool(tool),
            decoded_arguments=arguments or {},
        )
        return StartedCall(self.supervisor, call, hear)

    async def result(self, tool: str, arguments: dict[str, Any] | None = None, **more: Any) -> Any:
        outcome = await with_timeout(self.start(tool, arguments, **more))
        return json.loads(bytes(outcome.result))

    async def text(self, tool: str, **arguments: Any) -> str:
        return text_of(await self.result(tool, arguments))


def text(outcome: Outcome) -> str:
    """Return the text of a result with one text."""
    return text_of(json.loads(bytes(outcome.result)))


def text_of(result: Any) -> str:
    (content,) = result["content"]
    text: str = content["text"]
    return text


def _name(raw: Raw) -> str:
    try:
        return str(json.loads(bytes(raw))["name"])
    except (TypeError, KeyError):
        return "?"


@asynccontextmanager
async def run_supervisor(server: ServerConfig, **more: Any) -> AsyncIterator[SupervisorHarness]:
    """A running supervisor that ends with the block."""
    one = SupervisorHarness(server, **more)
    one.supervisor.begin()
    try:
        yield one
    finally:
        await with_timeout(one.supervisor.end())


def stdio_server(*options: str, **more: Any) -> ServerConfig:
    """Return the config of `servers/stdio_server.py` with these options."""
    args = ["-S", str(SERVERS / "stdio_server.py"), *options]
    return ServerConfig(command=sys.executable, args=args, **more)


def server_script(name: str, *options: str, **more: Any) -> ServerConfig:
    """Return the config of another server of the `servers` folder."""
    args = [str(SERVERS / name), *options]
    return ServerConfig(command=sys.executable, args=args, **more)


@contextmanager
def official_server(kind: str, port: int = 0) -> Iterator[int]:
    """Run a server of the official SDK in a process and return its port."""
    command = [sys.executable, str(SERVERS / "sdk_http.py"), kind, "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as started:
        try:
            assert started.stdout is not None
            yield int(started.stdout.readline())
        finally:
            started.kill()
