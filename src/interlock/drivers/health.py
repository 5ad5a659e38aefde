"""Whether a driver works: asked now and then, and told by calls that failed on the way.

A failure counts for as long as the time between two checks; after that it is stale, and the driver
may be tried again. A driver without a check is healthy until a call fails on the way to it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol

from interlock.core.upstreams.oauth.errors import SignInProblem
from interlock.core.upstreams.oauth.fetch import fetch
from interlock.core.upstreams.oauth.urls import is_secure, parse_url
from interlock.drivers import processes
from interlock.drivers.processes import CommandRunner
from interlock.drivers.sandbox.name_resolution import OwnAddresses, reachable, resolve_outside
from interlock.drivers.sandbox.patterns import normal_host
from interlock.drivers.sandbox.remote import check_remote
from interlock.errors import InterlockError
from interlock.manifests.model import DriverManifest, HealthCheck, HttpProbe

# -- One request of a manifest to an HTTP server, of whose answer only the status matters.
#
# The same plain HTTP as for sign-ins (`core/upstreams/oauth/fetch.py`): no redirect is followed,
# certificates are verified, and without TLS only this machine is spoken to.


class ProbeError(Exception):
    """Why there was no answer, as the rest of a sentence."""


class ProbeClient(Protocol):
    """Makes the request; the status of its answer. Raises ProbeError."""

    async def __call__(self, probe: HttpProbe, *, timeout: float) -> int: ...


def declared_probe_client(
    manifest: DriverManifest,
    *,
    any_egress: bool = False,
    local_egress: bool = False,
    never: OwnAddresses = (),
) -> ProbeClient:
    """Asks for a driver, and nobody whom its server could not ask as well: a manifest must not send
    the node to places that it does not declare, nor to the node itself, which is at `never`."""

    reach = reachable(resolve_outside, never=never, local=local_egress)

    async def probe_declared(probe: HttpProbe, *, timeout: float) -> int:
        try:
            check_remote(
                probe.url,
                manifest.egress,
                any_egress=any_egress,
                local_egress=local_egress,
                never=never,
                key=manifest.id,
                what="what it has the node ask",
                field="a url",
            )
            place = parse_url(probe.url)
            port = place.port or (443 if place.scheme == "https" else 80)
            async with asyncio.timeout(timeout):
                # Where a name leads is its owner's to say, and may be here.
                await reach(normal_host(place.hostname or ""), port)
        except InterlockError as error:
            raise ProbeError(error.message.rstrip(".")) from None
        except TimeoutError:
            raise ProbeError(
                f"the host of {probe.url} was not found within {timeout:g} s"
            ) from None
        except OSError as error:
            raise ProbeError(f"{probe.url} cannot be asked: {error.strerror or error}") from None
        return await probe_server(probe, timeout=timeout)

    return probe_declared


async def probe_server(
    probe: HttpProbe, *, timeout: float, headers: Mapping[str, str] | None = None
) -> int:
    """The status of the answer. Raises ProbeError."""
    if not is_secure(probe.url):
        raise ProbeError(f"{probe.url} is neither https nor on this machine")
    try:
        async with asyncio.timeout(timeout):
            answer = await fetch(probe.method, probe.url, {"Accept": "*/*", **(headers or {})})
    except TimeoutError:
        raise ProbeError(f"{probe.url} did not answer within {timeout:g} s") from None
    except SignInProblem as trouble:
        raise ProbeError(trouble.reason.rstrip(".")) from None
    return answer.status


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
        run: CommandRunner = processes.run,
        ask: ProbeClient = probe_server,
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
        self.reason = ""
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
        self.passed_at, self.reason = self._clock(), ""
        self._turn(failing=False)

    def failed(self, why: str) -> None:
        """It does not: a check says so, or a call that never arrived."""
        self.failed_at, self.reason = self._clock(), why
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
                return (
                    "" if ran.exited_with(check.expect_exit) else f"health_check.cmd: {ran.ending}"
                )
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
            status = await self._ask(check.http, timeout=check.timeout_ms / 1000)
        except ProbeError as why:
            return str(why)
        wanted = check.http.expect_status
        return "" if status == wanted else f"{check.http.url} answered HTTP {status}, not {wanted}"
