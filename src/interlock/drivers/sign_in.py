"""Signing in with a driver: its login command, or its page, until what it says makes it complete.

A human is in it. What they are shown comes in as `open_url`; a command that speaks with them gets
the terminal. Everything here can be cancelled, and takes its processes and ports with it.
"""

from __future__ import annotations

import asyncio
import hmac
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Self
from urllib.parse import parse_qsl, urlencode, urlsplit

from interlock.core.upstreams.loopback_callback import (
    CALLBACK_PATH,
    UNEXPECTED_REQUEST,
    CallbackPage,
    CallbackRequest,
    LoopbackCallback,
)
from interlock.drivers import health as health_probe
from interlock.drivers import processes
from interlock.drivers.health import ProbeClient, ProbeError
from interlock.drivers.processes import CommandRunner
from interlock.errors import AUTH_FAILED, InterlockError
from interlock.manifests.model import Completion, DriverManifest, Login

# -- The way back of a login: an address of this machine that is good for one visit, for a while.
#
# Only a browser that was led here by the page that was opened is let in: the address carries a
# state that nobody could guess. Requests of other pages' scripts, images and frames are refused,
# and so is every other name for this machine.

_TAKEN: Final = "You are signed in as far as this page knows; the terminal says the rest."
_OVER: Final = "This address was good for one visit, or its time is up. Begin again."


class SignInTimeout(Exception):
    """The time is up."""


