"""What HTTP answers mean to MCP, and the header lines that a config asks for."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Final

from interlock.errors import UPSTREAM_UNAVAILABLE, Failure, InterlockError
from interlock.upstreams.links.http_pool import HttpConnection

# As servers in use say it: "No valid session ID provided", "Missing session ID", "Session not
# found", "Invalid or missing session", "Unknown session", "Mcp-Session-Id header is required".
_ABOUT_THE_ID: Final = re.compile(
    rb"session[ _-]?id\b|\bsession not found|\b(?:no valid|invalid|unknown|missing) session",
    re.IGNORECASE,
)


class Taken:
    """The answer to something that gets none: whatever it is, it was heard."""

    def __init__(self) -> None:
        self.connection: HttpConnection | None = None
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def _said(self) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def whole(self, status: int, headers: dict[bytes, bytes], body: bytes) -> None:
        self._said()

    def opened(self, headers: dict[bytes, bytes]) -> None:
        self._said()
        if self.connection is not None:
            # A stream that nobody reads must not keep the connection for long.
            self.connection.answered()

    def chunk(self, data: bytes) -> None:
        """Not a stream that anybody reads."""

    def ended(self) -> None:
        """Not a stream that anybody reads."""

    def failed(self, failure: Failure, message: str, *, sent: bool) -> None:
        self._said()


def header_lines(label: str, headers: Mapping[str, str]) -> bytes:
    """The configured headers as they are sent. Raises InterlockError for one that cannot be."""
    for name, value in headers.items():
        if "\r" in value or "\n" in value or "\0" in value:
            raise InterlockError(
                UPSTREAM_UNAVAILABLE,
                f"Cannot connect to {label}: the value of its header {name} holds a line end.",
            )
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode()


def speaks(status: int, body: bytes) -> bool:
    """Whether an answer with an error status is a JSON-RPC error all the same."""
    return (
        400 <= status < 500
        and status not in (401, 403)
        and body[:1] == b"{"
        and b'"jsonrpc"' in body
    )


def forgot_session(status: int, body: bytes, id: int) -> bool:
    """Whether a refusal says that the session is unknown, as a restarted server does.

    404 is the rule. Many say 400 and a sentence about the session's id. Both speak of no request in
    particular: an error that answers this very request is its answer, whatever its status. A 400
    that merely has the word in it may come after the deed, and is no proof.
    """
    if b'"id":%d' % id in body.replace(b" ", b""):
        return False
    return status == 404 or (status == 400 and _ABOUT_THE_ID.search(body) is not None)


def may_come_back(status: int) -> bool:
    """Whether a stream that ended like this is worth another try. 0: it broke, 200: it ended."""
    return status in (0, 200, 408, 409, 425, 429) or (status >= 500 and status != 501)
