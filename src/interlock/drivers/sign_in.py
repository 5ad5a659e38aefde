"""Sign-in with a driver by its login command or its web page (AIP-32).

An operator takes part. `open_url` shows a page to the operator. An interactive command gets the
terminal. Everything can be cancelled, and its processes and ports are closed then.
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

# -- The callback of a login: a loopback address that is valid for one visit and a limited time.
#
# Only a browser that was sent by the opened page is accepted: the address carries an unguessable
# state. Requests by scripts, images and frames of other pages are rejected, and so are other host
# names of this machine.

_RECEIVED: Final = "The sign-in was received. Continue in the terminal."
_EXPIRED: Final = "This address was already used or has expired. Start the sign-in again."


class SignInTimeout(Exception):
    """The browser did not return within the timeout."""


class CallbackListener:
    """A listener on loopback, open during its `async with` block."""

    def __init__(self, *, timeout: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Args:
        timeout: how long the address is valid, in seconds.
        """
        self._timeout = timeout
        self._clock = clock
        self._deadline = 0.0
        self._state = secrets.token_urlsafe(24)
        self._callback = LoopbackCallback(self._on_visit)
        self._visit: asyncio.Future[dict[str, str]]

    async def __aenter__(self) -> Self:
        self._visit = asyncio.get_running_loop().create_future()
        self._deadline = self._clock() + self._timeout
        await self._callback.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._callback.close()
        self._visit.cancel()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._callback.port}{CALLBACK_PATH}"

    def login_url(self, url: str) -> str:
        """Return the URL of the login page with `redirect_uri` and `state`."""
        parts = urlsplit(url)
        parameters = {"redirect_uri": self.address, "state": self._state}
        query = [
            pair
            for pair in parse_qsl(parts.query, keep_blank_values=True)
            if pair[0] not in parameters
        ]
        return parts._replace(query=urlencode([*query, *parameters.items()])).geturl()

    async def wait_for_callback(self) -> dict[str, str]:
        """Return the parameters of the visit, without the state. Raises SignInTimeout."""
        try:
            async with asyncio.timeout(self._timeout):
                return await asyncio.shield(self._visit)
        except TimeoutError:
            raise SignInTimeout from None

    def _on_visit(self, visit: CallbackRequest) -> CallbackPage:
        if not _is_navigation(visit.headers):
            return CallbackPage("403 Forbidden", UNEXPECTED_REQUEST)
        try:
            pairs = parse_qsl(visit.query, keep_blank_values=True, max_num_fields=50)
        except ValueError:
            return CallbackPage("400 Bad Request", UNEXPECTED_REQUEST)
        if self._visit.done() or self._clock() >= self._deadline:
            return CallbackPage("410 Gone", _EXPIRED)
        values = dict(pairs)
        if len(values) != len(pairs):
            return CallbackPage("400 Bad Request", UNEXPECTED_REQUEST)
        if not hmac.compare_digest(values.pop("state", "").encode(), self._state.encode()):
            return CallbackPage("403 Forbidden", UNEXPECTED_REQUEST)
        self._visit.set_result(values)
        return CallbackPage("200 OK", _RECEIVED)


def _is_navigation(headers: dict[str, str]) -> bool:
    """Return whether the request is a navigation of a browser, not a request by a page."""
    if "origin" in headers:
        return False
    return (
        headers.get("sec-fetch-mode", "navigate") == "navigate"
        and headers.get("sec-fetch-dest", "document") == "document"
    )


SIGN_IN_TIMEOUT_SECONDS: Final = 300.0
"""The time that an operator may take."""
POLL_SECONDS: Final = 2.0
"""Interval of the completion check, if there is no other signal."""
_CHECK_TIMEOUT_SECONDS: Final = 20.0
_ERROR: Final = re.compile(r"[A-Za-z0-9_.:-]{1,80}")

UrlOpener = Callable[[str], Awaitable[None]]
"""Shows a page to the operator or opens it."""
CallbackHandler = Callable[[Mapping[str, str]], Awaitable[None]]
"""Receives the parameters of the callback, such as a code, before the completion check. They
contain secrets. Raises InterlockError."""


