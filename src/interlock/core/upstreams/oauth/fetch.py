"""Single requests to an authorization server, each on a connection of its own. Redirects are not
followed.

It uses the HTTP client of upstreams (`transports/http_pool.py`), so that a sign-in needs no other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final, Protocol

import msgspec

from interlock import __version__
from interlock.core.upstreams.oauth.errors import SignInProblem
from interlock.core.upstreams.oauth.urls import parse_url
from interlock.core.upstreams.transports.http_pool import HttpConnection, HttpPool, Origin
from interlock.errors import Failure

MAX_RESPONSE_BYTES: Final = 1024 * 1024
"""The limit of documents and responses of an authorization server."""
TIMEOUT_SECONDS: Final = 20.0


class FetchResponse(msgspec.Struct, frozen=True):
    """The response of a server. Header names are in lower case."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes

    def __repr__(self) -> str:
        return f"FetchResponse(status={self.status})"


class Fetch(Protocol):
    """Sends a request. Raises SignInProblem if there is no response."""

    async def __call__(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes = b""
    ) -> FetchResponse: ...


class _Reply:
    """Receives the response."""

    def __init__(self) -> None:
        self.connection: HttpConnection | None = None
        self.response: asyncio.Future[FetchResponse] = asyncio.get_running_loop().create_future()

    def on_response(self, status: int, headers: dict[bytes, bytes], body: bytes) -> None:
        if not self.response.done():
            self.response.set_result(FetchResponse(status, headers, body))

    def on_stream_start(self, headers: dict[bytes, bytes]) -> None:
        # The end of a stream may never come, so its beginning completes the request.
        self.on_response(200, headers, b"")

    def on_stream_data(self, data: bytes) -> None:
        """Ignore the stream."""

    def on_stream_end(self) -> None:
        """Ignore the stream."""

    def on_failure(self, failure: Failure, message: str, *, was_sent: bool) -> None:
        if not self.response.done():
            self.response.set_exception(SignInProblem(_lower_first(message), is_temporary=True))


async def fetch(
    method: str, url: str, headers: Mapping[str, str], body: bytes = b""
) -> FetchResponse:
    """Send one request and return the response. Raises SignInProblem."""
    try:
        parse_url(url)
        origin = Origin(url)
    except ValueError as exc:
        raise SignInProblem(f"it names an invalid URL: {exc}.") from None
    clock = asyncio.get_running_loop().time
    pool = HttpPool(origin.authority, origin, 1, clock, max_body_bytes=MAX_RESPONSE_BYTES)
    reply = _Reply()
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            pool.send(_request(method, origin, headers, body), reply)
            response = await reply.response
    except TimeoutError:
        raise SignInProblem(
            f"{origin.authority} did not respond within {TIMEOUT_SECONDS:g} s.", is_temporary=True
        ) from None
    finally:
        await pool.close()
    return response


def _request(method: str, origin: Origin, headers: Mapping[str, str], body: bytes) -> bytes:
    fields = {
        "Host": origin.authority,
        "User-Agent": f"interlock/{__version__}",
        "Accept": "application/json",
        "Connection": "close",
        **headers,
    }
    if body or method == "POST":
        fields["Content-Length"] = str(len(body))
    if any("\r" in value or "\n" in value or "\0" in value for value in fields.values()):
        raise SignInProblem("a header value has a line break.")
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"{method} {origin.path} HTTP/1.1\r\n{lines}\r\n".encode() + body


def _lower_first(text: str) -> str:
    """Return `Cannot connect …` as the rest of a sentence."""
    return text[:1].lower() + text[1:] if text.startswith("Cannot ") else text