class CallbackListener:
    """Listens on loopback, from `async with` to its end."""

    def __init__(self, *, timeout: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`within`: how long the address is good."""
        self._timeout = timeout
        self._clock = clock
        self._ends = 0.0
        self._state = secrets.token_urlsafe(24)
        self._callback = LoopbackCallback(self._answer)
        self._visit: asyncio.Future[dict[str, str]]

    async def __aenter__(self) -> Self:
        self._visit = asyncio.get_running_loop().create_future()
        self._ends = self._clock() + self._timeout
        await self._callback.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._callback.close()
        self._visit.cancel()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._callback.port}{PATH}"

    def login_url(self, url: str) -> str:
        """The page to open: it is told where to come back to, and with what state."""
        found = urlsplit(url)
        ours = {"redirect_uri": self.address, "state": self._state}
        query = [
            pair for pair in parse_qsl(found.query, keep_blank_values=True) if pair[0] not in ours
        ]
        return found._replace(query=urlencode([*query, *ours.items()])).geturl()

    async def wait_for_callback(self) -> dict[str, str]:
        """What the visit brought, without the state. Raises SignInTimeout."""
        try:
            async with asyncio.timeout(self._timeout):
                return await asyncio.shield(self._visit)
        except TimeoutError:
            raise SignInTimeout from None

    def _answer(self, visit: CallbackRequest) -> CallbackPage:
        if not _is_navigation(visit.headers):
            return CallbackPage("403 Forbidden", UNEXPECTED_REQUEST)
        try:
            said = parse_qsl(visit.query, keep_blank_values=True, max_num_fields=50)
        except ValueError:
            return CallbackPage("400 Bad Request", UNEXPECTED_REQUEST)
        if self._visit.done() or self._clock() >= self._ends:
            return CallbackPage("410 Gone", _OVER)
        values = dict(said)
        if len(values) != len(said):
            return CallbackPage("400 Bad Request", UNEXPECTED_REQUEST)
        if not hmac.compare_digest(values.pop("state", "").encode(), self._state.encode()):
            return CallbackPage("403 Forbidden", UNEXPECTED_REQUEST)
        self._visit.set_result(values)
        return CallbackPage("200 OK", _TAKEN)


def _is_navigation(headers: dict[str, str]) -> bool:
    """Whether a human's browser goes to the address, and no page merely asks for it."""
    if "origin" in headers:
        return False
    return (
        headers.get("sec-fetch-mode", "navigate") == "navigate"
        and headers.get("sec-fetch-dest", "document") == "document"
    )


SIGN_IN_TIMEOUT_SECONDS: Final = 300.0
"""How long a human may take."""
POLL_SECONDS: Final = 2.0
"""How often it is looked whether they are done, where nothing else tells."""
_CHECK_TIMEOUT_SECONDS: Final = 20.0
_ERROR: Final = re.compile(r"[A-Za-z0-9_.:-]{1,80}")

UrlOpener = Callable[[str], Awaitable[None]]
"""Shows a page to the human, or opens it."""
CallbackHandler = Callable[[Mapping[str, str]], Awaitable[None]]
"""Is given what the browser brought back, such as a code, before it is looked whether the login is
complete. There are secrets in it. Raises InterlockError."""


async def sign_in(
    manifest: DriverManifest,
    *,
    open_url: UrlOpener,
    run: CommandRunner = processes.run,
    in_terminal: CommandRunner = processes.run_in_terminal,
    ask: ProbeClient = health_probe.probe_server,
    env: Mapping[str, str] | None = None,
    on_callback: CallbackHandler | None = None,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    clock: Callable[[], float] = time.monotonic,
    timeout: float = SIGN_IN_TIMEOUT_SECONDS,
) -> None:
    """Raises InterlockError when it did not work out."""
    login = None if manifest.auth is None else manifest.auth.login
    if login is None or not (login.cmd or login.url):
        raise _failed(manifest, "its DRIVER.md says no login (auth.login.cmd or auth.login.url)")
    way = _LoginSteps(manifest, login, run, ask, env or {})
    if login.cmd:
        await way.command(in_terminal if login.interactive else run, timeout)
    elif login.requires_callback_url:
        await _sign_in_with_callback(manifest, login.url, open_url, on_callback, clock, timeout)
    else:
        if login.completes_when is None:
            raise _failed(
                manifest,
                "auth.login has neither requires_callback_url nor completes_when, so nobody could "
                "tell when you are done",
            )
        await open_url(login.url)
        await _poll(manifest, way, sleep, clock, timeout)
        return
    problem = await way.problem()
    if problem:
        raise _failed(manifest, problem)


class _LoginSteps:
    """The parts of a login that a manifest names."""

    def __init__(
        self,
        manifest: DriverManifest,
        login: Login,
        run: CommandRunner,
        ask: ProbeClient,
        env: Mapping[str, str],
    ) -> None:
        self._manifest = manifest
        self._login = login
        self._completion = login.completes_when
        self._run = run
        self._ask = ask
        self._env = env

    async def command(self, run: CommandRunner, timeout: float) -> None:
        """The login command, to its end."""
        done = self._completion
        own = done is not None and not done.cmd and done.http is None
        expected = done.exit_code if own and done is not None else 0
        ran = await run(
            self._login.cmd, env=self._env, cwd=str(self._manifest.folder), timeout=timeout
        )
        if not ran.exited_with(expected):
            raise _failed(self._manifest, f"auth.login.cmd: {ran.ending}")

    async def problem(self) -> str:
        """Why the login is not complete, as the rest of a sentence; empty: it is."""
        done = self._completion
        if done is None:
            return ""
        if done.http is not None:
            return await self._problem_of_request(done)
        if done.cmd:
            ran = await self._run(
                done.cmd,
                env=self._env,
                cwd=str(self._manifest.folder),
                timeout=_CHECK_TIMEOUT_SECONDS,
            )
            return "" if ran.exited_with(done.exit_code) else f"completes_when.cmd: {ran.ending}"
        return ""

    async def _problem_of_request(self, done: Completion) -> str:
        assert done.http is not None
        try:
            status = await self._ask(done.http, timeout=_CHECK_TIMEOUT_SECONDS)
        except ProbeError as why:
            return f"completes_when.http: {why}"
        if status == done.http.expect_status:
            return ""
        wanted = done.http.expect_status
        return f"completes_when.http: {done.http.url} answered HTTP {status}, not {wanted}"


async def _sign_in_with_callback(
    manifest: DriverManifest,
    url: str,
    open_url: UrlOpener,
    on_callback: CallbackHandler | None,
    clock: Callable[[], float],
    timeout: float,
) -> None:
    async with CallbackListener(timeout=timeout, clock=clock) as callback:
        await open_url(callback.login_url(url))
        try:
            said = await callback.wait_for_callback()
        except SignInTimeout:
            raise _failed(manifest, f"nobody came back within {timeout:g} s") from None
    error = said.get("error")
    if error is not None:
        code = error if _ERROR.fullmatch(error) else "an error without a name"
        raise _failed(manifest, f"it was refused in the browser ({code})")
    if on_callback is not None:
        await on_callback(said)


async def _poll(
    manifest: DriverManifest,
    way: _LoginSteps,
    sleep: Callable[[float], Awaitable[None]],
    clock: Callable[[], float],
    timeout: float,
) -> None:
    ends = clock() + timeout
    while problem := await way.problem():
        if clock() >= ends:
            raise _failed(manifest, f"it was not complete within {timeout:g} s: {problem}")
        await sleep(POLL_SECONDS)


def _failed(manifest: DriverManifest, why: str) -> InterlockError:
    return InterlockError(
        AUTH_FAILED, f"Cannot sign in with {manifest.id}: {why}.", {"driver": manifest.id}
    )
