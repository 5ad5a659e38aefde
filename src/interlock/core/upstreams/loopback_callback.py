"""A port of loopback where a human's browser comes back to, and the one page that it is shown.

What a visit must bring to be taken is the business of whoever listens. Whoever asks for another
page, or comes by another name for this machine, is turned away before that.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Final, NamedTuple
from urllib.parse import urlsplit

PATH: Final = "/callback"
OTHER: Final = "This is not what Interlock waits for."
_LONGEST: Final = 16 * 1024
_READ_WITHIN: Final = 10.0
_PAGE: Final = """\
<!doctype html><html lang="en"><meta charset="utf-8"><title>Interlock</title>
<body style="font-family:system-ui;max-width:34em;margin:4em auto">
<p>{text}</p></body></html>
"""


class CallbackRequest(NamedTuple):
    """Somebody who asks for our page."""

    target: str
    """As it was asked for, with the query."""
    query: str
    headers: dict[str, str]
    """By their names in small letters. One that came twice has a value that fits nothing."""


class CallbackPage(NamedTuple):
    """What is said to a visit: the status, and the sentence on the page."""

    status: str
    text: str


class LoopbackCallback:
    """Listens on loopback, from `open` to `close`."""

    def __init__(self, answer: Callable[[CallbackRequest], CallbackPage]) -> None:
        self._answer = answer
        self._servers: list[asyncio.Server] = []
        self.port = 0

    async def open(self, port: int = 0, *, either: bool = False) -> None:
        """Listen on this port, or on any that is free. Raises OSError.

        `either`: also on the IPv6 address, because `localhost` means either.
        """
        server = await asyncio.start_server(self._serve, "127.0.0.1", port, limit=_LONGEST)
        self._servers.append(server)
        self.port = server.sockets[0].getsockname()[1]
        if not either:
            return
        try:
            self._servers.append(
                await asyncio.start_server(self._serve, "::1", self.port, limit=_LONGEST)
            )
        except (OSError, socket.gaierror):
            # Where there is no IPv6 nobody will come that way.
            return

    async def close(self) -> None:
        for server in self._servers:
            server.close()
            await server.wait_closed()
        self._servers.clear()

    def hosts(self) -> set[str]:
        """The addresses that are listened on."""
        return {one.getsockname()[0] for server in self._servers for one in server.sockets}

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_READ_WITHIN):
                head = await reader.readuntil(b"\r\n\r\n")
            status, text = self._answered(head.decode("latin-1"))
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

    def _answered(self, head: str) -> CallbackPage:
        line, _, rest = head.partition("\r\n")
        method, _, target = line.partition(" ")
        target = target.partition(" ")[0]
        headers = _headers(rest)
        names = {"localhost", *(f"[{one}]" if ":" in one else one for one in self.hosts())}
        # A name that somebody pointed at this machine is not ours.
        if headers.get("host") not in {f"{name}:{self.port}" for name in names}:
            return CallbackPage("421 Misdirected Request", OTHER)
        try:
            found = urlsplit(target)
        except ValueError:
            return CallbackPage("400 Bad Request", OTHER)
        if found.path != PATH:
            return CallbackPage("404 Not Found", OTHER)
        if method != "GET":
            return CallbackPage("405 Method Not Allowed", OTHER)
        return self._answer(CallbackRequest(target, found.query, headers))


def _headers(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in text.split("\r\n"):
        name, colon, value = line.partition(":")
        if colon:
            # One that comes twice fits nothing.
            name = name.strip().lower()
            found[name] = "\n" if name in found else value.strip()
    return found
