"""A browser on this machine: the page is shown to a person, who is redirected to a loopback port.

Only a redirect with the state of the opened page is accepted. Other requests to the port are
rejected and do not affect the sign-in.
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

_SUCCESS_TEXT: Final = "The sign-in is complete. Close this page and return to the terminal."

ShowPage = Callable[[str], Awaitable[None]]
"""Shows the URL of a page to a person, or opens it."""


class LoopbackBrowser:
    """A browser with a listener on loopback, from `open` to `close`."""

    def __init__(self, show: ShowPage, *, timeout: float) -> None:
        """
        Args:
            timeout: how long the person may take, in seconds.
        """
        self._show = show
        self._timeout = timeout
        self._callback = LoopbackCallback(self._respond)
        self._state = ""
        self._redirect: asyncio.Future[str] | None = None

    async def open(self, port: int = 0, *, is_exact: bool = False) -> LoopbackBrowser:
        """Listen on this port. If it is taken, use any free one, unless `is_exact`.

        Raises:
            SignInProblem: the port cannot be used.
        """
        try:
            await self._callback.open(port, both_families=True)
        except OSError as error:
            if is_exact or port == 0:
                reason = "it is in use" if error.errno == errno.EADDRINUSE else str(error.strerror)
                raise SignInProblem(
                    f"the redirect needs port {port} of this machine, and {reason}."
                ) from None
            await self._callback.open(both_families=True)
        return self

    async def close(self) -> None:
        await self._callback.close()

    @property
    def redirect_uri(self) -> str:
        return f"http://localhost:{self._callback.port}{CALLBACK_PATH}"

    async def visit(self, url: str) -> str:
        """Show the page and wait for the redirect. Raises SignInProblem."""
        self._state = parse_qs(urlsplit(url).query).get("state", [""])[0]
        self._redirect = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(self._timeout):
                await self._show(url)
                return await self._redirect
        except TimeoutError:
            raise SignInProblem(
                f"there was no redirect from the browser within {self._timeout / 60:g} minutes."
            ) from None
        finally:
            self._redirect = None

    def accept_redirect(self, address: str) -> bool:
        """Accept the URL of a redirect. Returns whether it belongs to the current sign-in.

        Also for a person who pastes the URL, if the browser runs on another machine.
        """
        try:
            state = parse_qs(urlsplit(address).query).get("state", [""])[0]
        except ValueError:
            return False
        redirect = self._redirect
        if redirect is None or redirect.done() or not self._state:
            return False
        if not hmac.compare_digest(state.encode(), self._state.encode()):
            return False
        redirect.set_result(address)
        return True

    def _respond(self, request: CallbackRequest) -> CallbackPage:
        if not self.accept_redirect(f"http://localhost:{self._callback.port}{request.target}"):
            return CallbackPage("400 Bad Request", UNEXPECTED_REQUEST)
        return CallbackPage("200 OK", _SUCCESS_TEXT)
