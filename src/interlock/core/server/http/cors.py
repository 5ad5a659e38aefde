"""CORS headers and preflight responses for pages of allowed origins.

Pages of other origins get no CORS headers, so the browser blocks them.
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
_RESPONSE_LINES: Final = (
    b"access-control-allow-origin: %b\r\n"
    b"access-control-expose-headers: Mcp-Session-Id, WWW-Authenticate\r\n"
    b"vary: Origin\r\n"
)
_PREFLIGHT_MAX_AGE_SECONDS: Final = 600
"""The time for which a browser may cache the response to a preflight."""


def answer_lines(origin: bytes) -> bytes:
    """Return the header lines of every response to a page of this origin."""
    return _RESPONSE_LINES % origin.strip()


def is_preflight(exchange: HttpExchange) -> bool:
    """Return whether the request is a CORS preflight."""
    fields = exchange.head.fields
    return (
        exchange.head.method == b"OPTIONS"
        and b"origin" in fields
        and b"access-control-request-method" in fields
    )


def answer_preflight(exchange: HttpExchange) -> None:
    """Allow a preflight request. The guard has accepted its origin already."""
    fields = exchange.head.fields
    requested_headers = fields.get(b"access-control-request-headers", b"")
    # The names of headers that carry arguments depend on the tools.
    param_headers = sorted(
        name
        for name in {name.strip().lower() for name in requested_headers.split(b",")}
        if name.startswith(headers.PARAM_PREFIX)
    )
    allowed_headers = b", ".join([*_HEADERS, *param_headers])
    lines = (
        b"access-control-allow-methods: %b\r\naccess-control-allow-headers: %b\r\n"
        b"access-control-max-age: %d\r\n" % (_METHODS, allowed_headers, _PREFLIGHT_MAX_AGE_SECONDS)
    )
    if fields.get(b"access-control-request-private-network") == b"true":
        lines += b"access-control-allow-private-network: true\r\n"
    exchange.respond(200, headers=lines)
