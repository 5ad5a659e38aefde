"""Signing in with a driver: its login command, or its page, until what it says makes it complete.

A human is in it. What they are shown comes in as `open_url`; a command that speaks with them gets
the terminal. Everything here can be cancelled, and takes its processes and ports with it.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from interlock.errors import AUTH_FAILED, InterlockError
from interlock.manifests.driver import Completion, DriverManifest, Login
from interlock.upstreams.drivers import health_probe, processes
from interlock.upstreams.drivers.callback import Callback, NobodyCame
from interlock.upstreams.drivers.health_probe import Asks, NoAnswer
from interlock.upstreams.drivers.processes import Runs

WITHIN: Final = 300.0
"""How long a human may take."""
POLL: Final = 2.0
"""How often it is looked whether they are done, where nothing else tells."""
_ASK_WITHIN: Final = 20.0
_ERROR: Final = re.compile(r"[A-Za-z0-9_.:-]{1,80}")

OpenUrl = Callable[[str], Awaitable[None]]
"""Shows a page to the human, or opens it."""
CameBack = Callable[[Mapping[str, str]], Awaitable[None]]
"""Is given what the browser brought back, such as a code, before it is looked whether the login is
complete. There are secrets in it. Raises InterlockError."""


async def sign_in(
    manifest: DriverManifest,
    *,
    open_url: OpenUrl,
    run: Runs = processes.run,
    in_terminal: Runs = processes.run_in_terminal,
    ask: Asks = health_probe.ask,
    env: Mapping[str, str] | None = None,
    came_back: CameBack | None = None,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    clock: Callable[[], float] = time.monotonic,
    within: float = WITHIN,
) -> None:
    """Raises InterlockError when it did not work out."""
    login = None if manifest.auth is None else manifest.auth.login
    if login is None or not (login.cmd or login.url):
        raise _failed(manifest, "its DRIVER.md says no login (auth.login.cmd or auth.login.url)")
    way = _Way(manifest, login, run, ask, env or {})
    if login.cmd:
        await way.command(in_terminal if login.interactive else run, within)
    elif login.requires_callback_url:
        await _there_and_back(manifest, login.url, open_url, came_back, clock, within)
    else:
        if login.completes_when is None:
            raise _failed(
                manifest,
                "auth.login has neither requires_callback_url nor completes_when, so nobody could "
                "tell when you are done",
            )
        await open_url(login.url)
        await _poll(manifest, way, sleep, clock, within)
        return
    problem = await way.problem()
    if problem:
        raise _failed(manifest, problem)


class _Way:
    """The parts of a login that a manifest names."""

    def __init__(
        self,
        manifest: DriverManifest,
        login: Login,
        run: Runs,
        ask: Asks,
        env: Mapping[str, str],
    ) -> None:
        self._manifest = manifest
        self._login = login
        self._completion = login.completes_when
        self._run = run
        self._ask = ask
        self._env = env

    async def command(self, run: Runs, within: float) -> None:
        """The login command, to its end."""
        done = self._completion
        own = done is not None and not done.cmd and done.http is None
        expected = done.exit_code if own and done is not None else 0
        ran = await run(
            self._login.cmd, env=self._env, cwd=str(self._manifest.folder), timeout=within
        )
        if not ran.ended_with(expected):
            raise _failed(self._manifest, f"auth.login.cmd: {ran.how}")

    async def problem(self) -> str:
        """Why the login is not complete, as the rest of a sentence; empty: it is."""
        done = self._completion
        if done is None:
            return ""
        if done.http is not None:
            return await self._problem_of_request(done)
        if done.cmd:
            ran = await self._run(
                done.cmd, env=self._env, cwd=str(self._manifest.folder), timeout=_ASK_WITHIN
            )
            return "" if ran.ended_with(done.exit_code) else f"completes_when.cmd: {ran.how}"
        return ""

    async def _problem_of_request(self, done: Completion) -> str:
        assert done.http is not None
        try:
            status = await self._ask(done.http, within=_ASK_WITHIN)
        except NoAnswer as why:
            return f"completes_when.http: {why}"
        if status == done.http.expect_status:
            return ""
        wanted = done.http.expect_status
        return f"completes_when.http: {done.http.url} answered HTTP {status}, not {wanted}"


async def _there_and_back(
    manifest: DriverManifest,
    url: str,
    open_url: OpenUrl,
    came_back: CameBack | None,
    clock: Callable[[], float],
    within: float,
) -> None:
    async with Callback(within=within, clock=clock) as callback:
        await open_url(callback.added_to(url))
        try:
            said = await callback.came()
        except NobodyCame:
            raise _failed(manifest, f"nobody came back within {within:g} s") from None
    error = said.get("error")
    if error is not None:
        code = error if _ERROR.fullmatch(error) else "an error without a name"
        raise _failed(manifest, f"it was refused in the browser ({code})")
    if came_back is not None:
        await came_back(said)


async def _poll(
    manifest: DriverManifest,
    way: _Way,
    sleep: Callable[[float], Awaitable[None]],
    clock: Callable[[], float],
    within: float,
) -> None:
    ends = clock() + within
    while problem := await way.problem():
        if clock() >= ends:
            raise _failed(manifest, f"it was not complete within {within:g} s: {problem}")
        await sleep(POLL)


def _failed(manifest: DriverManifest, why: str) -> InterlockError:
    return InterlockError(
        AUTH_FAILED, f"Cannot sign in with {manifest.id}: {why}.", {"driver": manifest.id}
    )
