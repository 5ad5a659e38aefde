"""What a browser has to be told before it lets a page call, and read the answer.

Only pages that the guard lets in are told anything: to all others the browser says no by itself.
"""

from __future__ import annotations

from typing import Final

from interlock.core.server.http.credentials import CREDENTIAL_HEADERS
from interlock.core.server.http.exchange import HttpExchange
from interlock.protocol import headers

_METHODS: Final = b"GET, POST, DELETE"
_HEADERS: Final = sorted(
    [
        b"Accept", b"Content-Type", b"Last-Event-ID", b"MCP-Protocol-Version", b"Mcp-Method",
        b"Mcp-Name", b"Mcp-Session-Id", *(name.title() for name in CREDENTIAL_HEADERS),
    ]
)  # fmt: skip
_ANSWER: Final = (
    b"access-control-allow-origin: %b\r\n"
    b"access-control-expose-headers: Mcp-Session-Id, WWW-Authenticate\r\n"
    b"vary: Origin\r\n"
)
_KEPT_FOR: Final = 600
"""For how many seconds a browser need not ask again."""


def answer_lines(origin: bytes) -> bytes:
    """The header lines of every answer to a page of this origin."""
    return _ANSWER % origin.strip()


def is_preflight(exchange: HttpExchange) -> bool:
    """Whether a browser asks if a page may call."""
    fields = exchange.head.fields
    return (
        exchange.head.method == b"OPTIONS"
        and b"origin" in fields
        and b"access-control-request-method" in fields
    )


def answer_preflight(exchange: HttpExchange) -> None:
    """Yes, it may: the guard has looked at its origin."""
    fields = exchange.head.fields
    asked = fields.get(b"access-control-request-headers", b"")
    # Arguments that travel in headers have names that only the tools know.
    own = sorted(
        name
        for name in {one.strip().lower() for one in asked.split(b",")}
        if name.startswith(headers.PARAM_PREFIX)
    )
    lines = (
        b"access-control-allow-methods: %b\r\naccess-control-allow-headers: %b\r\n"
        b"access-control-max-age: %d\r\n" % (_METHODS, b", ".join([*_HEADERS, *own]), _KEPT_FOR)
    )
    if fields.get(b"access-control-request-private-network") == b"true":
        lines += b"access-control-allow-private-network: true\r\n"
    exchange.respond(200, headers=lines)
