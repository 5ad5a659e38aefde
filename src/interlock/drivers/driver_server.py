"""The server of one driver. The first call that needs it starts it. It runs while it is used, stops
after an idle timeout, and is restarted when it was lost.

A server that is retired finishes its running calls, while new calls get the next server.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Final, Protocol

from interlock.core.call import Call, UpstreamLostError
from interlock.core.config import ServerConfig
from interlock.core.deferred_request import DeferredRequest
from interlock.core.ports import Clock, ResponseHandler, UpstreamRequest
from interlock.core.upstreams.supervisor import Supervisor
from interlock.drivers.errors import not_ready
from interlock.drivers.launch import DriverConnector, is_permanent
from interlock.errors import UPSTREAM_UNAVAILABLE, InterlockError
from interlock.primitives.backoff import exponential_delay

if TYPE_CHECKING:
    from interlock.drivers.driver import Driver

_log = logging.getLogger("interlock.drivers")

MIN_RETRY_SECONDS: Final = 0.5
MAX_RETRY_SECONDS: Final = 30.0
"""Minimum and maximum delay between two attempts to reach a server."""
_DRAIN_POLL_SECONDS: Final = 0.05
_BUSY_CHECK_SECONDS: Final = 1.0
"""Delay of the next idle check if the server is busy."""

Sleep = Callable[[float], Awaitable[None]]


class DriverSupervisor(Supervisor):
    """A supervisor that counts its failed attempts, because attempts to reach a driver's server are
    limited. It also releases the resources that were created for the server."""

    def __init__(
        self, key: str, server: ServerConfig, connector: DriverConnector, **options: Any
    ) -> None:
        super().__init__(key, server, connector, **options)
        self.connector = connector
        self.attempts = 0
        """Failed attempts since the server was last ready."""
        self.on_attempt: Callable[[], None] = lambda: None
        self.cleanups: list[Callable[[], Awaitable[None]]] = []
        """Called when the server has ended."""

    @property
    def is_busy(self) -> bool:
        """Return whether a call waits for a response of the server."""
        peer = self.upstream_client
        return peer is not None and any(
            pending.call is not None for pending in peer.pending.values()
        )

    def _check_grace(self, lost_at: float | None) -> float | None:
        self.attempts += 1
        result = super()._check_grace(lost_at)
        self.on_attempt()
        return result

    def _on_ready(self, upstream_client: Any, raw_offering: Any) -> None:
        self.attempts = 0
        super()._on_ready(upstream_client, raw_offering)
        self.on_attempt()

    async def end(self) -> None:
        await super().end()
        while self.cleanups:
            await self.cleanups.pop()()


class DriverHost(Protocol):
    """The services that a node provides to a driver."""

    clock: Clock
    sleep: Sleep
    idle: float

    async def prepare(self, driver: Driver) -> None:
        """Install the driver, check its version and sign in. Raises InterlockError."""

    async def ensure_ready(self, driver: Driver) -> None:
        """Sign in. If the secrets have changed, retire the running server. Raises
        InterlockError."""

    def supervise(self, driver: Driver, sleep: Sleep) -> DriverSupervisor:
        """Create a supervisor for the server without starting it. Raises InterlockError."""
        ...

    def next_check_at(self, driver: Driver) -> float:
        """Return the time at which `ensure_ready` has to be called again before a call."""
        ...

    def free_slot(self, driver: Driver) -> Awaitable[None]:
        """Stop an idle server if the process limit is reached. Raises InterlockError if none is
        idle."""
        ...

    def call_later(self, seconds: float, then: Callable[[], None]) -> Any: ...

    def on_change(self, driver: Driver) -> None:
        """Report that the driver's state has changed."""


