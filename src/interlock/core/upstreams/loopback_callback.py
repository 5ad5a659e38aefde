"""A loopback HTTP listener for the redirect of a browser (RFC 8252 §7.3), with a single page.

Requests for other paths or with another Host header are rejected here. What else a redirect must
contain is checked by the caller.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Final, NamedTuple
from urllib.parse import urlsplit

CALLBACK_PATH: Final = "/callback"
UNEXPECTED_REQUEST: Final = "This is not what Interlock waits for."
_MAX_HEAD_BYTES: Final = 16 * 1024
_READ_TIMEOUT_SECONDS: Final = 10.0
_PAGE: Final = """\
<!doctype html><html lang="en"><meta charset="utf-8"><title>Interlock</title>
<body style="font-family:system-ui;max-width:34em;margin:4em auto">
<p>{text}</p></body></html>
"""


class CallbackRequest(NamedTuple):
    """A request for the callback page."""

    target: str
    """The request target with its query."""
    query: str
    headers: dict[str, str]
    """By lower-case name. A repeated header has a value that matches nothing."""


class CallbackPage(NamedTuple):
    """The response: the status line, and the sentence on the page."""

    status: str
    text: str


class LoopbackCallback:
    """A listener on loopback, from `open` to `close`."""

    def __init__(self, handle: Callable[[CallbackRequest], CallbackPage]) -> None:
        self._handle = handle
        self._servers: list[asyncio.Server] = []
        self.port = 0

    async def open(self, port: int = 0, *, both_families: bool = False) -> None:
        """Listen on this port, or on any free one. Raises OSError.

        Args:
            both_families: also listen on ::1, because `localhost` may mean either address.
        """
        server = await asyncio.start_server(self._serve, "127.0.0.1", port, limit=_MAX_HEAD_BYTES)
        self._servers.append(server)
        self.port = server.sockets[0].getsockname()[1]
        if not both_families:
            return
        try:
            self._servers.append(
                await asyncio.start_server(self._serve, "::1", self.port, limit=_MAX_HEAD_BYTES)
            )
        except (OSError, socket.gaierror):
            # Without IPv6 no browser connects that way.
            return

    async def close(self) -> None:
        for server in self._servers:
            server.close()
            await server.wait_closed()
        self._servers.clear()

    def hosts(self) -> set[str]:
        """Return the addresses that are listened on."""
        return {
            listener.getsockname()[0] for server in self._servers for listener in server.sockets
        }

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_READ_TIMEOUT_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
            status, text = self._respond(head.decode("latin-1"))
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
            # The client was no browser.
            return
        finally:
            writer.close()

    def _respond(self, head: str) -> CallbackPage:
        line, _, rest = head.partition("\r\n")
        method, _, target = line.partition(" ")
        target = target.partition(" ")[0]
        headers = _headers(rest)
        names = {
            "localhost",
            *(f"[{address}]" if ":" in address else address for address in self.hosts()),
        }
        # Another host name that resolves to this machine may be a DNS rebinding attack.
        if headers.get("host") not in {f"{name}:{self.port}" for name in names}:
            return CallbackPage("421 Misdirected Request", UNEXPECTED_REQUEST)
        try:
            url = urlsplit(target)
        except ValueError:
            return CallbackPage("400 Bad Request", UNEXPECTED_REQUEST)
        if url.path != CALLBACK_PATH:
            return CallbackPage("404 Not Found", UNEXPECTED_REQUEST)
        if method != "GET":
            return CallbackPage("405 Method Not Allowed", UNEXPECTED_REQUEST)
        return self._handle(CallbackRequest(target, url.query, headers))


def _headers(text: str) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in text.split("\r\n"):
        name, colon, value = line.partition(":")
        if colon:
            # A repeated header must match nothing.
            name = name.strip().lower()
            headers[name] = "\n" if name in headers else value.strip()
    return headers
