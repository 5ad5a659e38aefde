"""Helpers that read requests and write responses in ASGI, for the paths that ASGI apps serve."""

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
"""The state that an event reports: a value that identifies the state (None: no event is sent), a
function that encodes it, and True if it is the last."""

JSON: Final = b"application/json"


async def respond(
    send: Send,
    status: int,
    body: bytes,
    content_type: bytes,
    fields: Fields = (),
) -> None:
    """Send a complete response."""
    headers = [
        (b"content-type", content_type),
        (b"content-length", str(len(body)).encode()),
        *fields,
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def respond_json(send: Send, status: int, body: Any, fields: Fields = ()) -> None:
    await respond(send, status, encode_value(body), JSON, fields)


async def read_json(scope: Scope, receive: Receive, type: type[T], max_bytes: int) -> T:
    """Read the body of a request as JSON and decode it.

    The JSON content type is required: a page of another origin cannot send it without a CORS
    preflight.

    Args:
        type: the type of the decoded body.
        max_bytes: the maximum size of the body in bytes.

    Raises:
        InterlockError: the content type is wrong, or the body is incomplete, too large or invalid.
    """
    content_type = dict(scope["headers"]).get(b"content-type", b"")
    if content_type.partition(b";")[0].strip().lower() != JSON:
        raise InterlockError(INVALID_REQUEST, "Send JSON, as `Content-Type: application/json`.")
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise InterlockError(
                INVALID_REQUEST, "The connection ended before the body was complete."
            )
        body += message.get("body", b"")
        if len(body) > max_bytes:
            raise InterlockError(PAYLOAD_TOO_LARGE, f"The body is longer than {max_bytes} bytes.")
        if not message.get("more_body", False):
            break
    try:
        return msgspec.json.decode(bytes(body), type=type)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InterlockError(
            INVALID_REQUEST, f"The body does not match the expected schema: {error}."
        ) from None


class EventStream:
    """A stream of server-sent events. It ends when the client disconnects, after `end`, or after
    the last event."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._wake_event = asyncio.Event()
        self._disconnected = False
        self.is_ended = False

    def end(self) -> None:
        """End the stream without another event."""
        self.is_ended = True
        self._wake_event.set()

    def wake(self) -> None:
        """Make `run` read the state again."""
        self._wake_event.set()

    async def run(
        self,
        event: str,
        read_state: Callable[[], Told],
        *,
        fields: Fields,
        ping: float,
        may_continue: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        """Send the state now and after each change, until the stream ends.

        Args:
            event: the name of the events.
            read_state: reads the state. A state that equals the previous one is not sent again.
            fields: header fields of the response.
            ping: the time in seconds after which a silent stream gets a comment.
            may_continue: called before each event. False ends the stream: the caller has lost
            access.
        """
        headers = [(b"content-type", b"text/event-stream"), (b"x-accel-buffering", b"no"), *fields]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        disconnect_task = asyncio.ensure_future(self._wait_for_disconnect())
        last_state: object = None
        try:
            while not self._disconnected:
                self._wake_event.clear()
                if may_continue is not None and not await may_continue():
                    break
                if self.is_ended or self._disconnected:
                    break
                state, encode, is_last = read_state()
                if state is not None and state != last_state:
                    last_state = state
                    await self._send_body(encode_event(encode(), event))
                if is_last:
                    break
                try:
                    async with asyncio.timeout(ping):
                        await self._wake_event.wait()
                except TimeoutError:
                    await self._send_body(COMMENT_PING)
        finally:
            disconnect_task.cancel()
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _wait_for_disconnect(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            continue
        self._disconnected = True
        self._wake_event.set()

    async def _send_body(self, data: bytes) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": True})