class DriverServer:
    """The server of a driver, running or stopped."""

    def __init__(self, driver: Driver, host: DriverHost) -> None:
        self.supervisor: DriverSupervisor | None = None
        self.last_used = host.clock()
        self.closed = False
        """True if the server must not be started again."""
        self._driver = driver
        self._host = host
        self._next_check_at = -inf
        self._start_task: asyncio.Task[DriverSupervisor] | None = None
        self._idle_timer: Any = None
        self._attempt_event = asyncio.Event()
        self._end_tasks: dict[asyncio.Task[None], DriverSupervisor] = {}
        """Retired servers that still have running calls."""
        self._immediate = False

    @property
    def is_idle(self) -> bool:
        """Return whether the server runs without calls."""
        supervisor = self.supervisor
        return supervisor is not None and self._start_task is None and not supervisor.is_busy

    def touch(self) -> None:
        self.last_used = self._host.clock()

    def start(
        self, call: Call, handler: ResponseHandler, check: Callable[[], None] | None = None
    ) -> UpstreamRequest:
        """Send a request to the server and start the server if necessary. Raises InterlockError.

        Args:
            check: called when the server is ready, before the request is sent. It may raise
                InterlockError.
        """
        self.touch()
        supervisor = self.supervisor
        if (
            supervisor is not None
            and supervisor.upstream_client is not None
            and self._host.clock() < self._next_check_at
        ):
            return supervisor.start(call, handler)
        return DeferredRequest(call, handler, not_ready(), partial(self._start_when_ready, check))

    async def _start_when_ready(
        self, check: Callable[[], None] | None, call: Call, handler: ResponseHandler
    ) -> UpstreamRequest:
        supervisor = await self.ensure_running()
        if check is not None:
            check()
        return supervisor.start(call, handler)

    # -- start

    async def ensure_running(self) -> DriverSupervisor:
        """Start the server if necessary and return its supervisor. Raises InterlockError."""
        supervisor = self.supervisor
        if supervisor is not None and supervisor.upstream_client is not None:
            if self._host.clock() < self._next_check_at:
                return supervisor
            await self._host.ensure_ready(self._driver)
            self._next_check_at = self._host.next_check_at(self._driver)
            if self.supervisor is supervisor and supervisor.upstream_client is not None:
                return supervisor
        if self.closed:
            raise self._unavailable("the driver was removed")
        if self._start_task is None:
            self._start_task = asyncio.get_running_loop().create_task(
                self._start_server(), name=f"wake:{self._driver.key}"
            )
            self._start_task.add_done_callback(self._on_started)
        start_task = self._start_task
        try:
            # Several calls may wait for one start. Cancelling one of them must not cancel the
            # start.
            return await asyncio.shield(start_task)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not start_task.cancelled() or (task is not None and task.cancelling()):
                raise
            raise self._unavailable("the driver was removed") from None

    def _on_started(self, task: asyncio.Task[DriverSupervisor]) -> None:
        self._start_task = None
        if not task.cancelled() and task.exception() is not None:
            _log.debug("driver %s: its server did not become ready", self._driver.key)

    async def _start_server(self) -> DriverSupervisor:
        driver, host = self._driver, self._host
        self.touch()
        try:
            await host.prepare(driver)
            supervisor = self.supervisor
            if supervisor is None:
                await host.free_slot(driver)
                supervisor = self.supervisor = host.supervise(driver, self._wait_before_retry)
                supervisor.on_attempt = self._attempt_event.set
                supervisor.begin()
            await self._wait_until_ready(supervisor)
        except InterlockError as error:
            driver.problem = error.message
            host.on_change(driver)
            raise
        driver.problem = ""
        self._next_check_at = host.next_check_at(driver)
        self._schedule_idle_check()
        return supervisor

    async def _wait_until_ready(self, supervisor: DriverSupervisor) -> None:
        """Wait until the server is ready or the attempts are used up. Raises InterlockError."""
        max_attempts = self._driver.manifest.connection.max_retries
        while supervisor.upstream_client is None:
            if self.supervisor is not supervisor:
                raise self._unavailable("it was stopped")
            error = supervisor.connector.last_error
            permanent = error is not None and is_permanent(error)
            if supervisor.attempts > max_attempts or (supervisor.attempts and permanent):
                problem = supervisor.problem or "it does not become ready"
                await self.end()
                if error is not None and permanent and not isinstance(error, UpstreamLostError):
                    raise error
                status = error.status if isinstance(error, UpstreamLostError) else 0
                raise self._unavailable(problem, status)
            self._attempt_event.clear()
            await self._attempt_event.wait()

    def _unavailable(self, reason: str, status: int = 0) -> UpstreamLostError:
        return UpstreamLostError(
            UPSTREAM_UNAVAILABLE,
            f"The server of {self._driver.manifest.id} is not available: {reason}",
            was_sent=False,
            status=status,
        )

    async def _wait_before_retry(self, seconds: float) -> None:
        """Wait between two attempts. `seconds` is the delay that the supervisor proposes."""
        attempts = 0 if self.supervisor is None else max(self.supervisor.attempts - 1, 0)
        least = exponential_delay(attempts, MIN_RETRY_SECONDS, MAX_RETRY_SECONDS)
        await self._host.sleep(min(max(seconds, least), MAX_RETRY_SECONDS))

    # -- stop

    def _detach(self) -> DriverSupervisor | None:
        """Detach the supervisor, so that the next call starts another server."""
        supervisor, self.supervisor = self.supervisor, None
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        self._attempt_event.set()
        return supervisor

    async def end(self) -> None:
        """Stop the server now. Calls without a response fail."""
        supervisor = self._detach()
        if supervisor is not None:
            # The server stops even if the caller of this method is cancelled.
            await asyncio.shield(self._begin_end(supervisor, wait_for_calls=False))

    async def end_all(self) -> None:
        """Stop the server and all retired servers now."""
        await self.end()
        await asyncio.gather(*(supervisor.end() for supervisor in self._end_tasks.values()))

    def retire(self) -> None:
        """Stop the server when its last call has ended or `stop_waiting` was called."""
        supervisor = self._detach()
        if supervisor is not None:
            self._begin_end(supervisor, wait_for_calls=True)

    def _begin_end(
        self, supervisor: DriverSupervisor, *, wait_for_calls: bool
    ) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(
            self._end_when_unused(supervisor, wait_for_calls=wait_for_calls),
            name=f"go:{self._driver.key}",
        )
        self._end_tasks[task] = supervisor
        task.add_done_callback(self._end_tasks.pop)
        return task

    async def _end_when_unused(self, supervisor: DriverSupervisor, *, wait_for_calls: bool) -> None:
        # Each call has a deadline. The server runs until the last call has ended.
        while wait_for_calls and supervisor.is_busy and not self._immediate:
            await self._host.sleep(_DRAIN_POLL_SECONDS)
        await supervisor.end()
        self._host.on_change(self._driver)

    async def close(self, *, immediately: bool) -> None:
        """End it for good. Calls under way may still be answered, unless it is to be `at_once`."""
        self.closed = True
        self._immediate |= immediately
        start_task = self._start_task
        if start_task is not None:
            start_task.cancel()
            await asyncio.gather(start_task, return_exceptions=True)
        self.retire()
        await asyncio.gather(*self._end_tasks, return_exceptions=True)

    @property
    def is_immediate(self) -> bool:
        """True if stopping does not wait for running calls."""
        return self._immediate

    def stop_waiting(self) -> None:
        """Stop retired servers without waiting for their calls."""
        self._immediate = True

    # -- idle timeout

    def _schedule_idle_check(self) -> None:
        if self._idle_timer is None and self.supervisor is not None:
            remaining = self.last_used + self._idle_timeout - self._host.clock()
            if not self.is_idle:
                remaining = max(remaining, _BUSY_CHECK_SECONDS)
            self._idle_timer = self._host.call_later(max(remaining, 0.0), self._check_idle)

    @property
    def _idle_timeout(self) -> float:
        return self._host.idle if self._driver.manifest.connection.keepalive else 0.0

    def _check_idle(self) -> None:
        self._idle_timer = None
        if not self.is_idle or self._host.clock() - self.last_used < self._idle_timeout:
            self._schedule_idle_check()
        else:
            self.retire()
