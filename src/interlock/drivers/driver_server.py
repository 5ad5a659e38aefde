"""The server of one driver: started by the first call that needs it, kept while it is used, ended
when nobody has used it for a while, and looked for again when it was lost.

A server that is to go lets the calls end that are under way, while new ones get the next server.
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
"""Between two attempts to reach a server, from the first to the longest pause."""
_DRAIN_POLL_SECONDS: Final = 0.05
_BUSY_CHECK_SECONDS: Final = 1.0
"""When a server that is at work is looked at again."""

Sleep = Callable[[float], Awaitable[None]]


class DriverSupervisor(Supervisor):
    """A supervisor that counts its attempts, because a driver's server is given up after some, and
    that takes along what was made for its server."""

    def __init__(
        self, key: str, server: ServerConfig, connector: DriverConnector, **more: Any
    ) -> None:
        super().__init__(key, server, connector, **more)
        self.connector = connector
        self.attempts = 0
        """Those that failed since it was last ready."""
        self.on_attempt: Callable[[], None] = lambda: None
        self.cleanups: list[Callable[[], Awaitable[None]]] = []
        """What is done when it has ended."""

    @property
    def is_busy(self) -> bool:
        """Whether anybody waits for an answer of its server."""
        peer = self.peer
        return peer is not None and any(
            pending.call is not None for pending in peer.pending.values()
        )

    def _check_grace(self, lost_at: float | None) -> float | None:
        self.attempts += 1
        given = super()._check_grace(lost_at)
        self.on_attempt()
        return given

    def _on_ready(self, peer: Any, offer: Any) -> None:
        self.attempts = 0
        super()._on_ready(peer, offer)
        self.on_attempt()

    async def end(self) -> None:
        await super().end()
        while self.cleanups:
            await self.cleanups.pop()()


class DriverHost(Protocol):
    """What a driver is given by the node."""

    clock: Clock
    sleep: Sleep
    idle: float

    async def prepare(self, driver: Driver) -> None:
        """Have it installed, of the right version and signed in. Raises InterlockError."""

    async def ensure_ready(self, driver: Driver) -> None:
        """Have it signed in; a server with secrets that are no more is let go. Raises
        InterlockError."""

    def supervise(self, driver: Driver, sleep: Sleep) -> DriverSupervisor:
        """A supervisor for its server, not begun yet. Raises InterlockError."""
        ...

    def next_check_at(self, driver: Driver) -> float:
        """When `ready` is to be asked before the next call, on the clock."""
        ...

    def free_slot(self, driver: Driver) -> Awaitable[None]:
        """Another server is about to run. Raises InterlockError when there are too many."""
        ...

    def call_later(self, seconds: float, then: Callable[[], None]) -> Any: ...

    def on_change(self, driver: Driver) -> None:
        """What is known about it is something else now."""


class DriverServer:
    """The server of a driver, there or not."""

    def __init__(self, driver: Driver, host: DriverHost) -> None:
        self.supervisor: DriverSupervisor | None = None
        self.last_used = host.clock()
        self.closed = False
        """It is not started any more."""
        self._driver = driver
        self._host = host
        self._look_at = -inf
        self._start_task: asyncio.Task[DriverSupervisor] | None = None
        self._idle_timer: Any = None
        self._attempt_event = asyncio.Event()
        self._end_tasks: dict[asyncio.Task[None], DriverSupervisor] = {}
        """Those that are to go, and only stay for the calls that they have."""
        self._immediate = False

    @property
    def is_idle(self) -> bool:
        """Whether it runs, and nobody needs it now."""
        supervisor = self.supervisor
        return supervisor is not None and self._start_task is None and not supervisor.is_busy

    def touch(self) -> None:
        self.last_used = self._host.clock()

    def start(
        self, call: Call, back: ResponseHandler, check: Callable[[], None] | None = None
    ) -> UpstreamRequest:
        """Send a request to it; it is started for that if need be. `check` is asked when it is
        there, before it hears of the request. Raises InterlockError."""
        self.touch()
        supervisor = self.supervisor
        if (
            supervisor is not None
            and supervisor.peer is not None
            and self._host.clock() < self._look_at
        ):
            return supervisor.start(call, back)
        return DeferredRequest(call, back, not_ready(), partial(self._start_when_ready, check))

    async def _start_when_ready(
        self, check: Callable[[], None] | None, call: Call, back: ResponseHandler
    ) -> UpstreamRequest:
        supervisor = await self.ensure_running()
        if check is not None:
            check()
        return supervisor.start(call, back)

    # -- coming

    async def ensure_running(self) -> DriverSupervisor:
        """Its supervisor, with the server ready to be asked. Raises InterlockError."""
        supervisor = self.supervisor
        if supervisor is not None and supervisor.peer is not None:
            if self._host.clock() < self._look_at:
                return supervisor
            await self._host.ensure_ready(self._driver)
            self._look_at = self._host.next_check_at(self._driver)
            if self.supervisor is supervisor and supervisor.peer is not None:
                return supervisor
        if self.closed:
            raise self._gone("the driver is no more")
        if self._start_task is None:
            self._start_task = asyncio.get_running_loop().create_task(
                self._start_server(), name=f"wake:{self._driver.key}"
            )
            self._start_task.add_done_callback(self._on_started)
        waking = self._start_task
        try:
            # Many may wait for the same: one who leaves must not end it for the others.
            return await asyncio.shield(waking)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not waking.cancelled() or (task is not None and task.cancelling()):
                raise
            raise self._gone("the driver is no more") from None

    def _on_started(self, task: asyncio.Task[DriverSupervisor]) -> None:
        self._start_task = None
        if not task.cancelled() and task.exception() is not None:
            _log.debug("%s did not get ready", self._driver.key)

    async def _start_server(self) -> DriverSupervisor:
        driver, host = self._driver, self._host
        self.touch()
        try:
            await host.prepare(driver)
            supervisor = self.supervisor
            if supervisor is None:
                await host.free_slot(driver)
                supervisor = self.supervisor = host.supervise(driver, self._pause)
                supervisor.on_attempt = self._attempt_event.set
                supervisor.begin()
            await self._wait_until_ready(supervisor)
        except InterlockError as error:
            driver.problem = error.message
            host.on_change(driver)
            raise
        driver.problem = ""
        self._look_at = host.next_check_at(driver)
        self._schedule_idle_check()
        return supervisor

    async def _wait_until_ready(self, supervisor: DriverSupervisor) -> None:
        """Wait until it is ready, or has been tried often enough. Raises InterlockError."""
        most = self._driver.manifest.connection.max_retries
        while supervisor.peer is None:
            if self.supervisor is not supervisor:
                raise self._gone("it was ended")
            trouble = supervisor.connector.last_error
            lasting = trouble is not None and is_permanent(trouble)
            if supervisor.attempts > most or (supervisor.attempts and lasting):
                problem = supervisor.problem or "it does not get ready"
                await self.end()
                if trouble is not None and lasting and not isinstance(trouble, UpstreamLostError):
                    raise trouble
                status = trouble.status if isinstance(trouble, UpstreamLostError) else 0
                raise self._gone(problem, status)
            self._attempt_event.clear()
            await self._attempt_event.wait()

    def _gone(self, why: str, status: int = 0) -> UpstreamLostError:
        return UpstreamLostError(
            UPSTREAM_UNAVAILABLE,
            f"The server of {self._driver.manifest.id} is not available: {why}",
            was_sent=False,
            status=status,
        )

    async def _pause(self, seconds: float) -> None:
        """Between two attempts. `seconds` is what a supervisor thinks right."""
        attempts = 0 if self.supervisor is None else max(self.supervisor.attempts - 1, 0)
        least = exponential_delay(attempts, MIN_RETRY_SECONDS, MAX_RETRY_SECONDS)
        await self._host.sleep(min(max(seconds, least), MAX_RETRY_SECONDS))

    # -- going

    def _detach(self) -> DriverSupervisor | None:
        """From now on there is none: the next call starts another one."""
        supervisor, self.supervisor = self.supervisor, None
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        self._attempt_event.set()
        return supervisor

    async def end(self) -> None:
        """End it now. Calls that it has not answered fail."""
        supervisor = self._detach()
        if supervisor is not None:
            # It ends also when whoever wanted that is gone before it has.
            await asyncio.shield(self._begin_end(supervisor, patient=False))

    async def end_all(self) -> None:
        """The same, also for those that were to go when their last call is answered."""
        await self.end()
        await asyncio.gather(*(supervisor.end() for supervisor in self._end_tasks.values()))

    def retire(self) -> None:
        """End it as soon as nobody waits for it, or nobody has to wait any longer."""
        supervisor = self._detach()
        if supervisor is not None:
            self._begin_end(supervisor, patient=True)

    def _begin_end(self, supervisor: DriverSupervisor, *, patient: bool) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(
            self._end_when_unused(supervisor, patient=patient), name=f"go:{self._driver.key}"
        )
        self._end_tasks[task] = supervisor
        task.add_done_callback(self._end_tasks.pop)
        return task

    async def _end_when_unused(self, supervisor: DriverSupervisor, *, patient: bool) -> None:
        # Each call has a deadline of its own, and the server stays for as long as the last of them.
        while patient and supervisor.is_busy and not self._immediate:
            await self._host.sleep(_DRAIN_POLL_SECONDS)
        await supervisor.end()
        self._host.on_change(self._driver)

    async def close(self, *, immediately: bool) -> None:
        """End it for good. Calls under way may still be answered, unless it is to be `at_once`."""
        self.closed = True
        self._immediate |= immediately
        waking = self._start_task
        if waking is not None:
            waking.cancel()
            await asyncio.gather(waking, return_exceptions=True)
        self.retire()
        await asyncio.gather(*self._end_tasks, return_exceptions=True)

    @property
    def is_immediate(self) -> bool:
        """Whether nobody's call is waited for."""
        return self._immediate

    def stop_waiting(self) -> None:
        """Whoever still waits for a server that is to go has waited long enough."""
        self._immediate = True

    # -- while nobody uses it

    def _schedule_idle_check(self) -> None:
        if self._idle_timer is None and self.supervisor is not None:
            left = self.last_used + self._idle_timeout - self._host.clock()
            if not self.is_idle:
                left = max(left, _BUSY_CHECK_SECONDS)
            self._idle_timer = self._host.call_later(max(left, 0.0), self._look)

    @property
    def _idle_timeout(self) -> float:
        return self._host.idle if self._driver.manifest.connection.keepalive else 0.0

    def _look(self) -> None:
        self._idle_timer = None
        if not self.is_idle or self._host.clock() - self.last_used < self._idle_timeout:
            self._schedule_idle_check()
        else:
            self.retire()
