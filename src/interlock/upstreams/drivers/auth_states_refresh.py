"""How a sign-in is kept fresh: by a command, by a request, or by the driver's own code."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from interlock.errors import InterlockError
from interlock.manifests.driver import DriverManifest, HttpProbe
from interlock.upstreams.drivers.health_probe import Asks, NoAnswer
from interlock.upstreams.drivers.processes import Runs

WITHIN: Final = 60.0
"""How long a refresh may take."""

Hook = Callable[[], Awaitable[None]]
"""`refresh` of driver.py. Whatever it raises, the sign-in is not fresh."""
Refreshes = Callable[[], Awaitable[None]]
"""Refreshes a sign-in. Raises NotRefreshed."""


class NotRefreshed(Exception):
    """Why not, as the rest of a sentence."""

    def __init__(self, why: str, *, passing: bool) -> None:
        super().__init__(why)
        self.why = why
        self.passing = passing
        """Whether it may work in a moment: nobody answered, or not in time."""


def refresher(
    manifest: DriverManifest,
    *,
    run: Runs,
    ask: Asks,
    env: Mapping[str, str],
    hook: Hook | None,
    warn: Callable[[str], None],
) -> Refreshes | None:
    """What refreshes the sign-in of a driver; None when nothing does."""
    refresh = None if manifest.auth is None else manifest.auth.refresh
    if refresh is None:
        return None

    async def by_command() -> None:
        try:
            ran = await run(refresh.cmd, env=env, cwd=str(manifest.folder), timeout=WITHIN)
        except InterlockError as error:
            why = f"auth.refresh.cmd: {error.message.rstrip('.')}"
            raise NotRefreshed(why, passing=True) from None
        if not ran.ended_with(0):
            raise NotRefreshed(f"auth.refresh.cmd: {ran.how}", passing=ran.timed_out)

    async def by_request() -> None:
        try:
            status = await ask(HttpProbe(refresh.url, method="POST"), within=WITHIN)
        except NoAnswer as why:
            raise NotRefreshed(f"auth.refresh.url: {why}", passing=True) from None
        if not 200 <= status < 300:
            passing = status >= 500 or status == 429
            raise NotRefreshed(f"auth.refresh.url: it answered HTTP {status}", passing=passing)

    async def by_hook() -> None:
        assert hook is not None
        try:
            await hook()
        except Exception as error:
            # Foreign code: only the name of what it raised can hold no secret.
            why = f"refresh of driver.py: it raised {type(error).__name__}"
            raise NotRefreshed(why, passing=False) from None

    if refresh.cmd:
        return by_command
    if refresh.url:
        return by_request
    if hook is not None:
        return by_hook
    warn(
        f"{manifest.id}: auth.refresh has neither a cmd nor a url, and driver.py has no refresh: "
        "its sign-in is never refreshed"
    )
    return None
