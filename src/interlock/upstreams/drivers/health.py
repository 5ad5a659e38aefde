"""Whether a driver works: asked now and then, and told by calls that failed on the way.

A failure counts for as long as the time between two checks; after that it is stale, and the driver
may be tried again. A driver without a check is healthy until a call fails on the way to it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from interlock.errors import InterlockError
from interlock.manifests.driver import DriverManifest, HealthCheck
from interlock.upstreams.drivers import health_probe, processes
from interlock.upstreams.drivers.health_probe import Asks, NoAnswer
from interlock.upstreams.drivers.processes import Runs

EVERY: Final = 300.0

Ping = Callable[[], Awaitable[None]]
"""Asks the driver's server for a sign of life. Raises InterlockError or OSError."""


class Health:
    """The health of one driver."""

    def __init__(
        self,
        manifest: DriverManifest,
        *,
        ping: Ping,
        run: Runs = processes.run,
        ask: Asks = health_probe.ask,
        env: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        on_change: Callable[[Health], None] | None = None,
    ) -> None:
        """`on_change` hears when a driver that worked does not, and the other way round."""
        self.manifest = manifest
        self.failed_at: float | None = None
        """When it was last found not to work, on `clock`."""
        self.passed_at: float | None = None
        self.why = ""
        """Why the last failure, as the rest of a sentence."""
        self._check = manifest.health_check
        self._ping = ping
        self._run = run
        self._ask = ask
        self._env = dict(env or {})
        self._clock = clock
        self._sleep = sleep
        self._on_change = on_change
        self._failing = False

    @property
    def every(self) -> float:
        """Seconds between two checks, and how long a failure counts."""
        return EVERY if self._check is None else self._check.every

    @property
    def failing(self) -> bool:
        """Whether the last thing that is known is a failure, however old."""
        return self._failing

    @property
    def available(self) -> bool:
        """Whether calls may go to it: there is no failure, or it is stale."""
        if not self._failing or self.failed_at is None:
            return True
        return self._clock() - self.failed_at >= self.every

    def passed(self) -> None:
        """It works: a check says so, or a call that was answered."""
        self.passed_at, self.why = self._clock(), ""
        self._turn(failing=False)

    def failed(self, why: str) -> None:
        """It does not: a check says so, or a call that never arrived."""
        self.failed_at, self.why = self._clock(), why
        self._turn(failing=True)

    def _turn(self, *, failing: bool) -> None:
        before, self._failing = self._failing, failing
        if failing is not before and self._on_change is not None:
            self._on_change(self)

    async def check(self) -> bool:
        """Look once; whether it works. Who gives up waiting takes the check with them."""
        if self._check is None:
            return self.available
        try:
            async with asyncio.timeout(self._check.timeout_ms / 1000):
                problem = await self._problem(self._check)
        except TimeoutError:
            problem = f"it did not answer within {self._check.timeout_ms} ms"
        if problem:
            self.failed(problem)
        else:
            self.passed()
        return not problem

    async def watch(self) -> None:
        """Look now and then, until cancelled. Without a check there is nothing to look at."""
        while self._check is not None:
            await self.check()
            await self._sleep(self.every)

    async def _problem(self, check: HealthCheck) -> str:
        """What is wrong, as the rest of a sentence; empty: nothing."""
        match check.method:
            case "noop":
                return ""
            case "ping":
                return await self._problem_of_ping()
            case "exec":
                try:
                    ran = await self._run(
                        check.cmd,
                        env=self._env,
                        cwd=str(self.manifest.folder),
                        timeout=check.timeout_ms / 1000,
                    )
                except InterlockError as error:
                    # It is not run where it cannot be confined.
                    return f"health_check.cmd: {error.message.rstrip('.')}"
                return "" if ran.ended_with(check.expect_exit) else f"health_check.cmd: {ran.how}"
            case "http":
                return await self._problem_of_request(check)

    async def _problem_of_ping(self) -> str:
        try:
            await self._ping()
        except InterlockError as error:
            return error.message.rstrip(".")
        except OSError as error:
            return f"it cannot be reached ({str(error.strerror or error).lower()})"
        return ""

    async def _problem_of_request(self, check: HealthCheck) -> str:
        if check.http is None:
            return "health_check.http is missing"
        try:
            status = await self._ask(check.http, within=check.timeout_ms / 1000)
        except NoAnswer as why:
            return str(why)
        wanted = check.http.expect_status
        return "" if status == wanted else f"{check.http.url} answered HTTP {status}, not {wanted}"