async def sign_in(
    manifest: DriverManifest,
    *,
    open_url: UrlOpener,
    run: CommandRunner = processes.run,
    in_terminal: CommandRunner = processes.run_in_terminal,
    probe_client: ProbeClient = health_probe.probe_server,
    env: Mapping[str, str] | None = None,
    on_callback: CallbackHandler | None = None,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    clock: Callable[[], float] = time.monotonic,
    timeout: float = SIGN_IN_TIMEOUT_SECONDS,
) -> None:
    """Sign in with a driver.

    Args:
        open_url: shows the login page to the operator.
        run: runs commands of the manifest.
        in_terminal: runs interactive commands.
        probe_client: makes the requests of the completion check.
        on_callback: receives the parameters of the callback.
        timeout: how long the operator may take, in seconds.

    Raises:
        InterlockError: the sign-in failed.
    """
    login = None if manifest.auth is None else manifest.auth.login
    if login is None or not (login.cmd or login.url):
        raise _sign_in_error(
            manifest, "its DRIVER.md has no login (auth.login.cmd or auth.login.url)"
        )
    steps = _LoginSteps(manifest, login, run, probe_client, env or {})
    if login.cmd:
        await steps.run_command(in_terminal if login.interactive else run, timeout)
    elif login.requires_callback_url:
        await _sign_in_with_callback(manifest, login.url, open_url, on_callback, clock, timeout)
    else:
        if login.completes_when is None:
            raise _sign_in_error(
                manifest,
                "auth.login needs requires_callback_url or completes_when to detect the end of the "
                "sign-in",
            )
        await open_url(login.url)
        await _poll(manifest, steps, sleep, clock, timeout)
        return
    problem = await steps.find_problem()
    if problem:
        raise _sign_in_error(manifest, problem)


class _LoginSteps:
    """The steps of a login that a manifest defines."""

    def __init__(
        self,
        manifest: DriverManifest,
        login: Login,
        run: CommandRunner,
        probe_client: ProbeClient,
        env: Mapping[str, str],
    ) -> None:
        self._manifest = manifest
        self._login = login
        self._completion = login.completes_when
        self._run = run
        self._probe_client = probe_client
        self._env = env

    async def run_command(self, run: CommandRunner, timeout: float) -> None:
        """Run the login command until it ends."""
        completion = self._completion
        only_exit_code = completion is not None and not completion.cmd and completion.http is None
        expected = completion.exit_code if only_exit_code and completion is not None else 0
        result = await run(
            self._login.cmd, env=self._env, cwd=str(self._manifest.folder), timeout=timeout
        )
        if not result.exited_with(expected):
            raise _sign_in_error(self._manifest, f"auth.login.cmd: {result.ending}")

    async def find_problem(self) -> str:
        """Return why the login is not complete, as the rest of a sentence. Empty: it is
        complete."""
        completion = self._completion
        if completion is None:
            return ""
        if completion.http is not None:
            return await self._find_request_problem(completion)
        if completion.cmd:
            result = await self._run(
                completion.cmd,
                env=self._env,
                cwd=str(self._manifest.folder),
                timeout=_CHECK_TIMEOUT_SECONDS,
            )
            return (
                ""
                if result.exited_with(completion.exit_code)
                else f"completes_when.cmd: {result.ending}"
            )
        return ""

    async def _find_request_problem(self, completion: Completion) -> str:
        assert completion.http is not None
        try:
            status = await self._probe_client(completion.http, timeout=_CHECK_TIMEOUT_SECONDS)
        except ProbeError as error:
            return f"completes_when.http: {error}"
        if status == completion.http.expect_status:
            return ""
        expected = completion.http.expect_status
        return (
            f"completes_when.http: {completion.http.url} returned HTTP {status}, expected "
            f"{expected}"
        )


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
            parameters = await callback.wait_for_callback()
        except SignInTimeout:
            raise _sign_in_error(
                manifest, f"the browser did not return within {timeout:g} s"
            ) from None
    error = parameters.get("error")
    if error is not None:
        code = error if _ERROR.fullmatch(error) else "an unnamed error"
        raise _sign_in_error(manifest, f"the login page reported an error ({code})")
    if on_callback is not None:
        await on_callback(parameters)


async def _poll(
    manifest: DriverManifest,
    steps: _LoginSteps,
    sleep: Callable[[float], Awaitable[None]],
    clock: Callable[[], float],
    timeout: float,
) -> None:
    deadline = clock() + timeout
    while problem := await steps.find_problem():
        if clock() >= deadline:
            raise _sign_in_error(
                manifest, f"the login was not completed within {timeout:g} s: {problem}"
            )
        await sleep(POLL_SECONDS)


def _sign_in_error(manifest: DriverManifest, reason: str) -> InterlockError:
    return InterlockError(
        AUTH_FAILED, f"Cannot sign in with {manifest.id}: {reason}.", {"driver": manifest.id}
    )
