"""One request to an authorization server, on a connection of its own. No redirect is followed.

The same plain HTTP as for upstreams (`transports/http_pool.py`), so that a sign-in needs no second
HTTP client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final, Protocol

import msgspec

from interlock import __version__
from interlock.core.upstreams.oauth.errors import SignInProblem
from interlock.core.upstreams.oauth.urls import parts
from interlock.core.upstreams.transports.http_pool import HttpConnection, HttpPool, Origin
from interlock.errors import Failure

LONGEST: Final = 1024 * 1024
"""No document or answer of an authorization server is nearly as long."""
WITHIN: Final = 20.0


class FetchResponse(msgspec.Struct, frozen=True):
    """What a server answered. Header names are in lower case."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes

    def __repr__(self) -> str:
        return f"FetchResponse(status={self.status})"


class Fetch(Protocol):
    """Asks a server. Raises SignInProblem when there is no answer."""

    async def __call__(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes = b""
    ) -> FetchResponse: ...


class _Reply:
    """The answer of the one request."""

    def __init__(self) -> None:
        self.connection: HttpConnection | None = None
        self.over: asyncio.Future[FetchResponse] = asyncio.get_running_loop().create_future()

    def on_response(self, status: int, headers: dict[bytes, bytes], body: bytes) -> None:
        if not self.over.done():
            self.over.set_result(FetchResponse(status, headers, body))

    def on_stream_start(self, headers: dict[bytes, bytes]) -> None:
        # A stream has no end to wait for: that it began is all there is to know.
        self.on_response(200, headers, b"")

    def on_stream_data(self, data: bytes) -> None:
        """Nobody reads it."""

    def on_stream_end(self) -> None:
        """Nobody reads it."""

    def on_failure(self, failure: Failure, message: str, *, was_sent: bool) -> None:
        if not self.over.done():
            self.over.set_exception(SignInProblem(_begun_small(message), passing=True))


async def fetch(
    method: str, url: str, headers: Mapping[str, str], body: bytes = b""
) -> FetchResponse:
    """The answer of one request. Raises SignInProblem."""
    try:
        parts(url)
        origin = Origin(url)
    except ValueError as exc:
        raise SignInProblem(f"an address that it was given cannot be used: {exc}.") from None
    clock = asyncio.get_running_loop().time
    pool = HttpPool(origin.authority, origin, 1, clock, max_body_bytes=LONGEST)
    reply = _Reply()
    try:
        async with asyncio.timeout(WITHIN):
            pool.send(_request(method, origin, headers, body), reply)
            answer = await reply.over
    except TimeoutError:
        raise SignInProblem(f"{origin.authority} did not answer in time.", passing=True) from None
    finally:
        await pool.close()
    return answer


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
        raise SignInProblem("a header that it was given holds a line end.")
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"{method} {origin.path} HTTP/1.1\r\n{lines}\r\n".encode() + body


def _begun_small(sentence: str) -> str:
    """`Cannot connect …` as the rest of a sentence."""
    return sentence[:1].lower() + sentence[1:] if sentence.startswith("Cannot ") else sentence
