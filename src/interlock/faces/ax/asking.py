"""What a subserver asks its parent, and what a registrant needs of whoever speaks with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from msgspec import UNSET, Raw

from interlock.errors import UPSTREAM_LOST, InterlockError, ProtocolError
from interlock.faces.ax.refusal import RefusedError, read_refusal, refusal_by_symbol
from interlock.protocol import jsonrpc
from interlock.protocol.jsonrpc import Message


class Conversing(Protocol):
    """Our side of a channel to a parent."""

    @property
    def ended_by(self) -> RefusedError | None:
        """Why the parent ended the registration, where it said so in words that are known."""

    def take(self, data: bytes) -> None:
        """A message from the parent."""

    def request(self, method: str, params: bytes) -> asyncio.Future[bytes]:
        """Ask the parent. The future has the raw result, or an InterlockError. Whoever no longer
        waits cancels it."""

    def announce(self, method: str, params: bytes | Raw | None) -> None:
        """Send a notification that is about none of the parent's requests."""

    def closed(self) -> None:
        """The channel is gone. Told once."""


class Asking:
    """The questions that a parent has not answered yet."""

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send
        self._open: dict[bytes, asyncio.Future[bytes]] = {}
        self._last = 0

    def request(self, method: str, params: bytes) -> asyncio.Future[bytes]:
        self._last += 1
        # A string: servers behind a node put their questions to its parent under numbers.
        id = b'"mcpax-%d"' % self._last
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._open[id] = answer
        answer.add_done_callback(lambda _: self._open.pop(id, None))
        name = jsonrpc.encode_value(method)
        self._send(b'{"jsonrpc":"2.0","id":%b,"method":%b,"params":%b}' % (id, name, params))
        return answer

    def answered(self, message: Message) -> bool:
        """Take a response. False: it answers nothing that was asked here."""
        answer = None if message.id is UNSET else self._open.get(bytes(message.id))
        if answer is None:
            return False
        if answer.done():
            return True
        if message.error is not UNSET:
            answer.set_exception(read_refusal(jsonrpc.decode_error(message.error)))
        elif message.result is not UNSET:
            answer.set_result(bytes(message.result))
        return True

    def give_up(self) -> None:
        """The parent will not answer any more."""
        for answer in list(self._open.values()):
            if not answer.done():
                answer.set_exception(InterlockError(UPSTREAM_LOST, "The parent is gone."))
                # Looked at here: nobody may be waiting for this one.
                answer.exception()


def read_ended(message: Message) -> RefusedError | None:
    """Why a parent ends a registration (`notifications/mcpax/session_ended`)."""
    if message.params is UNSET:
        return None
    try:
        said = jsonrpc.decode_value(message.params)
    except ProtocolError:
        return None
    if not isinstance(said, dict):
        return None
    symbol, detail = said.get("message"), said.get("detail")
    return refusal_by_symbol(
        symbol if isinstance(symbol, str) else "", detail if isinstance(detail, str) else ""
    )
