"""A browser of this machine: the page is shown to a human, and comes back to a port of loopback.

Only an answer with the state of the page that was opened is taken; whatever else knocks at the
port, such as another page that guesses, is turned away and does not disturb.
"""

from __future__ import annotations

import asyncio
import errno
import hmac
import socket
from collections.abc import Awaitable, Callable
from typing import Final
from urllib.parse import parse_qs, urlsplit

from interlock.upstreams.oauth.trouble import Trouble

PATH: Final = "/callback"
_LONGEST: Final = 16 * 1024
_READ_WITHIN: Final = 10.0
_HOSTS: Final = ("localhost", "127.0.0.1", "[::1]")
_PAGE: Final = """\
<!doctype html><html lang="en"><meta charset="utf-8"><title>Interlock</title>
<body style="font-family:system-ui;max-width:34em;margin:4em auto">
<p>{text}</p></body></html>
"""
_TAKEN: Final = "Interlock has got the answer. You can close this page; the terminal says the rest."
_OTHER: Final = "This is not the answer that Interlock waits for."

Show = Callable[[str], Awaitable[None]]
"""Shows the address of a page to a human, or opens it."""


class LoopbackBrowser:
    """Listens on loopback, from `open` to `close`."""

    def __init__(self, show: Show, *, within: float) -> None:
        """`within`: how long a human may take."""
        self._show = show
        self._within = within
        self._servers: list[asyncio.Server] = []
        self._port = 0
        self._state = ""
        self._back: asyncio.Future[str] | None = None

    async def open(self, port: int = 0, *, exact: bool = False) -> LoopbackBrowser:
        """Listen on this port; on any that is free when it is taken, unless it must be `exact`.

        Raises Trouble.
        """
        try:
            await self._listen(port)
        except OSError as error:
            if exact or port == 0:
                reason = "it is in use" if error.errno == errno.EADDRINUSE else str(error.strerror)
                raise Trouble(
                    f"the browser is to come back to port {port} of this machine, and {reason}."
                ) from None
            await self._listen(0)
        return self

    async def _listen(self, port: int) -> None:
        server = await asyncio.start_server(self._serve, "127.0.0.1", port, limit=_LONGEST)
        self._servers.append(server)
        self._port = server.sockets[0].getsockname()[1]
        try:
            # `localhost` means either; where there is no IPv6 nobody will come that way.
            self._servers.append(
                await asyncio.start_server(self._serve, "::1", self._port, limit=_LONGEST)
            )
        except (OSError, socket.gaierror):
            return

    async def close(self) -> None:
        for server in self._servers:
            server.close()
            await server.wait_closed()
        self._servers.clear()

    @property
    def redirect_uri(self) -> str:
        return f"http://localhost:{self._port}{PATH}"

    async def visit(self, url: str) -> str:
        """Show the page, and wait for the browser to come back. Raises Trouble."""
        self._state = parse_qs(urlsplit(url).query).get("state", [""])[0]
        self._back = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(self._within):
                await self._show(url)
                return await self._back
        except TimeoutError:
            raise Trouble(
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
                "Referrer-Policy: no-referrer\r\n\r\n".encode()
                + body
            )
            await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            # Whoever it was, it was no browser with an answer.
            return
        finally:
            writer.close()

    def _answer(self, head: str) -> tuple[str, str]:
        line, _, rest = head.partition("\r\n")
        method, _, target = line.partition(" ")
        target = target.partition(" ")[0]
        headers = dict(one.split(":", 1) for one in rest.split("\r\n") if ":" in one)
        host = next((value for name, value in headers.items() if name.lower() == "host"), "")
        # A name that somebody pointed at loopback is not ours.
        if host.strip() not in {f"{one}:{self._port}" for one in _HOSTS}:
            return "421 Misdirected Request", _OTHER
        if urlsplit(target).path != PATH:
            return "404 Not Found", _OTHER
        if method != "GET":
            return "405 Method Not Allowed", _OTHER
        if not self.came_back(f"http://localhost:{self._port}{target}"):
            return "400 Bad Request", _OTHER
        return "200 OK", _TAKEN
