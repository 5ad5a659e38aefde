"""The health of a driver: periodic checks, and calls that did not reach the server.

A failure counts for as long as the interval between two checks. After that the driver may be tried
again. A driver without a check is healthy until a call does not reach its server.
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
from interlock.drivers.sandbox.name_resolution import (
    OwnAddresses,
    reachable_resolver,
    resolve_outside,
)
from interlock.drivers.sandbox.patterns import normal_host
from interlock.drivers.sandbox.remote import check_remote
from interlock.errors import InterlockError
from interlock.manifests.model import DriverManifest, HealthCheck, HttpProbe

# -- An HTTP request of a manifest. Only the status of the response matters.
#
# It uses the same plain HTTP client as sign-ins (`core/upstreams/oauth/fetch.py`): redirects are
# not followed, certificates are verified, and http:// is allowed only for this machine.


class ProbeError(Exception):
    """The reason why there was no response, as the rest of a sentence."""


class ProbeClient(Protocol):
    """A function that makes the request and returns the status of the response. Raises
    ProbeError."""

    async def __call__(self, probe: HttpProbe, *, timeout: float) -> int: ...


def declared_probe_client(
    manifest: DriverManifest,
    *,
    any_egress: bool = False,
    local_egress: bool = False,
    never: OwnAddresses = (),
) -> ProbeClient:
    """Return a client that only reaches hosts that the driver's server may reach. A manifest must
    not make the node connect to undeclared hosts or to the node itself.

    Args:
        never: addresses of the node.
    """

    resolver = reachable_resolver(resolve_outside, never=never, local=local_egress)

    async def probe_declared(probe: HttpProbe, *, timeout: float) -> int:
        try:
            check_remote(
                probe.url,
                manifest.egress,
                any_egress=any_egress,
                local_egress=local_egress,
                never=never,
                key=manifest.id,
                subject="the URL of a check",
                field="a url",
            )
            place = parse_url(probe.url)
            port = place.port or (443 if place.scheme == "https" else 80)
            async with asyncio.timeout(timeout):
                # The owner of a name decides where it leads, and it may lead to this machine.
                await resolver(normal_host(place.hostname or ""), port)
        except InterlockError as error:
            raise ProbeError(error.message.rstrip(".")) from None
        except TimeoutError:
            raise ProbeError(
                f"the host of {probe.url} was not resolved within {timeout:g} s"
            ) from None
        except OSError as error:
            raise ProbeError(f"{probe.url} cannot be reached: {error.strerror or error}") from None
        return await probe_server(probe, timeout=timeout)

    return probe_declared


async def probe_server(
    probe: HttpProbe, *, timeout: float, headers: Mapping[str, str] | None = None
) -> int:
    """Send the request and return the status of the response. Raises ProbeError."""
    if not is_secure(probe.url):
        raise ProbeError(f"{probe.url} must be an https URL or a URL of this machine")
    try:
        async with asyncio.timeout(timeout):
            response = await fetch(probe.method, probe.url, {"Accept": "*/*", **(headers or {})})
    except TimeoutError:
        raise ProbeError(f"{probe.url} did not respond within {timeout:g} s") from None
    except SignInProblem as error:
        raise ProbeError(error.reason.rstrip(".")) from None
    return response.status


DEFAULT_CHECK_SECONDS: Final = 300.0

Ping = Callable[[], Awaitable[None]]
"""Pings the driver's server. Raises InterlockError or OSError."""


class Health:
    """The health state of one driver."""

    def __init__(
        self,
        manifest: DriverManifest,
        *,
        ping: Ping,
        run: CommandRunner = processes.run,
        probe_client: ProbeClient = probe_server,
        env: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        on_change: Callable[[Health], None] | None = None,
    ) -> None:
        """Args:
        on_change: called when a driver becomes healthy or unhealthy.
        """
        self.manifest = manifest
        self.failed_at: float | None = None
        """Time of the last failure, on `clock`."""
        self.passed_at: float | None = None
        self.reason = ""
        """Reason of the last failure, as the rest of a sentence."""
        self._check = manifest.health_check
        self._ping = ping
        self._run = run
        self._probe_client = probe_client
        self._env = dict(env or {})
        self._clock = clock
        self._sleep = sleep
        self._on_change = on_change
        self._failing = False

    @property
    def interval_seconds(self) -> float:
        """Seconds between two checks, which is also how long a failure counts."""
        return DEFAULT_CHECK_SECONDS if self._check is None else self._check.every

    @property
    def is_failing(self) -> bool:
        """True if the last known state is a failure, however old."""
        return self._failing

    @property
    def is_available(self) -> bool:
        """True if calls may use the driver: there is no failure, or it has expired."""
        if not self._failing or self.failed_at is None:
            return True
        return self._clock() - self.failed_at >= self.interval_seconds

    def on_pass(self) -> None:
        """Record a passed check or a call with a response."""
        self.passed_at, self.reason = self._clock(), ""
        self._set_failing(failing=False)

    def on_failure(self, reason: str) -> None:
        """Record a failed check or a call that did not reach the server."""
        self.failed_at, self.reason = self._clock(), reason
        self._set_failing(failing=True)

    def _set_failing(self, *, failing: bool) -> None:
        previous, self._failing = self._failing, failing
        if failing is not previous and self._on_change is not None:
            self._on_change(self)

    async def check(self) -> bool:
        """Run the check once and return whether it passed. Cancelling the caller cancels the
        check."""
        if self._check is None:
            return self.is_available
        try:
            async with asyncio.timeout(self._check.timeout_ms / 1000):
                problem = await self._find_problem(self._check)
        except TimeoutError:
            problem = f"no response within {self._check.timeout_ms} ms"
        if problem:
            self.on_failure(problem)
        else:
            self.on_pass()
        return not problem

    async def watch(self) -> None:
        """Run the check periodically until cancelled. Without a check return at once."""
        while self._check is not None:
            await self.check()
            await self._sleep(self.interval_seconds)

    async def _find_problem(self, check: HealthCheck) -> str:
        """Return the problem as the rest of a sentence. Empty: there is none."""
        match check.method:
            case "noop":
                return ""
            case "ping":
                return await self._find_ping_problem()
            case "exec":
                try:
                    result = await self._run(
                        check.cmd,
                        env=self._env,
                        cwd=str(self.manifest.folder),
                        timeout=check.timeout_ms / 1000,
                    )
                except InterlockError as error:
                    # A command that cannot be confined does not run.
                    return f"health_check.cmd: {error.message.rstrip('.')}"
                return (
                    ""
                    if result.exited_with(check.expect_exit)
                    else f"health_check.cmd: {result.ending}"
                )
            case "http":
                return await self._find_request_problem(check)

    async def _find_ping_problem(self) -> str:
        try:
            await self._ping()
        except InterlockError as error:
            return error.message.rstrip(".")
        except OSError as error:
            return f"it cannot be reached ({str(error.strerror or error).lower()})"
        return ""

    async def _find_request_problem(self, check: HealthCheck) -> str:
        if check.http is None:
            return "health_check.http is missing"
        try:
            status = await self._probe_client(check.http, timeout=check.timeout_ms / 1000)
        except ProbeError as error:
            return str(error)
        expected = check.http.expect_status
        return (
            ""
            if status == expected
            else f"{check.http.url} returned HTTP {status}, expected {expected}"
        )
