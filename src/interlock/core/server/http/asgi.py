"""Reading requests and writing answers in ASGI, for the few paths that are served that way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, TypeVar

import msgspec

from interlock.errors import INVALID_REQUEST, PAYLOAD_TOO_LARGE, InterlockError
from interlock.protocol.jsonrpc import encode_value
from interlock.protocol.sse import COMMENT_PING, encode_event

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Fields = Iterable[tuple[bytes, bytes]]
T = TypeVar("T")

Told = tuple[object, Callable[[], bytes], bool]
"""What is to be told: by what it is known (None: nothing), what makes bytes of it, and whether it
is the last."""

JSON: Final = b"application/json"


async def respond(
    send: Send,
    status: int,
    body: bytes,
    content_type: bytes,
    fields: Fields = (),
) -> None:
    """One whole answer."""
    headers = [
        (b"content-type", content_type),
        (b"content-length", str(len(body)).encode()),
        *fields,
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def respond_json(send: Send, status: int, body: Any, fields: Fields = ()) -> None:
    await respond(send, status, encode_value(body), JSON, fields)


async def read_json(scope: Scope, receive: Receive, type: type[T], most: int) -> T:
    """The body as this type. Raises InterlockError.

    The content type is demanded: a page of another origin cannot send it without being asked.
    """
    sent = dict(scope["headers"]).get(b"content-type", b"")
    if sent.partition(b";")[0].strip().lower() != JSON:
        raise InterlockError(INVALID_REQUEST, "Send JSON, as `Content-Type: application/json`.")
    body = bytearray()
    while True:
        part = await receive()
        if part["type"] != "http.request":
            raise InterlockError(INVALID_REQUEST, "The request ended before its body did.")
        body += part.get("body", b"")
        if len(body) > most:
            raise InterlockError(PAYLOAD_TOO_LARGE, f"More than {most} bytes are not read.")
        if not part.get("more_body", False):
            break
    try:
        return msgspec.json.decode(bytes(body), type=type)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InterlockError(
            INVALID_REQUEST, f"The body is not what is expected: {error}."
        ) from None


class EventStream:
    """Server-sent events, until the client leaves or there is no more to tell."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._woken = asyncio.Event()
        self._gone = False
        self.ended = False

    def end(self) -> None:
        """Nothing more is told, whatever happens."""
        self.ended = True
        self._woken.set()

    def wake(self) -> None:
        """There is something new; `run` looks at it."""
        self._woken.set()

    async def run(
        self,
        event: str,
        tell: Callable[[], Told],
        *,
        fields: Fields,
        ping: float,
        may: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        """Tell what there is, whenever it is something else than before. `may` is asked before
        anything is told: whether the other side may hear it still."""
        headers = [(b"content-type", b"text/event-stream"), (b"x-accel-buffering", b"no"), *fields]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        leaving = asyncio.ensure_future(self._until_gone())
        told: object = None
        try:
            while not self._gone:
                self._woken.clear()
                if may is not None and not await may():
                    break
                if self.ended or self._gone:
                    break
                now, data, last = tell()
                if now is not None and now != told:
                    told = now
                    await self._body(encode_event(data(), event))
                if last:
                    break
                try:
                    async with asyncio.timeout(ping):
                        await self._woken.wait()
                except TimeoutError:
                    await self._body(COMMENT_PING)
        finally:
            leaving.cancel()
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _until_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            continue
        self._gone = True
        self._woken.set()

    async def _body(self, data: bytes) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": True})
