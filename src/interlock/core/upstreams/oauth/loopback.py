"""A browser of this machine: the page is shown to a human, and comes back to a port of loopback.

Only an answer with the state of the page that was opened is taken; whatever else knocks at the
port, such as another page that guesses, is turned away and does not disturb.
"""

from __future__ import annotations

import asyncio
import errno
import hmac
from collections.abc import Awaitable, Callable
from typing import Final
from urllib.parse import parse_qs, urlsplit

from interlock.core.upstreams.loopback_callback import (
    CALLBACK_PATH,
    UNEXPECTED_REQUEST,
    CallbackPage,
    CallbackRequest,
    LoopbackCallback,
)
from interlock.core.upstreams.oauth.errors import SignInProblem

_TAKEN: Final = "Interlock has got the answer. You can close this page; the terminal says the rest."

Show = Callable[[str], Awaitable[None]]
"""Shows the address of a page to a human, or opens it."""


class LoopbackBrowser:
    """Listens on loopback, from `open` to `close`."""

    def __init__(self, show: Show, *, within: float) -> None:
        """`within`: how long a human may take."""
        self._show = show
        self._within = within
        self._way_back = LoopbackCallback(self._answer)
        self._state = ""
        self._back: asyncio.Future[str] | None = None

    async def open(self, port: int = 0, *, exact: bool = False) -> LoopbackBrowser:
        """Listen on this port; on any that is free when it is taken, unless it must be `exact`.

        Raises SignInProblem.
        """
        try:
            await self._way_back.open(port, both_families=True)
        except OSError as error:
            if exact or port == 0:
                reason = "it is in use" if error.errno == errno.EADDRINUSE else str(error.strerror)
                raise SignInProblem(
                    f"the browser is to come back to port {port} of this machine, and {reason}."
                ) from None
            await self._way_back.open(both_families=True)
        return self

    async def close(self) -> None:
        await self._way_back.close()

    @property
    def redirect_uri(self) -> str:
        return f"http://localhost:{self._way_back.port}{CALLBACK_PATH}"

    async def visit(self, url: str) -> str:
        """Show the page, and wait for the browser to come back. Raises SignInProblem."""
        self._state = parse_qs(urlsplit(url).query).get("state", [""])[0]
        self._back = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(self._within):
                await self._show(url)
                return await self._back
        except TimeoutError:
            raise SignInProblem(
                f"nobody came back from the browser within {self._within / 60:g} minutes."
            ) from None
        finally:
            self._back = None

    def came_back(self, address: str) -> bool:
        """An address to which a browser was sent; whether it is the one that is waited for.

        Also for a human who pastes it, where the browser runs on another machine.
        """
        try:
            state = parse_qs(urlsplit(address).query).get("state", [""])[0]
        except ValueError:
            return False
        back = self._back
        if back is None or back.done() or not self._state:
            return False
        if not hmac.compare_digest(state.encode(), self._state.encode()):
            return False
        back.set_result(address)
        return True

    def _answer(self, visit: CallbackRequest) -> CallbackPage:
        if not self.came_back(f"http://localhost:{self._way_back.port}{visit.target}"):
            return CallbackPage("400 Bad Request", UNEXPECTED_REQUEST)
        return CallbackPage("200 OK", _TAKEN)
