"""The way back of a login: an address of this machine that is good for one visit, for a while.

Only a browser that was led here by the page that was opened is let in: the address carries a state
that nobody could guess. Requests of other pages' scripts, images and frames are refused, and so is
every other name for this machine.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import time
from collections.abc import Callable
from typing import Final, Self
from urllib.parse import parse_qsl, urlencode, urlsplit

from interlock.upstreams.way_back import OTHER, PATH, Answer, Visit, WayBack

_TAKEN: Final = "You are signed in as far as this page knows; the terminal says the rest."
_OVER: Final = "This address was good for one visit, or its time is up. Begin again."


class NobodyCame(Exception):
    """The time is up."""


class Callback:
    """Listens on loopback, from `async with` to its end."""

    def __init__(self, *, within: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`within`: how long the address is good."""
        self._within = within
        self._clock = clock
        self._ends = 0.0
        self._state = secrets.token_urlsafe(24)
        self._way_back = WayBack(self._answer)
        self._visit: asyncio.Future[dict[str, str]]

    async def __aenter__(self) -> Self:
        self._visit = asyncio.get_running_loop().create_future()
        self._ends = self._clock() + self._within
        await self._way_back.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._way_back.close()
        self._visit.cancel()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._way_back.port}{PATH}"

    def added_to(self, url: str) -> str:
        """The page to open: it is told where to come back to, and with what state."""
        found = urlsplit(url)
        ours = {"redirect_uri": self.address, "state": self._state}
        query = [
            pair for pair in parse_qsl(found.query, keep_blank_values=True) if pair[0] not in ours
        ]
        return found._replace(query=urlencode([*query, *ours.items()])).geturl()

    async def came(self) -> dict[str, str]:
        """What the visit brought, without the state. Raises NobodyCame."""
        try:
            async with asyncio.timeout(self._within):
                return await asyncio.shield(self._visit)
        except TimeoutError:
            raise NobodyCame from None

    def _answer(self, visit: Visit) -> Answer:
        if not _is_navigation(visit.headers):
            return Answer("403 Forbidden", OTHER)
        try:
            said = parse_qsl(visit.query, keep_blank_values=True, max_num_fields=50)
        except ValueError:
            return Answer("400 Bad Request", OTHER)
        if self._visit.done() or self._clock() >= self._ends:
            return Answer("410 Gone", _OVER)
        values = dict(said)
        if len(values) != len(said):
            return Answer("400 Bad Request", OTHER)
        if not hmac.compare_digest(values.pop("state", "").encode(), self._state.encode()):
            return Answer("403 Forbidden", OTHER)
        self._visit.set_result(values)
        return Answer("200 OK", _TAKEN)


def _is_navigation(headers: dict[str, str]) -> bool:
    """Whether a human's browser goes to the address, and no page merely asks for it."""
    if "origin" in headers:
        return False
    return (
        headers.get("sec-fetch-mode", "navigate") == "navigate"
        and headers.get("sec-fetch-dest", "document") == "document"
    )
