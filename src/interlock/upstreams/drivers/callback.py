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

PATH: Final = "/callback"
_LONGEST: Final = 16 * 1024
_READ_WITHIN: Final = 10.0
_PAGE: Final = """\
<!doctype html><html lang="en"><meta charset="utf-8"><title>Interlock</title>
<body style="font-family:system-ui;max-width:34em;margin:4em auto">
<p>{text}</p></body></html>
"""
_TAKEN: Final = "You are signed in as far as this page knows; the terminal says the rest."
_OTHER: Final = "This is not what Interlock waits for."
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
        self._server: asyncio.Server | None = None
        self._port = 0
        self._visit: asyncio.Future[dict[str, str]]

    async def __aenter__(self) -> Self:
        self._visit = asyncio.get_running_loop().create_future()
        self._ends = self._clock() + self._within
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=_LONGEST)
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
        self._visit.cancel()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._port}{PATH}"

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

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_READ_WITHIN):
                head = await reader.readuntil(b"\r\n\r\n")
            status, text = self._answer(head.decode("latin-1"))
            body = _PAGE.format(text=text).encode()
            writer.write(
                f"HTTP/1.1 {status}\r\nContent-Type: text/html; charset=utf-8\r\n"
                f"Content-Length: {len(body)}\r\nConnection: close\r\nCache-Control: no-store\r\n"
                "Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'\r\n"
                "Referrer-Policy: no-referrer\r\nX-Content-Type-Options: nosniff\r\n\r\n".encode()
                + body
            )
            await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            # Whoever it was, it was no browser.
            return
        finally:
            writer.close()

    def _answer(self, head: str) -> tuple[str, str]:
        line, _, rest = head.partition("\r\n")
        method, _, target = line.partition(" ")
        target = target.partition(" ")[0]
        headers = _headers(rest)
        # A name that somebody pointed at this machine is not ours.
        if headers.get("host") not in (f"127.0.0.1:{self._port}", f"localhost:{self._port}"):
            return "421 Misdirected Request", _OTHER
        if not _is_visit(headers):
            return "403 Forbidden", _OTHER
        try:
            found = urlsplit(target)
            said = parse_qsl(found.query, keep_blank_values=True, max_num_fields=50)
        except ValueError:
            return "400 Bad Request", _OTHER
        if found.path != PATH:
            return "404 Not Found", _OTHER
        if method != "GET":
            return "405 Method Not Allowed", _OTHER
        if self._visit.done() or self._clock() >= self._ends:
            return "410 Gone", _OVER
        values = dict(said)
        if len(values) != len(said):
            return "400 Bad Request", _OTHER
        if not hmac.compare_digest(values.pop("state", "").encode(), self._state.encode()):
            return "403 Forbidden", _OTHER
        self._visit.set_result(values)
        return "200 OK", _TAKEN


def _headers(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in text.split("\r\n"):
        name, colon, value = line.partition(":")
        if colon:
            # One that comes twice fits nothing.
            name = name.strip().lower()
            found[name] = "\n" if name in found else value.strip()
    return found


def _is_visit(headers: dict[str, str]) -> bool:
    """Whether a human's browser goes to the address, and no page merely asks for it."""
    if "origin" in headers:
        return False
    return (
        headers.get("sec-fetch-mode", "navigate") == "navigate"
        and headers.get("sec-fetch-dest", "document") == "document"
    )
